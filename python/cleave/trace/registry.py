# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Which function converts which operator of the framework.

A converter has the operator's own signature after `c`, the conversion in
progress; tensors arrive as graph values. It returns the value that stands for
the operator's result, or a tuple of them. `Unsupported` says what it cannot do.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

aten = torch.ops.aten

CONVERTERS: dict[Any, Callable[..., Any]] = {}


class Unsupported(Exception):
    """A use of an operator that has no conversion; the text says which."""


def converts(*overloads: Any):
    """Registers a converter for each of `overloads`."""
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            CONVERTERS[overload] = function
        return function
    return register


def converter_for(target: Any) -> Callable[..., Any] | None:
    from . import (convert_contraction, convert_elementwise,  # noqa: F401
                   convert_loss, convert_neural, convert_shape)
    return CONVERTERS.get(target)
