# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Asynchronous pipelines (PipeDream): each micro-batch is a step of its own, whose
backward uses the weights of its forward, in f64 by the interpreter.

What should come out is computed without the schedule of Cleave: gradients are those of
the one-device program, given for each stage the version that its forward reads by
PipeDream's rule, and updates are torch's. Dropout is on.
"""

import json
import re

import numpy as np
import pytest

from cleave.testing.tools import ToolError, interpret
from pipedream_simulation import (ADAMW, EACH, OPTIMIZERS, SGD, Simulation, first_inputs, part_of,
                                  program_of, stages_of, state_after, step_of)
from recipe_runs import LENGTH, agree, emit
from training_support import assert_close

CASES = [("llama", 2, 4, "sgd", None), ("gpt2", 4, 8, "adamw", None),
         ("gpt2", 2, 8, "sgd", None), ("llama", 4, 4, "adamw", None),
         ("llama", 4, 8, "sgd", 1), ("gpt2", 4, 4, "adamw", 2), ("gpt2", 4, 4, "sgd", 0)]


@pytest.mark.parametrize("name, p, m, optimizer, bound", CASES)
def test_versions_are_those_of_forward(tmp_path, name, p, m, optimizer, bound):
    flags, make_optimizer = OPTIMIZERS[optimizer]
    own = flags + ([] if bound is None else [f"--max-staleness={bound}"])
    program = program_of(tmp_path, name, f"pp={p}", m, "--schedule=pipedream", *own)
    stages = stages_of(program)
    assert sorted(stages) == list(range(p))
    step = step_of(tmp_path, name, flags)
    inputs = first_inputs(step, m)
    simulation = Simulation(step, stages, make_optimizer, inputs, m,
                            p if bound is None else bound)
    for call in (1, 2):
        loss, weights, used = simulation.call(inputs, call)
        results, _ = interpret(program, inputs, entry="train")
        assert abs(float(results["loss"]) - loss) <= 1e-10 * abs(loss)
        agree({key: results[key] for key in weights}, weights)
        inputs = state_after(inputs, results)
        inputs |= {"step": np.array(call + 1), "rng": np.array([5, call + 1])}
        inputs["input_ids"] = np.roll(inputs["input_ids"], 1, axis=0)
        inputs["labels"] = np.roll(inputs["labels"], 1, axis=0)
    # The bound is reached, but for the last stage.
    late = max(i - used[i][0] for i in range(m))
    assert late == min(p - 1, m - 1 if bound is None else bound)


@pytest.mark.parametrize("name, p, optimizer", [("gpt2", 4, "adamw"), ("llama", 2, "sgd")])
def test_staleness_0_is_one_step_after_another(tmp_path, name, p, optimizer):
    """Bit for bit, the state too."""
    m, flags = 4, OPTIMIZERS[optimizer][0]
    program = program_of(tmp_path, name, f"pp={p}", m, "--schedule=pipedream",
                         "--max-staleness=0", *flags)
    step = step_of(tmp_path, name, flags)
    inputs = first_inputs(step, m)
    results, _ = interpret(program, inputs, entry="train")
    state, losses = inputs, []
    for i in range(m):
        own, _ = interpret(step, part_of(state, 1, i, m), entry="train")
        state = state_after(state, own)
        losses.append(float(own["loss"]))
    assert len(own) > 2
    for key in own.keys() - {"loss"}:
        np.testing.assert_array_equal(results[key].ravel(), own[key].ravel(), err_msg=key)
    assert_close(float(results["loss"]), np.mean(losses), rtol=1e-15)


@pytest.mark.parametrize("mesh, recipe", [
    ("pp=2,dp=2", "zero1"), ("dp=2,pp=2", "zero3"), ("pp=2,tp=2", "megatron-sp"),
    ("pp=2,cp=2", "ring"), ("pp=2,dp=2", "zero2")])
def test_recipes_inside_of_stages(tmp_path, mesh, recipe):
    """As without them."""
    flags = ["--schedule=pipedream", "--stages=model.layers.2.", *ADAMW]
    alone = program_of(tmp_path, "llama", "pp=2", 4, *flags)
    split = program_of(tmp_path, "llama", mesh, 4, *flags, f"--plan={recipe}")
    stages = stages_of(alone)
    assert stages == stages_of(split)
    inputs = first_inputs(step_of(tmp_path, "llama", ADAMW), 4)
    expected, _ = interpret(alone, inputs, entry="train")
    found, _ = interpret(split, inputs, entry="train")
    agree(found, expected)


@pytest.mark.parametrize("layers, mesh, recipe", [
    (2, "pp=3,tp=2", "megatron-sp"), (2, "pp=7", ""), (4, "pp=3,tp=2", "megatron-sp")])
def test_even_stages_begin_where_they_can(tmp_path, layers, mesh, recipe):
    """Not between what makes a weight's input and its product, of which backward would
    make the gradient of the weight a stage too early."""
    sizes = (EACH, LENGTH, ("tie_word_embeddings", False), ("n_layer", layers))
    program = emit(tmp_path, "gpt2", "scheduled", f"--mesh={mesh}", f"--plan={recipe}",
                   "--micro-batches=4", "--schedule=pipedream", "--check-finite=off", *SGD, sizes=sizes)
    step = emit(tmp_path, "gpt2", "step", "--check-finite=off", *SGD, sizes=sizes)
    inputs, stages = first_inputs(step, 4), stages_of(program)
    assert len(stages) == int(mesh[3])
    simulation = Simulation(step, stages, OPTIMIZERS["sgd"][1], inputs, 4, len(stages))
    loss, weights, _ = simulation.call(inputs, 1)
    results, _ = interpret(program, inputs, entry="train")
    assert abs(float(results["loss"]) - loss) <= 1e-10 * abs(loss)
    agree({key: results[key] for key in weights}, weights)


def test_evaluation_is_that_of_the_whole_batch(tmp_path):
    """A mean over all labels that count, though micro-batches have different numbers."""
    program = program_of(tmp_path, "llama", "pp=2", 4, "--schedule=pipedream", *SGD)
    step = step_of(tmp_path, "llama", SGD)
    inputs = first_inputs(step, 4)
    inputs["labels"][:2] = -100
    inputs["labels"][2, 2:] = -100
    found, _ = interpret(program, inputs, entry="evaluate")
    losses, weights = [], []
    for i in range(1, 4):
        own, _ = interpret(step, part_of(inputs, 1, i, 4), entry="evaluate")
        losses.append(float(own["loss"]))
        weights.append(float(own["loss_weight"]))
    assert len(set(weights)) > 1
    assert_close(float(found["loss"]), np.average(losses, weights=weights),
                 rtol=1e-12)
    assert float(found["loss_weight"]) == sum(weights)


def test_report_counts_versions(tmp_path):
    """Rank s of 4 holds at most 4-s versions."""
    path = tmp_path / "report.json"
    text = program_of(tmp_path, "gpt2", "pp=4", 16, "--schedule=pipedream",
                      f"--report={path}", phase="schedule")
    stages = json.loads(path.read_text())["schedule"]["stages"]
    assert [stage["versions"] for stage in stages] == [4, 3, 2, 1]
    assert [stage["staleness"] for stage in stages] == [3, 2, 1, 0]
    for stage in stages:
        assert stage["version_bytes"] == stage["versions"] * stage["parameter_bytes"]
    assert "stage 0: holds at most 4 versions" in text
    program_of(tmp_path, "gpt2", "pp=4", 16, "--schedule=pipedream", "--max-staleness=1",
               f"--report={path}", phase="schedule")
    stages = json.loads(path.read_text())["schedule"]["stages"]
    assert [stage["versions"] for stage in stages] == [2, 2, 2, 1]


BY_HAND = """F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3
1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2 1F3 1B3 1U3
"""


def test_by_hand(tmp_path):
    """The same order as the generated one."""
    path = tmp_path / "mine.sched"
    path.write_text(BY_HAND)
    given = program_of(tmp_path, "llama", "pp=2", 4, f"--schedule-file={path}", *SGD)
    made = program_of(tmp_path, "llama", "pp=2", 4, "--schedule=pipedream", *SGD)
    name = re.compile(r'pipe\.schedule_name = "[^"]*"')
    assert name.sub("", given) == name.sub("", made)
    # What is shown can be read again.
    shown = program_of(tmp_path, "llama", "pp=2", 4, "--schedule=pipedream", phase="schedule")
    assert "U0" in shown
    path.write_text(shown)
    again = program_of(tmp_path, "llama", "pp=2", 4, f"--schedule-file={path}", *SGD)
    assert name.sub("", again) == name.sub("", made)


@pytest.mark.parametrize("text, count", [
    # Backward in two parts.
    ("F0 F1 I0 W0 U0 F2 I1 W1 U1 F3 I2 W2 U2 I3 W3 U3\n"
     "1F0 1I0 1W0 1U0 1F1 1I1 1W1 1U1 1F2 1I2 1W2 1U2 1F3 1I3 1W3 1U3\n", 2),
    # Two stages on each device.
    ("F0 F1 2F0 2B0 2U0 B0 U0 F2 2F1 2B1 2U1 B1 U1 F3 2F2 2B2 2U2 B2 U2 2F3 2B3 2U3 B3 U3\n"
     "1F0 3F0 3B0 3U0 1B0 1U0 1F1 3F1 3B1 3U1 1B1 1U1 1F2 3F2 3B2 3U2 1B2 1U2 "
     "1F3 3F3 3B3 3U3 1B3 1U3\n", 4)])
def test_other_forms_by_hand(tmp_path, text, count):
    """Versions are those of the list: only the first stage is late."""
    path = tmp_path / "mine.sched"
    path.write_text(text)
    program = program_of(tmp_path, "llama", "pp=2", 4, f"--schedule-file={path}", *SGD)
    step = step_of(tmp_path, "llama", SGD)
    inputs = first_inputs(step, 4)
    stages = stages_of(program)
    assert len(stages) == count
    # A pipeline of two, of which the first is late by one.
    halves = {0: stages[0], 1: [name for stage in range(1, count) for name in stages[stage]]}
    loss, weights, _ = Simulation(step, halves, OPTIMIZERS["sgd"][1], inputs, 4, 1).call(inputs, 1)
    results, _ = interpret(program, inputs, entry="train")
    assert abs(float(results["loss"]) - loss) <= 1e-10 * abs(loss)
    agree({key: results[key] for key in weights}, weights)


@pytest.mark.parametrize("text, flags, message", [
    # An update over its bound.
    ("F0 F1 F2 B0 U0 B1 U1 F3 B2 U2 B3 U3\n" + BY_HAND.split("\n")[1], ["--max-staleness=1"],
     r"mine.sched:1:28: error: schedule: U2 at pipeline position 0 has a staleness of 2 updates since F2 .* bound of 1"),
    # One update is missing.
    (BY_HAND.replace(" B3 U3\n1", " B3\n1"), [], r"mine.sched:1:1.*U3 never runs"),
    (BY_HAND.replace("U0 F2", "F2").replace("F1 B0", "F1 U0 B0"), [],
     r"mine.sched:1:7: error: schedule: U0 reads results of B0, which has not run"),
])
def test_faults_by_hand(tmp_path, text, flags, message):
    path = tmp_path / "mine.sched"
    path.write_text(text)
    with pytest.raises(ToolError, match=message):
        program_of(tmp_path, "llama", "pp=2", 4, f"--schedule-file={path}", *SGD, *flags)


@pytest.mark.parametrize("name, mesh, flags, message", [
    ("llama", "pp=2", ["--max-grad-norm=1.0"], "clipping to a norm waits for the gradients"),
    ("llama", "pp=2", ["--check-finite=on"], "before it is known whether all gradients are finite"),
    ("llama", "dp=2", [], 'give --mesh an axis "pp"'),
    ("llama", "pp=2", ["--schedule=1f1b", "--max-staleness=1"], "updates are after all"),
    ("llama", "pp=2", ["--max-staleness=-1"], "--max-staleness must not be negative"),
])
def test_what_contradicts_it(tmp_path, name, mesh, flags, message):
    if not any(flag.startswith("--schedule") for flag in flags):
        flags = flags + ["--schedule=pipedream"]
    with pytest.raises(ToolError, match=message):
        program_of(tmp_path, name, mesh, 4, *flags)


def test_tied_parameters(tmp_path):
    """A table that two stages hold is refused, at its line."""
    with pytest.raises(ToolError, match=r"wte.weight' is held by stages 0 and 1, which an "
                                        "asynchronous schedule updates at different times"):
        emit(tmp_path, "gpt2", "scheduled", "--mesh=pp=2", "--micro-batches=4",
             "--schedule=pipedream", "--check-finite=off", sizes=(EACH, LENGTH))
