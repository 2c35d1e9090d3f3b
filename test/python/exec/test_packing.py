# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The arena of each entry is within 3 % of the most bytes that are in use at one time, for every
family of models, in several precisions, layouts and schedules. A seeded sample; all with
CLEAVE_TEST_ALL=1."""

import itertools
import json
import random

import pytest

from cleave.models import FAMILIES
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from proofs import ALL

OPTIONS = [
    "", "--precision=bf16", "--recompute=none", "--precision=bf16 --recompute=full",
    "--micro-batches=2", "--mesh=pp=2 --micro-batches=4", "--mesh=dp=2 --plan=zero3",
    "--mesh=tp=2 --plan=megatron-sp --precision=bf16",
    "--mesh=pp=2 --micro-batches=4 --schedule=zb-h1",
    "--precision=fp16 --optimizer-fusion=none --micro-batches=4",
]
CASES = list(itertools.product(FAMILIES, OPTIONS))


@pytest.mark.parametrize("family, options",
                         CASES if ALL else random.Random(3).sample(CASES, 6))
def test_arena_is_near_the_bound(family, options, tmp_path):
    path = tmp_path / "model.mlir"
    assert write_model([family, "-o", str(path), "--hidden", "64", "--heads", "4", "--layers", "4",
                        "--batch", "8"]) == 0
    report = json.loads(run_tool([tool("cleave-compile"), str(path), *options.split(),
                                  "--plan-only", "--report=-"]))
    for name, entry in report["plan"]["entries"].items():
        ratio = entry["peak_bytes"] / entry["lower_bound_bytes"]
        print(f"{name}: {ratio:.4f}")
        assert 1 <= ratio <= 1.03, name
