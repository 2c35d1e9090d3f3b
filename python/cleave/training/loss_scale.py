# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""How the loss is scaled in fp16."""

from __future__ import annotations

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True)
class LossScale:
    """A factor of the loss that moves (arXiv 1710.03740, section 3.2), by Megatron's rule:
    a step whose gradients overflow is skipped, and lowers it; steps that do not, raise it.

    Attributes:
        init: the first scale.
        window: the number of steps without an overflow after which the scale doubles.
        hysteresis: the number of overflows after which each further one, and this one,
            halves the scale.
        min: the least scale. A step that overflows there raises `StepError`.
    """

    init: float = 65536.0
    window: int = 1000
    hysteresis: int = 2
    min: float = 1.0

    def __post_init__(self) -> None:
        for name in ("init", "min"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} of a LossScale is {type(value).__name__}, not a number")
            if not 0 < value <= 2.0**127:
                raise ValueError(f"{name} of a LossScale is {value}; it must be positive and at "
                                 "most 2^127")
        for name in ("window", "hysteresis"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} of a LossScale is {value!r}; it must be a whole number")
            if not 1 <= value < 2**63:
                raise ValueError(f"{name} of a LossScale is {value}; it must be at least 1")
        if self.init < self.min:
            raise ValueError(f"init of a LossScale is {self.init}, less than min, {self.min}")


def loss_scale_options(loss_scale: LossScale | float | None, precision: str) -> dict[str, Any]:
    """The compiler's options."""
    if loss_scale is not None and precision != "fp16":
        raise ValueError('loss_scale needs precision="fp16": other types do not scale the loss')
    if loss_scale is None:
        return {}
    if isinstance(loss_scale, LossScale):
        return {f"loss_scale_{name}": value
                for name, value in dataclasses.asdict(loss_scale).items()}
    if isinstance(loss_scale, bool) or not isinstance(loss_scale, (int, float)):
        raise TypeError(f"loss_scale is {type(loss_scale).__name__}, not a LossScale or a number")
    if not 0 < loss_scale <= 2.0**127 or math.isnan(loss_scale):
        raise ValueError(f"loss_scale is {loss_scale}; it must be positive and at most 2^127")
    return {"loss_scale": repr(float(loss_scale))}
