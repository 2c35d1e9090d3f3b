# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Optimizers whose code is compiled: torch's that the compiler has no rule for, and a person's own,
beside their own steps: losses, parameters and state. All else is refused with its line."""

import copy
import inspect
import math

import cleave
import pytest
import torch
from cleave import models
from cleave.testing.tools import ToolError, run_tool, tool

SIZE = dict(layers=2, hidden=32, heads=4, seq=8, vocab=48)


def model():
    torch.manual_seed(0)
    return models.gpt(**SIZE)


def batch(number=0):
    ids = torch.randint(0, SIZE["vocab"], (8, SIZE["seq"]), generator=torch.Generator().manual_seed(number))
    return dict(input_ids=ids, labels=ids)


class Own(torch.optim.Optimizer):
    """Means of gradients with corrections that Python computes."""

    def __init__(self, params, lr=3e-3, beta=0.9, beta2=0.98, eps=1e-3, decay=0.1):
        super().__init__(params, dict(lr=lr, beta=beta, beta2=beta2, eps=eps, decay=decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, group, self.state[p])

    def update(self, p, gradient, group, state):
        if not state:
            state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
        state["step"] += 1
        state["mean"].mul_(group["beta"]).add_(gradient, alpha=1 - group["beta"])
        state["square"].mul_(group["beta2"]).addcmul_(gradient, gradient, value=1 - group["beta2"])
        correction = 1 - group["beta"] ** state["step"]
        root = state["square"].sqrt() / math.sqrt(1 - group["beta2"] ** state["step"])
        p.mul_(1 - group["lr"] * group["decay"])
        p.addcdiv_(state["mean"], root.add_(group["eps"]), value=-group["lr"] / correction)


class Slow(Own):
    """Weights that follow in each third step, and begin as the parameter."""

    def update(self, p, gradient, group, state):
        begun = p.clone() if not state else None
        super().update(p, gradient, group, state)
        if begun is not None:
            state["slow"] = begun
        if state["step"] % 3 == 0:
            state["slow"].lerp_(p, 0.5)
            p.copy_(state["slow"])


class Filled(Own):
    """State that begins with a number, and parameters that are replaced."""

    def update(self, p, gradient, group, state):
        if not state:
            state["sum"] = torch.full_like(p, 0.25)
        state["sum"] = state["sum"] + gradient * gradient
        p.data = p.data - group["lr"] * gradient / state["sum"].sqrt()


class First(Own):
    """The first step differs: the velocity is its gradient."""

    def update(self, p, gradient, group, state):
        if "velocity" not in state:
            state["velocity"] = gradient.clone()
        else:
            state["velocity"].mul_(0.9).add_(gradient)
        p.sub_(state["velocity"], alpha=group["lr"])


class Norms(Own):
    """Steps as long as a part of the parameter, of which single numbers are state."""

    def update(self, p, gradient, group, state):
        if not state:
            state["longest"] = torch.zeros((), device=p.device)
        norm = gradient.norm()
        state["longest"] = torch.maximum(state["longest"], norm)
        p.sub_(gradient / (norm + 1e-6) * p.norm().clamp(min=0.1) * group["lr"])


def torchs(kind, **settings):
    return lambda parameters: kind(parameters, **settings)


def two_groups(parameters):
    parameters = list(parameters)
    return Own([{"params": [p for p in parameters if p.ndim > 1], "decay": 0.2},
                {"params": [p for p in parameters if p.ndim < 2], "decay": 0.0, "lr": 1e-3}])


optim = torch.optim
OPTIMIZERS = {
    "own": Own, "groups": two_groups, "slow": Slow, "filled": Filled, "first": First, "norms": Norms,
    "nadam": torchs(optim.NAdam, lr=2e-3, eps=1e-3), "radam": torchs(optim.RAdam, lr=2e-3, eps=1e-3),
    "adadelta": torchs(optim.Adadelta, lr=0.5), "adamax": torchs(optim.Adamax, eps=1e-3),
    "rmsprop": torchs(optim.RMSprop, lr=1e-3, momentum=0.9, centered=True, eps=1e-2),
    "l2": torchs(optim.Adam, weight_decay=0.1, eps=1e-3),
    "amsgrad": torchs(optim.AdamW, amsgrad=True, eps=1e-3), "maximize": torchs(optim.SGD, lr=1e-3, maximize=True),
}
LAYOUTS = [dict(mesh={"dp": 2, "tp": 2}, plan=["megatron", "zero1"]), dict(mesh={"tp": 2}, plan=["megatron-sp"]),
           dict(mesh={"dp": 2}, plan=["zero3"], micro_batches=2),
           dict(mesh={"pp": 2, "dp": 2}, plan=["zero1"], micro_batches=2)]


def moved(eager, start):
    return math.sqrt(sum(float((p - q).detach().square().sum())
                         for p, q in zip(eager.parameters(), start.parameters())))


def check(make, steps, scheduler=None, **options):
    eager, start = model(), model()
    own = make(eager.parameters())
    schedule = scheduler and scheduler(own)
    compiled = model()
    given = make(compiled.parameters())
    if scheduler:
        given = given, scheduler(given)
    step = cleave.compile(compiled, batch(), optimizer=given, **options)
    for number in range(steps):
        own.zero_grad()
        loss = eager(**batch(number))[0]
        loss.backward()
        own.step()
        if schedule:
            schedule.step()
        assert float(step(**batch(number))) == pytest.approx(float(loss.detach()), rel=2e-5)
    weights, slots = step.state_dict(), step.training_state()["optimizer"]
    far = math.sqrt(sum(float((torch.as_tensor(weights[n]) - p.detach()).square().sum())
                        for n, p in eager.named_parameters()))
    assert far < 1e-3 * moved(eager, start)
    compared = 0
    for name, p in eager.named_parameters():
        for slot, value in own.state[p].items():
            if slot not in slots.get(name, {}):
                # Numbers of Python, and state that is one.
                assert not isinstance(value, torch.Tensor) or value.ndim == 0, (name, slot)
                continue
            found = torch.as_tensor(slots[name][slot])
            assert (found - value).norm() <= 1e-3 * value.norm() + 1e-6, (name, slot)
            compared += 1
    assert compared or not any(isinstance(v, torch.Tensor) for s in own.state.values() for v in s.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_is_what_its_code_does(name):
    check(OPTIMIZERS[name], steps=8)


@pytest.mark.parametrize("options", LAYOUTS, ids=lambda o: ",".join(o["plan"]))
@pytest.mark.parametrize("name", ["own", "slow", "norms", "radam"])
def test_over_ranks(name, options):
    check(OPTIMIZERS[name], steps=20 if name == "own" else 7, **options)


@pytest.mark.parametrize("options", [
    dict(optimizer_fusion="backward", check_finite=False), dict(recompute="full"),
    dict(mesh={"dp": 2}, plan=["zero1"], offload="state"), dict(mesh={"cp": 2}, plan=["ring"]),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="zb-h1"),
    dict(mesh={"tp": 2}, plan=["megatron"], optimizer_fusion="forward")], ids=str)
def test_with_other_options(options):
    check(Slow, steps=4, **options)


SCHEDULERS = {
    "cycled momentum": lambda o: optim.lr_scheduler.OneCycleLR(o, max_lr=3e-3, total_steps=12),
    "two relations": lambda o: optim.lr_scheduler.LambdaLR(o, [lambda t: 1.0, lambda t: 1 / (1 + t)]),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_settings_follow_a_scheduler(kind):
    make = two_groups if kind == "two relations" else torchs(optim.AdamW, eps=1e-3)
    check(make, steps=8, scheduler=SCHEDULERS[kind])


def test_a_resumed_run_takes_the_same_steps(tmp_path):
    def compiled():
        own = model()
        return cleave.compile(own, batch(), optimizer=Slow(own.parameters()))

    whole, first = compiled(), compiled()
    losses = [float(whole(**batch(number))) for number in range(8)]
    for number in range(4):
        first(**batch(number))
    first.save(tmp_path / "saved")
    second = compiled()
    second.load(tmp_path / "saved")
    assert [float(second(**batch(number))) for number in range(4, 8)] == losses[4:]
    for name, value in whole.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(second.state_dict()[name])), name


def test_steps_by_the_sign_of_a_gradient():
    """Rprop, of a model that has no gradient that is 0 but for roundings."""
    torch.manual_seed(0)
    eager = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    own, compiled = optim.Rprop(eager.parameters(), lr=1e-3), copy.deepcopy(eager)
    x, y = torch.randn(16, 6), torch.randn(16, 4)
    step = cleave.compile(compiled, (x, y), torch.nn.functional.mse_loss,
                          optimizer=optim.Rprop(compiled.parameters(), lr=1e-3))
    for _ in range(20):
        own.zero_grad()
        loss = torch.nn.functional.mse_loss(eager(x), y)
        loss.backward()
        own.step()
        assert float(step(x, y)) == pytest.approx(float(loss.detach()), rel=2e-5)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(torch.as_tensor(step.state_dict()[name]), value, rtol=1e-5, atol=1e-6)


class Reads(Own):
    def update(self, p, gradient, group, state):
        if gradient.norm() > 1:  # reads
            p.sub_(gradient)


class Together(Own):
    @torch.no_grad()
    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        total = sum(p.grad.square().sum() for p in parameters)  # reads several
        for p in parameters:
            p.sub_(p.grad / total)


class Noisy(Own):
    def update(self, p, gradient, group, state):
        p.sub_(torch.randn_like(p), alpha=1e-3)  # draws


class Lists(Own):
    @torch.no_grad()
    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        torch._foreach_sub_(parameters, [p.grad for p in parameters], alpha=0.1)  # lists


class Irregular(Own):
    """Does something else in each step."""

    def update(self, p, gradient, group, state):
        state["step"] = state.get("step", 0) + 1
        for _ in range(state["step"]):
            p.sub_(gradient, alpha=1e-3)  # more each time


class Given(Own):
    """Reads a tensor beside its state."""

    kept = torch.ones(SIZE["hidden"])

    def update(self, p, gradient, group, state):
        p.sub_(gradient * self.kept[:1])  # given


class Counted(Own):
    """A counter that is a tensor, in an operator that takes no number of a step."""

    def update(self, p, gradient, group, state):
        state.setdefault("step", torch.tensor(0.0))
        state["step"] += 1
        p.sub_(torch.pow(gradient.abs(), state["step"]), alpha=group["lr"])  # counted


REFUSED = {
    "reads": (Reads, "reads the value of a tensor"), "reads several": (Together, "reads another one"),
    "draws": (Noisy, "draws random numbers"), "lists": (Lists, "foreach=False"),
    "more each time": (Irregular, "calls other operators"), "given": (Given, "neither of its parameter nor"),
    "counted": (Counted, "neither of its parameter nor"),
}


@pytest.mark.parametrize("mark", REFUSED)
def test_what_is_not_compiled_is_refused_with_its_line(mark):
    kind, text = REFUSED[mark]
    lines, first = inspect.getsourcelines(kind)
    line = first + next(i for i, text_ in enumerate(lines) if f"# {mark}" in text_)
    own = model()
    with pytest.raises(ValueError, match=rf"{kind.__name__}: .*test_own_updates.py:{line}: .*{text}"):
        cleave.compile(own, batch(), optimizer=kind(own.parameters()))


@pytest.mark.parametrize("make, text", [(torchs(optim.ASGD), r"asgd.py:\d+: .*reads the value"),
                                        (torchs(optim.Adafactor), r"_adafactor.py:\d+: .*reads the value")])
def test_updates_of_torch_that_read_values_are_refused(make, text):
    own = model()
    with pytest.raises(ValueError, match=text):
        cleave.compile(own, batch(), optimizer=make(own.parameters()))


class Late(Own):
    """Turns to something else after a while."""

    def update(self, p, gradient, group, state):
        state["step"] = state.get("step", 0) + 1
        p.sub_(gradient, alpha=1e-3)
        if state["step"] > 70:
            p.mul_(0.5)


def test_a_step_that_does_something_new_is_refused_and_changes_nothing():
    own = torch.nn.Linear(4, 4)
    x = torch.ones(2, 4)
    step = cleave.compile(own, (x, x), torch.nn.functional.mse_loss, optimizer=Late(own.parameters()))
    for _ in range(70):
        step(x, x)
    before = {name: torch.as_tensor(value).clone() for name, value in step.state_dict().items()}
    with pytest.raises(ValueError, match=r"test_own_updates.py:\d+: in step 71 .*other operators"):
        step(x, x)
    for name, value in step.state_dict().items():
        assert torch.equal(before[name], torch.as_tensor(value)), name


def test_a_trainer_without_python_refuses_the_program(tmp_path):
    own = model()
    step = cleave.compile(own, batch(), optimizer=Own(own.parameters()))
    step.save_artifact(tmp_path / "step.so")
    (tmp_path / "tokens.bin").write_bytes(bytes(2048))
    with pytest.raises(ToolError, match="takes 'update.0' of each step, a number that the Python code"):
        run_tool([tool("cleave-run"), str(tmp_path / "step.so"), "--random-init", "--data",
                  str(tmp_path / "tokens.bin"), "--steps=1"])
