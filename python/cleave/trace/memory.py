# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Identifies the storage of tensors, and counts their in-place writes."""

from __future__ import annotations

import torch


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
