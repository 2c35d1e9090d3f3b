# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Tracks Python state that a forward changes: attributes of modules, lists, dictionaries, sets,
NumPy arrays and objects reachable from them, and closures.

Tracing restores all of this state. If a forward stores a tensor that the next one reads, a compiled
step computes it in every step. The result is the same if the tensor depends on no input, parameter
or random number, as a mask or a table of positions; other tensors are refused. Numbers, strings and
flags that the next forward changes again are refused too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from typing import Any, Callable, Iterator

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from .locations import current_line
from .memory import map_tensors

#: Attributes that torch gives every module; they are not state of the model.
_MODULE_ATTRIBUTES = frozenset(torch.nn.Module().__dict__) - {"training"}

_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "dropout", "uniform_", "exponential_")

_PLAIN = (bool, int, float, complex, str, bytes)
#: Modules of the standard library whose objects may hold state of a model.
_STATE_MODULES = {"builtins", "collections", "types"}


@dataclasses.dataclass
class StateChange:
    """The changes of a forward to one container: the changed values by key, and the known lines of
    the assignments."""

    #: Looks up the container, since torch.export replaces lists and dictionaries.
    find: Callable[[], Any]
    name: str
    after: Any
    values: dict[Any, Any]
    places: dict[Any, str]

    def tensors(self) -> list[FakeTensor]:
        """Returns the fake tensors among the changed values."""
        return [x for x in _leaves(self.values) if isinstance(x, FakeTensor)]

    def numbers(self) -> list[Any]:
        """Returns the keys of the changed values that contain numbers, strings or flags."""
        return [k for k, v in self.values.items()
                if any(not isinstance(x, FakeTensor) for x in _leaves(v))]

    def reapply(self, is_constant: Callable[[FakeTensor], bool]) -> None:
        """Applies the change to the container again; fake tensors that are constants become
        zeros."""
        _fill(self.find(), map_tensors(
            lambda x: torch.zeros(x.shape, dtype=x.dtype) if is_constant(x) else x, self.after,
            FakeTensor))

    def described(self) -> str:
        """Returns the line and the quoted name of the first number, string or flag."""
        key = self.numbers()[0]
        name = f"{self.name}.{key}".lstrip(".") if isinstance(key, str) else self.name
        return f"{self.places.get(key, '')}'{name}'"


class Constants:
    """The fake tensors that have the same elements in every forward, by their storage."""

    def __init__(self, tensors: dict[int, torch.Tensor]):
        # The tensors are held, so that their storages are not reused.
        self._known = dict(tensors)

    def __contains__(self, memory: int) -> bool:
        return memory in self._known

    def forget(self, memory: int) -> None:
        self._known.pop(memory, None)

    def note(self, function: Any, given: list[int], results: dict[int, torch.Tensor]) -> None:
        """Records `results` as constants if all operands, whose storages are `given`, are constants
        and the function is not random; else removes them."""
        name = getattr(function, "__name__", "")
        if all(m in self._known for m in given) and not any(r in name for r in _RANDOM):
            self._known.update(results)
        else:
            for memory in results:
                self.forget(memory)


@contextlib.contextmanager
def restored(module: torch.nn.Module, *others: Any) -> Iterator[list[StateChange]]:
    """Context manager that restores the Python state of `module` and `others`. It yields a list
    that, on exit, receives the changes that involve fake tensors, numbers, strings or flags."""
    before = [(name, found, _copied(found), find)
              for name, found, find in containers(module, others)]
    owners = {id(m.__dict__): m for m in module.modules()}
    places: dict[tuple[int, str], str] = {}
    assign = torch.nn.Module.__setattr__

    def noted(part: torch.nn.Module, name: str, value: Any) -> None:
        if name not in _MODULE_ATTRIBUTES:
            places[id(part), name] = current_line()
        assign(part, name, value)

    changed: list[StateChange] = []
    torch.nn.Module.__setattr__ = noted
    try:
        yield changed
    finally:
        torch.nn.Module.__setattr__ = assign
        for name, found, copy, find in before:
            values = _changes(found, copy)
            if _leaves(values):
                owner = id(owners.get(id(found)))
                lines = {k: places[owner, k] for k in values if (owner, k) in places}
                changed.append(StateChange(find, name, _copied(found), values, lines))
        for _, found, copy, _ in before:
            if _changes(found, copy) or not _identical(found, copy):
                _fill(found, copy)


def containers(module: torch.nn.Module, others: tuple[Any, ...]
               ) -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """Yields each container of mutable state once: its name, the container, and a function
    that returns it."""
    seen: dict[int, Any] = {}
    pending: list[tuple[str, Callable[[], Any]]] = []

    def add(name: str, find: Callable[[], Any]) -> None:
        value = find()
        if isinstance(value, _PLAIN) or value is None or id(value) in seen:
            return
        seen[id(value)] = value
        pending.append((name, find))

    for name, part in module.named_modules():
        add(f"{name}." if name else "", lambda part=part: part)
    for other in others:
        add("the loss function.", lambda other=other: other)
    while pending:
        name, find = pending.pop(0)
        value = find()
        if isinstance(value, torch.nn.Module):
            for cell in getattr(type(value).forward, "__closure__", None) or ():
                add(name + "forward.", lambda cell=cell: cell)
            for child in value.children():
                add(name, lambda child=child: child)
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            for cell in getattr(value, "__closure__", None) or ():
                add(name, lambda cell=cell: cell)
            add(name, lambda value=value: getattr(value, "__self__", None))
            continue
        if isinstance(value, torch.nn.Module) or _is_state_object(value):
            find = lambda find=find: find().__dict__
            value = find()
        if isinstance(value, (dict, list, set, np.ndarray, types.CellType)):
            yield name.rstrip("."), value, find
        if isinstance(value, dict):
            for key in [k for k in value if k not in _MODULE_ATTRIBUTES]:
                add(f"{name}{key}." if isinstance(key, str) else name,
                    lambda find=find, key=key: find()[key])
        elif isinstance(value, (list, tuple)):
            for i in range(len(value)):
                add(name, lambda find=find, i=i: find()[i])
        elif isinstance(value, types.CellType) and _copied(value):
            add(name, lambda find=find: find().cell_contents)


def contents(container: Any) -> list[Any]:
    """Returns the values in a container of mutable state."""
    copy = _copied(container)
    return list(copy.values() if isinstance(copy, dict) else copy)


def name_of(tensor: torch.Tensor, module: torch.nn.Module, loss_fn: Any) -> str:
    """Returns the name of a tensor in the model or the loss function that holds it; "a tensor"
    if neither does."""
    def said(path: str) -> str:
        path = path.strip(".")
        own = path.removeprefix("the loss function")
        if own == path:
            return f"'{path}'"
        return (f"'{own.strip('.')}' of the loss function" if own
                else "a tensor of the loss function")

    if isinstance(loss_fn, torch.nn.Module):
        for name, buffer in loss_fn.named_buffers():
            if buffer is tensor:
                return said(f"the loss function.{name}")
    for name, found, _ in containers(module, (loss_fn,)):
        content = _copied(found)
        if isinstance(content, list):
            content = dict(enumerate(content))
        for key, value in content.items() if isinstance(content, dict) else ():
            path = f"{name}.{key}" if isinstance(key, str) else name
            if value is tensor:
                return said(path)
            for part, buffer in value.named_buffers() if isinstance(value, torch.nn.Module) else ():
                if buffer is tensor:
                    return said(f"{path}.{part}")
    return "a tensor"


def _is_state_object(value: Any) -> bool:
    """Returns whether a value is an object whose attributes are part of a model."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return (hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType))
            and package not in ("torch", "numpy")
            and (package in _STATE_MODULES or package not in sys.stdlib_module_names))


def _copied(container: Any) -> Any:
    """Returns a shallow copy of the content, without the attributes that every module has."""
    if isinstance(container, types.CellType):
        try:
            return [container.cell_contents]
        except ValueError:
            return []
    if isinstance(container, np.ndarray):
        return container.copy()
    if isinstance(container, dict):
        return {k: v for k, v in container.items() if k not in _MODULE_ATTRIBUTES}
    return type(container)(container) if type(container) in (list, set) else list(container)


def _fill(container: Any, content: Any) -> None:
    """Replaces the content of `container` by `content`, a result of `_copied`."""
    if isinstance(container, types.CellType):
        if content:
            container.cell_contents = content[0]
    elif isinstance(container, np.ndarray):
        container[...] = content
    elif isinstance(container, dict):
        for key in [k for k in container if k not in _MODULE_ATTRIBUTES]:
            del container[key]
        container.update(content)
    elif isinstance(container, set):
        container.clear()
        container.update(content)
    else:
        container[:] = content


def _changes(container: Any, before: Any) -> dict[Any, Any]:
    """Returns the values that differ from those of the copy `before`, by key; '' for removed
    ones."""
    now = _copied(container)
    if isinstance(now, np.ndarray):
        same = now.shape == before.shape and now.tobytes() == before.tobytes()
        return {} if same else {0: now.tobytes()}
    if isinstance(now, set):
        return {0: tuple(map(str, now))} if now != before else {}
    if not isinstance(now, dict):
        now, before = dict(enumerate(now)), dict(enumerate(before))
    gone = {k: "" for k in before if k not in now}
    return gone | {k: v for k, v in now.items() if k not in before or not _same(v, before[k])}


def _same(a: Any, b: Any, depth: int = 8) -> bool:
    """Returns whether two values are identical, or contain the same numbers, strings and flags."""
    if a is b or depth == 0:
        return a is b
    if type(a) is not type(b):
        return False
    if isinstance(a, _PLAIN):
        return a == b or (a != a and b != b)
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, set):
        return a == b
    if not isinstance(a, (dict, list, tuple)):
        if isinstance(a, torch.nn.Module) or not _is_state_object(a):
            return False
        a, b = a.__dict__, b.__dict__
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(v, b[k], depth - 1) for k, v in a.items())
    return len(a) == len(b) and all(_same(x, y, depth - 1) for x, y in zip(a, b))


def _identical(container: Any, before: Any) -> bool:
    """Returns whether a dictionary or list contains the same objects as `before`; true for other
    containers."""
    if isinstance(container, dict):
        now = _copied(container)
        return now.keys() == before.keys() and all(v is before[k] for k, v in now.items())
    return not isinstance(container, list) or (
        len(container) == len(before) and all(a is b for a, b in zip(container, before)))


def _leaves(value: Any) -> list[Any]:
    """Returns the fake tensors, numbers, strings, flags and arrays in `value` and in objects
    reachable from it."""
    found, pending, seen = [], [value], set()
    while pending:
        one = pending.pop()
        if id(one) in seen and not isinstance(one, _PLAIN):
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, (list, tuple, set)):
            pending += one
        elif isinstance(one, (FakeTensor, np.ndarray, np.generic, *_PLAIN)):
            found.append(one)
        elif not isinstance(one, torch.nn.Module) and _is_state_object(one):
            pending.append(one.__dict__)
    return found
