# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mutation testing of what guards the copies of parameters and state in a pipeline.

In drawn pipelines of drawn models, with all update rules and options of a step, a part is made
to read what its position does not update: a part reads a further argument, a part that runs
once a step moves to another stage, or one of several positions does not keep its update. Each
change counts once. `--pipe-verify` rejects at least 95 % of each kind, and nothing that reads an
updated copy; the reference, in which such copies are unknown, has no other results for what is
accepted.

Which readers are stale is said by a second form of the analysis. The reference, which executes a
step after others, has other results for nearly all of them. The value of the rest reaches no
result: only its own update is computed of such a copy, which is not kept, or nothing depends on
what a prologue computes of it.
"""

import json

import pytest

from cleave.testing.tools import run_tool, tool
from proofs import ALL

KINDS = ["added", "moved", "dropped"]


@pytest.fixture(scope="module")
def tallies():
    count = 600 if ALL else 24
    return json.loads(run_tool([tool("cleave-fuzz"), "--stale-readers", f"--count={count}"]))


@pytest.mark.parametrize("kind", KINDS)
def test_stale_readers_are_rejected(tallies, kind):
    tally = tallies["kinds"][kind]
    assert tally["stale"] >= (50 if ALL else 3), tallies
    assert tally["rejected"] >= 0.95 * tally["stale"], tallies
    assert tally["unequal"] >= 0.75 * tally["stale"], tallies


@pytest.mark.parametrize("kind", KINDS)
def test_readers_of_updated_copies_are_accepted(tallies, kind):
    tally = tallies["kinds"][kind]
    assert tally["fresh"] >= (15 if ALL else 2), tallies
    assert tally["fresh_rejected"] == 0, tallies
    assert tally["fresh_unequal"] == 0, tallies
