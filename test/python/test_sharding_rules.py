# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The sharding rule of every op, executed slice by slice.

For each factor of a rule the op is partitioned and executed on the slices that
the rule makes, and the recombined results are compared with those of the whole
op; where the rule says that the op is linear in some operands, these are
replaced by summands. Each factor is padded, too: with what the rule asks for or,
where it asks for nothing, with what is no number.
"""

import json
import os
from collections import Counter

import pytest
from op_cases import CASES, draw_model

from cleave.testing.tools import list_ops, optimize, run_tool, save_tensors, tool

DRAWS = 40 if os.environ.get("CLEAVE_TEST_ALL") else 5

SPLITS, SUMS, PADS, OPS = Counter(), Counter(), Counter(), Counter()

# Ops of scalars, or, since a norm is no sum of norms, of whole tensors.
NEVER_SPLIT = {"graph.seed", "graph.check", "graph.global_norm"}

# Draws dropout on what is a shard already, which is not split again; whole
# tensors are dropped in the random steps.
SHARDS = {"dropout"}


def record(report):
    for name, tally in json.loads(report).items():
        OPS[name] += tally["ops"]
        SPLITS[name] += tally["splits"]
        SUMS[name] += tally["sums"]
        PADS[name] += tally["pads"]


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


def test_every_rule_was_tested():
    """Runs last: each op has a rule, and each rule that splits was executed."""
    if len(OPS) < 20:
        pytest.skip("needs the other tests of this file")
    facts = list_ops()
    assert [name for name, fact in facts.items() if not fact["sharding_rule"]] == []
    assert set(facts) - set(OPS) == set()
    assert {name for name in facts if not SPLITS[name]} == NEVER_SPLIT
    assert {name for name in facts if not PADS[name]} == NEVER_SPLIT
