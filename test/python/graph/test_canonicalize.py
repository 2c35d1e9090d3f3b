# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Folds and rewrites of ``graph`` keep values, NaN and infinity included.

Each function of ``canonicalize.mlir`` is run before and after ``--canonicalize``, on drawn values and on edges of the
types. The sign of a zero may change, and a power is multiplied out, which rounds otherwise.
"""

import re

import numpy as np
import pytest

from cleave.testing.tools import REPOSITORY, interpret, optimize

TEXT = (REPOSITORY / "test/Dialect/Graph/canonicalize.mlir").read_text()
NAMES = re.findall(r"^func\.func @(\w+)", TEXT, re.M)
EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, np.nan]
INTEGERS = np.iinfo(np.int64)


def draw(rng, shape, element, edges):
    if element == "i1":
        return rng.integers(0, 2, shape).astype(bool)
    if element == "i64":
        return rng.choice([INTEGERS.min, -1, 0, 1, INTEGERS.max], shape) if edges else rng.integers(-2, 3, shape)
    return rng.choice(EDGES, shape) if edges else rng.standard_normal(shape)


def arguments(name):
    """The shape and the element type of each argument."""
    head = re.search(rf"^func\.func @{name}\((.*?)\) ->", TEXT, re.M)[1]
    types = re.findall(r"%\w+: tensor<((?:\d+x)*)(\w+)>", head)
    return [([int(n) for n in sizes.split("x")[:-1]], element) for sizes, element in types]


def assert_same(before, after, name):
    """One draw of common values, then some of the edges."""
    rng = np.random.default_rng(0)
    for draws in range(4):
        inputs = {f"arg{i}": draw(rng, *kind, draws > 0) for i, kind in enumerate(arguments(name))}
        old, _ = interpret(before, inputs, entry=name)
        new, _ = interpret(after, inputs, entry=name)
        assert old and old.keys() == new.keys()
        for key, value in old.items():
            np.testing.assert_allclose(new[key], value, rtol=1e-12 if name == "powers" else 0, atol=0)


@pytest.fixture(scope="module")
def canonical():
    return optimize(TEXT, "--canonicalize")


@pytest.mark.parametrize("name", NAMES)
def test_values_are_kept(canonical, name):
    assert_same(TEXT, canonical, name)


def test_a_wrong_rewrite_is_seen():
    """Where an operand is NaN, not(x < y) holds and x >= y does not."""
    wrong, count = re.subn(r"%0 = graph.compare lt %x, %y (: .*)\n  %1 = graph.not %0 .*",
                           r"%1 = graph.compare ge %x, %y \1", TEXT)
    assert count == 1
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_same(TEXT, wrong, "not_negated")
