# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The loss of a data set is the mean over all labels that count, whatever each
batch, or each micro-batch of it, ignores."""

import json
import os
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
"""


def rows(logits, labels, **settings):
    return F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), **settings)


def classes(like):
    """A weight for each class."""
    return torch.linspace(0.5, 2, VOCAB, dtype=like.dtype)


#: Losses of (logits, labels); in all but the last, labels that are PAD do not count.
LOSSES = {
    "same": lambda y, t: rows(y, t, ignore_index=PAD),
    "shifting": lambda y, t: 2 * rows(y[:, :-1], t[:, 1:], ignore_index=PAD),
    "weighted": lambda y, t: rows(y, t, ignore_index=PAD, weight=classes(y)),
    "mean": lambda y, t: rows(y, t, reduction="none").mean(),
}


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Embedding(VOCAB, 16), torch.nn.Linear(16, VOCAB))


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
    """What `cleave-run` says of `data`: its output and the loss."""
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
    _, found = evaluate(folder, loss, ids, parts=parts)
    assert found == pytest.approx(expected(loss, ids, ids), rel=2e-6)


def test_the_tool_shifts_labels(folder):
    """Labels are the next tokens: the last label of a sequence is the first of the next one."""
    tokens = np.append(sequences(10).reshape(-1), 1)
    _, found = evaluate(folder, "same", tokens, "--label-shift", 1)
    ids, labels = (tokens[i:i + 80].reshape(10, LENGTH) for i in (0, 1))
    assert found == pytest.approx(expected("same", ids, labels), rel=2e-6)


def test_a_batch_of_ignored_labels_counts_nothing(folder):
    ids = sequences(3 * BATCH)
    ids[BATCH:2 * BATCH] = PAD
    _, found = evaluate(folder, "same", ids)
    assert found == pytest.approx(expected("same", ids, ids), rel=2e-6)
    text, found = evaluate(folder, "same", ids[BATCH:2 * BATCH])
    assert "every label is ignored" in text and found is None


def test_a_mean_over_everything_takes_whole_batches(folder):
    """Where ignored labels count as zeros, a padded batch would have another mean."""
    ids = sequences(10)
    text, found = evaluate(folder, "mean", ids)
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
