# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The data of a run: batches one after another, over epochs, and where the run is in them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

import torch

from . import randomness


class Batches:
    """Batches of `data`, and the position in it.

    Args:
        data: a loader, a list or anything else that can be read again for each epoch; a function
            that returns one for the number of an epoch, from 0; an iterator, which is read once;
            or a source that has a position of its own (`position`, as `cleave.feed.Feed`, or
            `state_dict` and `load_state_dict`).

    Attributes:
        epoch: the number of epochs that are done.
        used: the number of batches that were drawn of the current epoch.
        total: the number of batches that were drawn of all.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        if _has_position(data):
            self.kind = "position"
        elif callable(getattr(data, "state_dict", None)) and callable(
                getattr(data, "load_state_dict", None)):
            self.kind = "state"
        elif isinstance(data, Iterator):
            self.kind = "iterator"
        elif callable(data) and not isinstance(data, Iterable):
            self.kind = "function"
        elif isinstance(data, Iterable):
            self.kind = "iterable"
        else:
            raise TypeError(f"data is {type(data).__name__}; it must be iterable, or a function that "
                            "returns batches for the number of an epoch")
        self.epoch = self.used = self.total = 0
        self._iterator: Iterator[Any] | None = None
        self._begin: dict[str, Any] | None = None

    @property
    def ends_by_itself(self) -> bool:
        """Whether the data says how often it is read, so that a run may follow it to its end."""
        return self.kind in ("position", "iterator")

    @property
    def per_epoch(self) -> int | None:
        """Batches of an epoch, as far as the data has a length."""
        try:
            return len(self._data) if self.kind in ("iterable", "state") else None
        except TypeError:
            return None

    def draw(self, epochs: int | None) -> Any:
        """The next batch; None after `epochs`, or at the end of data that is read once.

        Raises:
            ValueError: an epoch has no batches, or the data ends before its epochs.
        """
        while epochs is None or self.epoch < epochs:
            if self._iterator is None:
                self._open()
                assert self._iterator is not None
            batch = next(self._iterator, None)
            if batch is not None:
                self.used += 1
                self.total += 1
                return batch
            if self.ends_by_itself:
                return None
            if not self.used:
                raise ValueError("the data has no batches" if not self.total else
                                 f"the data has no batches in epoch {self.epoch}; what is read for "
                                 "several epochs must give them each time")
            self.epoch, self.used, self._iterator = self.epoch + 1, 0, None
        return None

    def _open(self) -> None:
        """Begins an epoch."""
        self._begin = None
        if self.kind in ("iterable", "function"):
            self._begin = randomness.states(self._generators())
            for one in (self._data, getattr(self._data, "sampler", None),
                        getattr(self._data, "batch_sampler", None),
                        getattr(self._data, "dataset", None)):
                set_epoch = getattr(one, "set_epoch", None)
                if callable(set_epoch):
                    set_epoch(self.epoch)
        source = self._data(self.epoch) if self.kind == "function" else self._data
        self._iterator = iter(source)

    def _generators(self) -> list[torch.Generator]:
        return randomness.generators_of(self._data)

    # ------------------------------------------------------------------ states

    def state(self) -> dict[str, Any]:
        """The position and the random numbers from which the following batches come, as plain data."""
        found: dict[str, Any] = {"kind": self.kind, "epoch": self.epoch, "used": self.used,
                                 "total": self.total,
                                 "random": randomness.states(self._generators())}
        if self.kind == "position":
            found["position"] = self._data.position
        elif self.kind == "state":
            found["state"] = _packed(self._data.state_dict())
        elif self._begin is not None and self._iterator is not None:
            found["begin"] = self._begin
        return found

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was returned. A source without a position of its own is read from
        the beginning of the epoch, with the random numbers of then, and what was used is dropped.

        Raises:
            ValueError: the data is of another kind, or has fewer batches than were used.
        """
        if state["kind"] != self.kind:
            raise ValueError(
                f"the run read its data from {_KINDS.get(state['kind'], state['kind'])}, and this "
                f"one has {_KINDS[self.kind]}: the position in one says nothing of the other")
        self.epoch, self.used, self.total = state["epoch"], state["used"], state["total"]
        self._iterator = self._begin = None
        own = self._generators()
        if self.kind == "position":
            self._data.position = state["position"]
        elif self.kind == "state":
            self._data.load_state_dict(_unpacked(state["state"]))
        elif "begin" in state or self.kind == "iterator":
            if "begin" in state:
                randomness.restore(state["begin"], own)
            self._open()
            assert self._iterator is not None
            for done in range(self.used):
                if next(self._iterator, None) is None:
                    raise ValueError(f"the data has {done} batches in epoch {self.epoch}, of which "
                                     f"the run had used {self.used}: it is not the data of that run")
        randomness.restore(state["random"], own)


_KINDS = {
    "position": "a source with a position, such as a feed",
    "state": "a source with a state_dict",
    "iterator": "an iterator, which is read once",
    "function": "a function of the epoch",
    "iterable": "data that is read again for each epoch",
}


def _has_position(data: object) -> bool:
    position = getattr(data, "position", None)
    return isinstance(data, Iterable) and isinstance(position, int) and not isinstance(position, bool)


def _packed(state: Any) -> str:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _unpacked(text: str) -> Any:
    # Of a file that another one may have written, nothing is run.
    return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)


def call_with(function: Callable[..., Any], batch: Any) -> Any:
    """`function` of a batch: of a dict by name, of a tuple or list by position."""
    if isinstance(batch, Mapping):
        return function(**batch)
    if isinstance(batch, (tuple, list)):
        return function(*batch)
    return function(batch)
