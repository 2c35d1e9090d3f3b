# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pruned and quantized weights: masks and codes in NumPy, and the split step against the whole one.

A pruned update is the dense one times a mask, which is computed again in NumPy; a step of quantized
weights is the plain one at the rounded weights, of which only the update differs. The programs on
ranks and in stages equal those of global tensors.
"""

import subprocess

import numpy as np
import pytest
import torch

from cleave.testing.tools import interpret, tool
from cleave.trace import trace
from proofs import ALL
from recipe_runs import OPTIMIZERS, agree, emit, random_inputs

MATRICES = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def is_weight(name):
    return name.endswith(MATRICES)


def step_text(folder, phase="step", optimizer="adamw", mesh="", recipes="", micro_batches=1,
              sizes=(8, 8), **flags):
    more = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    if mesh:
        more += [f"--mesh={mesh}", f"--plan={recipes}"]
    return emit(folder, "gpt2", phase, *OPTIMIZERS[optimizer],
                f"--micro-batches={micro_batches}", *more, sizes=sizes)


def run(text, inputs):
    return interpret(text, inputs, entry="train")


def two_of_four(weight):
    """GPT-2 stores weights as [inputs, outputs]."""
    groups = np.abs(weight).T.reshape(weight.shape[1], -1, 4)
    order = np.argsort(-groups, axis=2, kind="stable")
    mask = np.zeros(groups.shape, bool)
    np.put_along_axis(mask, order[:, :, :2], True, axis=2)
    return mask.reshape(weight.shape[1], -1).T


def largest(weight, sparsity):
    count = weight.size - int(np.floor(sparsity * weight.size + 0.5))
    mask = np.zeros(weight.size, bool)
    mask[np.argsort(-np.abs(weight).ravel(), kind="stable")[:count]] = True
    return mask.reshape(weight.shape)


def cubic(step, share, steps):
    return share * (1 - (1 - min(step / steps, 1)) ** 3)


@pytest.mark.parametrize("prune, choose, steps", [
    ("2:4,steps=2", lambda w, t: two_of_four(w), 2),
    ("0.5", lambda w, t: largest(w, 0.5), 1),
    ("0.9,cubic,steps=3", lambda w, t: largest(w, cubic(t, 0.9, 3)), 3),
], ids=["2:4", "share", "cubic"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_update_is_the_dense_one_times_its_mask(tmp_path, prune, choose, steps, optimizer):
    dense = step_text(tmp_path, optimizer=optimizer)
    pruned = step_text(tmp_path, optimizer=optimizer, prune=prune)
    inputs = random_inputs(dense)
    for number in range(1, 6):
        inputs["step"] = np.array(number)
        expected, found = run(dense, inputs)[0], run(pruned, inputs)[0]
        for name, value in expected.items():
            if is_weight(name):
                mask = choose(value, number) if number <= steps else inputs[name] != 0
                np.testing.assert_array_equal(found[name], np.where(mask, value, 0), name)
                assert number < steps or mask.sum() < 0.6 * mask.size
            else:
                np.testing.assert_array_equal(found[name], value, name)
        inputs = {**inputs, **{name: value for name, value in found.items() if name in inputs}}


def test_of_equal_magnitudes_the_lower_index_stays(tmp_path):
    text = step_text(tmp_path, prune="2:4"), step_text(tmp_path, prune="0.5")
    inputs = random_inputs(text[0])
    inputs.update(step=np.array(1), lr=np.array(0.0))
    name = "h.0.mlp.c_fc.weight"
    name = next(n for n in inputs if n.endswith(name))
    inputs[name] = np.where(inputs[name] > 0, 1.0, -1.0)
    groups = run(text[0], inputs)[0][name]
    np.testing.assert_array_equal(groups.T.reshape(-1, 4) != 0, [[1, 1, 0, 0]] * (groups.size // 4))
    share = run(text[1], inputs)[0][name].ravel() != 0
    np.testing.assert_array_equal(share, np.arange(share.size) < share.size // 2)


def rounded(weight):
    """As 8 bits and the scales of columns give it, in f64."""
    scale = np.abs(weight).max(axis=0) / 127
    return np.rint(weight / np.where(scale == 0, 1, scale)) * scale


def test_a_quantized_step_is_the_plain_one_at_rounded_weights(tmp_path):
    """Its update begins from the weight itself, with the gradient of the rounded one."""
    plain, quantized = step_text(tmp_path), step_text(tmp_path, quantize="int8")
    inputs = random_inputs(plain)
    zero = next(name for name in inputs if name.endswith("h.1.mlp.c_fc.weight"))
    inputs[zero][:, 3] = 0
    exact = {name: rounded(v) if is_weight(name) else v for name, v in inputs.items()}
    expected, gradients = run(plain, exact)
    found, own_gradients = run(quantized, inputs)
    assert gradients
    agree(own_gradients, gradients)
    for name, value in expected.items():
        if is_weight(name):
            decay = 1 - 0.1 * 0.1
            value = value + (inputs[name] - exact[name]) * decay
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-10, err_msg=name)


CASES = [
    ("dp=2", "", 1), ("dp=2", "zero1", 1), ("dp=4", "zero2", 2), ("dp=2", "zero3", 2),
    ("tp=2", "megatron", 1), ("dp=2,tp=2", "megatron-sp,zero1", 2), ("dp=2,tp=4", "megatron,zero3", 1),
    ("dp=2,cp=2", "ring", 1),
]
FORMS = {"2:4": dict(prune="2:4,steps=9"), "share": dict(prune="0.5,steps=9"),
         "cubic": dict(prune="0.9,cubic,steps=9"), "fixed": dict(prune="0.5"),
         "int8": dict(quantize="int8"), "both": dict(prune="2:4,steps=9", quantize="int8")}


def sample(cases, every):
    """Each case with some of the forms; with all of them where long tests run."""
    return [(*case, name) for i, case in enumerate(cases) for j, name in enumerate(FORMS)
            if ALL or (i + j) % every == 0]


@pytest.mark.parametrize("mesh, recipes, micro_batches, form", sample(CASES, 3))
def test_ranks_equal_the_program_of_whole_tensors(tmp_path, mesh, recipes, micro_batches, form):
    whole = step_text(tmp_path, **FORMS[form])
    inputs = random_inputs(whole)
    if form == "fixed":
        inputs = {name: np.where(largest(v, 0.5), v, 0) if is_weight(name) else v
                  for name, v in inputs.items()}
    split = step_text(tmp_path, "local", mesh=mesh, recipes=recipes, micro_batches=micro_batches,
                      **FORMS[form])
    for found, expected in zip(run(split, inputs), run(whole, inputs)):
        agree(found, expected)


@pytest.mark.parametrize("schedule, mesh, recipes, form", sample(
    [("1f1b", "pp=2,dp=2", ""), ("zb-h1", "pp=2,dp=2", "zero1"),
     ("gpipe", "dp=2,pp=2,tp=2", "megatron-sp")], 3))
def test_stages_equal_the_program_of_whole_tensors(tmp_path, schedule, mesh, recipes, form):
    whole = step_text(tmp_path, **FORMS[form])
    inputs = random_inputs(whole)
    split = step_text(tmp_path, "scheduled", mesh=mesh, recipes=recipes, micro_batches=2,
                      schedule=schedule, **FORMS[form])
    for found, expected in zip(run(split, inputs), run(whole, inputs)):
        agree(found, expected)


def test_nothing_to_quantize_is_refused(tmp_path):
    """Only tables and what is added or multiplied: no contraction reads a weight."""
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.LayerNorm(4))
    path = tmp_path / "model.mlir"
    path.write_text(trace(model, torch.zeros(2, 3, dtype=torch.int64),
                          loss_fn=lambda y: y.square().mean()).mlir)
    done = subprocess.run([tool("cleave-compile"), str(path), "--emit=step", "--quantize=int8"],
                          capture_output=True, text=True)
    where = f"{path}:2:3: error: "
    assert done.returncode == 1
    assert f"{where}quantization: '@train' has no weight of a contraction" in done.stderr


@pytest.mark.parametrize("flags, why", [
    (["--prune=3:2"], "--prune: pruning '3:2': the pattern of groups is 2:4"),
    (["--prune=1"], "must be above 0 and below 1, got 1"),
    (["--prune=-0.1"], "must be above 0 and below 1, got -0.1"),
    (["--prune=0.5,linear"], "unknown schedule 'linear'; there are constant and cubic"),
    (["--prune=0.5,steps=x"], "steps must be a positive integer, got 'x'"),
    (["--prune="], "'' is neither 2:4 nor the share"),
    (["--quantize=int4"], "--quantize: unknown quantization 'int4'; there is int8"),
    (["--quantize=int8", "--precision=fp8"], "precision fp8 rounds them to 8 bits of its own"),
], ids=str)
def test_what_cannot_be_is_refused(tmp_path, flags, why):
    path = tmp_path / "model.mlir"
    path.write_text("func.func @loss() { return }\n")
    done = subprocess.run([tool("cleave-compile"), str(path), "--emit=step", *flags],
                          capture_output=True, text=True)
    assert done.returncode != 0 and why in done.stderr
