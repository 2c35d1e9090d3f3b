# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Updates before what shows that they are right: the bits are those of waiting.

Steps that a clip scales, steps that it leaves alone and steps that stop are among
them, so that updates stand, are made again, and are taken back.
"""

import re

import pytest
import torch

import cleave
from cleave.testing.tools import ToolError, interpret
from cleave.compiler.entrance import grouped
from recipe_runs import emit, random_inputs
from training_support import (ALL, compile_case, family, gpt2, named_tokens, same_bits, snapshot,
                              token_batches)

DROPOUT = dict(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, n_layer=4)
STEPS = 8


def adamw(clip):
    return cleave.AdamW(lr=cleave.cosine(1e-2, warmup=2, steps=20), weight_decay=0.1,
                        max_grad_norm=clip)


def sgd(clip):
    return cleave.SGD(lr=0.05, momentum=0.9, max_grad_norm=clip)


def compiled(optimizer, validated, *, make=None, **settings):
    torch.manual_seed(0)
    settings = {"mesh": {"pp": 2}, "micro_batches": 4, "schedule": "1f1b", **settings}
    return cleave.compile(make() if make else gpt2(**DROPOUT), named_tokens(batch=8),
                          optimizer=optimizer, seed=5,
                          **grouped(post_validation=validated, **settings))


def batches(count=STEPS):
    return token_batches(count, batch=8, ignored=3)


def train(step, data):
    return [step(*batch) for batch in data]


def between(optimizer, **settings):
    """A clip that scales some of the steps, and each of its sides."""
    norms = sorted(loss.grad_norm for loss in train(compiled(optimizer(1e9), False, **settings),
                                                   batches()))
    return (norms[len(norms) // 2 - 1] + norms[len(norms) // 2]) / 2


def check_equal(optimizer, **settings):
    """All losses, norms, weights and state are equal bit by bit, and of the steps that
    are clipped, and of these alone, each update was made again."""
    clip = between(optimizer, **settings)
    waiting = compiled(optimizer(clip), False, **settings)
    ahead = compiled(optimizer(clip), True, **settings)
    clipped = []
    for batch in batches():
        expected, loss = waiting(*batch), ahead(*batch)
        assert (loss, loss.grad_norm) == (expected, expected.grad_norm)
        assert same_bits(snapshot(ahead), snapshot(waiting)), loss.step
        clipped.append(loss.grad_norm > clip)
        assert (loss.updated_again > 0) == clipped[-1], loss.step
        assert expected.updated_again == 0
    assert any(clipped) and not all(clipped)


MESHES = [
    ({"pp": 2}, None, "1f1b", 1), ({"pp": 2}, None, "zb-h1", 1), ({"pp": 4}, None, "1f1b", 1),
    ({"pp": 2}, None, "interleaved", 2), ({"pp": 2}, None, "zb-v", 2), ({"pp": 2}, None, "gpipe", 1),
    ({"pp": 2, "dp": 2}, ["dp", "zero1"], "1f1b", 1),
    ({"pp": 2, "dp": 2}, ["dp", "zero3"], "zb-h1", 1),
    ({"pp": 2, "tp": 2}, ["megatron-sp"], "1f1b", 1),
]


EVERY = [(optimizer, *mesh) for optimizer in (adamw, sgd) for mesh in MESHES]
SAMPLE = ([(adamw, *mesh) for mesh in MESHES[4:7:2]]
          + [(sgd, *mesh) for mesh in MESHES[1:2]])


@pytest.mark.parametrize("optimizer, mesh, plan, schedule, chunks", EVERY if ALL else SAMPLE,
                         ids=lambda value: getattr(value, "__name__", str(value)))
def test_bits(optimizer, mesh, plan, schedule, chunks):
    check_equal(optimizer, mesh=mesh, plan=plan, schedule=schedule, virtual_stages=chunks)


def test_bits_in_deterministic_mode():
    check_equal(adamw, micro_batches=1, deterministic=4)


def test_nothing_is_made_again_without_a_clip():
    steps = [compiled(cleave.AdamW(lr=1e-2), validated) for validated in (False, True)]
    for batch in batches(4):
        losses = [step(*batch) for step in steps]
        assert losses[0] == losses[1] and losses[1].updated_again == 0
    assert same_bits(snapshot(steps[0]), snapshot(steps[1]))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_step_that_stops_is_taken_back(clip):
    """No label counts in one; in another, the norm is not a number."""
    optimizer = cleave.AdamW(lr=1e-2, max_grad_norm=clip)
    step, other = compiled(optimizer, True), compiled(optimizer, False)
    data = batches(3)
    for run in (step, other):
        run(*data[0])
    before = snapshot(step)
    ids, labels = data[1]
    with pytest.raises(cleave.StepError, match="no elements"):
        step(ids, torch.full_like(labels, -100))
    assert same_bits(snapshot(step), before)
    if clip:
        name = "transformer.h.3.mlp.c_fc.bias"
        good = step.state_dict()[name].clone()
        step.load_state_dict({**step.state_dict(), name: torch.full_like(good, torch.nan)})
        spoilt = snapshot(step)
        with pytest.raises(cleave.StepError, match="not finite"):
            step(*data[1])
        assert same_bits(snapshot(step), spoilt)
        step.load_state_dict({**step.state_dict(), name: good})
        assert same_bits(snapshot(step), before)
    for batch in data[1:]:
        assert step(*batch) == other(*batch)
    assert same_bits(snapshot(step), snapshot(other))


def test_memory_is_that_of_one_copy():
    without, report = (compiled(adamw(1.0), validated).report()["memory"]
                       for validated in (False, True))
    assert "train kept" not in without
    # Of the position that holds most; activations may lie there before.
    kept = report["train kept"]
    assert (report["parameter"] + report["state"]) / 2 <= kept
    assert kept <= report["parameter"] + report["state"]
    assert 0 < report["train peak"] - without["train peak"] <= kept
    assert report["train gradients"] <= 1.05 * without["train gradients"]


# ------------------------------------------------------------------ the oracle


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("flags", [
    ["--mesh=pp=2", "--schedule=1f1b"], ["--mesh=pp=4", "--schedule=zb-h1"],
    ["--mesh=pp=2,dp=2", "--plan=dp,zero1", "--schedule=1f1b"]], ids=lambda flags: flags[0])
@pytest.mark.parametrize("clip", ["1e9", "0.01"])
def test_interpreted_bits(tmp_path, name, flags, clip):
    flags = [*flags, "--micro-batches=2", f"--max-grad-norm={clip}", "--optimizer=adamw"]
    waiting = emit(tmp_path, name, "scheduled", *flags)
    ahead = emit(tmp_path, name, "scheduled", *flags, "--post-validation")
    assert "unless = " in ahead and "unless = " not in waiting
    inputs = random_inputs(emit(tmp_path, name, "step", "--optimizer=adamw"), seed=3)
    expected, _ = interpret(waiting, inputs, entry="train")
    results, _ = interpret(ahead, inputs, entry="train")
    assert expected.keys() == results.keys()
    for key, value in expected.items():
        assert value.tobytes() == results[key].tobytes(), key


def test_an_update_waits_for_no_other_stage(tmp_path):
    """In the schedule, nothing is received between a stage's norm and its update. The first stage
    has the norm of all, so that its update stands."""
    text = emit(tmp_path, "gpt2", "schedule", "--mesh=pp=4", "--micro-batches=4", "--max-grad-norm=1",
                "--schedule=zb-h1", "--post-validation")
    lists = [line.split() for line in text.splitlines()
             if re.search(r"\d?U\b", line) and not line.startswith("#")]
    assert len(lists) == 4
    for stage, actions in enumerate(lists):
        names = [re.sub(r"^\d*", "", action) for action in actions]
        own = names[names.index("N") + 1:names.index("U")]
        assert not any("<" in action for action in own), actions
        assert names.index("U") < names.index("V")
        assert "A" not in names if stage == 0 else names.index("V") < names.index("A")


# --------------------------------------------------------------------- refusals


@pytest.mark.parametrize("flags, message", [
    (["--mesh=dp=2"], "one stage"),
    (["--mesh=pp=2", "--optimizer-fusion=forward"], "in the next step"),
    (["--mesh=pp=2", "--schedule=pipedream", "--stages=model.layers.1",
      "--check-finite=off"],
     "after each micro-batch"),
], ids=lambda value: str(value))
def test_refusals(tmp_path, flags, message):
    with pytest.raises(ToolError) as error:
        emit(tmp_path, "llama", "scheduled", *flags, "--micro-batches=2", "--post-validation")
    assert message in str(error.value)


@pytest.mark.parametrize("clip, again", [(100.0, False), (0.05, True)])
def test_what_is_sent_is_counted(clip, again):
    """The report tells what every step sends from what an update that is made again
    sends more, and a step counts both. Rank 0 has the first stage, whose update stands, and the
    third."""
    step = compile_case(family("gpt2", batch=8), cleave.AdamW(lr=1e-3, max_grad_norm=clip),
                        mesh={"pp": 2, "dp": 2}, plan="zero1", micro_batches=2,
                        schedule="interleaved", virtual_stages=2, post_validation=True)
    loss = step(*family("gpt2", batch=8).batches[0])
    assert (loss.updated_again > 0) == again
    report = step.report()["communication"]["train"]["positions"][0]
    more = report["updated_again"]["elements"]
    assert more > 0 and "a repeated update sends" in step.explain("full")
    sent = sum(c["elements"] for c in step.communication())
    assert sent == report["elements"] + (more if again else 0)
