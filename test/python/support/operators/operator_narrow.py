# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Gradients of operators as native code in 16 bits, beside those of eager PyTorch.

The judge is f64. The error of a gradient is |g - g64| / (|g64| + 1e-3 m), with m the largest |g64|
of the sample, or that of its cotangents, about 1, if it is larger.
"""

import dataclasses
import json
import math

import numpy as np
import torch

import cleave
from cleave import _cleave
from cleave.training.loss_scale import loss_scale_options
from cleave.runtime.program import Program
from cleave.runtime.state import logical_shape
from operator_checks import _compute, accepted, apart, joined, plain, trace
from operator_native import BOUND

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclasses.dataclass
class Found:
    """The errors of a sample, infinite where a gradient is not finite."""

    own: float
    #: Of eager code; None where it does not compute the sample.
    eager: float | None
    #: The message of the compiler.
    failed: str = ""

    def within(self, times):
        """Whether the error is at most `times` that of eager code, which may have computed in
        f32, or what f32 loses."""
        return not self.failed and (self.eager is None or
                                    self.own <= max(times * self.eager, BOUND))


def fitting(samples, precision):
    """Samples with what PyTorch computes, where all that is computed is a number of the type."""
    most = torch.finfo(TYPES[precision]).max / 8

    def fits(expected):
        return all(np.isfinite(x).all() and (np.abs(x) < most).all()
                   for x in (expected.values, *expected.gradients.values()))
    return [m for m in accepted(samples) if m[1].gradients and fits(m[1])]


def rounded(sample, precision):
    """A sample with leaves of the type, as those of `model.bfloat16()`, in f32."""
    leaves = [x.to(TYPES[precision]).float() if x.dtype == torch.float32 else x
              for x in sample.leaves]
    return dataclasses.replace(sample, leaves=leaves)


def compiled(traced, precision, autocast):
    """What is `Found` of each sample by its name. Eager code computes under `torch.autocast`, or
    with leaves of the type."""
    text, values = joined(traced)
    options = {"micro_batches": 1, "threads": 1, "mesh": "", "check_finite": False,
               "precision": precision, "optimizer": cleave.SGD(lr=0.0, momentum=0.5).options()}
    if precision == "fp16":
        options |= loss_scale_options(1.0, precision)
        options.pop("check_finite")
    failed = ""
    try:
        program = Program(None, _cleave.compile(text, json.dumps(options)), []).open()
        for name, value in values.items():
            if name in program.tensors:
                program.set(name, torch.from_numpy(np.ascontiguousarray(value)))
        overflow = program.session.run("train", 7, 1)
    except _cleave.CompileError as error:
        failed, overflow = "the compiler: " + plain(str(error)), ""
    if failed or overflow:
        members = traced[0].members
        if len(traced) > 1:
            half = len(traced) // 2
            return {**compiled(traced[:half], precision, autocast),
                    **compiled(traced[half:], precision, autocast)}
        if len(members) > 1:
            return {k: v for member in members
                    for k, v in compiled([trace([member])], precision, autocast).items()}
        sample, expected = members[0]
        return {sample.name: Found(math.inf, _eager(sample, expected, precision, autocast), failed)}
    results, gradients = {}, {}
    for name, facts in program.tensors.items():
        if facts["role"] == "state" and facts["of"]:
            gradients[facts["of"]] = program.tensor(name).reshape(logical_shape(facts)).numpy()
        elif facts["role"] not in ("parameter", "input", "buffer"):
            results[name] = program.tensor(name).numpy()
    return {sample.name: Found(_error(own, expected.gradients),
                               _eager(sample, expected, precision, autocast))
            for sample, expected, _, own in apart(traced, results, gradients)}


def _error(found, right):
    most = max([1.0, *(np.linalg.norm(g) for g in right.values())])
    errors = [0.0]
    for i, g in right.items():
        other = np.asarray(found.get(i, np.zeros(g.shape)), np.float64).reshape(g.shape)
        error = float(np.linalg.norm(other - g) / (np.linalg.norm(g) + 1e-3 * most))
        errors.append(error if math.isfinite(error) else math.inf)
    return max(errors)


def _eager(sample, expected, precision, autocast):
    dtype = TYPES[precision]
    try:
        with torch.autocast("cpu", dtype, enabled=autocast):
            _, found = _compute(sample, expected.cotangents, torch.float32 if autocast else dtype)
    except (RuntimeError, TypeError, ValueError):
        return None
    return _error(found, expected.gradients)
