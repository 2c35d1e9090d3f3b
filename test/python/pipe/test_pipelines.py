# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pipelines: the step in stages against the whole one, in f64 by the interpreter.

Loss, every gradient, every updated weight and all optimizer state agree to 1e-10 of
the largest element of their tensor's kind. Dropout is on.
"""

import json
import re

import pytest

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import ToolError, run_tool, tool
from pipeline_cases import RECIPES, covering, sample
from pipeline_runs import check_scheduled, part_of, schedule_report
from recipe_runs import BATCH, LENGTH, OPTIMIZERS, emit
from training_support import ALL

#: Mesh, recipes, micro-batches; models in turn.
CASES = [
    ("pp=2", "", 1),
    ("pp=2", "", 4),
    ("pp=4", "", 2),
    ("pp=2,dp=2", "zero1", 2),
    ("dp=2,pp=2", "zero3", 2),
    ("pp=2,tp=2", "megatron-sp", 2),
    ("pp=4,tp=2", "megatron", 2),
    ("pp=2,cp=2", "ring", 2),
    ("pp=2,cp=2", "ulysses", 1),
    ("pp=2,row=2,col=2", "summa2d", 2),
    ("pp=2,cp=2", "two-ring", 2),
    ("pp=2,ep=2", "expert", 2),
    ("dp=2,pp=2", "zero2", 1),
    ("pp=2,depth=2,row=2,col=2", "summa25d", 1),
]
MODELS = ["gpt2", "llama", "bert", "mixtral"]

#: Of models that are not a row of layers.
SHAPES = [("skips", "pp=2", "", 2), ("skips", "pp=4", "", 1), ("skips", "pp=3,dp=2", "zero3", 2),
          ("t5", "pp=2", "", 2), ("t5", "pp=4", "", 2), ("t5", "pp=2,tp=2", "megatron", 1)]


@pytest.mark.parametrize("mesh, recipes, micro_batches",
                         CASES if ALL else CASES[::4] + CASES[3::4])
def test_stages_equal_one_device(tmp_path_factory, mesh, recipes, micro_batches):
    index = CASES.index((mesh, recipes, micro_batches))
    models = ["mixtral"] if "expert" in recipes else MODELS
    for offset, name in enumerate(models if ALL else [models[index % len(models)]]):
        check_scheduled(tmp_path_factory, name, mesh, recipes,
                        ["adamw", "sgd"][(index + offset) % 2], micro_batches)


@pytest.mark.parametrize("name, mesh, recipes, micro_batches", SHAPES)
def test_other_shapes(tmp_path_factory, name, mesh, recipes, micro_batches):
    """Values may jump stages."""
    check_scheduled(tmp_path_factory, name, mesh, recipes, "adamw", micro_batches)


COVERING = covering()


@pytest.mark.parametrize("case", COVERING if ALL else sample(COVERING, 7), ids=str)
def test_schedules_equal_one_device(tmp_path_factory, case):
    """Any two of schedule, positions, recipe and model."""
    optimizer = ["adamw", "sgd"][COVERING.index(case) % 2]
    program = check_scheduled(
        tmp_path_factory, case.model, case.mesh, case.recipe, optimizer, case.micro_batches,
        flags=[f"--schedule={case.schedule}", f"--virtual-stages={case.chunks}"])
    assert f"pipe.stages = {case.positions * case.chunks}" in program
    assert program.count(" | ") >= case.positions - 1


#: Written by hand: positions, micro-batches and the text.
BY_HAND = [
    (2, 2, "F0 F1 B1 B0\n1F0 1B0 1F1 1B1"),
    (2, 2, "F1 F0 I0 I1 W1 W0 | 1F1 1F0 1I0 1W0 1I1 1W1"),
    # Down and up again, as the places of the stages show.
    (2, 2, "F0 3F0 3B0 B0 F1 3F1 3B1 B1\n1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1"),
    # Round and round.
    (2, 2, "{2+1: F0} {2+1: 2F0} {2+1: 2B0} {2+1: B0}\n"
           "{2+1: 1F0} {2+1: 3F0} {2+1: 3B0} {2+1: 1B0}"),
]


@pytest.mark.parametrize("positions, micro_batches, text", BY_HAND)
def test_schedules_by_hand_equal_one_device(tmp_path, tmp_path_factory, positions, micro_batches,
                                            text):
    path = tmp_path / "mine.sched"
    path.write_text(text)
    recipe = list(RECIPES)[BY_HAND.index((positions, micro_batches, text))]
    mesh = ",".join(filter(None, [f"pp={positions}", RECIPES[recipe]]))
    check_scheduled(tmp_path_factory, "gpt2", mesh, recipe, "adamw", micro_batches,
                    flags=[f"--schedule-file={path}"])


def test_a_large_head_has_fewer_layers(tmp_path):
    """The product of a head with a large table and its two gradients count where they
    are computed: the stages are even in cost, not in layers."""
    sizes = (BATCH, LENGTH, ("n_layer", 8), ("vocab_size", 1024))
    flags = ["--mesh=pp=4", "--micro-batches=2"]
    program = emit(tmp_path, "gpt2", "scheduled", *flags, sizes=sizes)
    layers = [len(re.findall(r"graph\.attention ", part_of(program, name)))
              for name in ("F", "1F", "2F", "3F")]
    assert sum(layers) == 8
    assert layers[3] < min(layers[:3])
    report = schedule_report(tmp_path, *flags, sizes=sizes)
    shares = [stage["cost_share"] for stage in report["stages"]]
    assert sum(shares) == pytest.approx(1)
    assert max(shares) < 1.2 * min(shares)
    # With a small table it has as many.
    small = emit(tmp_path, "gpt2", "scheduled", *flags, sizes=(BATCH, LENGTH, ("n_layer", 8)))
    assert len(re.findall(r"graph\.attention ", part_of(small, "3F"))) == 2


def test_each_stage_holds_what_it_receives(tmp_path):
    """Also one that makes nothing itself that backward reads: four stages of half a layer
    each, on two devices, of which each has as much at its peak as its stages together."""
    report = schedule_report(tmp_path, "--mesh=pp=2", "--micro-batches=4", "--schedule=zb-v")
    residual = 2 * LENGTH * 32 * 8
    stages = report["stages"]
    assert len(stages) == 4
    for stage in stages[1:]:
        assert stage["saved_bytes_per_micro_batch"] >= residual
        assert stage["peak_in_flight"] > 0
    for device in report["devices"]:
        own = [stages[number] for number in device["stages"]]
        assert device["peak_chunks"] <= sum(stage["peak_in_flight"] for stage in own)
        assert device["peak_in_flight"] <= device["peak_chunks"]
        assert (max(stage["peak_saved_bytes"] for stage in own) <= device["peak_saved_bytes"]
                <= sum(stage["peak_saved_bytes"] for stage in own))


def test_report_of_a_schedule(tmp_path):
    """Two stages of one layer each, 4 micro-batches of 2 samples, 8 places and 32 features
    in f64."""
    assert (BATCH, LENGTH) == (8, 8)
    report = schedule_report(tmp_path, "--mesh=pp=2", "--micro-batches=4", "--schedule=1f1b",
                             "--stages=transformer.h.1.", "--machine=flops=1e9")
    assert report["machine"]["flops"] == 1e9 and report["machine"]["link"] == 5e9
    residual = 2 * 8 * 32
    down, up = report["boundaries"][0], report["boundaries"][1]
    assert (down["from"], down["to"], up["from"], up["to"]) == (0, 1, 1, 0)
    # Once for the step, each sends what its use of the table gave; and a norm.
    table = 96 * 32
    sent = [value for value in down["values"] if not value["once"]]
    assert down["elements_per_micro_batch"] == len(sent) * residual
    assert 4 * down["elements_per_micro_batch"] + table <= down["elements_per_step"]
    assert up["elements_per_step"] >= 4 * residual + table
    assert up["bytes_per_step"] == 8 * up["elements_per_step"]
    first, second = report["stages"]
    assert second["begins"]["parameter"].startswith("transformer.h.1.")
    assert first["begins"]["parameter"] == "transformer.wte.weight"
    assert [first["peak_in_flight"], second["peak_in_flight"]] == [2, 1]
    # What a stage receives and reads again in backward it holds itself.
    inputs = [value["bytes"] for value in down["values"] if not value["once"]]
    assert second["saved_bytes_per_micro_batch"] > sum(inputs)
    for device, stage in zip(report["devices"], report["stages"]):
        seconds = dict(stage["seconds"])
        once = sum(seconds.pop(name, 0) for name in "NU")
        assert device["busy"] == pytest.approx(4 * sum(seconds.values()) + once)
        assert device["peak_in_flight"] == stage["peak_in_flight"] == device["peak_chunks"]
        assert (device["peak_saved_bytes"] == stage["peak_saved_bytes"]
                == stage["peak_in_flight"] * stage["saved_bytes_per_micro_batch"])
        assert device["end"] <= report["makespan"] + 1e-12
    ideal = max(device["busy"] for device in report["devices"])
    assert report["ideal"] == pytest.approx(ideal)
    assert report["bubble"]["of_makespan"] == pytest.approx(1 - ideal / report["makespan"])
    assert report["bubble"]["of_ideal"] == pytest.approx(report["makespan"] / ideal - 1)
    assert report["period"] <= report["makespan"] * (1 + 1e-9)
    assert report["weight_gathers"]["count_per_micro_batch"] == 0
    assert report["transfers"] >= 2 * 4


def test_report_of_gathers(tmp_path):
    """Forward and backward of each micro-batch gather parameters; once would do."""
    flags = ["--mesh=pp=2,dp=2", "--plan=zero3", "--micro-batches=2"]
    report = schedule_report(tmp_path, *flags)
    gathers = report["weight_gathers"]
    assert gathers["sent_bytes_per_step"] == 2 * gathers["sent_bytes_per_micro_batch"]
    # One of two devices sends its half of all that is kept.
    assert gathers["kept_bytes_if_once"] == 2 * gathers["sent_bytes_if_once"] > 0
    assert gathers["sent_bytes_if_once"] < gathers["sent_bytes_per_micro_batch"]
    assert gathers["sent_bytes_per_micro_batch"] <= 2 * gathers["sent_bytes_if_once"]
    # All that is split, and a table in both stages.
    assert gathers["kept_bytes_if_once"] <= 2 * sum(
        stage["parameter_bytes"] for stage in report["stages"])
    for stage in report["stages"]:
        assert stage["sent_bytes"] > 0


@pytest.mark.parametrize("mesh, recipe, micro_batches", [
    ("pp=2", "", 2), ("pp=2", "", 1), ("pp=4", "", 2), ("pp=2,dp=2", "zero3", 2)])
def test_report_of_updates_in_the_next_step(tmp_path, mesh, recipe, micro_batches):
    """Forward reads what updates have made: it is named as what they replace."""
    flags = [f"--mesh={mesh}", f"--plan={recipe}", f"--micro-batches={micro_batches}"]
    apart, deferred = (schedule_report(tmp_path, *flags, f"--optimizer-fusion={fusion}")
                       for fusion in ("none", "forward"))
    assert all("D" in stage["seconds"] for stage in deferred["stages"])
    for one, other in zip(apart["stages"], deferred["stages"], strict=True):
        for fact in ("begins", "parameters", "parameter_bytes"):
            assert one[fact] == other[fact], fact
    assert apart["stages"][0]["begins"]["parameter"] == "transformer.wte.weight"
    assert deferred["weight_gathers"] == apart["weight_gathers"]
    assert ("zero3" in recipe) == (apart["weight_gathers"]["count_per_micro_batch"] > 0)
    text = emit(tmp_path, "gpt2", "schedule", *flags, "--optimizer-fusion=forward")
    assert "stage 0 from transformer.wte.weight at " in text


def products(program, name):
    """The products in a part of @train."""
    return len(re.findall(r"graph\.(?:contract|linear) ", part_of(program, name)))


@pytest.mark.parametrize("mesh, recipes", [("pp=2", ""), ("pp=2,tp=2", "megatron-sp"),
                                           ("pp=2,dp=2", "zero3"), ("pp=2,cp=2", "ring")])
def test_backward_stands_with_forward(tmp_path_factory, mesh, recipes):
    """A stage that begins with a layer has two products of backward for each of its
    forward, and for the head, whose product backward computes itself."""
    folder = tmp_path_factory.getbasetemp()
    program = emit(folder, "gpt2", "scheduled", *OPTIMIZERS["sgd"], f"--mesh={mesh}",
                   f"--plan={recipes}", "--stages=transformer.h.1.")
    first, second = products(program, "F"), products(program, "1F")
    assert first >= 3 and second >= 3
    assert products(program, "B") == 2 * first
    assert 2 * second <= products(program, "1B") <= 2 * second + 3


@pytest.mark.parametrize("flags, message", [
    (["--mesh=pp=2", "--schedule=2f2b"], "--schedule: .*2f2b.*gpipe"),
    (["--mesh=pp=2", "--schedule=interleaved", "--micro-batches=1"], "interleaved.*not divisible by 2 pipeline positions"),
    (["--mesh=pp=2", "--schedule=pipedream", "--check-finite=off"],
     "wte.weight' is held by stages 0 and 1"),
    (["--mesh=pp=2", "--virtual-stages=-1"], "--virtual-stages must be positive"),
    (["--mesh=pp=2", "--stages=transformer.g."], "no parameter whose name begins with"),
    (["--mesh=pp=2", "--micro-batches=300"], "samples, fewer than the 300 micro-batches"),
    (["--mesh=pp=2", "--plan=zero1(pp)"], "stages of a pipeline"),
])
def test_bad_flags(tmp_path, flags, message):
    with pytest.raises(ToolError, match=message):
        emit(tmp_path, "gpt2", "scheduled", *flags)


@pytest.mark.parametrize("recipes", ["zero1", "zero2", "zero3"])
def test_a_tied_tables_gradients_are_sent_once(tmp_path_factory, recipes):
    """After the last micro-batch, also where ranks add up those of each."""
    path = tmp_path_factory.mktemp("tied") / "gpt.mlir"
    assert write_model([*"gpt --hidden 32 --heads 4 --layers 2 --seq 16 --vocab 96 --batch 16 "
                        "--no-logits".split(), "-o", str(path)]) == 0
    elements = {}
    for micro_batches in (2, 4):
        report = json.loads(run_tool([tool("cleave-compile"), str(path), "--mesh=pp=2,dp=2",
                                      f"--plan={recipes}", f"--micro-batches={micro_batches}",
                                      "--plan-only", "--report=-"]))
        sent, = (row for row in report["cost"]["sent"] if row["kind"] == "send")
        elements[micro_batches] = sent["elements"]["plan"]
        assert sent["elements"]["plan"] <= 1.02 * sent["elements"]["form"] + 16
        check_scheduled(tmp_path_factory, "gpt2", "pp=2,dp=2", recipes, "adamw", micro_batches)
    assert elements[2] == pytest.approx(elements[4], rel=1e-2)


@pytest.mark.parametrize("recipes", ["zero1", "zero2", "zero3"])
def test_stages_of_one_position_gather_a_tied_table_once(tmp_path_factory, recipes):
    """And reduce its gradient once, though both read it."""
    path = tmp_path_factory.mktemp("tied") / "gpt.mlir"
    assert write_model([*"gpt --hidden 32 --heads 4 --layers 4 --seq 16 --vocab 96 --batch 16 "
                        "--no-logits".split(), "-o", str(path)]) == 0
    layout = ("--mesh=pp=2,dp=2", f"--plan={recipes}", "--micro-batches=4", "--schedule=zb-v")
    report = json.loads(run_tool([tool("cleave-compile"), str(path), *layout, "--precision=bf16",
                                  "--plan-only", "--report=-"]))
    assert not [row for row in report["cost"]["sent"]
                if row["exceeds"] and row["axes"] == '"dp"'], report["cost"]["excesses"]
    check_scheduled(tmp_path_factory, "gpt2", "pp=2,dp=2", recipes, "adamw", 4,
                    flags=["--schedule=zb-v", "--pipe-gather=once"])
