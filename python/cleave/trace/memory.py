# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Identifies the storage of tensors, counts their in-place writes, and maps tensors in containers."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree


#: Context manager in which what is asked of a tensor is not a call that modes of a trace see: each
#: of them costs more than the answer.
_unseen: Any = torch._C.DisableTorchFunction


def memory_of(tensor: torch.Tensor) -> int:
    """Returns a number that identifies the storage of a tensor while it is alive."""
    try:
        with _unseen():
            return tensor.untyped_storage()._cdata
    except NotImplementedError:
        # Tensors within a transform of torch.func are wrappers without storage.
        return -id(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """Returns the number of in-place writes to a tensor."""
    with _unseen():
        return 0 if tensor.is_inference() else tensor._version


def requiring_gradients(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns those of the tensors that require a gradient."""
    with _unseen():
        return [x for x in tensors if x.requires_grad]


#: Leaves that are in most containers, and are not looked up in the registry of pytree.
_LEAVES = {int, float, bool, str, type(None), slice, type(...), torch.dtype, torch.device,
           torch.Tensor, torch.nn.Parameter, FakeTensor}


def leaves_of(values: Any) -> list[Any]:
    """Returns the leaves of nested containers, as `pytree.tree_leaves` does."""
    found: list[Any] = []
    _add_leaves(values, found)
    return found


def _add_leaves(value: Any, found: list[Any]) -> None:
    kind = type(value)
    if kind in _LEAVES:
        found.append(value)
    elif kind is tuple or kind is list:
        for part in value:
            _add_leaves(part, found)
    elif kind is dict:
        for part in value.values():
            _add_leaves(part, found)
    else:
        found += pytree.tree_leaves(value)


def map_tensors(function: Callable[[Any], Any], values: Any, kind: type = torch.Tensor) -> Any:
    """Returns nested containers with `function` applied to the tensors in them, those of class
    `kind`. A torch.Size stays one: x.new(size) reads another tuple as elements."""
    return pytree.tree_map_only(kind, function, values,
                                is_leaf=lambda value: isinstance(value, torch.Size))
