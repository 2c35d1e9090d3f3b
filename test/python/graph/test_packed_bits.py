# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Flags packed to bytes, against NumPy's packbits: by the interpreter, in native code, on the stand-in
GPU."""

import numpy as np
import pytest

from cleave.testing.tools import build_dir, interpret
from op_runs import TARGETS, run_op, tensor_type

SHAPES = [(1,), (7,), (8,), (9,), (3, 16), (2, 3, 100), (1000,), (5, 4097), (4, 1)]


def draw(shape, seed):
    return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)


def packed(flags):
    return np.packbits(flags, axis=-1, bitorder="little").view(np.int8)


def text_of(name, flags):
    """Packs the flags, and unpacks what the bytes hold."""
    kind, bytes_ = tensor_type(flags), tensor_type(packed(flags))
    return (f"%b{name} = graph.pack_bits %{name} : ({kind}) -> {bytes_}\n"
            f"%m{name} = graph.unpack_bits %b{name} : ({bytes_}) -> {kind}\n",
            {f"b{name}": bytes_, f"m{name}": kind})


def check(found, inputs):
    for name, flags in inputs.items():
        np.testing.assert_array_equal(found[f"b{name}"], packed(flags), err_msg=str(flags.shape))
        np.testing.assert_array_equal(found[f"m{name}"], flags)


@pytest.mark.parametrize("shape", SHAPES + [(0,), (3, 0)], ids=str)
def test_interpreter(shape):
    flags = draw(shape, 1)
    text, types = text_of("x", flags)
    results = ", ".join(f'{t} {{graph.name = "{n}"}}' for n, t in types.items())
    module = f"""func.func @loss(%x: {tensor_type(flags)} {{graph.name = "x", graph.role = "input"}})
        -> ({results}) {{
      {text}
      return {", ".join("%" + n for n in types)} : {", ".join(types.values())}
    }}"""
    check(interpret(module, {"x": flags})[0], {"x": flags})


@pytest.mark.parametrize("target", TARGETS)
def test_native(target, tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAVE_CUDA_LIBRARIES", str(build_dir() / "fake_cuda"))
    inputs = {f"x{i}": draw(shape, i) for i, shape in enumerate(SHAPES)}
    text, results = "", {}
    for name, flags in inputs.items():
        line, types = text_of(name, flags)
        text, results = text + line, results | types
    check(run_op(tmp_path, inputs, text, results, target)[0], inputs)


def test_signs_in_fewer_bytes(tmp_path):
    """Signs of numbers, and their reconstruction, as a compressor needs them."""
    x = np.random.default_rng(3).standard_normal((4, 37)).astype(np.float32)
    kind = tensor_type(x)
    text = f"""%zero = graph.constant dense<0.0> : tensor<f32>
      %p = graph.compare ge %x, %zero : ({kind}, tensor<f32>) -> tensor<4x37xi1>
      %b = graph.pack_bits %p : (tensor<4x37xi1>) -> tensor<4x5xi8>
      %u = graph.unpack_bits %b : (tensor<4x5xi8>) -> tensor<4x37xi1>
      %one = graph.constant dense<1.0> : tensor<f32>
      %less = graph.constant dense<-1.0> : tensor<f32>
      %s = graph.select %u, %one, %less : (tensor<4x37xi1>, tensor<f32>, tensor<f32>) -> {kind}"""
    found, = run_op(tmp_path, {"x": x}, text, {"b": "tensor<4x5xi8>", "s": kind})
    np.testing.assert_array_equal(found["s"], np.where(x >= 0, 1, -1))
    assert found["b"].nbytes == 4 * 5
