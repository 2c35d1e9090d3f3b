# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The table of converters of PyTorch operators.

A converter takes `c`, the `Conversion`, and then the operator's own arguments, with values
in place of tensors. It returns the value of the operator's result, or a tuple of values, and
raises `Unsupported` for a use of the operator that it cannot convert.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

aten = torch.ops.aten

CONVERTERS: dict[Any, Callable[..., Any]] = {}


class Unsupported(Exception):
    """Raised for a use of an operator that cannot be converted; the text is the reason."""


def converts(*overloads: Any):
    """Registers a converter for each of `overloads`."""
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            CONVERTERS[overload] = function
        return function
    return register


def converter_for(target: Any) -> Callable[..., Any] | None:
    """Returns the converter of an operator, or None. Imports all converters first."""
    from .converters import (  # noqa: F401
        activation, assignment, batch_norm, bits, contraction, convolution, diagonal, division,
        elementwise, functions, index, loss, memory, neural, order, padding, quantile, random,
        reduction, scan, scatter, shape, statistics, trigonometry, windows)
    return CONVERTERS.get(target)
