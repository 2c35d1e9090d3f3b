# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Constants are written as ops that compute their elements, bit by bit, or not at all."""

import random

import pytest
import torch

import cleave.trace
from cleave.trace.builder import Builder
from cleave.trace.closed_forms import closed_form
from cleave.trace.evaluate import Evaluator
from cleave.trace.printer import shortest_decimal
from module_support import S, attention_of
from proofs import ALL
from trace_support import model_phase, raised

COUNT = 2000 if ALL else 60
DTYPES = [torch.bool, torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64]


def bits(tensor):
    return tensor if tensor.dtype == torch.bool else tensor.view(
        {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize])


def band(draw, dtype):
    """A matrix with one number on neighbouring diagonals, and another one elsewhere."""
    rows, columns = draw.randint(2, 9), draw.randint(2, 9)
    low, high = sorted(draw.sample(range(-rows, columns + 2), 2))
    inside = torch.ones(rows, columns, dtype=torch.bool).triu(low).tril(high - 1)
    numbers = [-0.0, 1.0, float("-inf"), torch.finfo(torch.float16).min]
    yes, no = draw.sample(numbers if dtype.is_floating_point else [0, 1], 2)
    matrix = torch.where(inside, torch.tensor(yes, dtype=dtype), torch.tensor(no, dtype=dtype))
    return matrix.view(*[1] * draw.randint(0, 2), rows, columns), inside.unique().numel() == 2


@pytest.mark.parametrize("part", range(4))
def test_bands(part):
    for case in range(part, COUNT, 4):
        draw = random.Random(case)
        tensor, is_one = band(draw, draw.choice(DTYPES))
        form = closed_form(Builder(), tensor, False)
        assert (form is not None) == is_one
        if is_one:
            found = Evaluator().value(form)
            assert found.dtype == tensor.dtype and torch.equal(bits(found.contiguous()), bits(tensor))
        spoilt = tensor.clone()
        at = tuple(draw.randrange(n) for n in tensor.shape)
        spoilt[at] = 1 - spoilt[at].long() if tensor.dtype == torch.bool else 7
        other = closed_form(Builder(), spoilt, False)
        assert other is None or torch.equal(bits(Evaluator().value(other).contiguous()), bits(spoilt))


def test_large_ones():
    for tensor in (torch.full((40, 50), -0.0), torch.arange(5, 2000), torch.arange(1200)[None],
                   torch.zeros(2, 900, dtype=torch.bool)):
        found = Evaluator().value(closed_form(Builder(), tensor, True))
        assert torch.equal(found, tensor) and bool((found.signbit() == tensor.signbit()).all())
        assert closed_form(Builder(), tensor, False) is None
    assert closed_form(Builder(), torch.arange(0, 4000, 2), True) is None
    assert closed_form(Builder(), torch.rand(40, 50), True) is None


@pytest.mark.parametrize("known", [True, False])
def test_a_large_mask_without_a_form(known):
    """The module holds its bits, from which each row is known to see a key."""
    def attend(m, q, k, v):
        kept = m.kept[:S, :S]
        return (q @ k.mT * 0.5).masked_fill(~kept, torch.finfo(q.dtype).min).softmax(-1) @ v
    kept = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    kept.fill_diagonal_(known)
    kept[0] &= known
    loss, traced = attention_of(attend, kept=kept)
    assert 'graph.value = dense<"0x' in traced.mlir
    assert ("graph.attention" in loss) == known
    assert (" mask %" in loss) == known


def test_a_mask_that_a_step_changes_is_no_constant():
    class Changing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.register_buffer("kept", torch.ones(3, 3).tril().bool())

        def forward(self, x):
            x = self.linear(x)
            y = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=self.kept)
            self.kept.logical_or_(torch.ones(3, 3, dtype=torch.bool))
            return y.sum()

    traced = cleave.trace.trace(Changing(), (torch.randn(2, 1, 3, 4),), logits=False)
    loss = raised(traced.mlir)
    assert " mask %" in loss and "causal" not in loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shortest_decimals(dtype):
    for number in (0.1, 1e-6, -3.5, 0.0, 65504.0, float("inf"), float("-inf")):
        rounded = torch.tensor(number, dtype=dtype)
        found = shortest_decimal(rounded)
        assert torch.tensor(found, dtype=dtype) == rounded and (found == number or number == 65504.0)


def test_numbers_that_are_no_short_decimals_keep_their_digits():
    """1 / sqrt(8) is rounded to f32 in the module, and known before that."""
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            x = self.linear(x)
            return (((x @ x.mT) * 8 ** -0.5).softmax(-1) @ x * 0.1 / 3 ** 0.5).sum()

    traced = cleave.trace.trace(Scaled(), (torch.randn(2, 3, 5, 8),), logits=False)
    module = model_phase(traced.mlir)
    assert "scale = 0.35355339059327379 " in module or "scale = 0.35355339059327373 " in module
    assert "tensor<f64>" in traced.mlir and "f64>" not in module
    assert "dense<1.000000e-01> : tensor<f32>" in module
