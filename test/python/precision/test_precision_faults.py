# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mutation testing of 16-bit steps on meshes: each mistake that mixed precision invites is made in
each place. A sum over ranks whose parts are rounded, before it or in its own type, is refused by
`--spmd-verify`: rounding is not linear. So is a rank that does not learn of another's overflow. A
gradient that is not divided by the scale, and a loss that is not multiplied, change the update.
At least 95 % of the mistakes of each class are found by one of both."""

import re

import numpy as np
import pytest

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import ToolError, run_tool, tool
from recipe_runs import OPTIMIZERS, agree, interpret, random_inputs
from training_support import ALL

PROGRAMS = [("gpt", "dp=2,tp=2", "megatron,zero1"), ("llama", "tp=2,dp=2", "megatron-sp,zero3"),
            ("llama", "dp=2,cp=2", "ulysses,zero3"), ("llama", "dp=4", "zero2")]
FLAGS = ["--precision=fp16", *OPTIMIZERS["adamw"]]
SIZES = ["--hidden=32", "--heads=4", "--layers=2", "--seq=8", "--vocab=128", "--batch=8"]

#: A sum over ranks: name, kind of collective, operand, the rest, operand's type, result's type.
SUM = re.compile(r"^( *)(%\w+) = spmd\.(all_reduce|reduce_scatter) sum (%\w+) (.*?\{.*\}) : "
                 r"(tensor<[\dx]*f32>)(?: -> (tensor<[\dx]*f32>))?$")


def train(local):
    """The lines before @train, its own, and those after."""
    lines = local.split("\n")
    begin = next(i for i, line in enumerate(lines) if "func.func @train(" in line)
    end = next(i for i in range(begin, len(lines)) if lines[i] == "  }")
    return lines[:begin], lines[begin:end], lines[end:]


def shardings(lines, value):
    """The attributes of the one result of an op that say how it is sharded."""
    for line in lines:
        if line.strip().startswith(value + " = "):
            return re.search(r"spmd\.global_types = \[(.*?)\], "
                             r"spmd\.shardings = (\[#spmd\.sharding<.*?>\])\}", line).groups()
    return None


def narrow(text):
    return text.replace("xf32>", "xf16>").replace("<f32>", "<f16>")


def cast(indent, result, operand, types, own, wide):
    """A line that casts `operand`, sharded as `own` says."""
    global_type, sharding = own
    attributes = f"{{spmd.global_types = [{wide(global_type)}], spmd.shardings = {sharding}}}"
    return f"{indent}{result} = graph.cast {operand} {attributes} : ({types[0]}) -> {types[1]}"


def narrowed_parts(lines):
    """Each sum's parts rounded to f16 and widened again."""
    for i, line in enumerate(lines):
        found = SUM.match(line)
        own = found and shardings(lines, found[4])
        if not own or "partial" not in own[1]:
            continue
        indent, _, _, operand, _, type_, _ = found.groups()
        before = [cast(indent, "%narrow", operand, (type_, narrow(type_)), own, narrow),
                  cast(indent, "%wide", "%narrow", (narrow(type_), type_), own, str)]
        yield lines[:i] + before + [line.replace(f"sum {operand} ", "sum %wide ")] + lines[i + 1:]


def narrowed_sums(lines):
    """Each sum in f16, and widened after it."""
    for i, line in enumerate(lines):
        found = SUM.match(line)
        own = found and shardings(lines, found[4])
        if not own or "partial" not in own[1]:
            continue
        indent, result, _, operand, _, type_, to = found.groups()
        first = cast(indent, "%narrow", operand, (type_, narrow(type_)), own, narrow)
        sum_ = narrow(line).replace(f"sum {operand} ", "sum %narrow ").replace(
            f"{result} = ", "%sum = ", 1)
        last = cast(indent, result, "%sum", (narrow(to or type_), to or type_),
                    shardings(lines, result), str)
        yield lines[:i] + [first, sum_, last] + lines[i + 1:]


def missing_unscales(lines):
    """Each reader of 1/scale reads 1, and the loss is not scaled."""
    scale = re.search(r'(%\w+): tensor<f32> \{graph\.name = "loss_scale"', lines[0])[1]
    divide = next(line for line in lines if re.search(rf"graph\.div %\w+, {scale} ", line))
    inverse, one = re.match(r" *(%\w+) = graph\.div (%\w+),", divide).groups()
    for i, line in enumerate(lines[1:], 1):
        if re.search(rf"{inverse}\b(?! =)", line.split("{")[0]):
            yield lines[:i] + [re.sub(rf"{inverse}\b", one, line, count=1)] + lines[i + 1:]
        elif "graph.seed" in line:
            yield lines[:i] + [line.replace(f"scale {scale} ", f"scale {one} ")] + lines[i + 1:]


def skipped_ranks(lines):
    """Each sum over ranks towards the norm of the gradients, whose bits say whether all are
    finite, left out over its axis."""
    makers = {}
    for i, line in enumerate(lines):
        if found := re.match(r" *(%[\w]+)(?::\d+)? = ", line):
            makers[found[1]] = i
    check = next(i for i, line in enumerate(lines) if '"a gradient is not finite"' in line)
    reached, stack = set(), [check]
    while stack:
        i = stack.pop()
        if i in reached:
            continue
        reached.add(i)
        # The norm of each gradient is as far as flags go.
        if i != check and "graph.reduce" in lines[i]:
            continue
        operands = re.findall(r"%\w+", lines[i].split("=", 1)[-1].split("{")[0])
        stack += [makers[operand] for operand in operands if operand in makers]
    for i in sorted(reached):
        found = SUM.match(lines[i])
        if found and found[3] == "all_reduce" and found[6] == "tensor<f32>":
            global_type, sharding = shardings(lines, found[2])
            kept = (f"{found[1]}{found[2]} = graph.add {found[4]}, {found[4]} "
                    f"{{spmd.global_types = [{global_type}], spmd.shardings = {sharding}}} : "
                    "(tensor<f32>, tensor<f32>) -> tensor<f32>")
            yield lines[:i] + [kept] + lines[i + 1:]


CLASSES = {"narrowed parts": narrowed_parts, "narrowed sums": narrowed_sums,
           "missing unscale": missing_unscales, "skipped rank": skipped_ranks}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """For each program: its text, inputs, and the results of one device."""
    folder = tmp_path_factory.mktemp("precision")
    found = []
    for name, mesh, recipes in PROGRAMS if ALL else PROGRAMS[:2]:
        path = folder / f"{name}.mlir"
        assert write_model([name, "-o", str(path), *SIZES]) == 0
        compile_ = [tool("cleave-compile"), str(path), *FLAGS]
        step = run_tool([*compile_, "--emit=step"])
        inputs = random_inputs(step)
        inputs["loss_scale"] = np.float32(1024)
        expected = interpret(step, inputs, entry="train")
        local = run_tool([*compile_, "--emit=local", f"--mesh={mesh}", f"--plan={recipes}"])
        found.append((name, local, inputs, expected))
    return found


@pytest.mark.parametrize("fault", CLASSES)
def test_faults_are_found(fault, programs, tmp_path):
    drawn, caught, missed = 0, 0, []
    for name, local, inputs, expected in programs:
        # The gradients of GPT's biases of keys are 0, whatever they are multiplied by.
        if (fault, name) == ("missing unscale", "gpt"):
            continue
        before, lines, after = train(local)
        places = list(CLASSES[fault](lines))
        assert places
        for place in places if ALL else places[::max(1, len(places) // 6)]:
            drawn += 1
            text = "\n".join(before + place + after)
            (tmp_path / "faulty.mlir").write_text(text)
            try:
                run_tool([tool("cleave-opt"), str(tmp_path / "faulty.mlir"), "--spmd-verify"])
            except ToolError as error:
                # Not a mistake of the mutation's own text.
                assert "expected" not in str(error) and "undeclared" not in str(error), error
                caught += 1
                continue
            try:
                for own, whole in zip(interpret(text, inputs, entry="train"), expected):
                    agree(own, whole)
                missed.append(next(a for a, b in zip(place, lines) if a != b).strip()[:200])
            except AssertionError:
                caught += 1
    print(f"{fault}: {caught} of {drawn} found")
    assert caught >= 0.95 * drawn, missed


def test_without_faults(programs):
    """What the faults are put into agrees."""
    for _, local, inputs, expected in programs:
        for own, whole in zip(interpret(local, inputs, entry="train"), expected):
            agree(own, whole)
