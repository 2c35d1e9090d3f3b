# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""AdamW with 8-bit state in f64, against the code and the update that bitsandbytes publishes."""

import numpy as np
import pytest
import torch

import rule_modules
from adamw8bit_reference import Reference, dynamic_map
from cleave.testing.dual import relative_error
from cleave.testing.tools import interpret, optimize
from rule_modules import TOLERANCE, module, state_shapes

SHAPES = {
    "wide": ((16, 512), (16, 512)),
    "vector": ((4096,), (4096,)),
    # 3 * 4 * 64 features of which 4 x 64 are a block.
    "heads": ((8, 3, 4, 64), (8, 768)),
    # A block is several rows.
    "rows": ((64, 64), (64, 64)),
    "small": ((3, 5), (3, 5)),
    # No block ends where a row does.
    "odd": ((50, 100), (50, 100)),
}
IN_BLOCKS = ("wide", "vector", "heads", "rows")


@pytest.fixture(autouse=True)
def shapes(monkeypatch):
    monkeypatch.setattr(rule_modules, "SHAPES", SHAPES)


def run_code(values, nonnegative):
    flag = " {nonnegative}" if nonnegative else ""
    n = len(values)
    text = (f"func.func @loss(%x: tensor<{n}xf64> {{graph.name = \"x\", graph.role = \"input\"}})\n"
            f"    -> (tensor<{n}xi8> {{graph.name = \"c\"}}, tensor<{n}xf32> {{graph.name = \"y\"}}) {{\n"
            f"  %c = graph.encode %x{flag} : (tensor<{n}xf64>) -> tensor<{n}xi8>\n"
            f"  %y = graph.decode %c{flag} : (tensor<{n}xi8>) -> tensor<{n}xf32>\n"
            f"  return %c, %y : tensor<{n}xi8>, tensor<{n}xf32>\n}}\n")
    results, _ = interpret(text, {"x": values})
    return results["c"], results["y"]


@pytest.mark.parametrize("signed", [True, False])
def test_every_code(signed):
    codes = dynamic_map(signed)
    assert len(codes) == 256
    found, values = run_code(codes, not signed)
    assert len(set(found.tolist())) == 256
    np.testing.assert_allclose(values, codes, rtol=1e-12)


@pytest.mark.parametrize("signed", [True, False])
def test_the_nearest_code_is_taken(signed):
    codes = dynamic_map(signed)
    rng = np.random.default_rng(0)
    size = 10.0 ** rng.uniform(-8, 0, 5000)
    values = size * rng.choice([-1, 1], 5000) if signed else size
    _, found = run_code(values, not signed)
    nearest = codes[np.abs(values[:, None] - codes[None]).argmin(1)]
    # A negative number does not become 0.
    nearest = np.where((values < 0) & (nearest == 0), -0.55e-6, nearest)
    np.testing.assert_allclose(found, nearest, rtol=1e-12)


def test_rule():
    step = optimize(module(SHAPES), "--graph-differentiate",
                    "--graph-apply-optimizer=optimizer=adamw8bit eps=1e-3")
    found = state_shapes(step)
    assert {n for n in found if "absmax" not in n} == {
        f"{n}.exp_avg{end}" for n in ("small", "odd") for end in ("", "_sq")}
    assert [found[f"{n}.absmax1"] for n in IN_BLOCKS] == [(16, 2), (16,), (8, 3, 1), (16,)]
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(s) for n, (s, _) in SHAPES.items()}
    slots = {n: np.zeros(s) for n, s in found.items()}
    slots |= {f"{n}.state{i}": np.zeros(SHAPES[n][0], np.int8) for n in IN_BLOCKS for i in (1, 2)}
    reference = Reference(0.01, eps=1e-3)
    others = {n: torch.tensor(values[n], requires_grad=True) for n in ("small", "odd")}
    torch_adamw = torch.optim.AdamW(others.values(), lr=0.01, eps=1e-3)
    for t in range(1, 5):
        gradients = {n: rng.standard_normal(s) * 10.0 ** rng.integers(-3, 2, s)
                     for n, (s, _) in SHAPES.items()}
        inputs = {f"{n}.g": g for n, g in gradients.items()} | values | slots
        results, _ = interpret(step, inputs | {"lr": np.float64(0.01), "step": np.int64(t)},
                               entry="train")
        for name, p in others.items():
            p.grad = torch.tensor(gradients[name])
        torch_adamw.step()
        expected = {n: reference.step(n, values[n], gradients[n], t) for n in IN_BLOCKS}
        expected |= {n: p.detach().numpy() for n, p in others.items()}
        for name, value in expected.items():
            assert relative_error(results[name], value) <= TOLERANCE, (name, t)
        for name in IN_BLOCKS:
            for i, (codes, scales) in enumerate(reference.moments[name], start=1):
                ours = results[f"{name}.absmax{i}"].ravel()
                assert relative_error(ours, scales.ravel(), floor=1e-60) <= TOLERANCE
                _, own = run_code_of(results[f"{name}.state{i}"], i == 2)
                np.testing.assert_allclose(own, codes.ravel(), rtol=1e-12)
        values = {n: results[n] for n in SHAPES}
        slots = {n: results[n] for n in slots}


def run_code_of(codes, nonnegative):
    """The values of codes, by the interpreter."""
    flag = " {nonnegative}" if nonnegative else ""
    n = codes.size
    text = (f"func.func @loss(%c: tensor<{n}xi8> {{graph.name = \"c\", graph.role = \"input\"}})\n"
            f"    -> (tensor<{n}xf32> {{graph.name = \"y\"}}) {{\n"
            f"  %y = graph.decode %c{flag} : (tensor<{n}xi8>) -> tensor<{n}xf32>\n"
            f"  return %y : tensor<{n}xf32>\n}}\n")
    results, _ = interpret(text, {"c": codes.ravel()})
    return codes, results["y"]
