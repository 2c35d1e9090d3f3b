# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Recipes: the split program against the whole one, in f64 by the interpreter.

Loss, every gradient, every updated weight and all optimizer state agree to 1e-10
of the largest element of their tensor's kind. Dropout is on. Some cases also run natively, all
with ``CLEAVE_TEST_ALL=1``.
"""

import re

import pytest

from recipe_runs import CASES, MODELS, check
from training_support import ALL


@pytest.mark.parametrize("mesh, recipes", CASES)
def test_recipes_equal_one_device(tmp_path_factory, mesh, recipes):
    index = CASES.index((mesh, recipes))
    names = list(MODELS)
    for offset, name in enumerate(names if ALL else [names[index % len(names)]]):
        optimizer = ["adamw", "sgd"][(index + offset) % 2]
        check(tmp_path_factory, name, mesh, recipes, optimizer, 1 + (index + offset) % 2)


def test_rows_of_positions_are_gathered_after_micro_batches(tmp_path_factory):
    """Where `zero2` scatters the gradient of each micro-batch, the rows of a table of positions stay
    sharded with the sequence until micro-batches are summed."""
    local = check(tmp_path_factory, "gpt2", "dp=2,cp=2", "ulysses,zero2", "adamw", 2,
                  sizes=(8, 8, ("n_positions", 8)))
    gradient = re.search(r'graph\.gradient (%\w+) of "[\w.]*wpe\.weight"', local).group(1)
    order = []
    while found := re.search(rf"{gradient} = (spmd\.\w+)(?: sum)? (%\w+) (?:over @mesh|by <@mesh,) "
                             r"(\S+)", local):
        order.append((found[1], re.search("mb|dp|cp", found[3])[0]) if "all_reduce" in found[1]
                     else (found[1],))
        gradient = found[2]
    assert order[::-1] == [("spmd.reduce_scatter",), ("spmd.all_reduce", "mb"),
                           ("spmd.all_gather",)]
