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
    from . import (convert_activation, convert_assignment,  # noqa: F401
                   convert_batch_norm, convert_bits, convert_contraction, convert_division,
                   convert_elementwise, convert_functions, convert_loss, convert_memory,
                   convert_neural, convert_order, convert_shape, convert_statistics,
                   convert_trigonometry, convert_windows)
    return CONVERTERS.get(target)
