# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Checkpoints and artifacts of a step, and what it shows of itself."""

import os
import subprocess
import xml.etree.ElementTree as xml

import pytest
import torch

import cleave
from cleave.testing.tools import run_tool, tool
from cleave.compiler.entrance import grouped
from expert_models import switch
from training_support import Net, compile_case, family, net, same_bits, snapshot, token_loss, tokens

OPTIMIZER = dict(lr=1e-2, max_grad_norm=1.0)


def compiled(module=None, **settings):
    return cleave.compile(module or net(), tokens(), token_loss,
                          optimizer=cleave.AdamW(**OPTIMIZER), **grouped(**settings))


def test_version():
    assert run_tool([tool("cleave-run"), "--version"]).split()[1:3] == [
        "(Cleave)", cleave.__version__]
    assert "__version__" in cleave.__all__ and "load" in cleave.__all__


@pytest.mark.parametrize("after", [{}, dict(mesh={"dp": 2}, plan="zero3")])
def test_a_step_goes_on_from_a_checkpoint(tmp_path, after):
    """Bit for bit on the same mesh; on another one as it would there."""
    step = compiled(seed=7)
    for _ in range(2):
        step(*tokens())
    step.data_position = 8
    step.save(tmp_path / "a")
    assert sorted(os.listdir(tmp_path / "a")) == [
        "model.safetensors", "optimizer.safetensors", "training.json"]
    other = compiled(net(seed=1), seed=3, **after)
    assert cleave.load(tmp_path / "a", other) is other
    assert (other.step, other.data_position, other.last) == (2, 8, None)
    assert same_bits(snapshot(step), snapshot(other))
    first, second = step(*tokens()), other(*tokens())
    assert second.step == 3
    if after:
        torch.testing.assert_close(float(second), float(first), rtol=1e-5, atol=0)
    else:
        assert float(first) == float(second)


@pytest.mark.parametrize("case", [family("gpt2", batch=4), switch(batch=4)],
                         ids=["tied", "experts"])
def test_a_model_gets_the_weights(tmp_path, case):
    """Also those that experts have of their own, which are one tensor in the file, and tied
    ones."""
    step = compile_case(case, cleave.SGD(lr=0.1))
    step(*case.batches[0])
    step.save(tmp_path / "a")
    module = case.build()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert cleave.load(tmp_path / "a", module) is module
    expected = step.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in module.state_dict().items())


def test_the_latest_of_a_folder_is_loaded(tmp_path):
    step = compiled()
    for i in (9, 10):
        step(*tokens())
        step.save(tmp_path / "run" / f"step-{i}")
    other = compiled()
    other.load(tmp_path / "run")
    assert other.step == 2
    other.load(str(tmp_path / "run" / "step-9"))
    assert other.step == 1


def test_a_checkpoint_replaces_no_other_folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").write_text("data")
    step = compiled()
    with pytest.raises(FileExistsError, match="is no checkpoint"):
        step.save(tmp_path / "data")
    assert (tmp_path / "data" / "precious").read_text() == "data"
    step.save(tmp_path / "a")
    step(*tokens())
    step.save(tmp_path / "a")  # An older one.
    (tmp_path / "empty").mkdir()
    step.save(tmp_path / "empty")
    assert sorted(os.listdir(tmp_path)) == ["a", "data", "empty"]


def test_what_does_not_fit_changes_nothing(tmp_path):
    step = compiled()
    step(*tokens())
    step.save(tmp_path / "a")
    before = snapshot(step)
    wide = cleave.compile(Net(width=64), tokens(), token_loss, optimizer=cleave.AdamW())
    sgd = cleave.compile(net(), tokens(), token_loss, optimizer=cleave.SGD(lr=0.1))
    for other in (wide, sgd):
        own = snapshot(other)
        with pytest.raises(ValueError, match="does not fit the program"):
            other.load(tmp_path / "a")
        assert same_bits(snapshot(other), own) and other.step == 0
    with pytest.raises(ValueError, match="does not fit the model: .*in the file"):
        cleave.load(tmp_path / "a", Net(width=64))
    with pytest.raises(KeyError, match="the model has no"):
        cleave.load(tmp_path / "a", torch.nn.Linear(2, 2))
    with pytest.raises(FileNotFoundError, match="no checkpoint here"):
        step.load(tmp_path)
    with pytest.raises(TypeError, match="not a torch.nn.Module or a Step"):
        cleave.load(tmp_path / "a", {})
    with pytest.raises(TypeError, match="path of a file"):
        step.save(3)
    (tmp_path / "a" / "optimizer.safetensors").write_bytes(b"short")
    with pytest.raises(ValueError, match="optimizer.safetensors"):
        step.load(tmp_path / "a")
    assert same_bits(snapshot(step), before) and step.step == 1


def test_what_is_not_finite_is_not_saved(tmp_path):
    step = compiled()
    state = step.state_dict()
    next(iter(state.values())).flatten()[0] = float("nan")
    step.load_state_dict(state)
    with pytest.raises(cleave.StepError, match="not written: not finite: parameter"):
        step.save(tmp_path / "a")
    assert not os.listdir(tmp_path)
    step.save(tmp_path / "a", check_finite=False)
    with pytest.raises(OSError, match="cannot write|Permission|denied|Not a directory"):
        step.save(tmp_path / "a" / "training.json" / "b", check_finite=False)


def test_an_artifact_goes_on_where_python_saved(tmp_path):
    """cleave-run takes both, and its checkpoint comes back."""
    case = family("gpt2", batch=4)
    step = compile_case(case, cleave.AdamW(lr=1e-3))
    step(*case.batches[0])
    step.save(tmp_path / "run" / "step-1")
    step.save_artifact(tmp_path / "gpt2.so")
    with pytest.raises(OSError, match="there is no folder"):
        step.save_artifact(tmp_path / "none" / "gpt2.so")
    torch.randint(3, 96, (400,)).to(torch.uint16).numpy().tofile(tmp_path / "data.bin")
    done = subprocess.run(
        [tool("cleave-run"), "gpt2.so", "--resume=run", "--data=data.bin", "--steps=3",
         "--save-every=1", "--save-dir=run"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "resumed from run/step-1 after step 1" in done.stdout
    step.load(tmp_path / "run")
    assert step.step == 3


# What is shown ------------------------------------------------------------------------


def test_reprs():
    step = compiled(mesh={"dp": 2})
    count = sum(p.numel() for p in net().parameters())
    assert repr(step).startswith(f"<cleave.Step of Net: {count:,} parameters on dp=2, ")
    assert repr(step).endswith("0 steps done>")
    loss = step(*tokens())
    assert repr(step).endswith("1 step done>")
    assert repr(loss).startswith(f"Loss({float(loss)!r}, step=1, lr=0.01, grad_norm=")
    assert str(loss) == str(float(loss)) == f"{loss}" and f"{loss:.2f}" == f"{float(loss):.2f}"
    evaluation = step.evaluate(*tokens())
    assert repr(evaluation) == f"Evaluation({float(evaluation)!r}, weight={evaluation.weight!r})"


def shapes(text, tag):
    return [e for e in xml.fromstring(text).iter() if e.tag.endswith("}" + tag)]


def test_notebooks(tmp_path):
    """Well formed, and with the figures of the report."""
    step = compile_case(family("gpt2", batch=8, n_layer=3), cleave.AdamW(lr=1e-3),
                        mesh={"pp": 2, "tp": 2}, plan="megatron", micro_batches=2)
    report = step.report()
    step.memory(svg=tmp_path / "memory.svg")
    memory = (tmp_path / "memory.svg").read_text()
    largest = report["plan"]["largest"]
    entry = report["plan"]["positions"][largest]["entries"]["train"]
    drawn = [e.find("{*}title").text for e in shapes(memory, "polygon")]
    assert [one.split(":")[0] for one in drawn] and len(drawn) == len(entry["profile"]["kinds"])
    texts = [e.text for e in shapes(memory, "text")]
    assert texts[0] == f"memory of a device in train, position {largest}"
    peak = next(one for one in texts if one.startswith("peak: "))
    assert f" in {entry['peak_time']['action']}, command " in peak
    assert step.placement(svg=tmp_path / "placement.svg") == report["placement"]
    placement = (tmp_path / "placement.svg").read_text()
    texts = [e.text for e in shapes(placement, "text")]
    assert texts[0] == "placement on pp=2, tp=2"
    assert any(text.startswith("3 x transformer.h.*.mlp.c_fc.weight") for text in texts)
    assert any("/tp" in text for text in texts)
    page = step._repr_html_()
    assert page.count("<svg") == 3 == page.count("</svg>")
    for part in page.split("<svg")[1:]:
        xml.fromstring("<svg" + part.split("</svg>")[0] + "</svg>")
    assert "memory: " in page and "&lt;cleave.Step of GPT2LMHeadModel" in page
    assert step._repr_svg_() == memory
