# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mixtures of the transformers library on grids of ranks, which are threads: losses, weights and
both moments of AdamW after twenty steps are those of PyTorch in f64 on one device.

`make test` draws some of the cases (`sample`); with ``CLEAVE_TEST_ALL=1`` each model is trained in
every layout.
"""

import copy
import functools

import pytest
import torch

import cleave
from expert_models import LIBRARY, library
from training_support import assert_close, compile_case, double_precision

STEPS, BATCH, BOUND = 20, 16, 1e-4
#: A large `eps` lets elements whose gradient is but rounding stay where they are.
SETTINGS = dict(lr=1e-3, weight_decay=0.1, eps=1e-3)
LAYOUTS = {
    "one": {},
    "ep2": dict(mesh={"ep": 2}, plan="expert"),
    "ep4-tp2-dp2": dict(mesh={"ep": 4, "tp": 2, "dp": 2}, plan=["expert", "megatron"]),
    "pp2-ep2": dict(mesh={"pp": 2, "ep": 2}, plan="expert", micro_batches=2),
    "ep4-tp2-dp2-pp2": dict(mesh={"pp": 2, "dp": 2, "ep": 4, "tp": 2},
                            plan=["expert", "megatron"], micro_batches=2),
}
CASES = [(name, layout) for name in LIBRARY for layout in LAYOUTS]


@functools.cache
def judge(name):
    """Losses, weights and moments of PyTorch in f64."""
    case, losses = library(name, batch=BATCH), []
    module = copy.deepcopy(case.build())
    with double_precision():
        module.double()
        optimizer = torch.optim.AdamW(module.parameters(), **SETTINGS)
        for number in range(STEPS):
            optimizer.zero_grad()
            loss = case.loss(module, case.batches[number % len(case.batches)])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    own = dict(module.named_parameters())
    # Of an expert that no token chose too: the gradient of stacked weights has a row for it.
    slots = {(n, slot): optimizer.state[p][slot] for n, p in own.items()
             for slot in ("exp_avg", "exp_avg_sq")}
    return losses, {n: p.detach() for n, p in own.items()}, slots


def agree(found, expected):
    """Each tensor, by the norm of what differs; a tensor that is zero but for rounding by that of all."""
    whole = float(torch.stack([t.norm() for t in expected.values()]).norm())
    wrong = {}
    for name, tensor in expected.items():
        error = float((found[name].double().reshape(tensor.shape) - tensor).norm())
        if not error <= BOUND * float(tensor.norm()) + 1e-7 * whole:
            wrong[name] = (error, float(tensor.norm()))
    assert not wrong, wrong


@pytest.mark.parametrize("name, layout", CASES)
def test_twenty_steps_equal_eager(name, layout):
    losses, weights, moments = judge(name)
    case = library(name, batch=BATCH)
    step = compile_case(case, cleave.AdamW(**SETTINGS), check="off", **LAYOUTS[layout])
    found = [float(step(*case.batches[number % len(case.batches)])) for number in range(STEPS)]
    assert_close(found, losses, rtol=BOUND)
    assert found[-1] < found[0]
    state, slots = step.state_dict(), step.training_state()["optimizer"]
    agree(state, weights)
    for slot in ("exp_avg", "exp_avg_sq"):
        own = {n: t for (n, s), t in moments.items() if s == slot}
        agree({n: slots[n][slot] for n in own}, own)


#: The name that each model has for the number of its experts.
EXPERTS = {"qwen3_moe": "num_experts", "olmoe": "num_experts", "deepseek_v3": "n_routed_experts",
           "glm4_moe": "n_routed_experts"}


@pytest.mark.parametrize("name", LIBRARY)
def test_fewer_experts_than_ranks(name):
    own = {EXPERTS.get(name, "num_local_experts"): 2, "num_experts_per_tok": 1}
    if name == "deepseek_v3":
        own["n_group"] = 1
    with pytest.raises(cleave.CompileError, match='has 2 experts, fewer than the 4 positions of axis '
                                                  '"ep": use 2 positions'):
        compile_case(library(name, **own), cleave.SGD(lr=0.1), mesh={"ep": 4}, plan="expert")
