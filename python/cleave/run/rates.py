# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Rates of a run: the time that is left, the share of a device's peak, norms of parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..runtime.step import Step


class Utilisation:
    """The share of the peak of the devices that a step reaches by the operations of the model.

    MFU of PaLM (arXiv:2204.02311, appendix B): operations of forward and backward once, those
    that are computed again not counted, over the time and the peak of all devices.

    Args:
        step: the step, whose plan has the operations.
        peak: operations per second of one device; or the name of a device, whose peak in
            matmuls of 16 bits its data sheet has.

    Raises:
        TypeError, ValueError: the peak is neither, or the plan has no closed form.
    """

    def __init__(self, step: Step, peak: float | str) -> None:
        self._step = step
        self.peak = _peak_of(peak)
        self._known: dict[object, tuple[float, int]] = {}
        self._operations()

    def of(self, seconds: float) -> float:
        """The share, as a number from 0 to 1, of a step that has taken `seconds`."""
        operations, devices = self._operations()
        return operations / (seconds * devices * self.peak)

    def _operations(self) -> tuple[float, int]:
        """(operations, devices) of the program of the last call."""
        # A batch of another shape has a program of its own.
        key = self._step._live
        if key not in self._known:
            self._known[key] = operations_of(self._step)
        return self._known[key]


def operations_of(step: Step) -> tuple[float, int]:
    """The operations of the model in a step of all devices, by the closed form of its plan, and the
    number of devices. Matmuls and attention of forward and backward count once.

    Raises:
        ValueError: there is no closed form for the plan.
    """
    report = step.report()
    cost = report["cost"]
    if cost["missing"]:
        raise ValueError("MFU needs the operations of the model, and there is no closed form for "
                         f"{cost['missing']}; leave out peak")
    devices = math.prod(axis["size"] for axis in report["placement"].get("mesh", []))
    return float(cost["model_operations"]), devices


def _peak_of(peak: float | str) -> float:
    if isinstance(peak, str):
        from .. import _cleave

        known: dict[str, float] = _cleave.peak_operations()
        if peak.lower() not in known:
            raise ValueError(f"unknown device {peak!r}; known are {', '.join(sorted(known))}, and of "
                             "another one give the operations per second, as peak=312e12")
        return known[peak.lower()]
    if isinstance(peak, bool) or not isinstance(peak, (int, float)):
        raise TypeError(f"peak is {peak!r}; it must be a number of operations per second, or the name "
                        "of a device")
    if not (math.isfinite(peak) and peak > 0):
        raise ValueError(f"peak is {peak!r}; it must be a finite number above 0")
    return float(peak)


def parameter_norms(step: Step) -> dict[str, float]:
    """The 2-norm of each trained parameter, as the step trains it (f32), by its name in the
    model. Where ranks are processes, all call it."""
    tensors = step._live.tensors
    return {name: float(torch.linalg.vector_norm(step._framework_view(name), dtype=torch.float64))
            for name, facts in tensors.items()
            if facts["role"] == "parameter" and not facts["frozen"]}


class Clock:
    """The mean time of a step, smoothed, from which the time that is left follows."""

    def __init__(self) -> None:
        self._count, self._mean = 0, 0.0

    def add(self, seconds: float) -> None:
        """Counts a step. The first one includes what is done once."""
        self._count += 1
        self._mean = seconds if self._count <= 2 else 0.9 * self._mean + 0.1 * seconds

    def left(self, steps: int | None) -> float | None:
        """Seconds that so many steps take; None if that is not known."""
        return None if steps is None or not self._count else self._mean * steps


def duration(seconds: float) -> str:
    """`12s`, `3m05s`, `2h40m`."""
    whole = int(seconds + 0.5)
    if whole >= 3600:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
