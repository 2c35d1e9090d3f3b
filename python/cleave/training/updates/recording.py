# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Records what an optimizer's Python code does to a parameter.

The code runs on meta tensors, which have shapes and no values: what reads a value has none to read
and is refused with its line. Python numbers run as they are, in each step: those that operators
take are the numbers of a step.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import types
import warnings
from typing import Any, Callable, Iterable

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

#: A tensor's memory and how it lies there: views of the same elements are one.
Key = tuple[int, tuple[int, ...], tuple[int, ...], int, torch.dtype]
#: The names of operators whose Python numbers may differ from step to step.
NUMBERED = ("add", "sub", "rsub", "mul", "div", "addcmul", "addcdiv", "lerp")

_READS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique", "allclose")
_TORCH = torch.__path__[0]
_HERE = __file__.rsplit("/", 1)[0]


class Refused(Exception):
    """The update is not compiled, and why, with its line."""


def place() -> str:
    """`file:line: ` of the innermost frame of the optimizer's code, which may be one of torch.optim."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        inside = file.startswith(_TORCH) and not file.startswith((f"{_TORCH}/optim/", f"{_TORCH}/testing/"))
        wrapper = file == f"{_TORCH}/optim/optimizer.py"
        if not inside and not wrapper and not file.startswith(_HERE):
            return f"{file}:{frame.f_lineno}: "
        frame = frame.f_back
    return ""


def key_of(tensor: torch.Tensor) -> Key:
    return (tensor.untyped_storage()._cdata, tuple(tensor.shape), tuple(tensor.stride()),
            int(tensor.storage_offset()), tensor.dtype)


@dataclasses.dataclass
class Call:
    """An operator that an update calls."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: str
    #: The positions of its numbers among the leaves of `args` and `kwargs`.
    sites: list[int]
    #: Where its tensors lay when it was called, None for other leaves, and its results. A parameter's
    #: `data` may be another one later.
    keys: list[Key | None]
    made: list[Key]
    #: No other tensor comes to lie where these did.
    kept: list[Any]
    #: The numbers of its sites when it was called: a counter that is a tensor goes on.
    given: list[float]

    @property
    def name(self) -> str:
        """Without the underscore of what is in place."""
        return str(self.target.overloadpacket.__name__).rstrip("_")

    def leaves(self) -> list[Any]:
        return pytree.tree_leaves((self.args, self.kwargs))

    def numbers(self) -> list[float]:
        return self.given

    def tensors(self) -> list[Key]:
        return [key for key in self.keys if key is not None]


def _is_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def _number_sites(target: Any, leaves: list[Any]) -> list[int]:
    """Where a call takes Python numbers, or tensors of one that only Python computes with."""
    name = target.overloadpacket.__name__.rstrip("_")
    if name not in NUMBERED:
        return []
    return [i for i, leaf in enumerate(leaves)
            if type(leaf) is float or type(leaf) is int and leaf != 1
            or isinstance(leaf, torch.Tensor) and not _is_meta(leaf)]


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's mode has no types
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        known = not any(map(_is_meta, leaves))
        name = func.overloadpacket.__name__
        if not known:
            self._check(func, name, args, kwargs, leaves)
        keys = [key_of(x) if _is_meta(x) else None for x in leaves]
        storages = [x.untyped_storage() for x in leaves if _is_meta(x)]
        sites = _number_sites(func, leaves)
        given = [float(leaves[site]) for site in sites]
        result = func(*args, **kwargs)
        if known and not any(map(_is_meta, pytree.tree_leaves(result))):
            return result
        made = [x for x in pytree.tree_leaves(result) if _is_meta(x)]
        self.calls.append(Call(func, args, kwargs, place(), sites, keys, [key_of(x) for x in made],
                               [*storages, *(x.untyped_storage() for x in made)], given))
        return result

    def _check(self, func: Any, name: str, args: Any, kwargs: Any, leaves: list[Any]) -> None:
        to = kwargs.get("device")
        if name in _READS or to is not None and torch.device(to).type != "meta" \
                or name in ("copy_", "_copy_from") and not _is_meta(args[0]):
            raise Refused(f"{place()}the update reads the value of a tensor ({name}): compute by tensors, for "
                          "example by torch.where")
        if name.startswith("_foreach_") or name.startswith("_fused_"):
            raise Refused(f"{place()}the update is of many parameters at once ({name}): give the optimizer "
                          "foreach=False and fused=False, or update one parameter after the other")
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Refused(f"{place()}the update draws random numbers ({name})")
        numbered = name.rstrip("_") in NUMBERED
        if any(isinstance(x, torch.Tensor) and not _is_meta(x) and (x.dim() or not numbered) for x in leaves):
            raise Refused(f"{place()}the update reads a tensor that is neither of its parameter nor of its state")


@dataclasses.dataclass
class Recording:
    """One step of the update of one parameter; the tensors are those of `calls`."""

    calls: list[Call]
    parameter: Key
    gradient: Key
    new_parameter: Key
    #: Tensors of the state before and after, by name.
    state: dict[str, Key]
    new_state: dict[str, Key]
    types: dict[str, torch.Tensor]

    def numbers(self) -> list[float]:
        return [number for call in self.calls for number in call.numbers()]

    def form(self) -> list[Any]:
        """Its parts that are equal in two recordings of one update: all but the numbers."""
        ids: dict[Key, int] = {}

        def of(key: Key) -> Any:
            return ("%", ids.setdefault(key, len(ids)), *key[1:])

        for key in (self.parameter, self.gradient, *self.state.values()):
            ids.setdefault(key, len(ids))
        found: list[Any] = [sorted(self.state), sorted(self.new_state)]
        for call in self.calls:
            leaves = [None if i in call.sites else leaf if key is None else of(key)
                      for i, (leaf, key) in enumerate(zip(call.leaves(), call.keys))]
            found.append((str(call.target), leaves, [of(key) for key in call.made]))
        found += [ids.get(self.new_parameter), *(ids.get(self.new_state[n]) for n in sorted(self.new_state))]
        return found


class Simulation:
    """Runs an optimizer's steps on meta tensors in the place of its parameters, of those in `places`
    or of all; each (group, place in the group). They have the shape `shape`, or their own."""

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any,
                 places: Iterable[tuple[int, int]] | None = None, shape: tuple[int, ...] | None = None):
        metas: dict[int, Any] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                metas[id(parameter)] = torch.nn.Parameter(torch.empty(
                    tuple(parameter.shape) if shape is None else shape, device="meta", dtype=torch.float32))
        stand_ins = list(metas.values())
        copied = object.__new__(type(optimizer))
        metas[id(optimizer)] = copied
        attributes = {name: value for name, value in vars(optimizer).items() if name != "step"}
        vars(copied).update(copy.deepcopy(attributes, metas))
        self.optimizer = copied
        self.scheduler = None
        if scheduler is not None:
            self.scheduler = object.__new__(type(scheduler))
            metas[id(scheduler)] = self.scheduler
            vars(self.scheduler).update(copy.deepcopy(vars(scheduler), metas))
        self._groups = self.optimizer.param_groups
        if places is not None:
            for number, group in enumerate(self._groups):
                group["params"] = [group["params"][own] for place, own in places if place == number]
        self.parameters = [p for group in self._groups for p in group["params"]]
        self._kept = stand_ins
        self.steps = 0
        #: Why the scheduler has no rate for the next step; "" if it has.
        self.end = ""

    def rate(self) -> float:
        """The learning rate of the first group."""
        return float(self._groups[0]["lr"]) if "lr" in self._groups[0] else 0.0

    def step(self) -> tuple[list[Call], dict[int, dict[str, Key]], list[torch.Tensor]]:
        """One update: the calls, the state of each parameter before, and the gradients."""
        if self.end:
            raise Refused(f"there is no step {self.steps + 1}: {self.end}")
        gradients = []
        before = {}
        for number, parameter in enumerate(self.parameters):
            parameter.grad = torch.empty_like(parameter)
            gradients.append(parameter.grad)
            before[number] = {name: key_of(x) for name, x in self.state_of(parameter).items()}
        recorder = _Recorder()
        try:
            with torch.no_grad(), recorder:
                self.optimizer.step()
        except Refused:
            raise
        except Exception as error:
            where = place_of(error)
            raise Refused(f"{where}the update cannot run on tensors without values: {error}") from error
        self.steps += 1
        if self.scheduler is not None:
            with warnings.catch_warnings():
                # The stand-in's step is not the one that torch has wrapped.
                warnings.simplefilter("ignore")
                try:
                    self.scheduler.step()
                except ValueError as error:
                    # OneCycleLR knows how many steps there are.
                    self.end = str(error)
        return recorder.calls, before, gradients

    def state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors of its state that are more than Python's numbers, by name."""
        state = self.optimizer.state.get(parameter, {})
        return {name: value for name, value in state.items() if _is_meta(value)}

    def record(self) -> Recording:
        """One step of a simulation of one parameter."""
        parameter, = self.parameters
        own = key_of(parameter)
        calls, before, (gradient,) = self.step()
        after = self.state_of(parameter)
        return Recording(calls, own, key_of(gradient), key_of(parameter), before[0],
                         {name: key_of(x) for name, x in after.items()}, after)


def place_of(error: BaseException) -> str:
    """`file:line: ` of the innermost frame of an optimizer's code in a traceback."""
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        inside = file.startswith(_TORCH) and (not file.startswith(f"{_TORCH}/optim/")
                                              or file == f"{_TORCH}/optim/optimizer.py")
        if not inside and not file.startswith(_HERE):
            found = f"{file}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return found


def check_apart(simulation: Simulation, alike: Callable[[int, list[Call]], None]) -> None:
    """Takes one step of all parameters. Raises Refused where an operator reads several of them, which
    the updates of single ones cannot; calls `alike` with the calls of each."""
    owners: dict[int, int] = {}

    def own(number: int, tensor: torch.Tensor) -> None:
        owners[tensor.untyped_storage()._cdata] = number

    for number, parameter in enumerate(simulation.parameters):
        own(number, parameter)
        for value in simulation.state_of(parameter).values():
            own(number, value)
    calls, _, gradients = simulation.step()
    for number, gradient in enumerate(gradients):
        own(number, gradient)
    each: dict[int, list[Call]] = {}
    for call in calls:
        found = {owners[key[0]] for key in call.tensors() if key[0] in owners}
        if len(found) > 1:
            raise Refused(f"{call.place}the update of one parameter reads another one ({call.name}): compiled "
                          "updates are of one parameter each; max_grad_norm clips all gradients together")
        for number in found:
            owners.update((key[0], number) for key in call.made)
            each.setdefault(number, []).append(call)
    for number in range(len(simulation.parameters)):
        alike(number, each.get(number, []))


def same_operators(one: list[Call], other: list[Call]) -> bool:
    """Whether two parameters' updates call the same operators with the same numbers, but for those that
    make a tensor of none."""
    def listed(calls: list[Call]) -> list[Any]:
        return [(str(call.target), call.numbers()) for call in calls if call.tensors()]

    return listed(one) == listed(other)
