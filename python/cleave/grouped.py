# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Linear layers in which each row has the weight of its group, as operators of PyTorch.

Eager code computes one matmul for each group, of its rows; a trace has one op, of which a compiled
step computes the same rows.
"""

from __future__ import annotations

from typing import Iterator

import torch
from torch import Tensor


def grouped_linear(rows: Tensor, weight: Tensor, groups: Tensor,
                   transpose: bool = False) -> Tensor:
    """Returns the matmul of each of `rows` [..., i] with the matrix of its group, [..., o].

    `groups` [...] holds integers, the place of each row's matrix in `weight`: [groups, i, o], or
    with `transpose` [groups, o, i], as linear layers store it. It computes one matmul for each
    row. Differentiable in rows and weight, any number of times; in an autocast region the factors
    have its type. Rows and weight have one type otherwise.
    """
    if weight.dim() != 3 or rows.dim() < 2 or rows.shape[:-1] != groups.shape or \
            rows.shape[-1] != weight.shape[2 if transpose else 1]:
        raise ValueError(f"rows {list(rows.shape)}, weight {list(weight.shape)} and groups "
                         f"{list(groups.shape)} need shapes [..., i], "
                         f"{'[groups, o, i]' if transpose else '[groups, i, o]'} and [...]")
    device = rows.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and \
            rows.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        rows, weight = rows.to(dtype), weight.to(dtype)
    return _grouped_linear(rows, weight, groups, transpose)


def grouped_mm(mat_a: Tensor, mat_b: Tensor, *, offs: Tensor | None = None,
               bias: Tensor | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    """Returns what `torch.nn.functional.grouped_mm` does, of static shapes: rows (or columns, or
    terms of sums) before `offs[0]` are of the first group, those from there to before `offs[1]` of
    the second, and so on. Those of no group give 0, which the original leaves undefined."""
    def held(size: int) -> tuple[Tensor, Tensor]:
        """The group of each place, and whether it has one."""
        group = (torch.arange(size, device=offs.device)[:, None] >= offs).sum(-1)
        return group.clamp(max=len(offs) - 1), (group < len(offs))[:, None]

    if mat_a.dim() == mat_b.dim() == 3:
        result = mat_a @ mat_b
    elif offs is None:
        raise ValueError("grouped_mm of matrices needs offs")
    elif mat_b.dim() == 3:
        group, kept = held(mat_a.shape[0])
        result = torch.where(kept, grouped_linear(mat_a, mat_b, group), 0)
    elif mat_a.dim() == 3:
        group, kept = held(mat_b.shape[1])
        result = torch.where(kept, grouped_linear(mat_b.t(), mat_a, group, True), 0).t()
    else:
        group, kept = held(mat_b.shape[0])
        result = _weight_grad(torch.where(kept, mat_a.t(), 0), mat_b, group, len(offs), False)
    result = result if bias is None else result + bias
    return result if out_dtype is None else result.to(out_dtype)


def _rows_of_groups(groups: Tensor, count: int) -> Iterator[tuple[int, Tensor]]:
    """Yields each group that has rows, and the places of these in order."""
    flat = groups.reshape(-1)
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < count:
        raise IndexError(f"groups are {int(flat.min())} to {int(flat.max())}; the weight has "
                         f"{count} of them")
    order = flat.argsort(stable=True)
    sizes = torch.bincount(flat, minlength=count).tolist()
    for group, places in enumerate(order.split(sizes)):
        if len(places):
            yield group, places


@torch.library.custom_op("cleave::grouped_linear", mutates_args=())
def _grouped_linear(rows: Tensor, weight: Tensor, groups: Tensor, transpose: bool) -> Tensor:
    flat = rows.reshape(-1, rows.shape[-1])
    result = rows.new_zeros(flat.shape[0], weight.shape[1 if transpose else 2])
    for group, places in _rows_of_groups(groups, len(weight)):
        matrix = weight[group].t() if transpose else weight[group]
        result[places] = flat[places] @ matrix
    return result.view(*groups.shape, result.shape[1])


@torch.library.custom_op("cleave::grouped_linear_weight_grad", mutates_args=())
def _weight_grad(rows: Tensor, gradient: Tensor, groups: Tensor, size: int,
                 transpose: bool) -> Tensor:
    first, second = (t.reshape(-1, t.shape[-1])
                     for t in ((gradient, rows) if transpose else (rows, gradient)))
    result = rows.new_zeros(size, first.shape[-1], second.shape[-1])
    for group, places in _rows_of_groups(groups, size):
        result[group] = first[places].t() @ second[places]
    return result


@_grouped_linear.register_fake
def _(rows, weight, groups, transpose):
    return rows.new_empty(*groups.shape, weight.shape[1 if transpose else 2])


@_weight_grad.register_fake
def _(rows, gradient, groups, size, transpose):
    sizes = (rows.shape[-1], gradient.shape[-1])
    return rows.new_empty(size, *(sizes[::-1] if transpose else sizes))


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3])
    ctx.transpose = inputs[-1]


def _gradients(ctx, g):
    rows, weight, groups = ctx.saved_tensors
    one = ctx.needs_input_grad
    return (_grouped_linear(g, weight, groups, not ctx.transpose) if one[0] else None,
            _weight_grad(rows, g, groups, len(weight), ctx.transpose) if one[1] else None,
            None, None)


def _weight_gradients(ctx, g):
    rows, gradient, groups = ctx.saved_tensors
    return (_grouped_linear(gradient, g, groups, not ctx.transpose),
            _grouped_linear(rows, g, groups, ctx.transpose), None, None, None)


_grouped_linear.register_autograd(_gradients, setup_context=_keep)
_weight_grad.register_autograd(_weight_gradients, setup_context=_keep)
