# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The CUDA text of every scalar op and conversion in every type, and that of the kernels of whole
models, is one that nvcc compiles for each architecture."""

import os
import shutil
import subprocess

import pytest

from cleave.models import FAMILIES
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from proofs import ALL
from scalar_kernels import kernel, scalar_ops

NVCC = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"),
                                            "bin", "nvcc")
needs_nvcc = pytest.mark.skipif(not os.path.exists(NVCC), reason="needs nvcc")
ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]


def compile_text(text, path, architecture):
    path.write_text(text)
    result = subprocess.run([NVCC, f"-arch={architecture}", "-fmad=false", "-Werror", "all-warnings",
                             "-cubin", str(path), "-o", str(path.with_suffix(".cubin"))],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_nvcc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scalar_ops(architecture, tmp_path):
    module = "".join(kernel(*op) for op in scalar_ops())
    text = run_tool([tool("cleave-translate"), "--exec-to-cuda", "-"], module)
    assert text.count("__global__") == module.count("exec.kernel")
    compile_text(text, tmp_path / "ops.cu", architecture)


@needs_nvcc
@pytest.mark.parametrize("name, source, result, text", list(scalar_ops()) if ALL else
                         [op for op in scalar_ops() if op[0].startswith("through_")],
                         ids=lambda value: value if "_" in value and " " not in value else "")
def test_headers_of_each(name, source, result, text, tmp_path):
    """A kernel alone has all the headers that it needs."""
    text = run_tool([tool("cleave-translate"), "--exec-to-cuda", "-"],
                    kernel(name, source, result, text))
    compile_text(text, tmp_path / "one.cu", "sm_90")


@needs_nvcc
@pytest.mark.parametrize("family, precision", [
    (family, precision) for family in sorted(FAMILIES)
    for precision in ("f32", "bf16", "fp16", "fp8")] if ALL else [("gpt", "bf16"), ("mixtral", "fp8")])
@pytest.mark.parametrize("architecture", ARCHITECTURES if ALL else ["sm_90"])
def test_models(family, precision, architecture, tmp_path):
    path = tmp_path / "model.mlir"
    assert write_model([family, *"--hidden 64 --heads 4 --layers 1 --seq 64 --vocab 128 --batch 4 "
                        "--image 32 --patch 4".split(), "-o", str(path)]) == 0
    text = run_tool([tool("cleave-compile"), str(path), f"--precision={precision}", "--emit=cuda",
                     "-o", "-"])
    compile_text(text, tmp_path / "model.cu", architecture)
