# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Scalars of a model that a step returns beside its loss."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import torch

from ..messages import close_names
from .errors import TraceError
from .outputs import part_of, parts_of

#: The beginning of the names of these results. No parameter of a module has a name like it.
PREFIX = "metric/"


def is_metric(name: str) -> bool:
    """Returns whether a result of this name is a metric."""
    return name.startswith(PREFIX)


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The scalars that are asked for: fields of the output of the model by their `names`, or what
    `function(output, inputs)` returns by name."""

    names: tuple[str, ...] = ()
    function: Callable[[Any, dict[str, torch.Tensor]], Mapping[str, torch.Tensor]] | None = None

    @staticmethod
    def of(value: Any) -> Metrics | None:
        """Returns what `metrics=` asks for; None for nothing. Raises TypeError or ValueError."""
        if value is None:
            return None
        if isinstance(value, str):
            value = [value]
        if callable(value) and not isinstance(value, (Sequence, torch.nn.Module)):
            return Metrics(function=value)
        if not isinstance(value, Sequence) or not all(isinstance(name, str) for name in value):
            raise TypeError(f"metrics is {value!r}; it must be names of fields of the model's output, "
                            "or a function of (output, inputs) that returns a dict of scalars")
        if len(set(value)) < len(value):
            raise ValueError(f"metrics has a name twice: {', '.join(value)}")
        return Metrics(tuple(value)) if value else None

    def found(self, output: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the scalars of an output by name. Raises TraceError if one is not there, or is
        not a scalar."""
        if self.function is not None:
            try:
                inspect.signature(self.function).bind(output, inputs)
            except TypeError as error:
                raise TraceError(f"metrics is a function of (output, inputs): {error}") from None
            except ValueError:
                # A function without a signature.
                pass
            values = self.function(output, inputs)
            if not isinstance(values, Mapping):
                raise TraceError(f"the function of metrics returns {type(values).__name__}; it must "
                                 "return a dict of scalars")
        else:
            values = {}
            for name in self.names:
                values[name] = part_of(output, name)
                if values[name] is None:
                    known = [part.strip("'") for part in parts_of(output)]
                    close = close_names(name, known)
                    raise TraceError(
                        f"metrics names '{name}', which the model does not return"
                        + (f"; its output has {', '.join(map(repr, close))}" if close else
                           "; its output has no fields: give a function of (output, inputs)"))
        for name, value in values.items():
            if not isinstance(name, str):
                raise TraceError(f"the function of metrics names one {name!r}; names are texts")
            if not isinstance(value, torch.Tensor):
                raise TraceError(f"metric '{name}' is {type(value).__name__}, not a tensor, and would "
                                 "be the same in each step")
            if value.dim() or value.is_complex():
                raise TraceError(f"metric '{name}' is {value.dtype} of {list(value.shape)}; a metric "
                                 "is a real scalar: reduce it, for example by .mean()")
        return dict(values)


def as_results(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the outputs of a step for metrics, by the names of results."""
    return {PREFIX + name: (value.long() if value.dtype == torch.bool else value).detach()
            for name, value in values.items()}
