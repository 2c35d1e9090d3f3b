# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Experts over an axis: the split program against the whole one, in f64.

Each model routes in another way: Mixtral drops nothing, `top1` and `top2` drop
what finds its expert full, and `noisy` draws.
"""

import json
import re

import pytest

import cleave
from cleave.testing.tools import ToolError, run_tool, tool
from device_runs import check_devices
from expert_models import LIBRARY, own, switch
from expert_recipes import CASES, DROPLESS, MODELS, devices_of
from recipe_runs import BATCH, check, emit, traced_model
from training_support import ALL, compile_case
from training_support import family as family_case

EXPERTS, WIDTH, LAYERS = 4, 32, 2


@pytest.mark.parametrize("mesh, recipes", CASES)
def test_experts_equal_one_device(tmp_path_factory, mesh, recipes):
    index = CASES.index((mesh, recipes))
    for offset, name in enumerate(MODELS if ALL else [MODELS[index % len(MODELS)]]):
        optimizer = ["adamw", "sgd"][(index + offset) % 2]
        parts = 1 + (index + offset) % 2 if devices_of(mesh) < BATCH else 1
        # A mask of the library's model is the least number of f64, which f32 has not.
        check(tmp_path_factory, name, mesh, recipes, optimizer, parts, natively=name != "switch")


@pytest.mark.parametrize("name", LIBRARY if ALL else list(LIBRARY)[::2])
def test_mixtures_that_drop_nothing_equal_one_device(tmp_path_factory, name):
    number = list(LIBRARY).index(name)
    for index, (mesh, recipes) in enumerate(DROPLESS):
        if ALL or index == number:
            check(tmp_path_factory, f"library-{name}", mesh, recipes, "adamw", 1 + index % 2,
                  natively=False)  # f32 has not all constants of these


def test_balance_of_the_whole_batch(tmp_path_factory):
    """Fractions and probabilities are averaged over all devices before they are
    multiplied: Mixtral's loss is one of all tokens."""
    check(tmp_path_factory, "mixtral-balanced", "dp=2,ep=2", "expert", "sgd", 1)


def test_balance_of_the_whole_batch_needs_it_at_once(tmp_path):
    """It cannot be had of one micro-batch."""
    with pytest.raises(ToolError, match="sum over micro-batches of values that depend on parameters"):
        emit(tmp_path, "mixtral-balanced", "scheduled", "--micro-batches=2")


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["top1", "top2"])
def test_what_is_sent_and_held(tmp_path, name, ranks):
    """Two all-to-alls forward and two backward in each layer, of the places of all
    experts for a device's samples, and one copy of the experts in all."""
    path = tmp_path / "m.mlir"
    path.write_text(traced_model(name).replace("f64>", "f32>"))
    run_tool([tool("cleave-compile"), str(path), "-o", str(tmp_path / "m.so"),
              f"--mesh=ep={ranks}", "--plan=expert", f"--report={tmp_path / 'r.json'}"])
    train = json.loads((tmp_path / "r.json").read_text())["communication"]["train"]
    capacity = {"top1": 2, "top2": 4}[name]
    each = (ranks - 1) / ranks * EXPERTS * (BATCH // ranks) * capacity * WIDTH
    crossings = [c for c in train["totals"] if c["kind"] == "all_to_all"]
    assert [(c["count"], c["elements"]) for c in crossings] == [(4 * LAYERS, 4 * LAYERS * each)]
    local = emit(tmp_path, name, "local", f"--mesh=ep={ranks}", "--plan=expert")
    held = re.findall(r"tensor<(\d+)x\d+x\d+xf64> {graph.name = \"[^\"]*(?:up|gate_up_proj|down|"
                      r"down_proj)\", graph.role = \"parameter\"", local)
    assert held and set(map(int, held)) == {EXPERTS // ranks}


NATIVE = {
    "mixtral": lambda: family_case("mixtral", batch=8),
    "mixtral-balanced": lambda: family_case("mixtral", batch=8, output_router_logits=True,
                                            router_aux_loss_coef=0.5),
    "switch": lambda: switch(batch=8),
    "top1": lambda: own(batch=8, capacity=0.75),
    "top2": lambda: own(batch=8, choices=2, capacity=0.75),
}


#: Of which a few by default.
PLANS = [
    ("mixtral", {"ep": 2}, "expert"),
    ("mixtral", {"ep": 2, "tp": 2}, ["expert", "megatron-sp"]),
    ("top1", {"ep": 4}, "expert"),
    ("top2", {"dp": 2, "tp": 2}, ["megatron", "expert(tp)", "expert(dp)"]),
    ("mixtral-balanced", {"dp": 2, "ep": 2}, "expert"),
    ("switch", {"ep": 2}, ["expert", "zero1(ep)"]),
    ("top2", {"dp": 2, "ep": 2}, ["expert", "zero3"]),
    ("mixtral", {"dp": 2, "tp": 2}, ["megatron-sp", "expert(tp)"]),
]


@pytest.mark.parametrize("name, mesh, plan", PLANS if ALL else PLANS[:4])
def test_experts_train_as_one_device(name, mesh, plan):
    check_devices(NATIVE[name](), mesh, plan)


def test_what_ranks_send():
    case, capacity = NATIVE["top1"](), 2
    step = compile_case(case, cleave.SGD(lr=0.1), mesh={"ep": 2}, plan="expert")
    step(*case.batches[0])
    sent = [c for c in step.communication() if c["kind"] == "all-to-all"]
    each = 1 / 2 * EXPERTS * (8 // 2) * capacity * WIDTH
    assert [(c["count"], c["elements"]) for c in sent] == [(4 * LAYERS, 4 * LAYERS * each)]
