# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Metrics of a step are those that PyTorch computes for the whole batch, on every mesh."""

import math
import warnings

import pytest
import torch
from torch import nn

import cleave
from training_support import net, token_batches, token_loss, tokens


class Model(nn.Module):
    """A layer of a transformer that returns scalars beside its loss."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, ids, labels):
        logits = self.net(ids)
        known = labels != -100
        return {"loss": token_loss(logits, labels), "logits": logits,
                "z_loss": logits.logsumexp(-1).square().mean(),
                "accuracy": ((logits.argmax(-1) == labels) & known).float().sum() / known.sum(),
                "count": known.sum(), "largest": logits.max(), "any": (logits > 3).any(),
                "weight": self.net.head.weight.square().sum()}


NAMES = ("z_loss", "accuracy", "count", "largest", "any", "weight", "loss")
LAYOUTS = [dict(), dict(micro_batches=4), dict(mesh={"dp": 2}, plan="zero2", micro_batches=2),
           dict(mesh={"tp": 2}, plan="megatron-sp"), dict(mesh={"dp": 2, "tp": 2}, plan=["megatron", "zero1"]),
           dict(mesh={"pp": 2}, micro_batches=2), dict(mesh={"dp": 2}, micro_batches=3)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_metrics_are_those_of_the_whole_batch(layout):
    """Also with labels that are ignored in some samples, and of trained parameters."""
    batches = token_batches(3, batch=8, ignored=5)
    module = Model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # No field but `logits`, which `step.logits` has, is left.
        step = cleave.compile(module, dict(zip(("ids", "labels"), batches[0])), metrics=NAMES, check="off",
                              optimizer=cleave.SGD(lr=0.1), **layout)
    assert step.metrics == {}
    for batch in batches:
        with torch.no_grad():
            expected = module(*batch)
        loss = step(*batch)
        assert set(loss.metrics) == set(NAMES) and step.metrics == loss.metrics
        for name in NAMES:
            assert math.isclose(loss.metrics[name], float(expected[name]), rel_tol=1e-5, abs_tol=1e-6), name
        assert loss.auxiliary == [] and loss.metrics["loss"] == float(loss)
        module.load_state_dict(step.state_dict())


@pytest.mark.filterwarnings("ignore:the model also returns")
def test_training_is_the_same_with_metrics():
    batches = token_batches(3, batch=8)
    module, states = Model(), []
    for names in (None, NAMES):
        step = cleave.compile(module, dict(zip(("ids", "labels"), batches[0])), metrics=names, check="off",
                              mesh={"dp": 2}, micro_batches=2, optimizer=cleave.AdamW(lr=1e-2))
        losses = [float(step(*batch)) for batch in batches]
        states.append((losses, float(step.evaluate(*batches[0])), step.state_dict()))
    (one, first, a), (two, second, b) = states
    assert one == two and first == second
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_function_and_a_run():
    """With a loss of its own, checks against eager code on, and in the numbers of a run."""
    def metrics(logits, inputs):
        *_, targets = inputs.values()
        loss = token_loss(logits, targets)
        return {"right": (logits.argmax(-1) == targets).float().mean(), "perplexity": loss.exp()}

    found = []

    class Keeps:
        def on_step(self, run, values):
            found.append(dict(values))

    batches, module = token_batches(2, batch=4), net()
    step = cleave.compile(module, batches[0], token_loss, metrics=metrics, check="on", mesh={"dp": 2},
                          micro_batches=2, optimizer=cleave.SGD(lr=0.1))
    cleave.Run(step, batches, callbacks=[Keeps()]).fit(epochs=1)
    for values in found:
        assert math.isclose(values["perplexity"], math.exp(values["loss"]), rel_tol=1e-5)
    with torch.no_grad():
        logits = module(batches[0][0])
    assert math.isclose(found[0]["right"], (logits.argmax(-1) == batches[0][1]).float().mean().item(), abs_tol=1e-6)


@pytest.mark.filterwarnings("ignore:the model also returns")
def test_a_metric_of_the_logits_in_chunks():
    """A head whose logits do not fit is computed in chunks, which a metric does not change in value."""
    ids, labels = tokens(batch=4)

    def top(output, inputs):
        return {"top": output["logits"].max(-1).values.mean()}

    module = Model()
    step = cleave.compile(module, {"ids": ids, "labels": labels}, metrics=top, check="off",
                          memory=cleave.Memory(max_logits_bytes=4096))
    loss = step(ids, labels)
    with torch.no_grad():
        expected = module(ids, labels)
    assert math.isclose(loss.metrics["top"], expected["logits"].max(-1).values.mean().item(), rel_tol=1e-5)
    assert math.isclose(loss, expected["loss"].item(), rel_tol=1e-5)


@pytest.mark.parametrize("metrics, error, text", [
    (3, TypeError, "metrics is 3"),
    ([1], TypeError, "must be names of fields"),
    (["z_loss", "z_loss"], ValueError, "a name twice"),
    (["z_los"], cleave.trace.TraceError, "'z_los', which the model does not return; its output has 'z_loss'"),
    (["logits"], cleave.trace.TraceError, r"of \[4, 8, 96\]; a metric is a real scalar"),
    (lambda output, inputs: 1.0, cleave.trace.TraceError, "returns float; it must return a dict"),
    (lambda output, inputs: {"x": 1.0}, cleave.trace.TraceError, "'x' is float, not a tensor"),
])
def test_wrong_metrics(metrics, error, text):
    ids, labels = tokens()
    with pytest.raises(error, match=text):
        cleave.compile(Model(), {"ids": ids, "labels": labels}, metrics=metrics, check="off")


def test_where_there_are_none():
    ids, labels = tokens(batch=4)
    inputs = {"ids": ids, "labels": labels}
    with pytest.raises(ValueError, match="padded to shapes"):
        cleave.compile(Model(), inputs, metrics="z_loss", shapes=[8])
    with pytest.raises(ValueError, match="asynchronous schedule"):
        cleave.compile(Model(), inputs, metrics="z_loss", mesh={"pp": 2}, micro_batches=2, pipeline="pipedream")


@pytest.mark.filterwarnings("ignore:the model also returns")
def test_what_is_no_sum_over_parts_is_refused():
    """Sums over the first samples read those of other micro-batches."""
    ids, labels = tokens(batch=4)
    with pytest.raises(cleave.CompileError, match=r"test_metrics\.py:\d+.*couples samples of the batch"):
        cleave.compile(Model(), {"ids": ids, "labels": labels}, check="off", micro_batches=2,
                       metrics=lambda output, inputs: {"m": output["logits"].mean((1, 2)).cumsum(0)[1]})
