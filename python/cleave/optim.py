# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Optimizers and learning-rate schedules, with torch's meanings and defaults.

An optimizer describes the update that is compiled into a step; a schedule
gives the learning rate of each step at run time.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Iterable, Mapping, Sequence

import torch

#: Whether to exclude a parameter from weight decay, by name and tensor.
NoDecay = Callable[[str, torch.Tensor], bool]


class Schedule:
    """A learning rate that changes with the step.

    `factor(step)` multiplies `lr`; steps count from 0, so that `value(0)` is
    the rate of the first update, as in torch's LambdaLR.
    """

    def __init__(self, lr: float, factor: Callable[[int], float], text: str):
        _check("lr", lr)
        self.lr = lr
        self._factor = factor
        self._text = text

    def value(self, step: int) -> float:
        """The learning rate of the update after `step` finished ones."""
        return self.lr * self._factor(step)

    def __repr__(self) -> str:
        return self._text


def constant(lr: float, *, warmup: int = 0) -> Schedule:
    """A constant `lr`, after a linear warm-up from 0 over `warmup` steps."""
    _check("warmup", warmup)
    return Schedule(lr, lambda step: _warm(step, warmup, 1.0),
                    f"constant({lr}, warmup={warmup})")


def linear(lr: float, *, steps: int, warmup: int = 0) -> Schedule:
    """Linear warm-up from 0 to `lr` over `warmup` steps, then linearly to 0 at
    `steps`, where it stays. The same as `get_linear_schedule_with_warmup` of
    the transformers library."""
    _check_steps(steps, warmup)

    def factor(step: int) -> float:
        return _warm(step, warmup, max(0.0, (steps - step) / max(1, steps - warmup)))

    return Schedule(lr, factor, f"linear({lr}, warmup={warmup}, steps={steps})")


def cosine(lr: float, *, steps: int, warmup: int = 0, cycles: float = 0.5,
           final: float = 0.0) -> Schedule:
    """Linear warm-up from 0 to `lr` over `warmup` steps, then along a cosine to
    `final * lr` at `steps`. With the default `final` the same as
    `get_cosine_schedule_with_warmup` of the transformers library."""
    _check_steps(steps, warmup)
    _check("final", final)

    def factor(step: int) -> float:
        progress = (step - warmup) / max(1, steps - warmup)
        wave = max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))
        if final and progress >= 1:
            wave = 0.0
        return _warm(step, warmup, final + (1.0 - final) * wave)

    return Schedule(lr, factor, f"cosine({lr}, warmup={warmup}, steps={steps})")


def _warm(step: int, warmup: int, after: float) -> float:
    return step / max(1, warmup) if step < warmup else after


def _check(name: str, value: float, below: float = math.inf) -> None:
    if not (isinstance(value, (int, float)) and 0 <= value < below):
        limit = "" if below == math.inf else f" and below {below:g}"
        raise ValueError(f"{name} is {value!r}; it must be a finite number of at least 0{limit}")


def _check_steps(steps: int, warmup: int) -> None:
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps is {steps!r}; it must be a whole number above 0")
    _check("warmup", warmup)


@dataclasses.dataclass
class Group:
    """Settings of some parameters that replace the optimizer's.

    The first group whose `match(name, parameter)` is true applies; a field that is None
    keeps the optimizer's setting.
    """

    match: NoDecay
    #: Replaces the optimizer's weight decay.
    weight_decay: float | None = None
    #: Multiplies the learning rate.
    lr_scale: float | None = None


@dataclasses.dataclass
class _Optimizer:
    #: Learning rate of every step, or a schedule of it.
    lr: float | Schedule = 1e-3
    #: Parameters for which this is true have no weight decay.
    no_decay: NoDecay | None = dataclasses.field(default=None, kw_only=True)
    #: Largest 2-norm of all gradients together; larger ones are scaled down to
    #: it by min(1, max_grad_norm / (norm + 1e-6)). None does not clip.
    max_grad_norm: float | None = dataclasses.field(default=None, kw_only=True)
    #: Parameters with settings of their own: `Group`s, or dicts of its fields.
    param_groups: Sequence[Group | Mapping[str, Any]] = dataclasses.field(
        default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.lr, Schedule):
            _check("lr", self.lr)
        if self.max_grad_norm is not None:
            _check("max_grad_norm", self.max_grad_norm)
            if self.max_grad_norm == 0:
                raise ValueError("max_grad_norm is 0, which would stop training; leave it "
                                 "out to not clip")
        if self.no_decay is not None and not callable(self.no_decay):
            raise ValueError(f"no_decay is {self.no_decay!r}; it must be a function of a "
                             "parameter's name and tensor")
        if isinstance(self.param_groups, (Group, Mapping)) \
                or not isinstance(self.param_groups, Iterable):
            raise ValueError("param_groups must be a list of groups")
        groups = []
        for group in self.param_groups:
            try:
                group = group if isinstance(group, Group) else Group(**group)
            except TypeError as error:
                raise ValueError(f"a parameter group has match, weight_decay and lr_scale: "
                                 f"{error}") from None
            for name in ("weight_decay", "lr_scale"):
                if getattr(group, name) is not None:
                    _check(name, getattr(group, name))
            if not callable(group.match):
                raise ValueError(f"match of a parameter group is {group.match!r}; it must be a "
                                 "function of a parameter's name and tensor")
            groups.append(group)
        self.param_groups = tuple(groups)

    def lr_at(self, step: int) -> float:
        """The learning rate of the update after `step` finished ones."""
        return self.lr.value(step) if isinstance(self.lr, Schedule) else float(self.lr)

    def parameter_options(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, dict]:
        """Settings of single parameters, by name, where they differ."""
        options: dict[str, dict] = {}
        for name, parameter in parameters.items():
            own: dict[str, float] = {}
            group = next((g for g in self.param_groups if g.match(name, parameter)), None)
            if group is not None:
                for key in ("weight_decay", "lr_scale"):
                    if getattr(group, key) is not None:
                        own[key] = float(getattr(group, key))
            if self.no_decay is not None and self.no_decay(name, parameter) \
                    and (group is None or group.weight_decay is None):
                own["weight_decay"] = 0.0
            if own:
                options[name] = own
        return options

    def _common_options(self) -> dict[str, Any]:
        return {"max_grad_norm": float(self.max_grad_norm or 0.0)}


@dataclasses.dataclass
class AdamW(_Optimizer):
    """AdamW (arXiv 1711.05101) with torch.optim.AdamW's update and defaults.

    Raises ValueError for a setting out of range.
    """

    #: Decay of the means of gradients and of their squares, per step.
    betas: tuple[float, float] = (0.9, 0.999)
    #: Added to the root of the mean square.
    eps: float = 1e-8
    #: Decoupled weight decay, multiplied by the learning rate.
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.betas, Sequence) or len(self.betas) != 2:
            raise ValueError(f"betas is {self.betas!r}; it must be two numbers")
        for i, beta in enumerate(self.betas):
            _check(f"betas[{i}]", beta, 1)
        _check("eps", self.eps)
        _check("weight_decay", self.weight_decay)

    def options(self) -> dict[str, Any]:
        """The compiler's options."""
        return {"kind": "adamw", "beta1": float(self.betas[0]), "beta2": float(self.betas[1]),
                "epsilon": float(self.eps), "weight_decay": float(self.weight_decay),
                **self._common_options()}


@dataclasses.dataclass
class SGD(_Optimizer):
    """Stochastic gradient descent with torch.optim.SGD's update and defaults.

    Raises ValueError for a setting out of range.
    """

    #: Of the velocity; 0 keeps no state.
    momentum: float = 0.0
    #: Of the gradient that enters the velocity.
    dampening: float = 0.0
    #: Added to the gradient times the parameter.
    weight_decay: float = 0.0
    #: Nesterov's momentum; needs momentum and no dampening.
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("momentum", self.momentum)
        _check("weight_decay", self.weight_decay)
        if not isinstance(self.dampening, (int, float)) or not math.isfinite(self.dampening):
            raise ValueError(f"dampening is {self.dampening!r}; it must be a finite number")
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise ValueError("nesterov needs momentum above 0 and dampening 0")

    def options(self) -> dict[str, Any]:
        """The compiler's options."""
        return {"kind": "sgd", "momentum": float(self.momentum),
                "dampening": float(self.dampening), "nesterov": bool(self.nesterov),
                "weight_decay": float(self.weight_decay), **self._common_options()}
