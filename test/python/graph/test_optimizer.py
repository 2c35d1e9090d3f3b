# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The optimizers against torch.optim in f64, over several steps.

The loss is the sum of parameter times input, so that each input is the
gradient of its parameter.
"""

import numpy as np
import pytest
import torch

from cleave.testing.dual import relative_error
from cleave.testing.tools import ToolError, interpret, optimize

SHAPES = {"a": (3, 4), "b": (5,), "c": ()}
STEPS = 5
TOLERANCE = 1e-12


def module(attributes=None):
    """A loss whose gradient for parameter ``x`` is the input ``x.g``."""
    arguments, lines, total = [], [], None
    for name, shape in SHAPES.items():
        type = f"tensor<{''.join(f'{n}x' for n in shape)}f64>"
        more = (attributes or {}).get(name, "")
        arguments.append(f'%{name}: {type} {{graph.name = "{name}", graph.role = "parameter"{more}}}')
        arguments.append(f'%{name}_g: {type} {{graph.name = "{name}.g", graph.role = "input"}}')
        dims = f"array<i64: {', '.join(map(str, range(len(shape))))}>" if shape else "array<i64>"
        lines.append(f"%{name}_p = graph.mul %{name}, %{name}_g : ({type}, {type}) -> {type}")
        lines.append(f"%{name}_s = graph.reduce sum %{name}_p {{dims = {dims}}} : ({type}) -> tensor<f64>")
        if total is None:
            total = f"%{name}_s"
        else:
            lines.append(f"%{name}_t = graph.add {total}, %{name}_s : (tensor<f64>, tensor<f64>) -> tensor<f64>")
            total = f"%{name}_t"
    body = "\n  ".join([*lines, f"return {total} : tensor<f64>"])
    return (
        f"func.func @loss({', '.join(arguments)})\n"
        f'    -> (tensor<f64> {{graph.name = "loss"}}) {{\n  {body}\n}}\n'
    )


def gradients(rng, kind):
    result = {}
    for name, shape in SHAPES.items():
        g = rng.standard_normal(shape)
        if kind == "tiny":
            g = np.sign(g) * 1e-9
        elif kind == "mixed":
            g = g * 10.0 ** rng.integers(-9, 3, shape)
        elif kind == "zero":
            g = np.zeros(shape)
        result[name] = np.asarray(g)
    return result


def run(optimizer_pass, make, kind="normal", clip=None, attributes=None, schedule=lambda t: 0.01):
    """Steps both and compares parameters, state and norm after each step."""
    step = optimize(module(attributes), "--graph-differentiate", optimizer_pass)
    rng = np.random.default_rng(0)
    values = {name: np.asarray(rng.standard_normal(shape)) for name, shape in SHAPES.items()}
    parameters = {name: torch.tensor(v, requires_grad=True) for name, v in values.items()}
    theirs = make(parameters)
    scale = [group["lr"] for group in theirs.param_groups]
    for argument in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
        for name, shape in SHAPES.items():
            values[f"{name}.{argument}"] = np.zeros(shape)
    for t in range(1, STEPS + 1):
        new = gradients(rng, kind)
        for name, g in new.items():
            parameters[name].grad = torch.tensor(g)
        inputs = {f"{name}.g": g for name, g in new.items()}
        inputs |= {"lr": np.float64(schedule(t)), "step": np.int64(t)}
        results, _ = interpret(step, values | inputs, entry="train")
        if clip:
            norm = torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
            assert relative_error(results["grad_norm"], norm.numpy()) <= TOLERANCE
        for group, factor in zip(theirs.param_groups, scale):
            group["lr"] = schedule(t) * factor
        theirs.step()
        for name, parameter in parameters.items():
            assert relative_error(results[name], parameter.detach().numpy()) <= TOLERANCE
            for slot, state in theirs.state[parameter].items():
                if slot == "step" or state is None:
                    continue
                ours = results[f"{name}.{slot}"]
                assert relative_error(ours, state.numpy(), floor=1e-30) <= TOLERANCE, (name, slot, t)
        values |= {k: v for k, v in results.items() if k in values}


@pytest.mark.parametrize("kind", ["normal", "tiny", "mixed", "zero"])
@pytest.mark.parametrize("clip", [None, 1.0, 1e6])
def test_adamw(kind, clip):
    pass_ = f"--graph-apply-optimizer=weight-decay=0.1 max-grad-norm={clip or 0.0}"
    run(pass_, lambda p: torch.optim.AdamW(p.values(), lr=1.0, weight_decay=0.1), kind, clip)


def test_adamw_flags_and_schedule():
    run(
        "--graph-apply-optimizer=beta1=0.8 beta2=0.95 eps=1e-5 weight-decay=0.0",
        lambda p: torch.optim.AdamW(p.values(), lr=1.0, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.0),
        schedule=lambda t: 0.1 / t,
    )


def test_adamw_defaults_are_those_of_pytorch():
    run("--graph-apply-optimizer", lambda p: torch.optim.AdamW(p.values(), lr=1.0))


def test_parameter_groups():
    """Decay is decoupled and leaves out what is excluded."""
    run(
        "--graph-apply-optimizer=weight-decay=0.1",
        lambda p: torch.optim.AdamW(
            [
                {"params": [p["a"]], "weight_decay": 0.1, "lr": 1.0},
                {"params": [p["b"]], "weight_decay": 0.0, "lr": 1.0},
                {"params": [p["c"]], "weight_decay": 0.3, "lr": 0.5},
            ]
        ),
        attributes={
            "b": ", graph.weight_decay = 0.0 : f64",
            "c": ", graph.weight_decay = 0.3 : f64, graph.lr_scale = 0.5 : f64",
        },
    )


SGD = [
    {},
    {"weight_decay": 0.2},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.05},
    {"momentum": 0.5, "nesterov": True, "weight_decay": 0.05},
]


@pytest.mark.parametrize("flags", SGD, ids=lambda f: "-".join(f) or "plain")
@pytest.mark.parametrize("clip", [None, 0.5])
def test_sgd(flags, clip):
    options = " ".join(f"{k.replace('_', '-')}={str(v).lower()}" for k, v in flags.items())
    run(
        f"--graph-apply-optimizer=optimizer=sgd {options} max-grad-norm={clip or 0.0}",
        lambda p: torch.optim.SGD(p.values(), lr=1.0, **flags),
        clip=clip,
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_norm_that_is_not_finite_stops_the_step(bad):
    step = optimize(module(), "--graph-differentiate", "--graph-apply-optimizer=max-grad-norm=1.0")
    rng = np.random.default_rng(0)
    inputs = {f"{name}.g": g for name, g in gradients(rng, "normal").items()}
    inputs["b.g"][1] = bad
    for name, shape in SHAPES.items():
        for slot in ("", ".exp_avg", ".exp_avg_sq"):
            inputs[name + slot] = np.zeros(shape)
    inputs |= {"lr": np.float64(0.1), "step": np.int64(1)}
    with pytest.raises(ToolError, match="check failed: .*norm") as caught:
        interpret(step, inputs, entry="train")
    assert caught.value.status == 1
