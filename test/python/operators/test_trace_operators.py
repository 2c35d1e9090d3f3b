# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Operators and losses in modules written by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave.trace
from module_support import H
from trace_support import check, entry_text


class Operators(nn.Module):
    """Operators that no other test uses."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.randn(4, 6))
        self.register_buffer("order", torch.tensor([2, 0, 1]), persistent=False)

    def forward(self, x, n):
        p = self.p
        total = (p.sin().cos() + p.clamp(-0.5, 0.5) + F.softplus(p) + F.leaky_relu(p) + F.elu(p)
                 + F.hardswish(p) + F.mish(p) + p.sigmoid().logit()).sum()
        total = total + p.amax(-1).sum() + p.std(-1).sum() + p.logsumexp(0).mean() + p.max(0)[0].sum()
        total = total + (p.roll(1, 0) * p.flip(0)).sum() + p.repeat(2, 3).var() + torch.outer(p[0], p[1]).sum()
        total = total + p[self.order].sum() * p[:, -1].sum() + p[1:, [1, 3]].sum()
        total = total + p.gather(1, n[:, None] % 6).sum() + F.one_hot(n % 6, 6).mul(p).sum()
        y = p.clone()
        y[:, 0] = 0.5
        y[1:3, 2:4] = p[:2, :2]
        total = total + (y * y).sum() + torch.where(p > 0, p, 2 * p).sum() + p.tril().sum() * p.triu(1).mean()
        total = total + torch.stack(p.unbind(0)[:2], -1).norm() + torch.cat([p, p ** 2], 1).cumsum(1).mean()
        total = total + F.pad(p, (1, 2, 0, 1), value=0.3).pow(3).sum() + (p ** 0.5).isnan().sum()
        total = total + torch.linspace(0, 1, 6).mul(p).sum() + (n // 2 - n.float().floor()).sum()
        total = total + torch.tensor([1.0, 2.0]).sum() + torch.einsum("ij,kj,k->i", p, p, x).sum()
        total = total + F.group_norm(p.view(1, 4, 6), 2).square().mean() + F.glu(p).sum()
        total = total + F.huber_loss(p, p * 2)
        largest, where = p.topk(3)
        smallest, first = p.topk(2, dim=0, largest=False)
        total = total + (largest * (where + 1)).sum() + (smallest * (first + 1)).sum()
        total = total + p.argmax() * p.min(1)[0].sum() + (p.max(1)[1] + p.argmin(1)).sum()
        total = total + torch.min(p, p.mean()).sum() + (p.histc(5, -1, 1) * p[0, :5]).sum()
        # Each row in an order of its own, and all rows in one order.
        own, shared = where, n[:3] % 4
        total = total + (p.gather(1, own) * p[:, :3]).sum()
        total = total + (p.gather(0, shared[:, None].expand(3, 6)) * p[:3]).sum()
        total = total + (p.scatter_add(1, own, largest) * p).sum()
        zeros = torch.zeros(5, 6)
        total = total + (zeros.scatter_add(0, shared[:, None].expand(3, 6), p[:3])[:4] * p).sum()
        return total


def test_operators():
    torch.manual_seed(1)
    inputs = dict(x=torch.randn(4), n=torch.tensor([3, 8, 1, 5]))
    check(Operators(), inputs, call=lambda m, **values: (m(**values), None), logits=False)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", [
    lambda r: lambda y, t: F.cross_entropy(y, t, ignore_index=2, reduction=r),
    lambda r: lambda y, t: F.cross_entropy(y, t, label_smoothing=0.2, reduction=r),
    lambda r: lambda y, t: F.cross_entropy(y, t, weight=torch.arange(1.0, 6.0).to(y.dtype), reduction=r),
    lambda r: lambda y, t: F.nll_loss(F.log_softmax(y, 1), t, ignore_index=2, reduction=r),
    lambda r: lambda y, t: F.nll_loss(y, t, reduction=r),
    lambda r: lambda y, t: F.cross_entropy(y, F.one_hot(t, 5).to(y.dtype) * 0.9, reduction=r),
    lambda r: lambda y, t: F.cross_entropy(y.view(2, 3, 5).transpose(1, 2), t.view(2, 3), reduction=r),
    lambda r: lambda y, t: F.smooth_l1_loss(y, F.one_hot(t, 5).to(y.dtype), reduction=r, beta=0.3),
    lambda r: lambda y, t: F.l1_loss(y, F.one_hot(t, 5).to(y.dtype), reduction=r),
    lambda r: lambda y, t: F.binary_cross_entropy_with_logits(y, F.one_hot(t, 5).to(y.dtype), reduction=r),
    lambda r: lambda y, t: F.kl_div(F.log_softmax(y, 1), F.one_hot(t, 5).to(y.dtype), reduction=r),
])
def test_losses(loss, reduction):
    # In f64, so that no constant is rounded.
    check(nn.Linear(H, 5).double(),
          dict(input=torch.randn(6, H).double(), target=torch.tensor([0, 4, 2, 1, 2, 3])),
          loss(reduction))


def test_mean_is_a_sum_divided_by_the_count_of_valid_rows():
    traced = cleave.trace.trace(nn.Linear(H, 5), (torch.randn(6, H), torch.zeros(6, dtype=torch.int64)),
                                F.cross_entropy)
    lines = [line.split("loc(")[0].split() for line in entry_text(traced.mlir).splitlines()]
    ops = [words[2] for words in lines if len(words) > 2 and words[1] == "="]
    assert ops == ["graph.linear", "graph.cross_entropy", "graph.reduce", "graph.constant",
                   "graph.compare", "graph.cast", "graph.reduce", "graph.div"]
