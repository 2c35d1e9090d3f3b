# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Rows that each rank sends to each, as many as values say: the interpreter beside a definition in
NumPy, and native code on threads beside the interpreter."""

import json
import multiprocessing

import numpy as np
import pytest
from native_values import compare

from cleave.testing.tools import ToolError, interpret, optimize, run_tool, tool
from proofs import ALL
from row_models import BYTES, PATTERNS, check_steps, counts_of, exchanged, inputs_of, rows_model
from socket_runs import free_port
from step_runs import train_as, train_on


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_interpreter_sends_rows(ranks, pattern):
    """On one device, and on shards."""
    rng = np.random.default_rng(len(pattern) + ranks)
    held, room = 4, 4 * ranks
    counts = counts_of(pattern, ranks, held, rng)
    inputs = inputs_of(ranks, held, room, counts, rng)
    text = rows_model(ranks, held, room, "f32")
    received = exchanged(inputs["x"], counts, room)
    returned = exchanged(received, counts.T, held)
    loss = (received * inputs["p"]).sum() + (returned * inputs["q"]).sum()
    for passes in ((), ("--spmd-seed-shardings", "--spmd-propagate", "--spmd-partition", "--spmd-verify")):
        module = optimize(text, "--graph-differentiate", *passes)
        assert not passes or f"tensor<{held}x3xf32>, tensor<{ranks + 1}xi64> -> tensor<{room}x3xf32>" in module
        out, gradients = interpret(module, inputs, entry="train")
        assert out["loss"] == loss
        np.testing.assert_array_equal(gradients["p"], received)
        np.testing.assert_array_equal(gradients["q"], returned)


@pytest.mark.parametrize("how, message", [
    (lambda i: i["s"].__setitem__(2, i["s"][2] - 1), "member 0 sends . rows? to member 1, which expects"),
    (lambda i: i["r"].__setitem__(2, 9), "member 0 receives 9 rows, 1 more than it has room for"),
    (lambda i: i["s"].__setitem__(0, 1), "member 0 sends rows from row 1 on, not from row 0")])
def test_the_interpreter_refuses_wrong_numbers(how, message):
    rng = np.random.default_rng(1)
    counts = np.full((2, 2), 2)
    inputs = inputs_of(2, 4, 8, counts, rng)
    how(inputs)
    with pytest.raises(ToolError, match=message):
        interpret(rows_model(2, 4, 8, "f32"), inputs)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_native_code_sends_rows(ranks, tmp_path):
    pairs = [(k, p) for k in BYTES for p in PATTERNS]
    rng = np.random.default_rng(ranks)
    for kind, pattern in pairs if ALL else [pairs[i] for i in rng.permutation(len(pairs))[:3]]:
        held = int(rng.integers(1, 6))
        counts = counts_of(pattern, ranks, held, rng)
        room = int(max(counts.sum(0).max(), 1) + rng.integers(3))
        report = compare(tmp_path, rows_model(ranks, held, room, kind),
                         inputs_of(ranks, held, room, counts, rng), "--one-micro-batch", "--arrangements=2")
        assert report["agree"] == 2, (kind, pattern, report)


def test_rows_lie_on_their_axes():
    """On other axes of the same size, members would not be those that were meant."""
    text = rows_model(2, 4, 8, "f32").replace('<["ep" = 2]>', '<["ep" = 2, "dp" = 2]>')
    placed = text.replace('@mesh, [{"ep"}', '@mesh, [{"dp"}')
    with pytest.raises(ToolError, match="where they are not the axes of dimension 0"):
        optimize(placed, "--graph-differentiate", "--spmd-seed-shardings", "--spmd-propagate",
                 "--spmd-partition", "--spmd-verify")


def compiled(tmp_path, text, *flags):
    (tmp_path / "m.mlir").write_text(text)
    run_tool([tool("cleave-compile"), str(tmp_path / "m.mlir"), "--optimizer=sgd", "--momentum=0",
              "--threads=1", *flags, "-o", str(tmp_path / "m.so")])
    return tmp_path / "m.so"


@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_count_what_is_sent(ranks, tmp_path):
    rng = np.random.default_rng(7 + ranks)
    counts = counts_of("uneven", ranks, 6, rng)
    inputs = inputs_of(ranks, 6, 6 * ranks, counts, rng)
    artifact = compiled(tmp_path, rows_model(ranks, 6, 6 * ranks, "f32"))
    check_steps(train_on(artifact, inputs, 3), inputs, counts, 3)


def test_plans_count_even_shares(tmp_path):
    """Of P ranks each sends (P-1)/P of its rows there, and as many back, however much room there is."""
    artifact = compiled(tmp_path, rows_model(4, 6, 24, "bf16"), f"--report={tmp_path / 'report.json'}")
    assert artifact.exists()
    told = json.loads((tmp_path / "report.json").read_text())["communication"]["train"]
    [rows] = [one for one in told["totals"] if one["kind"] == "all_to_all_rows"]
    assert rows["axes"] == '"ep"' and rows["count"] in (2, 4)
    elements = rows["count"] * 6 * 3 * 3 / 4
    assert (rows["elements"], rows["bytes"]) == (elements, 2 * elements)


def test_ranks_that_are_processes(tmp_path):
    """They send rows by sockets, and are all told of a wrong number."""
    rng = np.random.default_rng(21)
    counts = counts_of("uneven", 2, 6, rng)
    inputs = inputs_of(2, 6, 12, counts, rng)
    wrong = {**inputs, "r": inputs["r"] + (np.arange(6) == 2)}
    artifact = compiled(tmp_path, rows_model(2, 6, 12, "f32"))
    for given in (inputs, wrong):
        port = free_port()
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            ranks = [pool.apply_async(train_as, ({"RANK": str(rank), "WORLD_SIZE": "2", "CLEAVE_PORT": port},
                                                 artifact, given, 3)) for rank in range(2)]
            outcomes = [rank.get(60) for rank in ranks]
        if given is inputs:
            check_steps(outcomes[0], inputs, counts, 3)
        else:
            for outcome in outcomes:
                assert "an all-to-all of rows: member" in outcome[3], outcome


def test_a_buffer_that_overflows_changes_nothing(tmp_path):
    """The step ends with one error that says by how much."""
    counts = np.array([[1, 3], [0, 4]])
    inputs = inputs_of(2, 4, 6, counts, np.random.default_rng(3))
    outcome = train_on(compiled(tmp_path, rows_model(2, 4, 6, "f32")), inputs)
    assert "an all-to-all of rows: member 1 receives 7 rows, 1 more than it has room for" in outcome[3]
