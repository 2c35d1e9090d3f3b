# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Steps of small models by artifacts that compute the same in other ways, and what differs."""

import multiprocessing
import os
from queue import Empty

import numpy as np

from cleave import _runtime
from cleave.models.__main__ import main as write_model

PRECISIONS = ["f32", "bf16", "fp16", "fp8"]
#: Recipes and schedules over threads of one process.
LAYOUTS = {
    "one": [],
    "zero2": ["--mesh=dp=2", "--plan=zero2"],
    "sequence": ["--mesh=tp=2", "--plan=megatron-sp"],
    "stages": ["--mesh=pp=2", "--micro-batches=2", "--schedule=zb-h1"],
    "context": ["--mesh=cp=2", "--plan=ring"],
}
OPTIMIZERS = ["adamw", "sgd", "lion", "adagrad", "lamb", "adafactor", "muon", "adamw8bit"]
SIZE = ("--heads 4 --layers 2 --seq 16 --vocab 64 --batch 4 --dropout 0.1 "
        "--image 16 --patch 4")
#: What other last bits of functions leave in results, and in the updates of a parameter, relative
#: to the largest one. In 16 bits few roundings differ, but one that does counts.
BOUND = {"f32": (1e-5, 2e-4), "bf16": (1e-3, 1e-2), "fp16": (2e-3, 5e-2), "fp8": (1e-3, 1e-2)}
TYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i8": np.int8,
         "i1": np.bool_}


def model(family, folder, hidden=32, *flags):
    path = folder / f"{family}.mlir"
    assert write_model([family, f"--hidden={hidden}", *SIZE.split(), *flags, "-o", str(path)]) == 0
    return path


def draw(tensors, scale=0.08, shift=None):
    """The values of parameters, inputs and the rate, with each its tensor. With a seed `shift`,
    parameters are off by a millionth."""
    random = np.random.default_rng(5)
    for tensor in tensors:
        kind, shape = TYPES[tensor["dtype"]], tensor["shape"]
        if tensor["role"] == "input":
            values = (random.integers(0, 32, shape) if np.issubdtype(kind, np.integer)
                      else random.standard_normal(shape))
        elif tensor["role"] == "parameter":
            # Small, since large ones make the rounding of a step that of the next, many times over.
            values = scale * random.standard_normal(shape) + (len(shape) == 1)
            if shift is not None:
                noise = np.random.default_rng([shift, *shape]).standard_normal(shape)
                values = values * (1 + 1e-6 * noise)
        elif tensor["name"] == "lr":
            values = np.full(shape, 1e-2)
        else:
            continue
        yield tensor, np.asarray(values).astype(kind)


def drawn(artifact):
    """By name, what `run` gives to the artifact; after `run_apart` only in another process."""
    session = _runtime.open(str(artifact))
    found = {tensor["name"]: values for tensor, values in draw(session.tensors())}
    session.close()
    return found


def run(artifact, steps=2, evaluates=True, roles=("parameter",), ranks_per_device=1, scale=0.08,
        shift=None):
    """What some steps and then evaluation give, the parameters before the steps, and the tensors of
    these roles after them."""
    session = _runtime.open(str(artifact), ranks_per_device=ranks_per_device)
    before, found = {}, {}
    for tensor, values in draw(session.tensors(), scale, shift):
        if tensor["role"] == "parameter":
            before[tensor["name"]] = values.astype(np.float64)
        session.write(tensor["name"], np.frombuffer(values.tobytes(), np.uint8))
    given, outputs = [], [t["name"] for t in session.tensors() if t["role"] == "output"]
    for entry in ["train"] * steps + [e for e in session.entries()
                                      if evaluates and e in ("evaluate", "logits")]:
        session.run(entry, 3, steps)
        given += [np.frombuffer(session.read(name), np.float32)
                  for name in (["logits"] if entry == "logits" else ["loss", "loss_weight"])
                  if name in outputs]
    for tensor in session.tensors():
        if tensor["role"] in roles:
            found[tensor["name"]] = np.frombuffer(
                session.read(tensor["name"]), TYPES[tensor["dtype"]]).astype(np.float64).reshape(
                    tensor["shape"])
    session.close()
    return np.concatenate(given), before, found


def rounds_alike(artifact, expected, found, count=4):
    """Whether results found are as near to those expected as those of nearly the same parameters;
    root mean squares. Where tokens choose experts, a rounding gives a token another one."""
    distance = lambda one: float(np.sqrt(np.mean((one[0] - expected[0])**2)))
    return distance(found) <= 1.5 * max(distance(run(artifact, shift=shift))
                                        for shift in range(count))


def differences(one, other, precision):
    """The results that differ by more than rounding."""
    (given, before, expected), (others, _, found) = one, other
    results, updates = BOUND[precision]
    if not np.abs(given - others).max() <= results * np.abs(given).max():
        yield f"results {given} and {others}"
    changes = {name: np.abs(expected[name] - values).max() for name, values in before.items()}
    # A gradient that is zero but for rounding has no scale of its own.
    least = 1e-2 * max(changes.values())
    for name in before:
        values = expected[name]
        limit = updates * (changes[name] + least) + 3e-7
        if not np.abs(values - found[name]).max() <= limit:
            yield name


def farther(exact, one, other, most=2.0):
    """Parameters of which `other` is farther from the run in f32 than `one`, of the same roundings in
    another order, by more than a factor; root mean squares, one for each parameter. The attention
    of a GPU takes sums of rows from its rounded result, that of a CPU often from the probabilities:
    biases of keys, whose gradients are 0 but for rounding, are farther from it."""
    start, wanted = exact[1:]
    least = 1e-4 * max(np.abs(values - start[name]).max() for name, values in wanted.items())
    for name, values in wanted.items():
        errors = [float(np.sqrt(np.mean((found[2][name] - values)**2))) for found in (one, other)]
        if not errors[1] <= most * errors[0] + least:
            yield f"{name}: {errors[1]:.2e} from f32, not {errors[0]:.2e}"


def run_apart(artifact, steps=2, **options):
    """In another process, since a wrong kernel can end it; then the result never comes."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(run, (artifact, steps), options).get(60)


def train_on(artifact, inputs, steps=1, **options):
    """The losses, the parameters after these steps with a rate of 1, what the first rank has sent in the
    last one, and the message that ended them. `inputs` has inputs and parameters."""
    session = _runtime.open(str(artifact), **options)
    for tensor in session.tensors():
        values = inputs.get(tensor["name"])
        if tensor["name"] == "lr":
            values = np.ones(tensor["shape"])
        if values is not None:
            session.write(tensor["name"], np.frombuffer(
                values.astype(TYPES[tensor["dtype"]]).tobytes(), np.uint8))
    losses, message = [], ""
    for number in range(steps):
        message = session.run("train", 0, number)
        if message:
            break
        losses.append(float(np.frombuffer(session.read("loss"), np.float32)[0]))
    found = {} if message else {
        t["name"]: np.frombuffer(session.read(t["name"]), np.float32).reshape(t["shape"])
        for t in session.tensors() if t["role"] == "parameter"}
    sent = session.communication()
    session.close()
    return losses, found, sent, message


def train_on_apart(artifact, inputs, steps=1, **options):
    """In another process, as `run_apart`."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(train_on, (artifact, inputs, steps), options).get(60)


def train_as(variables, artifact, inputs, steps):
    """`train_on` as one of several processes, which these variables say."""
    os.environ.update(variables)
    return train_on(artifact, inputs, steps)


def trip(artifact, steps, **options):
    """After `steps` good ones runs a step with an infinite weight. Returns its message, and the
    names of parameters and state that the good steps, that step, and another good one changed."""
    session = _runtime.open(str(artifact), **options)
    random = np.random.default_rng(7)
    for tensor in session.tensors():
        kind, shape = TYPES[tensor["dtype"]], tensor["shape"]
        if tensor["role"] == "input":
            values = random.integers(0, 32, shape)
        elif tensor["role"] == "parameter":
            values = 0.08 * random.standard_normal(shape) + (len(shape) == 1)
        elif tensor["name"] == "lr":
            values = np.full(shape, 1e-2)
        else:
            continue
        session.write(tensor["name"], np.frombuffer(values.astype(kind).tobytes(), np.uint8))
    lasting = [t for t in session.tensors() if t["role"] in ("parameter", "state")]
    content = lambda: {t["name"]: bytes(session.read(t["name"])) for t in lasting}
    changed = lambda one, two: [name for name in one if one[name] != two[name]]

    begin = content()
    messages = [session.run("train", 3, steps + 2) for _ in range(steps)]
    assert not any(messages), messages
    good = content()
    weight = next(t["name"] for t in lasting if t["role"] == "parameter" and len(t["shape"]) == 1)
    values = np.frombuffer(good[weight], np.float32).copy()
    values[0] = np.inf
    session.write(weight, values.view(np.uint8))
    spoiled = content()
    try:
        message = session.run("train", 3, steps + 2) or ""
    except RuntimeError as error:
        message = str(error)
    after = content()
    session.write(weight, np.frombuffer(good[weight], np.uint8))
    assert not session.run("train", 3, steps + 2)
    return message, changed(begin, good), changed(spoiled, after), changed(good, content())


def trip_apart(artifact, *arguments, **options):
    """In another process, since a wrong kernel can end it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(trip, (artifact, *arguments), options).get(60)


def feed(artifact, entries, result="loss", twice=False, scale=0.08):
    """Runs entries, each with inputs of its own, the first of them given `twice`; returns `result`
    of each, and then all parameters."""
    session = _runtime.open(str(artifact))
    random = np.random.default_rng(5)
    parts = {tensor["name"]: tensor for tensor in session.tensors()}
    write = lambda tensor, values: session.write(tensor["name"], np.frombuffer(
        values.astype(TYPES[tensor["dtype"]]).tobytes(), np.uint8))
    for tensor in parts.values():
        if tensor["role"] == "parameter":
            write(tensor, scale * random.standard_normal(tensor["shape"]) + (
                len(tensor["shape"]) == 1))
    found = []
    for index, entry in enumerate(entries):
        if "lr" in parts:
            write(parts["lr"], np.full(parts["lr"]["shape"], 1e-2 / (1 + index)))
        given = [tensor for tensor in parts.values() if tensor["role"] == "input"]
        for tensor in given[:twice]:
            write(tensor, np.zeros(tensor["shape"]))
        for tensor in given:
            write(tensor, random.integers(0, 32, tensor["shape"]) if "i" in tensor["dtype"] else
                  random.standard_normal(tensor["shape"]))
        session.run(entry, 3, len(entries))
        if result:
            found.append(np.frombuffer(session.read(result), np.float32))
    found += [np.frombuffer(session.read(name), np.float32) for name, tensor in parts.items()
              if tensor["role"] == "parameter"]
    session.close()
    return found


def feed_apart(artifact, *arguments, **options):
    """In another process, since a wrong copy can end it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(feed, (artifact, *arguments), options).get(60)


def read_given(artifact, steps=4):
    """Writes inputs and reads them before each step; returns how many have other bytes then."""
    session = _runtime.open(str(artifact))
    random = np.random.default_rng(6)
    wrong = 0
    for _ in range(steps):
        for tensor in session.tensors():
            if tensor["role"] == "input":
                size = int(np.prod(tensor["shape"])) * np.dtype(TYPES[tensor["dtype"]]).itemsize
                values = random.integers(0, 16, size // 8).astype(np.int64).view(np.uint8)
                session.write(tensor["name"], values)
                wrong += bytes(session.read(tensor["name"])) != values.tobytes()
        session.run("train", 1, 1)
    return wrong


def read_given_apart(artifact):
    """The same in another process, of which the environment is that of now."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(read_given, (artifact,))


def _run_variants(artifact, variable, values, queue, options):
    for value in values:
        os.environ[variable] = value
        try:
            queue.put((value, run(artifact, evaluates=False, roles=("parameter", "state"),
                                  **options)))
        except RuntimeError as error:
            queue.put((value, str(error)))


def run_variants(artifact, variable, values, **options):
    """By the value of a variable of the environment, what two steps give, with the state of the
    optimizer, or the text of their error; a value with which the process ends has an empty text."""
    context, results, values = multiprocessing.get_context("spawn"), {}, list(values)
    while len(results) < len(values):
        left = [value for value in values if value not in results]
        queue = context.Queue()
        process = context.Process(target=_run_variants,
                                  args=(artifact, variable, left, queue, options))
        process.start()
        try:
            while len(results) < len(values):
                for _ in range(600):
                    try:
                        value, result = queue.get(timeout=0.1)
                        break
                    except Empty:
                        if not process.is_alive() and queue.empty():
                            raise
                else:
                    raise Empty
                results[value] = result
        except Empty:
            # It has ended, or hangs, in the first that has no result.
            results[next(value for value in values if value not in results)] = ""
        process.kill()
        process.join()
    return results
