# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Update rules on recipes: the split step against the whole one, in f64 by the interpreter.

Parameters and state begin with random values, and the number of the update is 3.
"""

import re

import pytest

from cleave.testing.tools import ToolError
from recipe_runs import OPTIMIZERS, check, emit

RULES = {
    "lion": ["--optimizer=lion", "--weight-decay=0.1", "--max-grad-norm=0.5"],
    "adagrad": ["--optimizer=adagrad", "--eps=1e-3", "--lr-decay=0.1"],
    "lamb": ["--optimizer=lamb", "--max-grad-norm=0.5"],
    "adafactor": ["--optimizer=adafactor", "--weight-decay=0.1"],
    "muon": ["--optimizer=muon", "--group=*wte*,*wpe*,ndim<2: "
             "optimizer=adamw lr-scale=0.5 eps=1e-3 beta2=0.95"],
}

CASES = [
    ("dp=2", ""),
    ("dp=4", "zero1"),
    # Three ranks pad what they shard.
    ("dp=3", "zero1"),
    ("dp=2", "zero2"),
    ("dp=4", "zero3"),
    ("dp=3", "zero3"),
    ("tp=2", "megatron"),
    ("dp=2,tp=2", "megatron-sp,zero3"),
    ("row=2,col=2", "summa2d"),
    ("dp=2,row=2,col=2", "summa2d,zero1"),
    ("depth=2,row=2,col=2", "summa25d"),
    ("dp=2,cp=2", "ring,zero3"),
]


@pytest.fixture(autouse=True)
def rules(monkeypatch):
    for name, flags in RULES.items():
        monkeypatch.setitem(OPTIMIZERS, name, flags)


@pytest.mark.parametrize("mesh, recipes", CASES)
@pytest.mark.parametrize("rule", RULES)
def test_recipes_equal_one_device(tmp_path_factory, rule, mesh, recipes):
    sizes = (12, 8) if "dp=3" in mesh else (8, 8)
    check(tmp_path_factory, "gpt2", mesh, recipes, rule, 1, sizes)


def arguments(text):
    """The type of each argument of @train, and its attributes, by name."""
    header = re.search(r"func\.func @train\((.*?)\n", text).group(1)
    found = re.findall(r"%arg\d+: (tensor<[^>]*>) (\{.*?\})(?=, %arg|\) ->)", header)
    return {re.search(r'graph\.name = "([^"]*)"', text).group(1): (type, text)
            for type, text in found}


def test_factored_state_is_sharded_like_its_dimensions(tmp_path):
    """Rows and columns of Adafactor keep the axes of the dimensions that they have."""
    text = emit(tmp_path, "gpt2", "placed", *RULES["adafactor"], "--mesh=dp=2,tp=2",
                "--plan=megatron,zero1")
    found = arguments(text)
    sharding = {name: re.search(r"spmd.sharding = #spmd.sharding<@\w+, \[(.*)\]>", attributes)
                for name, (_, attributes) in found.items()}
    weight = "transformer.h.0.attn.c_attn.weight"
    text = {slot: sharding[f"{weight}.{slot}"].group(1) for slot in ("row_var", "col_var")}
    assert '"tp"' not in text["row_var"] and '"tp"' in text["col_var"]
    assert '"dp"' in text["row_var"] + text["col_var"]


@pytest.mark.parametrize("group, message", [
    ("*nothing*: eps=1", "--group: '*nothing*' matches no parameter"),
    ("ndim<2: eps", "--group: 'eps': expected a setting and its value"),
    ("ndim<2: optimizer=adam", "--group: unknown optimizer 'adam'; there are adamw"),
    ("ndim<2: gamma=1", "adamw has no setting gamma"),
    ("ndim<2: beta1=2", "beta1 of adamw is 2; it must be at least 0 and below 1"),
    ("ndim>=1: optimizer=muon", "muon updates matrices"),
])
def test_groups_that_are_refused(tmp_path, group, message):
    with pytest.raises(ToolError, match=re.escape(message)):
        emit(tmp_path, "gpt2", "step", f"--group={group}")


def test_the_first_group_of_a_parameter_applies(tmp_path):
    text = emit(tmp_path, "gpt2", "step", "--no-decay=ndim<2", "--group=*ln_1.bias: weight-decay=0.3",
                "--group=*bias: lr-scale=0.5 beta2=0.9")
    found = arguments(text)
    one, other = (found[f"transformer.h.0.{name}.bias"][1] for name in ("ln_1", "ln_2"))
    assert "graph.weight_decay = 3.0" in one and "graph.lr_scale" not in one
    assert "graph.weight_decay = 0.0" in other and "graph.lr_scale = 5.0" in other
    assert "graph.optimizer = {beta2 = 9.0" in other and "graph.optimizer" not in one
