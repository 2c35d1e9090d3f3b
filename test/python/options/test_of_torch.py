# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Optimizers of torch, with their groups and schedulers, beside torch's own steps; and what a
compiled step cannot do, which is refused."""

import copy

import cleave
import pytest
import torch

STEPS = 6


class Model(torch.nn.Module):
    """Two layers, a norm, a bias, and a weight with two names."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 12)
        self.norm = torch.nn.LayerNorm(12)
        self.last = torch.nn.Linear(12, 12, bias=False)
        self.again = torch.nn.Linear(12, 12)
        self.again.weight = self.last.weight

    def forward(self, x, y):
        h = torch.nn.functional.gelu(self.norm(self.first(x)))
        return torch.nn.functional.mse_loss(self.again(torch.tanh(self.last(h))), y)


def batches():
    rng = torch.Generator().manual_seed(7)
    return [(torch.randn(8, 8, generator=rng), torch.randn(8, 12, generator=rng)) for _ in range(STEPS)]


def two_groups(model):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    return decayed, others


def adamw(model):
    decayed, others = two_groups(model)
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                              {"params": others, "weight_decay": 0.0, "lr": 3e-3, "betas": (0.8, 0.95)}], lr=1e-2)


def sgd(model):
    decayed, others = two_groups(model)
    return torch.optim.SGD([{"params": others, "momentum": 0.0, "lr": 0.0, "nesterov": False},
                            {"params": decayed, "weight_decay": 0.01}], lr=0.05, momentum=0.9, nesterov=True)


OPTIMIZERS = {
    "adamw": adamw, "sgd": sgd,
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(2e-3), fused=False),
    "adam that decays": lambda model: torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=0.1,
                                                       decoupled_weight_decay=True),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.02, lr_decay=0.1,
                                                 initial_accumulator_value=0.1),
    "sgd with dampening": lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5, dampening=0.2),
}


def schedulers():
    from torch.optim import lr_scheduler as s

    return {
        "none": None,
        "lambda": lambda o: s.LambdaLR(o, lambda step: 1 / (1 + step)),
        "warm-up, then cosine": lambda o: s.SequentialLR(
            o, [s.LinearLR(o, 0.1, total_iters=2), s.CosineAnnealingLR(o, T_max=4)], milestones=[2]),
        "one cycle": lambda o: s.OneCycleLR(o, max_lr=[g["lr"] or 0.1 for g in o.param_groups],
                                            total_steps=STEPS, cycle_momentum=False),
        "chained": lambda o: s.ChainedScheduler([s.ExponentialLR(o, 0.9), s.StepLR(o, 2, 0.5)]),
    }


def trained_by_torch(model, make, scheduler):
    optimizer = make(model)
    schedule = scheduler and scheduler(optimizer)
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        if schedule:
            schedule.step()
        losses.append(loss.item())
    names = {parameter: own for own, parameter in model.named_parameters()}
    return losses, {names[parameter]: state for parameter, state in optimizer.state.items()}


#: State of torch's optimizers that a step has, too.
SLOTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum")


def check(name, scheduler, **options):
    torch.manual_seed(3)
    eager = Model()
    model = copy.deepcopy(eager)
    make = OPTIMIZERS[name]
    optimizer = make(model)
    given = optimizer if scheduler is None else (optimizer, scheduler(optimizer))
    rates = [group["lr"] for group in optimizer.param_groups]
    step = cleave.compile(model, batches()[0], optimizer=given, **options)
    losses = [float(step(*batch)) for batch in batches()]
    assert [group["lr"] for group in optimizer.param_groups] == rates
    expected, states = trained_by_torch(eager, make, scheduler)
    assert losses == pytest.approx(expected, rel=2e-5)
    weights = step.state_dict()
    for own, value in eager.state_dict().items():
        torch.testing.assert_close(torch.as_tensor(weights[own]), value, rtol=2e-5, atol=2e-6)
    slots = step.training_state()["optimizer"]
    wanted = {own: {slot: state[slot] for slot in SLOTS if state.get(slot) is not None}
              for own, state in states.items()}
    assert any(wanted.values())
    for own, state in wanted.items():
        assert set(slots.get(own, {})) == set(state), own
        for slot, value in state.items():
            torch.testing.assert_close(slots[own][slot], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_updates_as_torch_does(name):
    check(name, None)


@pytest.mark.parametrize("kind", [kind for kind in schedulers() if kind != "none"])
@pytest.mark.parametrize("name", ["adamw", "sgd with dampening"])
def test_rates_are_those_of_the_scheduler(name, kind):
    check(name, schedulers()[kind])


@pytest.mark.parametrize("mesh, plan", [({"dp": 2}, "zero1"), ({"dp": 2}, "zero3")])
def test_over_ranks(mesh, plan):
    check("adamw", schedulers()["warm-up, then cosine"], mesh=mesh, plan=plan)


def test_a_norm_is_clipped():
    model = Model()
    optimizer = cleave.optim.of_torch(adamw(model), model, max_grad_norm=0.5)
    assert optimizer.max_grad_norm == 0.5 and optimizer.weight_decay == 0.1 and len(optimizer.param_groups) == 1


def of(kind, **settings):
    return lambda model: kind(model.parameters(), **settings)


def stepped(model):
    optimizer = of(torch.optim.AdamW)(model)
    model(*batches()[0]).backward()
    optimizer.step()
    return optimizer


def hooked(model):
    optimizer = of(torch.optim.SGD, lr=0.1)(model)
    optimizer.register_step_pre_hook(print)
    return optimizer


def patched(model):
    optimizer = of(torch.optim.SGD, lr=0.1)(model)
    optimizer.step = lambda: None
    return optimizer


def with_scheduler(kind, make=adamw, **settings):
    def both(model):
        optimizer = make(model)
        return optimizer, kind(optimizer, **settings)
    return both


def bound(model):
    return with_scheduler(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)(model)[0]


def of_another(model):
    return adamw(model), torch.optim.lr_scheduler.ExponentialLR(adamw(model), 0.5)


REFUSED = {
    "stepped": (stepped, ValueError, "has taken steps"),
    "hooked": (hooked, ValueError, "pre-hooks"),
    "patched": (patched, ValueError, "a step of its own"),
    "left out": (lambda model: torch.optim.SGD(model.first.parameters(), lr=0.1), ValueError,
                 "does not update norm.weight, norm.bias, last.weight and others"),
    "foreign": (lambda model: torch.optim.SGD([*model.parameters(), torch.nn.Parameter(torch.zeros(3))], lr=0.1),
                ValueError, r"1 parameters that are not of the model, the first of shape \(3,\)"),
    "bound": (bound, ValueError, r"optimizer=\(optimizer, scheduler\)"),
    "of another": (of_another, ValueError, "is of another optimizer"),
    "plateau": (with_scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau), ValueError, "ReduceLROnPlateau follows"),
    "no scheduler": (lambda model: (adamw(model), "cosine"), TypeError, "the scheduler is a str"),
    "cleave's": (lambda model: (cleave.AdamW(), "cosine"), TypeError, "lr=cleave.Schedule"),
    "a number": (lambda model: 0.1, TypeError, "builtins.float"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_step_cannot_do_is_refused(name):
    make, kind, text = REFUSED[name]
    model = Model()
    with pytest.raises(kind, match=text):
        cleave.compile(model, batches()[0], optimizer=make(model))


def test_a_cycle_ends():
    """OneCycleLR has no rate after its last step, and a step says so."""
    model = Model()
    make = with_scheduler(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=3, cycle_momentum=False)
    own, scheduler = make(model)
    optimizer = cleave.optim.of_torch(own, model, scheduler)
    rates = [own.param_groups[0]["lr"]]
    for _ in range(3):
        own.step()
        scheduler.step()
        rates.append(own.param_groups[0]["lr"])
    assert [optimizer.lr_at(step) for step in range(4)] == rates
    with pytest.raises(ValueError, match="OneCycleLR has no rate of step 4"):
        optimizer.lr_at(4)


def test_settings_of_muon():
    model = torch.nn.Linear(4, 4, bias=False)
    own = torch.optim.Muon(model.parameters(), lr=0.03, momentum=0.9, nesterov=False, weight_decay=0.2, ns_steps=4,
                           adjust_lr_fn="match_rms_adamw")
    assert cleave.optim.of_torch(own, model) == cleave.Muon(
        lr=0.03, momentum=0.9, nesterov=False, weight_decay=0.2, ns_steps=4, match_rms_adamw=True)
