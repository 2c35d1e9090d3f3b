# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Constants whose elements follow from their positions, as ops that compute them.

The text of a module holds the elements of small constants alone, and ops say more of them than a
list: that a matrix is triangular is one comparison of rows and columns. A form is taken only if
each of its elements has the bits of the constant's.
"""

from __future__ import annotations

import torch

from .builder import Builder
from .ir import TensorType, Value, type_of

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def closed_form(b: Builder, tensor: torch.Tensor, large: bool) -> Value | None:
    """Returns ops that compute `tensor`: a matrix with one number in a triangle or a band of
    diagonals, and another one elsewhere, and, if it is `large`, one number or consecutive integers
    too; None if it is none of these."""
    if not tensor.numel() or tensor.dtype.itemsize not in _BITS or tensor.is_complex() or tensor.is_meta \
            or tensor.layout is not torch.strided:
        return None
    tensor = tensor.resolve_neg()
    type = type_of(tensor)
    lead, *last = tensor.shape[:-2], *tensor.shape[-2:]
    if large:
        bits = _bits(tensor).reshape(-1)
        if bool((bits == bits[0]).all()):
            return b.full(tensor.reshape(-1)[0].item(), type)
        if not type.is_float and type.dtype != "i1" and tensor.numel() == tensor.shape[-1]:
            start = int(tensor.reshape(-1)[0])
            if bool((torch.diff(tensor.reshape(-1).long()) == 1).all()):
                return b.iota(type, type.rank - 1, start)
    if len(last) < 2 or min(last) < 2 or any(size != 1 for size in lead):
        return None
    return _band(b, tensor.reshape(last), type)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(_BITS[tensor.dtype.itemsize])


def _band(b: Builder, matrix: torch.Tensor, type: TensorType) -> Value | None:
    """Returns the matrix of this type, if it has one number on diagonals that are neighbours, and
    another one on all others."""
    rows, columns = matrix.shape
    bits = _bits(matrix)
    # One element of each diagonal, from the lower left corner to the upper right one.
    diagonals = torch.cat([bits[:, 0].flip(0), bits[0, 1:]])
    position = torch.arange(columns)[None] - torch.arange(rows)[:, None]
    ends = (torch.nonzero(torch.diff(diagonals)).reshape(-1) + 1).tolist()
    if len(ends) not in (1, 2) or (len(ends) == 2 and diagonals[0] != diagonals[-1]) \
            or not bool((diagonals[position + rows - 1] == bits).all()):
        return None
    row = b.iota(TensorType((rows, 1), "i64"), 0)
    column = b.iota(TensorType((1, columns), "i64"), 1)

    def below(end):
        """Returns whether an element is on a diagonal before number `end` of the list."""
        offset = end - rows
        shifted = b.binary("add", row, b.scalar(offset, "i64")) if offset else row
        return b.compare("le", column, shifted)

    inside = below(ends[-1])
    if len(ends) == 2:
        inside = b.binary("and", inside, b.unary("not", below(ends[0])))
    # Diagonal number n of the list is n + 1 - rows, counted from the main one.
    yes, no = (_number_at(matrix, ends[-1] + 1 - rows - before) for before in (1, 0))
    if type.dtype == "i1":
        value = inside if yes else b.unary("not", inside)
    else:
        value = b.select(inside, b.scalar(yes, type.dtype), b.scalar(no, type.dtype))
    return b.reshape(value, type.shape)


def _number_at(matrix: torch.Tensor, diagonal: int):
    """Returns the number on a diagonal: 0 is the main one, 1 the next above."""
    return matrix[max(0, -diagonal), max(0, diagonal)].item()
