# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What eager code does to gradients is honoured as autograd does it, or refused at
its line."""

import copy
import inspect
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import cleave
import cleave.trace
from cleave.trace import TraceError

X, Y = (torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


class Two(nn.Module):
    """Two layers, around which a test writes its forward."""

    def __init__(self, forward=None, prepare=None):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.compute = forward or (lambda m, x: m.b(m.a(x)))
        if prepare:
            prepare(self)

    def forward(self, x):
        return self.compute(self, x)


def eager(module, loss_fn=F.mse_loss):
    """The loss and the gradients of autograd by name; None where it has none."""
    module = copy.deepcopy(module)
    loss = loss_fn(module(X.clone()), Y)
    loss.backward()
    return float(loss), {n: p.grad for n, p in module.named_parameters()}


def compiled(module, loss_fn=F.mse_loss, **options):
    """The loss and the gradients of a compiled step, as those of `eager`."""
    step = cleave.compile(module, (X, Y), loss_fn, threads=1,
                          optimizer=cleave.SGD(lr=0.1, momentum=0.5), **options)
    loss = step(X, Y)
    slots = step.training_state()["optimizer"]
    return float(loss), {n: slots[n]["momentum_buffer"] if n in slots else None
                         for n, _ in module.named_parameters()}


def same(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    for name, expected in theirs[1].items():
        found = ours[1][name]
        assert (found is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7, msg=name)


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
    step = cleave.compile(module, (X, Y), F.mse_loss, threads=1,
                          optimizer=cleave.AdamW(lr=0.1, weight_decay=0.5))
    step(X, Y)
    assert torch.equal(step.state_dict()["a.weight"], module.a.weight)
    assert not torch.equal(step.state_dict()["b.weight"], module.b.weight)


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


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


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


class Clipped(torch.autograd.Function):
    """Clips its gradient, by a setup of its own."""

    @staticmethod
    def forward(x, most):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.most = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-ctx.most, ctx.most), None


@pytest.mark.parametrize("function", [Reverse, Round])
def test_functions_with_a_backward_are_refused(function):
    module = Two(lambda m, x: m.b(function.apply(m.a(x))))
    with pytest.raises(TraceError, match=rf"test_eager.py:\d+: {function.__name__} is an autogr"):
        cleave.trace.trace(module, (X, Y), F.mse_loss)


def test_a_function_that_clips_its_gradient_is_refused():
    with pytest.raises(TraceError, match="Clipped is an autograd.Function"):
        cleave.trace.trace(Two(lambda m, x: m.b(Clipped.apply(m.a(x), 1.0))), (X, Y), F.mse_loss)


class FarClipped(torch.autograd.Function):
    """Clips gradients that a small model does not have."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-100, 100)


class Sparse(FarClipped):
    """Drops small gradients."""

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (gradient.abs() > 1e-4)


class OneAtZero(torch.autograd.Function):
    """Another derivative at a kink."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0] >= 0)


@pytest.mark.parametrize("function", [FarClipped, Sparse, OneAtZero])
def test_a_backward_that_differs_somewhere_is_refused(function):
    with pytest.raises(TraceError, match=f"{function.__name__} is an autograd.Function"):
        cleave.trace.trace(Two(lambda m, x: m.b(function.apply(m.a(x)))), (X, Y), F.mse_loss)


@pytest.mark.parametrize("reentrant", [False, True])
def test_buffers_written_within_a_checkpoint_are_refused(reentrant):
    """Eager code writes them again in backward."""
    def forward(m, x):
        return m.b(checkpoint(lambda y: m.norm(y).relu(), m.a(x), use_reentrant=reentrant))

    module = Two(forward, lambda m: m.add_module("norm", nn.BatchNorm1d(4)))
    with pytest.raises(TraceError, match="test_eager.py:[0-9]+: buffer 'norm.* twice a step"):
        cleave.trace.trace(module, (X, Y), F.mse_loss)
    module.norm.eval()
    cleave.trace.trace(module, (X, Y), F.mse_loss)


class Swish(torch.autograd.Function):
    """Saves memory; its backward is the derivative."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * torch.sigmoid(scale * x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        s = torch.sigmoid(ctx.scale * x)
        return gradient * (s + ctx.scale * x * s * (1 - s)), None


def test_a_function_whose_backward_is_its_derivative_is_honoured():
    module = Two(lambda m, x: m.b(Swish.apply(m.a(x), 1.5)))
    same(compiled(module), eager(module))


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
    with pytest.raises(TraceError, match=r"test_eager.py:\d+: the forward draws random numbers"):
        cleave.trace.trace(Two(lambda m, x: m.b(m.a(x)) * draw()), (X, Y), F.mse_loss)
    assert (random.uniform, np.random.normal) == own


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
        with pytest.raises(TraceError, match="backward hooks of all modules"):
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
    (written_through_detach, r"test_eager.py:\d+: buffer 'total' is written to through detach"),
    (replaced_by_another_shape, r"buffer 'total' is replaced by one of another shape or type"),
])
def test_buffers_that_cannot_be_written_are_refused(forward, message):
    module = Two(forward, lambda m: m.register_buffer("total", torch.zeros(())))
    with pytest.raises(TraceError, match=message):
        cleave.trace.trace(module, (X, Y), F.mse_loss)


def masked_parameter(m, x):
    return m.b(m.a(x)) + m.a.weight[m.a.weight > 0].sum()


def masked_input(m, x):
    return m.b(m.a(x)) + x[x > 0].sum()


def nonzero(m, x):
    return m.b(m.a(x)) + m.a.bias[x[0].nonzero()].sum()


def unique(m, x):
    return m.b(m.a(x)) + torch.unique(x.long()).sum()


def item(m, x):
    return m.b(m.a(x)) * x[0, 0].item()


def to_list(m, x):
    return m.b(m.a(x)) * sum(x[0].tolist())


def to_numpy(m, x):
    return m.b(m.a(x)) * float(x.numpy().sum())


def condition(m, x):
    return m.b(m.a(x)) if x.sum() > 0 else m.b(x)


def tensor_of_tensors(m, x):
    return m.b(m.a(x)) * torch.tensor([x.sum(), x.mean()]).sum()


@pytest.mark.parametrize("forward", [masked_parameter, masked_input, nonzero, unique, item,
                                     to_list, to_numpy, condition, tensor_of_tensors],
                         ids=lambda f: f.__name__)
def test_what_depends_on_values_is_refused_at_its_line(forward):
    lines, first = inspect.getsourcelines(forward)
    with pytest.raises((TraceError, cleave.trace.UnsupportedError)) as caught:
        cleave.trace.trace(Two(forward), (X, Y), F.mse_loss)
    text = str(caught.value)
    assert f"{__file__}:{first + len(lines) - 1}: " in text and "depends on the values" in text
    assert "torch.where" in text and "GuardOn" not in text and "Fake" not in text


def test_a_rule_that_does_not_fit_leaves_its_operator_unconverted(monkeypatch):
    """The others are taken apart by theirs."""
    original = cleave.trace.decompose._decomposition

    def refuse(*args, **kwargs):
        raise RuntimeError("output has alias annotations: prims::broadcast_in_dim")

    monkeypatch.setattr(cleave.trace.decompose, "_decomposition", lambda target: refuse
                        if target is torch.ops.aten.logaddexp.default else original(target))
    module = Two(lambda m, x: torch.logaddexp(m.b(m.a(x)), torch.hypot(x, x)) + torch.block_diag(
        m.a.bias[:4], x[:2])[:1, :4])
    with pytest.raises(cleave.trace.UnsupportedError, match=r"aten.logaddexp.default: no conv") as e:
        cleave.trace.trace(module, (X, Y), F.mse_loss)
    assert "block_diag" not in str(e.value)


@pytest.mark.parametrize("compute", [
    lambda p: (p.half() * 0.25 * 70000.0).float() * 1e-4, lambda p: (p.half() * 6 / 70000.0).float(),
    lambda p: (p.bfloat16() * 3.3).float(), lambda p: (p.bfloat16() + 1e-8).float() * 3],
    ids=["product", "quotient", "rounded", "sum"])
def test_numbers_that_16_bits_do_not_hold(compute):
    """Eager code rounds the result alone."""
    def forward(m, x):
        return m.b(m.a(x)) + compute(m.scale)

    module = Two(forward, lambda m: m.register_parameter(
        "scale", nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 0.1]))))
    same(compiled(module, check="off"), eager(module))
