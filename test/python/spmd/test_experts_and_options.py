# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Experts whose rows travel, with every option that changes what a step computes or keeps, drawn.

The judge is one rank with the same options, which other tests compare with eager PyTorch
(test_rules_and_options.py, test_library_mixtures.py): losses, parameters and all that update
rules keep, after several steps.
"""

import random

import pytest

import cleave
from expert_models import library
from proofs import ALL
from training_support import compile_case

STEPS = 3
#: Models whose experts two axes of two ranks divide.
MODELS = {"mixtral": {}, "qwen3_moe": dict(num_experts=8), "olmoe": {}, "deepseek_v3": {}}
RULES = {
    "adamw": lambda **s: cleave.AdamW(lr=3e-3, eps=1e-3, **s),
    "lamb": lambda **s: cleave.LAMB(lr=3e-3, eps=1e-3, **s),
    "adafactor": lambda **s: cleave.Adafactor(lr=3e-3, eps1=1e-6, **s),
    "sgd": lambda **s: cleave.SGD(lr=1e-2, momentum=0.9, **s),
    "adagrad": lambda **s: cleave.Adagrad(lr=3e-3, eps=1e-3, **s),
    "muon": lambda **s: cleave.Muon(lr=3e-3, param_groups=[dict(
        match=lambda n, p: p.ndim != 2, optimizer=cleave.AdamW(lr=3e-3, eps=1e-3))], **s),
    "adamw8bit": lambda **s: cleave.AdamW8bit(lr=3e-3, eps=1e-3, **s),
}
#: Mesh and plan, and whether samples are over an axis that gradients can be compressed over.
LAYOUTS = [
    (dict(ep=2), "expert", False),
    (dict(dp=2, ep=2), "expert,zero1", True),
    (dict(dp=2, ep=2), "expert,zero2", False),
    (dict(dp=2, ep=2), "expert,zero3", False),
    (dict(ep=2, tp=2), "expert,megatron", False),
    (dict(ep=2, tp=2), "expert,megatron-sp", False),
    (dict(dp=2, tp=2), "megatron-sp,expert(tp),expert(dp)", False),
    (dict(node=2, ep=2), "expert(node),expert(ep)", False),
    (dict(ep=2, cp=2), "ring,expert", False),
    (dict(pp=2, ep=2), "expert", False),
    (dict(pp=2, dp=2), "expert(dp)", False),
]


class Draw:
    def __init__(self, seed):
        rng = random.Random(seed)
        self.model = rng.choice(list(MODELS))
        self.rule = list(RULES)[seed % len(RULES)]
        self.mesh, self.plan, compressible = LAYOUTS[seed % len(LAYOUTS)]
        self.clip = rng.choice([None, 0.5])
        #: Those of both.
        self.options = dict(
            micro_batches=rng.choice([1, 2]) if "pp" not in self.mesh else 2,
            prune=rng.choice([None, None, "0.5", "2:4"]),
            update_delay=rng.choice([0, 0, 1]),
            precision="f32")
        if self.options["prune"] is None:
            self.options["quantize"] = rng.choice([None, "int8"])
        #: Those of the layout alone.
        self.own = dict(recompute=rng.choice([None, "full", "selective"]),
                        expert_buffer=rng.choice([None, "worst", "2"]),
                        offload=rng.choice([None, None, "state", "saved"]))
        if compressible:
            self.own["compress"] = "topk,density=1,smallest=1"
        if "pp" in self.mesh:
            self.own["schedule"] = rng.choice(["1f1b", "zb-h1", "gpipe"])

    def __str__(self):
        mesh = ",".join(f"{axis}={size}" for axis, size in self.mesh.items())
        more = " ".join(f"{key}={value}" for key, value in {**self.options, **self.own}.items()
                        if value)
        return f"{self.model} {self.rule} clip={self.clip} {mesh} {self.plan} {more}"


def given(options):
    return {key: value for key, value in options.items() if value}


def trained(draw, **layout):
    """Losses, parameters and state after the steps."""
    case = library(draw.model, **MODELS[draw.model])
    step = compile_case(case, RULES[draw.rule](max_grad_norm=draw.clip),
                        **given(draw.options), **layout)
    losses = [float(step(*case.batches[index % len(case.batches)])) for index in range(STEPS)]
    state = {f"{name}.{slot}": value
             for name, slots in step.training_state()["optimizer"].items()
             for slot, value in slots.items() if not slot.endswith("residual")}
    return losses, step.state_dict(), state


@pytest.mark.parametrize("draw", [Draw(seed) for seed in range(154 if ALL else 22)], ids=str)
def test_layouts_equal_one_rank(draw):
    wanted, parameters, kept = trained(draw)
    losses, own_parameters, own_kept = trained(draw, mesh=draw.mesh, plan=draw.plan,
                                               **given(draw.own))
    assert losses == pytest.approx(wanted, rel=1e-5)
    assert own_parameters.keys() == parameters.keys() and own_kept.keys() == kept.keys()
    start = library(draw.model, **MODELS[draw.model]).build().state_dict()
    for name, value in parameters.items():
        moved = (value.double() - start[name].double()).norm()
        error = (own_parameters[name].double() - value.double()).norm()
        assert error <= 2e-3 * moved + 1e-6, name
    for name, value in kept.items():
        error = (own_kept[name].double() - value.double()).norm()
        assert error <= 2e-3 * value.double().norm() + 1e-7, name
