# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Random reshards: planned, verified, and executed by the interpreter's ranks.

Meshes of up to 16 positions, random source and target shardings. Where they do
not divide, annotations of a global tensor are padded, propagated and partitioned.
500 by default, 12000 with ``CLEAVE_TEST_ALL=1``.
"""

import re

from cleave.testing.tools import run_tool, tool
from proofs import ALL

COUNT = 12000 if ALL else 500


def test_every_element_arrives():
    """The tool ends with an error, which names the seed, where one does not."""
    text = run_tool([tool("cleave-fuzz"), "--reshards", f"--count={COUNT}"])
    count, failures, sub_axes, several_axes, partial, uneven = map(int, re.findall(r"\d+", text))
    assert (count, failures) == (COUNT, 0), text
    assert min(sub_axes, several_axes, partial, uneven) >= 0.25 * COUNT, text
