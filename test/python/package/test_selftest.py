# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`python -m cleave.demo` and `python -m cleave.selftest`, which an installed package is tried by."""

import os
import re
import subprocess
import sys

import pytest

from cleave import demo, selftest


def run(*words, status=0):
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True,
                          env={**os.environ, "CLEAVE_CACHE": "off"})
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_demo_trains_each_layout_alike():
    said = run("cleave.demo", "--steps", "3")
    rows = re.findall(r"^ +(\d) +(\d\.\d+) +(\d\.\d+) +(\d\.\d+)$", said, re.M)
    assert [row[0] for row in rows] == ["1", "2", "3"], said
    for row in rows:
        one, two, three = map(float, row[1:])
        assert one == pytest.approx(two, rel=1e-4) and one == pytest.approx(three, rel=1e-4)
    assert "MiB of memory a device" in said and "position 1 |" in said
    assert "4 devices (dp=2, tp=2)" in said and "largest relative difference" in said


def test_demo_says_that_losses_differ(monkeypatch, capsys):
    class Step:
        def explain(self):
            return ""

        def schedule(self):
            return ""

    def train(name, options, batches, seed):
        return Step(), [3.0, 2.0 if options else 2.01]
    monkeypatch.setattr(demo, "train", train)
    assert demo.main(["--steps", "2"]) == 1
    assert "losses of the layouts differ" in capsys.readouterr().err


def test_selftest_passes_of_each_kind():
    for words, count in (["op: s", 5], ["dp=2, pp=2", 1], ["checkpoint", 1], ["interpreter", 1]):
        said = run("cleave.selftest", "--filter", words)
        assert said.splitlines()[-1] == f"{count} passed, 0 failed", said


def test_selftest_fails_of_a_wrong_gradient(monkeypatch, capsys):
    import torch

    class Wrong(torch.autograd.Function):
        """Eager PyTorch's gradient is twice that of the compiled function."""
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, dy):
            return dy * 2.0

    def twice(a):
        return a * 1.0 if torch.compiler.is_exporting() else Wrong.apply(a)
    monkeypatch.setattr(selftest, "CHECKS", {
        "right": lambda: selftest.check_op(lambda a: a * 1.0, (3, 4)),
        "wrong": lambda: selftest.check_op(twice, (3, 4))})
    assert selftest.main([]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "1 passed, 1 failed", said.err
    assert "the gradient of operands.0 differs by" in said.err


def test_words_are_refused_and_explained():
    assert "usage: python -m cleave.demo" in run("cleave.demo", "--help")
    assert "usage: python -m cleave.selftest" in run("cleave.selftest", "--help")
    run("cleave.demo", "--steps", "0", status=2)
    run("cleave.selftest", "--filter", "nothing of this name", status=2)
