# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Steps whose tokens choose experts so that a rank has no room for its rows: they say which layer,
rank and rows, change nothing, and steps after them are as if they had not been; in Python, the step
grows, and is as with room for all rows."""

import json
import logging
import multiprocessing
import os
import re

import numpy as np
import pytest
import torch
from expert_rows import drawn, emitted, written
from native_layouts import compile_native
from recipe_runs import OPTIMIZERS, agree
from socket_runs import free_port

import cleave
from cleave import _runtime
from cleave.testing.tools import ToolError, interpret, run_tool, tool

TYPES = {"f32": np.float32, "i64": np.int64}
#: 1.5 even shares of each micro-batch; a step begins with as many rows on each rank.
BUFFER = "--expert-buffer=1.5"
#: Mesh, plan, further flags, and the ranks that may have no room where all choose one expert.
LAYOUTS = [
    ("ep=2", "expert", ()),
    ("ep=4", "expert", ()),
    ("ep=2", "expert", ("--check-finite=off", "--max-grad-norm=0")),
    ("dp=2,ep=2", "expert", ("--micro-batches=2",)),
    ("dp=2,ep=2", "expert,zero1", ()),
    ("dp=2,ep=2", "expert,zero2", ("--micro-batches=2",)),
    ("dp=2,ep=2", "expert,zero3", ()),
    ("ep=2,tp=2", "megatron-sp,expert", ("--micro-batches=2",)),
    ("ep=2", "expert", ("--recompute=full", "--precision=fp16", "--loss-scale=1")),
    ("pp=2,ep=2", "expert", ("--micro-batches=4", "--schedule=1f1b", "--stages=gate1")),
    ("pp=2,ep=2", "expert", ("--micro-batches=4", "--schedule=zb-h1", "--stages=gate1")),
    ("pp=2,ep=2", "expert", ("--micro-batches=4", "--schedule=1f1b", "--stages=gate1",
                             "--post-validation=on")),
    ("node=2,ep=2", "expert(node),expert(ep)", ()),
    ("node=2,ep=2", "expert(node),expert(ep)", ("--micro-batches=2", "--expert-dispatch=hierarchical")),
]
#: The line, the parameter and the numbers.
MESSAGE = re.compile(r"m(?:\.f32)?\.mlir:\d+: gate([01]): rank (\d+) receives (\d+) rows, and has room for (\d+) "
                     r"\(--expert-buffer=1.5\); --expert-buffer=([\d.]+) has room for the most that a rank receives$", re.M)


class Run:
    """A session, and the inputs of one drawn step after another."""

    def __init__(self, artifact, step, first=3):
        self.session = _runtime.open(str(artifact))
        self.tensors = {tensor["name"]: tensor for tensor in self.session.tensors()}
        self.step, self.number = step, first
        self.give("even", ("parameter", "state", "buffer", "scalar", "input"))

    def give(self, routing, roles=("input",)):
        for name, value in drawn(self.step, routing, seed=5 + self.number).items():
            tensor = self.tensors.get(name)
            if tensor and tensor["role"] in roles and name not in ("step", "rng"):
                value = np.ascontiguousarray(value.astype(TYPES[tensor["dtype"]]))
                self.session.write(name, np.frombuffer(value.tobytes(), np.uint8))

    def train(self, routing):
        """The error of a step, and the state after it; a step without one counts."""
        self.give(routing)
        error = self.session.run("train", 0, self.number)
        self.number += not error
        return error, self.kept()

    def kept(self):
        return {name: bytes(self.session.read(name)) for name, tensor in self.tensors.items()
                if tensor["role"] in ("parameter", "state", "buffer")}


def changed(one, other):
    return [name for name in one if one[name] != other[name]]


def check_message(error, ranks):
    found = MESSAGE.search(error)
    assert found, error
    layer, rank, needed, room, factor = found.groups()
    assert int(rank) < ranks and int(needed) > int(room) and float(factor) > 1.5
    return int(layer), int(needed), int(room), float(factor)


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_a_step_without_room_changes_nothing(tmp_path, number):
    """Nor does it change what later steps do: with it and without, they leave the same bits."""
    mesh, plan, flags = LAYOUTS[number]
    ranks = int(np.prod([int(n) for n in re.findall(r"\d+", mesh)]))
    path = written(tmp_path, bias=number % 2 == 1)
    own = OPTIMIZERS["adamw"]
    step = emitted(path, "step", *own)
    artifact = compile_native(path, *own, f"--mesh={mesh}", f"--plan={plan}", BUFFER, *flags)
    run, other = Run(artifact, step), Run(artifact, step)
    assert not run.train("even")[0]
    before = run.kept()
    for _ in range(1 + number % 2):
        error, after = run.train("one")
        check_message(error, ranks)
        assert not changed(before, after)
    error, after = run.train("even")
    assert not error and len(changed(before, after)) > 6
    run.train("even")
    for _ in range(3):
        assert not other.train("even")[0]
    assert run.number == other.number
    assert not changed(run.kept(), other.kept())


@pytest.mark.parametrize("mesh, flags", [("ep=2", ()), ("dp=2,ep=2", ("--micro-batches=2",)), ("ep=4", ())])
def test_the_interpreter_says_the_same(tmp_path, mesh, flags):
    path = written(tmp_path)
    own, layout = OPTIMIZERS["adamw"], [f"--mesh={mesh}", "--plan=expert", BUFFER, *flags]
    step = emitted(path, "step", *own)
    local, scheduled = (emitted(path, phase, *own, *layout) for phase in ("local", "scheduled"))
    inputs = drawn(step, "one")
    error = Run(compile_native(path, *own, *layout), step, first=0).train("one")[0]
    for text in (local, scheduled):
        with pytest.raises(ToolError, match="check failed: ") as caught:
            interpret(text, inputs, entry="train")
        said = MESSAGE.search(str(caught.value))
        assert said and said.groups()[2:] == MESSAGE.search(error).groups()[2:]
    inputs = drawn(step, "even")
    expected = interpret(step, inputs, entry="train")[0]
    for text in (local, scheduled):
        agree(interpret(text, inputs, entry="train")[0], expected)


def test_the_factor_of_the_message_has_room(tmp_path):
    """And a little less has none."""
    path, own = written(tmp_path, layers=1), OPTIMIZERS["adamw"]
    step = emitted(path, "step", *own)

    def said(factor):
        artifact = compile_native(path, *own, "--mesh=ep=4", "--plan=expert", f"--expert-buffer={factor}")
        return Run(artifact, step).train("some")[0]

    found = re.search(r"receives (\d+) rows, .*--expert-buffer=([\d.]+) has room", said(1.25))
    assert found
    factor = float(found.group(2))
    assert not said(factor) and "has room for the most" in said(factor - 0.06)


def _as_rank(rank, port, artifact, step):
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "2", "CLEAVE_PORT": port})
    run = Run(artifact, step)
    first = run.train("even")
    bad = run.train("one")
    last = run.train("even")
    return first[0], bad[0], last[0], changed(first[1], bad[1]), changed(bad[1], last[1]), last[1]


def test_ranks_that_are_processes(tmp_path):
    """All are told the same, go on, and leave what threads leave."""
    path, own = written(tmp_path), OPTIMIZERS["adamw"]
    step = emitted(path, "step", *own)
    artifact = compile_native(path, *own, "--mesh=ep=2", "--plan=expert", BUFFER)
    port = free_port()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        ranks = [pool.apply_async(_as_rank, (rank, port, artifact, step)) for rank in range(2)]
        outcomes = [rank.get(120) for rank in ranks]
    run = Run(artifact, step)
    run.train("even")
    error = run.train("one")[0]
    _, kept = run.train("even")
    for first, bad, last, by_bad, by_last, left in outcomes:
        assert not first and not last and not by_bad and len(by_last) > 6
        assert bad == error
        assert not changed(left, kept)


def report(path, *flags):
    return json.loads(run_tool([tool("cleave-compile"), str(path), "--plan=expert", "--plan-only", "--report=-",
                                *flags]))


def test_the_room_is_chosen_by_its_bytes(tmp_path):
    """All rows where they take at most a tenth of the arena, else twice an even share."""
    few, many = written(tmp_path), tmp_path / "many.mlir"
    few.write_text(few.read_text().replace("f64", "f32"))
    # Of the same rows beside a weight that is far larger than their buffers.
    text = few.read_text()
    many.write_text(text.replace('%proj: tensor<8x8xf32>', '%table: tensor<4096x64xf32> {graph.name = "table", '
                                 'graph.role = "parameter"}, %proj: tensor<8x8xf32>').replace(
        "return %l", "%t = graph.reduce sum %table {dims = array<i64: 0, 1>} : (tensor<4096x64xf32>) -> tensor<f32>\n"
        "  %lt = graph.add %l, %t : (tensor<f32>, tensor<f32>) -> tensor<f32>\n  return %lt"))
    for path, worst in ((few, False), (many, True)):
        found = report(path, "--mesh=ep=4")
        chosen = found["expert_buffer"]
        assert chosen["shares"] == (0 if worst else 2) and not chosen["given"]
        arena = max(p["arena_bytes"] for p in [found["plan"]])
        assert arena == chosen["arena_bytes" if worst else "other_arena_bytes"]
        assert chosen["worst_bytes"] == 2 * chosen["other_bytes"] > 0
        assert (chosen["worst_bytes"] <= chosen["most_bytes"]) == worst
        assert chosen["worst_bytes"] - chosen["other_bytes"] == pytest.approx(
            chosen["arena_bytes"] - chosen["other_arena_bytes"], abs=4)
        [line] = [line for line in found["decisions"] if line.startswith("rows of experts: ")]
        assert ("room for those of all ranks" if worst else "room for 2 even shares") in line
        # The choice is as the option says.
        said = report(path, "--mesh=ep=4", f"--expert-buffer={'worst' if worst else 2}")
        assert said["plan"]["arena_bytes"] == arena
        assert said["expert_buffer"]["shares"] == chosen["shares"] and said["expert_buffer"]["given"]
    # Of two ranks, twice an even share are all rows.
    assert report(few, "--mesh=ep=2")["expert_buffer"]["shares"] == 0


@pytest.mark.parametrize("flags, message", [
    (["--expert-buffer=0.5"], "--expert-buffer: must be at least 1, not 0.5"),
    (["--expert-buffer=most"], "--expert-buffer: expected worst or a number, not 'most'"),
    (["--expert-buffer=nan"], "--expert-buffer: expected worst or a number, not 'nan'"),
    (["--expert-overflow=skip"], "--expert-overflow is auto, abort or grow, not 'skip'"),
    (["--expert-overflow=grow", "-o", "x.so"], "--expert-overflow: grow is of the step of cleave.compile in Python"),
    (["--plan=zero1", "--mesh=dp=2", "--expert-overflow=abort"], "--expert-overflow needs the recipe `expert` in"),
])
def test_bad_options(tmp_path, flags, message):
    path = written(tmp_path)
    layout = [] if "--mesh=dp=2" in flags else ["--mesh=ep=2", "--plan=expert"]
    output = [] if "-o" in flags else ["--plan-only"]
    with pytest.raises(ToolError) as caught:
        run_tool([tool("cleave-compile"), str(path), *layout, *flags, *output])
    assert message in str(caught.value)


def test_groups_that_ranks_do_not_divide(tmp_path):
    """The recipe says which dimension of which weight it is."""
    path = written(tmp_path)
    with pytest.raises(ToolError) as caught:
        run_tool([tool("cleave-compile"), str(path), "--mesh=ep=8", "--plan=expert", "--plan-only"])
    assert re.search(r"m\.mlir:\d+.*4", str(caught.value)), caught.value


@pytest.fixture
def untimed(monkeypatch):
    """Implementations of contractions, which round otherwise, do not follow from measured times."""
    monkeypatch.setenv("CLEAVE_TUNING", "off")


def compiled(ranks=4, launch="threads", choices=1, mesh=None, plan="expert", **communication):
    """Experts of which each token chooses some, on some ranks, and their step."""
    torch.manual_seed(3)
    model = cleave.models.mixtral(hidden=16, heads=2, layers=2, seq=8, vocab=32, ffn=16, experts=4, choices=choices,
                                  dropout=0.1)
    ids = torch.zeros(8, 8, dtype=torch.int64)
    return cleave.compile(model, (ids, ids), mesh=mesh or {"ep": ranks}, plan=plan, micro_batches=2, check="off",
                          seed=7, launch=launch, communication=cleave.Communication(**communication))


def batch(number, same=False):
    ids = torch.randint(32, (8, 8), generator=torch.Generator().manual_seed(number))
    return torch.full_like(ids, 5) if same else ids


def bits(step):
    """All that a step keeps, as bytes by name."""
    state = {name: value.numpy().tobytes() for name, value in step.state_dict().items()}
    training = step.training_state()
    for name, slots in training.pop("optimizer").items():
        state |= {f"{name}.{slot}": torch.as_tensor(value).numpy().tobytes() for slot, value in slots.items()}
    return state, training


def test_a_step_grows(caplog, untimed):
    """A step without room is compiled with twice the room until it has it, and made again: after
    that, all bits are those of a step that has room for all rows from the beginning."""
    grows, worst = compiled(expert_buffer=2), compiled(expert_buffer="worst", expert_overflow="abort")
    caplog.set_level(logging.WARNING, "cleave")
    for number in range(6):
        ids = batch(number, same=number == 2)
        caplog.clear()
        losses = [float(step(ids, ids)) for step in (grows, worst)]
        assert losses[0] == losses[1], number
        said = [record.getMessage() for record in caplog.records]
        if number == 2:
            assert len(said) == 1 and re.search(
                r"receives .. rows, and has room for 16 \(--expert-buffer=2\).*: compiled in .* s with "
                r"--expert-buffer=4, and the step is made again", said[0]), said
        else:
            assert not said
        assert bits(grows) == bits(worst), number
    assert float(grows.evaluate(batch(9), batch(9))) == float(worst.evaluate(batch(9), batch(9)))


def test_a_step_over_nodes_grows(caplog, untimed):
    """Until each node has room for the tokens, and each rank for the choices."""
    layout = dict(choices=2, mesh={"node": 2, "ep": 2}, plan="expert(node),expert(ep)")
    grows, worst = (compiled(**layout, expert_buffer=buffer) for buffer in (1, "worst"))
    caplog.set_level(logging.WARNING, "cleave")
    for number in range(3):
        ids = batch(number, same=number == 1)
        assert float(grows(ids, ids)) == float(worst(ids, ids)), number
        assert bits(grows) == bits(worst), number
    said = [record.getMessage() for record in caplog.records]
    assert said and all("and the step is made again" in text for text in said), said


def test_evaluation_grows(untimed):
    grows, worst = compiled(expert_buffer=1), compiled(expert_buffer="worst")
    ids = batch(0, same=True)
    before = bits(grows)
    assert float(grows.evaluate(ids, ids)) == float(worst.evaluate(ids, ids))
    assert bits(grows) == before


def test_a_step_that_does_not_grow_ends(caplog, untimed):
    """And goes on with another batch, as if it had not been."""
    step, other = (compiled(expert_buffer=2, expert_overflow="abort") for _ in range(2))
    caplog.set_level(logging.WARNING, "cleave")
    for number in range(4):
        ids = batch(number)
        if number == 2:
            before, bad = bits(step), batch(number, same=True)
            with pytest.raises(cleave.StepError, match="rank . receives .. rows, and has room for 16"):
                step(bad, bad)
            assert bits(step) == before
        assert float(step(ids, ids)) == float(other(ids, ids))
    assert bits(step) == bits(other)
    assert not caplog.records


def _grow_as_rank(rank, port):
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "2", "CLEAVE_PORT": port, "CLEAVE_TUNING": "off",
                       "OMP_NUM_THREADS": "1"})
    return steps_of(compiled(2, "processes", expert_buffer=1.75))


def steps_of(step):
    ids = [batch(number, same=number == 2) for number in range(5)]
    return [float(step(own, own)) for own in ids], bits(step)


def test_processes_grow_together(untimed):
    """Each compiles again, and they leave what one process leaves that has room from the beginning."""
    port = free_port()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        ranks = [pool.apply_async(_grow_as_rank, (rank, port)) for rank in range(2)]
        outcomes = [rank.get(240) for rank in ranks]
    expected = steps_of(compiled(2, expert_buffer="worst"))
    assert outcomes == [expected, expected]
