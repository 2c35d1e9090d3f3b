# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pruned and quantized weights in training, and their exports, which PyTorch judges."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from safetensors import safe_open
from safetensors.torch import load_file
from torch.ao.pruning import WeightNormSparsifier

import cleave
from cleave.exporting import quantize
from cleave.exporting.__main__ import main as export_main
from cleave.models import gpt
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from cleave.compiler.entrance import grouped
from proofs import ALL
from training_support import same_bits, snapshot


def network(layers=1):
    torch.manual_seed(0)
    return gpt(hidden=32, heads=4, layers=layers, seq=16, vocab=64)


def compiled(optimizer=None, **options):
    model = network(2 if "pp" in options.get("mesh", {}) else 1)
    ids = torch.randint(0, 64, (8, 16))
    return cleave.compile(model, (ids, ids), check="off",
                          optimizer=optimizer or cleave.optim.AdamW(lr=1e-2, weight_decay=0.1),
                          **grouped(**options))


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 64, (8, 16), generator=generator) for _ in range(count)]


def train(step, count, seed=1):
    return [float(step(ids, ids)) for ids in batches(count, seed)]


def weights(step):
    """Those of contractions, as [outputs, inputs]."""
    from cleave.exporting import _weights

    state = step.state_dict()
    return {name: state[name].movedim(inputs, [-1 - i for i in reversed(range(len(inputs)))])
            for name, inputs in _weights(step).items()}


def check_zeros(step, prune):
    found = weights(step)
    assert len(found) >= 4
    for name, weight in found.items():
        if prune.startswith("2:4"):
            groups = weight.reshape(-1, 4)
            assert ((groups != 0).sum(1) == 2).all(), name
        else:
            share = float(prune.split(",")[0])
            assert (weight == 0).sum().item() == int(np.floor(share * weight.numel() + 0.5)), name


OPTIONS = [
    dict(), dict(mesh={"dp": 2}, plan="zero1"), dict(mesh={"dp": 2}, plan="zero2", micro_batches=2),
    dict(mesh={"dp": 2}, plan="zero3"), dict(mesh={"tp": 2}, plan="megatron"),
    dict(mesh={"tp": 4}, plan="megatron"),
    dict(mesh={"pp": 2}, micro_batches=2, schedule="1f1b"), dict(precision="bf16"),
    dict(precision="fp16"), dict(optimizer=cleave.optim.SGD(lr=0.1, momentum=0.9)),
    dict(optimizer_fusion="forward"),
    dict(optimizer_fusion="backward", check_finite=False),
]
PRUNE = ["2:4", "0.9,cubic,steps=4", "0.5"]


@pytest.mark.parametrize("prune, options", [
    (prune, options) for i, prune in enumerate(PRUNE) for j, options in enumerate(OPTIONS)
    if ALL or (j % 3 == i and j < 8)], ids=str)
def test_pruned_weights_stay_zero(prune, options):
    step = compiled(prune=prune, **options)
    train(step, 5)
    check_zeros(step, prune)
    before = {name: weight == 0 for name, weight in weights(step).items()}
    train(step, 4, seed=2)
    for name, weight in weights(step).items():
        assert torch.equal(weight == 0, before[name]), name


@pytest.mark.parametrize("options", [dict(prune="0.9,cubic,steps=5"),
                                     dict(prune="2:4,steps=4", quantize="int8")], ids=str)
def test_resumed_steps_have_the_same_bits(options, tmp_path):
    first = compiled(**options)
    train(first, 3)
    first.save(tmp_path / "state")
    more = train(first, 3, seed=2)
    again = compiled(**options)
    again.load(tmp_path / "state")
    assert train(again, 3, seed=2) == more
    assert same_bits(snapshot(again), snapshot(first))
    other = compiled(mesh={"dp": 2}, plan="zero1", **options)
    other.load(tmp_path / "state")
    assert train(other, 3, seed=2) == pytest.approx(more, rel=1e-4)


def test_masks_survive_a_change_of_mesh(tmp_path):
    first = compiled(prune="0.5", mesh={"dp": 2}, plan="zero3")
    train(first, 3)
    first.save(tmp_path / "state")
    before = {name: weight == 0 for name, weight in weights(first).items()}
    again = compiled(prune="0.5", mesh={"tp": 2}, plan="megatron")
    again.load(tmp_path / "state")
    train(again, 3, seed=2)
    for name, weight in weights(again).items():
        assert torch.equal(weight == 0, before[name]), name


def test_masks_are_those_of_pytorch():
    """After a step of learning rate 0."""
    rate = cleave.optim.SGD(lr=0.0)
    for prune in ("0.3", "2:4"):
        step = compiled(optimizer=rate, prune=prune)
        dense = weights(step)
        train(step, 1)
        for name, weight in weights(step).items():
            linear = torch.nn.Linear(*reversed(dense[name].shape), bias=False)
            linear.weight.data = dense[name].reshape(linear.weight.shape).clone()
            if prune == "2:4":
                judge = WeightNormSparsifier(sparsity_level=1.0, sparse_block_shape=(1, 4),
                                             zeros_per_block=2)
                model = torch.nn.Sequential(linear)
                judge.prepare(model, [{"tensor_fqn": "0.weight"}])
                judge.step()
                judge.squash_mask()
            else:
                torch.nn.utils.prune.l1_unstructured(linear, "weight", amount=float(prune))
            assert torch.equal(weight.reshape(linear.weight.shape), linear.weight.detach()), name


def test_quantized_losses_and_gradients_are_those_of_pytorch():
    """Of fake quantization, and of its gradient, after a step of SGD."""
    from cleave.exporting import _weights

    step = compiled(optimizer=cleave.optim.SGD(lr=1.0), quantize="int8")
    ids = batches(1)[0]
    model = network()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    own = {name: p for name, p in model.named_parameters()}
    rounded = {}
    for name, inputs in _weights(step).items():
        parameter = own[name]
        axis = 1 - inputs[0]
        scale = parameter.detach().abs().amax(dim=inputs) / 127
        rounded[name] = torch.fake_quantize_per_channel_affine(
            parameter, scale, torch.zeros_like(scale, dtype=torch.int32), axis, -127, 127)
    loss = torch.func.functional_call(model, rounded, (ids, ids))[0]
    loss.backward()
    found = step.evaluate(ids, ids)
    assert float(found) == pytest.approx(loss.item(), rel=1e-5)
    assert float(step(ids, ids)) == pytest.approx(loss.item(), rel=1e-5)
    state = step.state_dict()
    for name, parameter in own.items():
        moved = start[name] - state[name]
        torch.testing.assert_close(moved, parameter.grad, rtol=1e-3, atol=2e-6, msg=name)


@pytest.mark.parametrize("options", [dict(), dict(precision="bf16"), dict(mesh={"tp": 2}, plan="megatron"),
                                     dict(mesh={"dp": 2}, plan="zero3"), dict(prune="2:4")], ids=str)
def test_losses_fall_with_rounded_weights(options):
    step = compiled(quantize="int8", **options)
    ids = batches(1)[0]
    losses = [float(step(ids, ids)) for _ in range(20)]
    assert losses[-1] < losses[0] - 0.5


def test_refusals():
    for prune, why in (("3:2", "the pattern of groups is 2:4"),
                       ("0.5,linear", "unknown schedule 'linear'")):
        with pytest.raises(cleave.CompileError, match=why):
            compiled(prune=prune)
    with pytest.raises(cleave.CompileError, match="unknown quantization 'int4'; there is int8"):
        compiled(quantize="int4")
    with pytest.raises(cleave.CompileError, match="precision fp8 rounds"):
        compiled(quantize="int8", precision="fp8")
    with pytest.raises(ValueError, match="there are int8, sparse, bf16"):
        cleave.export(compiled(), "int4", "/dev/null")
    with pytest.raises(TypeError, match="step is str, not what cleave.compile returned"):
        cleave.export("step", "int8", "/dev/null")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_exported(value, tmp_path):
    step = compiled()
    state = step.state_dict()
    name = next(name for name in state if name.endswith("query.weight"))
    state[name] = state[name].clone()
    state[name].view(-1)[3] = value
    step.load_state_dict(state)
    with pytest.raises(ValueError, match=f"'{name}' has elements that are not finite"):
        cleave.export(step, "int8", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_int8_is_what_pytorch_reads(tmp_path):
    """Codes and scales give what PyTorch's own quantization gives, and outputs of a linear are
    within the bound of rounding."""
    step = compiled()
    train(step, 3)
    path = tmp_path / "int8.safetensors"
    data = [(ids, ids) for ids in batches(2, seed=5)]
    before = snapshot(step)
    report = cleave.export(step, "int8", path, data)
    assert same_bits(snapshot(step), before)
    state, raw = step.state_dict(), load_file(path)
    with safe_open(path, "pt") as file:
        forms = json.loads(file.metadata()["cleave.forms"])
    dense = cleave.read_export(path)
    assert dense.keys() == state.keys() and set(forms) == set(weights(step))
    compressed = sum(raw[name].numel() for name in forms)
    assert sum(raw[name].nbytes for name in forms) == compressed
    generator = torch.Generator().manual_seed(3)
    for name, form in forms.items():
        weight, (dim,) = state[name], form["inputs"]
        scale = raw[name + ".scale"].squeeze(dim)
        judge = torch.fake_quantize_per_channel_affine(
            weight, scale, torch.zeros_like(scale, dtype=torch.int32), 1 - dim, -127, 127)
        # It multiplies by reciprocals, which differ where a quotient is close to a half.
        assert ((judge - dense[name]).abs() > 1e-6).float().mean() < 1e-3
        assert ((dense[name] - weight).abs() <= raw[name + ".scale"] * 0.5 * (1 + 1e-5)).all()
        x = torch.randn(5, weight.shape[dim], generator=generator).double()
        rows = [(w if dim == 1 else w.T).double() for w in (weight, dense[name])]
        error = (x @ (rows[1] - rows[0]).T).abs()
        assert (error <= x.abs().sum(1, keepdim=True) * scale.double() / 2 * (1 + 1e-5)).all()
    assert report.loss == pytest.approx(float(np.mean([float(step.evaluate(*b)) for b in data])))
    assert abs(report.loss_rise) < 0.01 and 0 < report.logits_mean_error <= report.logits_max_error
    model = network()
    model.load_state_dict(dense)


def test_zero_channels_have_the_scale_zero():
    codes, scale = quantize(torch.tensor([[0.0, 0.0], [1.0, -0.5]]), [1])
    assert codes.tolist() == [[0, 0], [127, -64]] and scale.flatten().tolist()[0] == 0


@pytest.mark.parametrize("prune, form, part", [("2:4", "2:4", 0.54), ("0.9", "mask", 0.14)])
def test_sparse_exports_have_the_same_bits(prune, form, part, tmp_path):
    step = compiled(prune=prune)
    train(step, 2)
    report = cleave.export(step, "sparse", tmp_path / "sparse.safetensors")
    assert set(report.forms.values()) == {form} and len(report.forms) == len(weights(step))
    state, raw = step.state_dict(), load_file(tmp_path / "sparse.safetensors")
    for name in report.forms:
        stored = sum(raw[name + end].nbytes for end in (".values", ".places", ".mask")
                     if name + end in raw)
        assert stored <= part * state[name].nbytes
    dense = cleave.read_export(tmp_path / "sparse.safetensors")
    assert all(torch.equal(dense[name], value) for name, value in state.items())
    assert all(error == 0 for error in report.errors.values())
    shares = [1 - np.count_nonzero(dense[name]) / dense[name].numel() for name in report.forms]
    assert f"sparsity of weights: {min(shares):.2%} to {max(shares):.2%}" in str(report)


def test_16_bit_exports_are_rounded_to_nearest(tmp_path):
    step = compiled()
    report = cleave.export(step, "bf16", tmp_path / "bf16.safetensors", [tuple(batches(1)) * 2])
    assert report.bytes * 2 == report.dense_bytes and report.exported_loss != report.loss
    dense = cleave.read_export(tmp_path / "bf16.safetensors")
    for name, value in step.state_dict().items():
        assert torch.equal(dense[name], value.bfloat16()), name


# The command ------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a module, its weights, tokens, and the program of rounded weights."""
    folder = tmp_path_factory.mktemp("export")
    assert write_model(["gpt", *"--hidden 32 --heads 4 --layers 1 --seq 16 --vocab 64 --batch 4".split(),
                        "--weights", str(folder / "gpt.safetensors"),
                        "-o", str(folder / "gpt.mlir")]) == 0
    # 10 sequences, of which the last 2 do not fill a batch, and 5 tokens more.
    np.random.default_rng(1).integers(0, 64, 165).astype(np.uint16).tofile(folder / "valid.bin")
    run_tool([tool("cleave-compile"), str(folder / "gpt.mlir"), "--quantize=int8", "--mesh=dp=2",
              "--plan=zero1", "-o", str(folder / "gpt.so")])
    return folder


def command(folder, *flags):
    result = subprocess.run(
        [sys.executable, "-m", "cleave.export", "gpt.mlir", "-o", "out.safetensors", *flags],
        cwd=folder, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and not result.stderr, result.stdout + result.stderr
    return result.stdout


def number(text, words):
    return float(re.search(words + r":? (\S+?)[ ,]", text).group(1))


def test_the_command_says_what_an_export_costs(trained):
    """Beside PyTorch, which evaluates the file, and `cleave-run`, which evaluates the artifact."""
    text = command(trained, "--weights", "gpt.safetensors", "--kind", "int8",
                   "--eval-data", "valid.bin")
    data = np.fromfile(trained / "valid.bin", np.uint16)[:160].astype(np.int64)
    ids = torch.from_numpy(data).reshape(10, 16)
    losses, logits = [], []
    for state in (load_file(trained / "gpt.safetensors"),
                  cleave.read_export(trained / "out.safetensors")):
        model = network().eval()
        model.load_state_dict({**model.state_dict(), **state})
        with torch.no_grad():
            losses.append(model(ids, ids)[0].item())
            logits.append(model(ids, ids)[1])
    assert number(text, "\nloss") == pytest.approx(losses[1], rel=2e-5)
    assert float(re.search(r"(\S+) before \(\S+%\)", text).group(1)) == pytest.approx(
        losses[0], rel=2e-5)
    error = (logits[1] - logits[0]).abs()
    assert number(text, "error of logits") == pytest.approx(error.max().item(), rel=2e-2)
    assert float(re.search(r"(\S+) in the mean", text).group(1)) == pytest.approx(
        error.mean().item(), rel=2e-2)


def test_the_command_evaluates_with_the_artifact(trained):
    """One of rounded weights, on two ranks: its export has the same loss."""
    subprocess.run([tool("cleave-run"), "gpt.so", "--weights", "gpt.safetensors", "--data", "valid.bin",
                    "--eval-data", "valid.bin", "--steps=1", "--lr=0", "--log=log.jsonl",
                    "--save-every=1"], cwd=trained, check=True, capture_output=True)
    expected = json.loads((trained / "log.jsonl").read_text().splitlines()[-1])["eval_loss"]
    text = command(trained, "--weights", "checkpoints/step-1", "--kind", "int8", "--artifact", "gpt.so",
                   "--eval-data", "valid.bin")
    assert "(+0.000%)" in text or "(-0.000%)" in text
    assert number(text, "\nloss") == pytest.approx(expected, rel=1e-5)


def test_mistakes_of_the_command(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    weights = ("--weights", "gpt.safetensors", "--kind", "int8")
    np.zeros(10, np.uint16).tofile(trained / "short.bin")
    run_tool([tool("cleave-compile"), str(write_other(trained)), "-o", str(trained / "other.so")])
    for flags, code, message in [
            ((*weights, "--eval-data", "valid.txt"), 1, "valid.txt: cannot read: No such file"),
            ((*weights, "--eval-data", "short.bin"), 1,
             "short.bin: 10 tokens do not fill one sequence of 16"),
            ((*weights, "--artifact", "none.so"), 1, "none.so: no such file"),
            ((*weights, "--artifact", "gpt.mlir"), 1, "gpt.mlir: not an artifact"),
            ((*weights, "--artifact", "other.so"), 1, "other.so: is not compiled from gpt.mlir"),
            (("--weights", "valid.bin", "--kind", "int8"), 1, "valid.bin: not a safetensors file"),
            ((*weights, "-o", "no/file"), 1, "cannot write 'no/file': there is no folder"),
            ((*weights, "-o", "gpt.mlir"), 1, "'gpt.mlir' cannot be both read and written"),
            ((*weights, "--label-shift", "1"), 2, "--label-shift needs --eval-data"),
            (("--weights", "gpt.safetensors", "--kind", "int4"), 2, "invalid choice: 'int4'")]:
        try:
            assert export_main(["gpt.mlir", "-o", "out.safetensors", *flags]) == code
        except SystemExit as ended:
            assert ended.code == code
        assert message in capsys.readouterr().err


def write_other(folder):
    path = folder / "other.mlir"
    assert write_model(["t5", *"--hidden 32 --heads 4 --layers 1 --seq 16 --vocab 64".split(),
                        "-o", str(path)]) == 0
    return path
