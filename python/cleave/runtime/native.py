# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The types of what the native modules give and take, for their stubs (`python/native/stubs.txt`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Protocol, Sequence, TypedDict, TypeVar, Union

import numpy
import numpy.typing

if TYPE_CHECKING:
    from .. import _cleave

#: The elements of a tensor.
Bytes = numpy.typing.NDArray[numpy.uint8]


class _Always(TypedDict):
    name: str
    role: str
    dtype: str
    shape: list[int]
    framework_shape: list[int]
    aliases: list[str]
    frozen: bool
    of: str
    slot: str


class TensorFacts(_Always, total=False):
    """A tensor of a program, as `Session.tensors` describes it."""

    ignore_index: int
    bound: int


class Sent(TypedDict):
    """The data of one kind that a rank has sent, as `Session.communication` describes it."""

    kind: str
    axes: str
    count: int
    exchanges: int
    elements: int
    bytes: int
    ms: float


N = TypeVar("N")
#: The result of a call of an entry: outputs by name, the number of the step, seconds, the number of
#: repeated updates, why the step was skipped, and the caller's note.
Result = tuple[dict[str, Bytes], int, float, int, str, N]
#: The note of a step: the learning rate, the elements of the first input, the scale of the loss.
Note = tuple[float, int, Optional[float]]
#: (scale, growth, hysteresis) of the scale of a loss.
Scale = tuple[float, int, int]
#: (seed, step, data position, skipped steps) of a run.
Counts = tuple[int, int, int, int]

S = TypeVar("S", bound="Session")


class Session(Protocol):
    """A running program, of the compiler's module or of the runtime's."""

    @property
    def seed(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def loss_scale(self) -> Scale | None: ...
    @property
    def last(self) -> Result[Note] | None: ...
    @property
    def lacks_room(self) -> bool: ...
    data_position: int

    def tensors(self) -> list[TensorFacts]: ...
    def entries(self) -> list[str]: ...
    def close(self) -> None: ...
    def read(self, name: str) -> Bytes: ...
    def run(self, entry: str, seed: int, number: int) -> str: ...
    def call(self, entry: str, inputs: list[tuple[str, Bytes]], scalars: dict[str, float],
             outputs: Sequence[str], note: N) -> Union[str, Result[N]]: ...
    def restore(self, tensors: list[tuple[str, Bytes]], position: Counts | None = None,
                loss_scale: Scale | None = None) -> str: ...
    def follow(self: S, other: S) -> None: ...
    def take_state(self: S, other: S) -> list[str]: ...
    def updates_per_step(self) -> int: ...
    def updated_again(self) -> int: ...
    def load_weights(self, path: str) -> None: ...
    def check_finite(self) -> str: ...
    def save_checkpoint(self, folder: str, non_finite: bool = False, kept: str = "") -> str: ...
    def load_checkpoint(self, folder: str) -> tuple[str, list[str], str]: ...
    def communication(self) -> list[Sent]: ...
    def timings(self) -> dict[str, float]: ...


class Runs(Protocol):
    """A program that can be run: the compiler's `Compiled`, or a file."""

    def session(self, *, timing: bool, processes: _cleave.Processes | None, like: Any) -> Session: ...
