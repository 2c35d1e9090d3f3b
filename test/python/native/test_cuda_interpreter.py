# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whole steps on a GPU that is a stand-in (test/fake_cuda) against the reference interpreter,
which shares no code with either target: it runs the step as it is before anything is placed."""

import multiprocessing

import numpy as np
import pytest

from cleave.testing.tools import build_dir, interpret, run_tool, tool
from cuda_fake import FAKE, fake_device  # noqa: F401
from proofs import ALL
from step_runs import differences, drawn, farther, model, run_apart

pytestmark = pytest.mark.skipif(
    not ((FAKE / "libcuda.so.1").exists()
         and (build_dir() / "lib" / "libcleave_cuda.so").exists()),
    reason="needs NVIDIA's headers and clang")

FAMILIES = ["gpt", "llama", "bert", "vit", "switch", "mixtral", "t5"]
CASES = [(family, precision) for family in FAMILIES for precision in ("f32", "bf16")]
SAMPLE = [("gpt", "bf16"), ("vit", "f32"), ("mixtral", "f32")]


def compiled(path, folder, precision):
    """The artifact, and the step as text."""
    flags = [f"--precision={precision}", "--optimizer=sgd", "--momentum=0", "--target=cuda"]
    device = folder / f"{precision}.so"
    run_tool([tool("cleave-compile"), str(path), *flags, "-o", str(device)])
    return device, run_tool([tool("cleave-compile"), str(path), *flags, "--emit=step", "-o", "-"])


def interpreted(text, given, mode):
    """The results of `step_runs.run` after one step: results of the step and of evaluation by the
    parameters that it leaves, the parameters before, and those after it."""
    given = {**given, "rng": np.array([3, 1], np.int64), "step": np.int64(1)}
    after, _ = interpret(text, given, entry="train", mode=mode)
    found = [after.pop("loss")]
    before = {name: given[name].astype(np.float64) for name in after}
    given |= {name: values.astype(np.float32) for name, values in after.items()}
    for entry, names in (("evaluate", ["loss", "loss_weight"]), ("logits", ["logits"])):
        results, _ = interpret(text, given, entry=entry, mode=mode)
        found += [results[name] for name in names if name in results]
    if len(found) == 4:
        # A loss that has a weight has one only in evaluation.
        found.insert(1, np.zeros(1))
    return (np.concatenate([np.ravel(values) for values in found]), before,
            {name: values.astype(np.float64) for name, values in after.items()})


@pytest.mark.parametrize("family, precision", CASES if ALL else SAMPLE)
def test_steps_are_those_of_the_interpreter(family, precision, tmp_path):
    path = model(family, tmp_path)
    device, text = compiled(path, tmp_path, precision)
    found = run_apart(device, 1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        given = pool.apply(drawn, (device,))
    if precision == "f32":
        # All numbers of the interpreter are f64.
        assert not list(differences(interpreted(text, given, "exact"), found, precision))
        return
    # Each result is rounded to its type; the measure is what all roundings cost.
    expected = interpreted(text, given, "typed")
    exact = interpreted(compiled(path, tmp_path, "f32")[1], given, "exact")
    assert not list(farther(exact, expected, found))
    # Tokens that have other experts have other logits.
    count = 2 if family in ("switch", "mixtral") else None
    apart = np.abs(expected[0] - found[0])[:count].max()
    assert apart <= 4e-3 * np.abs(expected[0]).max()
