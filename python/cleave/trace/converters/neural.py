# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Norms, softmax, dropout, random numbers, attention."""

from __future__ import annotations

import math

import torch

from .reduction import mean_of, reduced
from ..ir import TORCH_DTYPES, TensorType, broadcast_shapes
from ..randomness import Randomness
from ..registry import Unsupported, aten, converts


def _as_rows(c, x, normalized):
    """Merges the normalised dimensions of `x`, the last ones, into one."""
    if len(normalized) == 1:
        return x
    return c.b.reshape(x, x.shape[:-len(normalized)] + (math.prod(normalized),))


def _flat(c, vector):
    """Reshapes a weight or bias to rank 1; None stays None."""
    return None if vector is None else c.b.reshape(vector, [vector.type.elements])


@converts(aten.layer_norm.default)
def layer_norm(c, x, normalized, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    rows = _as_rows(c, x, normalized)
    result = c.b.layer_norm(rows, _flat(c, weight), _flat(c, bias), eps)
    return c.b.reshape(result, x.shape)


def _statistics(c, x, dims, eps, keepdim):
    """Returns the mean over `dims`, and 1 / sqrt(variance + eps)."""
    b = c.b
    centred = b.binary("sub", x, mean_of(c, x, dims, True))
    variance = mean_of(c, b.binary("mul", centred, centred), dims, keepdim)
    return (mean_of(c, x, dims, keepdim),
            b.unary("rsqrt", b.binary("add", variance, b.scalar(eps, x.dtype))))


@converts(aten.native_layer_norm.default)
def native_layer_norm(c, x, normalized, weight, bias, eps):
    dims = list(range(x.type.rank - len(normalized), x.type.rank))
    return (layer_norm(c, x, normalized, weight, bias, eps), *_statistics(c, x, dims, eps, True))


@converts(aten.rms_norm.default)
def rms_norm(c, x, normalized, weight=None, eps=None):
    if eps is None:
        eps = torch.finfo(TORCH_DTYPES[x.dtype]).eps
    result = c.b.rms_norm(_as_rows(c, x, normalized), _flat(c, weight), eps)
    return c.b.reshape(result, x.shape)


@converts(aten.group_norm.default)
def group_norm(c, x, groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    rows = c.b.reshape(x, [x.shape[0], groups, x.type.elements // (x.shape[0] * groups)])
    result = c.b.reshape(c.b.layer_norm(rows, None, None, eps), x.shape)
    shape = [x.shape[1]] + [1] * (x.type.rank - 2)
    if weight is not None:
        result = c.b.binary("mul", result, c.b.reshape(weight, shape))
    if bias is not None:
        result = c.b.binary("add", result, c.b.reshape(bias, shape))
    return result


@converts(aten._weight_norm.default)
def weight_norm(c, v, g, dim=0):
    """Returns v * g / |v|, where the norm is over all dimensions but `dim`."""
    b = c.b
    others = [d for d in range(v.type.rank) if d != dim % v.type.rank]
    square = b.reduce("sum", b.binary("mul", v, v), others)
    norm = b.reshape(b.unary("sqrt", square), g.shape)
    return b.binary("mul", v, b.binary("div", g, norm))


@converts(aten.native_group_norm.default)
def native_group_norm(c, x, weight, bias, samples, channels, size, groups, eps):
    rows = c.b.reshape(x, [samples, groups, channels // groups * size])
    return (group_norm(c, x, groups, weight, bias, eps), *_statistics(c, rows, [2], eps, False))


def _softmax(c, x, dim, log):
    """Returns the softmax or its logarithm along `dim`, in the result's type."""
    x = c.b.cast(x, c.type.dtype)
    if x.type.rank == 0:
        return c.b.scalar(0 if log else 1, x.dtype)
    dim %= x.type.rank
    last = x.type.rank - 1
    return c.b.swap(c.b.softmax(c.b.swap(x, dim, last), log), dim, last)


@converts(aten.softmax.int, aten._softmax.default)
def softmax(c, x, dim, *_, **__):
    return _softmax(c, x, dim, False)


@converts(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(c, x, dim, *_, **__):
    return _softmax(c, x, dim, True)


@converts(aten._safe_softmax.default)
def safe_softmax(c, x, dim, dtype=None):
    """Returns the softmax; rows whose elements are all -inf become 0 and have no gradient."""
    b = c.b
    x = b.cast(x, c.type.dtype)
    if x.type.rank == 0:
        return _softmax(c, x, dim, False)
    top = reduced(c, "max", x, dim, True)
    none = b.compare("eq", top, b.scalar(-math.inf, x.dtype))
    zero = b.scalar(0, x.dtype)
    return b.select(none, zero, _softmax(c, b.select(none, zero, x), dim, False))


@converts(aten.scaled_dot_product_attention.default)
def scaled_dot_product_attention(c, query, key, value, attn_mask=None, dropout_p=0.0,
                                 is_causal=False, *, scale=None, enable_gqa=False):
    b = c.b
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    rank = max(x.type.rank for x in (query, key, value))
    # Dimensions from here on are [heads,] positions, channels.
    last = -3 if rank > 3 else -2
    lead = broadcast_shapes(*(x.shape[:last] for x in (query, key, value)))

    def to_rank4(x):
        """Reshapes `x` to [batch, heads, positions, channels]."""
        shape = (1,) * (rank - x.type.rank) + x.shape
        x = b.broadcast(b.reshape(x, shape), (*lead, *shape[last:]))
        return b.reshape(x, (math.prod(lead), *([1] if rank <= 3 else []), *shape[last:]))

    if rank > 4 and attn_mask is not None:
        raise Unsupported("a mask with queries of rank above 4")
    mask = bias = None
    if attn_mask is not None:
        if rank == 3 and attn_mask.type.rank == 3:
            attn_mask = b.reshape(attn_mask, (attn_mask.shape[0], 1, *attn_mask.shape[1:]))
        if attn_mask.dtype == "i1":
            mask = attn_mask
        else:
            bias = b.cast(attn_mask, query.dtype)
    query, key, value = to_rank4(query), to_rank4(key), to_rank4(value)
    if not enable_gqa:
        heads, = broadcast_shapes(*(x.shape[1:2] for x in (query, key, value)))
        query, key, value = (b.broadcast(x, (x.shape[0], heads, *x.shape[2:]))
                             for x in (query, key, value))
    elif key.shape[1] != value.shape[1]:
        heads, = broadcast_shapes(key.shape[1:2], value.shape[1:2])
        key, value = (b.broadcast(x, (x.shape[0], heads, *x.shape[2:])) for x in (key, value))
    rng = site = None
    dropout_p = dropout_p if c.random is Randomness.DRAWN else 0.0
    if dropout_p:
        rng, site = c.new_random_op()
    causal = is_causal and query.shape[2] == key.shape[2]
    if is_causal and not causal:
        # Query i sees keys 0 to i; the op's own are aligned at the last ones.
        row = b.iota(TensorType((query.shape[2], 1), "i64"), 0)
        column = b.iota(TensorType((1, key.shape[2]), "i64"), 1)
        mask = b.compare("le", column, row)
    result = b.attention(query, key, value, scale=scale, mask=mask, bias=bias, rng=rng,
                         causal=causal, dropout=dropout_p, dropout_id=site or 0)
    return b.reshape(result, c.type.shape)
