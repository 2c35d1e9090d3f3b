# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Attention of the transformers library that is no op of attention, over ranks that share a
sequence: three steps are those of eager PyTorch in f64. gpt-oss has sinks, Gemma 2 a soft cap;
Flaubert and XGLM write attention by hand. Lengths that ranks do not divide are padded."""

import pytest
import torch

import cleave
from family_models import GROUPED, build
from training_support import ALL, Case, assert_close, cleave_run, images, token_batches, torch_run

LIBRARY = {
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig",
                dict(GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                     sliding_window=3, attn_implementation="eager", experts_implementation="eager",
                     rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config",
               dict(GROUPED, head_dim=8, query_pre_attn_scalar=8, sliding_window=3,
                    attn_logit_softcapping=2.0, attn_implementation="eager")),
    "flaubert": ("FlaubertWithLMHeadModel", "FlaubertConfig",
                 dict(emb_dim=32, n_layers=2, n_heads=4, vocab_size=96, dropout=0.0,
                      attention_dropout=0.0, max_position_embeddings=32)),
    "xglm": ("XGLMForCausalLM", "XGLMConfig",
             dict(d_model=32, num_layers=2, attention_heads=4, ffn_dim=64, vocab_size=96,
                  max_position_embeddings=32, dropout=0.0, attention_dropout=0.0)),
}
RECIPES = ["context", "ring", "two-ring", "ulysses"]
LAYOUTS = [*(({"cp": 2}, recipe) for recipe in RECIPES),
           *(({"tp": 2, "cp": 2}, f"megatron,{recipe}") for recipe in ("context", "ulysses"))]
#: Heads are joined with samples in one dimension.
JOINED = ["xglm"]
CASES = [(name, mesh, plan) for name in LIBRARY for mesh, plan in LAYOUTS
         if name not in JOINED or "ulysses" not in plan]
FEW = [("gpt_oss", *LAYOUTS[3]), ("gemma2", *LAYOUTS[1]), ("flaubert", *LAYOUTS[0])]


def case_of(name, length=8):
    model, config, settings = LIBRARY[name]
    return Case(lambda: build(model, config, **settings).train(), token_batches(length=length),
                key=("composed", name, length))


def check(case, mesh, plan):
    double = torch_run(case, 3, lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
                       double=True)
    found = cleave_run(case, 3, cleave.SGD(lr=0.05, momentum=0.9), mesh=mesh, plan=plan)
    assert_close(found.losses, double.losses, rtol=2e-6)
    assert found.updates.keys() >= double.updates.keys()
    whole = float(torch.stack([u.norm() for u in double.updates.values()]).norm())
    for name, update in double.updates.items():
        error = float((found.updates[name] - update).norm())
        assert error <= 2e-5 * float(update.norm()) + 1e-6 * whole, name


@pytest.mark.parametrize("name, mesh, plan", CASES if ALL else FEW, ids=str)
def test_steps_equal_eager(name, mesh, plan):
    check(case_of(name), mesh, plan)


@pytest.mark.parametrize("name, plan", [(name, plan) for name, mesh, plan in CASES
                                        if "tp" not in mesh] if ALL else [("xglm", "context")])
def test_lengths_that_ranks_do_not_divide(name, plan):
    check(case_of(name, length=7), {"cp": 2}, plan)


@pytest.mark.parametrize("name", JOINED)
def test_heads_joined_with_samples(name):
    with pytest.raises(cleave.CompileError, match="without a dimension of its heads alone"):
        cleave_run(case_of(name, length=7), 1, cleave.SGD(lr=0.05), mesh={"cp": 2}, plan="ulysses")


@pytest.mark.parametrize("size, mesh", [(16, {"cp": 2}), (56, {"cp": 4})] if ALL else
                         [(16, {"cp": 2})], ids=str)
@pytest.mark.parametrize("plan", RECIPES if ALL else ["ulysses", "ring"])
def test_patches_of_images(size, mesh, plan):
    """A class token and 16 or 196 patches: 17 or 197 positions, which no input has."""
    check(images(size=size), mesh, plan)
