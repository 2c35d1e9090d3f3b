# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Replaces torch functions that read the values of tensors, which a trace does not have, only to
check their arguments or to compute shapes."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import torch

from .ctc_loss import ctc_loss


def _covariance(input, *, correction=1, fweights=None, aweights=None):
    """Returns the covariance matrix of the rows of `input`. Negative weights are not refused."""
    input = input.reshape(1, -1) if input.dim() < 2 else input
    weights = aweights
    if fweights is not None:
        weights = fweights.to(input.dtype) if aweights is None else fweights * aweights
    if weights is None:
        mean, left = input.mean(1), max(input.shape[1] - correction, 0)
        weighted = centred = input - mean[:, None]
    else:
        total = weights.sum()
        mean = (input * weights).sum(1) / total
        taken = correction if aweights is None else correction * (weights * aweights).sum() / total
        left = (total - taken).clamp(min=0)
        centred = input - mean[:, None]
        weighted = centred * weights
    return (weighted @ centred.T / left).squeeze()


def _correlation(input):
    """Returns the matrix of correlation coefficients of the rows of `input`."""
    matrix = _covariance(input)
    if matrix.dim() == 0:
        return matrix / matrix
    deviation = matrix.diagonal().sqrt()
    return (matrix / deviation[:, None] / deviation[None, :]).clip(-1, 1)


def _combinations(input, r=2, with_replacement=False):
    """Returns the combinations [combinations, r] of r elements of `input`."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    if r == 0:
        return input.new_empty((0,))
    rows = list(choose(range(input.shape[0]), r))
    return input[torch.tensor(rows, dtype=torch.int64).reshape(len(rows), r)]


def _narrow(input, dim, start, length):
    """Returns `length` elements along `dim` from `start`, which may be a tensor."""
    if not isinstance(start, torch.Tensor):
        return torch.ops.aten.narrow(input, dim, start, length)
    start = torch.where(start < 0, start + input.shape[dim], start)
    return input.index_select(dim, start + torch.arange(length))


#: The replacement of each function.
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _covariance),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _correlation),
    torch.combinations: _combinations,
    **dict.fromkeys((torch.ctc_loss, torch.nn.functional.ctc_loss), ctc_loss),
    **dict.fromkeys((torch.narrow, torch.Tensor.narrow), _narrow),
}
