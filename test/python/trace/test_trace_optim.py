# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Schedules and optimizer settings against PyTorch's own."""

import pytest
import torch

import cleave
from cleave import optim


def torch_rates(make, steps=60, lr=3e-4):
    """The rates of `steps` updates under a torch scheduler."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=lr)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


def rates(schedule, steps=60):
    return [cleave.AdamW(lr=schedule).lr_at(step) for step in range(steps)]


@pytest.mark.parametrize("warmup", [0, 7])
def test_schedules_equal_those_of_transformers(warmup):
    library = pytest.importorskip("transformers")
    assert rates(cleave.cosine(3e-4, warmup=warmup, steps=50)) == pytest.approx(torch_rates(
        lambda o: library.get_cosine_schedule_with_warmup(o, warmup, 50)), rel=1e-12, abs=1e-18)
    assert rates(cleave.linear(3e-4, warmup=warmup, steps=50)) == pytest.approx(torch_rates(
        lambda o: library.get_linear_schedule_with_warmup(o, warmup, 50)), rel=1e-12, abs=1e-18)
    assert rates(cleave.constant(3e-4, warmup=warmup)) == pytest.approx(torch_rates(
        lambda o: library.get_constant_schedule_with_warmup(o, warmup)), rel=1e-12, abs=1e-18)


def test_cosine_equals_annealing_of_torch():
    want = torch_rates(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 50, eta_min=3e-5),
                       steps=51)
    got = rates(cleave.cosine(3e-4, steps=50, final=0.1), 51)
    assert got == pytest.approx(want, rel=1e-9)


def test_final_rate_stays():
    schedule = cleave.cosine(1.0, steps=10, final=0.25)
    assert schedule.value(10) == schedule.value(25) == 0.25


def test_defaults_are_those_of_torch():
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    mine, theirs = cleave.AdamW(), torch.optim.AdamW(parameter).defaults
    assert (mine.lr, mine.betas, mine.eps, mine.weight_decay) == (
        theirs["lr"], theirs["betas"], theirs["eps"], theirs["weight_decay"])
    mine, theirs = cleave.SGD(), torch.optim.SGD(parameter).defaults
    assert (mine.lr, mine.momentum, mine.dampening, mine.weight_decay, mine.nesterov) == (
        theirs["lr"], theirs["momentum"], theirs["dampening"], theirs["weight_decay"],
        theirs["nesterov"])


def test_options_for_the_compiler():
    optimizer = cleave.AdamW(lr=cleave.cosine(3e-4, warmup=100, steps=1000), weight_decay=0.1,
                             no_decay=lambda name, p: p.ndim < 2, max_grad_norm=1.0)
    assert optimizer.options() == {"kind": "adamw", "beta1": 0.9, "beta2": 0.999,
                                   "eps": 1e-8, "weight_decay": 0.1, "max_grad_norm": 1.0}
    parameters = {"w": torch.zeros(2, 2), "b": torch.zeros(2)}
    assert optimizer.parameter_options(parameters) == {"b": {"weight_decay": 0.0}}
    assert cleave.SGD(0.1, momentum=0.9, nesterov=True).options() == {
        "kind": "sgd", "momentum": 0.9, "dampening": 0.0, "nesterov": True, "weight_decay": 0.0,
        "max_grad_norm": 0.0}


def test_groups_apply_in_order():
    optimizer = cleave.AdamW(
        no_decay=lambda name, p: name.endswith("bias"),
        param_groups=[dict(match=lambda name, p: name.startswith("head"), lr_scale=0.5),
                      optim.Group(lambda name, p: True, weight_decay=0.3)])
    names = ("head.weight", "head.bias", "body.weight", "body.bias")
    assert optimizer.parameter_options({n: torch.zeros(1) for n in names}) == {
        "head.weight": {"lr_scale": 0.5}, "head.bias": {"lr_scale": 0.5, "weight_decay": 0.0},
        "body.weight": {"weight_decay": 0.3}, "body.bias": {"weight_decay": 0.3}}


@pytest.mark.parametrize("make, message", [
    (lambda: cleave.AdamW(lr=-1), "lr is -1"),
    (lambda: cleave.AdamW(lr=float("nan")), "lr is nan"),
    (lambda: cleave.AdamW(betas=(0.9, 1.0)), r"betas\[1\] is 1.0"),
    (lambda: cleave.AdamW(max_grad_norm=0), "max_grad_norm is 0"),
    (lambda: cleave.SGD(nesterov=True), "nesterov needs momentum"),
    (lambda: cleave.AdamW(param_groups=[dict(lr=1.0)]), "a parameter group has"),
    (lambda: cleave.cosine(1e-3, steps=0), "steps is 0"),
])
def test_settings_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
