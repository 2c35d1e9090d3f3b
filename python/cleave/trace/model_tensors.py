# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The parameters and buffers of a model."""

from __future__ import annotations

import dataclasses

import torch

from .errors import TraceError
from .experts import expert_stacks
from .ir import Function
from .repeat import Repeated


@dataclasses.dataclass
class Tensor:
    """A parameter or buffer of the model, which a program keeps between steps."""

    #: The name in PyTorch's state_dict (or of the attribute, if not persistent).
    name: str
    #: "parameter" or "buffer".
    role: str
    #: Further names of the same tensor.
    aliases: tuple[str, ...]
    #: True for a parameter that is not trained.
    frozen: bool
    #: Whether the state_dict contains it.
    persistent: bool
    #: The PyTorch tensor, possibly on the meta device.
    tensor: torch.Tensor
    #: Names of the PyTorch tensors that are stacked along dimension 0 to this tensor; `name` is
    #: then not a name in the module.
    parts: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype


class ModelTensors:
    """The parameters and buffers of a module; tied tensors, which are one object, have one
    entry."""

    def __init__(self, module: torch.nn.Module):
        self.by_name: dict[str, Tensor] = {}
        #: The stack that a parameter is part of, and its index in it.
        self.part_of: dict[str, tuple[Tensor, int]] = {}
        #: Names of the buffers that a step writes.
        self.written: set[str] = set()
        self._order: list[Tensor] = []
        self._constants = 0
        by_identity: dict[int, Tensor] = {}
        state = set(module.state_dict(keep_vars=True))
        groups = (("parameter", module.named_parameters(remove_duplicate=False)),
                  ("buffer", module.named_buffers(remove_duplicate=False)))
        for role, named in groups:
            for name, tensor in named:
                entry = by_identity.get(id(tensor))
                if entry is None:
                    frozen = role == "parameter" and not tensor.requires_grad
                    entry = Tensor(name, role, (), frozen, name in state, tensor.detach())
                    by_identity[id(tensor)] = entry
                    self._order.append(entry)
                else:
                    entry.aliases += (name,)
                self.by_name[name] = entry

        self.stack(expert_stacks(module))

    def stack(self, groups: dict[str, list[str]]) -> None:
        """Replaces the parameters of each group, one of each expert, by one stacked tensor,
        unless they are tied or differ in shape, type or `frozen`."""
        for name, parts in groups.items():
            entries = [self.by_name[p] for p in parts]
            first = entries[0]
            if len({id(e) for e in entries}) < len(entries) or any(
                    e.aliases or (e.shape, e.dtype, e.frozen)
                    != (first.shape, first.dtype, first.frozen) for e in entries):
                continue
            whole = dataclasses.replace(first, name=name, parts=tuple(parts),
                                        tensor=torch.stack([e.tensor for e in entries]))
            self._order[self._order.index(first)] = whole
            self._order = [e for e in self._order if all(e is not other for other in entries)]
            for i, part in enumerate(parts):
                self.part_of[part] = (whole, i)

    def all(self) -> list[Tensor]:
        """Returns all tensors, in PyTorch's order."""
        return self._order

    def mark_written(self, program: torch.export.ExportedProgram) -> None:
        """Sets `written` from the exported loss; the values of these buffers are not known."""
        self.written = {self.by_name[module_name(n)].name
                        for n in program.graph_signature.buffers_to_mutate.values()}

    def unreached(self, reached: set[str]) -> set[str]:
        """Returns the names of parameters none of whose names or parts are in `reached`."""
        return {e.name for e in self._order if e.role == "parameter"
                and reached.isdisjoint((e.name, *e.aliases, *e.parts))}

    def add_constant(self, tensor: torch.Tensor) -> Tensor:
        """Returns the buffer for a large tensor that the model's code creates."""
        for entry in self._order:
            if entry.name.startswith("constant.") and _same_content(entry.tensor, tensor):
                return entry
        entry = Tensor(f"constant.{self._constants}", "buffer", (), False, False, tensor)
        self._constants += 1
        self._order.append(entry)
        return entry


def _same_content(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and a.layout == b.layout
                      and not (a.is_meta or b.is_meta) and torch.equal(a.cpu(), b.cpu()))


def unread(tensors: list[Tensor], functions: list[Function]) -> list[str]:
    """Returns the names of the buffers that no function has as an argument."""
    read = {a.name for f in functions for a in f.arguments}
    return [name for entry in tensors if entry.role == "buffer" and entry.name not in read
            for name in (entry.name, *entry.aliases)]


def in_all_layers(tensors: list[Tensor], repeated: Repeated) -> list[Tensor]:
    """Returns the tensors of all layers, given those of the traced layers. Raises TraceError for
    tensors that a copy cannot have: tied and stacked ones, and those with values."""
    def copied(entry: Tensor, name: str) -> Tensor:
        if entry.aliases or entry.parts or not entry.tensor.is_meta:
            raise TraceError(f"'{entry.name}' is tied, or stacked, or not on the meta device; "
                             "trace all layers")
        return dataclasses.replace(entry, name=name)

    return repeated.expand(tensors, copied)


def module_name(target: str) -> str:
    """Returns the name in the module for a name in the exported step, which wraps the module."""
    return target.removeprefix("module.")
