# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Code that changes gradients in a way that a compiled step does not support is refused at its
line; so are random numbers of other generators."""

import inspect
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave.trace
from cleave.trace import TraceError
from eager_support import X, Y, Two, compiled, eager, nothing_is_left, same  # noqa: F401


def detach_in_place(m, x):
    return m.b(m.a(x).detach_())


def detached_and_written(m, x):
    y = m.a(x)
    y.detach().mul_(2)
    return m.b(y)


def written_behind_detached(m, x):
    y = m.a(x) + 0
    d = y.detach()
    y.mul_(2)
    return m.b(y) + d


def detached_twice_and_written(m, x):
    y = m.a(x)
    d = y.detach()
    d.detach().mul_(2)
    return m.b(y)


def written_under_no_grad(m, x):
    y = m.a(x)
    with torch.no_grad():
        y.view(-1)[0] = 0
    return m.b(y)


def parameter_under_no_grad(m, x):
    with torch.no_grad():
        m.a.weight.clamp_(-0.1, 0.1)
    return m.b(m.a(x))


def parameter_data(m, x):
    m.a.weight.data.clamp_(-0.1, 0.1)
    return m.b(m.a(x))


def set_data(m, x):
    y = m.a(x)
    y.data = x * 2
    return m.b(y)


def register_hook(m, x):
    t = m.a(x)
    t.register_hook(lambda gradient: 0 * gradient)
    return m.b(t)


def retain_grad(m, x):
    t = m.a(x)
    t.retain_grad()
    return m.b(t)


def autograd_grad(m, x):
    x = x.clone().requires_grad_(True)
    return m.b(torch.autograd.grad(m.a(x).sin().sum(), x, create_graph=True)[0])


def backward(m, x):
    m.a(x).sum().backward(retain_graph=True)
    return m.b(m.a(x))


def func_grad(m, x):
    return m.b(torch.func.grad(lambda y: m.a(y).sin().sum())(x))


def freeze(m, x):
    m.a.requires_grad_(False)
    return m.b(m.a(x))


def set_requires_grad(m, x):
    m.a.weight.requires_grad = False
    return m.b(m.a(x))


def saved_tensors(m, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return m.b(m.a(x).sin())


def read_gradient(m, x):
    return m.b(m.a(x)) * (1 if m.a.weight.grad is None else 2)


REFUSED = {
    detach_in_place: "write x = x.detach", detached_and_written: "shares its memory",
    written_behind_detached: "shares its memory", detached_twice_and_written: "shares its memory",
    written_under_no_grad: "under no_grad", parameter_under_no_grad: "parameter 'a.weight' is written",
    parameter_data: "parameter 'a.weight' is written", set_data: r"assigning \.data",
    register_hook: "register_hook", retain_grad: "retain_grad",
    autograd_grad: "gradient is computed in the forward",
    backward: "gradient is computed in the forward",
    func_grad: "gradient is computed in the forward", freeze: "requires_grad of a parameter",
    set_requires_grad: "requires_grad of a parameter", saved_tensors: "saved_tensors_hooks",
    read_gradient: r"reading \.grad",
}


@pytest.mark.parametrize("forward", REFUSED, ids=lambda f: f.__name__)
def test_refused_at_its_line(forward):
    lines, first = inspect.getsourcelines(forward)
    with pytest.raises(TraceError, match=REFUSED[forward]) as caught:
        cleave.trace.trace(Two(forward), (X, Y), F.mse_loss)
    file, line, _ = str(caught.value).split(":", 2)
    assert file == __file__ and first < int(line) < first + len(lines)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_of_other_generators_are_refused(draw):
    random.seed(3)
    np.random.seed(3)
    before = random.getstate()
    with pytest.raises(TraceError, match="random numbers of Python or NumPy"):
        cleave.trace.trace(Two(lambda m, x: m.b(m.a(x)) * draw()), (X, Y), F.mse_loss)
    assert random.getstate() == before


@pytest.mark.parametrize("draw", [lambda: random.uniform(0, 1), lambda: np.random.normal()])
def test_the_line_that_draws_is_said(draw):
    own = random.uniform, np.random.normal
    with pytest.raises(TraceError, match=r"test_autograd_refused.py:\d+: the forward draws random numbers"):
        cleave.trace.trace(Two(lambda m, x: m.b(m.a(x)) * draw()), (X, Y), F.mse_loss)
    assert (random.uniform, np.random.normal) == own


#: Numbers that are compared with a bound which they are always on one side of.
DECIDED = {
    "a layer left out with probability 0": lambda m, x: m.b(
        x if random.uniform(0, 1) < 0.0 else m.a(x)),
    "NumPy": lambda m, x: m.b(x if np.random.rand() < 0 else m.a(x)),
    "by name": lambda m, x: m.b(m.a(x) if np.random.uniform(low=2, high=3) >= 1.5 else x),
    "reversed": lambda m, x: m.b(x if 0.0 > random.random() else m.a(x)),
    "always": lambda m, x: m.b(m.a(x) if np.random.random() <= 1.0 else x),
}
UNDECIDED = {
    "a probability": lambda m, x: m.b(x if random.random() < 0.1 else m.a(x)),
    "a bound": lambda m, x: m.b(x if random.uniform(0, 1) <= 0 else m.a(x)),
    "a tensor": lambda m, x: m.b(m.a(x) * (random.random() < x)),
    "a number": lambda m, x: m.b(m.a(x)) * torch.full((), random.random()),
    "an argument": lambda m, x: m.b(F.dropout(m.a(x), np.random.rand())),
    "a function of Python": lambda m, x: m.b(m.a(x)) * math.sqrt(random.random()),
    "arithmetic": lambda m, x: m.b(x if 2 * random.random() - 3 > 0 else m.a(x)),
    "a key": lambda m, x: m.b(m.a(x)) * {random.random(): 1.0}.get(0.5, 2.0),
    "a truth": lambda m, x: m.b(m.a(x) if random.random() else x),
    "many": lambda m, x: m.b(x if np.random.rand(3).max() < 0 else m.a(x)),
    "of tensors": lambda m, x: m.b(x if random.uniform(0, x[0, 0]) < 0 else m.a(x)),
}


@pytest.mark.parametrize("name", DECIDED)
def test_numbers_that_decide_nothing_are_not_drawn(name):
    random.seed(3)
    before = random.getstate()
    same(compiled(Two(DECIDED[name])), eager(Two()))
    assert random.getstate() == before


@pytest.mark.parametrize("name", UNDECIDED)
def test_numbers_that_decide_are_refused(name):
    with pytest.raises(TraceError, match="random numbers of Python or NumPy") as caught:
        cleave.trace.trace(Two(UNDECIDED[name]), (X, Y), F.mse_loss)
    assert f"{__file__}:{UNDECIDED[name].__code__.co_firstlineno}" in str(caught.value)


def share_data(m):
    m.b.weight.data = m.a.weight.data


def share_part(m):
    m.b.bias = nn.Parameter(m.a.weight.data[2])


def hold_detached(m):
    m.held = [m.a.weight.detach()]
    m.compute = lambda m, x: m.b(m.a(x @ m.held[0]))


def hold_other(m):
    m.held = [nn.Parameter(torch.ones(4, 4))]
    m.compute = lambda m, x: m.b(m.a(x @ m.held[0]))


HOOKS = {
    "backward": (lambda m: m.b.register_full_backward_hook(lambda *_: None), "module 'b' has"),
    "backward of all": (lambda m: m.register_full_backward_hook(lambda *_: None), "the model has"),
    "before backward": (lambda m: m.b.register_full_backward_pre_hook(lambda *_: None),
                        "module 'b' has"),
    "parameter": (lambda m: m.b.weight.register_hook(lambda g: g * 0), "'b.weight' has hooks"),
    "accumulated": (lambda m: m.b.weight.register_post_accumulate_grad_hook(lambda p: None),
                    "'b.weight' has hooks"),
    "shared data": (share_data, "'a.weight' and 'b.weight' share memory"),
    "shared part": (share_part, "'a.weight' and 'b.bias' share memory"),
    "detached parameter": (hold_detached, "shares the memory of parameter 'a.weight'"),
    "parameter of nobody": (hold_other, "not a parameter of the model"),
}


@pytest.mark.parametrize("name", HOOKS)
def test_what_was_done_to_a_module_is_refused(name):
    prepare, message = HOOKS[name]
    with pytest.raises(TraceError, match=message):
        cleave.trace.trace(Two(prepare=prepare), (X, Y), F.mse_loss)


def test_backward_hooks_of_all_modules_are_refused():
    handle = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    try:
        with pytest.raises(TraceError, match="global backward hooks of modules"):
            cleave.trace.trace(Two(), (X, Y), F.mse_loss)
    finally:
        handle.remove()


def written_through_detach(m, x):
    m.total.detach().add_(1)
    return m.b(m.a(x)) * m.total


def replaced_by_another_shape(m, x):
    m.total = m.total[None]
    return m.b(m.a(x)) * m.total


@pytest.mark.parametrize("forward, message", [
    (written_through_detach, r"test_autograd_refused.py:\d+: buffer 'total' is written to through detach"),
    (replaced_by_another_shape, r"buffer 'total' is replaced by one of another shape or type"),
])
def test_buffers_that_cannot_be_written_are_refused(forward, message):
    module = Two(forward, lambda m: m.register_buffer("total", torch.zeros(())))
    with pytest.raises(TraceError, match=message):
        cleave.trace.trace(module, (X, Y), F.mse_loss)
