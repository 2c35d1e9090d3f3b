# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The error of gradients in 16 bits, beside that of eager PyTorch in the same type.

The judge is f64. The error of a parameter is |g - g64| / (|g64| + 1e-3 the largest |g64| of the
model); that of a model is the largest of its parameters. Eager code computes under `torch.autocast`,
and as `model.bfloat16()` or `model.half()`.
"""

import copy
import dataclasses
import math

import torch

import cleave
from cleave.compiler.entrance import grouped
from trace_support import AllDouble

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: Gradients of fp16 are computed of the loss times this, by eager code too.
SCALE = {"bf16": 1.0, "fp16": 1024.0}


@dataclasses.dataclass
class Errors:
    """The error of a model's gradients in one type; infinite where one is not finite."""

    own: float
    autocast: float
    #: Of the model in that type; None where eager code does not compute it.
    typed: float | None
    #: The parameter with the largest error.
    worst: str

    def within(self, times, least):
        """Whether the error is at most `times` that of eager code, or `least`."""
        eager = max(x for x in (self.autocast, self.typed or 0.0) if math.isfinite(x) or x == 0.0)
        return self.own <= max(times * eager, least)


def gradients(model, inputs, scale=1.0):
    """The gradients of a copy of a model that returns its loss, by eager code."""
    model.zero_grad()
    (model(*inputs) * scale).backward()
    return {n: p.grad.double() / scale for n, p in model.named_parameters() if p.grad is not None}


def exact(model, inputs):
    """The gradients in f64."""
    with AllDouble():
        return gradients(copy.deepcopy(model).double(), moved(inputs, torch.float64))


def moved(inputs, dtype):
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def autocast(model, inputs, precision):
    with torch.autocast("cpu", TYPES[precision]):
        return gradients(copy.deepcopy(model), inputs, SCALE[precision])


def typed(model, inputs, precision):
    """The gradients of the model in 16 bits, or None where eager code mixes types that have no
    common operator."""
    dtype = TYPES[precision]
    try:
        return gradients(copy.deepcopy(model).to(dtype), moved(inputs, dtype), SCALE[precision])
    except RuntimeError:
        return None


def own(model, inputs, precision, **options):
    """The gradients of a step: with an empty momentum, its first values."""
    if precision == "fp16":
        options["loss_scale"] = SCALE["fp16"]
    step = cleave.compile(model, inputs, optimizer=cleave.SGD(lr=0.0, momentum=0.5), check="off",
                          **grouped(precision=precision, threads=1, **options))
    step(*inputs)
    return {n: next(iter(slots.values())).double()
            for n, slots in step.training_state()["optimizer"].items() if slots}


def largest(found, right):
    """The largest error of a parameter, and its name."""
    most = max(float(g.norm()) for g in right.values())
    errors = []
    for name, g in right.items():
        other = found.get(name, torch.zeros_like(g)).reshape(g.shape)
        error = float((other - g).norm()) / max(float(g.norm()) + 1e-3 * most, 1e-30)
        errors.append((error if math.isfinite(error) else math.inf, name))
    return max(errors)


def errors(model, inputs, precision, **options):
    """The `Errors` of a model."""
    right = exact(model, inputs)
    error, worst = largest(own(copy.deepcopy(model), inputs, precision, **options), right)
    whole = typed(model, inputs, precision)
    return Errors(error, largest(autocast(model, inputs, precision), right)[0],
                  None if whole is None else largest(whole, right)[0], worst)


def errors_in_type(model, inputs, precision):
    """The `Errors` of a model with parameters of the type, of which `autocast` is not computed."""
    model, inputs = copy.deepcopy(model).to(TYPES[precision]), moved(inputs, TYPES[precision])
    right = exact(model, inputs)
    error, worst = largest(own(copy.deepcopy(model), inputs, precision), right)
    whole = typed(model, inputs, precision)
    return Errors(error, math.nan, None if whole is None else largest(whole, right)[0], worst)
