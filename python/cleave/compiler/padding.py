# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Inputs of any length for programs of a few lengths: they are padded to the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence, TypeVar, Union

import torch
import torch.nn.functional as F

from ..messages import close_names, some_names
from ..runtime.native import TensorFacts
from ..runtime.state import whole
from .check import Skipped, padding_changes

if TYPE_CHECKING:
    from .batch import Arrange

Size = tuple[Union[int, None], int]
Examples = Mapping[str, torch.Tensor]
T = TypeVar("T", torch.Tensor, Union[torch.Tensor, None])


class Buckets:
    """The shapes to which batches are padded.

    Attributes:
        sizes: (samples, length) of each, from small to large; samples are None if a batch
            is not padded to a number of them.
        lengths: the dimensions of each input that have the length, by its name.
        values: what each input is padded with.
    """

    def __init__(self, shapes: Any, examples: Examples, dims: Any = None, values: Any = None) -> None:
        """`examples` are the example inputs by name. `dims` and `values` are
        `length_dims` and `pad_values` of `cleave.compile`.

        Raises:
            TypeError, ValueError: an argument is wrong, or which dimensions have the
                length is not clear.
        """
        self.sizes = _sizes(shapes)
        self.names = list(examples)
        self.batch = next((t.shape[0] for t in examples.values() if t.ndim), 1)
        self.samples = [n for n, t in examples.items() if t.ndim and t.shape[0] == self.batch]
        self.lengths = _given_dims(dims, examples) if dims is not None else _found_dims(examples)
        self._given = _values(values, examples)
        self.values = {name: self._given.get(name, 0) for name in self.names}
        self._example = tuple(examples.values())
        self.fit(self._example)

    def fit(self, inputs: Sequence[torch.Tensor | None]) -> Size:
        """The size to which `inputs`, all or the first ones, are padded.

        Raises:
            ValueError: their lengths differ, or they are larger than every size.
        """
        batch, length = self.size_of(inputs)
        for samples, most in self.sizes:
            if length <= most and (samples is None or batch <= samples):
                return samples, most
        largest = " x ".join(str(n) for n in self.sizes[-1] if n is not None)
        raise ValueError(f"a batch of {batch} samples of length {length} does not fit any of the "
                         f"shapes; the largest is {largest}")

    def size_of(self, inputs: Sequence[torch.Tensor | None]) -> tuple[int, int]:
        """The number of samples and the length of `inputs`."""
        lengths: dict[int, str] = {}
        batch = self.batch
        for name, value in zip(self.names, inputs):
            if value is None:
                continue
            for dim in self.lengths.get(name, ()):
                if dim >= value.ndim:
                    raise ValueError(f"input '{name}' has {value.ndim} dimensions; dimension "
                                     f"{dim} is its length")
                lengths.setdefault(value.shape[dim], name)
            if name in self.samples and value.ndim:
                batch = value.shape[0]
        if len(lengths) > 1:
            text = ", ".join(f"{n} ('{name}')" for n, name in lengths.items())
            raise ValueError(f"the inputs have different lengths: {text}")
        return batch, next(iter(lengths), self.sizes[0][1])

    def pad(self, inputs: Sequence[T], to: Size | None = None) -> tuple[T, ...]:
        """`inputs` padded at their ends; one that is left out is None."""
        samples, length = to or self.fit(inputs)
        return tuple(None if value is None else _padded(value, {
            **({0: samples} if samples is not None and name in self.samples else {}),
            **dict.fromkeys(self.lengths.get(name, ()), length)}, self.values[name])
            for name, value in zip(self.names, inputs))

    def cut(self, value: torch.Tensor, inputs: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """An output for padded `inputs`, of the shape that it has without padding."""
        batch, length = self.size_of(inputs)
        samples, most = self.fit(inputs)
        if samples is not None and samples != batch:
            value = _cut(value, 0, samples, batch)
        if most != length:
            found = [d for d in range(1, value.ndim) if value.shape[d] == most]
            value = _cut(value, found[0] if found else value.ndim, most, length)
        return value

    def others(self) -> list[tuple[torch.Tensor, ...]]:
        """The example, padded to each of the sizes but its own."""
        own = self.fit(self._example)
        return [self.pad(_shortened(self, self._example, size), size)
                for size in self.sizes if size != own]

    def take_values(self, tensors: Mapping[str, TensorFacts]) -> None:
        """Pads inputs of which the program (`tensors` by name) ignores a value with that,
        unless a value was given."""
        for name in self.names:
            ignored = tensors[name].get("ignore_index") if name in tensors else None
            if name not in self._given and ignored is not None:
                self.values[name] = ignored

    def probe(self) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Inputs made of the example that must be padded, and the same padded."""
        inputs = self._example
        if self.sizes[0][0] is None:
            # What padding does to a sample shows in two of them.
            inputs = tuple(t[:2] if n in self.samples else t for n, t in zip(self.names, inputs))
        batch, length = self.size_of(inputs)
        samples, most = self.fit(inputs)
        less = (batch - 1 if samples == batch > 1 else batch,
                length - max(1, length // 4) if length == most and length > 1 else length)
        short = _shortened(self, inputs, less)
        return short, self.pad(short, (samples, most))


def check_padding(model: torch.nn.Module, arrange: Arrange, loss_fn: Callable[..., Any] | None,
                  buckets: Buckets) -> None:
    """Raises CompileError if padding changes what eager PyTorch computes."""
    from .. import _cleave

    try:
        difference = padding_changes(model, arrange, loss_fn, *buckets.probe())
    except Skipped as reason:
        raise _cleave.CompileError(f"shapes: that padding changes nothing cannot be shown: {reason}; "
                                   'check="off" compiles the model as it is') from None
    if difference:
        values = ", ".join(f"'{n}' with {v}" for n, v in buckets.values.items()
                           if n in buckets.lengths)
        raise _cleave.CompileError(
            f"shapes: padding ({values}) changes the loss or its gradients in eager PyTorch: "
            f"{difference}. The model must leave padded positions out, for example by an "
            "attention mask, and the loss must ignore their labels; pad_values says what inputs "
            "are padded with")


def _sizes(shapes: Any) -> list[Size]:
    if isinstance(shapes, (str, bytes)) or not isinstance(shapes, Sequence) or not shapes:
        raise TypeError(f"shapes is {shapes!r}; it must be a list of lengths, or of pairs "
                        "(samples, length)")
    sizes = []
    for shape in shapes:
        pair = shape if isinstance(shape, (tuple, list)) else (None, shape)
        if len(pair) != 2:
            raise ValueError(f"shapes has {shape!r}; it must be a length or (samples, length)")
        samples, length = (None if n is None else whole("each of shapes", n) for n in pair)
        if length is None or length < 1 or (samples is not None and samples < 1):
            raise ValueError(f"shapes has {shape!r}; sizes must be at least 1")
        sizes.append((samples, length))
    if len({samples is None for samples, _ in sizes}) > 1:
        raise ValueError("shapes has lengths and pairs (samples, length); give one of them")
    return sorted(set(sizes), key=lambda size: (size[1], size[0] or 0))


def _found_dims(examples: Examples) -> dict[str, tuple[int, ...]]:
    """The dimensions that have the length: those after the first whose size is that of the
    inputs with two dimensions."""
    hint = ("say which dimensions have the length: length_dims={"
            + ", ".join(f"'{n}': 1" for n, t in examples.items() if t.ndim > 1) + "}")
    sizes = {t.shape[1]: name for name, t in examples.items() if t.ndim == 2}
    if not sizes:
        sizes = {n: name for name, t in examples.items() for n in t.shape[1:]}
    if len(sizes) != 1:
        shapes = ", ".join(f"'{n}' {list(t.shape)}" for n, t in examples.items())
        raise ValueError(f"the inputs have no one length ({shapes}); {hint}")
    length = next(iter(sizes))
    found = {}
    for name, value in examples.items():
        dims = tuple(d for d in range(1, value.ndim) if value.shape[d] == length)
        if len(dims) > 1:
            raise ValueError(f"input '{name}' {list(value.shape)} has the length {length} in "
                             f"several dimensions; {hint}")
        if dims:
            found[name] = dims
    return found


def _given_dims(dims: Any, examples: Examples) -> dict[str, tuple[int, ...]]:
    if not isinstance(dims, Mapping) or not dims:
        raise TypeError("length_dims must be a dict of dimensions by the names of inputs")
    _check_names("length_dims", dims, examples)
    found, lengths = {}, {}
    for name, own in dims.items():
        value = examples[name]
        own = tuple(whole(f"length_dims of '{name}'", d)
                    for d in (own if isinstance(own, (tuple, list)) else (own,)))
        if any(not 1 <= d < value.ndim for d in own):
            raise ValueError(f"length_dims of '{name}' is {dims[name]}; it has the dimensions 1 to "
                             f"{value.ndim - 1} after that of samples")
        found[name] = own
        lengths.update({value.shape[d]: name for d in own})
    if len(lengths) > 1:
        text = ", ".join(f"{n} ('{name}')" for n, name in lengths.items())
        raise ValueError(f"the dimensions of length_dims have different sizes: {text}")
    return found


def _values(values: Any, examples: Examples) -> dict[str, float]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise TypeError("pad_values must be a dict of numbers by the names of inputs")
    _check_names("pad_values", values, examples)
    for name, value in values.items():
        if not isinstance(value, (int, float)):
            raise TypeError(f"pad_values of '{name}' is {value!r}, not a number")
    return dict(values)


def _check_names(what: str, given: Iterable[Any], examples: Examples) -> None:
    for name in given:
        if name not in examples:
            raise ValueError(f"{what} has '{name}'; the inputs are {', '.join(examples)}; did you "
                             f"mean {some_names(close_names(str(name), examples))}?")


def _padded(value: torch.Tensor, sizes: Mapping[int, int], fill: float) -> torch.Tensor:
    """`value` with `fill` added at the end of dimensions, up to `sizes`."""
    widths = [0] * (2 * value.ndim)
    for dim, size in sizes.items():
        widths[2 * (value.ndim - 1 - dim) + 1] = size - value.shape[dim]
    return F.pad(value, widths, value=fill) if any(widths) else value


def _shortened(buckets: Buckets, inputs: Sequence[torch.Tensor],
               size: Size) -> tuple[torch.Tensor, ...]:
    """`inputs` of at most the samples and the length of `size`."""
    samples, length = size
    result = []
    for name, value in zip(buckets.names, inputs):
        if samples is not None and name in buckets.samples:
            value = value[:samples]
        for dim in buckets.lengths.get(name, ()):
            value = value.narrow(dim, 0, min(length, value.shape[dim]))
        result.append(value)
    return tuple(result)


def _cut(value: torch.Tensor, dim: int, old: int, new: int) -> torch.Tensor:
    if dim >= value.ndim or value.shape[dim] != old:
        raise ValueError(f"which dimension of an output {list(value.shape)} was padded to {old} is "
                         "not clear; compile without shapes for this output")
    return value.narrow(dim, 0, new)
