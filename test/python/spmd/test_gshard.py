# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Experts in every second block, as in GShard (arXiv 2006.16668): a small model against
PyTorch and one device, and the plan of one of 600 billion parameters for 2048 ranks."""

import json

import pytest
import torch

import cleave.models.__main__
from cleave.models import Size, example_inputs, switch
from cleave.testing.tools import run_tool, tool
from recipe_runs import LENGTH, MAKERS, check
from trace_support import check as check_trace
from training_support import ALL

SMALL = dict(hidden=32, heads=4, layers=4, seq=LENGTH, vocab=96, ffn=48, experts=4, every=2,
             choices=2, capacity=1.0)
MAKERS["gshard"] = lambda: switch(**SMALL, dropout=0.1)

CASES = [("ep=2", "expert", 2), ("ep=4,dp=2", "expert,zero1", 1),
         ("ep=2,tp=2", "expert,megatron-sp", 2), ("pp=2,ep=2", "expert", 2)]


def test_every_second_block_has_experts():
    names = {name for name, _ in switch(**SMALL).named_parameters()}
    routed = {name.partition(".feed_forward")[0] for name in names if "router" in name}
    assert routed == {"blocks.0.1", "blocks.1.1"}
    plain = {name.partition(".feed_forward")[0] for name in names if ".feed_forward.up.w" in name}
    assert plain == {"blocks.0.0", "blocks.1.0"}


def test_the_loss_is_that_of_pytorch():
    torch.manual_seed(0)
    inputs = example_inputs("switch", 2, Size(**SMALL))
    generator = torch.Generator().manual_seed(1)
    for name in inputs:
        inputs[name] = torch.randint(3, 96, (2, LENGTH), generator=generator)
    check_trace(switch(**SMALL), inputs, call=lambda model, **given: model(**given))


@pytest.mark.parametrize("mesh, recipes, parts", CASES if ALL else CASES[:3])
def test_ranks_equal_one_device(tmp_path_factory, mesh, recipes, parts):
    check(tmp_path_factory, "gshard", mesh, recipes, ["adamw", "sgd"][parts % 2], parts)


#: "MoE(2048E, 36L)" of the paper's table 1, as a decoder: a rank has one expert of each of 18
#: blocks, and one sample.
HIDDEN, INNER, EXPERTS, BLOCKS, WORDS, LENGTH_OF_LARGE = 1024, 8192, 2048, 36, 32000, 1024


def test_the_plan_for_2048_ranks(tmp_path):
    """Its parameters, those of a rank, and what a rank sends, by hand."""
    path, report = tmp_path / "gshard.mlir", tmp_path / "report.json"
    status = cleave.models.__main__.main([
        "switch", f"--experts={EXPERTS}", "--every=2", "--choices=2", "--capacity=1",
        f"--hidden={HIDDEN}", "--heads=16", f"--layers={BLOCKS}", f"--ffn={INNER}",
        f"--seq={LENGTH_OF_LARGE}", f"--vocab={WORDS}", f"--batch={EXPERTS}", "--no-logits",
        "-o", str(path)])
    assert status == 0
    run_tool([tool("cleave-compile"), str(path), f"--mesh=ep={EXPERTS}", "--plan=expert",
              "--check-finite=off", "--plan-only", f"--report={report}"])
    found = json.loads(report.read_text())
    sparse = BLOCKS // 2
    experts = sparse * EXPERTS * 2 * HIDDEN * INNER
    # Four projections and two norms with biases; two layers with biases, or a router.
    others = (BLOCKS * (4 * HIDDEN * (HIDDEN + 1) + 4 * HIDDEN)
              + sparse * (2 * HIDDEN * INNER + INNER + HIDDEN + EXPERTS * HIDDEN)
              + (WORDS + LENGTH_OF_LARGE + 2) * HIDDEN)
    assert experts + others == pytest.approx(619e9, rel=1e-3)
    held = experts // EXPERTS + others
    assert found["memory"]["parameter"] == 4 * held
    assert found["memory"]["state"] == 8 * held
    sent = {entry["kind"]: entry["elements"]
            for entry in found["communication"]["train"]["totals"]}
    share = (EXPERTS - 1) / EXPERTS
    # A sequence of 1024 tokens has two places in each expert.
    places = EXPERTS * 2
    assert sent["all_to_all"] == 4 * sparse * share * places * HIDDEN
    # The gradients of all but experts, and a few numbers of the losses.
    assert sent["all_reduce"] == pytest.approx(2 * share * others, abs=100)
    assert set(sent) == {"all_to_all", "all_reduce"}
    assert found["memory"]["arena"] < 16e9
