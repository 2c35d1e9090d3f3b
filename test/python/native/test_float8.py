# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Floats of 8 bits: the interpreter and native programs convert as PyTorch does, and multiply them
exactly."""


import pytest
import torch

from float8_runs import by_interpreter, natively

TYPES = {"f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2}
CODES = torch.arange(256, dtype=torch.uint8)


RUNS = pytest.mark.parametrize("run", [by_interpreter, natively])


def same(found, wanted):
    """Equal bits, but for those of NaN."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    bits = {1: torch.uint8, 4: torch.int32}[found.element_size()]
    nan = wanted.isnan()
    assert torch.equal(found.isnan(), nan)
    return torch.equal(found.view(bits)[~nan], wanted.view(bits)[~nan])


def numbers(kind):
    """All values, those halfway between neighbours, and next to these; what is too large; random
    numbers, and random bits."""
    finite = CODES.view(kind).double()
    finite = finite[finite.isfinite()].sort().values
    edges = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3e38, -3e38, 1e-45])
    # Where a value would be rounded to the next one, if there were one.
    beyond = finite[-1] + (finite[-1] - finite[-2]) * torch.tensor([0.5, 1.0, 1.5, 2.0])
    at = torch.cat([finite, (finite[1:] + finite[:-1]) / 2, beyond, -beyond]).float()
    near = [torch.nextafter(at, torch.tensor(to)) for to in (float("inf"), -float("inf"))]
    draw = torch.Generator().manual_seed(3)
    scales = 2.0 ** torch.randint(-20, 18, (50000,), generator=draw)
    random = torch.randn(50000, generator=draw) * scales
    words = torch.randint(-2**31, 2**31, (50000,), generator=draw).to(torch.int32)
    return torch.cat([at, *near, edges, random, words.view(torch.float32)])


def conversions(name, count):
    return f"""
func.func @loss(%w: tensor<f32> {{graph.name = "w", graph.role = "parameter"}},
    %x: tensor<{count}xf32> {{graph.name = "x", graph.role = "input"}},
    %c: tensor<256x{name}> {{graph.name = "codes", graph.role = "input"}})
    -> (tensor<f32> {{graph.name = "loss"}}, tensor<{count}x{name}> {{graph.name = "narrow"}},
        tensor<256xf32> {{graph.name = "wide"}}, tensor<256x{name}> {{graph.name = "negative"}},
        tensor<256x{name}> {{graph.name = "squares"}}) {{
  %l = graph.mul %w, %w : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %y = graph.cast %x : (tensor<{count}xf32>) -> tensor<{count}x{name}>
  %z = graph.cast %c : (tensor<256x{name}>) -> tensor<256xf32>
  %m = graph.neg %z : (tensor<256xf32>) -> tensor<256xf32>
  %n = graph.cast %m : (tensor<256xf32>) -> tensor<256x{name}>
  %s = graph.mul %c, %c : (tensor<256x{name}>, tensor<256x{name}>) -> tensor<256x{name}>
  return %l, %y, %z, %n, %s : tensor<f32>, tensor<{count}x{name}>, tensor<256xf32>, tensor<256x{name}>, tensor<256x{name}>
}}"""


@RUNS
@pytest.mark.parametrize("name", TYPES)
def test_conversions_are_those_of_torch(tmp_path, run, name):
    kind = TYPES[name]
    x, codes = numbers(kind), CODES.view(kind)
    assert len(x) > 100000
    found = run(tmp_path, conversions(name, len(x)), {"w": torch.ones(()), "x": x, "codes": codes})
    wide = codes.float()
    assert same(found["wide"], wide)
    assert same(found["negative"], (-wide).to(kind))
    assert same(found["squares"], (wide * wide).to(kind))
    assert same(found["narrow"], x.to(kind))


def products(left, right):
    return f"""
func.func @loss(%w: tensor<f32> {{graph.name = "w", graph.role = "parameter"}},
    %a: tensor<3x12x40x{left}> {{graph.name = "a", graph.role = "input"}},
    %b: tensor<20x40x{right}> {{graph.name = "b", graph.role = "input"}})
    -> (tensor<f32> {{graph.name = "loss"}}, tensor<3x12x20xf32> {{graph.name = "c"}},
        tensor<3x20xf32> {{graph.name = "rows"}}) {{
  %l = graph.mul %w, %w : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %c = graph.contract "rsi,oi->rso" %a, %b {{result_element = f32}}
      : (tensor<3x12x40x{left}>, tensor<20x40x{right}>) -> tensor<3x12x20xf32>
  %d = graph.contract "rsi,oi->ro" %a, %b {{result_element = f32}}
      : (tensor<3x12x40x{left}>, tensor<20x40x{right}>) -> tensor<3x20xf32>
  return %l, %c, %d : tensor<f32>, tensor<3x12x20xf32>, tensor<3x20xf32>
}}"""


@RUNS
@pytest.mark.parametrize("right", TYPES)
@pytest.mark.parametrize("left", TYPES)
def test_products_of_both_formats(tmp_path, run, left, right):
    """All sums are exact in f32: of multiples of 2^-6, below 2^13."""
    draw = torch.Generator().manual_seed(5)
    a = (torch.randn(3, 12, 40, generator=draw).clamp(-4, 4) * 8).round() / 8
    b = (torch.randn(20, 40, generator=draw).clamp(-4, 4) * 8).round() / 8
    a, b = a.to(TYPES[left]), b.to(TYPES[right])
    found = run(tmp_path, products(left, right), {"w": torch.ones(()), "a": a, "b": b})
    wanted = torch.einsum("rsi,oi->rso", a.double(), b.double())
    assert torch.equal(found["c"].double(), wanted)
    assert torch.equal(found["rows"].double(), wanted.sum(1))


def test_exact_mode_rounds_nothing(tmp_path):
    x = torch.tensor([0.1, 1000.0, 1e-9], dtype=torch.float64)
    text = """func.func @loss(%x: tensor<3xf64> {graph.name = "x"}) -> (tensor<3xf64> {graph.name = "y"}) {
      %n = graph.cast %x : (tensor<3xf64>) -> tensor<3xf8E4M3FN>
      %y = graph.cast %n : (tensor<3xf8E4M3FN>) -> tensor<3xf64>
      return %y : tensor<3xf64>
    }"""
    assert torch.equal(by_interpreter(tmp_path, text, {"x": x}, "exact")["y"], x)
    rounded = x.float().to(torch.float8_e4m3fn).double()
    assert torch.equal(by_interpreter(tmp_path, text, {"x": x})["y"], rounded)
