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

NVCC = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"),
                                            "bin", "nvcc")
needs_nvcc = pytest.mark.skipif(not os.path.exists(NVCC), reason="needs nvcc")
ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]

FLOATS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8E4M3FN": 8, "f8E5M2": 8}
INTEGERS = ["i64", "i32", "i8", "i1"]
NAN = {"f64": "0x7FF8000000000000", "f32": "0x7FC00000", "f16": "0x7E00", "bf16": "0x7FC0",
       "f8E4M3FN": "0x7F", "f8E5M2": "0x7F"}
BINARY = ["addf", "subf", "mulf", "divf", "remf", "maximumf", "minimumf", "maxnumf", "minnumf"]
MATH = ["exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "sin", "cos", "sqrt", "rsqrt",
        "absf", "floor", "ceil", "trunc", "round", "roundeven"]
PREDICATES = ["oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule",
              "une", "uno"]


def scalar_ops():
    """Returns (name, type of the operands %a and %b, type of the result, text that defines %r)."""
    for a, width in FLOATS.items():
        for b, other in FLOATS.items():
            if width < other:
                yield f"ext_{a}_{b}", a, b, f"%r = arith.extf %a : {a} to {b}"
            if width > other:
                yield f"trunc_{a}_{b}", a, b, f"%r = arith.truncf %a : {a} to {b}"
        for b in INTEGERS:
            if b != "i1":
                yield f"fptosi_{a}_{b}", a, b, f"%r = arith.fptosi %a : {a} to {b}"
            for op in ("sitofp", "uitofp"):
                yield f"{op}_{b}_{a}", b, a, f"%r = arith.{op} %a : {b} to {a}"
        for op in BINARY:
            yield f"{op}_{a}", a, a, f"%r = arith.{op} %a, %b : {a}"
        yield f"negf_{a}", a, a, f"%r = arith.negf %a : {a}"
        for op in MATH:
            yield f"{op}_{a}", a, a, f"%r = math.{op} %a : {a}"
        yield f"powf_{a}", a, a, f"%r = math.powf %a, %b : {a}"
        yield f"fma_{a}", a, a, f"%r = math.fma %a, %b, %a : {a}"
        for predicate in PREDICATES:
            yield (f"cmpf_{predicate}_{a}", a, "i1",
                   f"%r = arith.cmpf {predicate}, %a, %b : {a}")
        yield (f"constant_{a}", a, a, f"%k = arith.constant 0.5 : {a}\n"
               f"    %n = arith.constant {NAN[a]} : {a}\n"
               f"    %c = arith.cmpf oeq, %a, %k : {a}\n"
               f"    %r = arith.select %c, %n, %b : {a}")
        yield (f"through_{a}", "f32", "f32", "%r = arith.addf %a, %b : f32" if width >= 32 else
               f"%t = arith.truncf %a : f32 to {a}\n    %r = arith.extf %t : {a} to f32")


def kernel(name, source, result, text):
    at = "at affine_map<(r, c) -> (r * 64 + c)> : tensor<4x64x"
    return f"""exec.kernel @{name} map [4, 64] (%x: tensor<4x64x{source}>, %y: tensor<4x64x{source}>)
    -> (%z: tensor<4x64x{result}>)
    attributes {{vector = 4 : i64, alignment = array<i64: 16, 16, 16>}} {{
  exec.pass {{
    %a = exec.load %x {at}{source}> -> {source}
    %b = exec.load %y {at}{source}> -> {source}
    {text}
    exec.store %r, %z at affine_map<(r, c) -> (r * 64 + c)> : {result}, tensor<4x64x{result}>
    exec.yield
  }}
}}
"""


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
