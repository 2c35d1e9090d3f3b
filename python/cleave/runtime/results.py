# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Results of a step and of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class StepError(RuntimeError):
    """A step could not run, or stopped before it changed any state."""


class RoomError(StepError):
    """A step stopped because a rank has no room for its rows of experts (`expert_buffer`)."""


class Loss(float):
    """The loss of a step, a float with further results of the step.

    Attributes:
        grad_norm: 2-norm of all gradients before clipping, or None without
            clipping.
        auxiliary: the losses of auxiliary heads, first to last; empty without.
        lr: the learning rate of this step.
        tokens_per_s: elements of the first input over the wall time, 1/s.
        step: number of this step, from 1.
        skipped: with `precision="fp16"`, why the step was skipped, or "". A step whose
            gradients overflow changes nothing but the loss scale; its loss is NaN.
        loss_scale: the factor of the loss in this step; None where it is not scaled.
        expert_counts: with `expert_counts`, how often each expert was chosen in the step, by
            layer: the choices of the whole batch, of all ranks and micro-batches, before any is
            dropped; empty without, and of a step that was skipped.
        metrics: the scalars that `metrics` of `cleave.compile` names, of the whole batch; empty
            without, and of a step that was skipped.
        updated_again: with `post_validation`, the number of stages and replicas
            of them (of this process) that found their update wrong and repeated
            it.
    """

    grad_norm: float | None
    auxiliary: list[float]
    lr: float
    tokens_per_s: float
    step: int
    updated_again: int
    skipped: str
    loss_scale: float | None
    expert_counts: dict[str, torch.Tensor]
    metrics: dict[str, float]

    def __new__(cls, value: float, *, grad_norm: float | None, auxiliary: list[float], lr: float,
                tokens_per_s: float, step: int, updated_again: int = 0, skipped: str = "",
                loss_scale: float | None = None,
                expert_counts: dict[str, torch.Tensor] | None = None,
                metrics: dict[str, float] | None = None) -> Loss:
        loss = super().__new__(cls, value)
        loss.grad_norm = grad_norm
        loss.auxiliary = auxiliary
        loss.lr = lr
        loss.tokens_per_s = tokens_per_s
        loss.step = step
        loss.updated_again = updated_again
        loss.skipped = skipped
        loss.loss_scale = loss_scale
        loss.expert_counts = expert_counts or {}
        loss.metrics = metrics or {}
        return loss

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, Any]]:
        return (float(self),), dict(self.__dict__)

    def __repr__(self) -> str:
        more = f", grad_norm={self.grad_norm:.4g}" if self.grad_norm is not None else ""
        if self.skipped:
            more += f", skipped={self.skipped!r}"
        if self.loss_scale is not None:
            more += f", loss_scale={self.loss_scale:.8g}"
        return (f"Loss({float(self)!r}, step={self.step}, lr={self.lr:.4g}{more}, "
                f"tokens_per_s={self.tokens_per_s:.0f})")

    # print(loss) and f"{loss}" show the number.
    __str__ = float.__repr__


class Evaluation(float):
    """The loss of a batch without dropout, a float with its weight.

    Attributes:
        weight: the number of labels, or the sum of weights, that the loss is a
            mean over. `sum(e * e.weight) / sum(e.weight)` over the batches of a
            data set is its loss, whatever is ignored in each of them. None where
            the loss is not a mean over what inputs count.
    """

    weight: float | None

    def __new__(cls, value: float, *, weight: float | None) -> Evaluation:
        loss = super().__new__(cls, value)
        loss.weight = weight
        return loss

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, Any]]:
        return (float(self),), dict(self.__dict__)

    def __repr__(self) -> str:
        return f"Evaluation({float(self)!r}, weight={self.weight!r})"

    __str__ = float.__repr__
