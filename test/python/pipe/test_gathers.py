# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Gathers of parameters and reductions of gradients as actions of a schedule.

G gathers what all micro-batches read, R reduces what all have added up. In f64 by the
interpreter they give the step of one device to 1e-10; natively in f32 they hold the
rules of test_native_pipelines.
"""

import collections
import json
import re

import pytest

import cleave
from cleave.testing.tools import ToolError, run_tool, tool
from native_pairs import CASES as NATIVE
from native_pairs import STEPS, agree, one_device, sgd
from pipeline_runs import check_scheduled, part_of, schedule_report
from recipe_runs import emit
from training_support import assert_close, cleave_run, compile_case, family
from volumes_support import at_run_time, parameters, sizes_of, traced_text


def exchanged(program, part):
    """The kinds of what a part of @train exchanges with the devices of `dp`, or of a
    square of SUMMA."""
    return re.findall(r"= spmd\.(\w+) [^\n]*\"(?:dp|row|col)\"", part_of(program, part))


def actions(program, entry="train"):
    """Of each position, the schedule, with repeats as they are written."""
    text = re.search(rf'pipe\.program @{entry}\(.*?schedule = "([^"]*)"', program).group(1)
    return [re.findall(r"[^\s{}]+", re.sub(r"\d+\+\d+:", "", device))
            for device in text.split(" | ")]


def check_order(program):
    """Whatever a position gathers comes before its forward, and what it reduces after
    its backward and before norms and updates."""
    for own in actions(program):
        runs = [re.sub(r"\d", "", action) for action in own if not set("<>") & set(action)]
        at = {part: [i for i, run in enumerate(runs) if run == part] for part in "GFBIWRNU"}
        assert max(at["G"], default=-1) < at["F"][0]
        backward = at["B"] + at["I"] + at["W"]
        for i in at["R"]:
            assert max(backward) < i < min(at["N"] + at["U"])


#: Mesh, recipes, schedule; the tables of GPT-2 are tied.
CASES = [
    ("dp=2", "zero3", ""),
    ("pp=2,dp=2", "zero3", "1f1b"),
    ("pp=2,dp=2", "zero3", "zb-h1"),
    ("pp=2,dp=2,tp=2", "zero3,megatron-sp", "1f1b"),
    ("dp=2,pp=2", "zero3", "auto"),
    ("pp=2,dp=2", "zero3", "interleaved"),
    ("pp=2,row=2,col=2", "summa2d", "1f1b"),
]


@pytest.mark.parametrize("mesh, recipes, schedule", CASES)
def test_gathered_once_equals_one_device(tmp_path_factory, mesh, recipes, schedule):
    index = CASES.index((mesh, recipes, schedule))
    program = check_scheduled(
        tmp_path_factory, "gpt2", mesh, recipes, ["adamw", "sgd"][index % 2], 4,
        flags=["--pipe-gather=once"] + ([f"--schedule={schedule}"] if schedule else []))
    check_order(program)
    parts = re.findall(r"func\.func private @train\.(\d*[GFBIW])\(", program)
    # Products of SUMMA also send what differs between micro-batches.
    for part in parts:
        found = set(exchanged(program, part))
        if part.endswith("G"):
            assert found == {"broadcast" if recipes == "summa2d" else "all_gather"}
        else:
            assert "all_gather" not in found, part
    assert sum(part.endswith("G") for part in parts) == (
        1 if "pp" not in mesh else 4 if schedule == "interleaved" else 2)
    # Other entries gather once, too.
    assert sum(own[-1:] != ["G"] and any(a.endswith("G") for a in own)
               for own in actions(program, "evaluate")) == ("pp" in mesh) + 1


def test_backward_reads_what_forward_gathered(tmp_path_factory):
    """By default, forward and backward of each micro-batch gather."""
    program = check_scheduled(tmp_path_factory, "gpt2", "pp=2,dp=2", "zero3", "sgd", 2)
    for part in ("F", "1F", "B", "1B"):
        assert "all_gather" in exchanged(program, part)
    assert "@train.G(" not in program


@pytest.mark.parametrize("mesh, recipes, schedule", [
    ("dp=2", "zero1", ""), ("pp=2,dp=2", "zero1", "1f1b"), ("pp=2,dp=2", "", "zb-h1"),
    ("pp=2,dp=2,tp=2", "megatron,zero1", "1f1b"), ("dp=2,pp=2", "zero1", "auto"),
    ("pp=2,dp=2", "zero1", "v-half")])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_reductions_are_actions(tmp_path_factory, mesh, recipes, schedule, optimizer):
    """Once for a step, also where a clip reads gradients for their norm and an update
    reads them again (SGD here)."""
    program = check_scheduled(tmp_path_factory, "gpt2", mesh, recipes, optimizer, 4,
                              flags=[f"--schedule={schedule}"] if schedule else [])
    check_order(program)
    kind = "reduce_scatter" if "zero1" in recipes else "all_reduce"
    stages = [n or "0" for n in re.findall(r"func\.func private @train\.(\d*)R\(", program)]
    assert len(stages) == (1 if "pp" not in mesh else 4 if schedule == "v-half" else 2)
    number = 0
    for part in re.findall(r"func\.func private @train\.(\d*[BIWRNU])\(", program):
        found = exchanged(program, part)
        if part.endswith("R"):
            assert set(found) == {kind}
            number += len(found)
        else:
            assert "reduce_scatter" not in found
    # Each gradient at the positions that hold its parameter: the tied table at two, or, where
    # these stages are at one position, once.
    updates = re.search(r"pipe\.program @train\(.*?-> \((.*?)\) attributes", program).group(1)
    held = re.findall(r'graph\.updates = "([^"]*weight|[^"]*bias)"', updates)
    assert number == len(held) - (schedule == "v-half") >= 27


# ---------------------------------------------------------------- by hand

HAND = """
# Gathers stand where they are read first.
G F0 F1 B0 B1
1G 1F0 1B0 1F1 1B1
"""


def test_a_schedule_by_hand(tmp_path, tmp_path_factory):
    """That has parts G asks for them; where they are left out they are added."""
    path = tmp_path / "mine.sched"
    path.write_text(HAND)
    flags = [f"--schedule-file={path}"]
    written = check_scheduled(tmp_path_factory, "gpt2", "pp=2,dp=2", "zero3", "adamw", 2,
                              flags=flags)
    check_order(written)
    path.write_text(re.sub(r"\d?G ", "", HAND))
    added = check_scheduled(tmp_path_factory, "gpt2", "pp=2,dp=2", "zero3", "adamw", 2,
                            flags=[*flags, "--pipe-gather=once"])
    assert added == written
    # As it is shown it is read again.
    shown = emit(tmp_path, "gpt2", "schedule", "--mesh=pp=2,dp=2", "--plan=zero3",
                 "--micro-batches=2", "--pipe-gather=once")
    path.write_text(shown)
    again = emit(tmp_path, "gpt2", "schedule", "--mesh=pp=2,dp=2", "--plan=zero3",
                 "--micro-batches=2", *flags)
    assert [line for line in again.splitlines() if line[0] != "#"] == [
        line for line in shown.splitlines() if line[0] != "#"]
    assert re.search(r"# position 0 \|[^|]*G", shown)


def test_updates_by_hand_wait_for_reductions(tmp_path, tmp_path_factory):
    """R and N are added before the updates that are written."""
    path = tmp_path / "mine.sched"
    path.write_text("F0 F1 B0 B1 U\n1F0 1B0 1F1 1B1 1U")
    program = check_scheduled(tmp_path_factory, "gpt2", "pp=2,dp=2", "zero1", "sgd", 2,
                              flags=[f"--schedule-file={path}"])
    check_order(program)
    for own in actions(program):
        assert any(action.endswith("R") for action in own)


@pytest.mark.parametrize("text, flags, message", [
    ("F0 G F1 B0 B1\n1G 1F0 1B0 1F1 1B1", [], r"mine.sched:1:1: .*F0 reads results of G"),
    ("G F0 F1 B0 B1\n1F0 1G 1B0 1F1 1B1", [], r"mine.sched:2:1: .*1F0 reads results of 1G"),
    ("G F0 F1 B0 B1 U\n1G 1F0 1B0 1F1 1B1", ["--pipe-gather=each"],
     r"mine.sched:1:1: .*G: unknown part; the parts of stage 0 are P, F, B, N, U"),
    ("G0 F0 F1 B0 B1\n1G 1F0 1B0 1F1 1B1", [], r"mine.sched:1:1: .*runs once"),
])
def test_bad_schedules_by_hand(tmp_path, text, flags, message):
    path = tmp_path / "mine.sched"
    path.write_text(text)
    with pytest.raises(ToolError, match=message):
        emit(tmp_path, "gpt2", "scheduled", "--mesh=pp=2,dp=2", "--plan=zero3",
             "--micro-batches=2", f"--schedule-file={path}", *flags)


@pytest.mark.parametrize("model, flags, message", [
    ("gpt2", ["--pipe-gather=twice"], "--pipe-gather is each, once or auto, not 'twice'"),
    ("llama", ["--pipe-gather=once", "--schedule=pipedream", "--check-finite=off"],
     "--pipe-gather: an asynchronous schedule"),
])
def test_bad_flags(tmp_path, model, flags, message):
    with pytest.raises(ToolError, match=message):
        emit(tmp_path, model, "scheduled", "--mesh=pp=2,dp=2", "--plan=zero3", *flags)


def test_bad_arguments():
    case = family("gpt2")
    with pytest.raises(ValueError, match="pipe_gather is each, once or auto, not 'twice'"):
        compile_case(case, sgd(), pipe_gather="twice")
    with pytest.raises(cleave.CompileError, match="pipe_gather: an asynchronous schedule"):
        compile_case(case, cleave.SGD(lr=0.1), mesh={"pp": 2}, micro_batches=2,
                     schedule="pipedream", pipe_gather="once", check_finite=False)


# ---------------------------------------------------------------- what is told


def test_report_of_gathers_once(tmp_path):
    """Psi is what a stage holds when it is gathered: once, one of two devices sends
    half of it; for each of 4 micro-batches, forward and backward do, but for what
    one of them does not read."""
    flags = ["--mesh=pp=2,dp=2", "--plan=zero3", "--micro-batches=4"]
    each = schedule_report(tmp_path, *flags)["weight_gathers"]
    report = schedule_report(tmp_path, *flags, "--pipe-gather=once")
    once = report["weight_gathers"]
    psi = 2 * sum(stage["parameter_bytes"] for stage in report["stages"])
    assert once["choice"] == "once" and each["choice"] == "each"
    assert once["kept_bytes"] == once["kept_bytes_if_once"] == each["kept_bytes_if_once"] == psi
    assert once["sent_bytes_per_step"] == once["sent_bytes_once"] == psi / 2
    assert once["count_per_micro_batch"] == once["sent_bytes_per_micro_batch"] == 0
    assert each["sent_bytes_if_once"] == psi / 2
    assert each["kept_bytes"] == each["count_once"] == 0
    assert 4 * psi / 2 < each["sent_bytes_per_step"] <= 2 * 4 * psi / 2
    for stage in report["stages"]:
        assert stage["seconds"]["G"] > 0
    assert report["stages"][0]["begins"]["parameter"] == "transformer.wte.weight"


def test_report_of_reductions(tmp_path):
    """ZeRO-1 reduces each gradient once, ZeRO-3 for each micro-batch."""
    flags = ["--mesh=pp=2,dp=2", "--micro-batches=4", "--max-grad-norm=0.5"]
    first = schedule_report(tmp_path, *flags, "--plan=zero1")
    third = schedule_report(tmp_path, *flags, "--plan=zero3")["reductions"]
    once = first["reductions"]
    whole = sum(stage["parameter_bytes"] for stage in first["stages"])
    assert once["sent_bytes_per_step"] - once["sent_bytes_once"] <= 4 * 8
    assert once["sent_bytes_once"] == whole / 2
    assert third["count_once"] == third["sent_bytes_once"] == 0
    assert 4 * whole / 2 <= third["sent_bytes_per_step"] + 4 * 96 * 32 * 8 / 2 * 2


#: A mesh, recipes, flags of the pipeline.
SUMS = [
    ("dp=2", "zero1", []), ("dp=2", "zero2", []), ("dp=2", "zero3", []),
    ("dp=2", "zero3", ["--pipe-gather=once"]),
    ("pp=2,dp=2", "zero1", []), ("pp=2,dp=2", "zero2", []), ("pp=2,dp=2", "zero3", []),
    ("pp=2,dp=2", "zero3", ["--pipe-gather=once"]),
    ("pp=2,dp=2", "zero3", ["--schedule=zb-h1"]),
    ("tp=2,dp=2", "zero2,megatron-sp", []), ("tp=2,dp=2", "zero3,megatron-sp", []),
    ("pp=2,tp=2,dp=2", "zero3,megatron-sp", []),
]


@pytest.mark.parametrize("mesh, recipes, more", SUMS)
def test_report_adds_up(tmp_path, mesh, recipes, more):
    """Among the devices that share the samples: gradients that are summed up, weights that
    are gathered for micro-batches, and those that an update gathers are all that is sent,
    but for single numbers, such as the loss, and whole parameters that are too small."""
    path, model = tmp_path / "report.json", tmp_path / "model.mlir"
    model.write_text(traced_text("gpt2"))
    run_tool([tool("cleave-compile"), str(model), f"--mesh={mesh}", f"--plan={recipes}",
              "--micro-batches=4", "--max-grad-norm=1", f"--report={path}", *more])
    report = json.loads(path.read_text())
    train = report["communication"]["train"]
    sent = collections.Counter()
    for position in train.get("positions", [train]):
        for entry in position["totals"]:
            sent[entry["axes"], entry["kind"]] += entry["bytes"]
    gathers, sums = (report["schedule"][name] for name in ("weight_gathers", "reductions"))
    for told in (gathers, sums):
        assert sum(told["sent_bytes_by_axes"].values()) == told["sent_bytes_per_step"]
        assert told["sent_bytes_per_step"] == (4 * told["sent_bytes_per_micro_batch"]
                                               + told["sent_bytes_once"])
    # An update of zero1 and zero2 gathers what lies whole: half of each parameter is sent.
    whole = sum(stage["parameter_bytes"] for stage in report["schedule"]["stages"])
    updates = whole / 2 if "zero3" not in recipes else 0
    found = sum(told["sent_bytes_by_axes"].get('"dp"', 0) for told in (gathers, sums))
    total = sum(size for (axes, _), size in sent.items() if axes == '"dp"')
    assert 0 <= total - found - updates <= 40 * 4, (total, gathers, sums)
    reduced = sum(sent['"dp"', kind] for kind in ("all_reduce", "reduce_scatter"))
    assert 0 <= reduced - sums["sent_bytes_by_axes"]['"dp"'] <= 40 * 4
    assert sent['"dp"', "all_gather"] == gathers["sent_bytes_by_axes"].get('"dp"', 0) + updates
    if "tp" not in mesh:
        assert set(sums["sent_bytes_by_axes"]) == {'"dp"'}
        return
    # Of what lies whole over tp, gradients are summed up over it; not of what passes on.
    assert set(sums["sent_bytes_by_axes"]) == {'"dp"', '"tp"'}
    width, layers = 32, 2
    small = (2 * layers + 1) * 2 * width + 2 * layers * width
    assert sums["sent_bytes_by_axes"]['"tp"'] <= 4 * 4 * (small + 8 * width) * 1.01
    assert '"tp"' not in gathers["sent_bytes_by_axes"]


def test_auto_is_what_its_rule_says(tmp_path):
    """Once where the gathered parameters have no more bytes than parameters and state
    of a device: with the two means of AdamW, on up to 3 devices."""
    for devices, optimizer, choice in [(2, "adamw", "once"), (4, "adamw", "each"),
                                       (2, "sgd", "each")]:
        gathers = schedule_report(
            tmp_path, f"--mesh=pp=2,dp={devices}", "--plan=zero3", "--micro-batches=2",
            f"--optimizer={optimizer}", "--pipe-gather=auto")["weight_gathers"]
        assert gathers["choice"].startswith(f"{choice}: gathered parameters of ")
        assert (gathers["count_once"] > 0) == (choice == "once")
        assert (gathers["count_per_micro_batch"] > 0) == (choice == "each")


# ---------------------------------------------------------------- natively


@pytest.mark.parametrize("model, mesh, plan, schedule, chunks", [
    ("gpt2", {"dp": 2}, "zero3", None, None),
    ("gpt2", {"pp": 2, "dp": 2}, "zero3", "1f1b", None),
    ("llama", {"pp": 2, "dp": 2}, "zero3", "zb-h1", None),
    ("gpt2", {"pp": 2, "dp": 2}, "zero1", "zb-v", 2),
    ("llama", {"pp": 2, "dp": 2, "tp": 2}, ["zero3", "megatron-sp"], "auto", None),
], ids=str)
def test_natively_equals_one_device(model, mesh, plan, schedule, chunks):
    one = one_device(model, 4)
    many = cleave_run(NATIVE[model](0.1), STEPS, sgd(), micro_batches=4, mesh=mesh, plan=plan,
                      schedule=schedule, virtual_stages=chunks, pipe_gather="once")
    assert_close(many.losses, one.losses, rtol=1e-4)
    assert_close(many.norms, one.norms, rtol=1e-4)
    agree(many.gradients, one.gradients, "gradient")
    agree(many.updates, one.updates, "update")


def train(case, **settings):
    step = compile_case(case, cleave.SGD(lr=0.1, momentum=0.9), **settings)
    losses = [float(step(*case.batches[i % len(case.batches)])) for i in range(3)]
    evaluated = float(step.evaluate(*case.batches[0]))
    return step, losses + [evaluated], step.state_dict()


@pytest.mark.parametrize("settings", [
    {"mesh": {"dp": 2}}, {"mesh": {"pp": 2, "dp": 2}, "schedule": "1f1b"},
    {"mesh": {"pp": 2, "dp": 2}, "schedule": "zb-h1"}], ids=str)
def test_when_it_is_gathered_changes_no_bit(settings):
    """With so many micro-batches that the program repeats actions, which read what was
    gathered before them."""
    case = family("gpt2", batch=80, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    settings = dict(settings, plan="zero3", micro_batches=40)
    _, losses, weights = train(case, **settings)
    _, own_losses, own = train(case, **settings, pipe_gather="once")
    assert own_losses == losses
    for name, value in weights.items():
        assert (own[name] == value).all(), name


def test_what_a_rank_gathers():
    """(N - 1) / N Psi in a step, in the place of 2 m of it less what backward does not
    gather: the table that tokens look up, and the head, of which forward has no use."""
    psi, n, m = sum(parameters("llama").values()), 2, 4
    unread = sizes_of("llama", "embed_tokens") + sizes_of("llama", "lm_head")
    settings = dict(mesh="dp=2", plan="zero3", micro_batches=m)
    each = at_run_time("llama", **settings)
    once = at_run_time("llama", **settings, pipe_gather="once")
    assert once["all_gather"] * n == (n - 1) * psi
    assert each["all_gather"] * n == (n - 1) * m * (2 * psi - unread)
    assert {**once, "all_gather": 0} == {**each, "all_gather": 0}


def test_what_a_rank_reduces():
    """ZeRO-1 with a clip in stages: of two ranks each sends half of each gradient once,
    whatever reads it."""
    case = family("llama", batch=8)
    step = compile_case(case, sgd(), micro_batches=4, mesh={"pp": 2, "dp": 2}, plan="zero1")
    step(*case.batches[0])
    total = sum(value.numel() for value in case.build().parameters())
    told = step.report()["communication"]["train"]["positions"]
    found = [sum(entry["elements"] for entry in position["totals"]
                 if entry["kind"] == "reduce_scatter") for position in told]
    assert len(found) == 2 and min(found) > 0
    assert sum(found) == total / 2


@pytest.mark.parametrize("settings", [{"mesh": {"dp": 2}},
                                      {"mesh": {"pp": 2, "dp": 2}, "schedule": "1f1b"}], ids=str)
def test_memory_is_larger_by_what_is_kept(settings):
    """Less than that by the few weights that a micro-batch holds at a time otherwise."""
    case = family("gpt2", batch=8, n_embd=64, n_layer=8)
    peaks = {}
    for choice in ("each", "once"):
        step = compile_case(case, cleave.SGD(lr=0.1), plan="zero3", micro_batches=4,
                            pipe_gather=choice, **settings)
        report = step.report()
        plan = report["plan"]
        peaks[choice] = [own["entries"]["train"]["peak_bytes"]
                         for own in plan.get("positions", [plan])]
    schedule = report["schedule"]
    # Two devices share all that a stage has.
    kept = [2 * stage["parameter_bytes"] for stage in schedule["stages"]]
    assert sum(kept) == schedule["weight_gathers"]["kept_bytes"]
    for each, once, whole in zip(peaks["each"], peaks["once"], kept, strict=True):
        assert 0.9 * whole <= once - each <= 1.02 * whole, (peaks, kept)
