# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Placements by name, alone and beside recipes, and a model's own plan.

The split step equals that of one device: by the interpreter in f64 (1e-10), and
natively through `cleave.compile`.
"""


import numpy as np
import pytest
import torch
import transformers

import cleave
from cleave import P
from cleave.compiler.shardings import entries
from cleave.testing.tools import ToolError
from cleave.compiler.entrance import grouped
from recipe_runs import check, emit

#: A mesh, what is asked for, and the model.
CASES = [
    ("gpt2", "tp=2", "c_attn.weight=[-,tp],c_attn.bias=[tp],attn.c_proj.weight=[tp,-]"),
    ("gpt2", "tp=4", "mlp.c_fc.weight=[-,tp],mlp.c_fc.bias=[tp],mlp.c_proj.weight=[tp,-]"),
    ("llama", "dp=2,tp=2", "layers.*.[qkv]_proj.weight=[tp,-],o_proj.weight=[-,tp],zero1"),
    ("llama", "a=2,b=2", "up_proj.weight=[a+b,-],down_proj.weight=[-,a]"),
    ("llama", "tp=2,dp=2", "megatron,*.mlp.*.weight=[-,-],zero3"),
    ("bert", "x=2,y=2", "*.dense.weight=[x,y],embeddings.word_embeddings.weight=[y,x]"),
]


@pytest.mark.parametrize("name, mesh, plan", CASES)
def test_placements_equal_one_device(tmp_path_factory, name, mesh, plan):
    index = CASES.index((name, mesh, plan))
    check(tmp_path_factory, name, mesh, plan, ["adamw", "sgd"][index % 2], 1 + index % 2)


def llama(**settings):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, bos_token_id=1, eos_token_id=2,
        **settings)
    return transformers.LlamaForCausalLM(config)


IDS = torch.from_numpy(np.random.default_rng(1).integers(3, 96, (4, 8)))


def losses(**how):
    step = cleave.compile(llama(), dict(input_ids=IDS, labels=IDS), seed=3,
                          **grouped(threads=1, **how))
    return step, [float(step(IDS, IDS)) for _ in range(3)]


def test_a_models_own_plan_is_megatrons():
    """The same is split, and as much is sent."""
    _, whole = losses()
    own, found = losses(mesh={"tp": 2}, plan="hf")
    megatron, expected = losses(mesh={"tp": 2}, plan="megatron")
    assert np.allclose(found, whole, rtol=1e-5) and np.allclose(expected, whole, rtol=1e-5)

    def sent(step):
        return sum(entry["elements"] for entry in step.communication())

    assert 0 < sent(own) <= sent(megatron)


def test_a_plan_beside_recipes():
    _, whole = losses()
    plan = ["zero1", {"mlp.*.weight": P(None, None), "q_proj.weight": P("tp", None)}]
    step, found = losses(mesh={"dp": 2, "tp": 2}, plan=plan)
    assert np.allclose(found, whole, rtol=1e-5)
    text = step.visualize("model.layers.0.self_attn.q_proj.weight")
    assert "tp" in text, text


def test_hints_that_do_not_fit_are_left_out():
    """Three positions do not divide two key-value heads; the vocabulary they do."""
    _, whole = losses()
    _, found = losses(mesh={"tp": 3}, plan="hf")
    assert np.allclose(found, whole, rtol=1e-5)


def test_a_plan_as_it_is_written():
    assert str(P("tp", None, ("dp", "cp"))) == "[tp,-,dp+cp]"
    assert repr(P(("dp", "tp"), None)) == "P(('dp', 'tp'), None)"
    assert entries(["zero1", {"a.*": P()}], None) == ["zero1", "a.*=[]"]
    assert entries(None, None) == []


@pytest.mark.parametrize("plan, error, message", [
    (3, TypeError, "plan is 3"),
    ([3], TypeError, "plan is 3"),
    ({"a": "tp"}, TypeError, "plan places 'a' as 'tp'"),
    ({3: P("tp")}, TypeError, "plan places 3"),
    ("hf", ValueError, "Linear has no tp_plan"),
])
def test_what_is_no_plan(plan, error, message):
    with pytest.raises(error, match=message):
        entries(plan, torch.nn.Linear(2, 2))


@pytest.mark.parametrize("dims, error", [
    ((3,), TypeError), (("t p",), ValueError), (("tp", "tp"), ValueError),
    ((("tp", 3),), TypeError), (("",), ValueError)])
def test_what_is_no_placement(dims, error):
    with pytest.raises(error):
        P(*dims)


@pytest.mark.parametrize("plan, message", [
    ("q_prj.weight=[tp,-]", 'matches no parameter.*closest name is "model.layers.0.self_attn'),
    ("q_proj.weight=[tp]", "it has 2 dimensions, not 1"),
    ("q_proj.weight=[xx,-]", 'axis "xx", which the mesh does not have: it has "tp"'),
    ("q_proj.weight=[-,-],self_attn.*.weight=[-,tp]", "matches two placements"),
    ("norm.weight=[tp]", "size 32, not divisible by the 3 positions .*: use 2, 4, 8"),
    ("q_proj.weight=[tp,tp]", "splits two dimensions over axis"),
    ("q_proj.weight=tp", "a placement is written as"),
    ("=[tp]", "a placement is written as"),
    ("q_proj.weight=[tp+,-]", "each dimension is an axis"),
])
def test_contradictions_and_what_does_not_fit(tmp_path_factory, plan, message):
    folder = tmp_path_factory.getbasetemp()
    with pytest.raises(ToolError, match=message):
        emit(folder, "llama", "placed", "--mesh=tp=3", f"--plan={plan}")
