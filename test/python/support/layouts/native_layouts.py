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
#: One case in so many is run natively: of pipelines, and of shardings alone.
SHARE, SHARE_OF_SHARDINGS = 6, 24
TYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i8": np.int8,
         "i1": np.bool_}


def is_chosen(share=SHARE):
    """Whether the test that runs is one that is run natively."""
    name = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return ALL or zlib.crc32(name.encode()) % share == 0


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


def agree_natively(path, flags, layout, step, inputs, results):
    """Where the test is chosen: the model of a file with these flags in a layout of ranks, beside
    `step`, the program of one device, and its first results."""
    if is_chosen(SHARE_OF_SHARDINGS):
        check_native(path, flags, layout, inputs, Expected(step, inputs, results))


def errors_of(losses, left, inputs, results):
    """How far what steps leave is from what is expected, as a share of the largest change of its
    kind, by kind and name."""
    last = results[-1]
    kind = lambda name: name.rpartition(".")[2] if name.rpartition(".")[0] in left else ""
    flat = lambda value: value.astype(np.float64).ravel()
    changes = {name: flat(last[name]) - flat(inputs[name]) for name in left if name in last}
    assert changes
    largest = {}
    for name, change in changes.items():
        largest[kind(name)] = max(largest.get(kind(name), 0), np.abs(change).max(initial=0))
    errors = {("loss", i): abs(loss / float(own["loss"]) - 1)
              for i, (loss, own) in enumerate(zip(losses, results, strict=True))}
    for name, change in changes.items():
        error = np.abs(left[name] - flat(inputs[name]) - change).max(initial=0)
        # A NaN stays one.
        errors[kind(name), name] = np.maximum(error - 1e-6, 0) / max(largest[kind(name)], 1e-30)
    return errors


def check_native(path, flags, layout, inputs, expected, tolerance=2e-4):
    """Compiles the model of a file with these flags in a layout, and compares what its steps leave
    with what is expected. It may be three times as far from that as what steps of one rank leave
    of its kind."""
    def errors(*all_flags):
        return errors_of(*within_limit(run_native, compile_native(path, *all_flags), inputs), inputs,
                         expected.results)

    far = {key: error for key, error in errors(*flags, *layout).items()
           if not error <= tolerance}
    if far:
        own = {}
        for (kind, _), error in errors(*flags).items():
            own[kind] = np.maximum(own.get(kind, 0), error)
        far = {key: (error, own[key[0]]) for key, error in far.items()
               if not error <= 3 * own[key[0]]}
    assert not far, far
