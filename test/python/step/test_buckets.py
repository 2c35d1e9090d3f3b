# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Batches of any length: a step pads them to the lengths that it has programs for, and
trains as eager PyTorch does without padding."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.background import Background
from cleave.compiler.entrance import grouped
from family_models import FAMILIES, build
from training_support import ALL, same_bits, snapshot, tokens

SHAPES = [6, 10, 16]
#: Below, at and between the lengths of the programs.
LENGTHS = (10, 3, 6, 7, 16, 11, 10, 2)


def model(name):
    family, config, settings, _ = FAMILIES[name]
    return build(family, config, **settings).train()


def batch(length, seed=1, mask=False, rows=4):
    """Named inputs; a few labels are ignored, and with `mask` positions left out."""
    ids, labels = tokens(batch=rows, length=length, seed=seed, ignored=min(1, length - 2))
    inputs = {"input_ids": ids, "labels": labels}
    if mask:
        inputs["attention_mask"] = torch.ones_like(ids)
        inputs["attention_mask"][0, max(1, length - 2):] = 0
        labels[0, max(1, length - 2):] = -100
    return inputs


def compiled(module, inputs, **settings):
    settings = {"optimizer": cleave.SGD(lr=0.1, momentum=0.9), "shapes": SHAPES, **settings}
    return cleave.compile(module, inputs, **grouped(**settings))


def eager(module, batches):
    """Losses and weights of torch's training."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for inputs in batches:
        optimizer.zero_grad()
        loss = module(**inputs, use_cache=False).loss if hasattr(module, "config") \
            else module(**inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, module.state_dict()


CASES = {"gpt2": ("gpt2", False), "bert": ("bert", True)}
MORE = {"llama": ("llama", False), "gpt2 masked": ("gpt2", True), "llama masked": ("llama", True)}


@pytest.mark.parametrize("name", [*CASES, *(MORE if ALL else {})])
def test_as_eager(name):
    family, mask = {**CASES, **MORE}[name]
    batches = [batch(n, seed, mask) for seed, n in enumerate(LENGTHS)]
    step = compiled(model(family), batch(8, 99, mask))
    losses, state = eager(model(family), batches)
    np.testing.assert_allclose([float(step(**b)) for b in batches], losses, rtol=2e-5)
    for key, value in step.state_dict().items():
        np.testing.assert_allclose(value, state[key], rtol=2e-3, atol=2e-5, err_msg=key)
    assert step.step == len(LENGTHS)


def test_outputs_have_the_length_of_the_batch():
    module = model("gpt2")
    step = compiled(module, batch(8))
    with torch.no_grad():
        for length in (5, 6, 13):
            inputs = batch(length, seed=length)
            out = module(**inputs, use_cache=False)
            assert float(step.evaluate(**inputs)) == pytest.approx(float(out.loss), rel=1e-5)
            assert step.evaluate(**inputs).weight == (inputs["labels"][:, 1:] != -100).sum()
            for found in (step.logits(inputs["input_ids"]), step.logits(**inputs)):
                np.testing.assert_allclose(found, out.logits, rtol=1e-3, atol=1e-4)
    # Real elements are counted.
    step(**batch(3))
    assert step.last.tokens_per_s > 0


def test_too_long():
    step = compiled(model("gpt2"), batch(8))
    with pytest.raises(ValueError, match="a batch of 4 samples of length 17 does not fit any of "
                                         "the shapes; the largest is 16"):
        step(**batch(17))
    with pytest.raises(ValueError, match="lengths: 8 .'input_ids'., 7 .'labels'."):
        step(input_ids=batch(8)["input_ids"], labels=batch(7)["labels"])
    assert step.step == 0
    with pytest.raises(ValueError, match="length 17 does not fit"):
        compiled(model("gpt2"), batch(17))


def test_samples_too():
    """Pairs: batches of fewer samples are padded with samples without a label."""
    batches = [batch(n, seed, rows=rows)
               for seed, (rows, n) in enumerate([(4, 8), (3, 7), (1, 5), (6, 9), (2, 12)])]
    step = compiled(model("gpt2"), batch(8), shapes=[(2, 8), (4, 8), (6, 16)])
    losses, state = eager(model("gpt2"), batches)
    np.testing.assert_allclose([float(step(**b)) for b in batches], losses, rtol=2e-5)
    for key, value in step.state_dict().items():
        np.testing.assert_allclose(value, state[key], rtol=2e-3, atol=2e-5, err_msg=key)
    with pytest.raises(ValueError, match="a batch of 7 samples of length 8 does not fit"):
        step(**batch(8, rows=7))


def test_further_batch_sizes_compile(caplog):
    step = compiled(model("gpt2"), batch(8), shapes=[8, 12])
    float(step(**batch(5, rows=2)))
    assert caplog.text.count("compiled for inputs of shape") == 1
    float(step(**batch(7, rows=2)))
    assert caplog.text.count("compiled for inputs of shape") == 1


@pytest.mark.parametrize("mesh", [{"mesh": {"dp": 2}, "plan": "zero1"},
                                  {"mesh": {"pp": 2}, "micro_batches": 2}], ids=["zero1", "pp"])
def test_ranks(mesh):
    """The state moves between programs shard by shard."""
    one, many = (compiled(model("gpt2"), batch(8), optimizer=cleave.AdamW(lr=1e-3), **settings)
                 for settings in ({}, mesh))
    for seed, length in enumerate(LENGTHS):
        inputs = batch(length, seed)
        assert float(many(**inputs)) == pytest.approx(float(one(**inputs)), rel=1e-4)


def test_state(tmp_path):
    """After mixed lengths: saved, loaded, and gone on with, the bits are the same."""
    step = compiled(model("gpt2"), batch(8), optimizer=cleave.AdamW(lr=1e-3))
    for seed, length in enumerate(LENGTHS):
        step(**batch(length, seed))
    before = snapshot(step)
    step.save(tmp_path / "here")
    after = [float(step(**batch(n, n))) for n in (4, 9, 15)]
    other = compiled(model("gpt2"), batch(15), optimizer=cleave.AdamW(lr=1e-3))
    other.load(tmp_path / "here")
    assert same_bits(snapshot(other), before)
    assert [float(other(**batch(n, n))) for n in (4, 9, 15)] == after
    assert same_bits(snapshot(other), snapshot(step))


# What is refused ----------------------------------------------------------------------


class Mean(nn.Module):
    """Pools over all positions, padded or not."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(96, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids):
        return self.head(self.table(ids).mean(1))


def pooled(length=8):
    ids, _ = tokens(length=length)
    return ids, torch.tensor([0, 1, 2, 3])


def test_padding_that_changes_the_loss_is_refused():
    with pytest.raises(cleave.CompileError, match="padding .'ids' with 0. changes the loss or its "
                                                  "gradients in eager PyTorch: the loss is .* "
                                                  "padded, .* not padded"):
        compiled(Mean(), pooled(), loss_fn=F.cross_entropy)
    # A model that attends to what comes later, without a mask.
    with pytest.raises(cleave.CompileError, match="leave padded positions out"):
        compiled(model("bert"), batch(8))
    # Labels that are not ignored.
    with pytest.raises(cleave.CompileError, match="'labels' with 0"):
        compiled(model("gpt2"), batch(8), pad_values={"labels": 0})
    # At the length of a program, something is left to be padded.
    with pytest.raises(cleave.CompileError, match="changes the loss"):
        compiled(Mean(), pooled(16), loss_fn=F.cross_entropy)
    compiled(Mean(), pooled(), loss_fn=F.cross_entropy, check="off")


def test_values():
    module = model("gpt2")
    step = compiled(module, batch(8), pad_values={"input_ids": 5})
    assert step._buckets.values == {"input_ids": 5, "labels": -100}


class Two(nn.Module):
    """Takes a length of its own for each input."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(96, 8)
        self.head = nn.Linear(8, 96)

    def forward(self, ids, prefix):
        x = self.table(ids)
        return self.head(x + self.table(prefix).mean(1, keepdim=True))


def two(length=8, other=5):
    ids, labels = tokens(length=length)
    return (ids, tokens(length=other, seed=3)[0]), (labels,)


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_which_dimensions():
    with pytest.raises(ValueError, match="the inputs have no one length .*say which dimensions "
                                         "have the length: length_dims="):
        compiled(Two(), two(), loss_fn=loss_of)
    dims = {"ids": 1, "labels": 1}
    step = compiled(Two(), two(), loss_fn=loss_of, length_dims=dims)
    for length in (4, 9):
        (ids, prefix), (labels,) = two(length)
        expected = loss_of(step._module(ids, prefix), labels)
        assert float(step.evaluate(ids, prefix, labels)) == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(ValueError, match="different sizes: 8 .'ids'., 5 .'prefix'."):
        compiled(Two(), two(), loss_fn=loss_of, length_dims={"ids": 1, "prefix": 1})


@pytest.mark.parametrize("settings, kind, message", [
    ({"shapes": []}, TypeError, "shapes is"),
    ({"shapes": "128"}, TypeError, "shapes is"),
    ({"shapes": [0, 8]}, ValueError, "at least 1"),
    ({"shapes": [8.5]}, TypeError, "whole number"),
    ({"shapes": [8, (2, 8)]}, ValueError, "give one of them"),
    ({"shapes": [(2, 8, 8)]}, ValueError, "a length or"),
    ({"length_dims": {"ids": 1}}, ValueError, "the inputs are input_ids, labels; did you mean"),
    ({"length_dims": {"input_ids": 0}}, ValueError, "it has the dimensions 1 to 1"),
    ({"length_dims": 1}, TypeError, "must be a dict"),
    ({"pad_values": {"labels": "x"}}, TypeError, "not a number"),
    ({"shapes": None, "pad_values": {"labels": 1}}, ValueError, "which are not given"),
])
def test_bad_arguments(settings, kind, message):
    with pytest.raises(kind, match=message):
        compiled(model("gpt2"), batch(8), **settings)


# The other thread ---------------------------------------------------------------------


def test_jobs():
    """In order, unless one is asked for; errors are those of who asks."""
    order, go = [], threading.Event()

    def job(name):
        def run():
            go.wait()
            order.append(name)
            if name == "bad":
                raise ValueError("that one")
            return name.upper()
        return run

    work = Background({name: job(name) for name in ("a", "b", "bad", "c", "d")})
    threading.Timer(0.05, go.set).start()
    assert "d" in work and "e" not in work
    assert work.take("d") == "D"
    for _ in range(2):
        with pytest.raises(ValueError, match="that one"):
            work.take("bad")
    assert work.take("b") == "B"
    work.join()
    assert order[0] == "a" and order.index("d") <= 1 and sorted(order) == ["a", "b", "bad", "c", "d"]
    with pytest.raises(KeyError):
        work.take("e")


def test_jobs_stop():
    begun, go = threading.Event(), threading.Event()

    def first():
        begun.set()
        go.wait()

    work = Background({"a": first, "b": lambda: pytest.fail("was stopped")})
    begun.wait()
    work.stop()
    go.set()
    work.join()
    assert "b" not in work


def test_errors_of_the_other_thread(monkeypatch):
    """The compiler's error is raised by the first use of its program, each time; the others
    work."""
    from cleave import _cleave

    compile_ = _cleave.compile

    def failing(text, options, *lender):
        if threading.current_thread() is not threading.main_thread() and "x16x" in text:
            raise _cleave.CompileError('loc("model.py":3:4): something is not supported')
        return compile_(text, options, *lender)

    monkeypatch.setattr(_cleave, "compile", failing)
    step = compiled(model("gpt2"), batch(8))
    float(step(**batch(5)))
    for _ in range(2):
        with pytest.raises(cleave.CompileError, match="model.py:3:4: something is not supported"):
            step(**batch(12))
    assert step.step == 1
    float(step(**batch(9)))


def test_a_dropped_step_stops():
    step = compiled(model("gpt2"), batch(8), shapes=[8, 10, 12, 14, 16])
    thread, gone = step._background._thread, weakref.ref(step)
    del step
    gc.collect()
    assert gone() is None
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")
def test_end_of_the_interpreter(tmp_path):
    """It ends at once, whatever is left to compile, also by an exception."""
    script = """
import sys
import test_buckets as t
step = t.compiled(t.model("gpt2"), t.batch(8), shapes=[8, 9, 10, 11, 12, 13, 14, 15, 16])
print("compiled", float(step(**t.batch(5))))
if sys.argv[1] == "raise":
    raise ValueError("the end")
"""
    paths = "import sys; sys.path[:0] = " + repr(sys.path)
    for how, code in (("return", 0), ("raise", 1)):
        result = subprocess.run([sys.executable, "-c", paths + script, how], text=True,
                                capture_output=True, timeout=120)
        assert result.returncode == code, result.stderr
        assert "compiled" in result.stdout
        assert ("the end" in result.stderr) == (code == 1)
        assert "Fatal" not in result.stderr and "leaked" not in result.stderr
