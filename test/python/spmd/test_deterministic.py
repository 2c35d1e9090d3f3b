# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Deterministic mode: the same bits for every number of devices."""

import pytest
import torch

import cleave
from cleave.compiler.entrance import grouped
from shaped_models import EncoderDecoder
from training_support import ALL, Case, cleave_run, family

STEPS = 4


def run(case, grains, devices, **settings):
    mesh = {"dp": devices} if devices > 1 else None
    optimizer = cleave.AdamW(lr=1e-3, weight_decay=0.1, max_grad_norm=1.0)
    return cleave_run(case, STEPS, optimizer, mesh=mesh, deterministic=grains, **settings)


def same(a, b):
    assert a.losses == b.losses
    assert a.norms == b.norms
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


def test_zero1_without_a_clip():
    """Parts of the state change no sum."""
    case = family("gpt2", batch=8)
    one, two = (cleave_run(case, STEPS, cleave.AdamW(lr=1e-3), deterministic=4, **settings)
                for settings in ({}, {"mesh": {"dp": 2}, "plan": "zero1"}))
    same(one, two)


#: Sizes that grains divide, that they divide in another dimension than the largest, and
#: that they do not divide: these gradients are gathered for their norm.
SHARDED = [
    ("gpt2", {}, 4),
    ("gpt2", dict(vocab_size=97), 8),
    ("llama", dict(hidden_size=36, intermediate_size=50, vocab_size=99, num_attention_heads=2,
                   num_key_value_heads=2), 8),
    ("bert", {}, 8),
]


@pytest.mark.parametrize("name, sizes, grains", SHARDED if ALL else SHARDED[1:2])
@pytest.mark.parametrize("clip", [0.05, 100.0] if ALL else [0.05])
def test_zero1_with_a_clip(name, sizes, grains, clip):
    """Each slice of a gradient is summed by itself, wherever it rests."""
    case = family(name, batch=8, **sizes)
    optimizer = cleave.AdamW(lr=1e-3, weight_decay=0.1, max_grad_norm=clip)
    steps = STEPS if ALL else 2
    first = cleave_run(case, steps, optimizer, deterministic=grains)
    assert (first.norms[0] > clip) == (clip < 1)
    for devices in [2, 4, 8]:
        for plan in ["zero1", None] if ALL else ["zero1"]:
            if grains % devices == 0:
                same(cleave_run(case, steps, optimizer, mesh={"dp": devices}, plan=plan,
                                deterministic=grains), first)


def test_the_norm_is_that_of_all_gradients():
    """The order of a sum changes its rounding alone."""
    case = family("gpt2", batch=8)
    optimizer = cleave.AdamW(lr=1e-3, max_grad_norm=0.05)
    plain = cleave_run(case, 2, optimizer)
    grains = cleave_run(case, 2, optimizer, mesh={"dp": 2}, plan="zero1", deterministic=4)
    assert grains.norms == pytest.approx(plain.norms, rel=1e-5)


@pytest.mark.parametrize("mesh, plan, settings", [
    ({"tp": 2}, ["megatron", "zero1"], {}),
    ({"tp": 2}, ["megatron-sp", "zero1", "zero1(tp)"], {}),
    ({"pp": 2}, ["zero1"], dict(schedule="1f1b")),
    ({"pp": 2}, ["zero1"], dict(schedule="zb-h1", post_validation=True)),
])
def test_zero1_beside_other_axes(mesh, plan, settings):
    """What another axis shards is summed over it; stages add their sums."""
    case = family("gpt2", batch=8)
    optimizer = cleave.AdamW(lr=1e-3, max_grad_norm=0.05)
    one, two = (cleave_run(case, 2, optimizer, mesh={**mesh, "dp": devices}, plan=plan,
                           deterministic=8, **settings) for devices in (1, 2))
    assert one.norms[0] > 0.05
    same(two, one)


@pytest.mark.parametrize("mesh, plan, message", [
    ({"dp": 2}, ["zero2"], "recipe 'zero2' adds gradients up"),
    ({"dp": 2}, ["zero3"], "recipe 'zero3' adds gradients up"),
    ({"dp": 2, "fsdp": 2}, ["zero1", "dp(fsdp)"], "recipe 'zero1' reduces gradients over one of"),
])
def test_recipes_that_add_up_in_parts_are_refused(mesh, plan, message):
    case = family("gpt2", batch=8)
    with pytest.raises(cleave.CompileError, match=f"deterministic: {message}"):
        cleave_run(case, 1, cleave.AdamW(lr=1e-3), mesh=mesh, plan=plan, deterministic=4)


def test_other_bits_without_it():
    """The comparison is not vacuous: sums in another order are seen."""
    case = family("gpt2", batch=8)
    optimizer = cleave.AdamW(lr=1e-3)
    one = cleave_run(case, STEPS, optimizer)
    four = cleave_run(case, STEPS, optimizer, mesh={"dp": 4})
    assert any(not torch.equal(update, four.updates[name]) for name, update in one.updates.items())


@pytest.mark.parametrize("settings, message", [
    (dict(deterministic=6), "must be a power of 2"),
    (dict(deterministic=0), "deterministic must be positive"),
    (dict(deterministic=4, micro_batches=2), "micro_batches is replaced by the grains"),
    (dict(deterministic=4, threads=2), "threads is 1 with deterministic"),
])
def test_refused_settings(settings, message):
    case = family("gpt2", batch=8)
    with pytest.raises(ValueError, match=message):
        cleave.compile(case.build(), case.examples(), **grouped(**settings))


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
