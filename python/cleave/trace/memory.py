# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Identifies the storage of tensors, counts their in-place writes, and maps tensors in containers."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree


def memory_of(tensor: torch.Tensor) -> int:
    """Returns a number that identifies the storage of a tensor while it is alive."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        # Tensors within a transform of torch.func are wrappers without storage.
        return -id(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """Returns the number of in-place writes to a tensor."""
    return 0 if tensor.is_inference() else tensor._version


def map_tensors(function: Callable[[Any], Any], values: Any, kind: type = torch.Tensor) -> Any:
    """Returns nested containers with `function` applied to the tensors in them, those of class
    `kind`. A torch.Size stays one: x.new(size) reads another tuple as elements."""
    return pytree.tree_map_only(kind, function, values,
                                is_leaf=lambda value: isinstance(value, torch.Size))
