# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""fp16: the loss is scaled, and a step whose gradients overflow is skipped.

The judges: PyTorch's autocast and `GradScaler`; Megatron's published rule, whose scale comes from
2^32 to 2^16 in 17 skipped steps; the step in f32.
"""

import copy

import pytest
import torch

import cleave
from mixed_precision import batch, compiled, losses, model
from proofs import ALL


def fp16(own=None, **options):
    return compiled(model() if own is None else own, precision="fp16", **options)


def state(step):
    """All that a skipped step must leave as it is."""
    training = step.training_state()
    return {**step.state_dict(), **{
        f"{name}.{slot}": value for name, slots in training["optimizer"].items()
        for slot, value in slots.items()}}


def same(one, two):
    return one.keys() == two.keys() and all(
        torch.equal(value, two[name]) for name, value in one.items())


def spiked(own, block):
    """A model with one weight after which gradients overflow, and whose forward is as without:
    what it multiplies is 0."""
    feed_forward = own.blocks[block].feed_forward
    with torch.no_grad():
        if hasattr(feed_forward, "router"):
            feed_forward.up[:, 200] = 0
            feed_forward.down[3, :, 200] = 3e4
        else:
            feed_forward.up.weight[200] = 0
            feed_forward.up.bias[200] = 0
            feed_forward.down.weight[:, 200] = 3e4
    return own


# ---------------------------------------------------------------------- values


@pytest.fixture(scope="module")
def plain():
    return losses(compiled(model())), losses(fp16())


def test_trains_as_f32_does(plain):
    """fp16 has three bits more than bf16."""
    assert plain[0] != plain[1]
    assert plain[1] == pytest.approx(plain[0], rel=3e-4)


@pytest.fixture
def one_thread():
    """The order of eager sums, and so their rounding, depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_as_near_to_f32_as_autocast(plain, one_thread):
    own = model()
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu")
    theirs = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = own(**batch())[0]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        theirs.append(float(loss.detach()))
    assert plain[1] == pytest.approx(theirs, rel=1e-3)
    distance = max(abs(a - b) for a, b in zip(theirs, plain[0]))
    assert max(abs(a - b) for a, b in zip(plain[1], plain[0])) <= 2 * distance


@pytest.mark.parametrize("options", [
    dict(mesh={"dp": 2}), dict(mesh={"dp": 2}, plan="zero1"), dict(mesh={"dp": 2}, plan="zero3"),
    dict(mesh={"tp": 2}, plan="megatron-sp"), dict(mesh={"cp": 2}, plan="ring"),
    dict(mesh={"row": 2, "col": 2}, plan="summa2d"),
    dict(mesh={"pp": 2}, micro_batches=2, schedule="zb-h1"),
    dict(mesh={"pp": 2}, micro_batches=2, post_validation=True,
         optimizer=cleave.AdamW(lr=1e-3, max_grad_norm=1e3)),
    dict(optimizer_fusion="forward"), dict(micro_batches=2),
    dict(optimizer=cleave.AdamW(lr=1e-3, max_grad_norm=1e3)), dict(residual="f32"),
], ids=str)
def test_layouts_agree(options, plain):
    assert losses(fp16(**options)) == pytest.approx(plain[1], rel=3e-4)


@pytest.mark.parametrize("optimizer", [
    cleave.AdamW(lr=1e-3), cleave.SGD(lr=0.1, momentum=0.9), cleave.Lion(lr=1e-3),
    cleave.Adafactor(lr=1e-2), cleave.AdamW8bit(lr=1e-3), cleave.Muon(lr=1e-2, param_groups=[
        dict(match=lambda n, p: p.ndim < 2, optimizer=cleave.AdamW(lr=1e-3))]),
    cleave.SGD(lr=0.1, max_grad_norm=0.1)], ids=lambda o: type(o).__name__)
def test_updates_do_not_depend_on_the_scale(optimizer):
    """By a power of two, which rounds nothing where nothing underflows."""
    one, two = (fp16(optimizer=optimizer, loss_scale=scale) for scale in (1024.0, 4096.0))
    assert losses(one, 3) == pytest.approx(losses(two, 3), rel=1e-5)
    assert float(one.last) < losses(fp16(optimizer=optimizer), 1)[0]


def test_small_gradients_survive():
    """Without a scale, gradients below 2^-24 are lost: those of a loss that is divided."""

    class Divided(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, input_ids, labels):
            return self.inner(input_ids=input_ids, labels=labels)[0] * 1e-6

    def moved(**options):
        step = compiled(Divided(), optimizer=cleave.SGD(lr=1e6), **options)
        before = step.state_dict()
        step(**batch())
        return torch.cat([(step.state_dict()[n] - before[n]).flatten() for n in before])

    exact = moved()
    scaled = moved(precision="fp16", loss_scale=2.0**24)
    lost = moved(precision="fp16", loss_scale=1.0)
    assert (scaled - exact).norm() <= 0.01 * exact.norm()
    assert (lost - exact).norm() >= 0.1 * exact.norm()


# ----------------------------------------------------------------------- skips


SKIPPING = [
    {}, dict(micro_batches=2), dict(mesh={"dp": 2}), dict(mesh={"dp": 2}, plan="zero1"),
    dict(mesh={"dp": 2}, plan="zero3"), dict(mesh={"tp": 2}, plan="megatron"),
    dict(mesh={"tp": 2}, plan="megatron-sp"), dict(mesh={"row": 2, "col": 2}, plan="summa2d"),
    dict(mesh={"pp": 2}, micro_batches=2, schedule="1f1b"),
    dict(mesh={"pp": 2}, micro_batches=2, schedule="zb-h1"),
    dict(mesh={"pp": 2}, micro_batches=2, post_validation=True,
         optimizer=cleave.AdamW(lr=1e-3, max_grad_norm=1.0)),
    dict(mesh={"pp": 2, "dp": 2, "tp": 2}, plan="megatron", micro_batches=2),
    dict(optimizer_fusion="forward"), dict(optimizer=cleave.AdamW(lr=1e-3, max_grad_norm=1.0)),
    dict(optimizer=cleave.Adafactor(lr=1e-2)), dict(optimizer=cleave.AdamW8bit(lr=1e-3)),
    dict(family="mixtral", mesh={"ep": 2}, plan="expert"),
    dict(mesh={"dp": 2}, plan="zero1", offload=["state", "masters", "saved"]),
]


@pytest.mark.parametrize("options, block", [
    (options, block) for i, options in enumerate(SKIPPING) for block in (0, 1)
    if ALL or i % 2 == block], ids=str)
def test_one_overflow_skips_on_all_ranks(options, block):
    """What overflows is one weight's part of one rank: a column of a shard, of a stage, an
    expert's, from the samples of one replica."""
    options = dict(options)
    own = model(options.pop("family", "gpt"))
    good = copy.deepcopy(own)
    # The plain model stands eight times as much.
    scaling = cleave.LossScale(init=2.0**18)
    step = fp16(spiked(own, block), loss_scale=scaling, **options)
    inputs = batch()
    # Samples of one replica alone have labels.
    inputs["labels"] = inputs["labels"].clone()
    inputs["labels"][:2] = -100
    before = state(step)
    first = step(**inputs)
    assert first.skipped.endswith("not finite") and first != first
    assert (step.step, step.skipped, step.loss_scale) == (1, 1, 2.0**18)
    assert same(state(step), before)
    second = step(**inputs)
    assert second.skipped and (step.step, step.skipped, step.loss_scale) == (2, 2, 2.0**17)
    assert same(state(step), before)
    assert float(step.evaluate(**batch())) < 10

    # It goes on as a run that has not seen these steps, from the same scale.
    step.load_state_dict(good.state_dict())
    found = losses(step, 3)
    assert (step.step, step.skipped) == (5, 2) and not step.last.skipped
    fresh = fp16(good, loss_scale=cleave.LossScale(init=2.0**17), **options)
    assert losses(fresh, 3) == found
    assert same(state(step), state(fresh))


def test_scale_falls_to_where_gradients_are_finite():
    """From 2^32, Megatron's start, with its hysteresis: one overflow more than halvings."""
    step = fp16(loss_scale=cleave.LossScale(init=2.0**32, hysteresis=2))
    scales = []
    while not scales or step.last.skipped:
        scales.append(step.loss_scale)
        step(**batch())
        assert len(scales) < 34
    assert scales[:3] == [2.0**32, 2.0**32, 2.0**31]
    assert all(a == 2 * b for a, b in zip(scales[1:], scales[2:]))
    assert step.skipped == len(scales) - 1


def test_rule_is_that_of_torch():
    """Without hysteresis, Megatron's rule is `GradScaler`'s."""
    scaling = cleave.LossScale(init=2.0**20, window=2, hysteresis=1)
    step = fp16(optimizer=cleave.SGD(lr=0.0), loss_scale=scaling)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    seen = set()
    for _ in range(12):
        assert step.loss_scale == theirs.get_scale()
        overflows = bool(step(**batch()).skipped)
        seen.add(overflows)
        theirs.scale(weight.sum())  # makes the scale
        weight.grad = torch.full((1,), float("inf") if overflows else 1.0)
        theirs.step(optimizer)
        theirs.update()
    assert seen == {True, False}


def test_learning_rate_counts_updates():
    step = fp16(spiked(model(), 0), loss_scale=cleave.LossScale(init=2.0**18),
                optimizer=cleave.AdamW(lr=cleave.linear(1e-3, warmup=4, steps=100)))
    rates = [step(**batch()).lr for _ in range(3)]
    assert step.skipped == 3 and len(set(rates)) == 1
    step.load_state_dict(model().state_dict())
    assert step(**batch()).lr == rates[0] < step(**batch()).lr


@pytest.mark.parametrize("scale, why", [
    (cleave.LossScale(init=4.0, hysteresis=1), "at its minimum of 1"),
    (2.0**16, "constant, 65536"),
])
def test_overflow_that_no_scale_helps(scale, why):
    own = model()
    with torch.no_grad():
        own.blocks[1].feed_forward.down.bias.fill_(1e5)  # no fp16
    step = fp16(own, loss_scale=scale)
    before, skips = state(step), 0
    with pytest.raises(cleave.StepError, match=why):
        while skips < 10:
            step(**batch())
            skips += 1
    assert skips == step.step == step.skipped == (2 if why[:2] == "at" else 0)
    assert same(state(step), before)


def test_other_errors_do_not_skip():
    """What is wrong with the inputs ends the run, whatever overflows."""
    step = fp16(spiked(model(), 0), mesh={"pp": 2}, micro_batches=2)
    nothing = batch()
    nothing["labels"] = torch.full_like(nothing["labels"], -100)
    with pytest.raises(cleave.StepError, match="no elements"):
        step(**nothing)
    assert (step.step, step.skipped) == (0, 0)


# ----------------------------------------------------------------- checkpoints


def test_resumed_steps_have_the_same_bits(tmp_path):
    scaling = cleave.LossScale(init=2.0**20, window=2)
    first = fp16(model(dropout=0.1), loss_scale=scaling)
    losses(first, 8)
    assert first.skipped > 0
    first.save(tmp_path / "state")
    kept = first.training_state(), first.state_dict()
    more = losses(first, 4)
    again = fp16(model(dropout=0.1), loss_scale=scaling)
    again.load(tmp_path / "state")
    assert (again.step, again.skipped, again.loss_scale) == (
        8, kept[0]["skipped"], kept[0]["loss_scale"]["scale"])
    assert str(losses(again, 4)) == str(more)  # NaN of a skipped step
    assert same(state(again), state(first))
    third = fp16(model(dropout=0.1), loss_scale=scaling)
    third.load_state_dict(kept[1])
    third.load_training_state(kept[0])
    assert str(losses(third, 4)) == str(more)


def test_checkpoints_of_other_precisions(tmp_path):
    """The number of updates goes with the run, the scale with fp16."""
    first = fp16(loss_scale=cleave.LossScale(init=2.0**30))
    losses(first, 4)
    assert first.skipped == 4
    first.save(tmp_path / "half")
    other = compiled(model())
    other.load(tmp_path / "half")
    assert (other.step, other.skipped, other.loss_scale) == (4, 4, None)
    assert losses(other, 2) == losses(compiled(model()), 2)
    other.save(tmp_path / "full")
    first.load(tmp_path / "full")
    assert (first.step, first.skipped, first.loss_scale) == (6, 4, 2.0**30)


@pytest.mark.parametrize("change, error", [
    (dict(skipped=9), "more than"), (dict(skipped=-1), "out of range"),
    (dict(loss_scale={"scale": 0.0, "growth": 0, "hysteresis": 0}), "out of range"),
    (dict(loss_scale={"scale": float("nan"), "growth": 0, "hysteresis": 0}), "out of range"),
    (dict(loss_scale={"scale": 1.0}), "has no growth"), (dict(loss_scale=3.0), "not a dict"),
])
def test_bad_training_states(change, error):
    step = fp16()
    losses(step, 1)
    kept = step.training_state()
    with pytest.raises((ValueError, KeyError, TypeError), match=error):
        step.load_training_state(kept | change)
    assert str(step.training_state()) == str(kept)


# --------------------------------------------------------------------- options


@pytest.mark.parametrize("options, error, message", [
    (dict(loss_scale=2.0), ValueError, "needs precision"),
    (dict(precision="fp16", loss_scale=0.0), ValueError, "must be positive"),
    (dict(precision="fp16", loss_scale=float("nan")), ValueError, "must be positive"),
    (dict(precision="fp16", loss_scale="moves"), ValueError, "expected dynamic or a number, not 'moves'"),
    (dict(precision="fp16", loss_scale=True), TypeError, "loss_scale is a text, not True"),
    (dict(precision="fp16", check_finite=False), cleave.CompileError, "fp16 skips a step"),
    (dict(precision="fp16", optimizer_fusion="backward"), cleave.CompileError, "or use bf16"),
    (dict(precision="fp16", mesh={"pp": 2}, micro_batches=2, schedule="pipedream"),
     cleave.CompileError, "choose a synchronous schedule, or bf16"),
], ids=str)
def test_contradictions(options, error, message):
    with pytest.raises(error, match=message):
        compiled(model(), **options)


@pytest.mark.parametrize("settings, error", [
    (dict(init=0), ValueError), (dict(init=2.0**128), ValueError), (dict(init="1"), TypeError),
    (dict(window=0), ValueError), (dict(window=1.5), TypeError), (dict(hysteresis=0), ValueError),
    (dict(init=1.0, min=2.0), ValueError), (dict(min=-1.0), ValueError),
])
def test_bad_scales(settings, error):
    with pytest.raises(error, match="LossScale"):
        cleave.LossScale(**settings)
