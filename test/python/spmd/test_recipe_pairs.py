# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every pair of recipes, against one device; and the pairs that are refused.

In f64 by the interpreter, to 1e-10, dropout on. Each pair once, models and
optimizers in turn; with ``CLEAVE_TEST_ALL=1`` every model, and larger meshes.
"""

import pytest

from cleave.testing.tools import ToolError
from expert_recipes import devices_of
from pair_models import HEADS, PAIRS, models_of
from recipe_pairs import RECIPES, refused_pairs
from recipe_runs import BATCH, LENGTH, check, emit
from training_support import ALL


def more(pair, what, mesh):
    """2 where both recipes may split `what`, into more than there is; else 1."""
    both = all(RECIPES[name][1] in (what, "") for name in pair.names)
    return 2 if both and devices_of(mesh) > BATCH else 1


@pytest.mark.parametrize("pair", PAIRS if ALL else PAIRS[::4] + PAIRS[3::4], ids=lambda pair: f"{pair.plan}@{pair.small}")
def test_pairs_equal_one_device(tmp_path_factory, pair):
    index = PAIRS.index(pair)
    for mesh in [pair.small, pair.large] if ALL else [pair.small]:
        names = list(models_of(pair, mesh))
        for offset, name in enumerate(names if ALL else [names[index % len(names)]]):
            turn = index + offset
            parts = 1 + turn // 2 % 2 if devices_of(mesh) < BATCH else 1
            sizes = (BATCH * more(pair, "samples", mesh), LENGTH * more(pair, "sequence", mesh))
            if pair.heads(mesh) > 4:
                sizes += (HEADS[name],)
            check(tmp_path_factory, name, mesh, pair.plan, ["adamw", "sgd"][turn % 2], parts,
                  sizes)


@pytest.mark.parametrize("first, second, axis, reason", list(refused_pairs()),
                         ids=lambda value: None if " " in value else value)
def test_contradictions_are_refused(tmp_path_factory, first, second, axis, reason):
    folder = tmp_path_factory.getbasetemp()
    with pytest.raises(ToolError, match=reason):
        mesh = ",".join(f"{a}=2" for a in [*axis.split(","), f"{axis[0]}q"])
        emit(folder, "gpt2", "placed", f"--mesh={mesh}",
             f"--plan={first}({axis}),{second if '(' in second else f'{second}({axis})'}")
