# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What `cleave-run --resume` compares with the run that a checkpoint is of."""

import os
import subprocess

import tokenizers

from cleave.testing.tools import run_tool, tool
from cleave.trace import trace
from test_cleave_run import TOOL, folder, pytestmark  # noqa: F401
from training_support import gpt2, tokens


def test_settings_of_the_program_are_compared(folder):
    """What the optimizer was compiled with is said where it differs; another optimizer is
    refused."""
    (folder / "gpt2.mlir").write_text(trace(gpt2(), tokens(batch=4)).mlir)
    for name, flags in (("a", ["--clip=1"]), ("b", ["--clip=0.5", "--weight-decay=0.2"]),
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
    (folder / "gpt2.mlir").write_text(trace(gpt2(), tokens(batch=4)).mlir)
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
