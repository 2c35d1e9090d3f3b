# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Recipes: the split program against the whole one, in f64 by the interpreter.

Loss, every gradient, every updated weight and all optimizer state agree to 1e-10
of the largest element of their tensor's kind. Dropout is on. Some cases also run natively, all
with ``CLEAVE_TEST_ALL=1``.
"""


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
