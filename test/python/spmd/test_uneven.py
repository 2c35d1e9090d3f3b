# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Sizes that do not divide, in f64 by the interpreter.

Whole steps against one device to 1e-10, and what padding holds.
"""

import re

import numpy as np
import pytest

import expert_recipes  # noqa: F401 (its models)
from cleave.testing.tools import ToolError, interpret, optimize
from head_models import head
from recipe_runs import OPTIMIZERS, agree, check, emit, model_file, random_inputs, whole_run
from native_layouts import agree_natively
from training_support import ALL, assert_close

#: A mesh, recipes, the model, samples, places, changes of it, micro-batches.
UNEVEN = [
    ("dp=4", "", "gpt2", 6, 8, {}, 1),
    ("dp=3", "zero1", "llama", 6, 8, {}, 1),
    ("dp=3", "zero2", "bert", 8, 8, {}, 1),
    ("dp=3", "zero3", "gpt2", 8, 8, {}, 1),
    ("dp=5", "zero3", "llama", 8, 8, {}, 1),
    ("cp=2", "ulysses", "bert", 4, 7, {}, 1),
    ("dp=2,cp=2", "ulysses,zero1(cp)", "gpt2", 5, 7, {}, 1),
    ("tp=2", "megatron-sp", "llama", 4, 7, {}, 1),
    ("dp=3,tp=2", "megatron-sp,zero3", "bert", 5, 9, {}, 1),
    ("dp=2,tp=2", "megatron,zero2", "gpt2", 3, 8, {}, 1),
    ("dp=2", "zero1", "llama", 7, 8, {}, 2),
    ("dp=2,cp=2", "ulysses", "bert", 7, 7, {}, 2),
    ("dp=2", "zero3", "gpt2", 5, 8, {}, 2),
    # The vocabulary, tied and not, with a bias and without.
    ("tp=4", "megatron", "gpt2", 4, 8, {"vocab_size": 97}, 1),
    ("tp=4", "megatron-sp", "gpt2", 4, 7, {"vocab_size": 101}, 2),
    ("tp=2", "megatron", "llama", 4, 8, {"vocab_size": 99}, 1),
    ("dp=3,tp=2", "megatron-sp,zero3", "llama", 6, 8, {"vocab_size": 97}, 1),
    ("tp=4", "megatron", "bert", 4, 8, {"vocab_size": 98}, 2),
    ("dp=2,tp=4", "megatron-sp,zero1", "bert", 3, 8, {"vocab_size": 97}, 1),
    ("cp=2,tp=2", "ulysses,megatron", "gpt2", 4, 7, {"vocab_size": 97}, 1),
    # Heads, and groups of heads that share keys and values.
    ("tp=2", "megatron", "gpt2", 4, 8, {"n_head": 3, "n_embd": 24}, 1),
    ("tp=4", "megatron-sp", "gpt2", 4, 7, {"n_head": 6, "n_embd": 24}, 2),
    ("tp=4", "megatron", "bert", 4, 8, {"num_attention_heads": 7, "hidden_size": 28}, 1),
    ("tp=2", "megatron-sp", "llama", 4, 8,
     {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 24}, 1),
    ("dp=2,tp=4", "megatron,zero3", "llama", 4, 8,
     {"num_attention_heads": 6, "num_key_value_heads": 6, "hidden_size": 24}, 1),
    ("cp=2", "ulysses", "gpt2", 4, 8, {"n_head": 3, "n_embd": 24}, 1),
    ("cp=4", "ulysses", "bert", 4, 7, {"num_attention_heads": 6, "hidden_size": 24}, 2),
    ("dp=2,cp=2", "ulysses,zero1", "llama", 4, 8,
     {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 24}, 1),
    # Inner features of an MLP.
    ("tp=4", "megatron", "gpt2", 4, 8, {"n_inner": 70}, 1),
    # Queries of attention; samples that are sent to experts.
    ("cp=4", "context", "gpt2", 4, 7, {}, 1),
    ("tp=2,cp=3", "context,megatron-sp", "llama", 4, 8, {}, 1),
    ("ep=4", "expert", "mixtral", 6, 8, {}, 1),
    ("ep=4", "expert", "mixtral", 8, 8, {"num_local_experts": 6}, 1),
    ("ep=3", "expert", "top2", 6, 8, {}, 1),
    ("dp=3,ep=2", "expert,zero3", "top2", 7, 8, {}, 1),
    ("tp=2", "megatron-sp,expert(tp)", "mixtral", 4, 7, {}, 1),
    ("dp=2,cp=2", "ulysses,expert(cp),expert(dp)", "top2", 5, 7, {}, 1),
    # A sequence over two levels.
    ("node=2,cp=2", "ulysses,context(node)", "llama", 4, 7, {}, 1),
    ("node=2,cp=2", "ulysses,ring(node)", "gpt2", 4, 6, {}, 1),
    ("node=2,cp=2", "ulysses,ring(node)", "gpt2", 4, 8, {"n_head": 3, "n_embd": 48}, 1),
    # As many tokens as GPT-2 knows.
    ("tp=4", "megatron", "gpt2", 1, 4, {"vocab_size": 50257, "n_embd": 8, "n_layer": 1}, 1),
]


@pytest.mark.parametrize("case", UNEVEN, ids=lambda case: "-".join(map(str, case)))
def test_steps_equal_one_device(tmp_path_factory, case):
    mesh, recipes, name, batch, length, changes, micro_batches = case
    sizes = (batch, length, *changes.items())
    for optimizer in (["adamw", "sgd"] if ALL else [["adamw", "sgd"][UNEVEN.index(case) % 2]]):
        local = check(tmp_path_factory, name, mesh, recipes, optimizer, micro_batches, sizes)
        assert "graph.valid_shape" in local


#: More positions of `tp` than groups of heads: a mesh, recipes, the model, heads,
#: groups, the size of a head's group on a device.
SHARED = [
    ("tp=4", "megatron", "llama", 4, 2),
    ("tp=4", "megatron-sp", "llama", 8, 2),
    ("dp=2,tp=4", "megatron,zero3", "llama", 4, 2),
    ("tp=4,dp=2", "megatron-sp,zero1", "llama", 4, 2),
    ("tp=6", "megatron", "llama", 6, 3),
    ("tp=2", "megatron-sp", "llama", 4, 1),
]


@pytest.mark.parametrize("mesh, recipes, name, heads, groups", SHARED)
def test_devices_share_keys_and_values(tmp_path_factory, mesh, recipes, name, heads, groups):
    """Several devices hold the same keys and values; their gradients are summed
    once, which the clipped norm would show."""
    parts = int(re.search(r"tp=(\d+)", mesh).group(1))
    sizes = (4, 8, ("num_attention_heads", heads), ("num_key_value_heads", groups),
             ("hidden_size", 48), ("head_dim", 8), ("intermediate_size", 48))
    local = check(tmp_path_factory, name, mesh, recipes, "sgd", 1, sizes)
    held = {which: [int(n) for n in re.search(
        rf'tensor<([\dx]+)xf64> \{{[^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)*'
        rf'graph\.name = "model\.layers\.0\.self_attn\.{which}_proj\.weight"',
        local[local.index("func.func @train"):]).group(1).split("x")] for which in "qkv"}
    assert held["q"][0] == heads // parts
    if groups > 1:
        assert held["k"][0] == held["v"][0] == 1
        # What is summed among the devices of a group alone, in each layer: two
        # weights' gradients.
        minor = f'"tp":({groups}){parts // groups}'
        assert local[local.index("func.func @train"):].count(f"{{{minor}}}") >= 4


@pytest.mark.parametrize("mesh, recipes, heads, groups", [
    ("cp=4", "ulysses", 4, 2), ("dp=2,cp=4", "ulysses,zero3", 8, 2)][::1 if ALL else 2])
def test_heads_of_keys_go_to_several_devices(tmp_path_factory, mesh, recipes, heads, groups):
    sizes = (4, 8, ("num_attention_heads", heads), ("num_key_value_heads", groups))
    check(tmp_path_factory, "llama", mesh, recipes, "sgd", 1, sizes)


@pytest.mark.parametrize("name, changes, parts, message", [
    ("gpt2", {"n_head": 6, "n_embd": 48}, 8,
     "has 6 heads, not divisible by the 8 positions of axis \"tp\": use 2, 3 or 6 positions"),
    ("llama", {"num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 48}, 8,
     "has 4 groups of 3 heads, not divisible by the 8 positions of axis \"tp\": use 2, 4 or 12 positions"),
    ("gpt2", {"n_inner": 6}, 8, "not divisible"),
])
def test_what_cannot_be_is_said(tmp_path_factory, name, changes, parts, message):
    with pytest.raises(ToolError) as error:
        emit(tmp_path_factory.getbasetemp(), name, "local", *OPTIMIZERS["sgd"],
             f"--mesh=tp={parts}", "--plan=megatron", sizes=(4, 8, *changes.items()))
    assert message in str(error.value)
    assert re.search(r'\.mlir:\d+:\d+: error: dimension \d of parameter "[\w.]+"', str(error.value))


@pytest.mark.parametrize("mesh, recipes, batch", [
    ("dp=3", "", 9), ("dp=3", "zero3", 8), ("dp=3,tp=2", "megatron-sp,zero1", 7)])
def test_devices_with_few_valid_tokens(tmp_path_factory, mesh, recipes, batch):
    """The first device has no label that counts, the second one has one."""
    folder = tmp_path_factory.getbasetemp()
    sizes, flags = (batch, 8), OPTIMIZERS["adamw"]
    step = emit(folder, "gpt2", "step", *flags, sizes=sizes)
    inputs = random_inputs(step)
    labels = inputs["labels"]
    labels[:6] = -100
    labels[4, 5] = 17
    expected = interpret(step, inputs, entry="train")
    layout = [f"--mesh={mesh}", f"--plan={recipes}"]
    local = emit(folder, "gpt2", "local", *flags, *layout, sizes=sizes)
    for found, value in zip(interpret(local, inputs, entry="train"), expected):
        agree(found, value)
    agree_natively(model_file(folder, "gpt2", sizes), flags, layout, step, inputs, expected[0])


@pytest.mark.parametrize("mesh, recipes", [
    ("dp=3", "zero1"), ("dp=3", "zero2"), ("dp=3", "zero3"), ("dp=3,tp=4", "megatron,zero3")])
def test_three_ranks_share_tied_and_decayed(tmp_path_factory, mesh, recipes):
    """ZeRO over three ranks: an embedding that is the head too, and parameters
    that do not decay beside others that do."""
    folder = tmp_path_factory.getbasetemp()
    sizes, flags = (6, 8, ("vocab_size", 97)), (*OPTIMIZERS["adamw"], "--no-decay=ndim<2", "--max-grad-norm=0.5")
    step = emit(folder, "gpt2", "step", *flags, sizes=sizes)
    assert "graph.weight_decay = 0" in step and 'graph.aliases = ["lm_head.weight"]' in step
    inputs = random_inputs(step)
    expected = interpret(step, inputs, entry="train")
    layout = [f"--mesh={mesh}", f"--plan={recipes}"]
    local = emit(folder, "gpt2", "local", *flags, *layout, sizes=sizes)
    for found, value in zip(interpret(local, inputs, entry="train"), expected):
        agree(found, value)
    agree_natively(model_file(folder, "gpt2", sizes), flags, layout, step, inputs, expected[0])


def test_the_norm_counts_each_element_once(tmp_path_factory):
    """Samples, places, vocabulary and parts of parameters are padded, norms'
    weights lie on every device, and the embedding is the head."""
    folder = tmp_path_factory.getbasetemp()
    sizes = (5, 7, ("vocab_size", 97))
    _, results, gradients = whole_run("gpt2", "sgd", folder, sizes)
    norm = np.sqrt(sum((g ** 2).sum() for g in gradients.values()))
    assert_close(results["grad_norm"], norm, rtol=1e-12)
    local = check(tmp_path_factory, "gpt2", "dp=3,tp=2", "megatron-sp,zero3", "sgd", 1, sizes)
    found, _ = interpret(local, whole_run("gpt2", "sgd", folder, sizes)[0], entry="train")
    assert_close(found["grad_norm"], norm, rtol=1e-12)


def with_padding(module):
    """The padded program as who calls it does not see it."""
    assert "graph.valid_shape" in module
    shape = r"graph\.(?:valid|framework)_shape = array<i64: [\d, ]+>"
    return re.sub(f"{shape},? ?", "", re.sub(f", {shape}", "", module))


def shapes_of(module):
    """The shape of each argument of @train, with padding and without."""
    header = re.search(r"func\.func @train\((.*?)\n", module).group(1)
    shapes = {}
    for shape, attributes in re.findall(r"%arg\d+: tensor<((?:\d+x)*)\w+> \{(.*?)\}(?=, %arg|\) ->)", header):
        name = re.search(r'graph\.name = "([^"]*)"', attributes).group(1)
        whole = tuple(int(n) for n in shape.split("x")[:-1])
        valid = re.search(r"graph\.valid_shape = array<i64: ([\d, ]+)>", attributes)
        shapes[name] = whole, tuple(int(n) for n in valid.group(1).split(",")) if valid else whole
    return shapes


def padded(value, shape):
    result = np.zeros(shape, value.dtype)
    result[tuple(slice(0, n) for n in value.shape)] = value
    return result


def outside(value, shape):
    """The elements of `value` that are none of a tensor of `shape`."""
    inside = np.zeros(value.shape, bool)
    inside[tuple(slice(0, n) for n in shape)] = True
    return value[~inside]


@pytest.mark.parametrize("mesh, recipes", [("tp=4", "megatron"), ("dp=3,tp=4", "megatron-sp,zero3")])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_padding_has_no_gradient_and_no_state(tmp_path_factory, name, mesh, recipes):
    """Rows of the vocabulary that no token names: zero in the weights, their
    gradients and the optimizer's state, before a step and after it."""
    if name == "llama":
        mesh = mesh.replace("tp=4", "tp=2")
    folder = tmp_path_factory.getbasetemp()
    sizes = (6, 8, ("vocab_size", 97))
    inputs, results, gradients = whole_run(name, "adamw", folder, sizes)
    module = emit(folder, name, "placed", *OPTIMIZERS["adamw"],
                  f"--mesh={mesh}", f"--plan={recipes}", sizes=sizes)
    shapes = shapes_of(module)
    given = {key: padded(value.reshape(shapes[key][1]), shapes[key][0])
             for key, value in inputs.items()}
    found, own_gradients = interpret(with_padding(module), given, entry="train")
    seen = set()
    for kind, values, expected in (("result", found, results), ("gradient", own_gradients, gradients)):
        for key, value in values.items():
            if value.size == expected[key].size:
                continue
            rest = outside(value, shapes[key][1])
            assert rest.size and (rest == 0).all(), (kind, key)
            seen.add(kind)
    assert seen == {"result", "gradient"}


def test_padding_has_no_probability():
    """A class that is padding would add its exponential to the sum, and its row
    of the weight's gradient would be the inputs weighed with its probability."""
    text = head((4, 6), False, True, 0.1, -100, True)
    text = text.replace('graph.name = "w",', 'graph.name = "w", spmd.sharding = #spmd.sharding<@mesh, [{"tp"}, {}]>,')
    text = 'spmd.mesh @mesh <["tp" = 4]>\n' + text
    opened = optimize(text, "--spmd-decompose-head=recipes=megatron", "--spmd-pad")
    assert "tensor<12x3xf64>" in opened
    rng = np.random.default_rng(3)
    inputs = {"x": rng.standard_normal((4, 6, 3)), "w": rng.standard_normal((10, 3)),
              "b": rng.standard_normal(10), "t": rng.integers(0, 10, (4, 6)),
              "g": rng.standard_normal((4, 6))}
    expected, _ = interpret(text, inputs, entry="train")
    found, _ = interpret(opened, inputs, entry="train")
    for key, value in expected.items():
        assert_close(found[key], value, rtol=1e-10, atol=1e-12, err_msg=key)
    inputs["w"], inputs["b"] = padded(inputs["w"], (12, 3)), padded(inputs["b"], (12,))
    found, _ = interpret(with_padding(opened), inputs, entry="train")
    for key in ("r2", "r3"):
        assert found[key].shape[0] == 12 and (found[key][10:] == 0).all()
