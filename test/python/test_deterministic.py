# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Deterministic mode: the same bits for every number of devices."""

import pytest
import torch

import cleave
from training_support import cleave_run, family

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
    (4, 2, "4 devices, which do not divide the 2 grains"),
    (1, 16, "8 samples, which 16 grains do not divide: use 1, 2, 4 or 8"),
])
def test_grains_that_do_not_fit(devices, grains, message):
    with pytest.raises(cleave.CompileError, match=message):
        run(family("gpt2", batch=8), grains, devices)
