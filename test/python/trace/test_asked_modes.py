# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A model is exported once if its modes are alike, and else once in each."""

import importlib
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
import cleave.trace
from cleave.trace import asked_modes, modes

X, LABELS = torch.randn(8, 6, generator=torch.Generator().manual_seed(3)), torch.arange(8) % 5


class Model(nn.Module):
    """Two layers, between which `compute` is called."""

    kept = False

    def __init__(self, compute=None):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 5)
        self.p, self.checkpointing, self.noise = 0.0, False, 0.1
        self.drop, self.norm, self.inner = nn.Dropout(0.0), nn.BatchNorm1d(6), nn.Identity()
        self.compute = compute

    def forward(self, x, labels):
        logits = self.b(self.computed(self.a(x)))
        return F.cross_entropy(logits, labels), logits

    def computed(self, x):
        return self.compute(self, x)


# Models whose modes are alike -----------------------------------------------------------


def asks_nothing(m, x):
    return x * 2 if torch.is_grad_enabled() else x


def drops_nothing(m, x):
    return m.drop(x)


def drops_nothing_by_name(m, x):
    return F.dropout(x, training=m.training, p=m.drop.p)


def chooses_equals(m, x):
    p = 0.0 if not m.training else m.p
    return F.scaled_dot_product_attention(x, x, x, dropout_p=p)


def chooses_equals_by_class(m, x):
    return x if m.kept and m.training else x * 2


def would_checkpoint(m, x):
    if m.training and m.checkpointing and m.noise > 0:
        return x * 3
    return x


def writes_rows(m, x):
    x = m.drop(x).clone()
    x[1] = x[0] * 2
    return x


# Models whose modes differ --------------------------------------------------------------


def drops(m, x):
    return F.dropout(x, 0.5, m.training)


def drops_by_default(m, x):
    return F.dropout(x, training=m.training)


def normalises(m, x):
    return m.norm(x)


def scales(m, x):
    return x * (2 if m.training else 3)


def scales_by_types(m, x):
    """True is 1, and another type."""
    n = 1 if m.training else True
    return x * (2 if isinstance(n, bool) else 3)


def keeps_the_mode(m, x):
    mode = m.training
    return x * 2 if mode else x


def asks_another_module(m, x):
    return x if m.inner.training else x * 2


def asks_many(m, x):
    return x if any(part.training for part in m.modules()) else x * 2


def compares(m, x):
    return x * 2 if m.training and m.noise > 0 else x


def calls_with_the_mode(m, x):
    return scaled(x, m.training)


def scaled(x, training):
    return x * 2 if training else x


def passes_all(m, x):
    return F.dropout(*(x, 0.0, m.training)) if scaled(1, m.training) == 1 else x * 2


def reads_two_modes(m, x):
    return x if m.training == m.inner.training else x * 2


def reads_two_in_turn(m, x):
    return x * 3 if not m.training and not m.inner.training and m.checkpointing else x


def has_no_source(m, x):
    return eval("lambda m, x: x * 2 if m.training else x")(m, x)


class Switched(Model):
    """Sets another flag with its mode."""

    flag = True

    def train(self, mode=True):
        self.flag = mode
        return super().train(mode)

    def computed(self, x):
        return x * 2 if self.flag else x


class SwitchedClass(Model):
    """Sets a flag outside of the object."""

    flags = {}

    def train(self, mode=True):
        self.flags["mode"] = mode
        return super().train(mode)

    def computed(self, x):
        return x * 2 if self.flags.get("mode", True) else x


class Setting(Model):
    """Sees its mode when it is set."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name not in ("a", "b", "seen") and isinstance(value, bool):
            super().__setattr__("seen", value)

    def computed(self, x):
        return x * 2 if self.seen else x


def made(kind):
    module = (kind() if isinstance(kind, type) else Model(kind)).train()
    if kind is reads_two_modes:
        module.inner.eval()
    return module


def exports(monkeypatch, module, logits=True):
    """The traced model, and in which modes it was exported."""
    found, export = [], torch.export.export

    def counted(step, *args, **kwargs):
        result = export(step, *args, **kwargs)
        found.append(step.training)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "export", counted)
        traced = cleave.trace.trace(module, {"x": X, "labels": LABELS}, logits=logits)
    return traced, found


ALIKE = [asks_nothing, drops_nothing, drops_nothing_by_name, chooses_equals,
         chooses_equals_by_class, would_checkpoint, writes_rows]
DIFFERENT = [drops, drops_by_default, normalises, scales, scales_by_types, keeps_the_mode,
             asks_another_module, asks_many, compares, calls_with_the_mode, passes_all,
             reads_two_modes, reads_two_in_turn, has_no_source, Switched, SwitchedClass,
             Setting]


#: Of a file that this one does not import: whose code says the name is exported in both modes.
STRINGS = [getattr(importlib.import_module("mode_strings"), n)
           for n in ("asks_by_name", "looks_it_up", "asks_an_import")]
DIFFERENT += STRINGS


def name(kind):
    return kind.__name__


@pytest.mark.parametrize("kind", ALIKE, ids=name)
def test_modes_that_are_alike_are_exported_once(monkeypatch, kind):
    for logits in (True, False):
        traced, found = exports(monkeypatch, made(kind), logits)
        assert found == [True]
        # The text is that of both modes.
        monkeypatch.setattr(modes, "may_be_alike", lambda *_: False)
        both, found = exports(monkeypatch, made(kind), logits)
        monkeypatch.undo()
        assert found == [True, False]
        assert traced.mlir == both.mlir and traced.named_mlir == both.named_mlir
        assert traced.entries == both.entries == (("loss", "logits") if logits else ("loss",))
        assert traced.deterministic().mlir == both.deterministic().mlir


@pytest.mark.parametrize("kind", DIFFERENT, ids=name)
def test_modes_that_differ_are_exported_in_both(monkeypatch, kind):
    for logits in (True, False):
        traced, found = exports(monkeypatch, made(kind), logits)
        assert found == [True, False]
        monkeypatch.setattr(modes, "may_be_alike", lambda *_: False)
        assert exports(monkeypatch, made(kind), logits)[0].mlir == traced.mlir
        monkeypatch.undo()


@pytest.mark.parametrize("kind", [k for k in ALIKE + DIFFERENT if not isinstance(k, type)
                                  and k not in STRINGS[1:]], ids=name)
def test_a_read_is_seen(kind):
    module, asked = made(kind), asked_modes.AskedModes()
    with asked.watched():
        kind(module, X)
    assert asked.differs == (kind in DIFFERENT)


def test_the_first_read_that_matters_ends_a_trace():
    module, asked = made(scales), asked_modes.AskedModes(ends=True)
    with asked.watched(), pytest.raises(asked_modes.ModesDiffer):
        module(X, LABELS)
    assert asked.differs


@pytest.mark.parametrize("kind", ALIKE + DIFFERENT, ids=name)
def test_evaluation_is_that_of_eval(kind):
    module = made(kind)
    step = cleave.compile(module, {"x": X, "labels": LABELS}, optimizer=cleave.SGD(lr=0.1),
                          target=cleave.Target(threads=1), check="off")
    step(X, LABELS)
    module.load_state_dict(step.state_dict())
    module.eval()
    loss, logits = module(X, LABELS)
    assert float(step.evaluate(X, LABELS)) == pytest.approx(float(loss), rel=1e-5)
    assert torch.allclose(step.logits(X, LABELS), logits, atol=1e-5)


def test_the_mode_is_an_attribute_again():
    """Reads are watched in the forward alone, also where it fails."""
    def fails(m, x):
        raise ValueError("no")

    for compute in (asks_nothing, drops, fails):
        module = made(compute)
        try:
            cleave.trace.trace(module, {"x": X, "labels": LABELS})
        except cleave.trace.TraceError:
            assert compute is fails
        assert asked_modes._NAME not in vars(nn.Module) and module.training is True
        assert vars(module)[asked_modes._NAME] is True


def test_a_file_that_changed_is_not_read(tmp_path):
    """The source of a read is that of the code that runs."""
    file = tmp_path / "computes.py"
    file.write_text("def compute(m, x):\n    return x if m.training else x * 2\n")
    found = types.ModuleType("computes")
    exec(compile(file.read_text(), str(file), "exec"), vars(found))
    file.write_text("def compute(m, y):\n    return y if m.training and 0 else 2\n")
    asked = asked_modes.AskedModes()
    with asked.watched():
        found.compute(nn.Linear(1, 1), 1)
    assert asked.differs
