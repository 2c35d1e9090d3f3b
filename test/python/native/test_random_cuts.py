# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pipelines natively, threads as ranks, whose stages begin at drawn parameters.

Drawn are the model, the update rule with and without clipping, the precision, the compressor,
the delay of updates, the schedule, 2 to 4 positions with one or two replicas, what ZeRO shards
and what is recomputed. After three updates all that a step leaves is what one position leaves,
as far as that one's own error goes; one position that reads the checkpoint has the same bits.
Where gradients are neither narrow nor compressed it is also what PyTorch leaves in f64.
With PipeDream it is what one-device steps leave that have its weights. With
``CLEAVE_TEST_ALL=1`` 330 pipelines and 24 of PipeDream, otherwise 3 and 1; none may take longer
than a limit.
"""

import dataclasses
import random

import pytest
import torch

import cleave
from drawn_cuts import (LENGTH, VOCAB, Judge, compile_drawn, drawn_stages, drawn_training,
                        is_no_cut, reads_back, train)
from eager_cuts import beside_eager, has_eager, leave_eager
from native_pairs import agree
from native_pipedream import EACH, Simulation, asynchronous
from pipedream_simulation import stages_of
from proofs import ALL
from training_support import Case, assert_close, weights
from watchdog import within_limit

#: A sample has compressed gradients, 8 bits, and one that PyTorch trains.
TRAININGS = range(110) if ALL else (8, 9, 32)
PIPELINES = 3 if ALL else 1


@pytest.mark.parametrize("seed", TRAININGS)
def test_a_pipeline_leaves_what_one_position_leaves(tmp_path, seed):
    training = drawn_training(seed)
    judge = within_limit(lambda: Judge.of(training))
    eager = leave_eager(training, len(judge.one[0])) if has_eager(training) else None
    assert not eager or not beside_eager(training, eager, judge.one), training.name
    draw = random.Random(f"pipelines {seed}")
    seen, changes = 0, [key for key in judge.one[1] if key[0] == "change"]
    for i in range(PIPELINES):
        def case():
            step, options = compile_drawn(training, draw)
            return options, train(training, step), reads_back(step, judge.step, tmp_path / str(i))
        options, found, other_bits = within_limit(case)
        problems = judge.problems(found)
        assert not problems, (training.name, options)
        assert not other_bits, (training.name, options)
        problems = eager and beside_eager(training, eager, found)
        assert not problems, (training.name, options)
        seen += sum(judge.notices(found, key) for key in changes)
    # The judge is no blind one: it sees copies that are not updated. Compressors that keep few bits
    # turn a rounding into a change of full size.
    assert training.compress or seen >= 0.95 * PIPELINES * len(changes), training.name


@pytest.mark.parametrize("seed", range(24) if ALL else [3])
def test_pipedream_leaves_what_its_simulation_leaves(seed):
    """Every micro-batch is an update; over three calls."""
    draw = random.Random(f"pipedream {seed}")
    training = dataclasses.replace(drawn_training(seed), tied=False)
    m, positions = draw.choice([3, 4, 6]), draw.choice([2, 3, 4])
    bound = draw.choice([None, None, 0, 1])
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (3, EACH * m, LENGTH), generator=generator)
    case = Case(training.model, [(own, own) for own in ids], names=("ids", "labels"),
                key=("cuts", seed, "pipedream"))

    def run():
        while True:
            stages = drawn_stages(training, positions, draw)
            try:
                step = asynchronous(case, positions, m, max_staleness=bound, stages=stages)
                break
            except cleave.CompileError as error:
                if not is_no_cut(error):
                    raise
        start = weights(step)
        simulation = Simulation(case, stages_of(step.ir("scheduled")), m,
                                positions if bound is None else bound)
        for batch in case.batches:
            assert_close(float(step(*batch)), simulation.call(batch), rtol=1e-4)
        return [{name: value - start[name] for name, value in own.items()}
                for own in (weights(step), simulation.snapshot())]

    found, expected = within_limit(run)
    agree(found, expected, "update")


def test_stages_of_one_position_that_hold_a_weight():
    """In 8 bits the first of two stages at a position computes with the weight at which the second
    begins. Only one of them updates it, and the scales follow from the value of before."""
    training = dataclasses.replace(drawn_training(18), compress=None, dp=1)
    step = training.compile(mesh={"pp": 2}, schedule="zb-v", virtual_stages=2, stages=[
        "blocks.0.value.weight", "blocks.0.up.weight", "blocks.1.key.weight"])
    judge = Judge.of(training)
    problems = judge.problems(within_limit(train, training, step))
    assert not problems
