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


class _Known(Schedule):
    """A schedule of the runtime (Runtime/Session/LearningRate.h), which cleave-run has, too."""

    def __init__(self, kind: str, lr: float, *, warmup: float, steps: int = 0,
                 cycles: float = 0.5, final: float = 0.0):
        text = f"{kind}({lr}, warmup={warmup}" + (f", steps={steps})" if steps else ")")
        super().__init__(lr, self.value, text)
        check("warmup", warmup)
        # A last rate is kept; without one the wave goes on, as in the transformers library.
        self._curve = (kind, float(lr), float(warmup), steps, final * lr, float(cycles), not final)

    def value(self, step: int) -> float:
        from .. import _cleave

        return _cleave.learning_rate(*self._curve, step)


def constant(lr: float, *, warmup: float = 0) -> Schedule:
    """A constant `lr`, after a linear warm-up from 0 over `warmup` steps."""
    return _Known("constant", lr, warmup=warmup)


def linear(lr: float, *, steps: int, warmup: float = 0) -> Schedule:
    """Linear warm-up from 0 to `lr` over `warmup` steps, then linearly to 0 at
    `steps`, where it stays. The same as `get_linear_schedule_with_warmup` of
    the transformers library."""
    _check_steps(steps)
    return _Known("linear", lr, warmup=warmup, steps=steps)


def cosine(lr: float, *, steps: int, warmup: float = 0, cycles: float = 0.5,
           final: float = 0.0) -> Schedule:
    """Linear warm-up from 0 to `lr` over `warmup` steps, then along a cosine to
    `final * lr` at `steps`. With the default `final` the same as
    `get_cosine_schedule_with_warmup` of the transformers library."""
    _check_steps(steps)
    check("final", final)
    return _Known("cosine", lr, warmup=warmup, steps=steps, cycles=cycles, final=final)


def check(name: str, value: float, below: float = math.inf) -> None:
    if not (isinstance(value, (int, float)) and 0 <= value < below):
        limit = "" if below == math.inf else f" and below {below:g}"
        raise ValueError(f"{name} is {value!r}; it must be a finite number of at least 0{limit}")


def _check_steps(steps: int) -> None:
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps is {steps!r}; it must be a whole number above 0")
