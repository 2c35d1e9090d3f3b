# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Programs and shards by the reference interpreter, and what it says of wrong ones."""

import numpy as np
import pytest

from cleave.testing.tools import ToolError, interpret

PARTS = """
func.func private @f(%w: tensor<2xf64>, %x: tensor<2x2xf64>) -> (tensor<2x2xf64>, tensor<f64>, tensor<2xf64>) {
  %p = graph.mul %x, %w : (tensor<2x2xf64>, tensor<2xf64>) -> tensor<2x2xf64>
  %s = graph.reduce sum %p {dims = array<i64: 0, 1>} : (tensor<2x2xf64>) -> tensor<f64>
  %r = graph.reduce sum %p {dims = array<i64: 1>} : (tensor<2x2xf64>) -> tensor<2xf64>
  return %p, %s, %r : tensor<2x2xf64>, tensor<f64>, tensor<2xf64>
}
func.func private @b(%p: tensor<2x2xf64>) -> tensor<2xf64> {
  %g = graph.reduce sum %p {dims = array<i64: 0>} : (tensor<2x2xf64>) -> tensor<2xf64>
  return %g : tensor<2xf64>
}
func.func private @u(%w: tensor<2xf64>, %g: tensor<2xf64>) -> tensor<2xf64> {
  %g1 = graph.gradient %g of "w" : (tensor<2xf64>) -> tensor<2xf64>
  %n = graph.sub %w, %g1 : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>
  return %n : tensor<2xf64>
}
pipe.program @train(%w: tensor<2xf64> {graph.name = "w"}, %x: tensor<6x2xf64> {graph.name = "x"})
    -> (tensor<f64> {graph.name = "loss"}, tensor<2xf64> {graph.updates = "w"}, tensor<6xf64> {graph.name = "rows"})
    attributes {micro_batches = 3 : i64, schedule = "SCHEDULE"} {
  %p, %s, %r = pipe.invoke @f(%w, %x) {part = "F", split = array<i64: -1, 0>, results = ["saved", "accumulate", "concat:0"]}
      : (tensor<2xf64>, tensor<6x2xf64>) -> (tensor<2x2xf64>, tensor<f64>, tensor<6xf64>)
  %g = pipe.invoke @b(%p) {part = "B", split = array<i64: -1>, results = ["accumulate"]} : (tensor<2x2xf64>) -> tensor<2xf64>
  %n = pipe.invoke @u(%w, %g) {part = "U", once, split = array<i64: -1, -1>, results = ["value"]}
      : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>
  pipe.return %s, %n, %r : tensor<f64>, tensor<2xf64>, tensor<6xf64>
}
"""

INPUTS = {"w": np.array([2.0, -1.0]), "x": np.arange(12.0).reshape(6, 2)}


@pytest.mark.parametrize("schedule", ["F0 B0 F1 B1 F2 B2 U", "F2 F0 B0 F1 B2 B1 U"])
def test_program(schedule):
    """Slices, saved values, sums and concatenation, in any order that is allowed."""
    results, gradients = interpret(PARTS.replace("SCHEDULE", schedule), INPUTS, entry="train")
    product = INPUTS["w"] * INPUTS["x"]
    assert results["loss"] == product.sum()
    np.testing.assert_array_equal(results["rows"], product.sum(1))
    np.testing.assert_array_equal(gradients["w"], product.sum(0))
    np.testing.assert_array_equal(results["w"], INPUTS["w"] - product.sum(0))


@pytest.mark.parametrize(
    "schedule, message",
    [
        ("F0 B1 F1 B0 F2 B2 U", "B1 reads operand 0 .*, saved by part 'F', before that has run"),
        ("F0 B0 F1 B1 U F2 B2", "reads a result of part 'B' before it is complete"),
        ("F0 B0 F0 B0 F2 B2 U", "F0 runs twice"),
        ("F0 B0 F1 B1 F3 B2 U", "F3 names a micro-batch that does not exist"),
        ("F0 B0 F1 B1 F2 B2", "reads a result of part 'U' before it is complete"),
        ("F0 B0 F1 B1 F2 B2 V", "V does not run a part of this program"),
        ("F0 B0 F1 B1 F2 B2 U0", "U0 names a micro-batch that does not exist"),
    ],
)
def test_wrong_schedules(schedule, message):
    with pytest.raises(ToolError, match=message) as caught:
        interpret(PARTS.replace("SCHEDULE", schedule), INPUTS, entry="train")
    assert caught.value.status == 1


def test_program_without_a_schedule():
    with pytest.raises(ToolError, match="has no schedule yet"):
        interpret(PARTS.replace(', schedule = "SCHEDULE"', ""), INPUTS, entry="train")


LOCAL = """
spmd.mesh @mesh <["x" = 2, "y" = 3]>
func.func @loss(%x: tensor<2x2xf64> {graph.name = "x", spmd.sharding = #spmd.sharding<@mesh, [{"y"}, {"x"}]>,
    spmd.global_type = tensor<6x4xf64>})
    -> (tensor<2xf64> {graph.name = "sum", spmd.sharding = #spmd.sharding<@mesh, [{"y"}]>, spmd.global_type = tensor<6xf64>},
        tensor<2xi64> {graph.name = "place", spmd.sharding = #spmd.sharding<@mesh, [{"x", "y"}]>, spmd.global_type = tensor<12xi64>}) {
  %p = graph.reduce sum %x {dims = array<i64: 1>} : (tensor<2x2xf64>) -> tensor<2xf64>
  %s = spmd.all_reduce sum %p over @mesh {AXES} : tensor<2xf64>
  %o = spmd.shard_offset <@mesh, [{"y"}, {"x"}]> of tensor<6x4xf64> : tensor<2xi64>
  return %s, %o : tensor<2xf64>, tensor<2xi64>
}
"""


def test_shards_of_two_axes():
    x = np.random.default_rng(0).standard_normal((6, 4))
    results, _ = interpret(LOCAL.replace("AXES", '"x"'), {"x": x})
    np.testing.assert_allclose(results["sum"], x.sum(1), rtol=1e-14)
    places = [[y * 2, x * 2] for x in range(2) for y in range(3)]
    assert results["place"].reshape(6, 2).tolist() == places


def test_a_partial_value_that_leaves_is_seen():
    """Summed over the wrong axis, ranks hold different values of one element."""
    x = np.random.default_rng(0).standard_normal((6, 4))
    with pytest.raises(ToolError, match='ranks disagree on result "sum"'):
        interpret(LOCAL.replace("AXES", '"y"'), {"x": x})


STALE = """
func.func private @f(%w: tensor<2xf64>, %x: tensor<2xf64>) -> tensor<2xf64> {
  %p = graph.mul %x, %w : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>
  return %p : tensor<2xf64>
}
func.func private @n(%w: tensor<2xf64>, %p: tensor<2xf64>) -> tensor<2xf64> {
  %q = graph.add %p, %w : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>
  return %q : tensor<2xf64>
}
func.func private @u(%w: tensor<2xf64>, %p: tensor<2xf64>) -> tensor<2xf64> {
  %n = graph.sub %w, %p : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>
  return %n : tensor<2xf64>
}
func.func private @v(%w: tensor<2xf64>, %p: tensor<2xf64>) -> tensor<2xf64> {
  %n = graph.sub %w, %p : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>
  return %n : tensor<2xf64>
}
pipe.program @train(%w: tensor<2xf64> {graph.name = "w"}, %x: tensor<2xf64> {graph.name = "x"})
    -> (tensor<2xf64> {graph.name = "sum"}, tensor<2xf64> {graph.updates = "w"}COPY)
    attributes {micro_batches = 1 : i64, pipe.stages = 2 : i64, stage_map = "modular",
    schedule = "F0 F0>1 U | 1<F0 1N SECOND"} {
  %p = pipe.invoke @f(%w, %x) {part = "F", split = array<i64: -1, -1>, results = ["accumulate"]}
      : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>
  %q = pipe.invoke @n(%w, %p) {part = "N", stage = 1, once, split = array<i64: -1, -1>, results = ["value"]}
      : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>
  %u = pipe.invoke @u(%w, %p) {part = "U", once, split = array<i64: -1, -1>, results = ["value"]}
      : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>
  INVOKE
  pipe.return %q, %u RETURNED
}
"""


@pytest.mark.parametrize("updated", [False, True])
def test_each_position_has_copies(updated):
    """A copy that its position does not update has, in some step, no value that is known."""
    second = """%v = pipe.invoke @v(%w, %p) {part = "U", stage = 1, once, split = array<i64: -1, -1>, results = ["value"]}
      : (tensor<2xf64>, tensor<2xf64>) -> tensor<2xf64>"""
    one = "tensor<2xf64>"
    texts = {"COPY": f", {one} {{graph.updates = \"w\", pipe.copy = 1 : i64}}" if updated else "",
             "SECOND": "1U" if updated else "", "INVOKE": second if updated else "",
             "RETURNED": f", %v : {one}, {one}, {one}" if updated else f": {one}, {one}"}
    program = STALE
    for name, text in texts.items():
        program = program.replace(name, text)
    inputs = {"w": np.array([2.0, -1.0]), "x": np.array([3.0, 5.0])}
    results, _ = interpret(program, inputs, entry="train")
    product = inputs["w"] * inputs["x"]
    np.testing.assert_array_equal(results["w"], inputs["w"] - product)
    np.testing.assert_array_equal(results["sum"], product + inputs["w"] if updated else np.full(2, np.nan))
