# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Batch normalisation, with statistics of the batch or running statistics."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Iterator

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import EagerError
from ..ir import TensorType
from ..registry import Unsupported, aten, converts

if TYPE_CHECKING:
    from ..metrics import Metrics


@dataclasses.dataclass(frozen=True)
class Groups:
    """The groups of samples with separate batch statistics.

    A batch is split into `micro_batches`, and each of them into `ranks`; each part is
    normalised by its own statistics. Running statistics are updated by those of the first
    rank, one micro-batch after another. A loss that balances experts is the mean of those of
    `balance` equal parts of the batch; 0: as the model defines it. With `choices`, the choices
    of experts are counted. Of training, `metrics` are results.
    """

    micro_batches: int = 1
    ranks: int = 1
    balance: int = 0
    choices: bool = False
    metrics: Metrics | None = None

    @property
    def count(self) -> int:
        return self.micro_batches * self.ranks


def is_training(node: torch.fx.Node) -> bool:
    """Returns whether the operator of `node` updates running statistics."""
    place = {aten.batch_norm.default: 5, aten.instance_norm.default: 5}.get(node.target)
    return place is not None and bool(node.args[place]) and node.args[3] is not None


@contextlib.contextmanager
def batch_norm_modules(module: torch.nn.Module, groups: Groups) -> Iterator[None]:
    """Context manager that makes batch normalisation modules count each micro-batch of `groups` as
    a batch, and compute a cumulative average without reading the number of batches."""
    changed = [m for m in module.modules() if isinstance(m, _BatchNorm)
               and type(m).forward is _BatchNorm.forward and "forward" not in m.__dict__]
    for m in changed:
        m.forward = _forward.__get__((m, groups))
    try:
        yield
    finally:
        for m in changed:
            del m.__dict__["forward"]


def _forward(own, x: torch.Tensor) -> torch.Tensor:
    """Replaces the forward of a module; `own` is (module, groups). Raises EagerError for a
    cumulative average over several groups."""
    m, groups = own
    if not (m.training and m.track_running_stats) or m.num_batches_tracked is None:
        return _BatchNorm.forward(m, x)
    if m.momentum is not None:
        result = _BatchNorm.forward(m, x)
        if groups.micro_batches > 1:
            m.num_batches_tracked.add_(groups.micro_batches - 1)
        return result
    if groups.count > 1:
        raise EagerError("the running statistics of a BatchNorm with momentum=None are a mean over "
                         "all batches, which is not compiled for statistics of micro-batches; give "
                         "it a momentum")
    m._check_input_dim(x)
    m.num_batches_tracked.add_(1)
    # With a momentum of 1, the running statistics become those of the batch.
    mean, var = m.running_mean.clone(), m.running_var.clone()
    result = torch.nn.functional.batch_norm(x, mean, var, m.weight, m.bias, True, 1.0, m.eps)
    with torch.no_grad():
        share = 1.0 / m.num_batches_tracked
        m.running_mean.add_((mean - m.running_mean) * share)
        m.running_var.add_((var - m.running_var) * share)
    return result


def _by_channel(c, value, x, lead=1):
    """Reshapes a value [..., channels] so that it broadcasts with `x`, whose channels are
    dimension `lead`."""
    shape = [1] * x.type.rank
    shape[lead] = value.shape[-1]
    return c.b.reshape(value, value.shape[:-1] + tuple(shape[len(value.shape) - 1:]))


def _scaled(c, x, weight, bias, lead):
    """Returns x * weight + bias by channel; either may be None."""
    if weight is not None:
        x = c.b.binary("mul", x, _by_channel(c, weight, x, lead))
    return x if bias is None else c.b.binary("add", x, _by_channel(c, bias, x, lead))


def _groups_of(c, x) -> Groups:
    """Returns the groups into which dimension 0 of `x` is split. Raises Unsupported if dimension 0
    does not hold the samples."""
    if x.shape[0] == 1:
        # Instance normalisation: samples are part of the channels, and share no statistics.
        return Groups()
    c.batch_statistics.append(c.b.location)
    groups = c.groups
    if x.shape[0] % groups.count or x.shape[0] % max(c.batch, 1):
        raise Unsupported(f"statistics of micro-batches of a tensor of {tuple(x.shape)}, whose "
                          "first dimension does not hold the samples")
    return groups


def _normalised(c, x, weight, bias, eps):
    """Returns the normalised `x`, the mean and the unbiased variance of each group, both
    [groups, channels], and the groups. Raises Unsupported for groups of one value."""
    b, channels, groups = c.b, x.shape[1], _groups_of(c, x)
    parts = b.reshape(x, (groups.count, x.shape[0] // groups.count, *x.shape[1:]))
    dims = [1, *range(3, parts.type.rank)]
    n = math.prod(parts.shape[d] for d in dims)
    if n == 1:
        raise Unsupported("statistics of one value for each channel; more samples are needed")
    size = b.scalar(n, x.dtype)

    def by_group(value):
        return b.reshape(value, (groups.count, 1, channels, *[1] * (x.type.rank - 2)))

    def summed(values):
        # Summed in f64, as PyTorch does on CPUs: small variances magnify errors of the sum.
        return b.cast(b.reduce("sum", b.cast(values, "f64"), dims), x.dtype)

    mean = b.binary("div", summed(parts), size)
    # The variance has no gradient through its mean, because the differences sum to zero.
    centred = b.binary("sub", parts, by_group(b.unary("stop_gradient", mean)))
    total = summed(b.binary("mul", centred, centred))
    var = b.binary("div", total, size)
    inverse = b.unary("rsqrt", b.binary("add", var, b.scalar(eps, x.dtype)))
    result = b.binary("mul", b.binary("sub", parts, by_group(mean)), by_group(inverse))
    result = b.reshape(_scaled(c, result, weight, bias, 2), x.shape)
    return result, mean, b.binary("div", total, b.scalar(n - 1, x.dtype)), groups


def _update_weights(momentum, groups):
    """Returns the weight of each group's statistics in the running statistics, f64
    [groups]; only the first rank of a micro-batch has a weight."""
    count = groups.micro_batches
    weights = torch.zeros(count, groups.ranks, dtype=torch.float64)
    weights[:, 0] = momentum * (1 - momentum) ** torch.arange(count - 1, -1, -1,
                                                              dtype=torch.float64)
    return weights.reshape(-1)


def _updated_statistics(c, old, found, momentum, groups):
    """Returns the running statistics after `(1 - momentum) * old + momentum * found` for
    one micro-batch after another; `found` is [groups, channels]."""
    b = c.b
    found = b.cast(b.unary("stop_gradient", found), "f32")
    if c.groups.count > groups.count:
        # Instance normalisation over [samples * channels]; the mean over samples is kept.
        groups, samples = c.groups, c.batch
        if samples % groups.count or old.shape[0] % samples:
            raise Unsupported(f"running statistics of instances in a tensor of {tuple(old.shape)}, "
                              "which does not hold those of each sample")
        weights = (_update_weights(momentum, groups) * groups.count).repeat_interleave(
            old.shape[0] // groups.count)
        new = b.reshape(b.binary("mul", found, b.constant(weights.to(torch.float32))), old.shape)
    else:
        weights = b.constant(_update_weights(momentum, groups)[:, None].to(torch.float32))
        new = b.reduce("sum", b.binary("mul", found, weights), [0])
    kept = b.scalar((1 - momentum) ** groups.micro_batches, old.dtype)
    return b.binary("add", b.binary("mul", old, kept), b.cast(new, old.dtype))


def _with_running_statistics(c, x, weight, bias, mean, var, eps):
    """Normalises `x` by running statistics, which have no gradient."""
    b = c.b
    mean, var = (b.unary("stop_gradient", v) if v.trained else v for v in (mean, var))
    inverse = b.unary("rsqrt", b.binary("add", var, b.scalar(eps, var.dtype)))
    centred = b.binary("sub", x, _by_channel(c, b.cast(mean, x.dtype), x))
    result = b.binary("mul", centred, _by_channel(c, b.cast(inverse, x.dtype), x))
    return _scaled(c, result, weight, bias, 1)


@converts(aten._native_batch_norm_legit_functional.default)
def native_batch_norm(c, x, weight, bias, mean, var, training, momentum, eps):
    if not training:
        return _with_running_statistics(c, x, weight, bias, mean, var, eps), None, None, mean, var
    result, found, spread, groups = _normalised(c, x, weight, bias, eps)
    return (result, None, None, _updated_statistics(c, mean, found, momentum, groups),
            _updated_statistics(c, var, spread, momentum, groups))


@converts(aten._native_batch_norm_legit.no_stats)
def native_batch_norm_without_statistics(c, x, weight, bias, training, momentum, eps):
    return _normalised(c, x, weight, bias, eps)[0], None, None


@converts(aten._native_batch_norm_legit_no_training.default)
def native_batch_norm_in_evaluation(c, x, weight, bias, mean, var, momentum, eps):
    # The statistics of the batch are not computed.
    nothing = c.b.full(0, TensorType((0,), x.dtype))
    return _with_running_statistics(c, x, weight, bias, mean, var, eps), nothing, nothing


@converts(aten.batch_norm.default)
def batch_norm(c, x, weight, bias, mean, var, training, momentum, eps, cudnn=False):
    if not training and mean is not None:
        return _with_running_statistics(c, x, weight, bias, mean, var, eps)
    if mean is not None:
        raise Unsupported("the operator updates running statistics in place")
    return _normalised(c, x, weight, bias, eps)[0]
