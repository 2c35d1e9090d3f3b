# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Replaces torch functions that read the values of tensors, which a trace does not have, only to
check their arguments or to compute shapes."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import torch

from ..grouped import grouped_mm
from .ctc_loss import ctc_loss
from .errors import EagerError, TraceError
from .locations import VALUES, current_line


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


def random_(x, low=None, high=None, *, generator=None, **bounds):
    """Writes integers that are drawn from `low` to below `high`, or from 0 to below `low`."""
    low, high = bounds.get("from", low), bounds.get("to", high)
    if low is None:
        raise EagerError("random_() draws of all integers that the type has; give a range, as "
                         "random_(0, n)")
    return x.copy_(torch.randint_like(x, *((low, high) if high is not None else (0, low))))


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


#: The attribute of the elements that a mask selects; it has the line.
_SELECTED = "_cleave_selected"


def _masked_select(input, mask):
    """Returns the elements that `mask` selects, in order, and then the others. Their number is that
    of all: `refuse_selected` refuses functions that would read the others."""
    input, mask = torch.broadcast_tensors(input, mask)
    out = input.flatten()[mask.flatten().logical_not().to(torch.int64).argsort(stable=True)]
    setattr(out, _SELECTED, current_line())
    return out


def refuse_selected(values: Any, function: Any = None) -> None:
    """Raises TraceError for elements that a mask selects: their number depends on values. The loss
    CTC takes the number that it reads from other arguments."""
    for value in () if function is ctc_loss else values:
        if hasattr(value, _SELECTED):
            raise TraceError("torch.export cannot follow the model: "
                             f"{getattr(value, _SELECTED)}{VALUES}")


#: The replacement of each function.
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _covariance),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _correlation),
    torch.combinations: _combinations,
    **dict.fromkeys((torch.ctc_loss, torch.nn.functional.ctc_loss), ctc_loss),
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), _masked_select),
    torch.Tensor.random_: random_,
    **dict.fromkeys((torch._grouped_mm, torch.nn.functional.grouped_mm), grouped_mm),
    torch._is_all_true: torch.Tensor.all,
    torch._is_any_true: torch.Tensor.any,
    **dict.fromkeys((torch.narrow, torch.Tensor.narrow), _narrow),
}
