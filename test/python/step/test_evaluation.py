# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The loss of a data set is the mean over all labels that count, whatever each
batch, or each micro-batch of it, ignores."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cleave
from cleave.testing.tools import tool
from cleave.trace.__main__ import main as trace_main
from training_support import compile_case, family

BATCH, LENGTH, VOCAB, PAD = 4, 8, 32, 0

SOURCE = """
import sys, torch
import torch.nn.functional as F
sys.path[:0] = {path!r}
from test_evaluation import BATCH, LENGTH, VOCAB, LOSSES, net

def inputs():
    return torch.ones(BATCH, LENGTH, dtype=torch.int64), torch.ones(BATCH, LENGTH, dtype=torch.int64)

def same():
    return net(), inputs(), LOSSES["same"]

def shifting():
    return net(), inputs(), LOSSES["shifting"]

def weighted():
    return net(), inputs(), LOSSES["weighted"]

def mean():
    return net(), inputs(), LOSSES["mean"]

def flat():
    return net(zero=True), inputs(), LOSSES["shifting"]

def rolled():
    return net(), inputs(), LOSSES["rolled"]

def unmasked():
    return net(), inputs(), LOSSES["unmasked"]

def first():
    return net(), inputs(), LOSSES["first"]

def flat_mean():
    return net(zero=True), inputs(), LOSSES["mean"]
"""


def rows(logits, labels, **settings):
    return F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), **settings)


def classes(like):
    """A weight for each class."""
    return torch.linspace(0.5, 2, VOCAB, dtype=like.dtype)


def rolled(logits, labels):
    """By labels that are moved by one, the last of which is none."""
    moved = labels.roll(-1, 1)
    return rows(logits, torch.cat([moved[:, :-1], torch.full_like(moved[:, -1:], PAD)], 1),
                ignore_index=PAD)


#: Losses of (logits, labels); labels that are PAD do not count in those with `ignore_index`.
LOSSES = {
    "same": lambda y, t: rows(y, t, ignore_index=PAD),
    "shifting": lambda y, t: 2 * rows(y[:, :-1], t[:, 1:], ignore_index=PAD),
    "weighted": lambda y, t: rows(y, t, ignore_index=PAD, weight=classes(y)),
    "mean": lambda y, t: rows(y, t, reduction="none").mean(),
    "rolled": rolled,
    "unmasked": lambda y, t: rows(y[:, :-1], t[:, 1:], reduction="none").mean(),
    "first": lambda y, t: (y * t[:, 2:].float().mean()).mean(),
}


def net(zero=False):
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 16), torch.nn.Linear(16, VOCAB))
    if zero:  # Of which each label has the same loss.
        torch.nn.init.zeros_(net[1].weight)
        torch.nn.init.zeros_(net[1].bias)
    return net


def sequences(count, seed=1):
    """Sequences that hold ever more of PAD, so that no two batches are alike."""
    ids = np.random.default_rng(seed).integers(1, VOCAB, (count, LENGTH))
    for i in range(count):
        ids[i, : (i * LENGTH) // count] = PAD
    return ids


def expected(loss, ids, labels):
    """PyTorch's loss of all sequences as one batch, in f64."""
    model = net().double()
    with torch.no_grad():
        return float(LOSSES[loss](model(torch.as_tensor(ids)), torch.as_tensor(labels)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluation")
    (path / "models.py").write_text(SOURCE.format(path=sys.path))
    return path


def run(name, *arguments, cwd):
    result = subprocess.run([tool(name), *map(str, arguments)], cwd=cwd, capture_output=True,
                            text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def evaluate(folder, loss, data, *flags, parts=1):
    """The evaluation of `data` by `cleave-run`: its output and the loss."""
    source = f"{folder / 'models.py'}:{loss}"
    assert trace_main([source, "-o", str(folder / "net.mlir")]) == 0
    run("cleave-compile", "net.mlir", "--micro-batches", parts, "-o", "net.so", cwd=folder)
    np.save(folder / "train.npy", sequences(2 * BATCH).reshape(-1).astype(np.uint16))
    np.save(folder / "val.npy", data.reshape(-1).astype(np.uint16))
    text = run("cleave-run", "net.so", "--weights", "net.safetensors", "--data", "train.npy",
               "--eval-data", "val.npy", "--steps", 1, "--lr", 0, "--threads", 2,
               "--log", "log.jsonl", *flags, cwd=folder)
    last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    return text, last.get("eval_loss")


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("loss", ["same", "shifting", "weighted"])
def test_the_tool_weighs_by_labels_that_count(folder, loss, parts):
    """Ten sequences in batches of four: the last batch is short, too."""
    ids = sequences(10)
    given = () if loss == "shifting" else ("--label-shift", 0)
    _, found = evaluate(folder, loss, ids, *given, parts=parts)
    assert found == pytest.approx(expected(loss, ids, ids), rel=2e-6)


def test_the_tool_shifts_labels(folder):
    """Labels are the next tokens: the last label of a sequence is the first of the next one."""
    tokens = np.append(sequences(10).reshape(-1), 1)
    _, found = evaluate(folder, "same", tokens, "--label-shift", 1)
    ids, labels = (tokens[i:i + 80].reshape(10, LENGTH) for i in (0, 1))
    assert found == pytest.approx(expected("same", ids, labels), rel=2e-6)


SHIFTS = {"same": "does not shift", "weighted": "does not shift", "mean": "does not shift",
          "shifting": "", "flat": "", "rolled": "", "unmasked": "",
          "first": "does not tell", "flat_mean": "does not tell"}


@pytest.mark.parametrize("loss", SHIFTS)
def test_a_loss_that_does_not_shift_its_labels_needs_the_choice(folder, loss):
    """By `cleave-run` and by `cleave.export`, also where every label has the same loss."""
    assert trace_main([f"{folder / 'models.py'}:{loss}", "-o", str(folder / "net.mlir")]) == 0
    run("cleave-compile", "net.mlir", "--threads", 1, "-o", "net.so", cwd=folder)
    np.save(folder / "train.npy", sequences(2 * BATCH).reshape(-1).astype(np.uint16))
    commands = [[tool("cleave-run"), "net.so", "--weights", "net.safetensors", "--data",
                 "train.npy", "--steps=1"],
                [sys.executable, "-m", "cleave.export", "net.mlir", "--weights",
                 "net.safetensors", "--artifact", "net.so", "--kind", "bf16", "--eval-data",
                 "train.npy", "-o", "out.safetensors"]]
    for command in commands:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        if not SHIFTS[loss]:
            assert result.returncode == 0, result.stderr
            said = "labels: the tokens themselves, which the loss shifts"
            assert command is not commands[0] or said in result.stdout
            continue
        assert result.returncode == 1 and "--label-shift 1" in result.stderr, result.stderr
        assert command is not commands[0] or SHIFTS[loss] in result.stderr
        assert subprocess.run([*command, "--label-shift=0"], cwd=folder,
                              capture_output=True).returncode == 0


def test_a_resumed_run_has_the_labels_of_its_checkpoint(folder):
    assert trace_main([f"{folder / 'models.py'}:same", "-o", str(folder / "net.mlir")]) == 0
    run("cleave-compile", "net.mlir", "--threads", 1, "-o", "net.so", cwd=folder)
    np.save(folder / "train.npy", sequences(2 * BATCH).reshape(-1).astype(np.uint16))
    flags = ["net.so", "--data", "train.npy", "--save-every=1", "--save-dir=run"]
    run("cleave-run", *flags, "--random-init", "--steps=1", "--label-shift=1", cwd=folder)
    text = run("cleave-run", *flags, "--resume=run", "--steps=2", cwd=folder)
    assert "labels: the next tokens" in text and "saved run/step-2" in text


def test_a_batch_of_ignored_labels_counts_nothing(folder):
    ids = sequences(3 * BATCH)
    ids[BATCH:2 * BATCH] = PAD
    _, found = evaluate(folder, "same", ids, "--label-shift", 0)
    assert found == pytest.approx(expected("same", ids, ids), rel=2e-6)
    text, found = evaluate(folder, "same", ids[BATCH:2 * BATCH], "--label-shift", 0)
    assert "every label is ignored" in text and found is None


def test_a_mean_over_everything_takes_whole_batches(folder):
    """Where ignored labels count as zeros, a padded batch would have another mean."""
    ids = sequences(10)
    text, found = evaluate(folder, "mean", ids, "--label-shift", 0)
    assert "the last 2 sequences do not fill a batch and are not used" in text
    assert found == pytest.approx(expected("mean", ids[:8], ids[:8]), rel=2e-6)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_step_weighs_over_micro_batches(parts):
    """The rows of a batch ignore different numbers of labels; so do the batches."""
    case = family("gpt2")
    step = compile_case(case, cleave.AdamW(), micro_batches=parts)
    model = case.build().eval().double()
    found, losses, counts = [], [], []
    for ids, labels in case.batches[:2]:
        labels = labels.clone()
        for i in range(len(labels)):
            labels[i, 1:1 + 2 * i + len(losses)] = -100
        found.append(step.evaluate(ids, labels))
        counts.append(int((labels[:, 1:] != -100).sum()))
        with torch.no_grad():
            losses.append(float(model(input_ids=ids, labels=labels, use_cache=False).loss))
    assert [e.weight for e in found] == counts and counts[0] != counts[1]
    np.testing.assert_allclose(found, losses, rtol=1e-5)


def test_a_step_without_counted_labels_has_no_weight():
    module = torch.nn.Linear(4, 1)
    x = torch.randn(4, 4)
    step = cleave.compile(module, (x, torch.randn(4, 1)), F.mse_loss)
    assert step.evaluate(x, torch.zeros(4, 1)).weight is None
