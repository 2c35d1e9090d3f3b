# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A run that is stopped and resumed has the bits of one that was not."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import torch

import cleave
import loop_script
from cleave.run import JSONL, checkpoints
from loop_runs import Recorder, loader, make_step
from training_support import same_bits, snapshot, token_batches, tokens

SCRIPT = pathlib.Path(__file__).with_name("loop_script.py")
#: Numbers of a log that are times.
TIMES = ("ms", "data_ms", "tokens_per_s")


def start(folder, steps, seconds):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(steps), str(seconds)],
                            stdout=subprocess.PIPE, text=True, env=environment)


def logged(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def test_a_killed_run(tmp_path):
    """Parameters, optimizer state, log and random numbers, after a kill in the middle of the second
    epoch: the same bits."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    drawn = loop_script.main(one, 12, 0)
    killed = start(two, 12, 0.2)
    for line in killed.stdout:
        if line.strip() == "8":
            killed.send_signal(signal.SIGKILL)
            break
    killed.stdout.close()
    assert killed.wait() == -signal.SIGKILL
    # A line that the kill has cut.
    with open(two / "log.jsonl", "a") as log:
        log.write('{"step": 9, "lo')
    assert max(line["step"] for line in logged_until_cut(two)) >= 7
    again = start(two, 12, 0).communicate(timeout=300)[0].splitlines()
    assert again[0] == "7" and again[-1] == f"ended {drawn[-1]}"
    assert sorted(os.listdir(two / "checkpoints")) == sorted(os.listdir(one / "checkpoints")) == ["step-12", "step-9"]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (one / "checkpoints/step-12" / name).read_bytes() == (two / "checkpoints/step-12" / name).read_bytes()
    facts = [json.loads((folder / "checkpoints/step-12/training.json").read_text())["kept"] for folder in (one, two)]
    assert facts[0] == facts[1]
    assert logged(one) == logged(two) and [line["step"] for line in logged(two)] == list(range(1, 13))


def logged_until_cut(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()[:-1]]


@pytest.mark.parametrize("mesh", [{"dp": 2}, {}])
def test_resumed_on_another_mesh(tmp_path, mesh):
    """The losses are those of the first mesh but for rounding; what was drawn of the data is the same."""
    torch.manual_seed(0)
    recorder = Recorder()
    cleave.Run(make_step(), loader(), callbacks=[recorder], folder=tmp_path / "a", save_every=3).fit(steps=7)
    torch.manual_seed(1)
    again = Recorder()
    cleave.Run(make_step(mesh), loader(), callbacks=[again], folder=tmp_path / "b").fit(
        steps=7, resume=tmp_path / "a" / "step-3")
    torch.testing.assert_close(again.losses, recorder.losses[3:], rtol=1e-4, atol=0)


def test_an_error_saves_the_state_of_the_last_step(tmp_path):
    """Also where a batch was drawn and not used; the next run uses it."""
    class Fails:
        """A list whose reader fails at a batch, once."""

        def __init__(self, at):
            self.at = at

        def __iter__(self):
            for number, batch in enumerate(token_batches(6)):
                yield (torch.zeros(4, 8),) * 2 if number == self.at else batch  # Of a wrong type.

    whole, recorder = Recorder(), Recorder()
    cleave.Run(make_step(), Fails(None), callbacks=[whole]).fit(epochs=1)
    with pytest.raises(TypeError):
        cleave.Run(make_step(), Fails(4), callbacks=[recorder], folder=tmp_path / "run",
                   save_every=3).fit(epochs=1)
    assert recorder.events[-2:] == ["save 4", "end TypeError"]
    again = Recorder()
    step = make_step()
    cleave.Run(step, Fails(None), callbacks=[again], folder=tmp_path / "run").fit(epochs=1, resume="auto")
    assert step.step == 6 and recorder.losses + again.losses == whole.losses


def test_an_interrupt_after_a_step(tmp_path):
    """Ctrl-C between a step and the next: the step counts, and its batch is used."""
    class Interrupts(Recorder):
        def on_step(self, run, values):
            super().on_step(run, values)
            if run.step.step == 2:
                raise KeyboardInterrupt

    first, second, whole = Interrupts(), Recorder(), Recorder()
    with pytest.raises(KeyboardInterrupt):
        cleave.Run(make_step(), token_batches(4), callbacks=[first], folder=tmp_path).fit(epochs=1)
    step, plain = make_step(), make_step()
    cleave.Run(step, token_batches(4), callbacks=[second], folder=tmp_path).fit(epochs=1, resume="auto")
    cleave.Run(plain, token_batches(4), callbacks=[whole]).fit(epochs=1)
    assert first.losses + second.losses == whole.losses
    assert same_bits(snapshot(step), snapshot(plain))


def test_keep_and_minutes(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(checkpoints, "monotonic", lambda: clock[0])

    class Ticks(Recorder):
        def on_step(self, run, values):
            super().on_step(run, values)
            clock[0] += 20

    recorder = Ticks()
    cleave.Run(make_step({"dp": 2}), token_batches(2), callbacks=[recorder], folder=tmp_path, save_minutes=1,
               keep=2).fit(steps=10)
    assert [event for event in recorder.events if "save" in event] == ["save 3", "save 6", "save 9", "save 10"]
    assert sorted(os.listdir(tmp_path)) == ["step-10", "step-9"]


def test_folders_of_others(tmp_path):
    step = make_step({"dp": 2})
    run = cleave.Run(step, [tokens()], folder=tmp_path / "a")
    run.fit(steps=1, resume="auto")  # There is none yet.
    with pytest.raises(FileExistsError, match="checkpoints of another run"):
        cleave.Run(make_step({"dp": 2}), [tokens()], folder=tmp_path / "a").fit(steps=2)
    step.save(tmp_path / "b" / "step-1")
    with pytest.raises(ValueError, match="not written by a run"):
        cleave.Run(step, [tokens()]).fit(steps=2, resume=tmp_path / "b")


def test_what_a_caller_keeps(tmp_path):
    step = make_step({"dp": 2})
    kept = {"name": "x", "numbers": [1, 2.5, None], "nested": {"é": True}}
    step.save(tmp_path / "a", kept=kept)
    step.save(tmp_path / "b")
    assert step.load(tmp_path / "a") == kept and step.load(tmp_path / "b") == {}
    with pytest.raises(ValueError):
        step.save(tmp_path / "c", kept={"x": float("nan")})
    with pytest.raises(TypeError):
        step.save(tmp_path / "c", kept={"x": torch.ones(1)})
    assert not (tmp_path / "c").exists()


def test_state_of_callbacks(tmp_path):
    class Counts:
        def __init__(self):
            self.count = 0

        def on_step(self, run, values):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    def fit(steps, resume=None):
        counts = [Counts(), Counts()]
        log = JSONL(tmp_path / "log.jsonl")
        cleave.Run(make_step({"dp": 2}), [tokens()], callbacks=[*counts, log], folder=tmp_path / "a").fit(
            steps=steps, resume=resume)
        return [one.count for one in counts]

    assert fit(2) == [2, 2] and fit(5, "auto") == [5, 5]
    lines = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == [1, 2, 3, 4, 5]
