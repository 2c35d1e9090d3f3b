# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A program compiled for one shape of batch."""

from __future__ import annotations

import torch

from .forks import freeing, keep_in_child
from .results import StepError
from .state import TORCH_TYPES


class Program:
    """One compiled shape: the artifact, and its session while it is open.

    Attributes:
        traced: the model it was traced from.
        compiled: the compiler's result.
        remarks: lines to explain it with.
        processes: the processes that are its ranks; None for threads of this one.
    """

    def __init__(self, traced, compiled, remarks, processes=None):
        self.traced = traced
        self.compiled = compiled
        self.remarks = remarks
        self.processes = processes
        self.session = None
        keep_in_child(self)

    def __del__(self):
        with freeing():
            self.session = self.compiled = None

    def open(self):
        """Maps the arena, and finds the tensors by name."""
        if self.session is None:
            session = self.compiled.session(timing=True, processes=self.processes)
            self.tensors = {t["name"]: t for t in session.tensors()}
            self.inputs = [t for t in session.tensors() if t["role"] == "input"]
            # Set last: a session that is interrupted before counts as closed.
            self.session = session
        return self

    @property
    def updates_per_step(self):
        """The number of updates of a parameter in one step; with "pipedream", one for
        each micro-batch."""
        return self.session.updates_per_step()

    @property
    def updated_again(self):
        """The number of updates that the last step found wrong and repeated."""
        return self.session.updated_again()

    def close(self):
        """Unmaps the arena."""
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def tensor(self, name):
        """A copy of the global tensor, of its logical shape."""
        return self.typed(name, self.session.read(name))

    def typed(self, name, data):
        """The bytes of a tensor as a tensor of its type and shape."""
        facts = self.tensors[name]
        flat = torch.from_numpy(data)
        return flat.view(TORCH_TYPES[facts["dtype"]]).view(facts["shape"])

    def data(self, name, value):
        """`value` as the bytes of a global tensor, and its name."""
        facts = self.tensors[name]
        value = torch.as_tensor(value).detach().resolve_neg()
        whole = value.to("cpu", TORCH_TYPES[facts["dtype"]]).contiguous()
        return name, whole.reshape(facts["shape"]).reshape(-1).view(torch.uint8).numpy()

    def set(self, name, value):
        """Replaces the global tensor by `value`, which has as many elements.

        Raises:
            StepError: an input has an index out of range.
        """
        self.set_all({name: value})

    def set_all(self, values, position=None, loss_scale=None):
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
