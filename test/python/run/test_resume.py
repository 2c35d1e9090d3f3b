# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The runs that `cleave-run --resume` continues, on how many ranks, and what it compares with the run
that a checkpoint is of."""

import os
import subprocess

import numpy
import tokenizers

from cleave.testing.tools import run_tool, tool
from cleave.trace import trace
from rank_runs import losses, run as run_ranks
from run_support import ARTIFACT, TOOL, folder, metrics, pytestmark, run, train  # noqa: F401
from training_support import gpt2, named_tokens


def test_resumed_run_has_the_same_bits(folder):
    flags = ["--lr", 3, "--lr-schedule", "cosine", "--warmup", 3, "--steps", 20]
    flags += ["--save-every", 10, "--seed", 5]
    train(*flags, "--save-dir", "whole", "--log", "whole.jsonl")
    train(*flags, "--save-dir", "part", "--stop-at", 10, "--log", "part.jsonl")
    assert os.listdir("part") == ["step-10"]
    flags = flags[:-2]
    train(*flags, "--save-dir", "part", "--log", "part.jsonl", start="--resume=part")
    for name in ("model.safetensors", "optimizer.safetensors", "training.json"):
        whole = (folder / "whole/step-20" / name).read_bytes()
        assert whole == (folder / "part/step-20" / name).read_bytes()
    losses = [[line["loss"] for line in metrics(f)] for f in ("whole.jsonl", "part.jsonl")]
    assert losses[0] == losses[1]


def test_keep_counts_across_runs(folder):
    flags = ["--save-every", 1, "--save-dir", "c", "--keep", 2]
    train("--steps", 4, *flags)
    assert sorted(os.listdir("c")) == ["step-3", "step-4"]
    train("--steps", 5, *flags, start="--resume=c")
    assert sorted(os.listdir("c")) == ["step-4", "step-5"]
    # What lies after an earlier step is no older checkpoint.
    os.rename("c/step-4", "step-4")
    train("--steps", 6, *flags, start="--resume=c")
    os.rename("step-4", "c/step-4")
    train("--steps", 5, "--stop-at", 5, *flags[:-1], 1, start="--resume=c/step-4")
    assert sorted(os.listdir("c")) == ["step-5", "step-6"]


def test_changes_are_said(folder):
    flags = ["--save-every", 2, "--save-dir", "c"]
    train("--steps", 2, "--lr", 1, *flags)
    said = train("--steps", 4, "--lr", 1, *flags, start="--resume=c").stdout
    assert "changed since the checkpoint:\n  steps: 4, was 2\nresumed" in said
    said = train("--steps", 6, "--lr", 0.5, "--lr-schedule", "cosine", "--warmup", 1, *flags,
                 start="--resume=c").stdout
    for line in ('lr: 0.5, was 1', 'lr_schedule: "cosine", was "constant"', "warmup: 1, was 0"):
        assert f"  {line}\n" in said
    same = ["--steps", 6, "--lr", 0.5, "--lr-schedule", "cosine", "--warmup", 1, *flags]
    assert "changed" not in train(*same, start="--resume=c").stdout
    # The same tokens at another place are the same data.
    os.rename("train.bin", "moved.bin")
    result = run("--resume=c", "--data", "moved.bin", *same)
    assert "changed" not in result.stdout
    tokens = numpy.fromfile("moved.bin", dtype=numpy.uint16)
    tokens[::-1].tofile("train.bin")
    result = train(*same, start="--resume=c", code=1)
    assert "c/step-6: the run had other data" in result.stderr
    said = train(*same[:1], 8, *same[2:], "--accept-changes", start="--resume=c").stdout
    assert '  data: "train.bin", was "train.bin"\n' in said
    # A flag of labels.
    result = train(*same[:1], 9, *same[2:], "--label-shift", 0, start="--resume=c", code=1)
    assert "the run had label_shift 1, and this one has 0" in result.stderr
    result = train("--steps", 2, "--accept-changes", code=2)
    assert "--accept-changes needs --resume" in result.stderr


def test_checkpoints_serve_any_number_of_ranks(folder, monkeypatch):
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    flags = ["--data", "train.bin", "--lr", "2", "--seed", "5", "--steps", 20, "--save-every", 10]
    run_ranks("--random-init", *flags, "--save-dir", "two", "--stop-at", 10)
    # One rank goes on from there, and gives back what it read.
    run_ranks("--resume=two", *flags, "--save-dir", "one", "--stop-at", 10, artifact=ARTIFACT)
    run_ranks("--resume=two", *flags, "--save-dir", "one", "--log", "one.log", artifact=ARTIFACT)
    run_ranks("--resume=two", *flags, "--save-dir", "two", "--log", "two.log")
    numpy.testing.assert_allclose(losses("one.log"), losses("two.log"), rtol=1e-5)


def test_settings_of_the_program_are_compared(folder):
    """What the optimizer was compiled with is said where it differs; another optimizer is
    refused."""
    (folder / "gpt2.mlir").write_text(trace(gpt2(), named_tokens(batch=4)).mlir)
    for name, flags in (("a", ["--max-grad-norm=1"]), ("b", ["--max-grad-norm=0.5", "--weight-decay=0.2"]),
                        ("c", ["--optimizer=sgd", "--momentum=0.9"])):
        run_tool([tool("cleave-compile"), "gpt2.mlir", *flags, "--threads=1", "-o", f"{name}.so"])

    def go_on(name, start):
        return subprocess.run([TOOL, f"./{name}.so", start, "--data=train.bin", "--save-every=1",
                               "--save-dir=s", "--steps=1", "--threads=1"],
                              capture_output=True, text=True, timeout=120)

    assert go_on("a", "--random-init").returncode == 0
    assert "changed" not in go_on("a", "--resume=s").stdout
    said = go_on("b", "--resume=s").stdout
    for line in ("optimizer max_grad_norm: 0.5, was 1", "optimizer weight_decay: 0.2, was 0.01"):
        assert f"  {line}\n" in said
    result = go_on("c", "--resume=s")
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
    assert "s/step-1: the run had optimizer kind \"adamw\", and this one has \"sgd\"" in result.stderr
    assert os.listdir("s") == ["step-1"]


def test_tokens_of_another_tokenizer_are_refused(folder):
    """The ids would mean other text; their number may be the same."""
    (folder / "gpt2.mlir").write_text(trace(gpt2(), named_tokens(batch=4)).mlir)
    run_tool([tool("cleave-compile"), "gpt2.mlir", "--threads=1", "-o", "a.so"])
    (folder / "text.txt").write_text("abcdefgh " * 100)
    for name, first in (("one", 3), ("two", 4)):
        letters = {letter: first + i for i, letter in enumerate("abcdefgh ")}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters | {"?": 0}, unk_token="?"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
        tokenizer.save(f"{name}.json")

    def go_on(name, *flags):
        return subprocess.run([TOOL, "./a.so", *flags, "--data=text.txt", f"--tokenizer={name}.json",
                               "--save-every=1", "--save-dir=s", "--threads=1"],
                              capture_output=True, text=True, timeout=120)

    first = go_on("one", "--random-init", "--steps=1")
    assert first.returncode == 0, first.stderr
    result = go_on("two", "--resume=s", "--steps=2")
    assert result.returncode == 1
    assert "s/step-1: the run had tokenizer" in result.stderr
    assert "tokens would mean other text" in result.stderr
    assert go_on("one", "--resume=s", "--steps=2").returncode == 0
