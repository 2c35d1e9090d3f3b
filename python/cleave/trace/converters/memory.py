# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Operators that depend on strides and storage offsets."""

from __future__ import annotations

from ..ir import TensorType
from ..registry import Unsupported, aten, converts
from ..widen import eager_result


@converts(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(c, x, size, stride, storage_offset=None):
    """Gathers the elements at storage offset + sum of index * stride. Raises Unsupported if `x` is
    not dense or does not fill its storage."""
    b, example = c.b, eager_result(c.node.args[0])
    order = sorted(range(x.type.rank), key=lambda d: (-example.stride(d), -x.shape[d]))
    count = 1
    for d in reversed(order):
        if x.shape[d] != 1 and example.stride(d) != count:
            raise Unsupported("the strides of the tensor are not a permutation of dense strides")
        count *= x.shape[d]
    size_in_bytes = count * example.element_size()
    if example.storage_offset() or example.untyped_storage().nbytes() != size_in_bytes:
        raise Unsupported("the tensor is a view into a larger storage")
    place = b.full(storage_offset or 0, TensorType((1,) * len(size), "i64"))
    for d, (length, step) in enumerate(zip(size, stride)):
        shape = tuple(length if i == d else 1 for i in range(len(size)))
        own = b.binary("mul", b.iota(TensorType(shape, "i64"), d), b.scalar(step, "i64"))
        place = b.binary("add", place, own)
    flat = b.reshape(b.transpose(x, order), [count])
    return b.gather(flat, b.reshape(place, size), 0)
