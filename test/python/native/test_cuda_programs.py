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
from cleave.models import FAMILIES
from cleave.testing.tools import run_tool, tool
from proofs import ALL
from step_runs import (LAYOUTS, OPTIMIZERS, PRECISIONS, differences, model, rounds_alike, run,
                       run_apart)

pytestmark = pytest.mark.skipif(not cuda_host.HEADERS or not cuda_host.COMPILER,
                                reason="needs NVIDIA's headers and clang")


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
    chooses = family == "mixtral" and precision != "f32"
    for order in ["up", "down", "7"] if ALL else ["7"]:
        monkeypatch.setenv("CLEAVE_THREAD_ORDER", order)
        found = run(emulated)
        wrong = list(differences(expected, found, precision))
        if chooses and rounds_alike(native, expected, found):
            wrong = [name for name in wrong if not name.startswith("results")]
        assert not wrong


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
    "store": (r"\n *(?:storeVector\(out|out\d+\[)[^\n]*;", lambda text: ""),
    "shuffle": (r"step /= 2", lambda text: "step /= 4"),
    "rounding": (r"\(__nv_bfloat16\)(?=v\d)", lambda text: "(__nv_bfloat16)(float)(int)"),
}


@pytest.mark.parametrize("fault", FAULTS if ALL else ["index", "shuffle"])
def test_faults_are_found(fault, tmp_path, monkeypatch):
    """A wrong kernel gives another step, a crash or threads that wait forever. Barriers are left out
    in test_cuda_order."""
    path = model("gpt", tmp_path)
    # Faults that rounding would hide are seen in f32.
    precision = "bf16" if fault == "rounding" else "f32"
    native, text = compile_both(path, precision, "one", tmp_path)
    pattern, change = FAULTS[fault]
    begin = text.index("template <int Threads" if fault == "shuffle" else "// grid")
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
            kernel = re.findall(r"(cleave_\w+)\(", text[:at])[-1:]
            missed.append((kernel, text[text.rfind("\n", 0, at):text.find("\n", end)]))
    # Some are none: of sums of squares it matters only whether they are finite.
    assert tried and len(missed) <= tried // 4, missed
