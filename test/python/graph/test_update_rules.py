# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Update rules other than AdamW and SGD, in f64: against torch.optim where it has the rule,
else against the published formulas in NumPy.

The loss is the sum of parameter times input, so that each input is the gradient of its
parameter. Some parameters are stored in other shapes than the framework's.
"""

import re

import numpy as np
import pytest
import torch

from cleave.testing.dual import relative_error
from cleave.testing.tools import ToolError, interpret, optimize
from reference_rules import Several, Torch, adafactor, lamb, lion
from rule_modules import SHAPES, TOLERANCE, module, state_shapes

MATRICES = ("wide", "tall", "heads", "rows")
STEPS = 4


def run(rule, reference, names=tuple(SHAPES), *, settings="", clip=0.0, attributes=None,
        lr=lambda t: 0.01, kind="normal"):
    """Makes steps by both, and compares parameters and state after each."""
    step = optimize(module(names, attributes), "--graph-differentiate",
                    f"--graph-apply-optimizer=optimizer={rule} {settings} max-grad-norm={clip}")
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(SHAPES[n][0]) for n in names}
    slots = {slot: np.zeros(shape) for slot, shape in state_shapes(step).items()}
    reference.start({n: np.reshape(v, SHAPES[n][1]) for n, v in values.items()})
    for t in range(1, STEPS + 1):
        gradients = {n: np.asarray(rng.standard_normal(SHAPES[n][0])) for n in names}
        if kind == "zero" and t < 3:
            gradients = {n: np.zeros_like(g) for n, g in gradients.items()}
        inputs = {f"{n}.g": g for n, g in gradients.items()} | values | slots
        inputs |= {"lr": np.float64(lr(t)), "step": np.int64(t)}
        results, _ = interpret(step, inputs, entry="train")
        norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
        scale = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        expected = reference.step(
            t, {n: np.reshape(g * scale, SHAPES[n][1]) for n, g in gradients.items()}, lr(t))
        for name in names:
            own = expected[name].reshape(SHAPES[name][0])
            assert relative_error(results[name], own) <= TOLERANCE, (name, t)
            for slot, state in reference.state(name).items():
                ours = results[f"{name}.{slot}"]
                assert ours.size == state.size
                assert relative_error(ours.ravel(), state.ravel(), floor=1e-60) <= TOLERANCE, (
                    name, slot, t)
        values = {n: results[n] for n in names}
        slots = {slot: results[slot] for slot in slots}
    return slots


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["normal", "zero"])
def test_lion(clip, kind):
    run("lion", lion(decay=0.1), settings="weight-decay=0.1", clip=clip, kind=kind)
    run("lion", lion(0.5, 0.8), settings="beta1=0.5 beta2=0.8", clip=clip, kind=kind)


@pytest.mark.parametrize("flags", [
    {}, {"weight_decay": 0.1}, {"lr_decay": 0.5}, {"initial_accumulator_value": 0.1},
    {"eps": 1e-3}], ids=lambda flags: "-".join(flags) or "plain")
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_adagrad(flags, clip):
    settings = " ".join(f"{k.replace('_', '-')}={v}" for k, v in flags.items())
    run("adagrad", Torch(lambda p: torch.optim.Adagrad(p, **flags)), settings=settings, clip=clip,
        lr=lambda t: 0.1 / t)


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["normal", "zero"])
def test_lamb(clip, kind):
    run("lamb", lamb(), clip=clip, kind=kind)
    run("lamb", lamb(0.8, 0.9, 1e-3, 0.0), clip=clip, kind=kind,
        settings="beta1=0.8 beta2=0.9 eps=1e-3 weight-decay=0.0")
    for decay in (0.0, 0.01):
        run("lamb", lamb(decay=decay, always_adapt=False), clip=clip, kind=kind,
            settings=f"weight-decay={decay} always-adapt=false")


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_adafactor_is_that_of_torch(clip):
    def make(parameters):
        return torch.optim.Adafactor(parameters, eps=(1e-30, 1e-3), weight_decay=0.1)
    run("adafactor", Torch(make), settings="weight-decay=0.1", clip=clip, lr=lambda t: 0.1 * t)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("kind", ["normal", "zero"])
def test_adafactor_is_that_of_the_paper(scale, kind):
    run("adafactor", adafactor(scale, d=0.7), settings=f"d=0.7 scale-parameter={str(scale).lower()}",
        kind=kind)


def test_state_of_adafactor():
    """A matrix of n rows and m columns has n + m numbers; one stored as several dimensions
    is that of the framework."""
    step = optimize(module(SHAPES), "--graph-differentiate",
                    "--graph-apply-optimizer=optimizer=adafactor")
    assert state_shapes(step) == {
        "wide.row_var": (3,), "wide.col_var": (8,), "tall.row_var": (8,), "tall.col_var": (3,),
        "heads.row_var": (4,), "heads.col_var": (3, 2), "rows.row_var": (3, 2),
        "rows.col_var": (4,), "stack.row_var": (2, 3), "stack.col_var": (2, 4),
        "vector.variance": (5,), "factors.variance": (3, 2), "scalar.variance": ()}
    assert 'graph.of = "heads", graph.parameter_dims = array<i64: 1, 2>' in step
    assert re.search(r"graph.framework_shape = array<i64: 6>[^}]*heads.col_var", step)


@pytest.fixture
def in_double(monkeypatch):
    """torch.optim.Muon iterates in bf16; here in the parameter's type."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("flags", [
    {}, {"nesterov": False, "momentum": 0.5}, {"ns_steps": 2, "weight_decay": 0.0},
    {"match_rms_adamw": True}], ids=lambda flags: "-".join(flags) or "plain")
def test_muon(flags, clip, in_double):
    theirs = dict(flags)
    if theirs.pop("match_rms_adamw", False):
        theirs["adjust_lr_fn"] = "match_rms_adamw"
    settings = " ".join(f"{k.replace('_', '-')}={str(v).lower()}" for k, v in flags.items())
    run("muon", Torch(lambda p: torch.optim.Muon(p, **theirs)), MATRICES, settings=settings,
        clip=clip)


def test_muon_needs_matrices():
    with pytest.raises(ToolError, match='parameter "stack": muon updates matrices, and this has '
                       "3 dimensions: give it another optimizer"):
        optimize(module(SHAPES), "--graph-differentiate", "--graph-apply-optimizer=optimizer=muon")


def test_groups_with_rules_and_settings_of_their_own(in_double):
    references = {name: Torch(torch.optim.Muon) for name in MATRICES}
    references["vector"] = Torch(lambda p: torch.optim.AdamW(p, betas=(0.5, 0.9)))
    references["scalar"] = lion()
    references["tall"] = Torch(lambda p: torch.optim.Muon(p, momentum=0.5, nesterov=False))
    run("muon", Several(references), (*MATRICES, "vector", "scalar"), attributes={
        "vector": ', graph.optimizer = {rule = "adamw", beta1 = 0.5 : f64, beta2 = 0.9 : f64}',
        "scalar": ', graph.optimizer = {rule = "lion"}',
        "tall": ", graph.optimizer = {momentum = 0.5 : f64, nesterov = 0.0 : f64}"})


@pytest.mark.parametrize("rule, make", [
    ("lamb", lamb), ("adafactor", adafactor), ("muon", lambda: Torch(torch.optim.Muon))])
def test_parameters_of_a_stack_are_updated_each_on_its_own(rule, make, in_double):
    """As the framework's parameters, of which the stack is made."""
    step = optimize(module(["stack"], {"stack": ", graph.stacked"}), "--graph-differentiate",
                    f"--graph-apply-optimizer=optimizer={rule}")
    rng = np.random.default_rng(1)
    values = {"stack": rng.standard_normal((2, 3, 4))}
    values["stack"][1] *= 100
    slots = {slot: np.zeros(shape) for slot, shape in state_shapes(step).items()}
    references = [make(), make()]
    for i, reference in enumerate(references):
        reference.start({"own": values["stack"][i]})
    for t in (1, 2):
        gradient = rng.standard_normal((2, 3, 4))
        inputs = {"stack.g": gradient, "lr": np.float64(0.1), "step": np.int64(t)}
        results, _ = interpret(step, inputs | values | slots, entry="train")
        expected = np.stack([r.step(t, {"own": gradient[i]}, 0.1)["own"].copy()
                             for i, r in enumerate(references)])
        assert relative_error(results["stack"], expected) <= TOLERANCE
        values, slots = {"stack": results["stack"]}, {slot: results[slot] for slot in slots}


@pytest.mark.parametrize("settings, message", [
    ("optimizer=lion eps=1", "optimizer: lion has no setting eps; it has beta1, beta2"),
    ("optimizer=muon ns-steps=2.5", "optimizer: ns_steps must be a whole number"),
    ("optimizer=adafactor beta2-decay=0.5", "beta2_decay of adafactor is 0.5; it must be finite "
     "and below 0"),
    ("optimizer=adafactor scale-parameter=2", "it must be true or false"),
    ("optimizer=lamb beta1=x", "optimizer: beta1 is 'x', which is not a number"),
])
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ToolError, match=re.escape(message)):
        optimize(module(MATRICES), "--graph-differentiate", f"--graph-apply-optimizer={settings}")


@pytest.mark.parametrize("attribute, message", [
    ('{rule = "adam"}', 'parameter "wide": unknown optimizer \'adam\'; there are adamw'),
    ("{beta1 = 2.0 : f64}", 'parameter "wide": beta1 of adamw is 2; it must be'),
    ("{gamma = 1.0 : f64}", 'parameter "wide": adamw has no setting gamma'),
    ("{beta1 = 1}", "must be a dictionary of f64 settings, with the rule as a string"),
])
def test_settings_of_parameters_that_are_refused(attribute, message):
    with pytest.raises(ToolError, match=re.escape(message)):
        optimize(module(MATRICES, {"wide": f", graph.optimizer = {attribute}"}),
                 "--graph-differentiate", "--graph-apply-optimizer")
