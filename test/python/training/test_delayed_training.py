# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Delayed updates in training: bits, recurrences, stability, checkpoints."""

import numpy as np
import pytest
import torch

import cleave
from cleave.models import gpt
from cleave.compiler.entrance import grouped
from delayed_updates import AdamW, Line, Momentum, SAMPLES, Sgd, WIDTH, recurrence, samples
from proofs import ALL
from training_support import same_bits, snapshot

START = {"weight": np.linspace(-1, 1, WIDTH), "bias": np.array([0.5])}


def line(optimizer, **options):
    model = Line()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(START[name]))
    example = (torch.zeros(SAMPLES, WIDTH), torch.zeros(SAMPLES))
    return cleave.compile(model, example, optimizer=optimizer, check="off", **grouped(**options))


@pytest.mark.parametrize("rule, optimizer, clip", [
    (Sgd(), cleave.SGD(lr=0.0625), 0), (Momentum(), cleave.SGD(lr=0.0625, momentum=0.9), 0),
    (AdamW(), cleave.AdamW(lr=0.0625, weight_decay=0.1), 0),
    (AdamW(), cleave.AdamW(lr=0.0625, weight_decay=0.1, max_grad_norm=0.25), 0.25)],
    ids=["sgd", "momentum", "adamw", "clipped"])
@pytest.mark.parametrize("delay", [1, 2, 3, 4] if ALL else [1, 3])
def test_twenty_steps_are_the_recurrence(rule, optimizer, clip, delay):
    step = line(optimizer, update_delay=delay)
    expected = recurrence(rule, {name: delay for name in START}, START, samples(20), 0.0625, clip)
    for number, (batch, values) in enumerate(zip(samples(20), expected, strict=True)):
        before = snapshot(step)
        step(*(torch.from_numpy(x).float() for x in batch))
        found = step.state_dict()
        for name, value in values.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5)
        if number < delay:
            # Neither weights nor moments change.
            after = snapshot(step)
            assert same_bits((after[0], {}, 0), (before[0], {}, 0))
            assert all(torch.equal(value, before[1][key]) for key, value in after[1].items()
                       if not key[1].startswith("pending_"))


class Parabola(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x * self.w ** 2).mean() / 2


@pytest.mark.parametrize("delay", range(5) if ALL else [0, 1, 4])
def test_a_parabola_is_stable_below_the_limit(delay):
    """Half a w^2 with curvature 1: stable if the learning rate is below 2 sin(pi / (4 d + 2))."""
    limit = 2 * np.sin(np.pi / (4 * delay + 2))
    assert abs(limit - [2, 1, 0.618, 0.445, 0.347][delay]) < 1e-3
    ones = torch.ones(2)
    for factor in (0.98, 1.02):
        step = cleave.compile(Parabola(), (ones,), optimizer=cleave.SGD(lr=float(factor * limit)),
                              target=cleave.Target(threads=1),
                              lossy=cleave.Lossy(update_delay=delay), check="off",
                              numerics=cleave.Numerics(check_finite=False))
        losses = [float(step(ones)) for _ in range(1200)]
        first, last = max(losses[:50]), max(losses[-50:])
        assert (last < first / 10) if factor < 1 else not last < first * 10, (factor, first, last)


def compiled(delay=None, mesh=None, **options):
    torch.manual_seed(0)
    model = gpt(hidden=32, heads=2, layers=1, seq=16, vocab=64)
    ids = torch.randint(0, 64, (8, 16))
    return cleave.compile(model, (ids, ids),
                          **grouped(**{"optimizer": cleave.AdamW(lr=1e-2, max_grad_norm=1.0), "check": "off",
                             "mesh": mesh, **options}, **{} if delay is None else {"update_delay": delay}))


def train(step, count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    batches = [torch.randint(0, 64, (8, 16), generator=generator) for _ in range(count)]
    return [float(step(ids, ids)) for ids in batches]


def test_no_delay_has_the_bits_of_no_option():
    plain, none, listed = compiled(), compiled(0), compiled({"*": 0})
    assert train(plain, 3) == train(none, 3) == train(listed, 3)
    assert same_bits(snapshot(plain), snapshot(none))


LAYOUTS = [
    dict(micro_batches=4), dict(mesh={"dp": 2}, plan="zero1", micro_batches=2),
    dict(mesh={"dp": 2, "tp": 2}, plan="megatron"), dict(mesh={"dp": 2}, plan="zero3"),
    dict(mesh={"pp": 2}, schedule="1f1b", micro_batches=2),
    dict(mesh={"dp": 2}, offload=["state"]),
    dict(optimizer_fusion="backward", check_finite=False,
         optimizer=cleave.AdamW(lr=1e-2)),
]


@pytest.mark.parametrize("layout", LAYOUTS if ALL else LAYOUTS[1::2], ids=str)
def test_layouts_train_alike(layout):
    """Losses and all state of one device, to rounding."""
    plain = {"optimizer": layout["optimizer"]} if "optimizer" in layout else {}
    one, other = compiled(2, **plain), compiled(2, **layout)
    np.testing.assert_allclose(train(other, 6), train(one, 6), rtol=1e-4)
    expected = snapshot(one)
    for key, value in snapshot(other)[1].items():
        scale = expected[1][key].abs().max() + 1e-3
        assert ((value - expected[1][key]).abs().max() <= 2e-2 * scale), key


@pytest.mark.parametrize("save, load", [
    (dict(mesh={"dp": 2}, plan="zero1"), dict(mesh={"dp": 2}, plan="zero1")),
    (dict(mesh={"dp": 2}, plan="zero1"), dict(mesh={"dp": 4}, plan="zero1")),
    (dict(mesh={"pp": 2}, schedule="gpipe", micro_batches=2), dict(mesh={"dp": 2}))], ids=str)
def test_resumed_steps(save, load, tmp_path):
    """Pending gradients are in the checkpoint. On the same mesh the bits are the same; on another
    one the state is, and the losses to rounding."""
    first = compiled(2, **save)
    train(first, 3)
    first.save(tmp_path / "state")
    again = compiled(2, **load)
    again.load(tmp_path / "state")
    kept = [key for key in snapshot(again)[1] if key[1].startswith("pending_")]
    assert kept and all(snapshot(again)[1][key].any() for key in kept)
    assert same_bits(snapshot(again), snapshot(first))
    losses = train(first, 3, seed=2)
    if save == load:
        assert train(again, 3, seed=2) == losses
        assert same_bits(snapshot(again), snapshot(first))
    else:
        np.testing.assert_allclose(train(again, 3, seed=2), losses, rtol=1e-4)


NEXT = {"*": 1, "reduce": "next"}


@pytest.mark.parametrize("layout", [
    dict(mesh={"dp": 2}), dict(mesh={"dp": 4}, plan="zero1", micro_batches=2),
    dict(mesh={"pp": 2, "dp": 2}, schedule="1f1b", micro_batches=2)], ids=str)
def test_reductions_of_the_next_step(layout, tmp_path):
    """What trains is the same as with reductions of the own step, to rounding. A resumed run has
    the same bits, and one with another number of workers the same sum."""
    one, other = compiled(1), compiled(NEXT, **layout)
    np.testing.assert_allclose(train(other, 4), train(one, 4), rtol=1e-4)
    other.save(tmp_path / "state")
    again = compiled(NEXT, **layout)
    again.load(tmp_path / "state")
    half = compiled(NEXT, mesh={"dp": 8 // layout["mesh"]["dp"]})
    half.load(tmp_path / "state")
    losses = train(other, 3, seed=2)
    assert train(again, 3, seed=2) == losses
    assert same_bits(snapshot(again), snapshot(other))
    np.testing.assert_allclose(train(half, 3, seed=2), losses, rtol=1e-4)


def test_state_that_waits_in_another_form_is_refused(tmp_path):
    first = compiled(1, mesh={"dp": 2})
    train(first, 1)
    first.save(tmp_path / "state")
    with pytest.raises(ValueError, match=r"pending_1' is F32 .* in the file"):
        compiled(NEXT, mesh={"dp": 2}).load(tmp_path / "state")


def test_a_checkpoint_of_another_delay_is_refused(tmp_path):
    step = compiled(1)
    step.save(tmp_path / "state")
    with pytest.raises((ValueError, cleave.StepError), match="pending_2"):
        compiled(2).load(tmp_path / "state")


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_losses_of_16_bits_fall(precision):
    step = compiled(1, precision=precision)
    ids = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(4))
    losses = [float(step(ids, ids)) for _ in range(20)]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("delay, error, message", [
    (-1, ValueError, "a delay is 0 to 16 steps, not -1"),
    (1.5, TypeError, "update_delay is a text, not 1.5"),
    ({"a,b": 1}, ValueError, "patterns have no comma"), ({1: 1}, TypeError, "patterns of"),
    (17, cleave.CompileError, "a delay is 0 to 16 steps, not 17"),
    ({"nothing": 1}, cleave.CompileError, "'nothing' matches no parameter")])
def test_bad_delays(delay, error, message):
    with pytest.raises(error, match=message):
        line(cleave.SGD(lr=0.1), update_delay=delay)


def test_skipped_steps_of_fp16_are_as_if_they_had_not_been():
    """From 2^32 the first steps overflow; then each step has the bits of a run that begins with
    the scale at which none does."""
    def trained(init):
        torch.manual_seed(0)
        model = gpt(hidden=32, heads=2, layers=1, seq=16, vocab=64)
        ids = torch.randint(0, 64, (8, 16))
        return cleave.compile(model, (ids, ids), optimizer=cleave.AdamW(lr=1e-2), check="off",
                              lossy=cleave.Lossy(update_delay=2),
                              precision=cleave.Precision("fp16", loss_scale=cleave.LossScale(init=init, hysteresis=1))), ids

    step, ids = trained(2.0**32)
    before, tried = snapshot(step), 0
    while step(ids, ids).skipped:
        tried += 1
        assert same_bits(snapshot(step)[:2] + (0,), before[:2] + (0,))
    assert tried > 3
    fresh, _ = trained(step.loss_scale)
    fresh(ids, ids)
    for _ in range(5):
        assert float(step(ids, ids)) == float(fresh(ids, ids))
    assert same_bits(snapshot(step)[:2] + (0,), snapshot(fresh)[:2] + (0,))


def test_gradients_wait_without_the_scale_of_their_step():
    """It doubles after each step here: losses are those of one scale."""
    def losses(scale):
        torch.manual_seed(0)
        model = gpt(hidden=32, heads=2, layers=1, seq=16, vocab=64)
        ids = torch.randint(0, 64, (8, 16))
        step = cleave.compile(model, (ids, ids), optimizer=cleave.SGD(lr=0.5), check="off",
                              lossy=cleave.Lossy(update_delay=2),
                              precision=cleave.Precision("fp16", loss_scale=scale))
        found = [float(step(ids, ids)) for _ in range(8)]
        assert not step.skipped
        return found, step.loss_scale

    kept, _ = losses(cleave.LossScale(init=2.0**4, window=1000))
    doubled, scale = losses(cleave.LossScale(init=2.0**4, window=1))
    assert scale == 2.0**12 and kept[-1] < kept[0] - 0.1
    assert doubled == pytest.approx(kept, rel=1e-3)
