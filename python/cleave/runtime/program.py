# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A program compiled for one shape of batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Mapping, Sequence, TypeVar

import torch

from .forks import freeing, keep_in_child
from .native import Bytes, Counts, Runs, Scale, Session, TensorFacts
from .results import StepError
from .state import TORCH_TYPES

if TYPE_CHECKING:
    from .. import _cleave
    from ..trace.model import TracedModel

C = TypeVar("C", bound=Runs)
Self = TypeVar("Self", bound="Program[Any]")


class Program(Generic[C]):
    """One compiled shape: the artifact, and its session while it is open.

    Attributes:
        remarks: lines to explain it with.
        processes: the processes that are its ranks; None for threads of this one.
    """

    def __init__(self, traced: TracedModel | None, compiled: C, remarks: Sequence[str],
                 processes: _cleave.Processes | None = None) -> None:
        self._traced = traced
        self._compiled: C | None = compiled
        self.remarks = remarks
        self.processes = processes
        self._session: Session | None = None
        keep_in_child(self)

    def __del__(self) -> None:
        with freeing():
            self._session = self._compiled = None

    @property
    def traced(self) -> TracedModel:
        """The model it was traced from."""
        if self._traced is None:
            raise RuntimeError("the program is not of a traced model")
        return self._traced

    @property
    def compiled(self) -> C:
        """The compiler's result."""
        if self._compiled is None:
            raise RuntimeError("the program is freed")
        return self._compiled

    @property
    def session(self) -> Session:
        """The running program, while it is open."""
        if self._session is None:
            raise RuntimeError("the program is not open")
        return self._session

    def natives(self) -> tuple[object, object]:
        """The native objects that it holds, or None."""
        return self._compiled, self._session

    def open(self: Self, like: Session | None = None) -> Self:
        """Maps the arena, and finds the tensors by name. Contractions that the program has in
        common with that of `like` are computed, and so rounded, as there."""
        if self._session is None:
            session = self.compiled.session(timing=True, processes=self.processes, like=like)
            self.tensors: dict[str, TensorFacts] = {t["name"]: t for t in session.tensors()}
            self.inputs = [t for t in session.tensors() if t["role"] == "input"]
            # Set last: a session that is interrupted before counts as closed.
            self._session = session
        return self

    @property
    def updates_per_step(self) -> int:
        """The number of updates of a parameter in one step; with "pipedream", one for
        each micro-batch."""
        return self.session.updates_per_step()

    @property
    def updated_again(self) -> int:
        """The number of updates that the last step found wrong and repeated."""
        return self.session.updated_again()

    def close(self) -> None:
        """Unmaps the arena."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def tensor(self, name: str) -> torch.Tensor:
        """A copy of the global tensor, of its logical shape."""
        return self.typed(name, self.session.read(name))

    def typed(self, name: str, data: Bytes) -> torch.Tensor:
        """The bytes of a tensor as a tensor of its type and shape."""
        facts = self.tensors[name]
        flat = torch.from_numpy(data)
        return flat.view(TORCH_TYPES[facts["dtype"]]).view(facts["shape"])

    def data(self, name: str, value: Any) -> tuple[str, Bytes]:
        """`value` as the bytes of a global tensor, and its name."""
        facts = self.tensors[name]
        value = torch.as_tensor(value).detach().resolve_neg()
        whole = value.to("cpu", TORCH_TYPES[facts["dtype"]]).contiguous()
        return name, whole.reshape(facts["shape"]).reshape(-1).view(torch.uint8).numpy()

    def set(self, name: str, value: Any) -> None:
        """Replaces the global tensor by `value`, which has as many elements.

        Raises:
            StepError: an input has an index out of range.
        """
        self.set_all({name: value})

    def set_all(self, values: Mapping[str, Any], position: Counts | None = None,
                loss_scale: Scale | None = None) -> None:
        """Replaces all of the tensors named in `values`, or none of them; with
        `position`, also (seed, step, data position, skipped steps) of the run, and its
        loss scale, (scale, growth, hysteresis), without which it is the first one. No
        signal handler runs in between.

        Raises:
            StepError: an input has an index out of range.
        """
        error = self.session.restore(
            [self.data(name, value) for name, value in values.items()], position, loss_scale
        )
        if error:
            raise StepError(error)
