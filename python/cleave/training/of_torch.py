# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Optimizers of `torch.optim` and their learning-rate schedulers, as the optimizers of a step.

An instance says its class, its groups of parameters and their settings; its update is then the
compiler's. Nothing that it says is dropped: what a rule of the compiler does not have is refused.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import warnings
from typing import Any, Callable, Mapping

import torch

from . import optim
from .schedules import Schedule, check

#: Settings that change how fast torch computes an update, but no number beyond rounding.
_SPEED = ("foreach", "fused", "capturable")
#: Settings of schedulers that torch keeps in groups of parameters.
_OF_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")


def of_torch(optimizer: torch.optim.Optimizer, model: torch.nn.Module,
             scheduler: Any = None, *, max_grad_norm: float | None = None) -> optim.Optimizer:
    """The optimizer of a step that updates as `optimizer` does.

    `torch.optim.AdamW`, `Adam`, `SGD`, `Adagrad` and `Muon` (whose iterations torch rounds to bf16)
    are the compiler's own where it has their settings. Of others, also of a person's own, the
    Python code of the update is compiled: it runs for 64 steps on tensors without values; numbers
    that it computes in Python are computed so for each step.

    `scheduler` is of `torch.optim.lr_scheduler`; its rates are those that it would set after each
    update, from where it stands. Both are read, and stay as they are: their own `step` is not
    called. `max_grad_norm` clips as in `cleave.AdamW`. Raises ValueError for code that reads values
    of tensors, with its line, and for state of earlier updates, or a parameter of the model that is
    trained and in no group; TypeError for a scheduler that is none.
    """
    rule = _RULES.get(type(optimizer))
    name = f"torch.optim.{type(optimizer).__name__}"
    if hooks := [kind for kind in ("pre", "post") if getattr(optimizer, f"_optimizer_step_{kind}_hooks", None)]:
        raise ValueError(f"{name} has {hooks[0]}-hooks of its step, which a compiled step does not call")
    if _has_run(optimizer):
        raise ValueError(f"{name} has taken steps, whose state a compiled step does not take over: give a new one")
    if "step" in vars(optimizer) and not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise ValueError(f"{name} has a step of its own, which a compiled step does not call")
    if scheduler is None and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise ValueError(f"a learning-rate scheduler is bound to {name}: give both, as "
                         "optimizer=(optimizer, scheduler)")
    groups = optimizer.param_groups
    names = _names_of(groups, model, name)
    if scheduler is not None:
        _check_scheduler(optimizer, scheduler)
    if rule is not None:
        with contextlib.suppress(_NotMapped):
            return _mapped(optimizer, rule, names, scheduler, max_grad_norm)
    from .updates import own_updates
    return own_updates(optimizer, _all_names(model), scheduler, max_grad_norm=max_grad_norm)


def _check_scheduler(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    kind = type(scheduler).__name__
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError("ReduceLROnPlateau follows a number of each evaluation: a compiled step takes "
                         "rates that are known from its number")
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        raise TypeError(f"the scheduler is a {type(scheduler).__qualname__}; it must be one of "
                        "torch.optim.lr_scheduler")
    if scheduler.optimizer is not optimizer:
        raise ValueError(f"the {kind} is of another optimizer")


class _NotMapped(ValueError):
    """A setting that the compiler's rule does not have: the update is compiled as its code says."""


def _mapped(optimizer: torch.optim.Optimizer, rule: Callable[[str, Mapping[str, Any]], optim.Optimizer],
            names: list[frozenset[str]], scheduler: Any, max_grad_norm: float | None) -> optim.Optimizer:
    """The compiler's optimizer that updates alike. Raises _NotMapped where there is none."""
    name, groups = f"torch.optim.{type(optimizer).__name__}", optimizer.param_groups
    rates = _Rates(optimizer, scheduler) if scheduler is not None else None
    firsts = [float(group["initial_lr"] if rates else group["lr"]) for group in groups]
    # The rates of others are multiples of the first one's.
    base = next((place for place, rate in enumerate(firsts) if rate), 0)
    lr: float | Schedule = firsts[base]
    if rates is not None:
        rates.check_multiples(firsts, base)
        lr = _Tabulated(firsts[base], rates, f"torch's {type(scheduler).__name__}")
    own = [rule(name, group) for group in groups]
    others = tuple(
        optim.Group(match=_belongs(names[place]), settings={**_settings(own[place]), "lr": firsts[place]})
        for place in range(len(groups)) if place != base)
    return dataclasses.replace(own[base], lr=lr, max_grad_norm=max_grad_norm, param_groups=others)


def _belongs(names: frozenset[str]) -> Callable[[str, torch.Tensor], bool]:
    return lambda name, parameter: name in names


def _settings(optimizer: optim.Optimizer) -> dict[str, Any]:
    """The settings of its update, by name."""
    common = {field.name for field in dataclasses.fields(optim.Optimizer)}
    return {field.name: getattr(optimizer, field.name) for field in dataclasses.fields(optimizer)
            if field.name not in common}


def _has_run(optimizer: torch.optim.Optimizer) -> bool:
    def is_used(state: Mapping[str, Any]) -> bool:
        if "step" in state:
            return float(state["step"]) > 0
        return any(value is not None for value in state.values())

    return any(is_used(state) for state in optimizer.state.values())


def _all_names(model: torch.nn.Module) -> dict[int, list[str]]:
    """The names of each parameter, by its id."""
    known: dict[int, list[str]] = {}
    for own, parameter in model.named_parameters(remove_duplicate=False):
        known.setdefault(id(parameter), []).append(own)
    return known


def _names_of(groups: list[dict[str, Any]], model: torch.nn.Module, name: str) -> list[frozenset[str]]:
    """The names of the parameters of each group."""
    known = _all_names(model)
    trained: dict[int, str] = {}
    for own, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            trained.setdefault(id(parameter), own)
    found = []
    for group in groups:
        foreign = [parameter for parameter in group["params"] if id(parameter) not in known]
        if foreign:
            raise ValueError(f"{name} has {len(foreign)} parameters that are not of the model, the first of "
                             f"shape {tuple(foreign[0].shape)}: make it of model.parameters()")
        found.append(frozenset(own for parameter in group["params"] for own in known[id(parameter)]))
    updated = frozenset().union(*found)
    if left := [own for own in trained.values() if own not in updated]:
        raise ValueError(f"{name} does not update {', '.join(left[:3])}{' and others' if len(left) > 3 else ''}, "
                         "which have gradients: freeze them with requires_grad_(False), or add them to it")
    return found


def _refuse(name: str, group: Mapping[str, Any], *settings: str) -> None:
    for key in settings:
        if group.get(key):
            raise _NotMapped(f"{name} has {key}={group[key]!r}")


def _known(name: str, group: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Settings of a group that are numbers of the update. Raises ValueError for one that is not
    known here, which a later torch may have."""
    unknown = set(group) - {"params", "lr", *_OF_SCHEDULERS, *_SPEED, "maximize", "differentiable", *keys}
    if unknown:
        raise _NotMapped(f"{name} has {', '.join(sorted(unknown))}")
    _refuse(name, group, "maximize", "differentiable")
    return {key: float(group[key]) for key in keys if isinstance(group[key], (int, float, torch.Tensor))
            and not isinstance(group[key], bool)}


def _adamw(name: str, group: Mapping[str, Any]) -> optim.Optimizer:
    own = _known(name, group, "betas", "eps", "weight_decay", "amsgrad", "decoupled_weight_decay")
    _refuse(name, group, "amsgrad")
    if own["weight_decay"] and not group.get("decoupled_weight_decay", name.endswith("AdamW")):
        raise _NotMapped(f"{name} adds weight_decay={group['weight_decay']!r} to gradients")
    first, second = map(float, group["betas"])
    return optim.AdamW(betas=(first, second), eps=own["eps"], weight_decay=own["weight_decay"])


def _sgd(name: str, group: Mapping[str, Any]) -> optim.Optimizer:
    own = _known(name, group, "momentum", "dampening", "weight_decay", "nesterov")
    return optim.SGD(**own, nesterov=bool(group["nesterov"]))


def _adagrad(name: str, group: Mapping[str, Any]) -> optim.Optimizer:
    return optim.Adagrad(**_known(name, group, "lr_decay", "eps", "weight_decay", "initial_accumulator_value"))


def _muon(name: str, group: Mapping[str, Any]) -> optim.Optimizer:
    own = _known(name, group, "momentum", "weight_decay", "nesterov", "ns_coefficients", "eps", "ns_steps",
                 "adjust_lr_fn")
    if tuple(group["ns_coefficients"]) != (3.4445, -4.775, 2.0315):
        raise _NotMapped(f"{name} has ns_coefficients={group['ns_coefficients']!r}")
    own["ns_steps"] = int(group["ns_steps"])
    return optim.Muon(**own, nesterov=bool(group["nesterov"]),
                      match_rms_adamw=group["adjust_lr_fn"] == "match_rms_adamw")


_RULES: dict[type, Callable[[str, Mapping[str, Any]], optim.Optimizer]] = {
    torch.optim.AdamW: _adamw, torch.optim.Adam: _adamw, torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad, torch.optim.Muon: _muon}


class _Rates:
    """The rates that a scheduler sets, tabulated with a copy of it, as far as they are asked for."""

    #: Steps that are tabulated at once, so that what is refused is refused early.
    AHEAD = 64

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any):
        # One number stands for the parameters of a group; the copy binds it.
        self._optimizer = torch.optim.SGD([
            {"params": [torch.zeros(1)], "lr": float(group["lr"])} for group in optimizer.param_groups])
        for own, group in zip(self._optimizer.param_groups, optimizer.param_groups):
            own.update((key, copy.copy(value)) for key, value in group.items() if key not in ("params", "lr"))
        self._kind, self._multiples, self._base, self._end = type(scheduler).__name__, [1.0], 0, ""
        self._scheduler = copy.deepcopy(scheduler, {id(optimizer): self._optimizer})
        self._others = self._settings()
        self._rates: list[list[float]] = [self._now()]

    def check_multiples(self, firsts: list[float], base: int) -> None:
        """Has the rates in the relation of `firsts`. Raises ValueError where they do not stay in it."""
        self._multiples = [first / firsts[base] if firsts[base] else 1.0 for first in firsts]
        self._base = base
        self._check(0)
        self._extend(self.AHEAD)

    def of(self, step: int) -> float:
        """The first group's rate in the update after `step` finished ones."""
        self._extend(step)
        if step >= len(self._rates):
            raise ValueError(f"{self._kind} has no rate of step {step}: {self._end}")
        return self._rates[step][self._base]

    def _now(self) -> list[float]:
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    def _settings(self) -> list[dict[str, Any]]:
        known = ("params", "lr", *_OF_SCHEDULERS)
        return [{key: value for key, value in group.items() if key not in known}
                for group in self._optimizer.param_groups]

    def _extend(self, step: int) -> None:
        while len(self._rates) <= step and not self._end:
            with warnings.catch_warnings():
                # The copy's optimizer takes no steps.
                warnings.simplefilter("ignore")
                try:
                    self._scheduler.step()
                except ValueError as error:
                    # OneCycleLR knows how many steps there are.
                    self._end = str(error)
                    return
            self._rates.append(self._now())
            self._check(len(self._rates) - 1)

    def _check(self, step: int) -> None:
        rates = self._rates[step]
        if self._settings() != self._others:
            changed = sorted({key for one, two in zip(self._settings(), self._others)
                              for key in one if one[key] != two.get(key)})
            raise _NotMapped(f"{self._kind} changes {', '.join(changed)} of the optimizer in step {step}")
        if not all(math.isclose(rate, rates[self._base] * multiple, rel_tol=1e-9, abs_tol=1e-30)
                   for rate, multiple in zip(rates, self._multiples)):
            raise _NotMapped(f"with {self._kind} the rates of groups of parameters, {rates} at step {step}, do not "
                             "stay in one relation, as they did in the first steps")


class _Tabulated(Schedule):
    """The rates of a scheduler of torch."""

    def __init__(self, lr: float, rates: _Rates, text: str):
        super().__init__(lr, self.value, text)
        self._rates = rates

    def value(self, step: int) -> float:
        rate = self._rates.of(step)
        check(f"lr of step {step}", rate)
        return rate
