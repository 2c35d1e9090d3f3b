# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Tensors of uint8 and int16, which the graph dialect lacks, as i32 tensors of equal values.

They are supported in type conversions, moves of elements and comparisons. Arithmetic, which
would wrap around at fewer bits, is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..ir import TensorType
from ..registry import Unsupported, aten, converter_for

#: The number of values of each type, and the lowest value.
NARROW = {torch.uint8: (1 << 8, 0), torch.int16: (1 << 16, -(1 << 15))}

_CASTS = {aten.to.dtype, aten._to_copy.default, aten.to.dtype_layout, aten.type_as.default}

#: Operators that move elements.
MOVES = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.flatten.using_ints,
    aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default,
    aten.expand_as.default, aten.repeat.default, aten.slice.Tensor, aten.select.int,
    aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int,
    aten.cat.default, aten.stack.default, aten.roll.default, aten.flip.default,
    aten.clone.default, aten.contiguous.default, aten.detach.default, aten.alias.default,
    aten.gather.default, aten.index_select.default, aten.where.self,
}


def is_narrow(example: Any) -> bool:
    """Returns whether an example result is a uint8 or int16 tensor, or contains one."""
    return any(isinstance(x, torch.Tensor) and x.dtype in NARROW
               for x in pytree.tree_leaves(example))


def constant(c, tensor: torch.Tensor):
    """Returns a known uint8 or int16 tensor as an i32 constant. Raises Unsupported for other
    types."""
    if tensor.dtype not in NARROW:
        raise Unsupported(f"an operand has element type {tensor.dtype}, which has no equivalent")
    return c.b.constant(tensor.to(torch.int32))


def convert(c, target: Any, example: Any, args: list, kwargs: dict) -> Any:
    """Converts an operator whose result is uint8 or int16. Raises Unsupported if it computes with
    the values."""
    if target in _CASTS:
        return _cast(c, args[0], example.dtype)
    function = converter_for(target)
    if target not in MOVES or function is None:
        dtype = next(x.dtype for x in pytree.tree_leaves(example) if x.dtype in NARROW)
        raise Unsupported(f"arithmetic of {dtype}; convert it to torch.int64")
    c.type = None
    if isinstance(example, torch.Tensor):
        c.type = TensorType(tuple(example.shape), "i32")
    return function(c, *args, **kwargs)


def _cast(c, x, dtype):
    """Returns `x` wrapped to the range of `dtype`; floats are rounded towards zero first."""
    b, (count, lowest) = c.b, NARROW[dtype]
    if x.dtype == "i1":
        return b.cast(x, "i32")
    whole = b.cast(x, "i64")
    start = b.scalar(lowest, "i64")
    above = b.binary("rem", b.binary("sub", whole, start), b.scalar(count, "i64"))
    negative = b.compare("lt", above, b.scalar(0, "i64"))
    above = b.select(negative, b.binary("add", above, b.scalar(count, "i64")), above)
    return b.cast(b.binary("add", above, start), "i32")
