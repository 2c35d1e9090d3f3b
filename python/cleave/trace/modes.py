# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The model in evaluation mode: its logits, and its loss where it differs from that of training by
more than randomness."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Iterable

import torch

from .asked_modes import AskedModes, may_be_alike
from .call_plan import Call
from .converters.batch_norm import Groups
from .errors import StateError, TraceError, UnsupportedError
from .export import Begun, Exported, begin
from .ir import Function, Value


@dataclasses.dataclass
class Evaluated:
    """The exported program of a model in evaluation mode."""

    #: Its outputs are those of "loss" and "logits" that the model has; None if it has neither.
    exported: Exported | None
    #: Why there is no loss; empty if there is one.
    reason: str = ""
    #: Why there are no logits; empty if there are, or if the model returns none.
    no_logits: str = ""

    @property
    def outputs(self) -> list[str]:
        return self.exported.outputs if self.exported else []


def begin_training(module: torch.nn.Module, call: Call, loss_fn: Callable[..., Any] | None,
                   logits: bool, groups: Groups) -> Begun:
    """Exports the step of training, of a model that may compute the same in evaluation mode with the
    outputs that are wanted then."""
    if not (groups.balance or groups.choices or groups.metrics) and may_be_alike(module, loss_fn):
        asked = AskedModes(ends=logits)
        try:
            return begin(module, call, loss_fn, _outputs(logits), True, groups, asked)
        except TraceError:
            # The loss may be traced alone.
            if not logits or not (asked.differs or asked.more):
                raise
    return begin(module, call, loss_fn, ("loss",), True, groups)


def _outputs(logits: bool) -> tuple[str, ...]:
    return ("loss", "logits") if logits else ("loss",)


def in_both_modes(begun: Begun, loss_fn: Callable[..., Any] | None, logits: bool
                  ) -> tuple[Exported, Callable[[], Evaluated]]:
    """Returns the step of training, which has begun to be exported, and a function that returns the
    model in evaluation mode. It is exported in both modes unless these are known to be the same. If
    both have the same operators, these are decomposed once."""
    module, call, groups = begun.step.module, begun.step.call_plan, begun.groups
    if begun.is_of_both_modes:
        with contextlib.suppress(TraceError):
            both = begun.finished()
            return both, lambda: Evaluated(both)
    other = None
    # Its errors are said after those of training.
    with contextlib.suppress(Exception):
        other = begin(module, call, loss_fn, _outputs(logits), False, groups)
    # A metric may be a value that both compute, and is a result of training alone.
    if other is not None and not groups.metrics and begun.computes_as(other):
        with contextlib.suppress(TraceError):
            both = other.finished()
            return begun.finished(both), lambda: Evaluated(both)
    if "logits" in begun.step.found.names:
        # Training does not compute the logits.
        begun = begin(module, call, loss_fn, ("loss",), True, groups)
    return begun.finished(), lambda: evaluated(module, call, loss_fn, logits, groups, other)


def evaluated(module: torch.nn.Module, call: Call, loss_fn: Callable[..., Any] | None,
              logits: bool, groups: Groups, begun: Begun | None = None) -> Evaluated:
    """Exports the model in evaluation mode. If its loss cannot be traced then, it may still have
    logits, and the other way round. `begun` is the first of what is tried, if that has begun.
    Raises StateError if it depends on state that an earlier forward computed."""
    reason = ""
    for want in (("loss", "logits"), ("loss",), ("logits",)) if logits else (("loss",),):
        try:
            found = (begun or begin(module, call, loss_fn, want, False, groups)).finished()
            return Evaluated(found if found.outputs else None, reason if "loss" not in want else "",
                             reason if "logits" not in want else "")
        except StateError:
            raise
        except TraceError as error:
            reason, begun = reason or str(error), None
    return Evaluated(None, reason, reason if logits else "")


def evaluation_entry(convert: Callable[[], Function], evaluation: Evaluated,
                     compared: Callable[[], Function] | None) -> tuple[Function | None, str]:
    """Returns the entry `@evaluate` that `convert` makes of the program in evaluation mode, or
    None if the one that the compiler derives from the loss is the same; and why there is none,
    "" if there is one. `compared` makes the loss of training without random numbers; None if it
    differs in any case."""
    reason = evaluation.reason
    if not reason:
        try:
            function = convert()
            if compared is not None and _computes_the_same(function, compared()):
                return None, ""
            return function, ""
        except (TraceError, UnsupportedError) as error:
            reason = str(error)
    return None, reason


def same_without_random(program: torch.export.ExportedProgram) -> bool:
    """Returns whether a program computes the same without random numbers, as it draws none."""
    return not any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
                   and not (node.target is torch.ops.aten.dropout.default and node.args[1] == 0)
                   for node in program.graph.nodes)


def _computes_the_same(*functions: Function) -> bool:
    """Returns whether the first results and the checks of two functions are the same expressions of
    arguments."""
    known: dict[Any, int] = {}
    return len({_expression(function, known) for function in functions}) == 1


def _expression(function: Function, known: dict[Any, int]) -> int:
    """Returns the number of the expression that the first result of `function` is; equal
    expressions have the same number in `known`."""
    numbers: dict[int, Any] = {}

    def numbered(key: Any) -> int:
        return known.setdefault(key, len(known))

    def of(values: Iterable[Value]) -> tuple[Any, ...]:
        return tuple((numbers[id(v.op)], v.index) if v.op is not None else numbers[id(v)]
                     for v in values)

    for a in function.arguments:
        numbers[id(a.value)] = numbered((a.role, a.name, a.value.type))
    for op in function.ops:
        attrs = tuple((k, _attribute(v)) for k, v in sorted(op.attrs.items()))
        types = tuple(r.type for r in op.results)
        numbers[id(op)] = numbered((op.name, op.head, attrs, op.origin.precision, types,
                                    of(op.operands), tuple(op.keywords), of(op.keywords.values())))
    checks = tuple((c.message, of([c.value])) for c in function.checks)
    return numbered(("result", of([function.results[0].value]), checks))


def _attribute(value: Any) -> Any:
    """Returns an attribute as a value that can be compared by its bits."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1)
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
    return type(value).__name__, repr(value)
