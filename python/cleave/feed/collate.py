# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From samples to the tensors of a batch."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from .source import FeedError


def on_row(function: Callable, row, name: str, place: str):
    """The result of a user's function for a row. Raises FeedError with the row."""
    try:
        return function(row)
    except Exception as error:
        raise FeedError(f"{place}: {name} raised {type(error).__name__}: {error}") from error


def collate(samples: Sequence[Any], places: Sequence[str], part: str = ""):
    """Samples stacked to tensors `[samples, ...]`, in dicts and tuples as the samples are.

    Args:
        samples: numbers, lists of numbers, arrays or tensors; or dicts or tuples of such.
        places: the row of each, for messages.
        part: which part of the samples this is, for messages.

    Raises:
        FeedError: samples differ in form, or are something else; names the first such row.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        if not first:
            raise FeedError(f"{places[0]}: the sample is empty")
        for sample, place in zip(samples, places):
            if not isinstance(sample, Mapping) or set(sample) != set(first):
                raise FeedError(f"{place}: {_named(part)} has the entries {_entries(sample)}, and "
                                f"{_entries(first)} in the first row of the batch")
        return {name: collate([sample[name] for sample in samples], places, _below(part, name))
                for name in first}
    if isinstance(first, tuple):
        for sample, place in zip(samples, places):
            if not isinstance(sample, tuple) or len(sample) != len(first):
                raise FeedError(f"{place}: {_named(part)} is not a tuple of {len(first)}, as in "
                                "the first row of the batch")
        return tuple(collate(list(values), places, _below(part, i))
                     for i, values in enumerate(zip(*samples)))
    return _stacked(samples, places, part)


def _stacked(samples, places, part):
    import torch

    kind = type(samples[0])
    if kind in (int, float, bool) and all(type(sample) is kind for sample in samples):
        try:
            return torch.tensor(samples)  # As below, at once.
        except (RuntimeError, OverflowError, ValueError):
            pass
    tensors = [_tensor(sample, place, part) for sample, place in zip(samples, places)]
    for tensor, place in zip(tensors, places):
        if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
            raise FeedError(f"{place}: {_named(part)} is {_form(tensor)}, and {_form(tensors[0])} "
                            "in the first row of the batch; transform makes them alike")
    return torch.stack(tensors)


def _tensor(value, place, part):
    """A value as a tensor; unsigned integers, which few operators take, as int64."""
    import numpy as np
    import torch

    if isinstance(value, (bytes, bytearray, memoryview, str)) or value is None:
        raise FeedError(f"{place}: {_named(part)} is {type(value).__name__}; transform makes an "
                        "array of it, as numpy.frombuffer(row['tokens'], 'uint16') does")
    try:
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise FeedError(f"{place}: {_named(part)} is {type(value).__name__}, which is no tensor: "
                        f"{error}") from None
    wide = {torch.uint16, torch.uint32, torch.uint64}
    return tensor.to(torch.int64) if tensor.dtype in wide else tensor


def _named(part):
    return f"'{part}'" if part else "the sample"


def _below(part, name):
    return f"{part}.{name}" if part else str(name)


def _entries(sample):
    return ", ".join(map(str, sample)) if isinstance(sample, Mapping) else type(sample).__name__


def _form(tensor):
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
