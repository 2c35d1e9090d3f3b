# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pipelines natively, threads as ranks, in f32.

Losses, norms, gradients and updates of SGD are those of one device, to 1e-4 of the
largest in their layer, dropout on; updates of AdamW are as far from PyTorch's in f64
as one device's are, at most twice. A drawn sample has each schedule and recipe; with
``CLEAVE_TEST_ALL=1`` all cases that cover pairs of schedule, positions, recipe and
model. Models with long skips, and with an encoder and a decoder, have some schedules,
or all.
"""

import pytest
import torch

import cleave
from native_pairs import BATCH, CASES
from native_pipelines import check_adamw, check_sgd
from pipeline_cases import covering, sample, shaped
from shaped_models import EncoderDecoder, Skips
from training_support import ALL, Case, assert_close, compile_case, family, token_batches

def shaped_case(make, dropout):
    def build():
        torch.manual_seed(0)
        return make(dropout=dropout).train()
    return Case(build, token_batches(batch=BATCH, ignored=3), key=(make, dropout))


CASES["skips"] = lambda p: shaped_case(Skips, p)
CASES["t5"] = lambda p: shaped_case(EncoderDecoder, p)

COVERING = covering()
SHAPED = shaped()
if not ALL:
    SHAPED = sample([case for case in SHAPED if case.schedule in (
        "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")], 3)
PARAMETERS = dict(argvalues=COVERING if ALL else sample(COVERING, 5), ids=str)


@pytest.mark.parametrize("case", **PARAMETERS)
def test_sgd_equals_one_device(case):
    check_sgd(case)


@pytest.mark.parametrize("case", argvalues=COVERING if ALL else sample(COVERING, 5)[:2], ids=str)
def test_adamw_is_as_exact_as_one_device(case):
    check_adamw(case)


@pytest.mark.parametrize("case", SHAPED, ids=str)
def test_other_shapes_with_sgd(case):
    """Values may jump stages."""
    check_sgd(case)


@pytest.mark.parametrize("case", SHAPED if ALL else SHAPED[::2], ids=str)
def test_other_shapes_with_adamw(case):
    check_adamw(case)


@pytest.mark.parametrize("mesh, schedule, chunks", [
    ({"pp": 2}, "1f1b", 1), ({"pp": 4}, "zb-h1", 1), ({"pp": 2}, "zb-v", 2),
    ({"pp": 2, "dp": 2}, "1f1b", 1), ({"pp": 2, "dp": 2}, "zb-h1", 1),
    ({"dp": 2, "pp": 2}, "zb-v", 2)])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_deterministic_pipelines_have_the_same_bits(name, mesh, schedule, chunks):
    """As one device with the same grains has: losses, norms and weights."""
    def train(**settings):
        case = CASES[name](0.1)
        step = compile_case(case, cleave.AdamW(lr=1e-3, max_grad_norm=1.0), deterministic=4,
                            **settings)
        outputs = []
        for i in range(3):
            outputs.append(step(*case.batches[i % len(case.batches)]))
        return outputs, step.state_dict()

    expected, weights = train()
    found, own = train(mesh=mesh, schedule=schedule, virtual_stages=chunks)
    assert [float(x) for x in found] == [float(x) for x in expected]
    for key, value in weights.items():
        assert torch.equal(own[key], value), key


@pytest.mark.parametrize("settings", [
    {}, {"mesh": {"pp": 2}, "schedule": "1f1b"}, {"mesh": {"pp": 2}, "schedule": "zb-h1"},
    {"mesh": {"pp": 4}, "schedule": "1f1b"}, {"mesh": {"pp": 2}, "schedule": "zb-v", "virtual_stages": 2},
    {"mesh": {"pp": 2, "dp": 2}, "schedule": "1f1b", "plan": "zero1"}], ids=str)
def test_many_micro_batches(settings):
    """What a schedule repeats is not written out in the program: each micro-batch must
    have its own samples and mask, and what is saved for it."""
    case = family("gpt2", batch=80, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)

    def train(**options):
        step = compile_case(case, cleave.SGD(lr=0.1, momentum=0.9), **options)
        losses = [float(step(*case.batches[i % len(case.batches)])) for i in range(3)]
        return losses, step.state_dict(), [step.evaluate(*batch) for batch in case.batches[:1]]

    losses, weights, evaluated = train()
    own = train(micro_batches=40, **settings)
    assert_close(own[0], losses, rtol=1e-5)
    assert_close([float(x) for x in own[2]], [float(x) for x in evaluated], rtol=1e-5)
    for key, value in weights.items():
        torch.testing.assert_close(own[1][key], value, rtol=1e-4, atol=1e-5, msg=key)


def peak(micro_batches, **settings):
    """Bytes of activations and the like while a step runs."""
    case = family("gpt2", batch=micro_batches)
    step = compile_case(case, cleave.SGD(lr=0.1), micro_batches=micro_batches, **settings)
    return step.report()["memory"]["train peak"]


@pytest.mark.parametrize("schedule, chunks", [("1f1b", 1), ("zb-h1", 1), ("zb-v", 2)])
def test_memory_does_not_grow_with_micro_batches(schedule, chunks):
    settings = dict(mesh={"pp": 4}, schedule=schedule, virtual_stages=chunks)
    assert peak(64, **settings) <= 1.01 * peak(16, **settings)
    assert peak(64, **{**settings, "schedule": "gpipe", "virtual_stages": 1}) > 2 * peak(64, **settings)


@pytest.mark.parametrize("check", [False, True])
def test_what_is_sent_is_told(check):
    """A value of each micro-batch goes both ways; the gradient of the tied table once.
    To check that all is finite, the last position sends its sum of squares and the loss, and
    the first one the sum of all."""
    case = family("gpt2", batch=8)
    step = compile_case(case, cleave.SGD(lr=0.1), micro_batches=4, mesh={"pp": 2},
                        stages=["transformer.h.1."], check_finite=check)
    sent = step.report()["communication"]["train"]["positions"]
    hidden, table = 2 * 8 * 32, 96 * 32
    for position, more in zip(sent, (1, 2), strict=True):
        assert position["elements"] == 4 * hidden + table + (more if check else 0)


def test_a_step_that_is_stopped_changes_nothing():
    """Each position finds that no label counts; the next step is as if there had been
    none."""
    case = family("gpt2", batch=8)
    step = compile_case(case, cleave.AdamW(lr=1e-3), micro_batches=4, mesh={"pp": 2})
    ids, labels = case.batches[0]
    before = {name: value.clone() for name, value in step.state_dict().items()}
    with pytest.raises(RuntimeError, match="every target of this batch is ignored"):
        step(ids, torch.full_like(labels, -100))
    for name, value in step.state_dict().items():
        assert torch.equal(value, before[name]), name
    other = compile_case(case, cleave.AdamW(lr=1e-3), micro_batches=4, mesh={"pp": 2})
    assert float(step(ids, labels)) == float(other(ids, labels))


def test_tied_tables_stay_equal():
    """The last stage makes the loss with its own copy of the table, the first stage
    looks up in its own: were they not updated alike, losses would differ."""
    case = CASES["gpt2"](0.1)
    one, two = (compile_case(case, cleave.AdamW(lr=1e-3, max_grad_norm=1.0), deterministic=4,
                             **settings) for settings in ({}, {"mesh": {"pp": 2}}))
    for i in range(100):
        batch = case.batches[i % len(case.batches)]
        first, second = one(*batch), two(*batch)
        assert float(first) == float(second), i
        assert first.grad_norm == second.grad_norm, i


@pytest.mark.parametrize("micro_batches", [4, 8])
def test_masks_do_not_depend_on_micro_batches(micro_batches):
    case = CASES["gpt2"](0.1)
    losses = [[float(step(*batch)) for batch in case.batches[:3]] for step in (
        compile_case(case, cleave.SGD(lr=0.05), micro_batches=m, mesh={"pp": 2})
        for m in (1, micro_batches))]
    assert_close(losses[1], losses[0], rtol=1e-5)
