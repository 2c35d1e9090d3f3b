# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Delayed updates: recurrences in NumPy, and the split step against the whole one.

The program after `--graph-delay-updates` is one of global tensors, which the interpreter runs:
each of its updates is computed again in NumPy, and the programs of ranks and stages equal it.
"""

import json
import re

import numpy as np
import pytest
import torch

from cleave.testing.tools import ToolError, interpret, run_tool, tool
from cleave.trace import trace
from delayed_updates import AdamW, Line, Momentum, SAMPLES, Sgd, WIDTH, recurrence, samples
from proofs import ALL
from recipe_runs import OPTIMIZERS, agree, emit, random_inputs


def line_text(folder, phase, *flags):
    path = folder / "line.mlir"
    path.write_text(trace(Line(), (torch.zeros(SAMPLES, WIDTH), torch.zeros(SAMPLES))).mlir)
    return run_tool([tool("cleave-compile"), str(path), f"--emit={phase}", *flags])


def arguments_of(text):
    """The shape of each argument of the step."""
    header = re.search(r"func\.func @train\((.*?)\n", text).group(1)
    return {name: tuple(int(n) for n in shape.split("x")[:-1]) for shape, name in re.findall(
        r'%arg\d+: tensor<((?:\d+x)*)\w+> \{[^}]*?graph\.name = "([^"]*)"', header)}


def run_steps(text, batches, lr):
    """The parameters after each step of the interpreter, which computes in f64."""
    shapes = arguments_of(text)
    values = {name: np.zeros(shape) for name, shape in shapes.items()}
    values["weight"], values["bias"] = np.linspace(-1, 1, WIDTH), np.array([0.5])
    inputs = [name for name in shapes if name in ("x", "y")]
    assert len(inputs) == 2, shapes
    result = []
    for number, batch in enumerate(batches, 1):
        values.update(zip(inputs, batch), lr=np.array(lr), step=np.array(number))
        given = {name: value.astype(np.int64 if name == "step" else np.float32
                                    if name == "lr" else np.float64)
                 for name, value in values.items()}
        results, _ = interpret(text, given, entry="train")
        values.update({name: value for name, value in results.items() if name in shapes})
        result.append({name: values[name] for name in ("weight", "bias")})
    return result


#: Exact in f32.
LR = 0.0625


@pytest.mark.parametrize("delay", [1, 2, 3, 4] if ALL else [1, 3])
@pytest.mark.parametrize("rule", [Sgd(), Momentum(), AdamW()], ids=lambda r: type(r).__name__)
def test_updates_are_the_recurrence(tmp_path, rule, delay):
    steps = 20 if ALL else 8
    found = run_steps(line_text(tmp_path, "step", *rule.flags, f"--update-delay={delay}"),
                      samples(steps), LR)
    start = {"weight": np.linspace(-1, 1, WIDTH), "bias": np.array([0.5])}
    expected = recurrence(rule, {name: delay for name in start}, start, samples(steps), LR)
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            np.testing.assert_allclose(one[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text, delays", [("2,bias=0", {"weight": 2, "bias": 0}),
                                          ("b*=3", {"weight": 0, "bias": 3}),
                                          ("*=1,we*t=2", {"weight": 2, "bias": 1})])
def test_groups_of_parameters_have_their_own_delays(tmp_path, text, delays):
    """The norm of a clip is that of the gradients that the step uses."""
    flags = [*AdamW.flags, "--max-grad-norm=0.25", f"--update-delay={text}"]
    found = run_steps(line_text(tmp_path, "step", *flags), samples(8), LR)
    start = {"weight": np.linspace(-1, 1, WIDTH), "bias": np.array([0.5])}
    expected = recurrence(AdamW(), delays, start, samples(8), LR, clip=0.25)
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            np.testing.assert_allclose(one[name], value, rtol=1e-9, atol=1e-12)


def test_no_delay_is_no_change(tmp_path):
    plain = line_text(tmp_path, "executable", *AdamW.flags)
    assert line_text(tmp_path, "executable", *AdamW.flags, "--update-delay=0") == plain
    assert line_text(tmp_path, "executable", *AdamW.flags, "--update-delay=0,bias=0") == plain


def test_pending_gradients_are_planned(tmp_path):
    """Each step of a delay takes the bytes of the gradients."""
    def memory(delay):
        report = tmp_path / "report.json"
        line_text(tmp_path, "step")
        run_tool([tool("cleave-compile"), str(tmp_path / "line.mlir"), "--plan-only",
                  *AdamW.flags, f"--update-delay={delay}", f"--report={report}"])
        return json.loads(report.read_text())["memory"]

    plain, delayed = memory(0), memory(3)
    assert delayed["parameter"] == plain["parameter"] == plain["state"] // 2
    assert delayed["state"] == plain["state"] + 3 * plain["parameter"]
    assert delayed["arena"] >= plain["arena"] + 3 * plain["parameter"]


CASES = [
    ("", "", 1, "sgd", ()), ("", "", 4, "adamw", ()), ("dp=2", "", 2, "sgd", ()),
    ("dp=2,tp=2", "megatron-sp", 1, "adamw", ()), ("dp=4", "zero1", 2, "sgd", ()),
    ("dp=2", "zero2", 2, "adamw", ()), ("dp=4", "zero3", 1, "sgd", ()),
    ("dp=2,fsdp=2", "dp(fsdp),zero3(fsdp)", 2, "adamw", ()), ("dp=2,cp=2", "ring", 1, "sgd", ()),
    ("dp=2", "", 1, "sgd", ("--optimizer-fusion=none",)),
    ("dp=2", "zero1", 1, "sgd", ("--deterministic=4",)),
    ("pp=2", "", 2, "sgd", ("--schedule=gpipe",)), ("pp=2,dp=2", "", 2, "adamw", ("--schedule=1f1b",)),
    ("pp=2,dp=2", "zero1", 2, "sgd", ("--schedule=zb-h1",)),
    ("pp=2", "", 2, "sgd", ("--schedule=interleaved", "--virtual-stages=2")),
    ("dp=2,pp=2,tp=2", "megatron-sp", 2, "sgd", ("--schedule=1f1b",)),
]


@pytest.mark.parametrize("mesh, recipes, micro_batches, optimizer, more", CASES if ALL else CASES[1::2],
                         ids=str)
@pytest.mark.parametrize("number", [2, 3] if ALL else [3])
def test_ranks_equal_the_program_of_whole_tensors(tmp_path, mesh, recipes, micro_batches,
                                                  optimizer, more, number):
    """The embedding is tied: its gradient has a term of the first stage and one of the last."""
    flags = [*OPTIMIZERS[optimizer], "--update-delay=2,*bias=1"]
    whole = emit(tmp_path, "gpt2", "step", *flags)
    inputs = random_inputs(whole)
    inputs["step"] = np.array(number)
    results, gradients = interpret(whole, inputs, entry="train")
    assert any(name.endswith(".pending_2") for name in results)
    own = emit(tmp_path, "gpt2", "scheduled", *flags, f"--mesh={mesh}", f"--plan={recipes}",
               *([] if "--deterministic=4" in more else [f"--micro-batches={micro_batches}"]), *more)
    own_results, own_gradients = interpret(own, inputs, entry="train")
    agree(own_results, results)
    agree(own_gradients, gradients)


NEXT = [
    ("dp=2", "", 1, "sgd", ()), ("dp=4", "zero1", 2, "adamw", ()),
    ("dp=2,tp=2", "megatron-sp", 2, "sgd", ()), ("dp=2,cp=2", "ring", 1, "adamw", ()),
    ("node=2,dp=2", "dp(node),dp", 1, "sgd", ()), ("dp=2,fsdp=2", "dp,dp(fsdp),zero1(fsdp)", 1, "adamw", ()),
    ("pp=2,dp=2", "", 2, "adamw", ("--schedule=1f1b",)),
    ("pp=2,dp=2", "zero1", 2, "sgd", ("--schedule=zb-h1",)),
]


@pytest.mark.parametrize("mesh, recipes, micro_batches, optimizer, more", NEXT if ALL else NEXT[1::3],
                         ids=str)
def test_reductions_of_the_next_step(tmp_path, mesh, recipes, micro_batches, optimizer, more):
    """With reduce=next the terms of each worker wait, whose sum is what waits without. The ranks
    equal the program of global tensors."""
    delay, sizes = "--update-delay=2,*bias=1", (8, 8)
    flags = OPTIMIZERS[optimizer]
    layout = [f"--mesh={mesh}", f"--plan={recipes}", f"--micro-batches={micro_batches}", *more]
    own = emit(tmp_path, "gpt2", "step", *flags, delay, *layout, sizes=sizes)
    placed = emit(tmp_path, "gpt2", "placed", *flags, delay + ",reduce=next", *layout, sizes=sizes)
    inputs = {**random_inputs(placed), "step": np.array(3)}
    shapes = {name: value.shape for name, value in random_inputs(own).items()}
    parted = {name for name, value in inputs.items()
              if name.endswith(".pending_1") and len(value.shape) > len(shapes[name])}
    assert len(parted) == sum(name.endswith(".pending_1") for name in shapes)

    def summed(values, names):
        return {name: value.sum(0) if name in names else value for name, value in values.items()}

    results, gradients = interpret(placed, inputs, entry="train")
    expected, expected_gradients = interpret(own, summed(inputs, parted), entry="train")
    agree(summed(results, parted), expected)
    own_of = {name.removesuffix(".pending_1") for name in parted}
    agree(summed(gradients, own_of), expected_gradients)
    ranks = emit(tmp_path, "gpt2", "scheduled", *flags, delay + ",reduce=next", *layout, sizes=sizes)
    own_results, own_gradients = interpret(ranks, inputs, entry="train")
    agree(own_results, results)
    agree(own_gradients, gradients)


@pytest.mark.parametrize("flags, message", [
    (["--update-delay=-1"], "a delay is 0 to 16 steps, not -1: each takes the memory of a gradient"),
    (["--update-delay=17"], "a delay is 0 to 16 steps, not 17"),
    (["--update-delay=1.5"], "'1.5' is not a number of steps, nor pattern=number"),
    (["--update-delay="], "'' is not a number of steps"),
    (["--update-delay=,1"], "'' is not a number of steps"),
    (["--update-delay=1,2"], "'1,2' has two delays for all parameters"),
    (["--update-delay=b[=1"], "'b[' is not a pattern of names"),
    (["--update-delay=1,scale=2"], "update delay: 'scale' matches no parameter that '@train' trains"),
    (["--update-delay=1", "--optimizer-fusion=forward"], "cannot be deferred to the next one"),
    (["--update-delay=1", "--mesh=pp=2", "--micro-batches=2", "--post-validation"],
     "delayed updates need no validation afterwards: their gradients were checked in the steps "
     "before"),
    (["--update-delay=1,reduce=next", "--mesh=dp=2", "--compress=topk,density=1"],
     "cannot be compressed"),
    (["--update-delay=1", "--mesh=pp=2", "--micro-batches=2", "--schedule=pipedream",
      "--check-finite=off"],
     "need a synchronous schedule"),
    (["--update-delay=1,reduce=next"], "'reduce=next' needs a mesh"),
    (["--update-delay=0,reduce=next"], "delays nothing whose sum could be in the next step"),
    (["--update-delay=1,reduce=later"], "'reduce=later' is not a number of steps"),
    (["--update-delay=1,reduce=next", "--mesh=dp=2", "--deterministic=2"],
     "they cannot be deterministic for every number of them"),
    (["--update-delay=1,reduce=next", "--mesh=dp=2", "--optimizer-fusion=backward",
      "--check-finite=off"], "updates cannot run in it"),
    (["--update-delay=1,reduce=next", "--mesh=dp=2", "--plan=zero2"],
     "which a recipe shards over the workers: use 'zero1'"),
    (["--update-delay=1,reduce=next", "--mesh=tp=2", "--plan="],
     "no axis of the mesh shards samples"),
], ids=lambda x: x[0] if isinstance(x, list) else "")
def test_what_is_refused(tmp_path, flags, message):
    with pytest.raises(ToolError, match=re.escape(message)):
        line_text(tmp_path, "scheduled", *flags)
