# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Attention composed of smaller operators in many ways."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from module_support import A, B, D, S, Heads, attention_of, ids, language_loss, scaled
from trace_support import check, raised


def causal():
    return torch.ones(S, S).tril()


def softmax_attention(m, q, k, v):
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(D))
    scores = scores.masked_fill(m.tril[:, :, :S, :S] == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def triu_attention(m, q, k, v):
    mask = torch.triu(torch.full((S, S), float("-inf")), diagonal=1)
    return ((q @ k.mT) / D ** 0.5 + mask).softmax(-1) @ v


def einsum_attention(m, q, k, v):
    scores = torch.einsum("bhqd,bhkd->bhqk", q * D ** -0.5, k)
    allowed = torch.arange(S)[:, None] >= torch.arange(S)[None, :]
    scores = torch.where(allowed, scores, torch.finfo(scores.dtype).min)
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(dim=-1), v)


def bmm_attention(m, q, k, v):
    q, k, v = (x.reshape(B * A, S, D) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)) * D ** -0.5
    scores = scores + (1.0 - torch.tril(torch.ones(S, S))) * -1e30
    return torch.bmm(F.softmax(scores, -1), v).view(B, A, S, D)


def library_attention(m, q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("attend, buffers", [
    (softmax_attention, dict(tril=causal().view(1, 1, S, S))),
    (triu_attention, {}), (einsum_attention, {}), (bmm_attention, {}), (library_attention, {}),
])
def test_causal_attention_in_many_spellings(attend, buffers):
    loss, traced = attention_of(attend, **buffers)
    assert loss.count("graph.attention") == 1 and "causal" in loss
    assert f"scale = {D ** -0.5:e}" in loss
    for absent in ("softmax", "mask %", "bias %tr", "graph.select", "tril"):
        assert absent not in loss


def test_window():
    def attend(m, q, k, v):
        distance = torch.arange(S)[:, None] - torch.arange(S)[None, :]
        mask = (distance >= 0) & (distance < 3)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    loss, _ = attention_of(attend)
    assert "{causal, " in loss and "window = 3" in loss and "mask %" not in loss


def test_mask_that_is_no_pattern_stays_a_mask():
    def attend(m, q, k, v):
        distance = torch.arange(S)[:, None] - torch.arange(S)[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=distance.abs() <= 2)
    loss, _ = attention_of(attend)
    assert " mask %" in loss and "causal" not in loss


@pytest.mark.parametrize("number, printed", [
    (-1e4, " bias %"), (-1e9, " bias %"), (torch.finfo(torch.float32).min, "causal")])
def test_finite_numbers_exclude_where_that_is_the_same(number, printed):
    """-1e4 may still be the largest score of a row, the least number may not."""
    def attend(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(1 - m.tril) * number)
    loss, _ = attention_of(attend, tril=causal())
    assert printed in loss and " mask %" not in loss


def test_rows_without_keys_keep_finite_masks():
    """Where a row hides all its keys by a finite number, the scores choose."""
    def attend(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(1 - m.kept) * -1e30)
    kept = causal()
    kept[0] = 0
    loss, _ = attention_of(attend, kept=kept)
    assert " bias %" in loss and " mask %" not in loss and "causal" not in loss


def test_numbers_in_the_place_of_scores_stay_spelled_out():
    def attend(m, q, k, v):
        return (q @ k.mT * D ** -0.5).masked_fill(m.kept == 0, -1e30).softmax(-1) @ v
    kept = causal()
    kept[0] = 0
    loss, _ = attention_of(attend, kept=kept)
    assert "graph.attention" not in loss and "graph.softmax" in loss


def test_top_left_causal_with_fewer_queries_than_keys():
    def attend(m, q, k, v):
        y = F.scaled_dot_product_attention(q[:, :, :3], k, v, is_causal=True)
        return torch.cat([y, y], dim=2)
    loss, _ = attention_of(attend)
    assert " mask %" in loss


@pytest.mark.parametrize("additive", [False, True])
def test_documents_packed_in_one_row(additive):
    def attend(m, q, k, v, documents):
        same = documents[:, None, :, None] == documents[:, None, None, :]
        same = same & torch.ones(S, S, dtype=torch.bool).tril()
        if additive:
            return (q @ k.mT * D ** -0.5 + torch.zeros(B, 1, S, S).masked_fill(
                ~same, float("-inf"))).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=same)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [4, 4, 5, 5, 5, 6]])
    loss, _ = attention_of(attend, documents)
    assert " segments %documents" in loss
    assert "causal" in loss and " mask %" not in loss


@pytest.mark.parametrize("causal", [True, False])
def test_chunks(causal):
    def attend(m, q, k, v):
        places = torch.arange(S)
        same = places[:, None] // 4 == places[None] // 4
        if causal:
            same = same & torch.ones(S, S, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=same)
    loss, _ = attention_of(attend)
    assert " segments %" in loss and " mask %" not in loss
    assert ("causal" in loss) == causal


def test_linear_biases():
    def attend(m, q, k, v):
        distance = torch.arange(S)[None, :] - torch.arange(S)[:, None]
        bias = m.slopes[:, None, None] * distance
        bias = bias.masked_fill(distance > 0, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
    loss, _ = attention_of(attend, slopes=torch.tensor([0.5, 0.25, 0.125, 0.0625]))
    assert " bias %" in loss and "causal" in loss and " mask %" not in loss


def test_learned_bias():
    class Biased(Heads):
        def __init__(self):
            super().__init__(lambda m, q, k, v: (q @ k.mT * D ** -0.5 + m.table).softmax(-1) @ v)
            self.table = nn.Parameter(torch.randn(1, A, S, S))
    traced = check(scaled(Biased()), dict(tokens=ids(), target=ids(seed=1)), language_loss)
    loss = raised(traced.mlir)
    assert "bias %table" in loss and "softmax" not in loss


def test_shared_heads():
    def attend(m, q, k, v):
        k, v = (x[:, :2].repeat_interleave(2, dim=1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v)
    loss, _ = attention_of(attend)
    assert f"tensor<{B}x2x{S}x{D}xf32>, tensor<{B}x2x{S}x{D}xf32>) -> (tensor" in loss
    assert "broadcast" not in loss
