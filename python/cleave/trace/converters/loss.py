# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Losses.

A mean is computed as the sum of the rows' losses divided by the number of valid rows: both
are sums, which can be accumulated over micro-batches and reduced over devices.
"""

from __future__ import annotations

from .activation import softplus_terms
from .index import take_along
from .reduction import mean_of, reduced
from ..ir import TensorType
from ..registry import aten, converts

NONE, MEAN, SUM = 0, 1, 2


def _rows_last(c, x):
    """Transposes [n, classes, d...] to [n, d..., classes]."""
    if x.type.rank <= 2:
        return x
    return c.b.transpose(x, [0, *range(2, x.type.rank), 1])


def _weighted(c, rows, targets, weight, ignore_index):
    """Returns the loss of each row times the weight of its class, and these weights; the
    weight of an ignored row is 0."""
    b = c.b
    valid = b.compare("ne", targets, b.scalar(ignore_index, targets.dtype))
    safe = b.select(valid, targets, b.scalar(0, targets.dtype))
    weights = b.select(valid, b.gather(weight, safe, 0), b.scalar(0, weight.dtype))
    return b.binary("mul", rows, b.cast(weights, rows.dtype)), weights


def reduce_rows(c, rows, targets, reduction, ignore_index, weights=None):
    """Reduces the losses of rows, in the result's type: NONE, SUM, or MEAN, the sum divided
    by the sum of `weights` (without them, the number of rows that are not ignored)."""
    b, dtype = c.b, c.type.dtype
    if reduction == NONE:
        return b.cast(rows, dtype)
    total = reduced(c, "sum", rows, None, False)
    if reduction == SUM:
        return b.cast(total, dtype)
    if weights is None:
        valid = b.compare("ne", targets, b.scalar(ignore_index, targets.dtype))
        weights = b.cast(valid, rows.dtype)
    count = reduced(c, "sum", b.cast(weights, rows.dtype), None, False)
    return b.cast(b.binary("div", total, count), dtype)


@converts(aten.cross_entropy_loss.default)
def cross_entropy_loss(c, logits, targets, weight=None, reduction=MEAN, ignore_index=-100,
                       label_smoothing=0.0):
    if targets.type.is_float:
        return _soft_targets(c, logits, targets, weight, reduction, label_smoothing)
    if weight is not None and label_smoothing:
        return _weighted_smoothing(c, logits, targets, weight, reduction, ignore_index,
                                   label_smoothing)
    rows = c.b.cross_entropy(_rows_last(c, logits), targets, ignore_index, label_smoothing)
    weights = None
    if weight is not None:
        rows, weights = _weighted(c, rows, targets, weight, ignore_index)
    return reduce_rows(c, rows, targets, reduction, ignore_index, weights)


def _weighted_smoothing(c, logits, targets, weight, reduction, ignore_index, smoothing):
    """Returns the cross entropy with class weights w and label smoothing e: (1 - e) w[t] loss[t] +
    e / n times the sum of all w[k] loss[k], where loss[k] is the loss of class k of n; a mean
    divides by the sum of the rows' w[t]."""
    b = c.b
    logits = _rows_last(c, logits)
    every = b.unary("neg", b.softmax(logits, log=True))
    every = b.reduce("sum", b.binary("mul", every, weight), [every.type.rank - 1])
    valid = b.compare("ne", targets, b.scalar(ignore_index, targets.dtype))
    every = b.select(valid, every, b.scalar(0, every.dtype))
    rows = b.cross_entropy(logits, targets, ignore_index, 0.0)
    rows, weights = _weighted(c, rows, targets, weight, ignore_index)
    share = b.scalar(smoothing / logits.shape[-1], rows.dtype)
    rows = b.binary("add", b.binary("mul", rows, b.scalar(1 - smoothing, rows.dtype)),
                    b.binary("mul", every, share))
    return reduce_rows(c, rows, targets, reduction, ignore_index, weights)


def _soft_targets(c, logits, targets, weight, reduction, label_smoothing):
    """Returns the cross entropy of targets that are a probability for each class."""
    b = c.b
    logits, targets = _rows_last(c, logits), _rows_last(c, targets)
    if label_smoothing:
        classes = logits.shape[-1]
        targets = b.binary("mul", targets, b.scalar(1 - label_smoothing, targets.dtype))
        targets = b.binary("add", targets, b.scalar(label_smoothing / classes, targets.dtype))
    terms = b.binary("mul", targets, b.softmax(logits, log=True))
    if weight is not None:
        terms = b.binary("mul", terms, weight)
    rows = b.unary("neg", b.reduce("sum", terms, [terms.type.rank - 1]))
    if reduction == NONE:
        return rows
    if reduction == SUM:
        return reduced(c, "sum", rows, None, False)
    return mean_of(c, rows, None, False)


@converts(aten.nll_loss_nd.default, aten.nll_loss.default, aten.nll_loss2d.default)
def nll_loss(c, x, targets, weight=None, reduction=MEAN, ignore_index=-100):
    b = c.b
    rows_of = _rows_last(c, x)
    source = rows_of
    if source.is_op("softmax") and source.op.attrs.get("log"):
        rows = b.cross_entropy(source.op.operands[0], targets, ignore_index, 0.0)
    else:
        valid = b.compare("ne", targets, b.scalar(ignore_index, targets.dtype))
        safe = b.select(valid, targets, b.scalar(0, targets.dtype))
        picked = take_along(c, rows_of, -1, b.reshape(safe, (*safe.shape, 1)))
        picked = b.reshape(picked, targets.shape)
        rows = b.select(valid, b.unary("neg", picked), b.scalar(0, picked.dtype))
    weights = None
    if weight is not None:
        rows, weights = _weighted(c, rows, targets, weight, ignore_index)
    return reduce_rows(c, rows, targets, reduction, ignore_index, weights)


@converts(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(c, x, targets, weight, reduction, ignore_index):
    c.type = c.type or TensorType((), x.dtype)
    return (nll_loss(c, x, targets, weight, reduction, ignore_index), None)


def _reduce(c, terms, reduction):
    """Returns all terms (NONE), their sum (SUM) or their mean (MEAN)."""
    if reduction == NONE:
        return terms
    if reduction == SUM:
        return reduced(c, "sum", terms, None, False)
    return mean_of(c, terms, None, False)


@converts(aten.mse_loss.default)
def mse_loss(c, x, target, reduction=MEAN):
    difference = c.b.binary("sub", *c.operands(x, target))
    return _reduce(c, c.b.binary("mul", difference, difference), reduction)


@converts(aten.l1_loss.default)
def l1_loss(c, x, target, reduction=MEAN):
    return _reduce(c, c.b.unary("abs", c.b.binary("sub", *c.operands(x, target))), reduction)


@converts(aten.smooth_l1_loss.default)
def smooth_l1_loss(c, x, target, reduction=MEAN, beta=1.0):
    return _huber(c, x, target, reduction, beta, 1.0)


@converts(aten.huber_loss.default)
def huber_loss(c, x, target, reduction=MEAN, delta=1.0):
    return _huber(c, x, target, reduction, delta, delta)


def _huber(c, x, target, reduction, width, scale):
    """Returns the Huber loss of the difference d: scale * d^2 / (2 width) where |d| < width, else
    scale * (|d| - width / 2)."""
    b = c.b
    d = b.binary("sub", *c.operands(x, target))
    size = b.unary("abs", d)
    if width == 0:
        return _reduce(c, size, reduction)
    # The square is not selected beyond the width, and must not overflow there.
    inside = b.unary("not", b.compare("ge", size, b.scalar(width, d.dtype)))
    small = b.select(inside, d, b.scalar(0, d.dtype))
    near = b.binary("mul", b.binary("mul", small, small), b.scalar(0.5 / width, d.dtype))
    far = b.binary("sub", size, b.scalar(0.5 * width, d.dtype))
    terms = b.select(inside, near, far)
    return _reduce(c, b.binary("mul", terms, b.scalar(scale, d.dtype)), reduction)


@converts(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(c, x, target, weight=None, pos_weight=None, reduction=MEAN):
    # max(x, 0) - x t + log(1 + exp(-|x|)).
    b = c.b
    target = b.cast(target, x.dtype)
    part, tail = softplus_terms(b, x)
    if pos_weight is None:
        terms = b.binary("sub", part, b.binary("mul", x, target))
    else:
        # (1 - t) x + w (log(1 + exp(-|x|)) + max(-x, 0)), with w = 1 + (p - 1) t.
        one = b.scalar(1, x.dtype)
        factor = b.binary("add", b.binary("mul", b.binary("sub", pos_weight, one), target), one)
        tail = b.binary("mul", factor, b.binary("add", tail, b.binary("sub", part, x)))
        terms = b.binary("mul", b.binary("sub", one, target), x)
    terms = b.binary("add", terms, tail)
    if weight is not None:
        terms = b.binary("mul", terms, weight)
    return _reduce(c, terms, reduction)


@converts(aten.binary_cross_entropy.default)
def binary_cross_entropy(c, x, target, weight=None, reduction=MEAN):
    """Returns -(t log x + (1 - t) log(1 - x)), with each logarithm at least -100. The derivative is
    (x - t) / (x (1 - x)), with the divisor at least 1e-12, as in PyTorch."""
    b, dtype = c.b, x.dtype
    target = b.cast(target, dtype)
    one, still = b.scalar(1, dtype), b.unary("stop_gradient", x)
    least = b.scalar(-100, dtype)
    log = b.binary("maximum", b.unary("log", still), least)
    rest = b.binary("maximum", b.unary("log1p", b.unary("neg", still)), least)
    terms = b.binary("sub", b.binary("mul", b.binary("sub", target, one), rest),
                     b.binary("mul", target, log))
    spread = b.binary("maximum", b.binary("mul", b.binary("sub", one, still), still),
                      b.scalar(1e-12, dtype))
    slope = b.binary("div", b.binary("sub", still, b.unary("stop_gradient", target)), spread)
    # Adds a zero with the derivative `slope`.
    terms = b.binary("add", terms, b.binary("mul", b.binary("sub", x, still), slope))
    if weight is not None:
        terms = b.binary("mul", terms, weight)
    return _reduce(c, terms, reduction)


@converts(aten.kl_div.default)
def kl_div(c, x, target, reduction=MEAN, log_target=False):
    b = c.b
    if log_target:
        terms = b.binary("mul", b.unary("exp", target), b.binary("sub", target, x))
    else:
        zero = b.scalar(0, x.dtype)
        positive = b.compare("gt", target, zero)
        safe = b.select(positive, target, b.scalar(1, x.dtype))
        terms = b.binary("mul", target, b.binary("sub", b.unary("log", safe), x))
    return _reduce(c, terms, reduction)
