# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every class of models of the transformers library: which ones Cleave trains.

A class of the mappings of causal, masked and sequence-to-sequence language models and
of sequence and image classification is built small with random weights, traced, and
trained 5 steps of SGD beside PyTorch, as it is and with a padding mask. Run

    PYTHONPATH=python python test/python/support/models/model_census.py [--trace] [--json FILE] [--table] [class ...]

for all or for these classes: `--trace` ends after the trace, `--json` keeps what was
found as it goes, so that a run that was stopped continues where it was, and `--table`
puts it into models.json and writes docs/Models.md. Each class is tried in a process of
its own with a limit of time.
"""

import argparse
import contextlib
import functools
import gc
import inspect
import json
import logging
import multiprocessing
import os
import pathlib
import re
import sys
import time
import traceback
import warnings

import torch
import transformers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "training"))

from model_table import (FAILED, NOT_BUILT, PAGE, REFUSED, STEPS, TABLE, TRACES, TRAINS, UNSTABLE,
                         VALUES, WRONG, classes, entries, page, read, summary, write)
from small_configs import IMAGE, LENGTH, VOCABULARY, WITH_IMAGE, config_of

SAMPLES = 2
#: Samples where statistics are those of a batch: of two they are but a sign.
NORMALISED = 8
RATES = (0.02, 0.1, 0.5, 0.004, 0.001, 0.0002)
#: Runs of PyTorch from weights that differ by their rounding.
ROUNDED = 8


def build(name, task, kind):
    """The model, small, with random weights of a size that each part matters, no dropout."""
    torch.manual_seed(0)
    model = getattr(transformers, name)
    module = model(config_of(model, kind)).float()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
    return module.train()


def batch(module, task, padded, seed=1):
    """The inputs of a step by name; of the padded ones the first sample ends early."""
    generator = torch.Generator().manual_seed(seed)
    config = module.config
    words = getattr(config.get_text_config(), "vocab_size", VOCABULARY)
    normalised = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
                     for m in module.modules())
    samples = NORMALISED if normalised else SAMPLES

    def ids():
        return torch.randint(20, min(VOCABULARY, words), (samples, LENGTH), generator=generator)

    def images(config):
        size = getattr(config, "image_size", IMAGE * (2 if normalised else 1))
        size = (size, size) if isinstance(size, int) else size
        channels = getattr(config, "num_channels", 3)
        return torch.randn(samples, channels, *size, generator=generator)
    if task == "IMAGE_CLASSIFICATION":
        taken = inspect.signature(module.forward).parameters
        if "input_ids" in taken and "pixel_values" not in taken:
            given = {"input_ids": ids()}
        else:
            name = "inputs" if module.main_input_name == "inputs" else "pixel_values"
            given = {name: images(config)}
        labels = torch.randint(0, config.num_labels, (samples,), generator=generator)
        return {**given, "labels": labels}
    inputs = {"input_ids": ids()}
    if task == "SEQUENCE_CLASSIFICATION":
        inputs["labels"] = torch.randint(0, config.num_labels, (samples,), generator=generator)
    else:
        inputs["labels"] = ids()
    if type(module).__name__ in WITH_IMAGE:
        inputs["pixel_values"] = images(config.vision_config)
    ends = getattr(config, "eos_token_id", None)
    if task == "SEQUENCE_CLASSIFICATION" and isinstance(ends, int):
        inputs["input_ids"][:, -1] = ends
        if padded:
            inputs["input_ids"][0, LENGTH - 6] = ends
    if padded:
        mask = torch.ones(samples, LENGTH, dtype=torch.int64)
        mask[0, LENGTH - 5:] = 0
        inputs["attention_mask"] = mask
        inputs["input_ids"] = inputs["input_ids"] * mask
        if inputs["labels"].dim() == 2:
            inputs["labels"] = inputs["labels"].masked_fill(mask == 0, -100)
    if getattr(config, "num_codebooks", 0) == 1 and inputs["labels"].dim() == 2:
        inputs["labels"] = inputs["labels"][..., None]
    return inputs


def loss_of(module):
    """The loss function of a model that computes none."""
    taken = inspect.signature(module.forward).parameters
    if "labels" in taken:
        return None
    return lambda output, labels: torch.nn.functional.cross_entropy(
        output if isinstance(output, torch.Tensor) else output[0], labels)


def takes_mask(module):
    return "attention_mask" in inspect.signature(module.forward).parameters


def attempt(name, task, kind, full, kinds=(False, True)):
    """The result of a class: {"status", "why"}."""
    with quiet():
        return _attempt(name, task, kind, full, kinds)


@contextlib.contextmanager
def quiet():
    """Without what libraries say of models of random weights, on one thread; afterwards as
    before."""
    disabled, threads = logging.root.manager.disable, torch.get_num_threads()
    verbosity = transformers.logging.get_verbosity()
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        transformers.logging.set_verbosity(verbosity)
        torch.set_num_threads(threads)


def _attempt(name, task, kind, full, kinds):
    import cleave.trace
    from cleave.trace.export import eager_step
    start = time.time()
    try:
        module = build(name, task, kind)
        masked = task != "IMAGE_CLASSIFICATION" and takes_mask(module)
        kinds = [k for k in kinds if masked or not k] or [False]
        for padded in kinds:
            with eager_step(module, batch(module, task, padded), loss_of(module)) as loss:
                value = loss()
            assert value.isfinite() and value.requires_grad, f"loss {value}"
    except (Exception, SystemExit) as error:
        return dict(status=NOT_BUILT, why=_said(error))
    found = dict(status=TRAINS if full else TRACES, why="", parameters=sum(p.numel() for p in module.parameters()))
    for padded in kinds:
        inputs = batch(module, task, padded)
        try:
            if full:
                status, why = trains(module, task, padded)
            else:
                status, why = TRACES, ""
                cleave.trace.trace(module, inputs, loss_of(module), logits=False)
        except (cleave.trace.TraceError, cleave.trace.UnsupportedError) as error:
            status = VALUES if "depends on the values of a tensor" in str(error) else REFUSED
            found.update(status=status, why=_said(error), padded=padded)
            break
        except Exception as error:
            found.update(status=REFUSED if type(error).__name__ == "CompileError" else FAILED,
                         why=_said(error), padded=padded)
            if found["status"] == FAILED:
                found["trace"] = traceback.format_exc()[-3000:]
            break
        if why:
            found.update(status=status, why=why, padded=padded)
            break
    found["seconds"] = round(time.time() - start, 1)
    return found


def trains(module, task, padded):
    """(TRAINS, "") where 5 steps are those of PyTorch, or what they are instead and where
    they differ.

    Where they do, PyTorch's own in f32 and f64 are compared: steps at a rate at which these
    part prove nothing, because rounding errors grow, or the updates are as small as the
    rounding of the weights; another rate is tried instead. What differs there must equal
    PyTorch's steps from weights that were rounded otherwise: a maximum, or a ReLU, of which
    two numbers are as good as equal takes one of two branches."""
    batches = [batch(module, task, padded, seed) for seed in range(1, STEPS + 1)]
    rate = RATES[0]
    found, single = in_cleave(module, batches, rate), in_torch(module, batches, rate)
    first = differs(*found, *single)
    if not first:
        return TRAINS, ""
    try:
        double = in_torch(module, batches, rate, double=True)
    except Exception:
        return WRONG, first  # What the model creates of one type does not meet the other.
    if not differs(*found, *double):
        return TRAINS, ""
    # Nothing was updated before the first loss.
    apart = abs(single[0][0] - double[0][0])
    if not abs(found[0][0] - double[0][0]) <= 1e-4 * abs(double[0][0]) + 2 * apart:
        return WRONG, first
    # Where there is no such rate, updates may differ by what rounding the weights after
    # each step makes of them, at a rate at which f32 and f64 part by no more.
    rounding = {n: STEPS * 2.0**-24 * float(p.detach().double().norm())
                for n, p in module.named_parameters()}
    runs = {rate: (single, double)}
    for allowed, rates in ((None, RATES), (rounding, sorted(RATES, reverse=True))):
        for rate in rates:
            if rate not in runs:
                runs[rate] = (in_torch(module, batches, rate),
                              in_torch(module, batches, rate, double=True))
            single, double = runs[rate]
            if not differs(*single, *double, allowed, 0.25):
                found = in_cleave(module, batches, rate)
                said = differs(*found, *single, allowed) and differs(*found, *double, allowed)
                if said and any(not differs(*found, *in_torch(rounded(module, seed), batches, rate),
                                            allowed) for seed in range(ROUNDED)):
                    said = ""
                return (WRONG if said else TRAINS), said
    return UNSTABLE, first


def rounded(module, seed):
    """A copy whose weights differ by what rounding them once may change."""
    import copy
    module = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(1 + (torch.rand(p.shape, generator=generator) - 0.5) * 2.0**-23)
    return module


def in_cleave(module, batches, rate):
    """Losses, and updates by parameter, of steps of Cleave."""
    import cleave
    with _loss_alone():
        step = cleave.compile(module, batches[0], loss_of(module), target=cleave.Target(threads=1),
                              check="off", optimizer=cleave.SGD(lr=rate))
    before = {n: p.detach().double().clone() for n, p in module.named_parameters()}
    losses = [float(step(**inputs)) for inputs in batches]
    state = step.state_dict()
    return losses, {n: state[n].double() - before[n] for n in before if n in state}


@contextlib.contextmanager
def _loss_alone():
    """A compiled step has no entry for logits here, which training does not run."""
    import cleave.trace
    whole = cleave.trace.trace
    cleave.trace.trace = functools.partial(whole, logits=False)
    try:
        yield
    finally:
        cleave.trace.trace = whole


def in_torch(module, batches, rate, double=False):
    """Losses, and updates by parameter, of steps of PyTorch."""
    import copy

    from cleave.trace.export import eager_step
    from training_support import double_precision
    module = copy.deepcopy(module)
    with double_precision(double):
        if double:
            module.double()
        before = {n: p.detach().double().clone() for n, p in module.named_parameters()}
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        losses = []
        for inputs in batches:
            optimizer.zero_grad()
            with eager_step(module, inputs, loss_of(module), double) as loss:
                value = loss()
            value.backward()
            optimizer.step()
            losses.append(float(value.detach()))
    return losses, {n: p.detach().double() - before[n] for n, p in module.named_parameters()}


def differs(losses, updates, expected_losses, expected, rounding=None, share=1.0):
    """Where losses or updates are apart by more than this share of the bounds, or "";
    updates by parameter may be so by `rounding` besides."""
    for i, (found, wanted) in enumerate(zip(losses, expected_losses)):
        if not abs(found - wanted) <= share * 1e-4 * max(abs(wanted), 1e-3):
            return f"loss {i}: {found:.7g}, torch {wanted:.7g}"
    largest = max((float(u.norm()) for u in expected.values()), default=0.0)
    worst = (0.0, "")
    for name, wanted in expected.items():
        if name not in updates:
            if float(wanted.norm()):
                return f"{name} is not in the step's state"
            continue
        found = updates[name].reshape(wanted.shape)
        bound = share * 1e-3 * max(float(wanted.norm()), 1e-5 * largest)
        bound += rounding[name] if rounding else 0.0
        ratio = float((found - wanted).norm()) / max(bound, 1e-30)
        if not ratio <= max(worst[0], 1.0):
            worst = (ratio, f"update of {name}: {float((found - wanted).norm()):.3g} apart from "
                            f"one of {float(wanted.norm()):.3g}, the largest {largest:.3g}")
    return worst[1]


def _said(error):
    """The message of an error, without the folder of a library."""
    if isinstance(error, SystemExit):
        return "exit"
    text = str(error).strip()
    operators = getattr(error, "operators", None)
    if operators:
        text = "; ".join(sorted({f"{_place(where)}: {target}: {reason}"
                                 for target, reason, where, _ in operators}))
    elif type(error).__module__.split(".")[0] != "cleave":
        text = f"{type(error).__name__}: {text}"
    return " ".join(re.sub(r"\S*/site-packages/", "", text).split())[:600]


def _place(where):
    return where.split("/site-packages/")[-1]


# Processes ----------------------------------------------------------------------------


def _child(connection, arguments):
    # What a model prints is not said.
    sys.stdout = sys.stderr = open(os.devnull, "w")
    try:
        connection.send(attempt(*arguments))
    except BaseException as error:
        connection.send(dict(status=FAILED, why=_said(error)))
    connection.close()
    os._exit(0)


def _warm(full):
    """Loads once, before processes part, what each of them needs."""
    import cleave.trace
    if full:
        import cleave._cleave  # noqa: F401
        import training_support  # noqa: F401
    torch.set_num_threads(1)
    task, kind = classes()["LlamaForCausalLM"]
    module = build("LlamaForCausalLM", task, kind)
    cleave.trace.trace(module, batch(module, task, True), logits=False)
    gc.collect()
    gc.freeze()


def run(names, full, limit=240, kinds=(False, True), say=print, keep=lambda found: None):
    """{class: what became of it}, without and with padding (`kinds`); `keep` gets what was
    found so far after each class."""
    _warm(full)
    every, found = classes(), {}
    context = multiprocessing.get_context("fork")
    for name in names:
        task, kind = every[name]
        here, there = context.Pipe(False)
        process = context.Process(target=_child, args=(there, (name, task, kind, full, kinds)))
        start = time.time()
        process.start()
        there.close()
        try:
            result = here.recv() if here.poll(limit) else dict(
                status=FAILED, why=f"not done in {limit} s")
        except EOFError:
            process.join()
            result = dict(status=FAILED, why=f"the process ended with {process.exitcode}")
        process.kill()
        process.join()
        found[name] = dict(task=task, type=kind, wall=round(time.time() - start, 1), **result)
        say(f"{name}: {result['status']} {result['why']}"[:300], flush=True)
        keep(found)
    return found


# Command -------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classes", nargs="*")
    parser.add_argument("--trace", action="store_true", help="end behind the trace")
    parser.add_argument("--padded", action="store_true", help="with padding alone")
    parser.add_argument("--docs", action="store_true", help="write docs/Models.md of the table")
    parser.add_argument("--table", action="store_true", help="put what was found into the table")
    parser.add_argument("--json", help="write what was found here; what is there is not tried again")
    parser.add_argument("--limit", type=int, default=240, help="seconds of a class")
    args = parser.parse_args()
    kept = {}
    if args.json and os.path.exists(args.json):
        kept = json.loads(pathlib.Path(args.json).read_text())
    if not args.docs:
        def keep(found):
            kept.update(found)
            if args.json:
                write(pathlib.Path(args.json), kept)

        run([n for n in (args.classes or classes()) if n not in kept], not args.trace, args.limit,
            (True,) if args.padded else (False, True), keep=keep)
        print(summary(kept))
    if args.table:
        table = {**(read() if TABLE.exists() else {}), **entries(kept)}
        write(TABLE, table)
    if args.docs or args.table:
        PAGE.write_text(page(read()))


if __name__ == "__main__":
    main()
