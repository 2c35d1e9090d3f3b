# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Python state that a forward changes, in attributes, lists and closures: computed by each
step where that is equal, refused at its line where it is not."""

import inspect
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cleave.trace
from cleave.trace import TraceError
from eager_support import X, Y, Two, compiled, eager, nothing_is_left, same  # noqa: F401


def table(m, x):
    """A table made by the first forward that needs it."""
    if getattr(m, "table", None) is None:
        m.table = torch.arange(4.0)[None] * 2
    return m.b(m.a(x)) * m.table


def tables(m, x):
    """The same by length, in a dictionary and a list."""
    if len(x) not in m.kept:
        m.kept[len(x)] = torch.ones(len(x), len(x)).tril()
        m.listed.append(torch.ones(4).cumsum(0))
    return m.b(m.kept[len(x)] @ m.a(x)) * m.listed[0]


def balance(m, x):
    """A part of the loss that leaves by an attribute: each forward writes it first."""
    y = m.a(x)
    m.balance = y.square().mean()
    m.seen = [y]
    return m.b(y) + m.balance


def prepare(m):
    m.kept, m.listed = {}, []


@pytest.mark.parametrize("forward", [table, tables, balance], ids=lambda f: f.__name__)
def test_what_every_forward_computes_alike(forward):
    module = Two(forward, prepare)
    before = {k: v for k, v in module.__dict__.items() if not k.startswith("_")}
    found = compiled(module)
    assert module.__dict__.keys() >= before.keys() and not module.kept and not module.listed
    assert not {"table", "balance", "seen"} & module.__dict__.keys()
    same(found, eager(module))


def first_input(m, x):
    if m.first is None:
        m.first = x[0] * 2
    return m.b(m.a(x)) * m.first


def running_mean(m, x):
    mean = m.a(x).mean(0).detach()
    m.first = mean if m.first is None else 0.9 * m.first + 0.1 * mean
    return m.b(m.a(x)) - m.first


def random_table(m, x):
    if m.first is None:
        m.first = torch.randn(4)
    return m.b(m.a(x)) * m.first


def in_a_list(m, x):
    m.listed[0] = x if m.listed[0] is None else m.listed[0]
    return m.b(m.a(x)) * m.listed[0]


def in_a_list_of_a_list(m, x):
    m.nested[0].append(m.a(x))
    return m.b(m.nested[0][0])


def counter(m, x):
    m.count += 1
    return m.b(m.a(x)) / m.count


def counter_beside_tensors(m, x):
    """One that is the same in each forward, and a part of the loss."""
    m.table, y = torch.arange(4.0)[None] * 2, m.a(x)
    m.balance = y.square().mean()
    m.count += 1
    return m.b(y) / m.count + m.balance * m.table


def counts(m, x):
    m.listed.append(len(m.listed))
    return m.b(m.a(x)) * len(m.listed)


def first_forward(m, x):
    y = m.a(x) if m.count else m.a(x) * 2
    m.count = 1
    return m.b(y)


def length(m, x):
    """A number that is the same in each forward."""
    m.count = x.shape[0]
    return m.b(m.a(x)) / m.count


def length_of_a_table(m, x):
    if m.count < x.shape[0]:
        m.count, m.table = x.shape[0], torch.arange(4.0)[None] * 2
    return m.b(m.a(x)) * m.table


def sizes(m, x):
    """Other objects of the same numbers in each forward."""
    m.shape, m.lengths, m.weights = tuple(x.shape), [len(x)], np.full(4, 0.5, np.float32)
    m.info = types.SimpleNamespace(samples=len(x))
    return m.b(m.a(x)) * torch.tensor(m.weights) / m.info.samples


def zero(m):
    m.count, m.listed, m.table = 0, [], None


@pytest.mark.parametrize("forward", [counter, counter_beside_tensors, counts, first_forward], ids=lambda f: f.__name__)
def test_numbers_that_change_are_refused(forward):
    lines, first = inspect.getsourcelines(forward)
    name = "listed" if forward is counts else "count"
    with pytest.raises(TraceError, match=f"'{name}' .*does not change") as caught:
        cleave.trace.trace(Two(forward, zero), (X, Y), F.mse_loss)
    if forward is not counts:
        file, line, _ = str(caught.value).split(":", 2)
        assert file == __file__ and first < int(line) <= first + len(lines)


@pytest.mark.parametrize("forward", [length, length_of_a_table, sizes], ids=lambda f: f.__name__)
def test_numbers_that_remain(forward):
    module = Two(forward, zero)
    found = compiled(module)
    assert module.count == 0 and module.table is None
    same(found, eager(module))


def empty(m):
    m.first, m.listed, m.nested = None, [None], [[]]


@pytest.mark.parametrize("forward", [first_input, running_mean, random_table, in_a_list,
                                     in_a_list_of_a_list], ids=lambda f: f.__name__)
def test_what_changes_with_the_inputs_is_refused_at_its_line(forward):
    lines, first = inspect.getsourcelines(forward)
    with pytest.raises(TraceError, match="an earlier forward computed") as caught:
        cleave.trace.trace(Two(forward, empty), (X, Y), F.mse_loss)
    file, line, _ = str(caught.value).split(":", 2)
    assert file == __file__ and first + len(lines) - 2 <= int(line) <= first + len(lines)


def test_statistics_in_a_buffer_are_no_constants():
    """A table that is made of a buffer which the forward writes."""
    def forward(m, x):
        m.scale.mul_(0.5)
        if m.first is None:
            m.first = m.scale * 2
        return m.b(m.a(x)) * m.first

    def scaled(m):
        m.first = None
        m.register_buffer("scale", torch.ones(4))

    with pytest.raises(TraceError, match="an earlier forward computed"):
        cleave.trace.trace(Two(forward, scaled), (X, Y), F.mse_loss)


class Cached(torch.nn.Module):
    """Keeps in evaluation what it makes of a parameter, until it is trained again."""

    def __init__(self):
        super().__init__()
        self.norm, self.a = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)
        self.scale, self.kept = torch.nn.Parameter(torch.randn(4)), {}

    def train(self, mode=True):
        self.kept = {}
        return super().train(mode)

    def forward(self, x):
        if self.training:
            scale = self.scale.exp()
        else:
            scale = self.kept.setdefault("cpu", self.scale.exp())
        return self.a(self.norm(x)) * scale


def test_what_evaluation_keeps_of_parameters():
    torch.manual_seed(0)
    model, y = Cached(), torch.randn(8, 4)
    x = torch.randn(8, 4)
    step = cleave.compile(model, (x, y), F.mse_loss, optimizer=cleave.SGD(lr=0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with torch.no_grad():
            assert float(step.evaluate(x, y)) == pytest.approx(
                float(F.mse_loss(model.eval()(x), y)), rel=1e-5)
        loss = F.mse_loss(model.train()(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert float(step(x, y)) == pytest.approx(float(loss), rel=1e-5)


def in_an_object(m, x):
    m.holder.count += 1
    return m.b(m.a(x)) * m.holder.count


def tensor_in_an_object(m, x):
    y = m.a(x)
    if m.training:
        m.holder.count = y.detach().mean(0) + m.holder.count
        y = y - m.holder.count
    return m.b(y)


def in_a_set(m, x):
    m.seen.add(len(m.seen))
    return m.b(m.a(x)) * len(m.seen)


def in_an_array(m, x):
    m.array *= 0.5
    return m.b(m.a(x)) * torch.tensor(m.array)


def another_array(m, x):
    m.array = m.array * 0.5
    return m.b(m.a(x)) * torch.tensor(m.array)


def mode(m, x):
    y = m.norm(m.a(x))
    m.norm.eval()
    return m.b(y)


def hold(m):
    m.holder, m.seen = types.SimpleNamespace(count=0), set()
    m.array, m.norm = np.ones(4, np.float32), torch.nn.BatchNorm1d(4)


@pytest.mark.parametrize("forward", [in_an_object, tensor_in_an_object, in_a_set, in_an_array,
                                     another_array, mode],
                         ids=lambda f: f.__name__)
def test_what_is_kept_elsewhere_is_refused(forward):
    module = Two(forward, hold)
    with pytest.raises(TraceError, match="changes in each forward|affects what the next one |"
                                         "an earlier forward computed"):
        cleave.trace.trace(module, (X, Y), F.mse_loss)
    assert module.holder.count == 0 and not module.seen and module.array.tolist() == [1.0] * 4
    assert module.norm.training


def test_counts_of_a_loss_are_refused():
    count = [0]

    def loss(output, target):
        count[0] += 1
        return F.mse_loss(output, target) * count[0]

    with pytest.raises(TraceError, match="'the loss function' changes in each forward"):
        cleave.trace.trace(Two(lambda m, x: m.b(m.a(x))), (X, Y), loss)
    assert count == [0]


class Running(torch.nn.Module):
    """A loss that keeps its running mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, output, target):
        loss = F.mse_loss(output, target)
        self.mean.mul_(0.9).add_(loss.detach() * 0.1)
        return loss


def closure():
    means = {"own": [torch.zeros(2)]}

    def loss(output, target):
        value = F.mse_loss(output, target)
        means["own"][0][1] = value.detach()
        return value
    return loss


def module_in_a_closure():
    part = Running()
    return lambda output, target: part(output, target)


def by_out():
    kept = torch.zeros(4, 4)
    return lambda output, target: F.mse_loss(torch.add(output.detach(), 1, out=kept) * output, target)


@pytest.mark.parametrize("make, name", [
    (Running, "'mean' of the loss function"), (closure, "'own' of the loss function"),
    (module_in_a_closure, "'mean' of the loss function"), (by_out, "a tensor of the loss function"),
])
def test_tensors_that_a_loss_writes_are_named(make, name):
    with pytest.raises(TraceError, match=rf"test_forward_state.py:\d+: {name} is written to in the forward, "
                       r"and is not a buffer of the model.*register_buffer"):
        cleave.trace.trace(Two(lambda m, x: m.b(m.a(x))), (X, Y), make())


def test_tensors_of_a_model_that_are_no_buffers():
    def forward(m, x):
        m.part.seen += 1
        return m.b(m.a(x))

    def prepare(m):
        m.part = torch.nn.Module()
        m.part.seen = torch.zeros(3)

    module = Two(forward, prepare)
    with pytest.raises(TraceError, match="'part.seen' is written to"):
        cleave.trace.trace(module, (X, Y), F.mse_loss)
    assert module.part.seen.tolist() == [0.0] * 3
