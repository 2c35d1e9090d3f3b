# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The kernels of training steps of real widths, compiled by NVIDIA's own compiler: it accepts all
of them, and keeps what they compute in registers. It needs no GPU, and says nothing of results."""

import re

import pytest

import cuda_nvrtc
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from proofs import ALL

pytestmark = pytest.mark.skipif(bool(cuda_nvrtc.reason()), reason=cuda_nvrtc.reason())

FAMILIES = ["gpt", "llama", "bert", "vit", "switch", "mixtral"]
PRECISIONS = ["f32", "bf16", "fp16"]
ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
#: Of two layers, so that kernels between layers are among them.
SIZE = "--hidden=768 --heads=12 --layers=2 --seq=1024 --vocab=50257 --batch=8 --dropout=0.1".split()
#: Kernels that spill, and why that is accepted.
SPILLS = {
    # Two words, outside of the loop over keys, where a block of three warps has 168 registers.
    "cleave_attention_forward_64": 16,
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The text of a model's kernels; models are written once."""
    folder, known = tmp_path_factory.mktemp("models"), {}

    def text(family, precision, architecture):
        path = folder / f"{family}.mlir"
        if not path.exists():
            assert write_model([family, *SIZE, "-o", str(path)]) == 0
        key = (family, precision, architecture)
        if key not in known:
            known[key] = run_tool([
                tool("cleave-compile"), str(path), "--target=cuda", f"--precision={precision}",
                f"--arch={architecture}", "--emit=cuda", "-o", "-"])
        return known[key]
    return text


def only_generated(text):
    """Without the kernels of other commands, which are the same in all models and take NVRTC
    longer than all the others."""
    return re.split(r"\n(?=[^\n]*\n)(?=(?:///?[^\n]*\n)*struct )", text)[0]


CASES = [(family, precision, architecture) for family in FAMILIES for precision in PRECISIONS
         for architecture in ARCHITECTURES]
SAMPLE = [("gpt", "bf16", "sm_90"), ("mixtral", "fp16", "sm_80"), ("vit", "f32", "sm_100")]


@pytest.mark.parametrize("family, precision, architecture", CASES if ALL else SAMPLE)
def test_all_kernels_compile(family, precision, architecture, kernels):
    text = kernels(family, precision, architecture)
    ptx, log = cuda_nvrtc.compile_text(text, architecture, "--ptxas-options=-v")
    found = cuda_nvrtc.resources(log)
    assert len(found) == text.count('extern "C" __global__') == len(cuda_nvrtc.entries(ptx))
    spilled = {name: used.spilled for name, used in found.items() if used.spilled}
    assert not {name: count for name, count in spilled.items() if count > SPILLS.get(name, 0)}
