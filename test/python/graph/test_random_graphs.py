# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Random models: loss, gradients and updates agree in every phase.

Among the phases are steps on several devices, with shardings drawn for arguments
and intermediate values, alone and in stages that are drawn; in at least a fifth of
the models, some do not divide. And there are pipelines of 2, 3 and 5 stages, cut
where the seed says: what is counted is what was compared, and has forward in two
stages or more.
12 models by default, 2500 with ``CLEAVE_TEST_ALL=1``.
"""

import re

import pytest

from cleave.testing.tools import ToolError, run_tool, tool
from proofs import ALL



@pytest.mark.parametrize("first", range(1, 2500, 250) if ALL else [1])
def test_every_phase_computes_the_same(first):
    """The tool ends with an error, which names the seed, where phases differ."""
    count = 250 if ALL else 12
    text = run_tool([tool("cleave-fuzz"), f"--seed={first}", f"--count={count}",
                     f"--finite-differences={1 if ALL else 10}"])
    models, padded, cut, ways, failures, checked = map(int, re.match(
        r"(\d+) models.* (\d+) padded .* (\d+) cut into stages in (\d+) ways.* (\d+) failures"
        r".* (\d+) checked", text).groups())
    assert models >= 0.98 * count and failures == 0, text
    assert padded >= 0.2 * count, text
    assert cut >= 0.95 * models and ways >= 5 * cut, text
    assert checked >= 1, text


@pytest.mark.parametrize("phase", ["local 4", "3 stages 2", "5 stages split 4"])
def test_a_tolerance_below_rounding_is_not_met(phase):
    """The comparison is not vacuous: rounding itself is seen."""
    with pytest.raises(ToolError, match="differs by"):
        run_tool([tool("cleave-fuzz"), "--count=10", f"--phase={phase}", "--tolerance=1e-18", "--finite-differences=0"])


def test_models_follow_from_their_seed():
    command = [tool("cleave-fuzz"), "--emit", "--seed"]
    assert run_tool([*command, "5"]) == run_tool([*command, "5"])
    assert run_tool([*command, "5"]) != run_tool([*command, "6"])
