# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Folds constants: torch computes operators whose operands are all known at trace time."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..runtime.state import not_dense
from .converters.complex import Complex
from .ir import DTYPES, Value

#: The largest number of elements of a result that becomes a constant.
LARGEST = 1 << 16


def folded(c, target: Any, example: Any, args: list, kwargs: dict) -> Any:
    """Returns the result of an operator as constants; None if an operand is not known, or the
    operator is random, writes to its operands or has a large result.

    A result that the graph dialect cannot represent, because of its type or because it is sparse,
    remains a torch tensor, which only further folded operators take as an operand.
    """
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable \
            or torch.Tag.nondeterministic_seeded in target.tags \
            or torch.Tag.nondeterministic_bitwise in target.tags:
        return None
    outputs = pytree.tree_leaves(example)
    if not outputs or not all(isinstance(x, torch.Tensor) and x.numel() <= LARGEST
                              for x in outputs):
        return None

    def known(value):
        if isinstance(value, Complex):
            re, im = c.known(value.re), c.known(value.im)
            return None if re is None or im is None else torch.complex(re, im)
        return c.known(value) if isinstance(value, Value) else value
    leaves, structure = pytree.tree_flatten((args, kwargs),
                                            is_leaf=lambda x: isinstance(x, (Value, Complex)))
    values = [known(x) for x in leaves]
    if any(v is None and x is not None for v, x in zip(values, leaves)):
        return None
    args, kwargs = pytree.tree_unflatten(values, structure)
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    with torch.no_grad():
        result = target(*args, **kwargs)
    found = pytree.tree_leaves(result)
    if [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in outputs]:
        return None
    return pytree.tree_map(lambda x: known_constant(c.b, x), result)


def known_constant(builder, tensor: torch.Tensor) -> Any:
    """Returns a constant with the elements of `tensor`, or a Complex of two constants if it is
    complex, or the tensor itself if the graph dialect lacks its type or it is not dense."""
    if not_dense(tensor):
        return tensor.detach()
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_complex():
        parts = tensor.real, tensor.imag
        return Complex(*(builder.constant(part.contiguous()) for part in parts))
    return builder.constant(tensor) if tensor.dtype in DTYPES else tensor
