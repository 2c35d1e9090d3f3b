# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Buffers that a step writes: batch normalisation, moving averages, spectral norm.
Loss, parameters and buffers are those of eager PyTorch after each step."""

import copy
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import cleave
from buffer_state import same_state
from cleave.testing.tools import interpret
from cleave.trace import TraceError
from cleave.compiler.entrance import grouped
from proofs import ALL

SGD = dict(lr=0.1, momentum=0.5)


def named(value):
    """The id of a parameter, the same in every process."""
    return getattr(value, "__name__", None) or str(value)


def some(count, *cases):
    """The first of the cases, or all in the long run."""
    return cases if ALL else cases[:count]


class Around(nn.Module):
    """Two layers around `inner`, or around what a test writes as its forward."""

    def __init__(self, inner=None, forward=None, **buffers):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.inner, self.b = nn.Linear(5, 6), inner, nn.Linear(6, 3)
        self.own = forward
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.tanh(self.inner(h) if self.own is None else self.own(self, h)))


class Block(nn.Module):
    """A residual block of convolutions."""

    def __init__(self, width=4):
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm2(self.two(F.relu(self.norm1(self.one(x))))))


class ResNet(nn.Module):
    """A small residual network."""

    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def batches(*shape, count=3, samples=8):
    generator = torch.Generator().manual_seed(1)
    shape = shape or (5,)
    return [(torch.randn(samples, *shape, generator=generator) * 2 + 1,
             torch.randn(samples, 3, generator=generator)) for _ in range(count)]


def torch_step(module, optimizer, x, y, parts=1):
    """One step of PyTorch, that accumulates gradients over `parts`."""
    optimizer.zero_grad()
    total = 0.0
    for own, target in zip(x.chunk(parts), y.chunk(parts)):
        loss = F.mse_loss(module(own), target) / parts
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def train(module, data, parts=1, **settings):
    """Trains by both, and compares after each step and in evaluation; returns the step
    and the module of PyTorch."""
    module = module.train()
    expected = copy.deepcopy(module)
    before = copy.deepcopy(module.state_dict())
    step = cleave.compile(module, data[0], F.mse_loss, optimizer=cleave.SGD(**SGD),
                          **grouped(**{"micro_batches": parts, "check": "off", **settings}))
    optimizer = torch.optim.SGD(expected.parameters(), **SGD)
    for x, y in data:
        loss = torch_step(expected, optimizer, x, y, parts)
        assert float(step(x, y)) == pytest.approx(loss, rel=1e-5)
        same_state(step, expected)
    assert all(torch.equal(v, before[n]) for n, v in module.state_dict().items())
    x, y = data[0]
    state = step.state_dict()
    with torch.no_grad():
        # What eager code writes in evaluation, a step does not.
        predicted = copy.deepcopy(expected).eval()(x)
    assert float(step.evaluate(x, y)) == pytest.approx(F.mse_loss(predicted, y).item(), rel=1e-5)
    torch.testing.assert_close(step.logits(x), predicted, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(v, state[n]) for n, v in step.state_dict().items())
    return step, expected


@pytest.mark.parametrize("settings", some(
    2, {"momentum": 0.3, "eps": 1e-2}, {"momentum": None, "affine": False}, {},
    {"track_running_stats": False},
), ids=named)
def test_batch_norm(settings):
    step, _ = train(Around(nn.BatchNorm1d(6, **settings)), batches(), check="on")
    assert ("inner.running_mean" in step.state_dict()) == settings.get("track_running_stats", True)


def test_batch_norm_of_other_ranks():
    def norms(m, h):
        h = m.one(h.reshape(-1, 2, 3)).reshape(-1, 6)
        return m.three(h.reshape(-1, 2, 1, 1, 3)).reshape(-1, 6)

    module = Around(forward=norms)
    module.one, module.three = nn.BatchNorm1d(2), nn.BatchNorm3d(2)
    train(module, batches())


def instances(**settings):
    """Instance normalisation, whose running statistics are means over the samples."""
    def norms(m, h):
        return m.one(h.reshape(-1, 2, 3)).reshape(-1, 6)

    module = Around(forward=norms)
    module.one = nn.InstanceNorm1d(2, track_running_stats=True, **settings)
    return module


@pytest.mark.parametrize("parts", some(2, 2, 4, 1))
def test_instance_norm(parts):
    step, _ = train(instances(affine=True, momentum=0.3), batches(), parts,
                    batch_statistics="micro-batch")
    assert "one.running_mean" in step.state_dict()


def test_a_residual_network_trains():
    train(ResNet(), batches(3, 6, 6), check="on")


def moving_average(m, h):
    with torch.no_grad():
        m.mean.mul_(0.9).add_(0.1 * h.mean(0))
        m.steps += 1
    return h - m.mean


def old_value(m, h):
    y = h * m.mean.clone()
    with torch.no_grad():
        m.mean.copy_(h.square().mean(0))
    return y


def assigned(m, h):
    m.mean = 0.5 * m.mean + h.detach().amax(0)
    return h


def one_element(m, h):
    with torch.no_grad():
        m.mean[2] = h.mean()
        m.steps.fill_(7)
    return h + m.mean


def from_parameters(m, h):
    with torch.no_grad():
        m.mean.lerp_(m.a.bias, 0.25)
    return h + m.mean


def not_read(m, h):
    m.mean.copy_(h.detach().sum(0))
    return h


@pytest.mark.parametrize("forward", some(3, moving_average, assigned, one_element, old_value,
                                          from_parameters, not_read))
def test_buffers_written_in_forward(forward):
    train(Around(forward=forward, mean=torch.ones(6), steps=torch.tensor(0)), batches())


def test_spectral_norm():
    torch.manual_seed(3)
    step, _ = train(Around(spectral_norm(nn.Linear(6, 6))), batches())
    assert "inner.parametrizations.weight.0._u" in step.state_dict()


def test_a_run_goes_on_from_its_state():
    data = batches(count=4)
    module = Around(nn.BatchNorm1d(6))

    def compiled():
        return cleave.compile(module, data[0], F.mse_loss, optimizer=cleave.AdamW(lr=0.01),
                              check="off")

    whole, first = compiled(), compiled()
    for x, y in data:
        whole(x, y)
    for x, y in data[:2]:
        first(x, y)
    second = compiled()
    second.load_state_dict(first.state_dict())
    second.load_training_state(first.training_state())
    for x, y in data[2:]:
        second(x, y)
    assert all(torch.equal(v, second.state_dict()[n]) for n, v in whole.state_dict().items())
    assert int(second.state_dict()["inner.num_batches_tracked"]) == 4
    module.load_state_dict(second.state_dict())


def test_another_shape_has_the_same_buffers():
    data = [*batches(count=2), *batches(count=2, samples=4)]
    step, expected = train(Around(nn.BatchNorm1d(6)), data)
    assert int(step.state_dict()["inner.num_batches_tracked"]) == 4


@pytest.mark.parametrize("settings", [
    {}, dict(optimizer_fusion="forward"), dict(mesh={"dp": 2}, optimizer_fusion="forward"),
    dict(mesh={"pp": 2}, optimizer_fusion="forward"), dict(mesh={"pp": 2}, post_validation=True)],
    ids=named)
def test_a_step_that_stops_writes_nothing(settings):
    (x, y), (x1, y1), *_ = batches()
    step, whole = (cleave.compile(Around(nn.BatchNorm1d(6)), (x, y), F.mse_loss, check="off",
                                  optimizer=cleave.SGD(lr=0.1, momentum=0.9), **grouped(**settings))
                   for _ in range(2))
    step(x, y)
    whole(x, y)
    before = step.state_dict()
    with pytest.raises(cleave.StepError, match="not finite"):
        step(torch.full_like(x, float("nan")), y)
    assert all(torch.equal(v, before[n]) for n, v in step.state_dict().items())
    # It goes on as if that step had not been.
    assert float(step(x1, y1)) == float(whole(x1, y1))
    with pytest.raises(cleave.StepError, match="not finite"):
        step(x, torch.full_like(y, float("inf")))
    expected = whole.state_dict()
    assert all(torch.equal(v, expected[n]) for n, v in step.state_dict().items())


class Deep(nn.Module):
    """Layers in a row, for the stages of a pipeline."""

    def __init__(self, norm, layers=3):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), norm(), nn.Tanh()) for _ in range(layers))

    def forward(self, x):
        h = self.a(x)
        for layer in self.layers:
            h = h + layer(h)
        return self.b(h)


def batch_norm():
    return nn.BatchNorm1d(6)


def without_affine():
    return nn.BatchNorm1d(6, affine=False)


def normed():
    return spectral_norm(nn.Linear(6, 6))


@pytest.mark.parametrize("norm, settings", some(
    4, (normed, dict(mesh={"pp": 2}, micro_batches=2)),
    (batch_norm, dict(mesh={"dp": 2}, plan="zero3")),
    (batch_norm, dict(mesh={"tp": 2}, plan={"layers.*.0.weight": cleave.P("tp", None)})),
    (batch_norm, dict(optimizer_fusion="forward")),
    (batch_norm, dict(mesh={"dp": 2})),
    (without_affine, dict(mesh={"pp": 2})),
    (normed, dict(mesh={"dp": 2})),
    (batch_norm, dict(optimizer_fusion="backward", check_finite=False)),
), ids=named)
def test_buffers_on_every_mesh(norm, settings):
    train(Deep(norm), batches(), **settings)


@pytest.mark.parametrize("settings", some(
    2, {}, dict(mesh={"pp": 2, "dp": 2}, schedule="zb-h1"), dict(mesh={"dp": 2}),
    dict(mesh={"pp": 2}), dict(mesh={"pp": 2}, post_validation=True),
), ids=named)
def test_statistics_of_micro_batches(settings):
    """As accumulating gradients over as many parts, in order."""
    train(Deep(batch_norm, 2), batches(samples=32, count=2), parts=4,
          batch_statistics="micro-batch", **settings)


def test_statistics_of_ranks():
    """Each rank normalises its own samples; running statistics are those of the first."""
    (x, y), *_ = batches(samples=16)
    module = Around(nn.BatchNorm1d(6)).train()
    step = cleave.compile(module, (x, y), F.mse_loss, optimizer=cleave.SGD(**SGD), micro_batches=2,
                          mesh={"dp": 2}, numerics=cleave.Numerics(batch_statistics="rank"),
                          check="off")
    ranks = [copy.deepcopy(module) for _ in range(2)]
    # Of each micro-batch, rank 0 has the first half.
    parts = list(zip(x.chunk(4), y.chunk(4)))
    for number, rank in enumerate(ranks):
        for own, target in parts[number::2]:
            (F.mse_loss(rank(own), target) / 4).backward()
    for one, other in zip(*(r.parameters() for r in ranks)):
        one.grad += other.grad
    torch.optim.SGD(ranks[0].parameters(), **SGD).step()
    step(x, y)
    same_state(step, ranks[0])


@pytest.mark.parametrize("forward", [old_value, assigned])
def test_buffers_of_the_whole_batch_in_micro_batches(forward):
    """What no micro-batch reads before it is complete is that of the whole batch."""
    train(Around(forward=forward, mean=torch.ones(6)), batches(), micro_batches=4, mesh={"dp": 2})


@pytest.mark.parametrize("forward, settings, message", [
    (None, dict(micro_batches=2), r"test_written_buffers.py:\d+: batch normalisation needs the "
     r"statistics of the whole batch, of which 2 micro-batches .*batch_statistics=\"micro-batch\""),
    (None, dict(deterministic=2), "leave out deterministic"),
    (moving_average, dict(micro_batches=2), "the model couples samples of the batch"),
    (None, dict(grad_horizon=1, modules=["b."]), "a gradient horizon does not go with buffers"),
    (None, dict(mesh={"pp": 2}, micro_batches=2, schedule="pipedream", check_finite=False),
     "writes to buffer .* asynchronous schedule"),
], ids=named)
def test_what_is_refused(forward, settings, message):
    inner = nn.BatchNorm1d(6) if forward is None else None
    module = Around(inner, forward, mean=torch.ones(6), steps=torch.tensor(0))
    with pytest.raises(cleave.CompileError, match=message):
        cleave.compile(module, batches()[0], F.mse_loss, check="off", **grouped(**settings))


def test_a_cumulative_average_needs_the_whole_batch():
    with pytest.raises(TraceError, match="momentum=None .* give it a momentum"):
        cleave.compile(Around(nn.BatchNorm1d(6, momentum=None)), batches()[0], F.mse_loss,
                       micro_batches=2, numerics=cleave.Numerics(batch_statistics="micro-batch"))


@pytest.mark.parametrize("settings", some(1, dict(mesh={"pp": 2}), {}, dict(mesh={"dp": 2})), ids=named)
def test_the_interpreter_agrees_in_every_phase(settings):
    (x, y), *_ = batches()
    step = cleave.compile(Deep(batch_norm, 2), (x, y), F.mse_loss, optimizer=cleave.SGD(lr=0.1),
                          micro_batches=2, check="off",
                          **grouped(batch_statistics="micro-batch", **settings))
    names = step.ir("model").split("@loss(")[1].split("->")[0]
    names = re.findall(r'graph.name = "([^"]+)"', names)
    given = {n: t.numpy() for n, t in step.state_dict().items()}
    given |= {"x": x.numpy(), "target": y.numpy(), "lr": np.float32(0.1), "step": np.int64(1)}
    assert set(names) <= set(given)
    step(x, y)
    expected = step.state_dict()
    for phase in ("step", "placed", "local", "scheduled"):
        results, _ = interpret(step.ir(phase), given, entry="train", mode="typed")
        for name, value in expected.items():
            np.testing.assert_allclose(results[name].reshape(value.shape), value.numpy(), rtol=1e-5,
                                       atol=1e-5, err_msg=f"{phase}: {name}")
