# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Parts of a model in evaluation mode, while the model is trained."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.entrance import grouped
import cleave.trace
from eager_support import X, Y, Two, compiled, eager, same


def resting_norm(m):
    torch.manual_seed(3)
    m.norm = nn.BatchNorm1d(4)
    m.norm.running_mean.normal_()
    m.norm.running_var.uniform_(0.5, 2)
    m.norm.weight.data.uniform_(0.5, 2)
    m.norm.eval()
    m.compute = lambda m, x: m.b(m.norm(m.a(x)))


def resting_dropout(m):
    m.drop = nn.Dropout(0.5).eval()
    m.compute = lambda m, x: m.b(m.drop(m.a(x)))


@pytest.mark.parametrize("prepare", [resting_norm, resting_dropout], ids=lambda f: f.__name__)
def test_parts_in_evaluation_mode_remain_so(prepare):
    module = Two(prepare=prepare).train(True)
    prepare(module)
    assert module.training and not all(m.training for m in module.modules())
    same(compiled(module), eager(module))


def test_a_norm_writes_its_statistics_in_training_alone():
    module = Two(prepare=resting_norm).train()
    written = cleave.trace.trace(module, (X, Y), F.mse_loss).written
    assert {name.rsplit(".", 1)[-1] for name in written} == {
        "running_mean", "running_var", "num_batches_tracked"}
    module.norm.eval()
    assert not cleave.trace.trace(module, (X, Y), F.mse_loss).written


def test_modes_are_those_of_compilation():
    """A batch of another shape is traced when the model may be in another mode."""
    module = Two(prepare=resting_dropout).train()
    resting_dropout(module)
    step = cleave.compile(module, (X, Y), F.mse_loss, target=cleave.Target(threads=1),
                          optimizer=cleave.SGD(lr=0.0))
    module.eval()
    expected = float(F.mse_loss(module(X[:4]), Y[:4]))
    assert float(step(X[:4], Y[:4])) == pytest.approx(expected, rel=1e-5)
    assert not any(m.training for m in module.modules())


class Asking(nn.Module):
    """A model whose code asks for its mode, in one of several ways."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.a, self.b = nn.Linear(6, 5), nn.Linear(6, 5)
        self.inner = Scaled()

    def forward(self, x, labels=None):
        logits = self.a(x)
        if self.way == "temperature" and self.training:
            logits = logits / 0.5
        if self.way == "inner module":
            logits = self.inner(logits)
        if self.way == "dropout of all":
            logits = logits + F.dropout(self.b(x), 1.0, self.training)
        if self.way == "noise" and self.training:
            logits = logits + torch.rand_like(logits)
        if labels is None:
            return logits
        loss = F.cross_entropy(logits, labels)
        if self.way == "auxiliary loss" and self.training:
            loss = loss + F.cross_entropy(self.b(x), labels)
        if self.way == "smoothing":
            loss = F.cross_entropy(logits, labels, label_smoothing=0.2 if self.training else 0.0)
        if self.way == "loss of evaluation" and not self.training:
            loss = 2 * loss
        return loss, logits


class Scaled(nn.Module):
    def forward(self, x):
        return x * (2 if self.training else 3)


WAYS = ["temperature", "inner module", "dropout of all", "noise", "auxiliary loss", "smoothing",
        "loss of evaluation"]
LABELS = torch.arange(8) % 5


def asking(way, **options):
    module, x = Asking(way), torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
    step = cleave.compile(module, {"x": x, "labels": LABELS}, optimizer=cleave.SGD(lr=0.1),
                          **grouped(threads=1, **options))
    return step, module, x


@pytest.mark.parametrize("options", [{}, {"mesh": {"dp": 2}, "micro_batches": 2}],
                         ids=["one", "dp=2"])
@pytest.mark.parametrize("way", WAYS)
def test_evaluation_is_that_of_the_mode(way, options):
    step, module, x = asking(way, **options)
    for _ in range(3):
        step(x, LABELS)
    module.load_state_dict(step.state_dict())
    module.eval()
    loss, logits = module(x, LABELS)
    assert float(step.evaluate(x, LABELS)) == pytest.approx(float(loss), rel=1e-5)
    assert torch.allclose(step.logits(x, LABELS), logits, atol=1e-5)


def test_the_entry_is_there_where_modes_differ():
    example = {"x": torch.randn(8, 6), "labels": LABELS}
    assert all("evaluate" in cleave.trace.trace(Asking(way), example).entries for way in WAYS)
    assert "evaluate" not in cleave.trace.trace(Asking("no"), example).entries
    module = Two(prepare=resting_dropout).train()
    resting_dropout(module)
    module.drop.train()
    for drop in (module.drop, nn.Dropout1d(0.3)):
        module.drop = drop
        assert "evaluate" not in cleave.trace.trace(module, (X, Y), F.mse_loss).entries


class Predicting(nn.Module):
    """Has no loss in evaluation, as models that return predictions then."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 5)

    def forward(self, x):
        y = self.a(x)
        return {"logits": y, "loss": y.pow(2).mean()} if self.training else y


def test_a_model_without_a_loss_in_evaluation_is_trained():
    x = torch.randn(8, 6)
    with pytest.warns(UserWarning, match=r"cannot be evaluated.* no scalar loss"):
        step = cleave.compile(Predicting(), (x,), target=cleave.Target(threads=1))
    step(x)
    with pytest.raises(cleave.StepError, match=r"no loss in eval\(\) mode: .* no scalar loss"):
        step.evaluate(x)
    assert step.logits(x).shape == (8, 5)


class Stepwise(nn.Module):
    """Writes rows in turn, as unrolled recurrences do, and uses an operator without a converter."""

    def __init__(self, p=0.0):
        super().__init__()
        self.a, self.drop = nn.Linear(4, 4), nn.Dropout(p)

    def forward(self, x, labels):
        rows = self.drop(self.a(x)).clone()
        for i in range(1, 3):
            rows[i] = rows[i] + rows[i - 1]
        logits = rows @ torch.eye(4)
        return {"loss": F.mse_loss(logits, labels), "logits": logits}


def _passes(monkeypatch, module):
    """The traced model, and how often torch exports and decomposes for it."""
    counts = {"export": 0, "run_decompositions": 0}

    def counted(name, original):
        def call(*args, **kwargs):
            result = original(*args, **kwargs)
            counts[name] += 1
            return result
        return call

    with monkeypatch.context() as patch:
        for owner, name in ((torch.export, "export"),
                            (torch.export.ExportedProgram, "run_decompositions")):
            patch.setattr(owner, name, counted(name, getattr(owner, name)))
        traced = cleave.trace.trace(module, {"x": torch.randn(4, 4), "labels": torch.randn(4, 4)})
    return traced, tuple(counts.values())


@pytest.mark.parametrize("p, expected, watched", [(0.0, (1, 1), True), (0.0, (2, 1), False),
                                                  (0.5, (2, 2), True)])
def test_modes_with_the_same_operators_are_decomposed_once(monkeypatch, p, expected, watched):
    """Each pass over a graph takes as long as exporting it: one makes it functional and decomposes
    it, for both modes unless they differ."""
    module = Stepwise(p)
    if not watched:
        monkeypatch.setattr("cleave.trace.modes.may_be_alike", lambda *_: False)
    traced, passes = _passes(monkeypatch, module)
    assert passes == expected and "logits" in traced.entries
    # The text is that of each mode by itself, first made functional and then decomposed.
    monkeypatch.setattr("cleave.trace.modes.may_be_alike", lambda *_: False)
    monkeypatch.setattr("cleave.trace.export.Begun.computes_as", lambda *_: False)
    monkeypatch.setattr("cleave.trace.decompose._decomposed_at_once", lambda program: None)
    inputs = {"x": torch.randn(4, 4), "labels": torch.randn(4, 4)}
    assert cleave.trace.trace(module, inputs).mlir == traced.mlir


def test_the_code_of_graphs_is_made_on_demand():
    """It is what torch makes at once, also when the module has changed since, and is called."""
    from cleave.trace.lazy_code import code_on_demand

    class Sum(nn.Module):
        def forward(self, x):
            return x + x

    with code_on_demand():
        graph = torch.fx.symbolic_trace(Sum())
        asked = torch.fx.symbolic_trace(Sum()).code
        for node in graph.graph.nodes:
            if node.op == "call_function":
                node.target = torch.mul
        graph.recompile()
    assert asked == torch.fx.symbolic_trace(Sum()).code
    x = torch.tensor([1.0, 3.0])
    assert "mul" in graph.code and "mul" in str(graph) and torch.equal(graph(x), x * x)
