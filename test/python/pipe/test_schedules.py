# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Schedules in Python: how they are given, and what is shown of them."""

import json
import xml.etree.ElementTree

import pytest
import torch

import cleave
from cleave.messages import format_bytes
from schedule_runs import compiled

BACKWARDS = "F1 B1 F0 B0 U"


def test_a_schedule_is_a_text_or_a_path(tmp_path):
    path = tmp_path / "mine.sched"
    path.write_text(f"# mine\n{BACKWARDS}\n")
    x = torch.randn(8, 16)
    losses = []
    for schedule in (None, BACKWARDS, path, str(path)):
        step = compiled(schedule=schedule)
        losses.append(float(step(x)))
        order = "F0 B0 F1 B1 U" if schedule is None else BACKWARDS
        assert f'schedule = "{order}"' in step.ir("scheduled")
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_saved_is_what_forward_leaves_to_backward(micro_batches):
    """Not gradients, which wait for the norm of all, nor sums of micro-batches."""
    step = compiled(micro_batches=micro_batches, optimizer=cleave.AdamW(max_grad_norm=1.0))
    report = step.report()
    entry = report["plan"]["entries"]["train"]
    saved = sum(value["bytes"] for value in entry["saved"])
    assert saved == report["schedule"]["stages"][0]["saved_bytes_per_micro_batch"] > 0
    assert {value["part"] for value in entry["saved"]} == {"train.F"}
    assert saved < entry["peak_bytes"]
    assert f"train: saves {format_bytes(saved)} for backward of each micro-batch" in step.explain("full")
    assert "evaluate: saves" not in step.explain("full")


def test_what_is_of_a_pipeline_is_said_without_one(caplog):
    compiled(schedule="zb-v", virtual_stages=2, max_saved_bytes=1, pipe_slices="on")
    for name in ("schedule", "virtual_stages", "max_saved_bytes", "pipe_slices"):
        assert f'{name} needs a pipeline, and mesh has no axis "pp"' in caplog.text
    caplog.clear()
    compiled(schedule=BACKWARDS)
    assert "needs a pipeline" not in caplog.text


def test_what_is_shown_is_a_schedule(tmp_path):
    svg, trace = tmp_path / "step.svg", tmp_path / "step.json"
    step = compiled(schedule=BACKWARDS)
    text = step.schedule(svg=svg, trace=trace)
    assert "# predicted, " in text and "\n# position 0 |F1F" in text
    again = compiled(schedule=text)
    assert f'schedule = "{BACKWARDS}"' in again.ir("scheduled")
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == BACKWARDS.split()
    report = step.report()["schedule"]
    assert report["makespan"] == pytest.approx(report["ideal"])
    assert report["micro_batches"] == 2 and len(report["stages"]) == 1


@pytest.mark.parametrize("options, error, message", [
    ({"schedule": 3}, TypeError, "schedule is a text, not 3"),
    ({"schedule": "2f2b"}, cleave.CompileError, "unknown schedule '2f2b'; write one of gpipe.*auto"),
    ({"schedule": "F0 ?"}, cleave.CompileError, "<schedule>:1:4: error: schedule: '\\?' is not"),
    ({"schedule": ""}, cleave.CompileError, "<schedule>:1:1: error: schedule: it is empty"),
    ({"schedule": "F0 B0 U"}, cleave.CompileError, "it is for 1 micro-batches, and the step has 2"),
    ({"schedule": "F0 F1\nB0 U"}, cleave.CompileError, "<schedule>:2:1: error: .* got 2"),
    ({"schedule": "F0 F1 B0 U"}, cleave.CompileError, "<schedule>.*:1:1.*B1 never runs"),
    ({"schedule": "F0 B1 F1 B0 U"}, cleave.CompileError, "<schedule>.*:1:4.*B1 reads results"),
    ({"schedule": BACKWARDS, "micro_batches": 1, "deterministic": 2}, cleave.CompileError,
     "the order of a deterministic step is fixed"),
    ({"schedule": "F0 | 1F0", "mesh": {"pp": 3}}, cleave.CompileError, "expected 3 lists"),
    ({"virtual_stages": 0}, ValueError, "virtual_stages must be positive, not 0"),
    ({"max_saved_bytes": -1}, ValueError, "max_saved_bytes must not be negative"),
    ({"stages": {"first"}}, TypeError, "stages is a text, not"),
])
def test_bad_schedules(options, error, message):
    with pytest.raises(error, match=message):
        compiled(**options)


@pytest.mark.parametrize("name", [
    "nope.sched", "orders/nope", "my orders/nope.txt", "nope", "NOPE", "1F1B", "zb_h1", "ZB-H1",
])
def test_names_of_no_schedule_and_no_file(name):
    """What is no order of actions is a name, whichever: both are said."""
    with pytest.raises(cleave.CompileError, match=f"^schedule: unknown schedule '{name}'; write one "
                       "of gpipe, 1f1b, .*; there is no file of this name either$"):
        compiled(schedule=name)


@pytest.mark.parametrize("text", ["F0,B0", "F", "-", "F0 b.", "F9", "F0 B0 # as in a/b.txt"])
def test_wrong_texts_are_no_names(text):
    with pytest.raises(cleave.CompileError, match="^<schedule>:1:"):
        compiled(schedule=text)


def test_a_comment_may_hold_anything():
    plain, other = (compiled(schedule=BACKWARDS + end) for end in ("", "  # as in a/b.txt"))
    assert other.schedule() == plain.schedule() != compiled().schedule()


def test_bad_files(tmp_path):
    with pytest.raises(OSError, match="absent"):
        compiled(schedule=tmp_path / "absent")
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="bytes is not a schedule: it is not text"):
        compiled(schedule=path)
