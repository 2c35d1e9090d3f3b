# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Learning-rate schedules, with torch's meanings: the rate of each step at run time."""

from __future__ import annotations

import math
from typing import Callable


class Schedule:
    """A learning rate that changes with the step.

    `factor(step)` multiplies `lr`; steps count from 0, so that `value(0)` is
    the rate of the first update, as in torch's LambdaLR.
    """

    def __init__(self, lr: float, factor: Callable[[int], float], text: str = ""):
        check("lr", lr)
        if not callable(factor):
            raise TypeError(f"factor is {factor!r}; it must be a function of the step's number")
        self.lr = lr
        self._factor = factor
        self._text = text or f"Schedule({lr}, {factor!r})"

    def value(self, step: int) -> float:
        """The learning rate of the update after `step` finished ones. Raises ValueError if it
        is negative or not finite."""
        rate = self.lr * self._factor(step)
        check(f"lr of step {step}", rate)
        return float(rate)

    def __repr__(self) -> str:
        return self._text


def constant(lr: float, *, warmup: int = 0) -> Schedule:
    """A constant `lr`, after a linear warm-up from 0 over `warmup` steps."""
    check("warmup", warmup)
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
    check("final", final)

    def factor(step: int) -> float:
        progress = (step - warmup) / max(1, steps - warmup)
        wave = max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))
        if final and progress >= 1:
            wave = 0.0
        return _warm(step, warmup, final + (1.0 - final) * wave)

    return Schedule(lr, factor, f"cosine({lr}, warmup={warmup}, steps={steps})")


def _warm(step: int, warmup: int, after: float) -> float:
    return step / max(1, warmup) if step < warmup else after


def check(name: str, value: float, below: float = math.inf) -> None:
    if not (isinstance(value, (int, float)) and 0 <= value < below):
        limit = "" if below == math.inf else f" and below {below:g}"
        raise ValueError(f"{name} is {value!r}; it must be a finite number of at least 0{limit}")


def _check_steps(steps: int, warmup: int) -> None:
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps is {steps!r}; it must be a whole number above 0")
    check("warmup", warmup)
