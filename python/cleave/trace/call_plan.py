# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Decides how example inputs are passed to the model and the loss function."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable, Mapping, Sequence

import torch

from ..runtime.state import not_dense
from .errors import TraceError


@dataclasses.dataclass
class Call:
    """How the example inputs are passed to the model and the loss function."""

    #: Name and tensor of every input, in the order of a step's arguments.
    inputs: dict[str, torch.Tensor]
    #: Names of the inputs that the model takes by position, those that it takes by keyword (from
    #: argument to input), and those that the loss function takes.
    positional: list[str]
    keyword: dict[str, str]
    targets: list[str]

    @property
    def samples(self) -> int:
        """The size of dimension 0 of the first input with dimensions; 1 if there is none."""
        return next((x.shape[0] for x in self.inputs.values() if x.dim()), 1)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PASS_LOSS = ("pass loss_fn, called as loss_fn(output, *targets), if the model returns no loss "
              "of its own")


def plan_call(module: torch.nn.Module, example_inputs: Any,
              loss_fn: Callable[..., Any] | None) -> Call:
    """Decides which inputs go to the model and which to the loss; see `cleave.trace.trace`. Raises
    TraceError if they fit neither."""
    if loss_fn is not None and not callable(loss_fn):
        raise TraceError(f"loss_fn is {type(loss_fn).__name__}, not a function")
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    forward = _parameters_of(module.forward)
    names = _positional_names(module.forward)
    if isinstance(example_inputs, Mapping):
        inputs = dict(example_inputs)
        if loss_fn is None:
            targets = []
            _check_taken(forward, list(inputs), True)
        else:
            targets = _named_targets(forward, list(inputs), loss_fn)
        return Call(_tensors(inputs), [], {n: n for n in inputs if n not in targets}, targets)
    if not isinstance(example_inputs, Sequence) or isinstance(example_inputs, str):
        raise TraceError(f"example_inputs is {type(example_inputs).__name__}, not a tuple of "
                         "tensors or a dict by name")
    example_inputs = tuple(example_inputs)
    if not example_inputs:
        raise TraceError("example_inputs is empty; give one example of each tensor that a "
                         "step takes, as a tuple or a dict by name")
    if len(example_inputs) == 2 and all(isinstance(x, (tuple, list)) for x in example_inputs):
        count = len(example_inputs[0])
        if loss_fn is None and example_inputs[1]:
            raise TraceError(f"example_inputs has targets, which no loss_fn takes; {_PASS_LOSS}")
        example_inputs = tuple(example_inputs[0]) + tuple(example_inputs[1])
    elif loss_fn is not None:
        count = len(example_inputs) - _target_count(loss_fn)
        if count < 1:
            raise TraceError(f"loss_fn takes {_target_count(loss_fn)} targets and "
                             f"example_inputs holds {len(example_inputs)} tensors; none is "
                             "left for the model")
    else:
        count = len(example_inputs)
    given = list(example_inputs[:count])
    order = [names[i] if i < len(names) else f"input{i}" for i in range(count)]
    if loss_fn is None:
        _check_taken(forward, order, False)
    inputs = dict(zip(order, given))
    targets = []
    for i, tensor in enumerate(example_inputs[count:]):
        name = _target_name(loss_fn, i, inputs)
        inputs[name] = tensor
        targets.append(name)
    return Call(_tensors(inputs), order, {}, targets)


def position_note(module: torch.nn.Module, call: Call) -> str:
    """Returns the end of an error message that names the parameters to which the inputs are passed
    by position, if forward has other parameters too; else an empty string."""
    others = [n for n in _positional_names(module.forward) if n not in call.positional]
    if len(call.positional) < 2 or not others:
        return ""
    return (f"; the inputs are passed by position, as {', '.join(call.positional)}: pass a dict to "
            "give them by name")


def samples_note(inputs: Mapping[str, torch.Tensor]) -> str:
    """Returns the end of an error message that names inputs whose first dimensions differ; empty
    if there are none."""
    first: dict[int, str] = {}
    for name, tensor in inputs.items():
        if tensor.dim():
            first.setdefault(tensor.shape[0], name)
    if len(first) < 2:
        return ""
    return ("; the first dimensions of the inputs differ: "
            + ", ".join(f"'{name}' has {size}" for size, name in first.items()))


def _named_targets(forward: Mapping[str, inspect.Parameter], given: Sequence[str],
                   loss_fn: Callable[..., Any]) -> list[str]:
    """Returns which inputs of a dict are the targets of `loss_fn`, in its order: those that forward
    does not take, or else those that the loss function names. Raises TraceError if this is
    ambiguous."""
    named = [n for n in _positional_names(_function_of(loss_fn))[1:] if n in given]
    if forward and all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in forward.values()):
        targets = [n for n in given if n not in forward]
    else:
        targets = [n for n in named if n not in forward]
    if targets:
        return [n for n in named if n in targets] + [n for n in targets if n not in named]
    if _target_count(loss_fn) == 0 or len(named) == 1:
        return named
    if named:
        raise TraceError(f"inputs {', '.join(named)} are arguments of the model's forward and of "
                         "loss_fn; let the model return what the loss requires along with its "
                         "output, and take one target")
    taken = ", ".join(_positional_names(_function_of(loss_fn))[1:]) or "its targets"
    raise TraceError(f"no input is a target: the model's forward takes {', '.join(given)}, and "
                     f"loss_fn takes {taken}; name the target after this argument")


def _parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def _positional_names(function: Callable[..., Any]) -> list[str]:
    return [n for n, p in _parameters_of(function).items() if p.kind in _BY_POSITION]


def _check_taken(forward: Mapping[str, inspect.Parameter], given: Sequence[str],
                 by_name: bool) -> None:
    """Raises TraceError for inputs that forward does not take, if there is no loss_fn."""
    kinds = {p.kind for p in forward.values()}
    rest = inspect.Parameter.VAR_KEYWORD if by_name else inspect.Parameter.VAR_POSITIONAL
    names = [n for n, p in forward.items()
             if p.kind in _BY_POSITION or (by_name and p.kind is inspect.Parameter.KEYWORD_ONLY)]
    if not forward or rest in kinds:
        return
    if by_name:
        unknown = [n for n in given if n not in names]
    else:
        unknown = given[len(names):]
    if unknown:
        takes = f"{len(names)} input{'s' if len(names) != 1 else ''} ({', '.join(names)})"
        what = f"not {', '.join(unknown)}" if by_name else f"and {len(given)} are given"
        raise TraceError(f"the model's forward takes {takes}, {what}; {_PASS_LOSS}")


def _function_of(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    return loss_fn.forward if isinstance(loss_fn, torch.nn.Module) else loss_fn


def _target_count(loss_fn: Callable[..., Any]) -> int:
    """Returns the number of targets that `loss_fn` requires after the output."""
    taken = [p for p in _parameters_of(_function_of(loss_fn)).values() if p.kind in _BY_POSITION]
    required = [p for p in taken if p.default is inspect.Parameter.empty]
    return 0 if len(taken) == len(required) == 1 else max(len(required) - 1, 1)


def _target_name(loss_fn, index: int, taken: Mapping[str, Any]) -> str:
    names = _positional_names(_function_of(loss_fn))[1:]
    name = names[index] if index < len(names) else f"target{index}"
    while name in taken:
        name += "_"
    return name


def _tensors(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            raise TraceError(f"input '{name}' is {type(value).__name__}, not a tensor; bind "
                             "other arguments beforehand, for example by a wrapping module")
        if kind := not_dense(value):
            raise TraceError(f"input '{name}' {kind}")
    return dict(inputs)
