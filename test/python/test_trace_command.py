# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What tracing reports, and the commands around it."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

import cleave
import cleave.trace
from cleave.trace import TraceError, UnsupportedError
from cleave.trace.__main__ import main
from trace_support import entry_text, verify

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.second = nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.first(x) + self.second(x) * self.shift

def build():
    torch.manual_seed(0)
    return Net(), (torch.randn(2, 4), torch.tensor([0, 2])), nn.functional.cross_entropy

def on_meta():
    with torch.device("meta"):
        return Net(), (torch.randn(2, 4), torch.zeros(2, dtype=torch.int64)), nn.functional.cross_entropy

def unsupported():
    class Bad(Net):
        def forward(self, x):
            return torch.linalg.svdvals(super().forward(x))
    return Bad(), (torch.randn(2, 4),), lambda y: y.sum()

def wrong():
    return 3

def broken():
    raise KeyError("weights")
"""


def command(*arguments, cwd, module="cleave.trace"):
    package = os.path.dirname(os.path.dirname(cleave.__file__))
    return subprocess.run([sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)],
                          cwd=cwd, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": package})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("command")
    (path / "source.py").write_text(SOURCE)
    return path


def test_writes_module_and_weights(folder):
    result = command("source.py:build", "-o", "net.mlir", cwd=folder)
    assert result.returncode == 0, result.stderr
    text = (folder / "net.mlir").read_text()
    assert 'graph.aliases = ["second.weight"]' in text and "@logits" in text
    with safe_open(folder / "net.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["first.bias", "first.weight", "second.bias", "shift"]
        assert json.loads(file.metadata()["aliases"]) == {"second.weight": "first.weight"}
    assert not [p.name for p in folder.iterdir() if p.name.startswith("net.") and
                p.suffix not in (".mlir", ".safetensors")]


def test_meta_module_has_no_weights(folder):
    result = command("source.py:on_meta", "-o", "meta.mlir", cwd=folder)
    assert result.returncode == 0 and "no weights were written" in result.stdout
    assert not (folder / "meta.safetensors").exists()


@pytest.mark.parametrize("arguments, status, message", [
    (["source.py:unsupported", "-o", "bad.mlir"], 1, "source.py:27: aten."),
    (["source.py:wrong", "-o", "bad.mlir"], 1, "must return (module, example_inputs)"),
    (["source.py:broken", "-o", "bad.mlir"], 1, "KeyError: 'weights'"),
    (["source.py:none", "-o", "bad.mlir"], 1, "has no function 'none'"),
    (["missing.py:build", "-o", "bad.mlir"], 1, "no file 'missing.py'"),
    (["source.py:build", "-o", "no/such/bad.mlir"], 1, "no folder"),
    (["source.py:on_meta", "-o", "bad.mlir", "--weights", "w.safetensors"], 1, "meta device"),
    (["source.py", "-o", "bad.mlir"], 2, "must be FILE.py:FUNCTION"),
    (["source.py:build"], 2, "-o"),
    (["source.py:build", "-o", "bad.mlir", "--fast"], 2, "--fast"),
])
def test_errors_say_what_to_do_and_leave_no_file(folder, monkeypatch, capsys, arguments, status,
                                                 message):
    monkeypatch.chdir(folder)
    try:
        found = main(arguments)
    except SystemExit as usage:
        found = usage.code
    assert found == status and message in capsys.readouterr().err
    assert not list(folder.glob("bad*"))


def test_models_command(tmp_path):
    size = ["--hidden", "32", "--heads", "4", "--layers", "2", "--seq", "8", "--vocab", "50"]
    result = command("llama", *size, "--kv-heads", "2", "-o", "m.mlir", "--weights",
                     "m.safetensors", cwd=tmp_path, module="cleave.models")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "m.mlir").read_text().count("= graph.rope") == 8
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert "blocks.1.attention.query.weight" in file.keys()
    result = command("gpt", "--hidden", "30", "--heads", "4", "-o", "x.mlir", cwd=tmp_path,
                     module="cleave.models")
    assert result.returncode == 2 and "multiple of heads" in result.stderr


def test_large_model_without_weights(tmp_path):
    # 13 billion parameters would be 52 GB.
    result = command("gpt", "--hidden", "5120", "--heads", "40", "--layers", "4", "--seq", "2048",
                     "-o", "m.mlir", cwd=tmp_path, module="cleave.models")
    assert result.returncode == 0, result.stderr
    assert "tensor<50257x5120xf32>" in (tmp_path / "m.mlir").read_text()


# The trace itself ---------------------------------------------------------------------


class Unsupported(nn.Module):

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.eye(4))

    def forward(self, x):
        for _ in range(3):
            x = torch.linalg.inv(x @ self.w)  # inverse
        x = x.relu().cummax(0)[0]  # running
        torch.linalg.inv(x)  # not needed
        return x.sum()


def line_of(mark):
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if line.endswith(f"# {mark}\n"))


def test_all_unsupported_operators_are_reported_at_once():
    with pytest.raises(UnsupportedError) as caught:
        cleave.trace.trace(Unsupported(), (torch.eye(4),))
    found = [(target.split(".")[1], location, times)
             for target, _, location, times in caught.value.operators]
    assert found == [("linalg_inv", f"{__file__}:{line_of('inverse')}", 3),
                     ("cummax", f"{__file__}:{line_of('running')}", 1)]
    assert "uses 4 operators" in str(caught.value) and "(3 times)" in str(caught.value)


def test_location_is_the_line_that_computes():
    def helper(x):
        return torch.exp(x)  # here

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return helper(x * self.w).sum()

    text = cleave.trace.trace(Net(), (torch.ones(3),)).mlir
    line = line_of("here")
    alias = entry_text(text).split("graph.exp")[1].split("loc(")[1].split(")")[0]
    assert f'{alias} = loc("{__file__}":{line}:9)' in text


@pytest.mark.parametrize("module, inputs, loss_fn, message", [
    (nn.Linear(4, 3), (torch.ones(2, 4),), None, "returns no scalar loss"),
    (nn.Linear(4, 3), (torch.ones(2, 4), torch.ones(2, 3)), F.mse_loss, None),
    (nn.Linear(4, 3), (torch.ones(2, 4),), F.mse_loss, "none is left for the model"),
    (nn.Linear(4, 3), (), None, "example_inputs is empty"),
    (nn.Linear(4, 3), (torch.ones(2, 5), torch.ones(2, 3)), F.mse_loss, "cannot follow"),
    (nn.Linear(4, 3), ([1.0], torch.ones(2, 3)), F.mse_loss, "not a tensor"),
    (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), (torch.ones(2, 4), torch.ones(2, 3)),
     F.mse_loss, "changes its buffers"),
    (nn.Linear(4, 3), (torch.ones(2, 4), torch.ones(2, 3)),
     lambda y, t: F.mse_loss(y, t, reduction="none"), "not a scalar"),
])
def test_wrong_calls(module, inputs, loss_fn, message):
    if message is None:
        verify(cleave.trace.trace(module, inputs, loss_fn))
        return
    with pytest.raises(TraceError, match=message):
        cleave.trace.trace(module, inputs, loss_fn)


def test_modes_and_settings_are_put_back():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    module.eval()
    module[1].train()
    before = [m.training for m in module.modules()]
    weights = [p.clone() for p in module.parameters()]
    cleave.trace.trace(module, (torch.ones(2, 4), torch.tensor([0, 1])), F.cross_entropy)
    assert [m.training for m in module.modules()] == before
    assert all(torch.equal(a, b) for a, b in zip(weights, module.parameters()))
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_same_tensor_as_two_inputs_stays_two_inputs():
    x = torch.ones(2, 3)
    traced = cleave.trace.trace(nn.Linear(3, 3), (x, x), F.mse_loss)
    assert traced.input_names == ["input", "target"]
    loss = entry_text(traced.mlir)
    assert "%input: " in loss and "%target: " in loss and loss.count("%target") == 2


def test_tensors_that_code_creates():
    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.large = torch.arange(3000.0)

        def forward(self, x):
            return (x * self.w * torch.tensor([1.0, 2.0, float("inf")])).sum() + self.large.sum()

    traced = cleave.trace.trace(Tables(), (torch.ones(2, 3),))
    verify(traced)
    assert "dense<[1.0, 2.0, 0x7F800000]>" in traced.mlir
    assert [(t.role, t.shape, t.persistent) for t in traced.buffers] == [("buffer", (3000,), False)]


def test_public_names():
    assert callable(cleave.compile) and cleave.trace.trace
    import cleave.compile as module  # noqa: F401
    assert callable(cleave.compile)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        cleave.optimise
