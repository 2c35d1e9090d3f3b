# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The real course of a pipelined step: actions in the traces of `cleave-run`, shown beside
what is predicted, and taken for the costs of another prediction. No test has a limit on
how long anything takes."""

import collections
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess

import pytest
import torch

import cleave
from cleave.testing.tools import tool
from cleave.trace import trace
from run_support import BUILD
from schedule_runs import compiled
from training_support import gpt2, named_tokens

STEPS, MICRO_BATCHES = 3, 4
KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient",
         "U": "update", "G": "gather", "R": "reduction"}


def call(*command, code=0):
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True,
                            env={**os.environ, "CLEAVE_TUNING": "off",
                                 "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                 "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


class Pipeline:
    """A small model, compiled for some positions, and a trace of it."""

    def __init__(self, folder, schedule, mesh="pp=2", processes=0, **changes):
        self.model = folder / "gpt2.mlir"
        self.model.write_text(trace(gpt2(**changes), named_tokens(batch=8)).mlir)
        self.flags = [self.model, f"--mesh={mesh}", f"--micro-batches={MICRO_BATCHES}",
                      "--max-grad-norm=1", "--threads=4"]
        if "pp" in mesh:
            self.flags.append(f"--schedule={schedule}")
        self.trace = folder / "trace.json"
        data = folder / "train.bin"
        data.write_bytes(bytes(range(3, 96)) * 40)
        call(tool("cleave-compile"), *self.flags, "-o", folder / "gpt2.so")
        launch = ["mpirun", "--oversubscribe", "-n", processes] if processes else []
        call(*launch, tool("cleave-run"), folder / "gpt2.so", "--random-init", "--data", data,
             "--token-dtype=u8", "--steps", STEPS + 1, "--eval-data", data, "--eval-every=2",
             "--trace", self.trace, "--trace-steps", STEPS,
             "--threads", "1" if processes else "4")
        self.report = folder / "report.json"

    def show(self, *flags, code=0):
        return call(tool("cleave-compile"), *self.flags, "--emit=schedule", "--report", self.report,
                    *flags, code=code)

    def facts(self, *flags):
        self.show(*flags)
        return json.loads(self.report.read_text())["schedule"]

    def lists(self):
        """For each device, its actions as words, repeats written out."""
        lines = [line for line in self.show().splitlines() if line and not line.startswith("#")]

        def repeated(match):
            times, step, body = int(match[1]), int(match[2]), match[3]
            return " ".join(
                re.sub(r"([A-Z])(\d+)", lambda m: m[1] + str(int(m[2]) + k * step), body)
                for k in range(times))

        return [re.sub(r"\{(\d+)\+(\d+): ([^}]*)\}", repeated, line).split() for line in lines]

    def events(self):
        """Of each step and device, its actions in the order of the trace."""
        found = collections.defaultdict(list)
        for event in json.loads(self.trace.read_text())["traceEvents"]:
            if "device" in event.get("args", {}):
                found[event["args"]["step"], event["args"]["device"]].append(event)
        return found


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    """Those of two positions by schedule, each made once; no table is tied, so that
    each transfer moves something."""
    made = {}

    def get(schedule):
        if schedule not in made:
            made[schedule] = Pipeline(tmp_path_factory.mktemp(schedule), schedule,
                                      tie_word_embeddings=False)
        return made[schedule]

    return get


def check_actions(events, lists):
    """Each action of the schedule is there once in each step, on its device, in the
    order of its list, one after another; what is received may be waited for as late as
    in front of its reader, and not before its send began."""
    def receives(names):
        return [name for name in names if "<" in name]

    assert set(events) == {(step, d) for step in range(STEPS) for d in range(len(lists))}
    for (step, device), own in events.items():
        words = lists[device]
        names = [event["name"] for event in own]
        assert [name for name in names if "<" not in name] == \
            [word for word in words if "<" not in word], (step, device)
        assert receives(names) == receives(words)
        for name in receives(names):
            before = names[:names.index(name)]
            assert set(words[:words.index(name)]) <= set(before), (name, names)
            to, batch = re.fullmatch(r"(\d+)<\d*[A-Z](\d*)", name).groups()
            assert ("<F" not in name and "<1F" not in name and "<2F" not in name
                    or f"{to}F{batch}" not in before)
        for event in own:
            name, args = event["name"], event["args"]
            part, batch = re.search(r"(?:^|<)\d*([A-Z])(\d*)", name).groups()
            kind = "communication" if set(name) & set("<>") else KINDS.get(part, "other")
            assert event["cat"] == kind and event["ph"] == "X"
            assert args.get("micro_batch", -1) == (int(batch) if batch else -1)
            assert 0 <= args["waited"] <= event["dur"] + 1e-3
        for before, after in zip(own, own[1:]):
            assert after["ts"] >= before["ts"] + before["dur"] - 1e-3, (before, after)
    sends = {}
    for (step, _), own in events.items():
        for event in own:
            if ">" in event["name"]:
                action, to = event["name"].split(">")
                sends[step, to, action] = event["ts"]
    received = 0
    for (step, _), own in events.items():
        for event in own:
            if "<" in event["name"]:
                to, action = event["name"].split("<")
                assert event["ts"] + event["dur"] >= sends[step, to, action]
                received += 1
    assert received == len(sends) > 0 or len(lists) == 1


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-v"])
def test_each_action_is_traced_once(pipelines, schedule):
    pipeline = pipelines(schedule)
    events = pipeline.events()
    check_actions(events, pipeline.lists())
    # Commands are inside of the action that they are of, and evaluations in between
    # are no part of it.
    everything = json.loads(pipeline.trace.read_text())["traceEvents"]
    steps = [event for event in everything if event["cat"] == "step"]
    assert len(steps) == STEPS
    products = [event for event in everything if event["cat"] == "contraction"]
    assert products
    for event in products:
        assert sum(any(own["ts"] - 1e-3 <= event["ts"] and event["ts"] + event["dur"]
                       <= own["ts"] + own["dur"] + 1e-3 for own in actions)
                   for (_, device), actions in events.items()
                   if device == event["tid"] - 1) == 1


def test_sums_are_sent_once(tmp_path):
    """The gradient of a tied table, after the last micro-batch."""
    pipeline = Pipeline(tmp_path, "zb-h1")
    lists = pipeline.lists()
    sent = {re.search(r"W\d+", word)[0] for words in lists for word in words
            if re.search(r"W\d+>", word)}
    assert sent == {f"W{MICRO_BATCHES - 1}"}
    check_actions(pipeline.events(), lists)


def test_one_rank_of_each_position_is_traced(tmp_path):
    """Of four ranks at two positions; and one device has a schedule as well."""
    pipeline = Pipeline(tmp_path, "1f1b", "dp=2,pp=2", tie_word_embeddings=False)
    check_actions(pipeline.events(), pipeline.lists())
    alone = tmp_path / "alone"
    alone.mkdir()
    pipeline = Pipeline(alone, "1f1b", "dp=1")
    check_actions(pipeline.events(), pipeline.lists())


@pytest.mark.skipif(
    not shutil.which("mpirun") or not (BUILD / "lib" / "libcleave_mpi.so").exists(),
    reason="there is no MPI")
def test_processes_are_traced(tmp_path):
    pipeline = Pipeline(tmp_path, "zb-h1", processes=2, tie_word_embeddings=False)
    check_actions(pipeline.events(), pipeline.lists())


def test_what_was_measured_is_shown(pipelines, tmp_path):
    pipeline = pipelines("1f1b")
    text = pipeline.show(f"--measured-timeline={pipeline.trace}")
    for which in ("predicted", "measured"):
        # A part that is short beside a wait, or beside another one of a busy machine, may have no
        # letter.
        assert re.search(rf"# {which}, [\d.]+ \w+\n# position 0 \|.*[FB].*\n# position 1 \|", text)
        assert re.search(rf"# idle, {which}: [\d.]+ % at position 0, [\d.]+ % at position 1\n", text)
    facts = json.loads(pipeline.report.read_text())["schedule"]
    # The step of median length, from the first action that runs to the last one's end.
    lengths = []
    events = pipeline.events()
    for step in range(STEPS):
        own = [event for device in (0, 1) for event in events[step, device]]
        lengths.append((max(event["ts"] + event["dur"] for event in own)
                        - min(event["ts"] for event in own)) * 1e-6)
    measured = facts["measured"]
    assert measured["makespan"] == pytest.approx(sorted(lengths)[1], rel=1e-6)
    step = lengths.index(sorted(lengths)[1])
    for device, idle in enumerate(measured["idle"]):
        busy = sum(event["dur"] - event["args"]["waited"] for event in events[step, device]
                   if event["cat"] != "communication") * 1e-6
        assert idle == pytest.approx(1 - busy / measured["makespan"], abs=1e-6)
    assert measured["largest_idle"] == max(measured["idle"])
    for form, says in (("svg", "<svg"), ("perfetto", '"measured"')):
        shown = pipeline.show(f"--measured-timeline={pipeline.trace}", f"--schedule-format={form}")
        assert says in shown and "1F3" in shown


def test_costs_are_medians(pipelines):
    pipeline = pipelines("zb-h1")
    facts = pipeline.facts(f"--measured-costs={pipeline.trace}")
    taken = collections.defaultdict(list)
    for (step, _), own in pipeline.events().items():
        for event in own:
            if step > 0 and event["cat"] != "communication":
                part = re.search("[A-Z]", event["name"])[0]
                taken[event["args"]["stage"], part].append(
                    (event["dur"] - event["args"]["waited"]) * 1e-6)
    assert {part for _, part in taken} == set("PFIWNU")
    for stage in facts["stages"]:
        for part, seconds in stage["seconds"].items():
            expected = statistics.median(taken[stage["stage"], part])
            assert seconds == pytest.approx(expected, rel=1e-6, abs=1e-9), part
    assert facts["costs"] == str(pipeline.trace)
    assert pipeline.facts()["costs"] == "estimated"


def scaled(pipeline, path, factor):
    """A trace in which all takes `factor` times as long."""
    document = json.loads(pipeline.trace.read_text())
    for event in document["traceEvents"]:
        event["ts"] *= factor
        event["dur"] *= factor
        if "waited" in event.get("args", {}):
            event["args"]["waited"] *= factor
    path.write_text(json.dumps(document))
    return path


def test_costs_change_what_is_predicted(pipelines, tmp_path):
    pipeline = pipelines("zb-h1")
    slow = scaled(pipeline, tmp_path / "slow.json", 1000)
    one, other = (pipeline.facts(f"--measured-costs={path}") for path in (pipeline.trace, slow))
    assert other["makespan"] == pytest.approx(1000 * one["makespan"], rel=1e-4)
    assert other["predicted"]["idle"] == pytest.approx(one["predicted"]["idle"], abs=1e-4)
    # A part that takes longer makes the step longer by as much, where it is critical.
    document = json.loads(slow.read_text())
    for event in document["traceEvents"]:
        if event["cat"] == "update" and "device" in event.get("args", {}):
            event["dur"] += 5e6
    slow.write_text(json.dumps(document))
    longer = pipeline.facts(f"--measured-costs={slow}")
    assert longer["makespan"] == pytest.approx(other["makespan"] + 5, rel=0.05)
    text = pipeline.show(f"--measured-costs={slow}")
    assert f"# costs: measured, {slow}" in text
    # The same costs choose the order.
    auto = call(tool("cleave-compile"), *pipeline.flags, "--schedule=auto", "--emit=schedule",
                f"--measured-costs={slow}")
    assert "# train, auto" in auto and f"# costs: measured, {slow}" in auto


@pytest.mark.parametrize("content, message", [
    (None, "cannot open input file"),
    ("", "no costs: "),
    ("no JSON", "no costs: "),
    ("[" * 100000, "no costs: the JSON text is nested more than 64 deep"),
    ("{}", 'no costs: the trace has no "traceEvents"'),
    ('{"traceEvents": []}', "no costs: no event of the trace has a kind and a pipeline position"),
    ('[{"ph": "X", "cat": "forward", "name": "step 1", "ts": 0, "dur": 1, '
     '"args": {"device": 0}}]', "no costs: the event 'step 1' is not an action of a schedule"),
    ('[{"ph": "X", "cat": "forward", "name": "F0", "ts": 0, "dur": -1, '
     '"args": {"device": 0}}]', "no costs: the event 'F0' is invalid"),
    ('[{"ph": "X", "cat": "communication", "name": "F0>1", "ts": 0, "dur": 1, '
     '"args": {"device": 0}}]', "no costs: no event is a run of a part"),
    ('[{"ph": "X", "cat": "forward", "name": "F0", "ts": 0, "dur": 1, '
     '"args": {"device": 0}}]', "the measurement has 1 stages, and the program has 2"),
    ('[{"ph": "X", "cat": "forward", "name": "F0", "ts": 0, "dur": 1, '
     '"args": {"device": 0}}, {"ph": "X", "cat": "forward", "name": "1F0", "ts": 0, "dur": 1, '
     '"args": {"device": 1}}]', "the measurement lacks P, 1P"),
])
def test_bad_costs(pipelines, tmp_path, content, message):
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content)
    pipeline = pipelines("1f1b")
    said = pipeline.show(f"--measured-costs={path}", code=1)
    assert message in said and str(path) in said, said
    # An artifact is refused as well, though nothing asks for its schedule.
    said = call(tool("cleave-compile"), *pipeline.flags, f"--measured-costs={path}",
                "-o", tmp_path / "x.so", code=1)
    assert message in said and not (tmp_path / "x.so").exists()


def test_costs_of_another_model(pipelines, tmp_path):
    """Of as many stages and the same parts: what these compute tells it apart. The number
    of micro-batches does not, where each has as many samples."""
    pipeline = pipelines("1f1b")
    flags = [f"--measured-costs={pipeline.trace}", "--mesh=pp=2", "--emit=schedule"]
    other = tmp_path / "other.mlir"
    for changes, batch, code in [({"n_layer": 4}, 8, 1), ({"n_inner": 80}, 8, 1),
                                 ({}, 16, 1), ({}, 8, 0)]:
        model = gpt2(tie_word_embeddings=False, **changes)
        other.write_text(trace(model, named_tokens(batch=batch)).mlir)
        said = call(tool("cleave-compile"), other, *flags, "--micro-batches=4", "--max-grad-norm=1",
                    code=code)
        assert ("a run of F" in said) == bool(code)
    other.write_text(trace(gpt2(tie_word_embeddings=False), named_tokens(batch=16)).mlir)
    assert "measured" in call(tool("cleave-compile"), other, *flags, "--micro-batches=8",
                              "--max-grad-norm=1")
    # A trace without that fact serves any.
    events = json.loads(pipeline.trace.read_text())["traceEvents"]
    for event in events:
        event.get("args", {}).pop("flops", None)
    (tmp_path / "plain.json").write_text(json.dumps(events))
    other.write_text(trace(gpt2(tie_word_embeddings=False, n_layer=4), named_tokens(batch=8)).mlir)
    call(tool("cleave-compile"), other, f"--measured-costs={tmp_path / 'plain.json'}", *flags[1:],
         "--micro-batches=4", "--max-grad-norm=1")


def test_costs_of_another_program(pipelines):
    """Of whole backwards for split ones, and of four stages for two."""
    whole, split, four = (pipelines(name) for name in ("1f1b", "zb-h1", "zb-v"))
    said = split.show(f"--measured-costs={whole.trace}", code=1)
    assert re.search(r"the measurement lacks [\dIW, ]+; measure a run with the same", said)
    said = split.show(f"--measured-costs={four.trace}", code=1)
    assert "has 4 stages, and the program has 2" in said


def test_large_files_are_not_read(pipelines, tmp_path):
    path = tmp_path / "large.json"
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    for flag in ("--measured-costs", "--measured-timeline"):
        said = pipelines("1f1b").show(f"{flag}={path}", code=1)
        assert "is larger than 256 MiB; trace fewer steps" in said


def test_measured_flags_that_fit_nothing(pipelines):
    """A folder is not a trace."""
    pipeline = pipelines("1f1b")
    for flag in ("--measured-costs", "--measured-timeline"):
        assert "error: " in pipeline.show(f"{flag}={pipeline.trace.parent}", code=1)


def test_in_python(tmp_path):
    """What was predicted stands for a run: it gives back what it was made of."""
    run = tmp_path / "run.json"
    step = compiled()
    step.schedule(trace=run)
    text = step.schedule(svg=tmp_path / "s.svg", measured=run)
    assert "# measured, " in text and "# idle, measured: 0.0 % at position 0" in text
    assert ">measured, " in (tmp_path / "s.svg").read_text()
    again = compiled(measured_costs=str(run))
    own, other = (one.report()["schedule"] for one in (step, again))
    assert other["costs"] == str(run) and own["costs"] == "estimated"
    assert other["makespan"] == pytest.approx(own["makespan"], rel=1e-6)
    assert float(again(torch.ones(8, 16))) == float(step(torch.ones(8, 16)))


@pytest.mark.parametrize("value, error, message", [
    (3, TypeError, "measured_costs is a path, not 3"),
    ("", cleave.OptionError, "measured_costs is empty"),
    (pathlib.Path("absent.json"), cleave.CompileError, "cannot open input file 'absent.json'"),
])
def test_bad_arguments(value, error, message):
    with pytest.raises(error, match=message):
        compiled(measured_costs=value)


@pytest.mark.parametrize("value, error, message", [
    (3, TypeError, "measured is 3; it must be the path of a file"),
    ("", TypeError, "measured is ''"),
    (pathlib.Path("absent.json"), cleave.CompileError, "cannot open input file 'absent.json'"),
])
def test_bad_timelines(value, error, message):
    step = compiled()
    with pytest.raises(error, match=message):
        step.schedule(measured=value)


def test_rates_of_the_machine(tmp_path):
    """Rates are measured of each class, and what is compiled next takes the file."""
    model, rates = tmp_path / "gpt2.mlir", tmp_path / "machine.txt"
    model.write_text(trace(gpt2(), named_tokens(batch=4)).mlir)
    call(tool("cleave-compile"), model, "--threads=2", "--measure-machine", rates)
    lines = [line for line in rates.read_text().splitlines() if not line.startswith("#")]
    measured = {name: float(rate) for name, rate in (line.split("=") for line in lines)}
    assert {"contraction", "attention", "streamed", "link"} <= set(measured)
    assert set(measured) <= {"contraction", "contraction-16bit", "contraction-8bit", "attention",
                             "streamed", "link"}
    assert all(rate > 0 for rate in measured.values())
    call(tool("cleave-compile"), model, "--machine", rates, "--plan-only")


@pytest.mark.parametrize("precision, most", [("f32", "contraction_flops"),
                                             ("bf16", "contraction_16bit_flops"),
                                             ("fp8", "contraction_8bit_flops")])
def test_contractions_count_by_their_factors(tmp_path, precision, most):
    """Neither a bias in f32 nor the indices of a loss change what is multiplied."""
    model, report = tmp_path / "gpt2.mlir", tmp_path / "report.json"
    model.write_text(trace(gpt2(), named_tokens(batch=4)).mlir)
    call(tool("cleave-compile"), model, "--precision", precision, "--plan-only",
         "--report", report)
    [stage] = json.loads(report.read_text())["schedule"]["stages"]
    counted = {name: stage[name] for name in
               ("contraction_flops", "contraction_16bit_flops", "contraction_8bit_flops")}
    assert max(counted, key=counted.get) == most
    # The head multiplies in 16 bits beside layers in 8.
    assert {name for name, flops in counted.items() if flops} == {most} | (
        {"contraction_16bit_flops"} if precision == "fp8" else set())
