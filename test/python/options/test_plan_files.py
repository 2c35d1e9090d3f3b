# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A plan in a file is the plan and the mesh that it says, at every entrance."""

import json
import os
import subprocess

import pytest
import torch

import cleave
import cleave.trace
from cleave import _cleave
from cleave.testing.tools import tool

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(x).relu()).square().mean()


def trained(**options):
    """A compiled step, and what three calls leave."""
    torch.manual_seed(0)
    step = cleave.compile(Net(), (X,), optimizer=cleave.AdamW(lr=0.1), check="off",
                          launch="threads", target=cleave.Target(threads=4), **options)
    losses = [float(step(X)) for _ in range(3)]
    training = step.training_state()
    tensors = {**step.state_dict(), **{f"{name}.{slot}": value for name, slots in
                                       training["optimizer"].items() for slot, value in slots.items()}}
    return step, losses, {name: value.tolist() for name, value in tensors.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "model.mlir"
    path.write_text(cleave.trace.trace(Net(), (X,)).named_mlir)
    return path


def compiled(model, *flags):
    ran = subprocess.run([tool("cleave-compile"), str(model), "--threads=4", *flags],
                         capture_output=True, text=True)
    return ran.returncode, ran.stderr


def test_every_entrance(model, tmp_path):
    """A file that one entrance wrote is read by the others, and is what it was written of."""
    flags = ["--mesh=dp=2,tp=2", "--plan=megatron,zero1"]
    saved = tmp_path / "own.plan"
    assert compiled(model, *flags, "--emit=local", "-o", f"{tmp_path}/one", f"--save-plan={saved}") == (0, "")
    assert json.loads(saved.read_text()) == {"mesh": "dp=2,tp=2", "plan": "megatron,zero1"}
    again = tmp_path / "again.plan"
    assert compiled(model, f"--plan={saved}", "--emit=local", "-o", f"{tmp_path}/two",
                    f"--save-plan={again}") == (0, "")
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
    assert again.read_text() == saved.read_text()

    step, *found = trained(mesh={"dp": 2, "tp": 2}, plan=["megatron", "zero1"])
    assert step.plan() == saved.read_text()
    for given in ({"plan": str(saved)}, {"plan": saved}, {"plan": saved, "mesh": "dp=2,tp=2"}):
        other, *others = trained(**given)
        assert others == found and other.plan() == step.plan()
        assert other.ir("local") == step.ir("local")

    text = cleave.trace.trace(Net(), (X,)).named_mlir
    modules = [_cleave.compile(text, json.dumps({"threads": 4, "optimizer": {"kind": "sgd"}, **own})).ir("local")
               for own in ({"mesh": "dp=2,tp=2", "plan": "megatron,zero1"}, {"plan": str(saved)})]
    assert modules[0] == modules[1]


@pytest.mark.parametrize("mesh, plan", [("", ""), ("dp=2", ""), ("dp=2,tp=2", "megatron(tp),zero1(dp)"),
                                        ("a=2", "up.weight=[a,-],down.*?=[-]")])
def test_what_is_written_is_read(mesh, plan, tmp_path):
    path = tmp_path / "a.plan"
    path.write_text(_cleave.plan_of(json.dumps({"mesh": mesh, "plan": plan})))
    assert json.loads(path.read_text()) == {"mesh": mesh, "plan": plan}
    assert _cleave.plan_of(json.dumps({"plan": str(path)})) == path.read_text()


def test_the_cache_knows_what_is_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAVE_CACHE", str(tmp_path / "cache"))
    text, path = cleave.trace.trace(Net(), (X,)).named_mlir, tmp_path / "a.plan"
    options = json.dumps({"threads": 2, "optimizer": {"kind": "sgd"}, "plan": str(path)})
    for plan in ({"mesh": "dp=2"}, {"mesh": "tp=2", "plan": "megatron"}):
        path.write_text(json.dumps(plan))
        assert [_cleave.compile(text, options).cached for _ in range(2)] == [False, True]


REFUSED = {
    "is not a plan": "mesh: dp=2",
    "it is not an object with a mesh and a plan": "[]",
    "a plan file has a mesh and a plan, and no 'precision'": '{"precision": "bf16"}',
    "a plan file names no other": '{"plan": "other.plan"}',
    "mesh: ": '{"mesh": "dp=0"}',
    "mesh is a text, not 2": '{"mesh": 2}',
    "plan: ": '{"mesh": "dp=2", "plan": "zero9"}',
    "auto needs a planner": '{"mesh": "dp=2", "plan": "auto"}',
    "is bound to axis": '{"mesh": "dp=2", "plan": "zero1(tp)"}',
    "has the mesh 'tp=2', and 'dp=2' is given": '{"mesh": "tp=2"}',
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words, model, tmp_path):
    """For the same reason at every entrance."""
    path = tmp_path / "a.plan"
    path.write_text(REFUSED[words])
    mesh = "dp=2" if "given" in words else ""
    mine = _cleave.check_options(json.dumps({"mesh": mesh, "plan": str(path)}))
    assert words in mine
    with pytest.raises(cleave.OptionError) as refused:
        cleave.compile(Net(), (X,), plan=path, mesh=mesh or None)
    assert str(refused.value) == mine
    status, said = compiled(model, f"--plan={path}", "--plan-only", *([f"--mesh={mesh}"] if mesh else []))
    assert status in (1, 2)
    assert mine in said.replace("--", "")


def test_refused_before_it_is_read(model, tmp_path):
    missing = str(tmp_path / "missing.plan")
    mine = _cleave.check_options(json.dumps({"plan": missing}))
    assert "No such file" in mine and missing in mine
    assert mine in compiled(model, f"--plan={missing}", "--plan-only")[1]
    with pytest.raises(cleave.OptionError, match="No such file"):
        cleave.compile(Net(), (X,), plan=missing)
    with pytest.raises(ValueError, match="a plan file ends with .plan"):
        cleave.compile(Net(), (X,), plan=tmp_path / "a.json")
    with pytest.raises(cleave.OptionError, match="auto needs a planner .* is to come"):
        cleave.compile(Net(), (X,), mesh={"dp": 2}, plan="auto")
    for flags, words in ((["--save-plan=a.json", "--plan-only"], "ends with .plan"),
                         (["--save-plan=a.plan", "--fit=devices", "--mesh=dp=1", "--memory-limit=1GB"], "of one step"),
                         (["--save-plan=/nowhere/a.plan", "--plan-only"], "/nowhere")):
        status, said = compiled(model, *flags)
        assert status != 0 and words in said
    # Nothing is written of what is refused.
    saved = tmp_path / "b.plan"
    assert compiled(model, "--mesh=dp=2", "--plan=zero1(tp)", "--plan-only", f"--save-plan={saved}")[0] != 0
    assert not os.path.exists(saved)
