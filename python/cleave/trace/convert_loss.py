# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Losses. A mean is written as the sum of the rows' losses divided by the
number of valid rows, so that it can be taken over micro-batches and devices."""

from __future__ import annotations

from .convert_shape import mean_of, reduced, take_along
from .registry import Unsupported, aten, converts

NONE, MEAN, SUM = 0, 1, 2


def _rows_last(c, x):
    """[n, classes, d...] as [n, d..., classes]."""
    if x.type.rank <= 2:
        return x
    return c.b.transpose(x, [0, *range(2, x.type.rank), 1])


def _weighted(c, rows, targets, weight, ignore_index):
    """The loss of each row times the weight of its class, and those weights."""
    b = c.b
    valid = b.compare("ne", targets, b.scalar(ignore_index, targets.dtype))
    safe = b.select(valid, targets, b.scalar(0, targets.dtype))
    weights = b.select(valid, b.gather(weight, safe, 0), b.scalar(0, weight.dtype))
    return b.binary("mul", rows, b.cast(weights, rows.dtype)), weights


def reduce_rows(c, rows, targets, reduction, ignore_index, weights=None):
    """The loss of all rows, in the result's type."""
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
    rows = c.b.cross_entropy(_rows_last(c, logits), targets, ignore_index, label_smoothing)
    weights = None
    if weight is not None:
        if label_smoothing:
            raise Unsupported("class weights together with label smoothing")
        rows, weights = _weighted(c, rows, targets, weight, ignore_index)
    return reduce_rows(c, rows, targets, reduction, ignore_index, weights)


def _soft_targets(c, logits, targets, weight, reduction, label_smoothing):
    """Cross entropy with a probability for each class."""
    if weight is not None:
        raise Unsupported("class weights together with probabilities as targets")
    b = c.b
    logits, targets = _rows_last(c, logits), _rows_last(c, targets)
    if label_smoothing:
        classes = logits.shape[-1]
        targets = b.binary("mul", targets, b.scalar(1 - label_smoothing, targets.dtype))
        targets = b.binary("add", targets, b.scalar(label_smoothing / classes, targets.dtype))
    terms = b.binary("mul", targets, b.softmax(logits, log=True))
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
    from .ir import TensorType
    c.type = c.type or TensorType((), x.dtype)
    return (nll_loss(c, x, targets, weight, reduction, ignore_index), None)


def _reduce(c, terms, reduction):
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
    """scale * (d^2 / (2 width) near zero, |d| - width / 2 beyond)."""
    b = c.b
    d = b.binary("sub", *c.operands(x, target))
    size = b.unary("abs", d)
    if width == 0:
        return _reduce(c, size, reduction)
    near = b.binary("mul", b.binary("mul", d, d), b.scalar(0.5 / width, d.dtype))
    far = b.binary("sub", size, b.scalar(0.5 * width, d.dtype))
    terms = b.select(b.compare("lt", size, b.scalar(width, d.dtype)), near, far)
    return _reduce(c, b.binary("mul", terms, b.scalar(scale, d.dtype)), reduction)


@converts(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(c, x, target, weight=None, pos_weight=None, reduction=MEAN):
    # max(x, 0) - x t + log(1 + exp(-|x|)), the log weighted where positives are.
    b = c.b
    if pos_weight is not None:
        raise Unsupported("pos_weight")
    tail = b.unary("log", b.binary("add", b.scalar(1, x.dtype), b.unary(
        "exp", b.unary("neg", b.unary("abs", x)))))
    terms = b.binary("sub", b.unary("relu", x), b.binary("mul", x, b.cast(target, x.dtype)))
    terms = b.binary("add", terms, tail)
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
