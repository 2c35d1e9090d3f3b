# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Nodes and handles: calls, futures, failures and ends are those of one process wherever nodes
are; a step that a launch graph trains is PyTorch's."""

import importlib.util
import json
import multiprocessing.connection
import sqlite3

import numpy as np
import pytest
import safetensors.torch
import torch

import launch
import launch_nodes
import launch_processes
import launch_training
from launch_cases import Asker, Broken, Counter, Looping

HOW = ["threads", "processes", pytest.param("ray", marks=pytest.mark.skipif(
    not importlib.util.find_spec("ray"), reason="Ray is not installed"))]


@pytest.mark.parametrize("how", HOW)
def test_calls(tmp_path, how):
    """A node without `run` serves; loops end by `stop`; handles are found inside containers."""
    program = launch.Program()
    one = program.add("one", Counter)
    two = program.add("two", Counter, start=100)
    program.add("looping", Looping, two)
    program.add("asker", Asker, {"one": one, "two": [two]}, tmp_path / "seen", stop=program.launcher)
    program.launch(how).wait(timeout=60)
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen[:3] == [2, 8, 101]
    assert seen[3] == ["mine"], "arguments are copies"
    assert seen[4] == "'no 3'"
    assert seen[5] in ("NodeError", "TypeError")
    assert seen[6] == 111
    assert seen[7] == (how == "threads")


@pytest.mark.parametrize("how", HOW[:2])
def test_ends_when_all_have_run(tmp_path, how):
    program = launch.Program()
    one, two = program.add("one", Counter), program.add("two", Counter, 100)
    program.add("asker", Asker, {"one": one, "two": (two,)}, tmp_path / "seen")
    program.launch(how).wait(timeout=60)
    assert (tmp_path / "seen").exists()


@pytest.mark.parametrize("how, what, message", [
    ("threads", "constructor", "the node 'broken' failed:(?s:.*)ValueError: bad settings"),
    ("processes", "run", "the node 'broken' failed:(?s:.*)ValueError: bad data"),
    ("processes", "killed", "the process of the node 'broken' has ended early, with status -9"),
])
def test_a_failed_node_ends_all(how, what, message):
    program = launch.Program()
    program.add("looping", Looping, program.add("counter", Counter))
    program.add("broken", Broken, what)
    with pytest.raises(launch.NodeError, match=message):
        program.launch(how).wait(timeout=60)


def test_time_is_limited():
    program = launch.Program()
    program.add("looping", Looping, program.add("counter", Counter))
    running = program.launch()
    with pytest.raises(TimeoutError, match="has not ended within 0.2 s"):
        running.wait(timeout=0.2)
    assert not any(thread.is_alive() for thread in running.threads)


def test_bad_programs(monkeypatch):
    program = launch.Program()
    with pytest.raises(ValueError, match="has no nodes"):
        program.launch()
    program.add("counter", Counter)
    with pytest.raises(ValueError, match="nodes cannot be 'fibers'; they are 'threads', 'processes', 'ray'"):
        program.launch("fibers")
    with pytest.raises(ValueError, match="two nodes have the name 'counter'"):
        program.add("counter", Counter)
    with pytest.raises(ValueError, match="two nodes have the name 'launcher'"):
        program.add("launcher", Counter)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="Ray is not installed"):
        program.launch("ray")
    program.add("looping", Looping, [program.handle("countre")])
    with pytest.raises(ValueError, match="the node 'looping' has a handle of 'countre', which is no node"):
        program.launch()


class Partner:
    """Counts down with another one, to whom each has a handle."""

    def __init__(self, other, first, stop):
        self.other, self.first, self.launcher = other, first, stop

    def down(self, number):
        if number == 0:
            self.launcher.stop()
        else:
            self.other.later("down", number - 1)

    def run(self):
        if self.first:
            self.other.down(7)
        self.other.later("missing")


def test_two_that_call_each_other():
    program = launch.Program()
    program.add("one", Partner, program.handle("two"), True, program.launcher)
    program.add("two", Partner, program.handle("one"), False, program.launcher)
    program.launch().wait(timeout=30)


def test_strangers_are_refused():
    """Only who has the key is answered: what comes in is unpickled."""
    listener = multiprocessing.connection.Listener(("127.0.0.1", 0), authkey=b"right")
    launch_processes.serve(listener, lambda method, args, kwargs: method)
    with pytest.raises(multiprocessing.AuthenticationError):
        multiprocessing.connection.Client(listener.address, authkey=b"wrong")
    with multiprocessing.connection.Client(listener.address, authkey=b"right") as connection:
        connection.send(("hello", (), {}))
        assert connection.recv() == (True, "hello")


def test_feed_gives_each_rank_each_batch():
    feed = launch_nodes.Feed(iter, ([{"x": i} for i in range(4)],), 2)
    assert [feed.batch(n)["x"] for n in (0, 1)] == [0, 1]      # one rank is ahead
    assert [feed.batch(n)["x"] for n in (0, 1)] == [0, 1]
    assert not feed.held
    assert feed.batch(3)["x"] == 3 and sorted(feed.held) == [2, 3]
    with pytest.raises(StopIteration):
        feed.batch(4)


def rows_of(path, held_out):
    """The rows of the database, read without Cleave."""
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT x, y FROM rows WHERE held_out = ? ORDER BY id", [held_out]).fetchall()
    return (torch.from_numpy(np.stack([np.frombuffer(x, np.float32) for x, _ in rows])),
            torch.tensor([y for _, y in rows]))


def by_pytorch(path, batch, steps, every):
    """Losses after the steps that are stored, and weights. A batch may span two epochs."""
    model, (x, y) = launch_nodes.build(), rows_of(path, 0)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(steps):
        chosen = torch.arange(step * batch, (step + 1) * batch) % len(x)
        loss = torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[every - 1::every], model


def test_training(tmp_path):
    """Feed, two ranks, evaluator and store as threads and as processes: the models have the
    same bits, and are PyTorch's; each knows its parent."""
    entries = [launch_training.main(["--smoke", "--nodes", how, "--work", str(tmp_path / how)])
               for how in ("threads", "processes")]
    assert entries[0] == entries[1]
    rows = tmp_path / "processes/rows.db"
    losses, model = by_pytorch(rows, batch=16, steps=8, every=4)
    assert [entry["loss"] for entry in entries[0]] == pytest.approx(losses, rel=1e-5)
    assert [entry["step"] for entry in entries[0]] == [4, 8]
    assert [entry["parent"] for entry in entries[0]] == [None, entries[0][0]["hash"]]
    last = safetensors.torch.load_file(tmp_path / "processes/store" / f"{entries[0][-1]['hash']}.safetensors")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(last[name], value, rtol=1e-4, atol=1e-5)
    model.load_state_dict(last)
    x, y = rows_of(rows, 1)
    with torch.no_grad():
        own = torch.nn.functional.cross_entropy(model(x), y)
    assert len(y) == 512
    assert entries[0][-1]["held_out_loss"] == pytest.approx(own.item(), rel=1e-6)
    assert "<polyline" in (tmp_path / "threads/launch.svg").read_text()
