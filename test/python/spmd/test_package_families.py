# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Families of `cleave.models` on two ranks: losses and updates of three steps are those of eager PyTorch."""

import pytest
import torch

import cleave
import cleave.models
from cleave.testing.tools import interpret, run_tool, tool
from cleave.trace import trace
from recipe_runs import OPTIMIZERS, agree, random_inputs
from trace_support import text_in_double
from training_support import ALL, Case, assert_close, cleave_run, token_batches, torch_run

SIZE = dict(hidden=32, heads=4, layers=2, seq=8, vocab=96, ffn=64)
GROUPED = dict(kv_heads=2, head_width=16)
MODELS = {
    "qwen3_moe": dict(GROUPED, experts=4, balance=0.0),
    "deepseek_v3": dict(experts=8, dense=1, groups=2, chosen_groups=1, head_width=8, balance=0.0),
    "gpt_oss": dict(GROUPED, experts=4, window=3),
    "gemma": GROUPED,
    "gemma2": dict(GROUPED, window=3),
    "mamba2": dict(head_width=16, state=8, chunk=4),
}
RECIPES = [({"dp": 2}, None), ({"dp": 2}, "zero3"), ({"tp": 2}, "megatron"),
           ({"tp": 2}, "megatron-sp"), ({"ep": 2}, "expert"), ({"cp": 2}, "context"),
           ({"cp": 2}, "ring"), ({"cp": 2}, "two-ring"), ({"cp": 2}, "ulysses")]
#: What families have no part for, and the reason.
REFUSED = {
    **{("mamba2", recipe): "no input has the sequence dimension of an attention"
       for recipe in ("ulysses",)},
    **{("mamba2", recipe): "the model has no attention" for recipe in ("ring", "two-ring")},
}
CASES = [(family, mesh, plan) for family in MODELS for mesh, plan in RECIPES
         if plan != "expert" or "experts" in MODELS[family]]
TRAINED = [case for case in CASES if case[::2] not in REFUSED]
#: What is fast.
FEW = [("deepseek_v3", {"ep": 2}, "expert"), ("gemma", {"cp": 2}, "ring"),
       ("gemma2", {"tp": 2}, "megatron-sp"), ("gemma2", {"cp": 2}, "ulysses"),
       ("gpt_oss", {"cp": 2}, "context"), ("mamba2", {"dp": 2}, "zero3"),
       ("mamba2", {"cp": 2}, "context"), ("mamba2", {"tp": 2}, "megatron")]
FEW_REFUSED = [("mamba2", "ulysses"), ("mamba2", "ring")]


class Labelled(torch.nn.Module):
    """A model whose output has the loss by name, as `torch_run` takes it."""

    def __init__(self, family):
        super().__init__()
        torch.manual_seed(0)
        self.model = cleave.models.FAMILIES[family](**SIZE, **MODELS[family])
        self.config = None
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)

    def forward(self, input_ids, labels):
        return self.model(input_ids, labels)


class Labelling(Case):
    def loss(self, module, batch):
        return module(*batch)[0]


def case_of(family):
    return Labelling(lambda: Labelled(family).train(), token_batches(), key=("package", family))


@pytest.mark.parametrize("family, mesh, plan", TRAINED if ALL else FEW, ids=str)
def test_steps_equal_eager(family, mesh, plan):
    case = case_of(family)
    eager = torch_run(case, 3, lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9))
    found = cleave_run(case, 3, cleave.SGD(lr=0.05, momentum=0.9), mesh=mesh, plan=plan)
    assert_close(found.losses, eager.losses, rtol=2e-6)
    assert found.updates.keys() >= eager.updates.keys()
    whole = float(torch.stack([u.norm() for u in eager.updates.values()]).norm())
    for name, update in eager.updates.items():
        error = float((found.updates[name] - update).norm())
        assert error <= 2e-5 * float(update.norm()) + 1e-6 * whole, name


@pytest.mark.parametrize("family, recipe", REFUSED if ALL else FEW_REFUSED, ids=str)
def test_recipes_without_a_part(family, recipe):
    mesh = {"tp" if recipe.startswith("megatron") else "cp": 2}
    with pytest.raises(cleave.CompileError, match=REFUSED[family, recipe]):
        cleave_run(case_of(family), 1, cleave.SGD(lr=0.05), mesh=mesh, plan=recipe)


#: Meshes and plans that shard the heads of a recurrence.
HEADS = [("tp=2", "megatron"), ("tp=2", "megatron-sp"), ("tp=4", "megatron"),
         ("dp=2,tp=2", "megatron,zero1"), ("dp=2,tp=2", "megatron-sp,zero3")]


@pytest.mark.parametrize("groups", [1, 4])
def test_heads_of_recurrences_are_sharded(tmp_path, groups):
    """In f64, three steps are those of one rank: heads of one group, whose norm is summed over
    the ranks, and of as many groups as ranks, each with a norm of its own. Each block has an
    all-reduce of b s h in forward and one in backward, as those of an MLP."""
    torch.manual_seed(0)
    model = cleave.models.mamba2(hidden=32, head_width=8, state=8, state_groups=groups, chunk=4,
                                 layers=2, seq=8, vocab=96).train().double()
    ids = torch.randint(3, 96, (4, 8))
    path = tmp_path / "model.mlir"
    path.write_text(text_in_double(trace(model, dict(input_ids=ids, labels=ids)).mlir))

    def emit(phase, *flags):
        return run_tool([tool("cleave-compile"), str(path), f"--emit={phase}",
                         *OPTIMIZERS["adamw"], *flags])

    def steps(text, inputs):
        for _ in range(3):
            results, gradients = interpret(text, inputs, entry="train")
            inputs = {**inputs, **{n: v.reshape(inputs[n].shape) for n, v in results.items()
                                   if n in inputs}}
        return results, gradients

    whole = emit("step")
    inputs = random_inputs(whole)
    results, gradients = steps(whole, inputs)
    assert len(results) > 50
    for mesh, plan in HEADS:
        local = emit("local", f"--mesh={mesh}", f"--plan={plan}")
        found, own = steps(local, inputs)
        agree(found, results)
        agree(own, gradients)
        if plan == "megatron":
            train = local[local.index("func.func @train"):]
            sums = [line for line in train[:train.index("\n  }")].splitlines()
                    if "spmd.all_reduce sum" in line and line.endswith("tensor<4x8x32xf64>")]
            # Also rows looked up, and the input gradient of the head.
            assert len(sums) == 2 * 2 + 2
