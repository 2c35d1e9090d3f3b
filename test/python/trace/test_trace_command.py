# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The reports of tracing, and the commands around it."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

import cleave
import cleave.models.__main__
import cleave.trace
from cleave.testing.tools import optimize
from cleave.trace import TraceError, UnsupportedError
from cleave.trace.__main__ import main
from trace_support import entry_text, model_phase, verify

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

def leaves():
    raise SystemExit(0)

def branches():
    class Branch(Net):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else self.shift
    return Branch(), (torch.randn(2, 4),), lambda y: y.sum()

def raises():
    class Raise(Net):
        def forward(self, x):
            raise ValueError("two\\nlines")
    return Raise(), (torch.randn(2, 4),), lambda y: y.sum()

def misfit():
    return Net(), (torch.randn(2, 5), torch.tensor([0, 2])), nn.functional.cross_entropy

def nothing():
    return Net(), None

def text():
    return Net(), "text", nn.functional.cross_entropy

def resting():
    class Dropping(Net):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5, self.training)
    return Dropping().eval(), (torch.randn(2, 4), torch.tensor([0, 2])), nn.functional.cross_entropy

def number():
    return Net(), (torch.randn(2, 4), torch.tensor([0, 2])), 5
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
    (path / "syntax.py").write_text("import torch\ndef build(:\n")
    (path / "imports.py").write_text("import no_such_module\n")
    (path / "full").symlink_to("/dev/full")
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
    (["source.py:broken", "-o", "bad.mlir"], 1, "source.py:34: KeyError: 'weights'"),
    (["source.py:leaves", "-o", "bad.mlir"], 1, "source.py:37: SystemExit"),
    (["source.py:branches", "-o", "bad.mlir"], 1, "source.py:42: what is computed depends on"),
    (["source.py:raises", "-o", "bad.mlir"], 1, "source.py:48: ValueError: two lines"),
    (["source.py:misfit", "-o", "bad.mlir"], 1, "source.py:14: a and b must have same reduction"),
    (["source.py:nothing", "-o", "bad.mlir"], 1, "NoneType, not a tuple of tensors"),
    (["source.py:text", "-o", "bad.mlir"], 1, "str, not a tuple of tensors"),
    (["source.py:number", "-o", "bad.mlir"], 1, "loss_fn is int, not a function"),
    (["syntax.py:build", "-o", "bad.mlir"], 1, "syntax.py:2: "),
    (["imports.py:build", "-o", "bad.mlir"], 1, "imports.py:1: ModuleNotFoundError: No module"),
    (["no_such_module:build", "-o", "bad.mlir"], 1, "No module named 'no_such_module'"),
    (["source.py:build", "-o", "."], 1, "it is a folder"),
    (["source.py:build", "-o", "bad.mlir", "--weights", "."], 1, "it is a folder"),
    (["source.py:build", "-o", "bad.mlir", "--weights", "no/w"], 1, "no folder"),
    (["source.py:build", "-o", "no/bad.mlir", "--weights", "bad.w"], 1, "no folder"),
    (["source.py:build", "-o", "full", "--no-weights"], 1, "cannot write 'full': No space left"),
    (["source.py:build", "-o", "bad.mlir", "--weights", "full"], 1,
     "cannot write 'full': No space left"),
    (["source.py:build", "-o", "bad.safetensors"], 2, "both the module and its weights"),
    (["source.py:build", "-o", "bad", "--weights", "./bad"], 2, "both the module and its weights"),
    (["source.py:build", "-o", "bad", "--weights", "w", "--no-weights"], 2, "exclude each other"),
    (["source.py:none", "-o", "bad.mlir"], 1, "has no function 'none'"),
    (["missing.py:build", "-o", "bad.mlir"], 1, "no file 'missing.py'"),
    (["source.py:build", "-o", "no/such/bad.mlir"], 1, "no folder"),
    (["source.py:on_meta", "-o", "bad.mlir", "--weights", "w.safetensors"], 1, "meta device"),
    (["source.py", "-o", "bad.mlir"], 2, "must be FILE.py:FUNCTION"),
    (["source.py:build"], 2, "-o"),
    (["source.py:build", "-o", "bad.mlir", "--fast"], 2, "--fast"),
    (["source.py:build", "-o", "bad.mlir", "--no-w"], 2, "unrecognized arguments: --no-w"),
    (["source.py:build", "-o", "bad.mlir", "--micro", "2"], 2, "unrecognized arguments: --micro"),
    (["source.py:build", "-o", "bad.mlir", "--ones-input=labels"], 2, "unrecognized"),
    (["source.py:build", "-o", ""], 2, "the name of a file is empty"),
    (["source.py:build", "-o", "bad.mlir", "--weights="], 2, "the name of a file is empty"),
])
def test_errors_say_what_to_do_and_leave_no_file(folder, monkeypatch, capsys, arguments, status,
                                                 message):
    monkeypatch.chdir(folder)
    try:
        found = main(arguments)
    except SystemExit as usage:
        found = usage.code
    printed = capsys.readouterr().err
    assert found == status and message in printed, printed
    assert "Traceback" not in printed
    if status == 1 and "source.py:unsupported" not in arguments:
        assert printed.count("\n") == 1
    assert not list(folder.glob("bad*"))
    assert (folder / "full").is_char_device()


def test_models_command(tmp_path):
    size = ["--hidden", "32", "--heads", "4", "--layers", "2", "--seq", "8", "--vocab", "50"]
    result = command("llama", *size, "--kv-heads", "2", "-o", "m.mlir", "--weights",
                     "m.safetensors", cwd=tmp_path, module="cleave.models")
    assert result.returncode == 0, result.stderr
    assert model_phase((tmp_path / "m.mlir").read_text()).count("= graph.rope") == 8
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert "blocks.1.attention.query.weight" in file.keys()
    result = command("gpt", "--hidden", "30", "--heads", "4", "-o", "x.mlir", cwd=tmp_path,
                     module="cleave.models")
    assert result.returncode == 2 and "multiple of heads" in result.stderr


@pytest.mark.parametrize("arguments, status, message", [
    ("gpt", 2, "-o"), ("gpt -o x.mlir --fast", 2, "--fast"), ("clip -o x", 2, "invalid choice"),
    ("gpt -o x --batch 0", 2, "--batch must be"), ("gpt -o x --batch one", 2, "invalid int"),
    ("gpt -o x --heads 5", 2, "multiple of heads"), ("gpt -o x --layers 0", 2, "layers is 0"),
    ("gpt -o x --kv-heads 5", 2, "multiple of kv_heads"),
    ("gpt -o x --kv-heads 0", 2, "kv_heads is 0"), ("gpt -o x --kv-heads -1", 2, "kv_heads is -1"),
    ("gpt -o x --ffn -3", 2, "ffn is -3"), ("gpt -o x --vocab 0", 2, "vocab is 0"),
    ("gpt -o x --dropout 1", 2, "dropout is 1"), ("gpt -o x --dropout nan", 2, "dropout is nan"),
    ("gpt -o x --seed -1", 2, "--seed must be"), ("gpt -o x --weights x", 2, "both the module"),
    ("llama -o x --hidden 12 --heads 4", 1, "3 channels of a head have positions; rotary positions"),
    ("mixtral -o x --experts 1", 2, "choices (2) must not exceed experts (1)"),
    ("switch -o x --choices 0", 2, "choices is 0"),
    ("switch -o x --capacity -1", 2, "capacity is -1.0; it must not be negative"),
    ("vit -o x --image 8 --patch 16", 1, "a patch of 16 pixels is larger"),
    ("gpt -o x --hidden 100000000000 --heads 1", 1, "a model of this size cannot be built"),
    ("gpt -o no/x", 1, "no folder"), ("gpt -o x --weights no/w", 1, "no folder"),
    ("gpt -o no/x --weights x", 1, "no folder"), ("gpt -o full", 1, "No space left"),
])
def test_models_that_cannot_be(folder, monkeypatch, capsys, arguments, status, message):
    monkeypatch.chdir(folder)
    small = ["--hidden", "32", "--heads", "4", "--layers", "1", "--seq", "8", "--vocab", "50"]
    family, *rest = arguments.split()
    try:
        found = cleave.models.__main__.main([family, *small, *rest])
    except SystemExit as usage:
        found = usage.code
    printed = capsys.readouterr().err
    assert found == status and message in printed, printed
    assert "Traceback" not in printed
    assert not (folder / "x").exists() and (folder / "full").is_char_device()


def test_large_model_without_weights(tmp_path):
    # A trillion parameters would be 4 TB.
    result = command("gpt", "--hidden", "25600", "--heads", "160", "--layers", "128", "--seq",
                     "2048", "--vocab", "51200", "-o", "m.mlir", cwd=tmp_path,
                     module="cleave.models")
    assert result.returncode == 0, result.stderr
    assert "2052 parameters of 1,008,038,758,400 elements" in result.stdout
    assert optimize((tmp_path / "m.mlir").read_text()).count("graph.attention") == 2 * 128


# The trace itself ---------------------------------------------------------------------


class Unsupported(nn.Module):

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.eye(4))

    def forward(self, x):
        for _ in range(3):
            x = torch.linalg.matrix_exp(x @ self.w)  # exponential
        x = x.relu() * x.mode(0)[0]  # mode
        torch.linalg.matrix_exp(x)  # not needed
        return x.sum()


def line_of(mark):
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if line.endswith(f"# {mark}\n"))


def test_all_unsupported_operators_are_reported_at_once():
    with pytest.raises(UnsupportedError) as caught:
        cleave.trace.trace(Unsupported(), (torch.eye(4),))
    found = [(target.split(".")[1], location, times)
             for target, _, location, times in caught.value.operators]
    assert found == [("linalg_matrix_exp", f"{__file__}:{line_of('exponential')}", 3),
                     ("mode", f"{__file__}:{line_of('mode')}", 1)]
    assert "uses 4 operators" in str(caught.value) and "(3 times)" in str(caught.value)


def test_checks_of_torch_are_named():
    class Inverse(nn.Linear):
        def forward(self, x):
            return torch.linalg.inv(super().forward(x)).sum()

    with pytest.raises(UnsupportedError) as caught:
        cleave.trace.trace(Inverse(4, 4), (torch.eye(4),))
    text = str(caught.value)
    # Not what it decomposes into, among it a check that is called for its effect alone.
    assert "aten.linalg_inv.default: no conversion" in text
    assert "1 operator" in text and "with_effects" not in text


def test_torch_is_quiet_about_what_is_raised(capfd):
    class Prints(nn.Linear):
        def forward(self, x):
            print("by the model", file=sys.stderr)
            return super().forward(x).sum() if x.sum() > 0 else x.sum()

    with pytest.raises(TraceError, match="test_trace_command.py:.* depends on the values"):
        cleave.trace.trace(Prints(3, 3), (torch.ones(2, 3),))
    # Once for each branch of the condition, and nothing else.
    assert capfd.readouterr().err.split("\n") == ["by the model"] * 2 + [""]


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
    (nn.Linear(4, 3), (torch.ones(2, 4), torch.ones(2, 3)),
     lambda y, t: F.mse_loss(y, t, reduction="none"), "not a scalar"),
])
def test_wrong_calls(module, inputs, loss_fn, message):
    if message is None:
        verify(cleave.trace.trace(module, inputs, loss_fn))
        return
    with pytest.raises(TraceError, match=message):
        cleave.trace.trace(module, inputs, loss_fn)


class Dropping(nn.Linear):
    """Draws dropout in training mode, unless `p` is 0."""

    def __init__(self, p):
        super().__init__(4, 3)
        self.p = p

    def forward(self, x):
        return F.dropout(super().forward(x), self.p, self.training)


INPUTS = torch.ones(2, 4), torch.ones(2, 3)


def test_dropout_of_a_module_in_eval_mode_is_warned_of():
    """It is trained with it, which eval() says otherwise."""
    module = Dropping(0.5).eval()
    with pytest.warns(UserWarning, match="in eval.. mode, but is trained with its drop") as caught:
        traced = cleave.trace.trace(module, INPUTS, F.mse_loss)
    assert [warning.filename for warning in caught] == [__file__]
    assert "graph.dropout" in entry_text(traced.mlir) and not module.training
    with pytest.warns(UserWarning, match="in eval.. mode"):
        step = cleave.compile(module, INPUTS, F.mse_loss, optimizer=cleave.SGD(lr=0.1))
    with warnings.catch_warnings():
        # Not of each shape of a batch.
        warnings.simplefilter("error")
        step(torch.ones(5, 4), torch.ones(5, 3))


@pytest.mark.parametrize("module", [Dropping(0.5), Dropping(0.0).eval(), nn.Linear(4, 3).eval()])
@pytest.mark.filterwarnings("error")
def test_modules_without_dropout_or_in_training_mode_are_not(module):
    cleave.trace.trace(module, INPUTS, F.mse_loss)


def test_the_command_warns(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["source.py:resting", "-o", "resting.mlir", "--no-weights"]) == 0
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1 and printed[0].startswith("warning: the model is in eval() mode")


@pytest.mark.filterwarnings("ignore:the model is in eval")
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


def test_former_names_of_modules():
    """They are the modules themselves; of public ones alone without a warning."""
    code = """
import importlib, warnings
import cleave
for old, new in [*cleave.moved.MODULES.items(), ("export", "exporting")]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, again = (importlib.import_module(f"cleave.{old}") for _ in range(2))
    own = importlib.import_module(f"cleave.{new}")
    assert found is own and again is own and own.__spec__.name == own.__name__ == f"cleave.{new}"
    said = [w for w in caught if w.category is DeprecationWarning and f"cleave.{new}" in str(w.message)]
    assert len(said) == (old not in cleave.moved.PUBLIC), (old, said)
assert callable(cleave.compile) and callable(cleave.export)
from cleave.reports import Reports
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_names():
    assert callable(cleave.compile) and cleave.trace.trace
    import cleave.compiler.api as module  # noqa: F401
    assert callable(cleave.compile) and cleave.optim.AdamW is cleave.AdamW
    assert not {*cleave.moved.MODULES} & {"reports", "export"}
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        cleave.optimise


def test_standard_output_takes_the_module(tmp_path, monkeypatch, capsys):
    """Of both commands, as of the tools: nothing else is there, and no file named `-`."""
    monkeypatch.chdir(tmp_path)
    size = "--layers 1 --hidden 16 --heads 2 --seq 8 --vocab 64 --batch 2".split()
    (tmp_path / "own.py").write_text("""
import torch
def build():
    return torch.nn.Linear(2, 2), (torch.ones(3, 2),), lambda y: y.sum()
""")
    for command, flags in ((cleave.models.__main__.main, ["gpt", *size]),
                           (main, ["own.py:build", "--weights", "w.safetensors"])):
        assert command([*flags, "-o", "file.mlir"]) == 0
        said = capsys.readouterr().out
        assert command([*flags, "-o", "-"]) == 0
        out, errors = capsys.readouterr()
        assert out == (tmp_path / "file.mlir").read_text()
        assert errors == said.replace("file.mlir", "-", 1)
    assert not (tmp_path / "-").exists() and (tmp_path / "w.safetensors").exists()
    for flags in ([], ["--weights", "-"]):
        with pytest.raises(SystemExit):
            main(["own.py:build", "-o", "-", *flags])
        assert "standard output takes the module alone" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cleave.models.__main__.main(["gpt", *size, "-o", "-", "--weights", "-"])
    capsys.readouterr()
    # A reader that ends early.
    done = subprocess.run(f"{sys.executable} -m cleave.trace own.py:build --no-weights -o - | true",
                          shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
