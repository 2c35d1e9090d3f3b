# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The output of a model: its loss, its logits, and the rest, which a step does not return."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any, Callable, Iterator

import torch

from .conditions import Conditions, is_raised
from .errors import EagerError, TraceError, UnsupportedError


def loss_and_logits(output: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns the scalar loss and the logits in the output of a model, each None if absent."""
    with torch._C.DisableTorchFunction():
        return _found(output)


def _found(output: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if isinstance(output, torch.Tensor):
        return (output, None) if is_loss(output) else (None, output)
    if isinstance(output, Mapping):
        return output.get("loss"), output.get("logits")
    if isinstance(output, Sequence):
        tensors = [x for x in output if isinstance(x, torch.Tensor) and x.is_floating_point()]
        loss = next((x for x in tensors if is_loss(x)), None)
        logits = next((x for x in tensors if x.dim() > 0), None)
        return loss, logits
    return getattr(output, "loss", None), getattr(output, "logits", None)


def is_loss(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() == 0 and x.is_floating_point()


def refuse_object(output: Any) -> None:
    """Raises TraceError for an object with neither loss nor logits, which only `loss_fn` could
    read."""
    if not isinstance(output, (torch.Tensor, Mapping, Sequence)) \
            and loss_and_logits(output) == (None, None):
        raise TraceError(f"the model returns {type(output).__name__}, which holds neither a "
                         "loss nor logits; return a tensor, or a tuple or dict of them, or pass "
                         "loss_fn, called as loss_fn(output, *targets)")


def called(loss_fn: Callable[..., Any], output: Any, logits: torch.Tensor | None,
           targets: Sequence[torch.Tensor], conditions: Conditions) -> tuple[Any, Any]:
    """Calls `loss_fn` with the output of a model or, if it returns no loss of that, with the logits
    in it. Returns the loss, and what `loss_fn` was called with."""
    if logits is None or logits is output:
        return loss_fn(output, *targets), output
    decided = len(conditions.path)
    try:
        loss = loss_fn(output, *targets)
    except (EagerError, TraceError, UnsupportedError):
        raise
    except Exception as error:
        if len(conditions.path) > decided and is_raised(error):
            raise  # For the values that it has read, not for the type of its argument.
        loss = None
    if is_loss(loss):
        return loss, output
    return loss_fn(logits, *targets), logits


def dropped(output: Any, *taken: Any, by_loss_fn: bool = False) -> str:
    """Returns the text of a warning that names the parts of an output other than `taken` and None,
    which a step does not return; empty if there are none. `by_loss_fn` tells that `loss_fn` was
    called with what is taken."""
    if any(output is t for t in taken):
        return ""
    names = [name for name, part in parts_of(output).items()
             if any(not any(x is t for t in taken) for x in _leaves(part))]
    if not names:
        return ""
    also = ", and loss_fn, called with the logits, does not read" if by_loss_fn else ""
    return (f"the model also returns {', '.join(names)}, which a step does not return{also}: it "
            "has the loss, and `logits` the logits")


def parts_of(output: Any) -> dict[str, Any]:
    """Returns the parts of an output by name."""
    if isinstance(output, Mapping):
        return {f"'{k}'": v for k, v in output.items()}
    if isinstance(output, Sequence):
        names = getattr(output, "_fields", None)
        return {f"'{names[i]}'" if names else f"output {i}": v for i, v in enumerate(output)}
    names = [f.name for f in dataclasses.fields(output)] if dataclasses.is_dataclass(output) \
        else [*getattr(output, "__dict__", ()), *getattr(output, "__slots__", ())]
    return {f"'{name}'": getattr(output, name, None) for name in names}


def part_of(output: Any, name: str) -> Any:
    """Returns the part of an output by its name; None if it is not there."""
    if isinstance(output, Mapping):
        return output.get(name)
    return None if isinstance(output, torch.Tensor) else getattr(output, name, None)


def _leaves(part: Any) -> Iterator[Any]:
    """Yields what nested containers and dataclasses hold, other than None."""
    if isinstance(part, Mapping):
        inner = part.values()
    elif isinstance(part, (list, tuple, Set)):
        inner = part
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        inner = [getattr(part, f.name, None) for f in dataclasses.fields(part)]
    else:
        if part is not None:
            yield part
        return
    for value in inner:
        yield from _leaves(value)
