# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`cleave.compile` compares what it compiled with eager PyTorch."""

import copy
import ctypes
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
import cleave.compiler.check
import cleave.trace
from check_support import as_for_users, broken, on_tanh, scaled  # noqa: F401
from cleave.trace.registry import CONVERTERS, aten
from cleave.compiler.entrance import grouped
from random_draws import Drawing, check_draws
from training_support import family, gpt2, named_tokens, net, token_loss, tokens

X, Y = (torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


class Net(nn.Module):
    """Two layers with a norm, dropout and an activation between them."""

    def __init__(self, p=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 6)
        self.norm = nn.LayerNorm(5)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return self.b(self.drop(torch.tanh(self.norm(self.a(x)))))


def compile_net(module=None, **options):
    return cleave.compile(Net() if module is None else module, (X, Y), F.mse_loss,
                          optimizer=cleave.SGD(lr=0.1), **grouped(threads=1, **options))


def on_bias(factor):
    """Of the second layer's bias alone."""
    def convert(c, original, x, weight, bias):
        if bias.shape != (6,):
            return original()
        return c.b.binary("add", c.b.linear(x, weight), scaled(c, bias, factor))
    return convert


BREAKS = {
    "value": (aten.tanh.default, lambda c, original, x: c.b.unary("sigmoid", x),
              ["the loss is", "a.weight"]),
    "wrong sign": (aten.tanh.default, on_tanh(-1), ["a.weight", "a.bias", "norm.weight"]),
    "missing": (aten.tanh.default, lambda c, original, x: c.b.unary("stop_gradient", original()),
                ["a.weight", "a.bias", "norm.bias"]),
    "doubled": (aten.tanh.default, on_tanh(2), ["a.weight", "norm.bias"]),
    "slightly off": (aten.tanh.default, on_tanh(1.01), ["a.weight", "norm.bias"]),
    "missing bias": (aten.linear.default, on_bias(0), ["b.bias"]),
    "sign of a bias": (aten.linear.default, on_bias(-1), ["b.bias"]),
    "doubled bias": (aten.linear.default, on_bias(2), ["b.bias"]),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_wrong_converter_is_found_by_default(monkeypatch, name):
    target, convert, named = BREAKS[name]
    broken(monkeypatch, target, convert)
    with pytest.raises(cleave.CompileError, match="differs from eager PyTorch") as caught:
        compile_net()
    text = str(caught.value)
    assert all(part in text for part in named) and 'check="off"' in text
    assert ("b.weight" in text) == (name == "value")
    compile_net(check="off")
    monkeypatch.setenv("CLEAVE_CHECK", "off")
    compile_net()
    with pytest.raises(cleave.CompileError, match="differs"):
        compile_net(check="on")


def test_a_wrong_gradient_among_many_is_found(monkeypatch):
    """In a model with biases whose gradient is zero but for rounding: those of keys."""
    def convert(c, original, x, weight=None, bias=None, *rest):
        return scaled(c, original(), -1) if c.type.shape[-1] == 128 else original()

    module, inputs = gpt2(), named_tokens()
    cleave.compile(module, inputs, target=cleave.Target(threads=1))
    broken(monkeypatch, aten.addmm.default, convert)
    with pytest.raises(cleave.CompileError, match="the gradient of .*wte.weight is off .* more"):
        cleave.compile(module, inputs, target=cleave.Target(threads=1))


def test_a_wrong_buffer_is_found(monkeypatch):
    def convert(c, original, x, weight, bias, mean, *rest):
        return (*original()[:3], mean, original()[4])

    broken(monkeypatch, aten._native_batch_norm_legit_functional.default, convert)
    with pytest.raises(cleave.CompileError, match=r"buffer 1\.running_mean is off by .* after a step"):
        cleave.compile(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), (X, Y), F.mse_loss,
                       check="on")


@pytest.mark.parametrize("make", [
    lambda: (gpt2(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1), named_tokens(ignored=2), None),
    lambda: (net(), tokens(), token_loss),
    lambda: (family("llama").build(), family("llama").examples(), None),
    lambda: (Net(0.5), (X, Y), F.mse_loss),
    lambda: (Net(1.0), (X, Y), F.mse_loss),
    lambda: (nn.Sequential(nn.Linear(6, 6), nn.Dropout1d(0.5)), (X, Y), F.mse_loss),
], ids=["gpt2", "net", "llama", "dropout", "dropout of all", "feature dropout"])
def test_what_is_right_raises_no_alarm(make, caplog):
    module, inputs, loss_fn = make()
    with caplog.at_level(logging.WARNING, "cleave"):
        cleave.compile(module, inputs, loss_fn, target=cleave.Target(threads=1), check="on")
    assert "not compared" not in caplog.text


class Ranked(nn.Module):
    """Differences of scores, on which a bias of all has no effect."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 1)

    def forward(self, x):
        scores = self.score(x)
        return F.softplus(scores - scores.T).mean()


@pytest.mark.parametrize("seed", range(8))
def test_a_gradient_that_is_zero_but_for_rounding(seed):
    torch.manual_seed(seed)
    cleave.compile(Ranked(), (torch.randn(4, 4),), target=cleave.Target(threads=1), check="on")


class Noisy(Net):
    def forward(self, x):
        noise = torch.rand(x.shape) + torch.rand_like(x) + 0.1 * torch.randn(x.shape)
        return super().forward(x + noise)


def test_random_numbers_are_the_same_in_both():
    compile_net(Noisy(), check="on")


class Touched(Net):
    """Keeps what it has seen, as models do that are looked into."""

    seen = None

    def forward(self, x):
        y = super().forward(x)
        self.seen = y
        return y


def test_nothing_of_the_model_is_changed():
    module = Touched(0.5)
    (module(X) * 2).sum().backward()
    module.eval()
    module.drop.train()
    before = copy.deepcopy(module.state_dict()), [p.grad.clone() for p in module.parameters()]
    seen, modes = module.seen, [m.training for m in module.modules()]
    state = torch.get_rng_state()
    with pytest.warns(UserWarning, match="in eval"):
        compile_net(module, check="on")
    assert torch.equal(torch.get_rng_state(), state) and module.seen is seen
    assert modes == [m.training for m in module.modules()]
    assert all(torch.equal(before[0][n], v) for n, v in module.state_dict().items())
    assert all(torch.equal(a, p.grad) for a, p in zip(before[1], module.parameters()))


def test_a_loss_that_reads_the_model_is_compared():
    module = Net()
    weight = module.a.weight
    step = cleave.compile(module, (X, Y),
                          lambda output, target: F.mse_loss(output, target) + weight.sum(),
                          target=cleave.Target(threads=1), check="on")
    step(X, Y)


def test_what_stays_large_is_not_compared_and_a_line_says_so(monkeypatch, caplog):
    monkeypatch.setattr(cleave.compiler.check, "PARAMETERS", 60)
    monkeypatch.setattr(cleave.compiler.check, "SHORTENED", 1)
    with caplog.at_level(logging.WARNING, "cleave"):
        compile_net()
    lines = [r.getMessage() for r in caplog.records if "not compared" in r.getMessage()]
    assert len(lines) == 1 and "elements of parameters" in lines[0] and 'check="on"' in lines[0]
    broken(monkeypatch, aten.tanh.default, on_tanh(-1))
    compile_net()
    with pytest.raises(cleave.CompileError, match="differs"):
        compile_net(check="on")


def test_of_a_large_batch_the_first_samples_are_compared(monkeypatch, caplog):
    counts = []
    original = cleave.compiler.check._eager

    def eager(model, example, *rest, **named):
        counts.append(example[0].shape[0])
        return original(model, example, *rest, **named)

    monkeypatch.setattr(cleave.compiler.check, "_eager", eager)
    monkeypatch.setattr(cleave.compiler.check, "ENOUGH", 3 * 6 * sum(p.numel() for p in Net().parameters()))
    with caplog.at_level(logging.WARNING, "cleave"):
        compile_net()
    assert counts[0] == 3 and not caplog.text
    broken(monkeypatch, aten.tanh.default, on_tanh(2))
    with pytest.raises(cleave.CompileError, match="differs"):
        compile_net()
    monkeypatch.setattr(cleave.compiler.check, "WORK", 1)
    compile_net()
    assert "a sample is large" in caplog.text


def test_what_has_no_values_is_not_compared(caplog):
    with torch.device("meta"):
        module = Net()
    with caplog.at_level(logging.WARNING, "cleave"):
        compile_net(module)
    assert "on the meta device" in caplog.text
    with pytest.raises(cleave.CompileError, match="cannot be compared.*meta"):
        compile_net(module, check="on")


@pytest.mark.parametrize("inputs, message", [
    ((torch.full((2, 8), 200), torch.zeros(2, 8, dtype=torch.long)), "does not take"),
    ((torch.zeros(2, 8, dtype=torch.long), torch.full((2, 8), -100)), "the loss .* is nan"),
])
def test_examples_that_eager_code_does_not_take(inputs, message, caplog):
    """Examples have shapes and types; their values need not make sense."""
    named = dict(zip(("input_ids", "labels"), inputs))
    with caplog.at_level(logging.WARNING, "cleave"):
        cleave.compile(gpt2(), named, target=cleave.Target(threads=1))
    assert "not compared" in caplog.text
    with pytest.raises(cleave.CompileError, match=message):
        cleave.compile(gpt2(), named, target=cleave.Target(threads=1), check="on")


@pytest.mark.parametrize("value", ["yes", True, None])
def test_other_values_are_refused(value):
    with pytest.raises(ValueError, match="check is"):
        compile_net(check=value)


def test_other_values_of_the_environment_are_refused(monkeypatch):
    monkeypatch.setenv("CLEAVE_CHECK", "1")
    with pytest.raises(ValueError, match="CLEAVE_CHECK"):
        compile_net()


def test_another_shape_is_not_compared_again(monkeypatch):
    step = compile_net()
    monkeypatch.setattr(cleave.compiler.check, "compare", None)
    step(X[:5], Y[:5])


# Random numbers -----------------------------------------------------------------------

DRAWS = {
    "gumbel_softmax": lambda y, x: F.gumbel_softmax(y, tau=1.0) * x,
    "gumbel_softmax, hard": lambda y, x: F.gumbel_softmax(y, tau=1.0, hard=True) * x,
    "bernoulli": lambda y, x: y * torch.bernoulli(torch.full_like(y, 0.7)),
    "bernoulli of a number": lambda y, x: y * torch.bernoulli(x, 0.7),
    "bernoulli_ of a tensor": lambda y, x: y * torch.empty_like(y).bernoulli_(x.sigmoid()),
    "stochastic depth": lambda y, x: x + y * x.new_empty((x.shape[0], 1)).bernoulli_(0.8).div_(0.8),
    "dropout in place": lambda y, x: F.dropout(y, 0.3, inplace=True) * x,
    "dropout1d": lambda y, x: F.dropout1d(y[:, :, None], 0.3)[..., 0],
    "exponential_": lambda y, x: y * torch.empty_like(y).exponential_(2.0),
    "geometric_": lambda y, x: y * torch.empty_like(y).geometric_(0.3),
    "cauchy_": lambda y, x: y * torch.empty_like(y).cauchy_().tanh(),
    "log_normal_": lambda y, x: y * torch.empty_like(y).log_normal_(0.0, 0.5),
    "normal_": lambda y, x: y * torch.empty_like(y).normal_(1.0, 2.0),
    "normal": lambda y, x: y * torch.normal(x, x.abs()) + y * torch.normal(1.0, 2.0, x.shape),
    "randn": lambda y, x: y * torch.randn(y.shape),
    "argsort": lambda y, x: y.gather(1, torch.rand(y.shape).argsort(1)) * x,
    "topk": lambda y, x: y.gather(1, torch.rand(y.shape).topk(3, 1)[1]) * x[:, :3],
    "randint": lambda y, x: y.gather(1, torch.randint(0, 6, y.shape)) * x,
    "randint from": lambda y, x: y * torch.randint_like(y, 2, 6),
    "randperm": lambda y, x: y[torch.randperm(y.shape[0])] * x,
    "uniform_": lambda y, x: y * torch.empty_like(y).uniform_(-1, 2),
    "distribution": lambda y, x: y * torch.distributions.Gumbel(x, 1.0).rsample(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_raise_no_alarm(name):
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(3))
    check_draws(Drawing(DRAWS[name]), x)


def test_a_wrong_threshold_of_a_draw_is_found(monkeypatch):
    cleave.trace.registry.converter_for(aten.bernoulli.p)
    monkeypatch.setitem(CONVERTERS, aten.bernoulli.p, lambda c, x, p=0.5, **_:
                        CONVERTERS[aten.bernoulli.Tensor](c, x, 0.4))
    with pytest.raises(cleave.CompileError, match="differs from eager PyTorch"):
        cleave.compile(Drawing(DRAWS["stochastic depth"]), (X,), target=cleave.Target(threads=1))


# Where eager code has no number -------------------------------------------------------


class Undefined(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.tensor([1.0, 100.0])), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return (torch.where(x > 0, 0.0, (self.w * x.abs()).exp()) * torch.tanh(self.b)).sum()


def test_gradients_that_eager_code_does_not_have(monkeypatch, caplog):
    x = torch.tensor([[-1.0, 1.0]])
    with caplog.at_level(logging.WARNING, "cleave"):
        cleave.compile(Undefined(), (x,), target=cleave.Target(threads=1))
    assert "gradients of eager PyTorch are NaN" in caplog.text and ": w" in caplog.text
    broken(monkeypatch, aten.tanh.default, on_tanh(-1))
    with pytest.raises(cleave.CompileError, match="the gradient of b is off"):
        cleave.compile(Undefined(), (x,), target=cleave.Target(threads=1))


# What it costs ------------------------------------------------------------------------


def kernels_of(compiled):
    """The kernels of a program by name, without their names."""
    parts = compiled.ir("executable").split("exec.kernel @")[1:]
    return {name: text.split("\n  }\n")[0] for name, text in (p.split(" ", 1) for p in parts)}


def programs_of(monkeypatch, module):
    """The programs of the step and of the check, and the arguments that the latter is made with."""
    made, checked = [], []
    compile_one, run = cleave._cleave.compile, cleave.compiler.check._compiled
    monkeypatch.setattr(cleave._cleave, "compile", lambda *args: made.append(compile_one(*args)) or made[-1])
    monkeypatch.setattr(cleave.compiler.check, "_compiled", lambda *args: checked.append(args) or run(*args))
    compile_net(module)
    return *made, checked[0]


def test_kernels_of_the_step_are_not_compiled_again(monkeypatch, tmp_path):
    step, checked, (traced, inputs, options, lender) = programs_of(monkeypatch, Net(0.0))
    assert lender is step and step.kernels == (len(kernels_of(step)), 0)
    ours, known = kernels_of(checked), set(kernels_of(step).values())
    own = sum(text not in known for text in ours.values())
    assert checked.kernels == (own, len(ours) - own)
    # Updates alone are others: those of the check keep the gradients.
    assert own and len(ours) - own > own
    # A file has all of them.
    checked.save(str(tmp_path / "checked.so"))
    library = ctypes.CDLL(str(tmp_path / "checked.so"))
    assert all(hasattr(library, f"cleave_kernel_{name}") for name in ours)


def test_kernels_of_the_step_compute_the_same(monkeypatch):
    *_, (traced, inputs, options, lender) = programs_of(monkeypatch, Net(0.5))
    shared, alone = (cleave.compiler.check._compiled(traced, inputs, options, program)
                     for program in (lender, None))
    assert shared.loss == alone.loss and shared.by_name.keys() == alone.by_name.keys()
    assert all(torch.equal(g, alone.by_name[n]) for n, g in shared.by_name.items())
