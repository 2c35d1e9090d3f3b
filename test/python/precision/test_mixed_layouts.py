# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mixed precision in every layout: the sharded program against one device, in f64.

Casts are placed on global tensors, and a partial sum is not a complete one: without rounding, a
step of mixed precision is the same in all layouts, to 1e-10. Layouts are recipes, pairs of
recipes, and pipelines by which any two of schedule, positions, recipe and model meet; each in
one of the kinds below in turn. A sample has each recipe and each schedule; with
``CLEAVE_TEST_ALL=1`` every layout runs in every kind, and natively too, where the roundings of
one rank say how far it may be.
"""

import functools

import numpy as np
import pytest

from cleave.testing.tools import interpret
from expert_recipes import CASES as EXPERT_CASES
from expert_recipes import MODELS as EXPERT_MODELS
from expert_recipes import devices_of
from mixed_layouts import emit, model_file
from native_pairs import sample as sample_of_pairs
from pair_models import PAIRS, models_of
from native_layouts import agree_natively
from pipeline_cases import covering, sample
from recipe_runs import BATCH, CASES, LENGTH, MODELS, OPTIMIZERS, random_inputs
from training_support import ALL

KINDS = {
    "bf16": ["--precision=bf16"],
    "fp16-f32": ["--precision=fp16", "--residual=f32"],
    "bf16-f32": ["--precision=bf16", "--residual=f32"],
    "fp16": ["--precision=fp16"],
    "bf16-rounded": ["--precision=bf16", "--activation-reduction=16bit", "--gradient-dtype=bf16"],
}


@functools.cache
def whole_run(folder, name, kind, optimizer, sizes):
    step = emit(folder, name, "step", *KINDS[kind], *OPTIMIZERS[optimizer], sizes=sizes)
    assert step.count("bf16" if "bf16" in kind else "f16") > 100
    inputs = random_inputs(step)
    return inputs, *interpret(step, inputs, entry="train"), step


def agree(found, expected, tolerance):
    assert found.keys() == expected.keys()
    scale = max((np.abs(v).max() for v in expected.values() if v.size), default=1)
    for name, value in expected.items():
        assert np.isfinite(value).all() and np.isfinite(found[name]).all(), (name, "not finite")
        # A factored weight has the same elements in the same order.
        error = np.abs(found[name].astype(np.float64).ravel()
                       - value.astype(np.float64).ravel()).max(initial=0)
        assert error <= tolerance * scale, (name, error, scale)


def check(tmp_path_factory, name, kind, phase, *flags, turn=0, sizes=(BATCH, LENGTH)):
    """The program of `phase` against that of one device."""
    folder, optimizer = tmp_path_factory.getbasetemp(), ["adamw", "sgd"][turn % 2]
    inputs, results, gradients, step = whole_run(folder, name, kind, optimizer, sizes)
    own_flags = [*KINDS[kind], *OPTIMIZERS[optimizer]]
    program = emit(folder, name, phase, *own_flags, *flags, sizes=sizes)
    found, own = interpret(program, inputs, entry="train")
    agree(found, results, 1e-10)
    agree(own, gradients, 1e-10)
    agree_natively(model_file(folder, name, sizes), own_flags, flags, step, inputs, results)


def kinds(index):
    return list(KINDS) if ALL else [list(KINDS)[index % len(KINDS)]]


RECIPES = [(mesh, recipes, MODELS) for mesh, recipes in CASES] + [
    (mesh, recipes, EXPERT_MODELS) for mesh, recipes in EXPERT_CASES]


@pytest.mark.parametrize("mesh, recipes, models",
                         RECIPES if ALL else RECIPES[::5], ids=lambda v: v if isinstance(v, str) else "")
def test_recipes(tmp_path_factory, mesh, recipes, models):
    index = RECIPES.index((mesh, recipes, models))
    for kind in kinds(index // 5):
        check(tmp_path_factory, list(models)[index % len(models)], kind, "local",
              f"--mesh={mesh}", f"--plan={recipes}", f"--micro-batches={1 + index % 2}",
              turn=index)


@pytest.mark.parametrize("pair", PAIRS if ALL else sample_of_pairs(),
                         ids=lambda pair: f"{pair.plan}@{pair.small}")
def test_pairs(tmp_path_factory, pair):
    index = PAIRS.index(pair)
    names = list(models_of(pair, pair.small))
    parts = 1 + index // 2 % 2 if devices_of(pair.small) < BATCH else 1
    for kind in kinds(index):
        check(tmp_path_factory, names[index % len(names)], kind, "local", f"--mesh={pair.small}",
              f"--plan={pair.plan}", f"--micro-batches={parts}", turn=index)


COVERING = covering()


@pytest.mark.parametrize("case", COVERING if ALL else sample(COVERING, 11), ids=str)
def test_schedules(tmp_path_factory, case):
    index = COVERING.index(case)
    for kind in kinds(index):
        check(tmp_path_factory, case.model, kind, "scheduled", f"--mesh={case.mesh}",
              f"--plan={case.recipe}", f"--micro-batches={case.micro_batches}",
              f"--schedule={case.schedule}", f"--virtual-stages={case.chunks}", turn=index)
