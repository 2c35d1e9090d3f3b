# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Conversion of exported operators: decompositions, numbers as operands of 16-bit tensors, casts to
8 bits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave.trace
from eager_support import X, Y, Two, compiled, eager, same


def test_a_rule_that_does_not_fit_leaves_its_operator_unconverted(monkeypatch):
    """The others are taken apart by theirs."""
    original = cleave.trace.decompose._decomposition

    def refuse(*args, **kwargs):
        raise RuntimeError("output has alias annotations: prims::broadcast_in_dim")

    monkeypatch.setattr(cleave.trace.decompose, "_decomposition", lambda target: refuse
                        if target is torch.ops.aten.logaddexp.default else original(target))
    module = Two(lambda m, x: torch.logaddexp(m.b(m.a(x)), torch.hypot(x, x)) + torch.block_diag(
        m.a.bias[:4], x[:2])[:1, :4])
    with pytest.raises(cleave.trace.UnsupportedError, match=r"aten.logaddexp.default: no conv") as e:
        cleave.trace.trace(module, (X, Y), F.mse_loss)
    assert "block_diag" not in str(e.value)


@pytest.mark.parametrize("compute", [
    lambda p: (p.half() * 0.25 * 70000.0).float() * 1e-4, lambda p: (p.half() * 6 / 70000.0).float(),
    lambda p: (p.bfloat16() * 3.3).float(), lambda p: (p.bfloat16() + 1e-8).float() * 3],
    ids=["product", "quotient", "rounded", "sum"])
def test_numbers_that_16_bits_do_not_hold(compute):
    """Eager code rounds the result alone."""
    def forward(m, x):
        return m.b(m.a(x)) + compute(m.scale)

    module = Two(forward, lambda m: m.register_parameter(
        "scale", nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 0.1]))))
    same(compiled(module, check="off"), eager(module))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_casts_to_8_bits_round(kind):
    """Activations, and the gradients of what was cast."""
    module = Two(lambda m, x: m.b(torch.tanh(m.a(x).to(kind).float() * 3)))
    same(compiled(module, check="off"), eager(module))
