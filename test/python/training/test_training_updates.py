# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Optimizers, clipping, accumulation and schedules of compiled steps against
PyTorch's."""

import math

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import cleave
from training_support import (Case, cleave_run, compile_case, family, gpt2, net, same_bits,
                              snapshot, token_batches, token_loss, torch_run, weights)


def hand_case(**settings):
    return Case(lambda: net(**settings), token_batches(), token_loss)


def check_updates(ours, case, steps, make_optimizer, **settings):
    """Losses as PyTorch's; updates at most twice as far from f64 as PyTorch's."""
    single = torch_run(case, steps, make_optimizer, **settings)
    double = torch_run(case, steps, make_optimizer, double=True, **settings)
    np.testing.assert_allclose(ours.losses, single.losses, rtol=1e-5)
    if single.norms:
        np.testing.assert_allclose(ours.norms, double.norms, rtol=1e-5)
    for name, exact in double.updates.items():
        error = float((ours.updates[name] - exact).norm())
        own = float((single.updates[name] - exact).norm())
        # Few elements agree with f64 by chance: not below one rounding of the
        # weights, which each step makes anew, and four of the update.
        size = float((case.build().get_parameter(name).detach().double()).norm())
        bound = 2 * own + 2.0 ** -24 * size + 2.0 ** -22 * float(exact.norm())
        assert error <= bound, (name, error, own, float(exact.norm()))
    return single, double


# ------------------------------------------------------------------ optimizers


@pytest.mark.parametrize("settings", [
    dict(),
    dict(weight_decay=0.1),
    dict(momentum=0.9),
    dict(momentum=0.9, dampening=0.5, weight_decay=0.1),
    dict(momentum=0.9, nesterov=True, weight_decay=0.1),
], ids=lambda s: "-".join(s) or "plain")
def test_sgd(settings):
    case = hand_case()
    ours = cleave_run(case, 6, cleave.SGD(lr=0.1, **settings))
    check_updates(ours, case, 6, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, **settings))


class Slopes(nn.Module):
    """A model whose gradient is what the input says."""

    def __init__(self, size=64):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.still = nn.Parameter(torch.linspace(0.5, 2, size))

    def forward(self, slopes):
        return (self.weight * slopes).sum() + (self.still * slopes * 0.0).sum()


def slopes_case(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(5):
        sign = torch.randint(0, 2, (64,), generator=generator) * 2.0 - 1
        batches.append((sign * size,))
    case = Case(Slopes, batches)
    case.loss = lambda module, batch: module(*batch)
    return case


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-18, 1e3])
def test_adamw_with_tiny_gradients(size):
    """Where eps is not small beside the gradients, its place matters."""
    case = slopes_case(size)
    ours = cleave_run(case, 10, cleave.AdamW(lr=1e-3, weight_decay=0.0))
    exact = torch_run(case, 10, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3,
                                                            weight_decay=0.0), double=True)
    for name in ours.updates:
        torch.testing.assert_close(ours.updates[name], exact.updates[name], rtol=2e-6, atol=0)
    assert float(exact.updates["weight"].abs().max()) > 0


def test_decay_is_decoupled():
    """A parameter without gradient decays by the rate alone, in every step."""
    case = slopes_case(1e-3)
    for decay, expected in ((0.1, (1 - 0.01 * 0.1) ** 10), (0.0, 1.0)):
        step = compile_case(case, cleave.AdamW(lr=0.01, weight_decay=decay))
        for number in range(10):
            step(*case.batches[number % 5])
        still = step.state_dict()["still"].double()
        torch.testing.assert_close(still, Slopes().still.detach().double() * expected, rtol=1e-6,
                                   atol=0)


def test_excluded_parameters_and_groups():
    case = hand_case()
    head = lambda name, p: name.startswith("head")
    optimizer = cleave.AdamW(lr=1e-2, weight_decay=0.5, no_decay=lambda name, p: p.ndim < 2,
                             param_groups=[dict(match=head, lr_scale=0.1)])

    def make(module):
        named = dict(module.named_parameters())
        groups = []
        for name, p in named.items():
            groups.append(dict(params=[p], lr=1e-3 if head(name, p) else 1e-2,
                               weight_decay=0.0 if p.ndim < 2 else 0.5))
        return torch.optim.AdamW(groups)

    ours = cleave_run(case, 10, optimizer)
    check_updates(ours, case, 10, make)
    # What is excluded moves otherwise when it decays: the test can fail.
    other = cleave_run(case, 10, cleave.AdamW(lr=1e-2, weight_decay=0.5))
    assert float((other.updates["after.weight"] - ours.updates["after.weight"]).norm()) > 1e-2


def test_adamw_settings():
    case = hand_case()
    settings = dict(lr=3e-3, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3)
    ours = cleave_run(case, 10, cleave.AdamW(**settings))
    check_updates(ours, case, 10, lambda m: torch.optim.AdamW(m.parameters(), **settings))


# -------------------------------------------------------------------- clipping


@pytest.mark.parametrize("parts", [1, 4])
def test_clipping(parts):
    """GPT-2's embedding is tied to its head and counts once."""
    case = family("gpt2")
    ours = cleave_run(case, 5, cleave.SGD(lr=0.1, max_grad_norm=0.5), micro_batches=parts)
    single, _ = check_updates(ours, case, 5, lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
                              clip=0.5)
    assert min(single.norms) > 0.5


def test_clipping_scale():
    """The scale is min(1, c / (norm + 1e-6)), also where 1e-6 matters."""
    for size, limit in ((1e-6, 1e-6), (1e-6, 1.0), (1.0, 0.25), (1.0, 100.0)):
        case = slopes_case(size)
        run = cleave_run(case, 1, cleave.SGD(lr=1.0, max_grad_norm=limit))
        norm = size * 8
        assert run.norms == [pytest.approx(norm, rel=1e-6)]
        expected = -case.batches[0][0].double() * min(1.0, limit / (norm + 1e-6))
        torch.testing.assert_close(run.updates["weight"], expected, rtol=2e-6, atol=0)


def test_without_effect_clipping_changes_no_bit():
    case = hand_case()
    first, second = (compile_case(case, cleave.AdamW(max_grad_norm=c)) for c in (1e6, 1e9))
    for batch in case.batches:
        assert first(*batch) == second(*batch)
    assert same_bits(snapshot(first), snapshot(second))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_loss_that_is_not_finite(value, parts):
    case = hand_case()
    step = compile_case(case, cleave.AdamW(max_grad_norm=1.0), micro_batches=parts)
    step(*case.batches[0])
    state = step.state_dict()
    state["down.bias"][3] = value
    step.load_state_dict(state)
    before = snapshot(step)
    with pytest.raises(cleave.StepError, match="the loss is not finite"):
        step(*case.batches[1])
    assert same_bits(snapshot(step), before)
    # The step goes on from weights that are sound.
    state["down.bias"][3] = 0.0
    step.load_state_dict(state)
    assert step(*case.batches[1]).step == 2


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("settings", [{}, {"mesh": {"tp": 2}, "plan": {"weight": cleave.P("tp")}}],
                         ids=["one", "tp"])
def test_norm_that_is_not_finite(settings, check):
    """The loss and each gradient are finite, and the sum of the squares is not."""
    case = slopes_case(1e25)
    module, batch = case.build(), case.batches[0]
    loss = module(*batch)
    loss.backward()
    squares = module.weight.grad.square().sum()
    assert loss.isfinite() and module.weight.grad.isfinite().all() and squares.isinf()

    step = compile_case(case, cleave.SGD(lr=1e-30, max_grad_norm=1.0), check_finite=check, **settings)
    before = snapshot(step)
    with pytest.raises(cleave.StepError, match="the norm of the gradients is not finite"):
        step(*batch)
    assert same_bits(snapshot(step), before)
    # Without a clip each gradient is looked at alone.
    free = compile_case(case, cleave.SGD(lr=1e-30), check_finite=check, **settings)
    free(*batch)
    torch.testing.assert_close(free.state_dict()["weight"], -1e-30 * batch[0])


# ---------------------------------------------------------------- accumulation


def uneven(labels):
    """Labels of which the samples keep 7, 2, 5 and 8 of 8."""
    labels = labels.clone()
    for sample, kept in enumerate((7, 2, 5, 8)):
        labels[sample, kept:] = -100
    return labels


@pytest.mark.parametrize("name", ["gpt2", "net"])
def test_accumulation_counts_tokens(name):
    """Four parts with unequal numbers of labels are one batch."""
    case = family("gpt2") if name == "gpt2" else hand_case()
    case.batches = [(ids, uneven(labels)) for ids, labels in case.batches]
    optimizer = cleave.AdamW(lr=1e-3, max_grad_norm=1.0)
    whole = cleave_run(case, 4, optimizer)
    parts = cleave_run(case, 4, optimizer, micro_batches=4)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=2e-6)
    exact = torch_run(case, 4, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3), double=True,
                      clip=1.0)
    np.testing.assert_allclose(parts.losses, exact.losses, rtol=1e-5)
    np.testing.assert_allclose(parts.norms, exact.norms, rtol=1e-5)
    scale = min(1.0, 1.0 / (exact.norms[0] + 1e-6))
    largest = max(float(g.norm()) for g in exact.gradients.values())
    for gradient, run in ((g, r) for r in (whole, parts) for g in r.gradients):
        error = float((run.gradients[gradient] - scale * exact.gradients[gradient]).norm())
        assert error <= 1e-5 * max(scale * float(exact.gradients[gradient].norm()),
                                   1e-2 * largest), gradient


def test_part_without_labels_adds_nothing():
    case = family("gpt2")
    ids, labels = case.batches[0]
    labels = labels.clone()
    labels[2] = -100
    ours = cleave_run(Case(case.build, [(ids, labels)]), 1, cleave.SGD(lr=1.0, momentum=0.5),
                      micro_batches=4)
    kept = [0, 1, 3]
    exact = torch_run(Case(case.build, [(ids[kept], labels[kept])]), 1,
                      lambda m: torch.optim.SGD(m.parameters(), lr=1.0), double=True)
    assert ours.losses == [pytest.approx(exact.losses[0], rel=1e-6)]
    for name, update in exact.updates.items():
        size = float(case.build().get_parameter(name).detach().double().norm())
        assert float((ours.updates[name] - update).norm()) <= 1e-5 * float(update.norm()) \
            + 1e-7 * size, name


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("parts", [1, 4])
def test_step_without_labels_is_an_error(parts, clip):
    case = family("gpt2")
    step = compile_case(case, cleave.AdamW(max_grad_norm=clip), micro_batches=parts)
    step(*case.batches[0])
    before = snapshot(step)
    ids, labels = case.batches[1]
    with pytest.raises(cleave.StepError, match="every target of this batch is ignored"):
        step(ids, torch.full_like(labels, -100))
    assert same_bits(snapshot(step), before)
    assert step(ids, labels).step == 2


# ------------------------------------------------------------------- schedules


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_schedule(kind):
    case = hand_case()
    steps = {} if kind == "constant" else dict(steps=10)
    make = getattr(transformers, f"get_{kind}_schedule_with_warmup")
    extra = {} if kind == "constant" else dict(num_training_steps=10)
    schedule = lambda optimizer: make(optimizer, num_warmup_steps=3, **extra)
    rates = []
    ours_optimizer = cleave.AdamW(lr=getattr(cleave, kind)(1e-2, warmup=3, **steps))
    step = compile_case(case, ours_optimizer)
    start = weights(step)
    losses = []
    for number in range(12):
        loss = step(*case.batches[number % 4])
        rates.append(loss.lr)
        losses.append(float(loss))
    reference = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=1e-2)
    stepper = schedule(reference)
    expected = []
    for _ in range(12):
        expected.append(stepper.get_last_lr()[0])
        reference.step()
        stepper.step()
    np.testing.assert_allclose(rates, expected, rtol=1e-12)

    class Ours:
        updates = {n: t - start[n] for n, t in weights(step).items()}
        norms = []
    Ours.losses = losses
    check_updates(Ours, case, 12, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
                  schedule=schedule)


# ------------------------------------------------------- tied and frozen weights


def test_tied_weights_stay_tied():
    case = family("gpt2")
    step = compile_case(case, cleave.AdamW(lr=1e-2))
    for batch in case.batches:
        step(*batch)
    state = step.state_dict()
    assert state["lm_head.weight"].equal(state["transformer.wte.weight"])
    assert set(step.training_state()["optimizer"]) == {n for n, _ in
                                                       case.build().named_parameters()}
    module = gpt2()
    module.load_state_dict(state)
    assert module.lm_head.weight is module.transformer.wte.weight


class Adapted(nn.Module):
    """A linear layer that is fixed, and a product of two thin ones that is not."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.first = nn.Linear(base.in_features, rank, bias=False)
        self.second = nn.Linear(rank, base.out_features, bias=False)
        with torch.no_grad():
            self.second.weight.zero_()

    def forward(self, x):
        return self.base(x) + 2.0 * self.second(self.first(x))


def adapted():
    """`Net` of which only adapters train."""
    module = net()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    torch.manual_seed(3)
    module.qkv = Adapted(module.qkv)
    module.down = Adapted(module.down)
    return module


def test_adapters_train_on_a_frozen_model():
    case = Case(adapted, token_batches(), token_loss)
    step = compile_case(case, cleave.AdamW(lr=1e-2, weight_decay=0.1))
    before = step.state_dict()
    losses = [float(step(*case.batches[i % 4])) for i in range(12)]
    after = step.state_dict()
    trained = {n for n, p in adapted().named_parameters() if p.requires_grad}
    assert len(trained) == 4
    assert set(step.training_state()["optimizer"]) == trained
    for name in before:
        assert before[name].equal(after[name]) == (name not in trained), name
    exact = torch_run(case, 12, lambda m: torch.optim.AdamW(
        [p for p in m.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1), double=True)
    np.testing.assert_allclose(losses, exact.losses, rtol=1e-5)
    assert losses[-1] < losses[3]
    # Nothing is computed for gradients that nobody wants: the embedding lies
    # below all adapters and no gradient reaches it.
    assert "gather_grad" not in step.ir("step") and "scatter" not in step.ir("step")


def test_parameters_that_the_loss_ignores():
    class Extra(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.unused = nn.Parameter(torch.ones(3))

        def forward(self, ids):
            return self.net(ids)

    case = Case(Extra, token_batches(), token_loss)
    step = compile_case(case, cleave.AdamW(lr=1e-2, weight_decay=0.5))
    step(*case.batches[0])
    assert step.state_dict()["unused"].equal(torch.ones(3))
    assert "unused" not in step.training_state()["optimizer"]
