# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Samples of operators as native code, in one program, for one device and thread."""

import json

import numpy as np
import torch

import cleave
from cleave import _cleave
from cleave.runtime.program import Program
from cleave.runtime.state import logical_shape
from operator_checks import Expected, apart, difference, expect, joined, plain, trace

#: How far f32 may be from f64, relative to the largest value.
BOUND = 2e-5


def compiled(traced):
    """The differences of each sample from torch by its name, as `interpreted` has them.
    The gradient of a parameter is its velocity after one step."""
    text, values = joined(traced)
    optimizer = cleave.SGD(lr=0.0, momentum=0.5)
    options = {"micro_batches": 1, "threads": 1, "mesh": "", "check_finite": False,
               "optimizer": optimizer.options()}
    try:
        program = Program(None, _cleave.compile(text, json.dumps(options)), []).open()
    except _cleave.CompileError as error:
        if len(traced) > 1:
            half = len(traced) // 2
            return {**compiled(traced[:half]), **compiled(traced[half:])}
        members = traced[0].members
        if len(members) > 1:
            return compiled([trace([member]) for member in members])
        return {members[0][0].name: "the compiler: " + plain(str(error))}
    for name, value in values.items():
        if name in program.tensors:
            program.set(name, torch.from_numpy(np.ascontiguousarray(value)))
    error = program.session.run("train", 7, 1)
    if error:
        return {sample.name: plain(error) for one in traced for sample, _ in one.members}
    results, gradients = {}, {}
    for name, facts in program.tensors.items():
        if facts["role"] == "state" and facts["of"]:
            gradients[facts["of"]] = program.tensor(name).reshape(logical_shape(facts)).numpy()
        elif facts["role"] not in ("parameter", "input", "buffer"):
            results[name] = program.tensor(name).numpy()
    return {sample.name: _difference(sample, expected, *own)
            for sample, expected, *own in apart(traced, results, gradients)}


def _difference(sample, expected, values, gradients):
    """Against f64, within what f32 loses; then, if torch's own f32 is as far off, not."""
    own = Expected(expected.values, expected.gradients, [], max(expected.bound, BOUND))
    found = difference(own, values, gradients)
    if found is None:
        return None
    single = expect(sample, torch.float32)
    near = Expected(single.values, single.gradients, [], max(expected.bound, BOUND))
    return found if difference(near, values, gradients) else None
