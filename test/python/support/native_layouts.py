# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs natively what a test of a layout of ranks has interpreted.

Ranks are threads. After three steps losses, parameters and state are those of one device by the
interpreter in f64, as far as f32 goes: a copy that its position does not update, and ranks that
wait for each other, show only here. Of the cases of a test those run that a number of its name
chooses; with ``CLEAVE_TEST_ALL=1`` all.
"""

import functools
import os
import re
import zlib

import numpy as np

from cleave import _runtime
from cleave.testing.tools import interpret, run_tool, tool
from proofs import ALL
from watchdog import within_limit

STEPS = 3
#: One case in so many is run natively.
SHARE = 6
TYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i8": np.int8,
         "i1": np.bool_}


def is_chosen():
    """Whether the test that runs is one that is run natively."""
    name = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return ALL or zlib.crc32(name.encode()) % SHARE == 0


def in_single(text):
    """A model of f64 in f32."""
    return re.sub(r"\b((?:\d+x)*)f64>", r"\1f32>", text)


def next_inputs(inputs, results):
    """Of the step after one with these results."""
    later = {name: results[name].reshape(value.shape) if name in results else value
             for name, value in inputs.items()}
    for name in ("step", "rng"):
        if name in later:
            later[name] = later[name].copy()
            later[name][(1,) if name == "rng" else ()] += 1
    return later


class Expected:
    """Steps of one device by the interpreter, made when they are first asked for."""

    def __init__(self, step, inputs, first):
        self.step, self.inputs, self.first = step, inputs, first

    @functools.cached_property
    def results(self):
        found, inputs = [self.first], self.inputs
        for _ in range(STEPS - 1):
            inputs = next_inputs(inputs, found[-1])
            found.append(interpret(self.step, inputs, entry="train")[0])
        return found


def compile_native(path, *flags):
    """An artifact of the model of a file, in f32."""
    single = path.with_suffix(".f32.mlir")
    single.write_text(in_single(path.read_text()))
    artifact = path.with_suffix(f".{zlib.crc32(repr(flags).encode()):x}.so")
    run_tool([tool("cleave-compile"), str(single), *flags, "-o", str(artifact)])
    return artifact


def run_native(artifact, inputs):
    """The losses of steps, and what they leave."""
    session = _runtime.open(str(artifact))
    tensors = {tensor["name"]: tensor for tensor in session.tensors()}
    for name, value in inputs.items():
        if name in tensors and name not in ("step", "rng"):
            session.write(name, np.frombuffer(
                np.ascontiguousarray(value.astype(TYPES[tensors[name]["dtype"]])).tobytes(),
                np.uint8))
    seed, first = (int(n) for n in inputs["rng"]) if "rng" in inputs else (0, int(inputs["step"]))
    losses = []
    for i in range(STEPS):
        session.run("train", seed, first + i)
        losses.append(float(np.frombuffer(session.read("loss"), np.float32)[0]))
    left = {name: np.frombuffer(session.read(name), TYPES[tensor["dtype"]]).astype(np.float64)
            for name, tensor in tensors.items()
            if tensor["role"] in ("parameter", "state", "buffer") and name in inputs}
    session.close()
    return losses, left


def check_native(path, flags, inputs, expected, tolerance=2e-4):
    """Compiles the model of a file with these flags, and compares its steps with those expected:
    what they change, to a share of the largest change of its kind."""
    losses, left = within_limit(run_native, compile_native(path, *flags), inputs)
    results = expected.results
    np.testing.assert_allclose(losses, [float(own["loss"]) for own in results], rtol=tolerance)
    last = results[-1]
    kind = lambda name: name.rpartition(".")[2] if name.rpartition(".")[0] in left else ""
    changes = {name: last[name].astype(np.float64).ravel() - inputs[name].astype(np.float64).ravel()
               for name in left if name in last}
    assert changes
    largest = {}
    for name, change in changes.items():
        largest[kind(name)] = max(largest.get(kind(name), 0), np.abs(change).max(initial=0))
    for name, change in changes.items():
        found = left[name] - inputs[name].astype(np.float64).ravel()
        error = np.abs(found - change).max(initial=0)
        assert error <= tolerance * largest[kind(name)] + 1e-6, (name, error, largest[kind(name)])
