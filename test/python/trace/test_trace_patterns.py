# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Rotary embeddings, norms and activations composed of smaller operators in many ways."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from module_support import B, D, H, S, attention_of, scaled
from trace_support import check, count, entry_text, model_phase


# Rotary embeddings --------------------------------------------------------------------


def rotate_half(x):
    low, high = x.chunk(2, -1)
    return torch.cat((-high, low), -1)


def rotate_pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def rope_halves(x, cos, sin):
    return x * torch.cat((cos, cos), -1) + rotate_half(x) * torch.cat((sin, sin), -1)


def rope_split(x, cos, sin):
    x1, x2 = x.chunk(2, -1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)


def rope_pairs(x, cos, sin):
    cos, sin = (y.repeat_interleave(2, -1) for y in (cos, sin))
    return x * cos + rotate_pairs(x) * sin


def rope_stacked(x, cos, sin):
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    x1, x2 = pairs[..., 0], pairs[..., 1]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), -1).flatten(-2)


@pytest.mark.parametrize("form", [rope_halves, rope_split, rope_pairs, rope_stacked])
def test_rotary_positions_in_many_spellings(form):
    def attend(m, q, k, v):
        angle = torch.arange(S).float()[:, None] * 100.0 ** -(torch.arange(0, D, 2) / D)
        q, k = form(q, angle.cos(), angle.sin()), form(k, angle.cos(), angle.sin())
        return F.scaled_dot_product_attention(q, k, v)
    _, traced = attention_of(attend)
    loss = entry_text(model_phase(traced.mlir))
    assert loss.count("= graph.rope") == 2
    assert loss.count("interleaved") == (2 if form in (rope_pairs, rope_stacked) else 0)


# Norms --------------------------------------------------------------------------------


class Norms(nn.Module):

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(H)), nn.Parameter(torch.rand(H))
        self.shift = nn.Parameter(torch.rand(H))
        self.library = nn.RMSNorm(H, eps=1e-5)

    def forward(self, x):
        x = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        x = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5) * (1 + self.shift)
        centred = x - x.mean(-1, keepdim=True)
        x = centred / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = self.library(x * self.weight + self.bias)
        return F.normalize(x, dim=-1) + F.layer_norm(x, (H,))


def test_norms_in_many_spellings():
    traced = check(Norms(), dict(x=torch.randn(B, S, H), target=torch.randn(B, S, H)), F.mse_loss)
    assert count(traced.mlir, "rms_norm") == 3 and count(traced.mlir, "layer_norm") == 2
    assert count(traced.mlir, "rsqrt") == 0


def test_numbers_of_rows_that_scale_columns_are_no_norm():
    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(H, H)

        def forward(self, x):
            x = self.linear(x)
            return x * torch.rsqrt(x.pow(2).mean(-1) + 1e-6)
    traced = check(Columns(), dict(x=torch.randn(H, H), target=torch.randn(H, H)), F.mse_loss)
    assert count(traced.mlir, "rms_norm") == 0


# Activations --------------------------------------------------------------------------


def gelu_new(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def gelu_fast(x):
    return 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))


def gelu_erf(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def swish(x):
    return torch.sigmoid(x) * x


@pytest.mark.parametrize("form, printed", [
    (gelu_new, "graph.gelu %{} {{tanh}}"), (gelu_fast, "graph.gelu %{} {{tanh}}"),
    (gelu_erf, "graph.gelu %{} :"), (swish, "graph.silu %{} :"),
    (lambda x: x / (1 + torch.exp(-x)), "graph.silu %{} :"),
])
def test_activations_in_many_spellings(form, printed):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(H, 8)

        def forward(self, x):
            return form(self.up(x) + 1.0) * 2.0
    # 0.7978845608 is not sqrt(2 / pi) to more than ten digits.
    traced = check(scaled(Layer()), dict(x=torch.randn(B, H) * 3, target=torch.randn(B, 8)),
                   F.mse_loss, bound=1e-8)
    loss = entry_text(traced.mlir)
    assert printed.split("%")[0] in loss and printed.split("}")[-1] in loss
    assert not any(f"graph.{op} " in loss for op in ("tanh", "erf", "sigmoid", "exp"))


def test_activation_that_only_looks_alike_is_not_replaced():
    class Quick(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(H, 8)

        def forward(self, x):
            x = self.up(x)
            return x * torch.sigmoid(1.75 * x)
    traced = check(scaled(Quick()), dict(x=torch.randn(B, H), target=torch.randn(B, 8)),
                   F.mse_loss)
    assert count(traced.mlir, "sigmoid") == 1 and count(traced.mlir, "silu") == 0
