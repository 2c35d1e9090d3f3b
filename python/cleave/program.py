# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A program compiled for one shape of batch."""

from __future__ import annotations

import torch

from .results import StepError
from .state import TORCH_TYPES


class Program:
    """One compiled shape: the artifact, and its session while it is live.

    Attributes:
        traced: the model it was traced from.
        compiled: the compiler's result.
        remarks: lines to explain it with.
    """

    def __init__(self, traced, compiled, remarks):
        self.traced = traced
        self.compiled = compiled
        self.remarks = remarks
        self.session = None

    def open(self):
        """Maps the arena, and finds the tensors by name."""
        if self.session is None:
            self.session = self.compiled.session(timing=True)
            self.tensors = {t["name"]: t for t in self.session.tensors()}
            self.inputs = [
                t for t in self.session.tensors() if t["role"] == "input"
            ]
        return self

    @property
    def updates_per_step(self):
        """How often one step updates a parameter; with "pipedream", for each
        micro-batch."""
        return self.session.updates_per_step()

    @property
    def updated_again(self):
        """Updates that the last step found wrong and made again."""
        return self.session.updated_again()

    def close(self):
        """Unmaps the arena."""
        self.session = None

    def tensor(self, name):
        """A copy of the whole tensor, of its logical shape."""
        facts = self.tensors[name]
        flat = torch.from_numpy(self.session.read(name))
        return flat.view(TORCH_TYPES[facts["dtype"]]).view(facts["shape"])

    def set(self, name, value):
        """Replaces the whole tensor by `value`, of as many elements.

        Raises:
            StepError: an input has a token id out of range.
        """
        facts = self.tensors[name]
        value = torch.as_tensor(value).detach()
        whole = value.to("cpu", TORCH_TYPES[facts["dtype"]]).contiguous()
        flat = whole.reshape(facts["shape"]).reshape(-1).view(torch.uint8)
        error = self.session.write(name, flat.numpy())
        if error:
            raise StepError(error)
