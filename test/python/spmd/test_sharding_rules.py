# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The sharding rule of every op, executed slice by slice.

For each factor of a rule the op is partitioned and executed on the slices that
the rule makes, and the recombined results are compared with those of the whole
op; where the rule says that the op is linear in some operands, these are
replaced by summands. Each factor is padded, too: with what the rule asks for or,
where it asks for nothing, with what is not a number.
"""

import json
from collections import Counter

import numpy as np
import pytest
from op_cases import CASES, MADE_LATER, draw_model

from cleave.testing.tools import list_ops, optimize, run_tool, save_tensors, tool
from ledger import note
from proofs import ALL

DRAWS = 40 if ALL else 5

# Ops of scalars, or, since a norm is no sum of norms, of global tensors.
NEVER_SPLIT = {"graph.seed", "graph.check", "graph.global_norm"}

# Draws dropout on what is a shard already, which is not split again; whole
# tensors are dropped in the random steps.
SHARDS = {"dropout"}


def record(report):
    note("test_sharding_rules", json.loads(report))


@pytest.mark.parametrize("name", sorted(set(CASES) - SHARDS))
def test_rules(name, tmp_path):
    model = draw_model(name, DRAWS, shards=False)
    (tmp_path / "m.mlir").write_text(optimize(model.text(), "--graph-differentiate"))
    save_tensors(tmp_path / "in", model.inputs())
    record(run_tool([tool("cleave-fuzz"), f"--rules={tmp_path / 'm.mlir'}", f"--inputs={tmp_path / 'in'}"]))


def test_rule_of_what_differentiation_folds(tmp_path):
    model = draw_model("stop_gradient", DRAWS, shards=False)
    (tmp_path / "m.mlir").write_text(model.text().replace("@loss", "@train"))
    save_tensors(tmp_path / "in", model.inputs())
    record(run_tool([tool("cleave-fuzz"), f"--rules={tmp_path / 'm.mlir'}", f"--inputs={tmp_path / 'in'}"]))


def test_rules_in_random_steps():
    """With AdamW and SGD, clipped, and the loss in chunks."""
    record(run_tool([tool("cleave-fuzz"), "--random-rules", f"--count={4 * DRAWS}"]))


@pytest.mark.parametrize("kind", ["", " {nonnegative}"])
def test_rules_of_codes(kind, tmp_path):
    (tmp_path / "m.mlir").write_text(f"""
      func.func @train(%x: tensor<6x4xf32> {{graph.name = "x", graph.role = "input"}})
          -> (tensor<6x4xf32> {{graph.name = "y"}}) {{
        %c = graph.encode %x{kind} : (tensor<6x4xf32>) -> tensor<6x4xi8>
        %y = graph.decode %c{kind} : (tensor<6x4xi8>) -> tensor<6x4xf32>
        return %y : tensor<6x4xf32>
      }}""")
    values = np.random.default_rng(0).uniform(0, 1, (6, 4)).astype(np.float32)
    save_tensors(tmp_path / "in", {"x": values})
    record(run_tool([tool("cleave-fuzz"), f"--rules={tmp_path / 'm.mlir'}",
                     f"--inputs={tmp_path / 'in'}"]))


def test_rules_of_matrices(tmp_path):
    """Matrices are divided, not their rows and columns."""
    (tmp_path / "m.mlir").write_text("""
      func.func @train(%x: tensor<6x5x2xf64> {graph.name = "x", graph.role = "input"})
          -> (tensor<6x5x2xf64> {graph.name = "q"}) {
        %q = graph.orthonormalize %x : (tensor<6x5x2xf64>) -> tensor<6x5x2xf64>
        return %q : tensor<6x5x2xf64>
      }""")
    save_tensors(tmp_path / "in", {"x": np.random.default_rng(0).standard_normal((6, 5, 2))})
    record(run_tool([tool("cleave-fuzz"), f"--rules={tmp_path / 'm.mlir'}",
                     f"--inputs={tmp_path / 'in'}"]))


def test_rules_of_workers(tmp_path):
    """Workers are divided beside what the op of each is divided by."""
    (tmp_path / "m.mlir").write_text("""
      func.func @train(%x: tensor<3x4x5xf64> {graph.name = "x", graph.role = "input"},
                       %g: tensor<2x3x2x7xf64> {graph.name = "g", graph.role = "input"},
                       %w: tensor<7x5xf64> {graph.name = "w", graph.role = "input"})
          -> (tensor<3x4xf64> {graph.name = "s"}, tensor<3x4x7xf64> {graph.name = "y"},
              tensor<3x2x2x7xf64> {graph.name = "z"}) {
        %s = graph.per_worker "graph.reduce" of %x at [0] to [0]
            with {dims = array<i64: 1>, kind = 0 : i32} : (tensor<3x4x5xf64>) -> tensor<3x4xf64>
        %y = graph.per_worker "graph.linear" of %x, %w at [0, -1] to [0]
            with {} : (tensor<3x4x5xf64>, tensor<7x5xf64>) -> tensor<3x4x7xf64>
        %t = graph.per_worker "graph.reshape" of %g at [1] to [0]
            with {} : (tensor<2x3x2x7xf64>) -> tensor<3x2x2x7xf64>
        return %s, %y, %t : tensor<3x4xf64>, tensor<3x4x7xf64>, tensor<3x2x2x7xf64>
      }""")
    rng = np.random.default_rng(0)
    save_tensors(tmp_path / "in", {name: rng.standard_normal(shape) for name, shape in
                                   {"x": (3, 4, 5), "g": (2, 3, 2, 7), "w": (7, 5)}.items()})
    record(run_tool([tool("cleave-fuzz"), f"--rules={tmp_path / 'm.mlir'}",
                     f"--inputs={tmp_path / 'in'}"]))


def test_every_op_has_a_rule():
    assert [name for name, fact in list_ops().items() if not fact["sharding_rule"]] == []


def check_all(facts):
    """Each rule that splits was executed."""
    sums = {kind: Counter() for kind in ("ops", "splits", "sums", "pads")}
    for report in facts:
        for name, tally in report.items():
            for kind, own in sums.items():
                own[name] += tally[kind]
    ops = set(list_ops()) - set(MADE_LATER)
    assert sorted(name for name in ops if not sums["ops"][name]) == []
    assert {name for name in ops if not sums["splits"][name]} == NEVER_SPLIT
    assert {name for name in ops if not sums["pads"][name]} == NEVER_SPLIT
