# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The inputs of a call of a step: by position or by name, as tensors of the program's types."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .held import Held, Key
from .state import not_dense, wide_type


def shape_key(inputs: Sequence[torch.Tensor]) -> Key:
    """The shapes and types that a program is compiled for; inputs of 16 bits may also be given in f32."""
    return tuple((tuple(t.shape), wide_type(t.dtype)) for t in inputs)


class CallInputs(Held):
    """The part of a `Step` that reads the inputs of a call."""

    def _given(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The inputs of a call by name, in the order of the program's."""
        names = self._live.traced.input_names
        unknown = [n for n in named if n not in names[len(inputs):]]
        if unknown or len(inputs) > len(names):
            raise TypeError(
                f"the model takes {len(names)} inputs ({', '.join(names)}), each "
                f"once; {len(inputs)} given by position"
                + (f", and by name {', '.join(named)}" if named else ""))
        given = {**dict(zip(names, inputs)), **named}
        if not given:
            raise TypeError(f"the model takes inputs ({', '.join(names)}); none given")
        return {n: self._typed(n, given[n]) for n in names if n in given}

    def _typed(self, name: str, value: Any) -> torch.Tensor:
        """`value` as a tensor of the type that the model takes."""
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"input '{name}' is not a tensor: {error}") from None
        if kind := not_dense(tensor):
            raise TypeError(f"input '{name}' {kind}")
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise TypeError(f"input '{name}' is one of torch.func (vmap, grad), which does not "
                            "follow what a step computes")
        if isinstance(tensor, FakeTensor) or tensor.is_meta or not tensor.numel():
            what = ("is a FakeTensor, which has no values" if isinstance(tensor, FakeTensor) else
                    "is on the meta device" if tensor.is_meta else "has no elements")
            raise ValueError(f"input '{name}' {what}")
        wanted = self._live.traced.input_types[name][1]
        if not torch.can_cast(tensor.dtype, wanted):
            raise TypeError(
                f"input '{name}' is {str(tensor.dtype).removeprefix('torch.')}, but the "
                f"model takes {str(wanted).removeprefix('torch.')}")
        return tensor.to(wanted)

    def _whole(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """The inputs of a call that needs them all."""
        names = self._live.traced.input_names
        given = self._given(inputs, named)
        if named and (missing := [n for n in names if n not in given]):
            raise TypeError(f"input '{missing[0]}' is missing")
        if len(given) < len(names):
            raise TypeError(f"the model takes {len(names)} inputs ({', '.join(names)}), "
                            f"{len(given)} given")
        return tuple(given.values())

    def _complete(self, given: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        """`given`, with zeros for inputs that are left out (None), of the shape that they have in
        a program for the others, or in the example with the batch size of the others."""
        present = [t for t in given if t is not None]
        if len(present) == len(given):
            return tuple(present)
        known = list(self._programs)
        if self._buckets is not None:
            known += map(shape_key, self._buckets.others())
        own = {i: shape_key([t])[0] for i, t in enumerate(given) if t is not None}
        types = next((key for key in known if all(key[i] == v for i, v in own.items())), None)
        if types is None:
            alike = [key for key in known if all(
                key[i][0][1:] == shape[1:] for i, (shape, _) in own.items())]
            example = (alike or known)[0]
            first = next(iter(own))
            # Of a scalar, () instead of (samples,).
            old, new = example[first][0][:1], own[first][0][:1]
            types = tuple(((*new, *shape[1:]) if new and shape and shape[:1] == old else shape, dtype)
                          for shape, dtype in example)
        return tuple(torch.zeros(shape, dtype=dtype) if value is None else value
                     for value, (shape, dtype) in zip(given, types))
