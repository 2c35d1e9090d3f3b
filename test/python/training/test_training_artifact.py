# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From a traced file to an artifact that trains, by the command-line tools."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.torch import load_file

import cleave
from cleave.testing.tools import tool
from cleave.trace.__main__ import main as trace_main
from training_support import Case, compile_case, family, gpt2, tokens

SOURCE = """
import sys
sys.path[:0] = {path!r}
from training_support import gpt2, named_tokens

def build():
    return gpt2(), named_tokens()

def dropping():
    return gpt2(resid_pdrop=0.1, attn_pdrop=0.1), named_tokens()
"""

#: Flags and the optimizer they stand for.
FLAGS = ["--optimizer", "adamw", "--weight-decay", "0.1", "--no-decay", "ndim<2", "--max-grad-norm", "1.0"]


def optimizer(lr):
    return cleave.AdamW(lr=lr, weight_decay=0.1, no_decay=lambda name, p: p.ndim < 2,
                        max_grad_norm=1.0)


def command(name, *arguments, cwd, code=0):
    result = subprocess.run([tool(name), *map(str, arguments)], cwd=cwd, capture_output=True,
                            text=True, timeout=300)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds models, weights and data: four sequences, which fill one batch."""
    path = tmp_path_factory.mktemp("artifact")
    source = path / "models.py"
    source.write_text(SOURCE.format(path=sys.path))
    for name in ("build", "dropping"):
        assert trace_main([f"{source}:{name}", "-o", str(path / f"{name}.mlir")]) == 0
    ids, _ = tokens()
    (path / "good.mlir").write_text(MINIMAL)
    np.save(path / "data.npy", ids.numpy().reshape(-1).astype(np.uint16))
    return path


def train(folder, artifact, *flags, code=0, weights="build.safetensors"):
    command("cleave-run", artifact, "--weights", weights, "--data", "data.npy", "--threads", 2,
            "--log", "log.jsonl", *flags, cwd=folder, code=code)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    (folder / "log.jsonl").unlink()
    return lines


@pytest.mark.parametrize("name, parts", [("build", 1), ("build", 2), ("dropping", 4)])
def test_artifact_trains_as_the_step_does(folder, name, parts):
    command("cleave-compile", f"{name}.mlir", *FLAGS, "--micro-batches", parts, "-o", "net.so",
            "--report", "report.json", cwd=folder)
    saved = folder / f"saved-{name}-{parts}"
    lines = train(folder, "net.so", "--lr", 1e-2, "--lr-schedule", "cosine", "--warmup", 3,
                  "--steps", 12, "--seed", 7, "--save-every", 12, "--save-dir", saved,
                  weights=f"{name}.safetensors")
    assert [line["step"] for line in lines] == list(range(1, 13))
    rates = dict(resid_pdrop=0.1, attn_pdrop=0.1) if name == "dropping" else {}
    case = Case(lambda: gpt2(**rates), [tokens()])
    step = compile_case(case, optimizer(cleave.cosine(1e-2, warmup=3, steps=12)),
                        micro_batches=parts, seed=7)
    losses = [step(*case.batches[0]) for _ in range(12)]
    np.testing.assert_allclose([line["lr"] for line in lines], [loss.lr for loss in losses],
                               rtol=1e-12)
    assert lines[-1]["loss"] < lines[0]["loss"]
    saved = load_file(saved / "step-12/model.safetensors")
    assert saved.keys() == load_file(folder / f"{name}.safetensors").keys()
    if name == "build":
        # The order of the samples is the data's; the loss does not depend on it.
        np.testing.assert_allclose([line["loss"] for line in lines], losses, rtol=1e-5)
        np.testing.assert_allclose([line["grad_norm"] for line in lines],
                                   [loss.grad_norm for loss in losses], rtol=1e-4)
        start = gpt2().state_dict()
        for key, value in step.state_dict().items():
            # A third of this bias has no gradient but rounding errors.
            if key in saved and not key.endswith("c_attn.bias"):
                error = float((saved[key] - value).norm())
                assert error <= 1e-3 * float((value - start[key]).norm()), key
    report = json.loads((folder / "report.json").read_text())
    assert report["memory"]["arena"] == step.report()["memory"]["arena"]


def test_compiled_object_runs_in_python_as_in_the_tool(folder):
    """An artifact holds the same program as the one compiled in process."""
    from cleave import _runtime
    command("cleave-compile", "build.mlir", *FLAGS, "-o", "same.so", cwd=folder)
    session = _runtime.open(str(folder / "same.so"))
    session.load_weights(str(folder / "build.safetensors"))
    case = family("gpt2")
    step = compile_case(case, optimizer(1e-3))
    kinds = {"f32": np.float32, "i64": np.int64}
    for number, batch in enumerate(case.batches, 1):
        for name, value in zip(("input_ids", "labels"), batch):
            assert session.write(name, value.numpy().reshape(-1).view(np.uint8)) == ""
        session.write("lr", np.array([1e-3], np.float32).view(np.uint8))
        assert session.run("train", 0, number) == ""
        loss = step(*batch)
        assert float(session.read("loss").view(np.float32)[0]) == float(loss)
    for facts in session.tensors():
        if facts["role"] == "parameter":
            ours = session.read(facts["name"]).view(kinds[facts["dtype"]])
            expected = step.state_dict()[facts["name"]].numpy().reshape(-1)
            assert np.array_equal(ours, expected), facts["name"]


# ------------------------------------------------------------------- bad models

MINIMAL = """func.func @loss(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<4xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %y = graph.mul %w, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s = graph.reduce sum %y {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  return %s : tensor<f32>
}
"""


def test_minimal_model_compiles(folder):
    """The model that the bad ones below are made from is a good one."""
    result = command("cleave-compile", "good.mlir", "-o", "good.so", cwd=folder)
    assert result.stderr == "" and (folder / "good.so").exists()


@pytest.mark.parametrize("change", [
    lambda s: s[: len(s) // 2],
    lambda s: "not a model",
    lambda s: s.replace("graph.mul", "graph.no_such_op"),
    lambda s: s.replace("graph.mul", "nothing.mul"),
    lambda s: s.replace("-> tensor<4xf32>", "-> tensor<5xf32>"),
    lambda s: s.replace("%w, %x", "%w, %z"),
    lambda s: s.replace("@loss", "@less"),
    lambda s: "",
    lambda s: s.replace('graph.role = "parameter"', 'graph.role = "wrong"'),
    lambda s: s.replace('graph.name = "x"', 'graph.name = "w"'),
    lambda s: s.replace("dims = array<i64: 0>", "dims = array<i64: 1>"),
    lambda s: s.replace("tensor<4x", "tensor<?x"),
    lambda s: s.replace(', graph.role = "parameter"', ', graph.role = "parameter", graph.frozen'),
    lambda s: s.replace("%w: tensor<4xf32>", "%w: tensor<4xf16>").replace(
        "mul %w, %x : (tensor<4xf32>", "mul %w, %x : (tensor<4xf16>"),
], ids=["half", "text", "op", "dialect", "type", "value", "entry", "empty", "role", "twice", "dim",
        "dynamic", "nothing-to-train", "mixed"])
def test_bad_model(folder, change):
    (folder / "bad.mlir").write_text(change(MINIMAL))
    result = command("cleave-compile", "bad.mlir", "-o", "bad.so", "--report", "bad.json",
                     cwd=folder, code=1)
    errors = [line for line in result.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1, result.stderr
    assert re.match(r"bad\.mlir:\d+:\d+: error: .{10}", errors[0]), result.stderr
    assert not {"bad.so", "bad.json"} & set(os.listdir(folder))
    assert not [f for f in os.listdir(folder) if f.startswith("bad.so")]


@pytest.mark.parametrize("phase", ["model", "step", "placed", "local", "scheduled", "executable",
                                   "llvm", "cuda"])
def test_every_phase_is_printed(folder, phase):
    text = command("cleave-compile", "good.mlir", f"--emit={phase}", cwd=folder).stdout
    word = {"llvm": "define ", "cuda": "__global__", "model": "@loss"}.get(phase, "@train")
    assert word in text
