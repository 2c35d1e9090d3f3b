# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What is easily lost when a step is split: where each trap is tested.

| trap | test |
|---|---|
| devices with no, one and many valid tokens | here; test_uneven.py and test_uneven_devices.py: test_devices_with_few_valid_tokens |
| gradients, of experts as well, are divided by the tokens of all devices | here, with the former |
| the norm counts each element once over dp x tp x cp x ep | here; test_uneven.py: test_the_norm_counts_each_element_once |
| padded classes: no probability, no gradient, no state | test_uneven.py: test_padding_has_no_probability, test_padding_has_no_gradient_and_no_state |
| padded classes are not in `state_dict` | test_uneven_devices.py: test_padding_stays_inside |
| ZeRO over 3 ranks, tied parameters, others that do not decay | test_uneven.py, test_uneven_devices.py: test_three_ranks_share_tied_and_decayed |
| dropout masks of features, heads and the sequence in parts | here; test_ring.py: test_masks_are_those_of_one_device |
| RoPE, positions, the causal mask and labels across borders of chunks | here |
| devices of a causal ring work alike | test_ring.py: test_devices_do_the_same |
| blocks that are hidden as a whole | test_ring.py: test_hidden_blocks_are_no_numbers_of_their_own |
| gradients of keys and values that several devices hold are summed once | test_uneven.py: test_devices_share_keys_and_values |
| the balance of experts is that of all tokens | here; test_expert_recipes.py: test_balance_of_the_whole_batch |
| what experts drop does not depend on the mesh | here |

In f64 by the interpreter, against one device.
"""

import re

import numpy as np
import pytest
import torch

import ring_models
from cleave.testing.tools import interpret, optimize
from expert_models import Own
from expert_recipes import MAKERS, MODELS  # noqa: F401 (its models)
from recipe_runs import OPTIMIZERS, agree, check, emit, family, random_inputs, whole_run
from training_support import ALL


def same_as_one(folder, name, mesh, recipes, sizes, change, optimizer="sgd"):
    """`change(inputs)`, then a step on one device and on those of `mesh`; results
    and gradients of one."""
    flags = OPTIMIZERS[optimizer]
    step = emit(folder, name, "step", *flags, sizes=sizes)
    inputs = random_inputs(step)
    change(inputs)
    expected = interpret(step, inputs, entry="train")
    local = emit(folder, name, "local", *flags, f"--mesh={mesh}", f"--plan={recipes}", sizes=sizes)
    for found, value in zip(interpret(local, inputs, entry="train"), expected):
        agree(found, value)
    return expected


# Valid tokens ------------------------------------------------------------------------


def few_of_the_samples(inputs):
    """Of 8 samples, the first two have no token that counts, the next two one."""
    labels = inputs["labels"]
    labels[:] = np.where(labels < 0, 5, labels)
    labels[:4] = -100
    labels[3, 5] = 17


def few_of_the_places(inputs):
    """Of 8 places, logits of 2 to 5 count, and one of place 6: over four devices,
    in order as in zig-zag order, one has none of them, and another this one."""
    labels = inputs["labels"]
    labels[:] = np.where(labels < 0, 5, labels)
    labels[:, :3] = labels[:, 7:] = -100
    labels[1, 7] = 17


@pytest.mark.parametrize("name, mesh, recipes, change", [
    ("gpt2", "dp=4", "zero2", few_of_the_samples),
    ("gpt2", "cp=4", "context", few_of_the_places),
    ("llama", "cp=4", "ring", few_of_the_places),
    ("gpt2", "cp=4", "ulysses", few_of_the_places),
    ("gpt2", "tp=4", "megatron-sp", few_of_the_places),
    ("mixtral", "ep=4", "expert", few_of_the_samples),
    ("top1", "dp=2,ep=2", "expert,zero3", few_of_the_samples),
    ("mixtral", "ep=2,cp=4", "expert,ring", few_of_the_places),
])
def test_devices_with_few_valid_tokens(tmp_path, name, mesh, recipes, change):
    """A mean that is taken on each device, and then over devices, is another one."""
    _, gradients = same_as_one(tmp_path, name, mesh, recipes, (8, 8), change)
    if "expert" in recipes:
        experts = [g for key, g in gradients.items() if key.endswith(("down", "down_proj"))]
        assert experts and all(np.abs(g).max() > 0 for g in experts)


# The norm ----------------------------------------------------------------------------


@pytest.mark.parametrize("recipes", ["expert,context,megatron-sp,zero3"]
                         + ["expert,ulysses,megatron,zero1", "expert,context,megatron,zero2"] * ALL)
def test_the_norm_counts_each_element_once(tmp_path_factory, recipes):
    """Experts lie on `ep`, features on `tp`, norms and the router on every device;
    the embedding is the head, and has 97 rows; there are 7 samples."""
    sizes = (7, 8, ("vocab_size", 97), ("tie_word_embeddings", True), ("attention_dropout", 0.1))
    folder = tmp_path_factory.getbasetemp()
    inputs, results, gradients = whole_run("mixtral", "sgd", folder, sizes)
    assert not any("lm_head" in name for name in gradients)
    norm = np.sqrt(sum((g ** 2).sum() for g in gradients.values()))
    assert norm > 0.5
    np.testing.assert_allclose(results["grad_norm"], norm, rtol=1e-12)
    local = check(tmp_path_factory, "mixtral", "dp=2,tp=2,cp=2,ep=2", recipes, "sgd", 1, sizes)
    assert "graph.valid_shape" in local
    found, _ = interpret(local, inputs, entry="train")
    np.testing.assert_allclose(found["grad_norm"], norm, rtol=1e-12)


# Random numbers ----------------------------------------------------------------------


def sharded(text, **placed):
    """The model with shardings of its arguments on a mesh."""
    for name, dims in placed.items():
        lists = ", ".join("{%s}" % ", ".join(f'"{axis}"' for axis in axes.split()) for axes in dims)
        text = text.replace(f'graph.name = "{name}"}}',
                            f'graph.name = "{name}", spmd.sharding = #spmd.sharding<@mesh, [{lists}]>}}')
    return 'spmd.mesh @mesh <["dp" = 2, "tp" = 2, "cp" = 2]>\n' + text


@pytest.mark.parametrize("x, heads, rows", [
    (("", "", "", "tp"), "tp", ""),
    (("", "tp", "", ""), "tp", ""),
    (("dp", "cp", "", "tp"), "tp", "cp"),
    (("dp", "cp tp", "", ""), "", "cp tp"),
    (("", "tp", "", "cp dp"), "tp", "cp dp"),
], ids=["features", "sequence", "all", "sequence-twice", "features-twice"])
@pytest.mark.parametrize("length", [8, 72])
def test_masks_are_those_of_one_device(length, x, heads, rows):
    """What Megatron, its sequence parallelism and context put in parts: features,
    the sequence; heads and queries of attention. Every element is dropped or kept
    as on one device."""
    text = ring_models.model(length)
    placed = sharded(text, x=x, q=("dp" if x[0] else "", rows, heads, ""))
    local = optimize(placed, "--spmd-seed-shardings", "--spmd-propagate", "--spmd-partition",
                     "--spmd-optimize-collectives", "--spmd-verify")
    own, _ = interpret(local, ring_models.inputs(length), entry="logits")
    whole, _ = interpret(text, ring_models.inputs(length), entry="logits")
    dropped = re.search(r"graph\.dropout .*-> tensor<([\dx]+)xf64>", local).group(1)
    attended = re.search(r"graph\.attention .*\n?.*-> \(tensor<([\dx]+)xf64>", local).group(1)
    parts = [int(n) for n in dropped.split("x") + attended.split("x")]
    assert np.prod(parts[:4]) < whole["dropped"].size
    assert np.prod(parts[4:]) < whole["probabilities"].size
    assert (whole["dropped"] == own["dropped"]).all()
    assert 0.1 < (own["dropped"] == 0).mean() < 0.4
    assert ((whole["probabilities"] == 0) == (own["probabilities"] == 0)).all()
    assert np.abs(whole["probabilities"] - own["probabilities"]).max() < 1e-14


# Borders of chunks -------------------------------------------------------------------


def labels_at_borders(inputs):
    """Of 16 places, those count whose label is the first of a device's chunk: of
    four in order, or of eight in zig-zag order."""
    labels = inputs["labels"]
    labels[:] = np.where(labels < 0, 5, labels)
    hidden = np.ones(16, bool)
    hidden[[4, 8, 10, 12]] = False
    labels[:, hidden] = -100


@pytest.mark.parametrize("mesh, recipes", [
    ("cp=4", "context"),
    ("cp=4", "ring"),
    ("cp=4", "ulysses"),
    ("cp=2,up=2", "ring,ulysses(up)"),
])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_borders_of_chunks(tmp_path, mesh, recipes, name):
    """GPT-2 has learned positions, LLaMA RoPE, and Mistral sees a window too."""
    MAKERS.setdefault("mistral", family("mistral"))
    heads = (("num_key_value_heads", 4),) if name != "gpt2" and recipes == "ulysses" else ()
    same_as_one(tmp_path, name, mesh, recipes, (2, 16, *heads), labels_at_borders)


# Experts -----------------------------------------------------------------------------


@pytest.mark.parametrize("mesh, recipes", [
    ("dp=2,cp=2", "context"),
    ("dp=2,cp=2", "ring"),
    ("dp=2,ep=2,cp=2", "expert,ulysses"),
    ("ep=2,cp=4", "expert,ring"),
])
def test_balance_is_that_of_all_tokens(tmp_path_factory, mesh, recipes):
    """Fractions of tokens and probabilities are averaged over samples and the
    sequence before they are multiplied."""
    check(tmp_path_factory, "mixtral-balanced", mesh, recipes, "sgd", 1)


def test_balance_of_parts_is_another_one():
    """The test above can fail: the mean of the balances of two halves differs."""
    module = MAKERS["mixtral-balanced"]().eval().double()
    torch.manual_seed(1)
    ids = torch.randint(3, 96, (8, 8))
    with torch.no_grad():
        whole, first, second = (float(module(part, labels=part, output_router_logits=True).aux_loss)
                                for part in (ids, ids[:4], ids[4:]))
    assert abs((first + second) / 2 - whole) > 1e-4


MAKERS["top1-kept"] = lambda: Own(capacity=0, dropout=0.1)
MAKERS["top2-kept"] = lambda: Own(choices=2, capacity=0, dropout=0.1)


@pytest.mark.parametrize("name", ["top1", "top2"])
@pytest.mark.parametrize("mesh, recipes", [
    ("dp=4", ""),
    ("ep=4", "expert"),
    ("cp=4", "ring"),
    ("ep=2,cp=2", "expert,context"),
    ("ep=2,cp=2", "expert,ulysses"),
    ("ep=2,tp=2", "expert,megatron-sp"),
])
def test_what_is_dropped_does_not_depend_on_the_mesh(tmp_path_factory, name, mesh, recipes):
    """Tokens are counted in the order of a sample's places, wherever these are."""
    check(tmp_path_factory, name, mesh, recipes, "sgd", 1)


@pytest.mark.parametrize("name", ["top1", "top2"])
def test_something_is_dropped(tmp_path_factory, name):
    """What the test above compares depends on it."""
    losses = [whole_run(which, "sgd", tmp_path_factory.getbasetemp())[1]["loss"]
              for which in (name, f"{name}-kept")]
    assert abs(losses[0] - losses[1]) > 1e-3
