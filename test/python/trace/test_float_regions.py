# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Casts to f32 in a trace: the ops up to a cast back have a precision."""

import re

import pytest
import torch
from torch import nn

from cleave.trace import trace

X = torch.randn(4, 8)


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.run = run

    def forward(self, x):
        return self.run(self, x).square().mean()


def precise(run, cast=None):
    """The ops of a model that are in f32 by a cast, in order, without those of the loss."""
    text = trace(Net(run).to(cast) if cast else Net(run), (X.to(cast) if cast else X,),
                 logits=False).mlir
    return [re.search(r"graph\.(\w+)", line)[1] for line in text.splitlines()
            if 'graph.precision = "f32"' in line and "graph.role" not in line]


def by_name(m, x):
    dtype = x.dtype
    y = m.a(x).to(torch.float32).tanh()
    return m.b(y.to(dtype)).sigmoid()


def by_name_of_f32(m, x):
    kind = torch.float32
    return m.b(m.a(x).to(kind).tanh().to(x.dtype)).sigmoid()


def in_place(m, x):
    y = m.a(x).float()
    y += 1
    y.tanh_()
    return m.b(y.to(m.b.weight.dtype)).sigmoid()


def twice(m, x):
    y = m.a(x).float().tanh().to(torch.float32).float()
    return m.b(y.exp().type_as(x)).sigmoid()


@pytest.mark.parametrize("cast", [None, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("run, expected", [
    (lambda m, x: m.b(m.a(x).float().tanh().to(x.dtype)).sigmoid(), ["tanh"]),
    (lambda m, x: m.b(m.a(x).float().tanh().type_as(x)).sigmoid(), ["tanh"]),
    (lambda m, x: m.b(m.a(x).type(torch.float32).tanh().to(m.b.weight.dtype)).sigmoid(), ["tanh"]),
    (lambda m, x: m.b(m.a(x).to(dtype=torch.float32).tanh().to(dtype=x.dtype)).sigmoid(), ["tanh"]),
    (lambda m, x: m.b(m.a(x).softmax(-1, dtype=torch.float32).to(x.dtype)).sigmoid(), ["softmax"]),
    (by_name, ["tanh"]), (by_name_of_f32, ["tanh"]), (in_place, ["add", "tanh"]), (twice, ["tanh", "exp"]),
    (lambda m, x: m.b(m.a(x)).to(x.dtype).sigmoid(), []),
    # What is moved alone is what it was, and is moved in 16 bits.
    (lambda m, x: m.b(m.a(x).float().T.tanh().T.to(x.dtype)).sigmoid(), ["tanh"]),
    # A product of two factors in f32.
    (lambda m, x: m.b((m.a(x).float() @ m.b.weight.float()).to(x.dtype)).sigmoid(), ["contract"]),
])
def test_ops_up_to_a_cast_back(run, expected, cast):
    found = precise(run, cast)
    assert [n for n in found if n not in ("transpose", "linear")] == [
        n for n in expected if n != "contract"] or found == expected
    assert ("contract" in expected) == bool({"contract", "linear"} & set(found))


def test_a_region_goes_on_where_nothing_ends_it():
    assert precise(lambda m, x: m.a(x).float().tanh() + x) == [
        "tanh", "add", "mul", "reduce", "div"]


def test_a_product_with_a_weight_that_is_not_cast_is_in_16_bits():
    assert precise(lambda m, x: m.b(m.a(x).float().tanh()).sigmoid()) == ["tanh"]


def test_a_product_that_sums_nothing_is_no_contraction():
    for run in (lambda m, x: torch.outer(m.a(x)[0], m.b(x)[0]),
                lambda m, x: torch.einsum("bi,bj->bij", m.a(x), m.b(x)),
                lambda m, x: m.a(x)[:, :, None] @ m.b(x)[:, None],
                lambda m, x: torch.einsum("i,j->ji", m.a(x)[0], m.b(x)[0])):
        text = trace(Net(run), (X,), logits=False).mlir
        assert "graph.contract" not in text
