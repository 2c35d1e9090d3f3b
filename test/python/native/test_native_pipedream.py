# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Asynchronous pipelines (PipeDream) natively, threads as ranks, in f32, dropout on.

What should come out is made of one-device steps: each gives the gradients of one
micro-batch, for the weights that PipeDream's rule says for each stage, and torch
updates.
"""

import re

import pytest

import cleave
from cleave.compiler.entrance import grouped
from native_pairs import agree
from native_pipedream import CALLS, EACH, Simulation, asynchronous, sgd
from pipedream_simulation import stages_of
from training_support import (assert_close, compile_case, family, same_bits, snapshot, tokens,
                              weights)

CASES = {
    "gpt2": dict(n_layer=4, tie_word_embeddings=False, resid_pdrop=0.1, embd_pdrop=0.1,
                 attn_pdrop=0.1),
    "llama": dict(num_hidden_layers=4, attention_dropout=0.1),
}


def case_of(name, m):
    case = family(name, batch=EACH, **CASES[name])
    case.batches = [tokens(batch=EACH * m, seed=seed, ignored=2) for seed in range(1, CALLS + 1)]
    return case


@pytest.mark.parametrize("name, p, m, bound", [
    ("llama", 2, 4, None), ("gpt2", 4, 8, None), ("gpt2", 4, 4, None), ("llama", 4, 8, 1),
    ("gpt2", 2, 3, None), ("llama", 4, 4, 0)])
def test_calls_in_a_row(name, p, m, bound):
    case = case_of(name, m)
    step = asynchronous(case, p, m, max_staleness=bound)
    start = weights(step)
    simulation = Simulation(case, stages_of(step.ir("scheduled")), m, p if bound is None else bound)
    for batch in case.batches:
        assert_close(float(step(*batch)), simulation.call(batch), rtol=1e-4)
    updates = {name: value - start[name] for name, value in weights(step).items()
               if name in simulation.names}
    agree(updates, {name: value - start[name] for name, value in simulation.snapshot().items()},
          "update")


def test_evaluation_and_logits():
    case = case_of("llama", 4)
    step = asynchronous(case, 2, 4)
    one = compile_case(case, sgd())
    found, expected = (each.evaluate(*case.batches[1]) for each in (step, one))
    assert_close(float(found), float(expected), rtol=1e-5)
    assert found.weight == expected.weight
    assert step.logits(case.batches[1][0]).shape == one.logits(case.batches[1][0]).shape
    assert_close(step.logits(case.batches[1][0]), one.logits(case.batches[1][0]),
                 rtol=1e-4, atol=1e-5)


def test_a_stopped_call_changes_nothing():
    """Whichever micro-batch has no label that counts."""
    case = case_of("llama", 4)
    step = asynchronous(case, 2, 4)
    step(*case.batches[0])
    before = snapshot(step)
    ids, labels = (value.clone() for value in case.batches[1])
    labels[-EACH:] = -100
    with pytest.raises(cleave.StepError, match="every target of this batch is ignored"):
        step(ids, labels)
    assert same_bits(snapshot(step), before)
    step(*case.batches[1])


@pytest.mark.parametrize("mesh, plan", [({"dp": 2}, "zero1"), ({"dp": 2}, "zero3"),
                                        ({"tp": 2}, "megatron-sp")])
def test_recipes_inside_of_stages(mesh, plan):
    case = case_of("llama", 4)
    alone, split = (asynchronous(case, 2, 4, stages=["model.layers.2."], **settings)
                    for settings in ({}, {"mesh": mesh, "plan": plan}))
    start = weights(alone)
    for batch in case.batches:
        assert_close(float(split(*batch)), float(alone(*batch)), rtol=1e-4)
    found, expected = ({name: value - start[name] for name, value in weights(step).items()}
                       for step in (split, alone))
    agree(found, expected, "update")


def places_of(program, position):
    """Where versions of each argument lie that updates of a position read, by name."""
    own = program[program.index(f"exec.program @train.{position}("):]
    own = own[:own.index("exec.return")]
    names = dict(re.findall(r'(%arg\d+): tensor<[^{]*> \{[^}]*?graph\.name = "([^"]*)"',
                            own.split("\n")[0]))
    buffers = {part: [int(n) for n in re.findall(r"exec\.buffer = (\d+)", arguments)]
               for part, arguments in
               re.findall(r"func\.func private @(train\.\d*U[.\w]*)\((.*?)\) ->", program)}
    runs = [(part, operands.split(", "), [int(n) for n in row.split(", ")])
            for part, operands, row in re.findall(
                r"exec\.run @(train\.\d*U[.\w]*)\((.*?)\) \{micro_batch = \d+ : i64, "
                r"offsets = array<i64: ([^>]*)>", own)]
    first = runs[0][1]
    return {names[operand]: [row[buffers[part][i]] for part, _, row in runs]
            for i, operand in enumerate(first) if operand in names}


@pytest.mark.parametrize("m", [6, 13])
def test_memory_of_versions(m):
    """Stage s of 4 holds up to 4-s versions of what forward and backward read, and one
    of moments; after a call the newest is where the first was."""
    case = case_of("gpt2", m)
    step = asynchronous(case, 4, m, cleave.AdamW(lr=1e-3))
    first = float(step(*case.batches[0]))
    assert float(step(*case.batches[0])) < first
    program = step.ir("executable")
    for stage in range(4):
        found = places_of(program, stage)
        matrices = [name for name in found if name.endswith(("c_attn.weight", "c_fc.weight"))]
        moments = [name for name in found if ".exp_avg" in name]
        assert matrices and len(moments) >= 2 * len(matrices)
        for name in matrices:
            assert len(found[name]) == m
            assert len(set(found[name])) == 4 - stage, (name, found[name])
        for name in moments:
            assert len(set(found[name])) == 1


def test_what_is_shown_can_be_given():
    case = case_of("llama", 4)
    made = asynchronous(case, 2, 4)
    given = asynchronous(case, 2, 4, schedule=made.schedule())
    for batch in case.batches:
        assert float(given(*batch)) == float(made(*batch))
    assert same_bits(snapshot(given), snapshot(made))


def test_batches_that_do_not_divide():
    case = case_of("llama", 4)
    with pytest.raises(ValueError, match="a batch of 8 is not divisible into 3 micro-batches"):
        asynchronous(case, 2, 3)


@pytest.mark.parametrize("settings, calls", [
    (dict(), 1), (dict(mesh={"pp": 2}, micro_batches=2, schedule="pipedream", check_finite=False),
     2),
])
def test_a_checkpoint_counts_updates(settings, calls):
    """Another program goes on with the number of the next update, which the means of
    AdamW and dropout depend on."""
    case = case_of("gpt2", 4)
    adam = lambda: cleave.AdamW(lr=0.01)
    piped = asynchronous(case, 2, 4, optimizer=adam(), max_staleness=0)
    first = case.examples([part[:EACH] for part in case.batches[0]])
    single = cleave.compile(case.build(), first, optimizer=adam())
    for batch in case.batches:
        piped(*batch)
        for i in range(4):
            single(*(value[i * EACH:(i + 1) * EACH] for value in batch))
    ours, theirs = piped.training_state(), single.training_state()
    assert (ours["step"], ours["updates_per_step"]) == (CALLS, 4)
    assert (theirs["step"], theirs["updates_per_step"]) == (4 * CALLS, 1)
    # What was dropped is the same, so that all bits are.
    results = []
    for given in (piped, single):
        other = cleave.compile(case.build(), case.examples(), optimizer=adam(),
                               **grouped(**{"max_staleness": 0, **settings} if settings else {}))
        other.load_state_dict(given.state_dict())
        other.load_training_state(given.training_state())
        assert other.training_state()["step"] * calls == 4 * CALLS
        results.append((float(other(*case.batches[0])), snapshot(other)))
    assert results[0][0] == results[1][0] and same_bits(results[0][1], results[1][1])


def test_updates_that_are_no_whole_step():
    case = case_of("gpt2", 4)
    one = compile_case(case, sgd())
    one(*case.batches[0])
    piped = asynchronous(case, 2, 4)
    with pytest.raises(ValueError, match="1 updates were made, and a step of this program makes 4"):
        piped.load_training_state(one.training_state())
