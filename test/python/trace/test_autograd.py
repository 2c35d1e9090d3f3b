# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Gradients of code that changes them in eager PyTorch (no_grad, detach, checkpoint, hooks) are
those of autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import cleave
from eager_support import X, Y, Two, compiled, eager, same


def no_grad(m, x):
    with torch.no_grad():
        t = m.a(x)
    return m.b(t)


def inference_mode(m, x):
    with torch.inference_mode():
        t = m.a(x)
    return m.b(x) + t


def set_grad_enabled(m, x):
    torch.set_grad_enabled(False)
    t = m.a(x)
    torch.set_grad_enabled(True)
    return m.b(t)


def nested(m, x):
    with torch.no_grad():
        t = m.a(x)
        with torch.enable_grad():
            u = m.b(t * 2)
        v = u * 3
    return u + v + t


@torch.no_grad()
def _decorated(m, x):
    return m.a(x)


def no_grad_view(m, x):
    with torch.no_grad():
        w = m.a.weight.T
    return m.b(x @ w)


def no_grad_write(m, x):
    z = torch.zeros(8, 4)
    with torch.no_grad():
        z += m.a(x)
        z[:, 1] = m.a(x)[:, 2]
    return m.b(z)


def detach_and_add(m, x):
    t = (x * 2).detach()
    t += m.a(x)
    return m.b(x) + t


def write_to_a_view_of_detached(m, x):
    t = m.a(x).detach()
    t[:, 0] = m.b(x)[:, 0]
    t.view(-1)[3:5].mul_(2)
    return t + m.b(x)


def straight_through(m, x):
    y = m.a(x)
    z = m.b(y)
    return y + (z - y).detach()


def reversal(m, x):
    y = m.a(x)
    return m.b(2 * y.detach() - y)


def detach_of_no_gradient(m, x):
    return m.b(m.a(x.detach_()))


def checkpointed(m, x):
    return checkpoint(lambda x: m.b(m.a(x)), x, use_reentrant=False)


def reentrant(m, x):
    return checkpoint(lambda x: m.b(m.a(x)), x * m.a.bias, use_reentrant=True)


def reentrant_without_gradient(m, x):
    return m.b(checkpoint(m.a, x, use_reentrant=True))


def input_that_requires_grad(m, x):
    return m.b(m.a(x.clone().requires_grad_(True)))


class Double(torch.autograd.Function):
    """A function whose backward does not matter where nothing has a gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7


HONOURED = {
    "no_grad": no_grad, "inference_mode": inference_mode, "set_grad_enabled": set_grad_enabled,
    "nested": nested, "no_grad decorator": lambda m, x: m.b(_decorated(m, x)),
    "no_grad view": no_grad_view, "no_grad write": no_grad_write,
    "detach": lambda m, x: m.b(m.a(x).detach()),
    "torch.detach": lambda m, x: m.b(torch.detach(m.a(x))),
    ".data": lambda m, x: m.b(m.a(x).data),
    "detach and add": detach_and_add, "write to a view": write_to_a_view_of_detached,
    "straight through": straight_through, "reversal": reversal,
    "detach_ of an input": detach_of_no_gradient,
    "checkpoint": checkpointed, "reentrant checkpoint": reentrant,
    "reentrant checkpoint, no gradient": reentrant_without_gradient,
    "input that requires grad": input_that_requires_grad,
    "function of an input": lambda m, x: m.b(m.a(Double.apply(x))),
    "function under no_grad": lambda m, x: m.b(x) + _decorated_double(m, x),
    "vmap": lambda m, x: torch.vmap(lambda row: m.b(m.a(row)))(x),
}


@torch.no_grad()
def _decorated_double(m, x):
    return Double.apply(m.a(x))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", HONOURED)
def test_gradients_are_those_of_autograd(name):
    module = Two(HONOURED[name])
    same(compiled(module), eager(module))


def forward_hooks(m):
    m.b.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    m.a.register_forward_hook(lambda module, inputs, output: output.sin())


def frozen(m):
    m.a.requires_grad_(False)


def list_of_parameters(m):
    m.held = [m.a.weight]
    m.compute = lambda m, x: m.b(m.a(x @ m.held[0]))


PREPARED = {
    "forward hooks": forward_hooks, "frozen": frozen, "list of parameters": list_of_parameters,
    "weight_norm": lambda m: nn.utils.parametrizations.weight_norm(m.a),
    "symmetric": lambda m: nn.utils.parametrize.register_parametrization(
        m.a, "weight", Symmetric()),
}


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


@pytest.mark.parametrize("name", PREPARED)
def test_what_was_done_to_a_module_is_honoured(name):
    module = Two(prepare=PREPARED[name])
    same(compiled(module), eager(module))


def test_a_loss_that_reads_the_model():
    module = Two()
    weight = module.a.weight

    def loss_fn(output, target):
        return F.mse_loss(output, target) + weight.square().sum() + module.b.bias.sum()

    expected = torch.autograd.grad(loss_fn(module(X), Y), list(module.parameters()))
    ours = compiled(module, loss_fn)[1]
    for (name, _), gradient in zip(module.named_parameters(), expected):
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_a_model_compiled_under_no_grad_is_trained():
    module = Two()
    with torch.no_grad():
        ours = compiled(module)
    same(ours, eager(module))


def test_what_has_no_gradient_is_not_decayed():
    """Torch's optimizers skip a parameter whose .grad is None."""
    module = Two(no_grad)
    step = cleave.compile(module, (X, Y), F.mse_loss, target=cleave.Target(threads=1),
                          optimizer=cleave.AdamW(lr=0.1, weight_decay=0.5))
    step(X, Y)
    assert torch.equal(step.state_dict()["a.weight"], module.a.weight)
    assert not torch.equal(step.state_dict()["b.weight"], module.b.weight)
