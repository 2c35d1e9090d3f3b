# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Tokens that are sent once to each node of their experts, and from there to the ranks of these.
Steps of layouts against one device, by the interpreter in f64 and natively in f32, and elements that
ranks have sent, by definition and beside one collective over all axes."""

import json

import expert_rows
import numpy as np
import pytest
from expert_rows import EXPERTS, drawn, emitted, written
from native_layouts import Expected, check_native, compile_native
from recipe_runs import OPTIMIZERS, agree, agree_for_steps
from step_runs import train_on

from cleave.testing.tools import ToolError, interpret, run_tool, tool

PLAN = "expert(node),expert(ep)"
BY_NODE = "--expert-dispatch=hierarchical"
MESHES = [("node=2,ep=2", PLAN), ("node=2,dp=2,ep=2", PLAN), ("node=2,ep=2,tp=2", f"megatron,{PLAN}")]


def distinct(rng, shape):
    """Choices of a router: each expert at most once."""
    return rng.permuted(np.broadcast_to(np.arange(expert_rows.EXPERTS), (*shape[:-1], expert_rows.EXPERTS)),
                        axis=-1)[..., :shape[-1]]


#: Choices, experts, and how tokens choose.
ROUTINGS = {
    "some of many": (4, 16, distinct),
    "all": (EXPERTS, EXPERTS, distinct),
    "one expert": (2, EXPERTS, lambda rng, shape: np.full(shape, 3)),
    "one node": (2, 8, lambda rng, shape: 4 + distinct(rng, shape) % 4),
    "a few experts": (2, 8, lambda rng, shape: rng.choice([1, 6], shape)),
}


@pytest.fixture
def sized(monkeypatch):
    """Sets the sizes of the model of `expert_rows`, and how its tokens choose."""
    def set_sizes(choices, experts, routing, **sizes):
        for name, value in dict(CHOICES=choices, EXPERTS=experts, **sizes).items():
            monkeypatch.setattr(expert_rows, name, value)
        monkeypatch.setitem(expert_rows.ROUTINGS, "here", routing)
    return set_sizes


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("mesh, plan", MESHES)
def test_three_steps_equal_one_device(tmp_path, sized, mesh, plan, routing):
    """Values, gradients, parameters and the state of AdamW."""
    sized(*ROUTINGS[routing])
    path, own = written(tmp_path), OPTIMIZERS["adamw"]
    step = emitted(path, "step", *own)
    layout = [f"--mesh={mesh}", f"--plan={plan}", "--expert-buffer=worst"]
    local = emitted(path, "local", *own, *layout)
    assert 'all_to_all_rows' in local and 'over @mesh {"node", "ep"} {graph' not in local
    inputs = drawn(step, "here")
    agree_for_steps(step, local, inputs)
    check_native(path, own, layout, inputs, Expected(step, inputs, interpret(step, inputs, entry="train")[0]))


@pytest.mark.parametrize("mesh, plan, axes", [("node=2,ep=2", PLAN, '"node", "ep"'), ("ep=4", "expert", '"ep"')])
def test_one_token_is_sent_at_once(tmp_path, sized, mesh, plan, axes):
    """Of each rank, where none can be sent less often. Its gradient, which is one row, is that of both
    choices where these are, not of the token of the rank there."""
    sized(2, EXPERTS, distinct, TOKENS=1, SAMPLES=4)
    path, own = written(tmp_path), OPTIMIZERS["adamw"]
    step = emitted(path, "step", *own)
    layout = [f"--mesh={mesh}", f"--plan={plan}", "--expert-buffer=worst"]
    local = emitted(path, "local", *own, *layout)
    assert f"over @mesh {{{axes}}}" in local
    inputs = drawn(step, "here")
    agree_for_steps(step, local, inputs)
    check_native(path, own, layout, inputs, Expected(step, inputs, interpret(step, inputs, entry="train")[0]))


#: A router, experts with biases on all of their layers, and weights of choices that have gradients.
#: Biases of a choice count on the node of its expert alone.
ROUTED = """
func.func @loss(
    %x: tensor<8x4x8xf64> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64},
    %up: tensor<8x8x6xf64> {graph.name = "up", graph.role = "parameter"},
    %bias: tensor<8x6xf64> {graph.name = "bias", graph.role = "parameter"},
    %down: tensor<8x6x8xf64> {graph.name = "down", graph.role = "parameter"},
    %last: tensor<8x8xf64> {graph.name = "last", graph.role = "parameter"},
    %router: tensor<8x8xf64> {graph.name = "router", graph.role = "parameter"}) -> (tensor<f64> {graph.name = "loss"}) {
  %logits = graph.linear %x, %router : (tensor<8x4x8xf64>, tensor<8x8xf64>) -> tensor<8x4x8xf64>
  %v, %i = graph.top_k %logits {k = 3 : i64} : (tensor<8x4x8xf64>) -> (tensor<8x4x3xf64>, tensor<8x4x3xi64>)
  %p = graph.sigmoid %v : (tensor<8x4x3xf64>) -> tensor<8x4x3xf64>
  %t = graph.reshape %x : (tensor<8x4x8xf64>) -> tensor<8x4x1x8xf64>
  %rows = graph.broadcast %t : (tensor<8x4x1x8xf64>) -> tensor<8x4x3x8xf64>
  %0 = graph.grouped_linear %rows, %up, %i : (tensor<8x4x3x8xf64>, tensor<8x8x6xf64>, tensor<8x4x3xi64>) -> tensor<8x4x3x6xf64>
  %b = graph.gather %bias, %i {dim = 0 : i64} : (tensor<8x6xf64>, tensor<8x4x3xi64>) -> tensor<8x4x3x6xf64>
  %1 = graph.add %0, %b : (tensor<8x4x3x6xf64>, tensor<8x4x3x6xf64>) -> tensor<8x4x3x6xf64>
  %2 = graph.sigmoid %1 : (tensor<8x4x3x6xf64>) -> tensor<8x4x3x6xf64>
  %3 = graph.grouped_linear %2, %down, %i : (tensor<8x4x3x6xf64>, tensor<8x6x8xf64>, tensor<8x4x3xi64>) -> tensor<8x4x3x8xf64>
  %c = graph.gather %last, %i {dim = 0 : i64} : (tensor<8x8xf64>, tensor<8x4x3xi64>) -> tensor<8x4x3x8xf64>
  %4 = graph.add %3, %c : (tensor<8x4x3x8xf64>, tensor<8x4x3x8xf64>) -> tensor<8x4x3x8xf64>
  %w = graph.reshape %p : (tensor<8x4x3xf64>) -> tensor<8x4x3x1xf64>
  %5 = graph.mul %4, %w : (tensor<8x4x3x8xf64>, tensor<8x4x3x1xf64>) -> tensor<8x4x3x8xf64>
  %6 = graph.reduce sum %5 {dims = array<i64: 2>} : (tensor<8x4x3x8xf64>) -> tensor<8x4x8xf64>
  %7 = graph.add %x, %6 : (tensor<8x4x8xf64>, tensor<8x4x8xf64>) -> tensor<8x4x8xf64>
  %8 = graph.mul %7, %7 : (tensor<8x4x8xf64>, tensor<8x4x8xf64>) -> tensor<8x4x8xf64>
  %9 = graph.reduce sum %8 {dims = array<i64: 0, 1, 2>} : (tensor<8x4x8xf64>) -> tensor<f64>
  return %9 : tensor<f64>
}
"""


@pytest.mark.parametrize("mesh, plan, flags", [
    *((mesh, plan, flags) for mesh, plan in MESHES for flags in ((), ("--recompute=full",))),
    ("node=2,ep=2", PLAN, ("--micro-batches=2",)), ("node=4,ep=2", PLAN, ())])
def test_routers_and_biases_equal_one_device(tmp_path, mesh, plan, flags):
    path, own = tmp_path / "m.mlir", OPTIMIZERS["adamw"]
    path.write_text(ROUTED)
    step = emitted(path, "step", *own)
    layout = [f"--mesh={mesh}", f"--plan={plan}", "--expert-buffer=worst", BY_NODE, *flags]
    phases = [emitted(path, phase, *own, *layout) for phase in ("local", "scheduled")]
    # Outputs are reduced over "tp" before biases are added: no sum of choices is one of rows.
    assert ('over @mesh {"node"} {graph.even_rows' in phases[0]) == ("tp" not in mesh)
    inputs = drawn(step, "any")
    agree_for_steps(step, phases[0], inputs)
    expected = interpret(step, inputs, entry="train")[0]
    agree(interpret(phases[1], inputs, entry="train")[0], expected)
    check_native(path, own, layout, inputs, Expected(step, inputs, expected))


def pairs_of(ids, ranks, nodes, experts):
    """Of each rank the pairs of its tokens and the nodes that hold an expert of them."""
    node = ids.reshape(ranks, -1, ids.shape[-1]) * nodes // experts
    return np.stack([(node == number).any(-1).sum(-1) for number in range(nodes)], axis=-1)


def test_ranks_send_each_token_once_to_a_node(tmp_path, sized):
    """Of 16 experts a token chooses 8: on average 4 rows would cross to the other of 2 nodes, and 1
    does. The counts of the first rank are those of the choices, and at most those of the plan."""
    choices, experts, width, layers = 8, 16, expert_rows.WIDTH, expert_rows.LAYERS
    sized(choices, experts, distinct)
    path = written(tmp_path)
    own = ["--optimizer=sgd", "--momentum=0"]
    inputs = drawn(emitted(path, "step", *own), "here")
    layout = ["--mesh=node=2,ep=2", f"--plan={PLAN}", "--expert-buffer=worst"]
    sent, planned = {}, {}
    for dispatch in ("flat", "hierarchical"):
        flags = [*own, *layout, f"--expert-dispatch={dispatch}"]
        _, _, told, message = train_on(compile_native(path, *flags), inputs)
        assert not message
        report = json.loads(run_tool([tool("cleave-compile"), str(path.with_suffix(".f32.mlir")), *flags,
                                      "--plan-only", "--report=-"]))
        planned[dispatch] = {row["axes"].replace('"', "").replace(" ", ""): row
                             for row in report["communication"]["train"]["totals"]
                             if row["kind"] == "all_to_all_rows"}
        sent[dispatch] = {row["axes"].replace(" ", ""): row for row in told if row["kind"] == "all-to-all-rows"}
    assert set(sent["hierarchical"]) == {"node", "ep"} and set(sent["flat"]) == {"node,ep"}
    crossing = flat = 0
    for layer in range(layers):
        ids = inputs[f"i{layer}"]
        pairs = pairs_of(ids, 4, 2, experts)
        # The first rank is that of the first node, and its peer the third one.
        out, back = int(pairs[0, 1]), int(pairs[2, 0])
        # Choices, weights, tokens and their gradients go, and two sums return.
        crossing += out * 2 * (choices + width) + back * 2 * width
        flat += 2 * width * int((ids.reshape(4, -1)[0] >= experts // 2).sum()
                                + (ids.reshape(4, -1)[2:] < experts // 4).sum())
    assert sent["hierarchical"]["node"]["elements"] == crossing
    for dispatch, found in sent.items():
        for axes, row in found.items():
            assert row["count"] == planned[dispatch][axes]["count"]
    assert sent["hierarchical"]["node"]["bytes"] <= planned["hierarchical"]["node"]["bytes"]
    # Also with the choices and weights of a token.
    assert crossing <= flat / 2
    assert sent["flat"]["node,ep"]["elements"] >= flat


@pytest.mark.parametrize("mesh, plan, said", [
    ("ep=4", "expert", 'not over "ep"'),
    ("node=4", "expert(node)", 'not over "node"'),
    ("ep=2,node=2", "expert(ep),expert(node)", 'not over "ep", "node"'),
    ("node=2,tp=2", "megatron,expert(tp),expert(node)", "not over"),
])
def test_nodes_that_are_missing_are_an_error(tmp_path, mesh, plan, said):
    with pytest.raises(ToolError) as caught:
        emitted(written(tmp_path), "local", f"--mesh={mesh}", f"--plan={plan}", BY_NODE)
    assert "m.mlir:" in str(caught.value) and said in str(caught.value)
