# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Value and gradients of every converter against PyTorch, element by element in f32.

At random points and at zeros, ties, bounds, infinities, NaN, tiny and huge numbers. Many
cases are one program. By default one half of the programs is native code and the other is
interpreted; with ``CLEAVE_TEST_ALL=1`` each is both.
"""

import re

import pytest

import cleave.trace
import ledger
from cleave.trace.registry import CONVERTERS
from converter_cases import CASES
from converter_support import EXAMPLE, Cases, differences, interpreted, native, recorded
from proofs import ALL

PROGRAMS = [sorted(CASES)[i::12] for i in range(12)]

#: Code that no case reaches, and why.
WITHOUT_CASE = {
    "aten.rand.default": "random", "aten.rand_like.default": "random", "aten.uniform.default": "random",
    "aten.randn.default": "random", "aten.randn_like.default": "random",
    "aten.detach_.default": "taken apart by torch.export", "aten.lift_fresh.default": "the same",
}


def check(number, run):
    cases = {name: CASES[name] for name in PROGRAMS[number]}
    with recorded() as called:
        found = run(cases)
    ledger.note(__name__, sorted(map(str, called)))
    lines = differences(cases, found)
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("number", range(0, len(PROGRAMS), 1 if ALL else 2))
def test_native(number):
    check(number, native)


@pytest.mark.parametrize("number", range(0 if ALL else 1, len(PROGRAMS), 1 if ALL else 2))
def test_interpreter(number):
    check(number, interpreted)


def check_all(facts):
    """A converter does not land without a case, here or in PyTorch's operator database
    (test_operators.py notes what its samples call; all of them are tried in full runs)."""
    if not ALL:
        return
    left = {str(f) for f in CONVERTERS} - set().union(*facts) - set(WITHOUT_CASE)
    # Beside an operator that has no converter, the framework decomposes others as well:
    # those are there in a program of the case alone.
    for target in sorted(left):
        for name in CASES:
            if target in left and re.split(r"\W", name)[0] == target.split(".")[1]:
                with recorded() as called:
                    cleave.trace.trace(Cases({name: CASES[name]}), EXAMPLE)
                left -= {str(f) for f in called}
    assert left == set(), sorted(left)
