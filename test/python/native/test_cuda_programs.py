# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whole training steps with the printed CUDA kernels, in emulated blocks on the host, against the
same steps with native kernels: two emitters, one program. It proves the kernels' structure (indices,
barriers, reductions, types), not the last bits of a device's math library."""

import multiprocessing
import re
import subprocess

import numpy as np
import pytest

import cuda_host
from cleave import _runtime
from cleave.models import FAMILIES
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from proofs import ALL

pytestmark = pytest.mark.skipif(not cuda_host.HEADERS or not cuda_host.COMPILER,
                                reason="needs NVIDIA's headers and clang")

PRECISIONS = ["f32", "bf16", "fp16", "fp8"]
#: Recipes and schedules over threads of one process.
LAYOUTS = {
    "one": [],
    "zero2": ["--mesh=dp=2", "--recipe=zero2"],
    "sequence": ["--mesh=tp=2", "--recipe=megatron-sp"],
    "stages": ["--mesh=pp=2", "--micro-batches=2", "--schedule=zb-h1"],
    "context": ["--mesh=cp=2", "--recipe=ring"],
}
OPTIMIZERS = ["adamw", "sgd", "lion", "adagrad", "lamb", "adafactor", "muon", "adamw8bit"]
SIZE = ("--heads 4 --layers 2 --seq 16 --vocab 64 --batch 4 --dropout 0.1 "
        "--image 16 --patch 4")
#: What other last bits of functions leave in results, and in the updates of a parameter, relative
#: to the largest one. In 16 bits few roundings differ, but one that does counts.
BOUND = {"f32": (1e-5, 2e-4), "bf16": (1e-3, 1e-2), "fp16": (2e-3, 5e-2), "fp8": (1e-3, 1e-2)}
TYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i8": np.int8,
         "i1": np.bool_}


def model(family, folder, hidden=32):
    path = folder / f"{family}.mlir"
    assert write_model([family, f"--hidden={hidden}", *SIZE.split(), "-o", str(path)]) == 0
    return path


def run(artifact, steps=2):
    """What some steps and then evaluation give, and the parameters before and after the steps."""
    session = _runtime.open(str(artifact))
    random = np.random.default_rng(5)
    before, found = {}, {}
    for tensor in session.tensors():
        kind, shape = TYPES[tensor["dtype"]], tensor["shape"]
        if tensor["role"] == "input":
            values = (random.integers(0, 32, shape) if np.issubdtype(kind, np.integer)
                      else random.standard_normal(shape))
        elif tensor["role"] == "parameter":
            # Small, since large ones make the rounding of a step that of the next, many times over.
            values = 0.08 * random.standard_normal(shape) + (len(shape) == 1)
            before[tensor["name"]] = values.astype(kind).astype(np.float64)
        elif tensor["name"] == "lr":
            values = np.full(shape, 1e-2)
        else:
            continue
        session.write(tensor["name"], np.frombuffer(values.astype(kind).tobytes(), np.uint8))
    given, outputs = [], [t["name"] for t in session.tensors() if t["role"] == "output"]
    for entry in ["train"] * steps + [e for e in session.entries() if e in ("evaluate", "logits")]:
        session.run(entry, 3, steps)
        given += [np.frombuffer(session.read(name), np.float32)
                  for name in (["logits"] if entry == "logits" else ["loss", "loss_weight"])
                  if name in outputs]
    for tensor in session.tensors():
        if tensor["role"] == "parameter":
            found[tensor["name"]] = np.frombuffer(
                session.read(tensor["name"]), TYPES[tensor["dtype"]]).astype(np.float64).reshape(
                    tensor["shape"])
    session.close()
    return np.concatenate(given), before, found


def differences(one, other, precision):
    """What differs by more than rounding does."""
    (given, before, expected), (others, _, found) = one, other
    results, updates = BOUND[precision]
    if not np.abs(given - others).max() <= results * np.abs(given).max():
        yield f"results {given} and {others}"
    changes = {name: np.abs(values - before[name]).max() for name, values in expected.items()}
    # A gradient that is zero but for rounding has no scale of its own.
    least = 1e-2 * max(changes.values())
    for name, values in expected.items():
        limit = updates * (changes[name] + least) + 3e-7
        if not np.abs(values - found[name]).max() <= limit:
            yield name


def compile_both(path, precision, layout, folder):
    """Returns the native artifact and the printed kernels of one program."""
    flags = [f"--precision={precision}", *LAYOUTS[layout], "--optimizer=sgd", "--momentum=0",
             "--threads=1"]
    run_tool([tool("cleave-compile"), str(path), *flags, "-o", str(folder / "native.so")])
    return folder / "native.so", run_tool([tool("cleave-compile"), str(path), *flags,
                                           "--emit=cuda", "-o", "-"])


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """A rank of one thread runs a kernel as a whole, as a launch does."""
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


CASES = [(family, precision, "one") for family in FAMILIES for precision in PRECISIONS] + [
    (family, precision, layout) for family in ("gpt", "llama") for precision in ("f32", "bf16")
    for layout in LAYOUTS if layout != "one"]
SAMPLE = [("gpt", "bf16", "one"), ("llama", "f32", "sequence"), ("switch", "fp8", "one")]


@pytest.mark.parametrize("family, precision, layout", CASES if ALL else SAMPLE)
def test_steps_agree(family, precision, layout, tmp_path, monkeypatch):
    native, text = compile_both(model(family, tmp_path), precision, layout, tmp_path)
    emulated = tmp_path / "emulated.so"
    assert cuda_host.build(text, native, emulated) > 10
    expected = run(native)
    for order in ["up", "down", "7"] if ALL else ["7"]:
        monkeypatch.setenv("CLEAVE_THREAD_ORDER", order)
        assert not list(differences(expected, run(emulated), precision))


@pytest.mark.parametrize("optimizer", OPTIMIZERS if ALL else ["adamw8bit"])
def test_optimizers_agree(optimizer, tmp_path):
    path, emulated = model("gpt", tmp_path), tmp_path / "emulated.so"
    flags = [f"--optimizer={optimizer}", "--threads=1"]
    if optimizer == "muon":
        flags.append("--group=ndim<2: optimizer=adamw")
    run_tool([tool("cleave-compile"), str(path), *flags, "-o", str(tmp_path / "native.so")])
    text = run_tool([tool("cleave-compile"), str(path), *flags, "--emit=cuda", "-o", "-"])
    cuda_host.build(text, tmp_path / "native.so", emulated)
    # Where a gradient is zero but for rounding, an update of its sign is not.
    assert not [name for name in differences(run(tmp_path / "native.so"), run(emulated), "fp16")
                if not name.endswith("key.bias")]


#: One place in a kernel, and what is wrong there then.
FAULTS = {
    "index": (r"(?<=[\[(+*] )\d+(?=[\])])|\* \d+(?= \+)", lambda text: f"{text} + 1"),
    "operand": (r"\bin0\[", lambda text: "in1["),
    "product": (r"(?<=\w) \* (?=v\d)", lambda text: " + "),
    "barrier": (r"__syncthreads\(\);", lambda text: ""),
    "store": (r"\n *(?:storeVector\(out|out\d+\[)[^\n]*;", lambda text: ""),
    "shuffle": (r"step /= 2", lambda text: "step /= 4"),
    "rounding": (r"\(__nv_bfloat16\)(?=v\d)", lambda text: "(__nv_bfloat16)(float)(int)"),
}


def run_apart(artifact):
    """In another process, since a wrong kernel can end it; then the result never comes."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(run, (artifact,)).get(30)


@pytest.mark.parametrize("fault", FAULTS if ALL else ["barrier", "index"])
def test_faults_are_found(fault, tmp_path, monkeypatch):
    """A wrong kernel gives another step, a crash or threads that wait forever."""
    # Rows of several warps, in which barriers matter.
    path = model("gpt", tmp_path, 256 if fault == "barrier" else 32)
    # What rounding would hide is seen in f32.
    precision = "bf16" if fault == "rounding" else "f32"
    native, text = compile_both(path, precision, "one", tmp_path)
    pattern, change = FAULTS[fault]
    begin = text.index("template <int Threads" if fault in ("barrier", "shuffle") else "// grid")
    places = list(re.finditer(pattern, text[begin:]))
    assert places
    random = np.random.default_rng(len(fault))
    count, tried = 8 if ALL else 1, 0
    expected, missed = run(native), []
    monkeypatch.setenv("CLEAVE_THREAD_ORDER", "7")
    right = tmp_path / "right.so"
    cuda_host.build(text, native, right)
    # Without a fault, the same way finds nothing.
    assert not list(differences(expected, run_apart(right), precision))
    for place in (places[i] for i in random.permutation(len(places))):
        if tried == count:
            break
        at, end = begin + place.start(), begin + place.end()
        wrong = tmp_path / f"wrong{at}.so"
        try:
            cuda_host.build(text[:at] + change(place[0]) + text[end:], native, wrong)
        except subprocess.CalledProcessError:
            continue  # Not a program, and no fault either.
        tried += 1
        try:
            found = run_apart(wrong)
        except (multiprocessing.TimeoutError, RuntimeError):
            continue
        if not list(differences(expected, found, precision)):
            kernel = re.findall(r"(cleave_\w+)\(", text[:at])[-1]
            missed.append((kernel, text[text.rfind("\n", 0, at):text.find("\n", end)]))
    # Some are none: of sums of squares it matters only whether they are finite.
    assert tried and len(missed) <= tried // 4, missed
