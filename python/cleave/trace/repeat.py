# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Copies a layer of a traced function: `repeat`.

A model of many layers that are identical in structure is traced with a few of them. The other
layers are copies of the ops of one, with parameters of their own; the text is that of a trace of
all layers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch

from .errors import TraceError
from .ir import Argument, Function, Op, Origin, RandomId, Value

#: The number of traced layers. The first layer follows no other and the last precedes no other, so
#: that their ops may differ, and so may the input of the second layer. Of the next two layers,
#: which are compared, the latter is copied.
TRACED = 5
COPIED = TRACED - 2


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A list of `layers` layers of a model, of which `TRACED` are traced. The caller ensures that
    all are identical in structure. Names of their tensors are `<name>.<number>.<...>`."""

    name: str
    layers: int

    def __post_init__(self) -> None:
        if self.layers < TRACED:
            raise ValueError(f"layers is {self.layers}, but must be at least {TRACED}")

    def layer_of(self, tensor: str) -> int | None:
        """Returns the number of the layer that has a tensor of this name, or None."""
        if not tensor.startswith(self.name + "."):
            return None
        number, dot, _ = tensor[len(self.name) + 1:].partition(".")
        return int(number) if dot and number.isdecimal() else None

    def renamed(self, tensor: str, layer: int) -> str:
        """Returns the name that a layer's tensor has in another layer."""
        return f"{self.name}.{layer}.{tensor[len(self.name) + 1:].partition('.')[2]}"

    def expand(self, entries: list[Any], copy: Callable[[Any, str], Any]) -> list[Any]:
        """Returns the entries (arguments or tensors) of all layers, given those of the traced
        layers. Each entry of the last layer becomes `copy(entry, name)`; before the first of each
        role, copies for the layers in between are inserted."""
        expanded: list[Any] = []
        roles = set()
        for entry in entries:
            if self.layer_of(entry.name) != TRACED - 1:
                expanded.append(entry)
                continue
            if entry.role not in roles:
                roles.add(entry.role)
                copied = [e for e in entries
                          if e.role == entry.role and self.layer_of(e.name) == COPIED]
                expanded += [copy(e, self.renamed(e.name, layer))
                             for layer in range(COPIED + 1, self.layers - 1) for e in copied]
            expanded.append(copy(entry, self.renamed(entry.name, self.layers - 1)))
        return expanded


def repeat(function: Function, repeated: Repeated) -> Function:
    """Returns the function with all layers, given the function with `TRACED` layers, whose ops it
    reuses. Raises TraceError if layers are not identical in structure."""
    layers = _Layers(function, repeated)
    layers.check()
    return layers.expanded()


class _Layers:
    """The layers of a function. `template` holds the ops of the copied layer, `before` those of the
    layer before it, and `later` those of the last layer and of what follows. A layer begins with
    the first op that reads one of its tensors."""

    def __init__(self, function: Function, repeated: Repeated):
        self.function, self.repeated = function, repeated
        self.name = {id(a.value): a.name for a in function.arguments}
        #: The layers of parameters and buffers.
        self.layer = {id(a.value): layer for a in function.arguments
                      if (layer := repeated.layer_of(a.name)) is not None}
        self.at = {id(op): i for i, op in enumerate(function.ops)}
        begin: dict[int, int] = {}
        for i, op in enumerate(function.ops):
            for value in op.inputs():
                if id(value) in self.layer:
                    begin.setdefault(self.layer[id(value)], i)
        if begin.keys() != set(range(TRACED)):
            raise TraceError(f"@{function.name} has {len(begin)} layers of '{repeated.name}'; "
                             f"{TRACED} of them must be traced")
        self.begin, self.end = begin[COPIED], begin[COPIED + 1]
        self.period = self.end - self.begin
        if self.begin - begin[COPIED - 1] != self.period or self.period <= 0:
            raise self._unlike("they have different numbers of ops")
        self.before = function.ops[self.begin - self.period:self.begin]
        self.template = function.ops[self.begin:self.end]
        self.later = function.ops[self.end:]
        #: The number of random ops of a layer.
        self.random = sum(isinstance(value, RandomId) for op in self.template
                          for value in op.attrs.values())

    def _unlike(self, why: str) -> TraceError:
        return TraceError(f"layers {COPIED - 1} and {COPIED} of '{self.repeated.name}' are not "
                          f"identical in structure: {why}; trace all layers")

    def check(self) -> None:
        """Raises TraceError unless the two layers are identical in structure, and later ops read no
        layer but the first, the copied and the last."""
        for a, b in zip(self.before, self.template):
            if a.name != b.name:
                raise self._unlike(f"one has {_place(a)}, the other {_place(b)}")
            if not self._same_form(a, b):
                raise self._unlike(f"{_place(b)} has different types or attributes")
            if not all(map(self._same_operand, a.inputs(), b.inputs())):
                raise self._unlike(f"{_place(b)} reads different values")
        for op in self.later:
            for value in op.inputs():
                self._check_later(value, _place(op))
        for result in self.function.results:
            self._check_later(result.value, f"result '{result.name}'")
        for check in self.function.checks:
            self._check_later(check.value, "a check")
            if self.at.get(id(check.value.op), -1) >= self.begin - self.period:
                raise TraceError(f"a check ({check.message}) follows a layer of "
                                 f"'{self.repeated.name}'; trace all layers")
        ids = [value for op in self.function.ops for value in op.attrs.values()
               if isinstance(value, RandomId)]
        if ids != sorted(ids):
            raise TraceError(f"random ops of @{self.function.name} are not numbered in their "
                             "order; trace all layers")

    def _same_form(self, a: Op, b: Op) -> bool:
        """Returns whether two ops of one name differ only in their operands."""
        return a.head == b.head and list(a.keywords) == list(b.keywords) \
            and [v.type for v in a.inputs()] == [v.type for v in b.inputs()] \
            and [v.type for v in a.results] == [v.type for v in b.results] \
            and a.attrs.keys() == b.attrs.keys() \
            and all(_same(value, b.attrs[key], self.random) for key, value in a.attrs.items())

    def _same_operand(self, a: Value, b: Value) -> bool:
        """Returns whether `b` in the copied layer corresponds to `a` in the layer before it: a
        tensor of the layer, a result of the layer or of its predecessor, or a value that all layers
        read."""
        layer = self.layer.get(id(b))
        if layer is not None:
            return layer == COPIED and self.layer.get(id(a)) == COPIED - 1 \
                and self.repeated.renamed(self.name[id(a)], COPIED) == self.name[id(b)]
        if b.op is None or self.at[id(b.op)] < self.begin - self.period:
            return a is b
        return a.op is not None and a.index == b.index \
            and self.at[id(a.op)] == self.at[id(b.op)] - self.period

    def _check_later(self, value: Value, reader: str) -> None:
        layer = self.layer.get(id(value))
        if value.op is not None and self.begin - self.period <= self.at[id(value.op)] < self.begin:
            layer = COPIED - 1
        if layer not in (None, 0, TRACED - 1):
            raise TraceError(f"{reader} follows layer {COPIED} of '{self.repeated.name}' and reads "
                             f"layer {layer}, so it may read others; trace all layers")

    def expanded(self) -> Function:
        """Returns the function of all layers."""
        arguments = self.repeated.expand(self.function.arguments, _copied_argument)
        by_name = {a.name: a.value for a in arguments}
        follower = {id(u): id(v) for a, b in zip(self.before, self.template)
                    for u, v in zip(a.results, b.results)}
        #: Maps the results of the template to those of its latest copy.
        latest = {id(v): v for op in self.template for v in op.results}
        ops: list[Op] = []
        added = self.repeated.layers - TRACED
        #: Checkpoint regions of copies have numbers above those of the trace.
        regions = 1 + max((op.origin.checkpoint or 0 for op in self.function.ops), default=0)
        for i in range(1, added + 1):
            own: dict[int, Value] = {}

            def copied(value: Value, i=i, own=own, previous=latest) -> Value:
                if id(value) in self.layer:
                    return by_name[self.repeated.renamed(self.name[id(value)], COPIED + i)]
                if id(value) in follower:
                    return previous[follower[id(value)]]
                return own.get(id(value), value)

            for op in self.template:
                region = op.origin.checkpoint
                origin = dataclasses.replace(
                    op.origin, checkpoint=None if region is None else region + i * regions)
                ops.append(_copied_op(op, copied, i * self.random, origin))
                own.update((id(v), w) for v, w in zip(op.results, ops[-1].results))
            latest = own

        last = {id(a.value): by_name[self.repeated.renamed(a.name, self.repeated.layers - 1)]
                for a in self.function.arguments if self.layer.get(id(a.value)) == TRACED - 1}
        moved = {**latest, **last}
        for op in self.later:
            op.operands = [moved.get(id(v), v) for v in op.operands]
            op.keywords = {k: moved.get(id(v), v) for k, v in op.keywords.items()}
            op.attrs = _shifted(op.attrs, added * self.random)
        return dataclasses.replace(
            self.function, arguments=arguments, ops=self.function.ops[:self.end] + ops + self.later,
            results=[dataclasses.replace(r, value=moved.get(id(r.value), r.value))
                     for r in self.function.results])


def _place(op: Op) -> str:
    """Returns an op's name and line, for messages."""
    return f"graph.{op.name}" + (f" ({op.location[0]}:{op.location[1]})" if op.location else "")


def _same(a: Any, b: Any, random: int) -> bool:
    """Returns whether attribute `a` of a layer with `random` random ops corresponds to `b` of the
    next layer."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and (a + random if isinstance(a, RandomId) else a) == b


def _shifted(attrs: dict[str, Any], by: int) -> dict[str, Any]:
    return {k: RandomId(v + by) if isinstance(v, RandomId) else v for k, v in attrs.items()}


def _copied_op(op: Op, value_of: Callable[[Value], Value], ids: int, origin: Origin) -> Op:
    return Op(op.name, map(value_of, op.operands),
              {k: value_of(v) for k, v in op.keywords.items()}, op.head,
              _shifted(op.attrs, ids), [v.type for v in op.results], op.location, origin)


def _copied_argument(argument: Argument, name: str) -> Argument:
    if argument.aliases or argument.content is not None:
        raise TraceError(f"'{argument.name}' is tied or has known values; trace all layers")
    value = argument.value
    return dataclasses.replace(argument, name=name, value=Value(value.type, trained=value.trained))
