# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Optimizers, with torch's meanings and defaults where torch has them.

An optimizer describes the update that is compiled into a step. A class names the
compiler's update rule (`_kind`); its fields are the rule's settings, by the same names.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, ClassVar, Iterable, Mapping, Sequence

import torch

from .schedules import Schedule, check, constant, cosine, linear

__all__ = ["Adafactor", "Adagrad", "AdamW", "AdamW8bit", "Group", "LAMB", "Lion", "Muon", "Optimizer", "SGD",
           "Schedule", "constant", "cosine", "linear", "of_torch"]

#: Whether to exclude a parameter from weight decay, by name and tensor.
NoDecay = Callable[[str, torch.Tensor], bool]


@dataclasses.dataclass
class Group:
    """Settings of some parameters that replace the optimizer's.

    The first group whose `match(name, parameter)` is true applies; a field that is None
    keeps the optimizer's setting. As a dict, a group may also have other settings of its
    optimizer by name, as torch's groups do: `dict(match=..., betas=(0.9, 0.95), lr=1e-4)`.
    """

    match: NoDecay
    #: Replaces the optimizer's weight decay.
    weight_decay: float | None = None
    #: Multiplies the learning rate.
    lr_scale: float | None = None
    #: Updates these parameters, instead of the optimizer that has the group. Its learning
    #: rate is a number: where the other one's is a schedule, it has that schedule's form.
    optimizer: Optimizer | None = None
    #: Other settings of the optimizer, by name: lr, betas, eps, ...
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, group: Group | Mapping[str, Any]) -> Group:
        """`group`, or the group that the dict `group` describes."""
        if isinstance(group, Group):
            return group
        if not isinstance(group, Mapping):
            raise ValueError(f"a parameter group has match, a function of a parameter's name and "
                             f"tensor, and settings: a cleave.optim.Group or a dict, not {group!r}")
        known = {field.name for field in dataclasses.fields(cls)}
        own = {key: value for key, value in group.items() if key in known}
        own["settings"] = {**own.get("settings", {}),
                           **{key: value for key, value in group.items() if key not in known}}
        if "match" not in own:
            raise ValueError("a parameter group has no match, a function of a parameter's name "
                             "and tensor")
        return cls(**own)


@dataclasses.dataclass
class Optimizer:
    """The settings of all optimizers; one of its classes is given to `cleave.compile`."""

    #: The compiler's update rule.
    _kind: ClassVar[str]

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
            if callable(self.lr) or hasattr(self.lr, "get_last_lr"):
                raise TypeError("lr is a function; a learning rate that changes with the step is a "
                                "cleave.Schedule: lr=cleave.Schedule(0.1, function), where "
                                "function(step) is the factor of 0.1")
            check("lr", self.lr)
        if self.max_grad_norm is not None:
            check("max_grad_norm", self.max_grad_norm)
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
            group = Group.of(group)
            for name in ("weight_decay", "lr_scale"):
                if getattr(group, name) is not None:
                    check(name, getattr(group, name))
            if not callable(group.match):
                raise ValueError(f"match of a parameter group is {group.match!r}; it must be a "
                                 "function of a parameter's name and tensor")
            self._optimizer_of(group)
            groups.append(group)
        self.param_groups = tuple(groups)

    def lr_at(self, step: int) -> float:
        """The learning rate of the update after `step` finished ones."""
        return self.lr.value(step) if isinstance(self.lr, Schedule) else float(self.lr)

    def module(self) -> str:
        """The text of updates that are functions of the module; "" where there are none."""
        return ""

    def scalars_at(self, step: int) -> dict[str, float]:
        """Further numbers that the update after `step` finished ones takes, by name."""
        return {}

    def options(self) -> dict[str, Any]:
        """The compiler's options."""
        return {"kind": self._kind, **self._settings(),
                "max_grad_norm": float(self.max_grad_norm or 0.0)}

    def parameter_options(self,
                          parameters: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
        """Settings of single parameters, by name, where they differ."""
        options: dict[str, dict[str, Any]] = {}
        for name, parameter in parameters.items():
            group = next((g for g in self._groups() if g.match(name, parameter)), None)
            own = self._group_options(group) if group is not None else {}
            excluding = [self, *((group.optimizer,) if group and group.optimizer else ())]
            if any(o.no_decay is not None and o.no_decay(name, parameter) for o in excluding) \
                    and (group is None or (group.weight_decay is None
                                           and "weight_decay" not in group.settings)):
                own["weight_decay"] = 0.0
            if own:
                options[name] = own
        return options

    def idle_groups(self, parameters: Mapping[str, torch.Tensor]) -> list[int]:
        """The places of groups that are the first to match none of these parameters."""
        used = {next((i for i, g in enumerate(self._groups()) if g.match(name, p)), None)
                for name, p in parameters.items()}
        return [i for i in range(len(self.param_groups)) if i not in used]

    def _groups(self) -> list[Group]:
        return [Group.of(group) for group in self.param_groups]

    def _settings(self) -> dict[str, Any]:
        """The rule's settings: the fields of the class, pairs of betas as two numbers."""
        common = {field.name for field in dataclasses.fields(Optimizer)}
        result: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in common:
                continue
            if field.name == "betas":
                result.update(beta1=float(value[0]), beta2=float(value[1]))
            else:
                result[field.name] = value if isinstance(value, bool) else float(value)
        return result

    def _optimizer_of(self, group: Group) -> Optimizer:
        """The optimizer of a group's parameters."""
        if group.optimizer is not None and not isinstance(group.optimizer, Optimizer):
            raise ValueError(f"optimizer of a parameter group is {group.optimizer!r}; it must be "
                             "one of cleave's")
        if group.optimizer is not None and (
                group.optimizer.max_grad_norm is not None or group.optimizer.param_groups):
            raise ValueError("the optimizer of a parameter group has no max_grad_norm and no "
                             "groups: the norm is that of all gradients")
        base = group.optimizer or self
        names = {field.name for field in dataclasses.fields(base)}
        unknown = sorted(set(group.settings) - names | {"no_decay", "max_grad_norm",
                                                        "param_groups"} & set(group.settings))
        if unknown:
            raise ValueError(f"a parameter group has {', '.join(unknown)}, which is no setting "
                             f"of a parameter of {type(base).__name__}")
        plain = dataclasses.replace(base, no_decay=None, max_grad_norm=None, param_groups=())
        return dataclasses.replace(plain, **group.settings)

    def _group_options(self, group: Group) -> dict[str, Any]:
        own = self._optimizer_of(group)
        options: dict[str, Any] = {}
        settings = own._settings()
        if own._kind != self._kind:
            options.update(kind=own._kind, **settings)
        else:
            mine = self._settings()
            options.update((k, v) for k, v in settings.items() if v != mine[k])
        scale = 1.0 if group.lr_scale is None else float(group.lr_scale)
        if group.optimizer is not None or "lr" in group.settings:
            scale *= self._lr_ratio(own.lr)
        if group.lr_scale is not None or scale != 1.0:
            options["lr_scale"] = scale
        if group.weight_decay is not None:
            options["weight_decay"] = float(group.weight_decay)
        return options

    def _lr_ratio(self, lr: float | Schedule) -> float:
        """A group's learning rate as a multiple of this one's."""
        if lr is self.lr:
            return 1.0
        if isinstance(lr, Schedule):
            raise ValueError("the learning rate of a parameter group is a number, which the "
                             "schedule of the optimizer scales")
        base = self.lr.lr if isinstance(self.lr, Schedule) else self.lr
        if base == 0:
            raise ValueError("lr is 0, and a parameter group has a learning rate of its own")
        return lr / base


def _check_betas(betas: Any) -> None:
    if not isinstance(betas, Sequence) or len(betas) != 2:
        raise ValueError(f"betas is {betas!r}; it must be two numbers")
    for i, beta in enumerate(betas):
        check(f"betas[{i}]", beta, 1)


@dataclasses.dataclass
class AdamW(Optimizer):
    """AdamW (arXiv 1711.05101) with torch.optim.AdamW's update and defaults.

    Raises ValueError for a setting out of range.
    """

    _kind = "adamw"

    #: Decay of the means of gradients and of their squares, per step.
    betas: tuple[float, float] = (0.9, 0.999)
    #: Added to the root of the mean square.
    eps: float = 1e-8
    #: Decoupled weight decay, multiplied by the learning rate.
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)
        check("eps", self.eps)
        check("weight_decay", self.weight_decay)


@dataclasses.dataclass
class AdamW8bit(AdamW):
    """AdamW with 8-bit state (arXiv 2110.02861), as bitsandbytes' AdamW8bit: each block of
    256 elements has a scale, and each element a code of one byte for each moment.

    A parameter of fewer than 4096 elements, or whose dimensions do not end where blocks do
    (its last dimensions have neither a multiple of 256 elements nor a power of 2 below
    it), keeps the state of AdamW. The paper advises f32 state for embeddings: a group with
    `optimizer=cleave.AdamW(...)`. Raises ValueError for a setting out of range.
    """

    _kind = "adamw8bit"


@dataclasses.dataclass
class SGD(Optimizer):
    """Stochastic gradient descent with torch.optim.SGD's update and defaults.

    Raises ValueError for a setting out of range.
    """

    _kind = "sgd"

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
        check("momentum", self.momentum)
        check("weight_decay", self.weight_decay)
        if not isinstance(self.dampening, (int, float)) or not math.isfinite(self.dampening):
            raise ValueError(f"dampening is {self.dampening!r}; it must be a finite number")
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise ValueError("nesterov needs momentum above 0 and dampening 0")


@dataclasses.dataclass
class Lion(Optimizer):
    """Lion (arXiv 2302.06675, algorithm 2): steps of one size, along the sign of a mean of
    gradients. Its state is one tensor of each parameter's shape.

    Raises ValueError for a setting out of range.
    """

    _kind = "lion"

    lr: float | Schedule = 1e-4
    #: Weight of the mean in what is stepped along, and the mean's decay.
    betas: tuple[float, float] = (0.9, 0.99)
    #: Decoupled weight decay, multiplied by the learning rate.
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)
        check("weight_decay", self.weight_decay)


@dataclasses.dataclass
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., JMLR 12, 2011) with torch.optim.Adagrad's update and defaults.

    Raises ValueError for a setting out of range.
    """

    _kind = "adagrad"

    lr: float | Schedule = 1e-2
    #: The learning rate of update t, from 1, is divided by 1 + (t - 1) * lr_decay.
    lr_decay: float = 0.0
    #: Added to the gradient times the parameter.
    weight_decay: float = 0.0
    #: The initial value of the sums of squared gradients.
    initial_accumulator_value: float = 0.0
    #: Added to the root of the sum.
    eps: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr_decay", "weight_decay", "initial_accumulator_value", "eps"):
            check(name, getattr(self, name))


@dataclasses.dataclass
class LAMB(Optimizer):
    """LAMB (arXiv 1904.00962, algorithm 2): Adam whose step of a parameter is scaled to the
    parameter's norm. The norm is that of one tensor of the framework.

    Raises ValueError for a setting out of range.
    """

    _kind = "lamb"

    #: Decay of the means of gradients and of their squares, per step.
    betas: tuple[float, float] = (0.9, 0.999)
    #: Added to the root of the mean square.
    eps: float = 1e-6
    #: Added to the step times the parameter, before the step's norm is taken.
    weight_decay: float = 1e-2
    #: Whether the step of a parameter without weight decay is scaled too, as in the paper;
    #: False: it is Adam's, as in apex' FusedLAMB (`use_nvlamb=False`) and timm's Lamb.
    always_adapt: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self.betas)
        check("eps", self.eps)
        check("weight_decay", self.weight_decay)
        if not isinstance(self.always_adapt, bool):
            raise ValueError(f"always_adapt is {self.always_adapt!r}; it must be True or False")


@dataclasses.dataclass
class Adafactor(Optimizer):
    """Adafactor (arXiv 1804.04235, algorithms 4 and 5), without first moment.

    The second moment of a matrix of the framework (the last two dimensions of a larger
    tensor) is kept as one mean for each row and one for each column; that of a vector is
    kept whole. Update t, from 1, uses the learning rate min(lr, 1 / sqrt(t)), as
    torch.optim.Adafactor does.

    Raises ValueError for a setting out of range.
    """

    _kind = "adafactor"

    lr: float | Schedule = 1e-2
    #: Means of squares decay by 1 - t**beta2_decay; below 0.
    beta2_decay: float = -0.8
    #: Added to squared gradients.
    eps1: float = 1e-30
    #: Least root mean square of a parameter that its step is relative to.
    eps2: float = 1e-3
    #: Largest root mean square of a step, before it is scaled.
    d: float = 1.0
    #: Whether steps are relative to the parameter's root mean square, or to 0.05.
    scale_parameter: bool = True
    #: Decoupled weight decay, multiplied by the learning rate `lr`.
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.beta2_decay, (int, float)) and -math.inf < self.beta2_decay < 0):
            raise ValueError(f"beta2_decay is {self.beta2_decay!r}; it must be a finite number "
                             "below 0")
        for name in ("eps1", "eps2", "d", "weight_decay"):
            check(name, getattr(self, name))
        if self.d == 0:
            raise ValueError("d is 0, which would stop training")


@dataclasses.dataclass
class Muon(Optimizer):
    """Muon (Jordan et al., 2024) with torch.optim.Muon's update and defaults: the momentum
    of a matrix is orthogonalised by Newton-Schulz iterations, here in f32.

    It updates matrices of the framework alone; a group gives other parameters, and usually
    embeddings and the head, another optimizer:

        cleave.Muon(lr=0.02, param_groups=[dict(
            match=lambda name, p: p.ndim != 2 or "wte" in name or "wpe" in name,
            optimizer=cleave.AdamW(lr=3e-4))])

    Raises ValueError for a setting out of range.
    """

    _kind = "muon"

    #: Decay of the mean of gradients.
    momentum: float = 0.95
    #: Nesterov's momentum.
    nesterov: bool = True
    #: Decoupled weight decay, multiplied by the learning rate.
    weight_decay: float = 0.1
    #: Least norm that a matrix is divided by.
    eps: float = 1e-7
    #: Number of iterations.
    ns_steps: int = 5
    #: Steps as large as AdamW's, lr * 0.2 * sqrt(max(rows, columns)), instead of
    #: lr * sqrt(max(1, rows / columns)).
    match_rms_adamw: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check("momentum", self.momentum, 1)
        check("weight_decay", self.weight_decay)
        check("eps", self.eps)
        if not isinstance(self.ns_steps, int) or not 1 <= self.ns_steps < 100:
            raise ValueError(f"ns_steps is {self.ns_steps!r}; it must be a whole number from 1 "
                             "to 99")


from .of_torch import of_torch  # noqa: E402  It makes the classes above.
