# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Deterministic mode: the same bits for every number of devices."""

import pytest
import torch

import cleave
from shaped_models import EncoderDecoder
from training_support import Case, cleave_run, family

STEPS = 4


def run(case, grains, devices, **settings):
    mesh = {"dp": devices} if devices > 1 else None
    optimizer = cleave.AdamW(lr=1e-3, weight_decay=0.1, max_grad_norm=1.0)
    return cleave_run(case, STEPS, optimizer, mesh=mesh, deterministic=grains, **settings)


def same(a, b):
    assert a.losses == b.losses
    for name, update in a.updates.items():
        assert torch.equal(update, b.updates[name]), name
    for name, gradient in a.gradients.items():
        assert torch.equal(gradient, b.gradients[name]), name


@pytest.mark.parametrize("name, grains", [("gpt2", 8), ("llama", 4), ("bert", 4)])
def test_devices_give_the_same_bits(name, grains):
    """Every number that divides the grains, with dropout, and labels that leave
    some devices fewer tokens than others."""
    dropout = dict(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1) if name == "gpt2" else {}
    case = family(name, batch=8, **dropout)
    first = run(case, grains, 1)
    for devices in [2, 4, 8]:
        if grains % devices == 0:
            same(run(case, grains, devices), first)


def test_zero1_gives_the_same_bits():
    """Without a clip: parts of the state change no sum."""
    case = family("gpt2", batch=8)
    one, two = (cleave_run(case, STEPS, cleave.AdamW(lr=1e-3), deterministic=4, **settings)
                for settings in ({}, {"mesh": {"dp": 2}, "plan": "zero1"}))
    same(one, two)


@pytest.mark.parametrize("plan, clip", [("zero1", 1.0), ("zero2", None), ("zero3", None)])
def test_recipes_that_add_up_in_parts_are_refused(plan, clip):
    case = family("gpt2", batch=8)
    with pytest.raises(cleave.CompileError, match=f"deterministic: .*recipe '{plan}'"):
        cleave_run(case, 1, cleave.AdamW(lr=1e-3, max_grad_norm=clip), mesh={"dp": 2},
                   plan=plan, deterministic=4)


def test_other_bits_without_it():
    """The comparison is not vacuous: sums in another order are seen."""
    case = family("gpt2", batch=8)
    optimizer = cleave.AdamW(lr=1e-3)
    one = cleave_run(case, STEPS, optimizer)
    four = cleave_run(case, STEPS, optimizer, mesh={"dp": 4})
    assert any(not torch.equal(update, four.updates[name]) for name, update in one.updates.items())


@pytest.mark.parametrize("settings, message", [
    (dict(deterministic=6), "must be a power of 2"),
    (dict(deterministic=0), "at least 1"),
    (dict(deterministic=4, micro_batches=2), "leave out micro_batches and threads"),
    (dict(deterministic=4, threads=2), "leave out micro_batches and threads"),
])
def test_refused_settings(settings, message):
    case = family("gpt2", batch=8)
    with pytest.raises(ValueError, match=message):
        cleave.compile(case.build(), case.batches[0], **settings)


@pytest.mark.parametrize("devices, grains, message", [
    (4, 2, "number of grains, 2, is not divisible by the 4 shards"),
    (1, 16, "8 samples, not divisible by 16 grains: use 1, 2, 4 or 8"),
])
def test_grains_that_do_not_fit(devices, grains, message):
    with pytest.raises(cleave.CompileError, match=message):
        run(family("gpt2", batch=8), grains, devices)


# One grain for each device -------------------------------------------------------------


def few_tokens(case, vocabulary=6):
    """Most rows of the table are named more than once."""
    case.batches = [(ids % vocabulary, labels) for ids, labels in case.batches]
    return case


def encoder_decoder():
    def build():
        torch.manual_seed(0)
        return EncoderDecoder(dropout=0.1).train()

    return Case(build, family("gpt2", batch=4).batches)


CASES = {
    "gpt2": lambda: few_tokens(family("gpt2", batch=4, tie_word_embeddings=False)),
    "llama": lambda: few_tokens(family("llama", batch=4)),
    # Products over so many tokens are sums of several pieces.
    "gpt2, long": lambda: family("gpt2", batch=4, length=256, n_positions=256),
    "t5": encoder_decoder,
}


@pytest.mark.parametrize("name", CASES)
def test_a_device_for_each_grain(name):
    """What one device adds onto a sum of grains is summed up by itself before, as where
    each device has one term alone."""
    case = CASES[name]()
    one, two = (run(case, 2, devices) for devices in (1, 2))
    same(two, one)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
def test_stages_of_devices_with_one_grain(schedule):
    """The loss is added up where it is made, whatever waits for it."""
    case = CASES["gpt2"]()
    one = run(case, 2, 1)
    step = cleave_run(case, STEPS, cleave.AdamW(lr=1e-3, weight_decay=0.1, max_grad_norm=1.0),
                      mesh={"pp": 2, "dp": 2}, deterministic=2, schedule=schedule)
    same(step, one)
