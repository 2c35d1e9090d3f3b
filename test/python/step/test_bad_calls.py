# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Wrong calls of the Python interface: the exception says what to do, and
nothing has changed."""

import copy
import os
import threading
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave import CompileError, StepError, _cleave, _runtime
from cleave.trace import TraceError
from cleave.compiler.entrance import grouped
from training_support import net, token_loss, tokens

X, Y = torch.linspace(-1, 1, 16).view(4, 4), torch.tensor([0, 2, 1, 0])


class Tied(nn.Module):
    """Two names of one weight, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        return self.second(F.gelu(self.first(x))) + self.shift


def compiled(model=None, inputs=(X, Y), loss_fn=F.cross_entropy, **options):
    torch.manual_seed(0)
    return cleave.compile(Tied() if model is None else model, inputs, loss_fn, **grouped(**options))


@pytest.fixture(scope="module")
def step():
    return compiled()


# cleave.compile -----------------------------------------------------------------------


@pytest.mark.parametrize("options, kind, message", [
    (dict(model=3), TypeError, "model is int, not a torch.nn.Module"),
    (dict(model=lambda x: x), TypeError, "model is function"),
    (dict(inputs=None), TypeError, "NoneType, not a tuple of tensors"),
    (dict(inputs=3), TypeError, "int, not a tuple of tensors"),
    (dict(inputs=()), TraceError, "example_inputs is empty"),
    (dict(inputs=([1.0], Y)), TypeError, r"holds \[1.0\], which is not a tensor"),
    (dict(inputs=(X[:, :3], Y)), TraceError, r"test_bad_calls.py:\d+: .*cannot be multiplied|same"),
    (dict(loss_fn=3), TraceError, "loss_fn is int, not a function"),
    (dict(loss_fn=None, inputs=(X,)), TraceError, "returns no scalar loss"),
    (dict(loss_fn=None), TraceError, r"forward takes 1 input \(x\), and 2 are given; pass loss_fn, "
     r"called as loss_fn\(output, \*targets\), if the model returns no loss of its own$"),
    (dict(loss_fn=None, inputs=dict(x=X, y=Y)), TraceError,
     r"forward takes 1 input \(x\), not y; pass loss_fn"),
    (dict(loss_fn=None, inputs=((X,), (Y,))), TraceError, "has targets, which no loss_fn takes"),
    (dict(target="gpu"), ValueError, "target is cpu or cuda, not 'gpu'"),
    (dict(optimizer="adamw"), TypeError, r"builtins.str; .*cleave.AdamW\(...\)"),
    (dict(optimizer=cleave.AdamW), TypeError, "must be one of cleave's, as cleave.AdamW"),
    (dict(optimizer=torch.optim.SGD([torch.ones(1)])), ValueError, "1 parameters that are not of the model"),
    (dict(micro_batches=0), ValueError, "micro_batches must be positive, not 0"),
    (dict(micro_batches=2.5), TypeError, "micro_batches is an integer, not 2.5"),
    (dict(micro_batches="2"), ValueError, "micro_batches is an integer, not '2'"),
    (dict(threads=0), ValueError, "threads must be positive, not 0"),
    (dict(threads=-1), ValueError, "must be positive"),
    (dict(threads=100000), ValueError, "at most 1024"),
    (dict(threads="2"), ValueError, "threads is an integer, not '2'"),
    (dict(seed="x"), TypeError, "seed is 'x'; it must be a whole number"),
    (dict(seed=2**64), ValueError, "at most"),
    (dict(max_logits_bytes=0), ValueError, "must be positive"),
    (dict(collective_chunks=0), ValueError, "collective_chunks must be positive, not 0"),
    (dict(collective_chunk_bytes=-1), ValueError, "must not be negative"),
    *((dict([(name, True)]), TypeError, f"{name} is .*, not True|seed is True; it must be a whole number")
      for name in ("micro_batches", "threads", "seed", "bucket_bytes", "deterministic", "virtual_stages",
                   "max_saved_bytes", "max_staleness", "grad_horizon")),
    (dict(mesh={"dp": True}), TypeError, 'mesh has True for axis "dp"; it is a whole number'),
    *((dict(mesh={name: 2}), ValueError, "is not the name of an axis")
      for name in ("dp ", "dp,tp", "dp=2", "", 3, "\u00e9")),
    (dict(post_validation="yes"), ValueError, "post_validation is on or off, not 'yes'"),
    (dict(check_finite=1), TypeError, "check_finite is on or off, not 1"),
    (dict(stages=3), TypeError, "stages is a text, not 3"),
    (dict(stages=[""]), ValueError, "stages has ''; an entry is a text without a comma"),
    (dict(stages=["a,b"]), ValueError, "stages has 'a,b'; an entry is a text without"),
])
def test_compile(options, kind, message):
    with pytest.raises(kind, match=message):
        compiled(**options)


@pytest.mark.parametrize("change, message", [
    (lambda m: m.double(), r"trains parameters of float64 \(first.weight and 2 more\); a compiled "
     r"step trains float32, and 16-bit types by masters in float32: call model.float\(\)"),
    (lambda m: setattr(m.first, "bias", nn.Parameter(torch.zeros(4).double())),
     r"trains parameters of float64 \(first.bias\); a"),
])
def test_types_that_are_not_trained(change, message):
    model = Tied()
    change(model)
    with pytest.raises(TypeError, match=message):
        compiled(model)


class Frozen(nn.Module):
    """Frozen weights of another type."""

    def __init__(self, dtype, cast=True):
        super().__init__()
        self.first = nn.Linear(4, 4)
        weight = torch.linspace(-2, 2, 16).view(4, 4).to(dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.cast = cast

    def forward(self, x):
        if self.cast:
            return self.first(x) @ self.weight.float()
        return (self.first(x).to(self.weight.dtype) @ self.weight).float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8])
def test_frozen_parameters_of_other_types(dtype):
    model = Frozen(dtype)
    step = compiled(model)
    expected = float(F.cross_entropy(model(X), Y).detach())
    assert float(step(X, Y)) == pytest.approx(expected, rel=1e-5)


def test_computing_in_other_types():
    with pytest.raises(CompileError, match=r"no native form .*; a step computes in float32: cast "
                       r"frozen parameters of float64 \(weight\) where they are read"):
        compiled(Frozen(torch.float64, cast=False))


@pytest.mark.parametrize("make, message", [
    (lambda: cleave.AdamW(lr=-1), "lr is -1"),
    (lambda: cleave.AdamW(lr="fast"), "lr is 'fast'"),
    (lambda: cleave.AdamW(lr=float("inf")), "lr is inf"),
    (lambda: cleave.AdamW(betas=(0.9,)), "two numbers"),
    (lambda: cleave.AdamW(betas=0.9), "two numbers"),
    (lambda: cleave.AdamW(betas=(0.9, 1.0)), r"betas\[1\] is 1.0"),
    (lambda: cleave.AdamW(eps=float("nan")), "eps is nan"),
    (lambda: cleave.AdamW(weight_decay=None), "weight_decay is None"),
    (lambda: cleave.AdamW(max_grad_norm=0), "leave it out"),
    (lambda: cleave.AdamW(no_decay="bias"), "no_decay is 'bias'; it must be a function"),
    (lambda: cleave.AdamW(param_groups=3), "a list of groups"),
    (lambda: cleave.AdamW(param_groups=dict(match=3)), "a list of groups"),
    (lambda: cleave.AdamW(param_groups=[3]), "a parameter group has match"),
    (lambda: cleave.AdamW(param_groups=[dict(match="bias")]), "it must be a function"),
    (lambda: cleave.SGD(dampening=float("nan")), "dampening is nan"),
    (lambda: cleave.SGD(nesterov=True), "needs momentum"),
    (lambda: cleave.cosine(1e-3, steps=0), "steps is 0"),
    (lambda: cleave.linear("x", steps=3), "lr is 'x'"),
])
def test_optimizers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("text, options, message", [
    ("garbage", "{}", r'"-":1:1.*unknown'),
    ("", "{}", "no function '@loss'"),
    ("ML\xefR", "{}", "error|unexpected|custom op"),
    ("module {}", "{", "JSON|Expected"),
    ("module {}", '{"micro_batches": "x"}', "micro_batches is an integer, not 'x'"),
    ("module {}", '{"threads": 0}', "threads must be positive"),
])
def test_compiler(text, options, message):
    with pytest.raises(CompileError, match=message):
        _cleave.compile(text, options)


def test_threads_are_named_in_the_message(step):
    with pytest.raises(CompileError, match="threads must be positive, not -3$"):
        _cleave.compile(step._live.traced.mlir, '{"threads": -3}')


# Calls --------------------------------------------------------------------------------


def state(step):
    own = {k: v.clone() for k, v in step.state_dict().items()}
    return own, step.training_state()


def same(one, other):
    (own, training), (own2, training2) = one, other
    assert all(torch.equal(own[k], own2[k]) for k in own)
    assert {k: v for k, v in training.items() if k != "optimizer"} == {
        k: v for k, v in training2.items() if k != "optimizer"}
    for name, slots in training["optimizer"].items():
        assert all(torch.equal(v, training2["optimizer"][name][k]) for k, v in slots.items())


@pytest.mark.parametrize("call, kind, message", [
    (lambda s: s(X), TypeError, r"takes 2 inputs \(x, target\), 1 given"),
    (lambda s: s(X, Y, Y), TypeError, "3 given by position"),
    (lambda s: s(X, labels=Y), TypeError, "by name labels"),
    (lambda s: s(X, Y, target=Y), TypeError, "each once"),
    (lambda s: s(None, Y), TypeError, "input 'x' is not a tensor"),
    (lambda s: s("text", Y), TypeError, "input 'x' is not a tensor"),
    (lambda s: s([[1.0], [1.0, 2.0]], Y), TypeError, "input 'x' is not a tensor"),
    (lambda s: s(X.to(torch.complex64), Y), TypeError, "is complex64, but the model takes float32"),
    (lambda s: s(X, Y.float()), TypeError, "'target' is float32, but the model takes int64"),
    (lambda s: s(X.to("meta"), Y), ValueError, "meta device"),
    (lambda s: s(X[:0], Y[:0]), ValueError, "'x' has no elements"),
    (lambda s: s(X[:, :3], Y), TraceError, "cannot follow the model"),
    (lambda s: s(X[:3], Y), TraceError, "cannot follow the model: .*batch_size"),
    (lambda s: s(X, Y + 4), StepError, r"'target' has 4 at \[0\], where the model takes an index from 0 to 3"),
    (lambda s: s(X, Y - 1), StepError, r"has -1 at \[0\]"),
    (lambda s: s(X, torch.full_like(Y, -100)), StepError, "every target of this batch is ignored"),
    (lambda s: s.evaluate(X), TypeError, "1 given"),
    (lambda s: s.logits(), TypeError, "none given"),
    (lambda s: s.logits(X[:, :3]), TraceError, "cannot follow"),
    (lambda s: s.logits(torch.tensor(1.0)), TraceError, "cannot follow"),
    (lambda s: s.ir("assembly"), ValueError, "unknown phase 'assembly'; phases: model, step"),
])
def test_steps(step, call, kind, message):
    step(X, Y)
    before = state(step)
    with pytest.raises(kind, match=message):
        call(step)
    same(before, state(step))
    assert step(X, Y) > 0


# State --------------------------------------------------------------------------------

WEIGHT = torch.zeros(4, 4)


@pytest.mark.parametrize("change, kind, message", [
    (None, TypeError, "NoneType, not a dict"),
    ({"first.bias": None, "second.bias": None}, KeyError, "missing first.bias, second.bias"),
    ({"a": WEIGHT, "b": WEIGHT}, KeyError, "unknown a, b"),
    ({"first.bias": WEIGHT, "shift": WEIGHT}, ValueError,
     r"first.bias: \[4, 4\] given, \[4\] expected; shift"),
    ({"first.bias": torch.zeros(2, 2)}, ValueError, r"\[2, 2\] given, \[4\] expected"),
    ({"first.bias": [0.0] * 4}, TypeError, "first.bias: list given, a tensor expected"),
    ({"first.bias": np.zeros(4)}, TypeError, "first.bias: ndarray given, a tensor expected"),
    ({"first.bias": torch.zeros(4, dtype=torch.complex64)}, TypeError, "does not become f32"),
    ({"second.bias": torch.zeros(4, device="meta")}, ValueError, "second.bias: .*meta device"),
    ({"second.weight": WEIGHT + 3}, ValueError, "second.weight: differs from first.weight"),
])
def test_state_dicts(step, change, kind, message):
    before = state(step)
    given = None
    if change is not None:
        # What comes before the mistake must not be loaded either.
        given = {**step.state_dict(), "first.bias": torch.ones(4), **change}
        given = {k: v for k, v in given.items() if v is not None}
    with pytest.raises(kind, match=message):
        step.load_state_dict(given)
    same(before, state(step))


def test_tied_names_may_agree_or_be_left_out(step):
    own = step.state_dict()
    # Not a number is equal to itself here.
    own["first.weight"] = own["first.weight"].clone().fill_(float("nan"))
    own["second.weight"] = own["first.weight"].clone()
    before = step.state_dict()
    step.load_state_dict(own)
    step.load_state_dict({k: v for k, v in before.items() if k != "first.weight"})
    assert torch.equal(step.state_dict()["first.weight"], before["first.weight"])


def drop(*path):
    def change(state):
        *rest, last = path
        for key in rest:
            state = state[key]
        del state[last]
    return change


def put(*path):
    def change(state):
        *rest, last, value = path
        for key in rest:
            state = state.setdefault(key, {})
        state[last] = value
    return change


@pytest.mark.parametrize("change, kind, message", [
    (None, TypeError, "NoneType, not what training_state returns"),
    (dict.clear, KeyError, "missing step, seed, optimizer"),
    (drop("optimizer"), KeyError, "missing optimizer"),
    (drop("step"), KeyError, "missing step"),
    (put("optimizer", [1]), TypeError, "a dict of tensors for each parameter"),
    (put("optimizer", "first.bias", 3), TypeError, "a dict of tensors for each parameter"),
    (drop("optimizer", "first.bias", "exp_avg"), KeyError, "missing 'exp_avg' of 'first.bias'"),
    (drop("optimizer", "first.bias"), KeyError, "missing 'exp_avg' of .*, 'exp_avg_sq' of"),
    (put("optimizer", "other", "exp_avg", WEIGHT), KeyError, "unknown 'exp_avg' of 'other'"),
    (put("optimizer", "first.bias", "momentum", WEIGHT), KeyError, "unknown 'momentum' of"),
    (put("optimizer", "second.bias", "exp_avg", torch.zeros(3)), ValueError,
     r"'exp_avg' of 'second.bias': \[3\] given, \[4\] expected"),
    (put("optimizer", "second.bias", "exp_avg", [0.0] * 4), TypeError, "list given"),
    (put("step", "five"), TypeError, "'step' is 'five'; it must be a whole number"),
    (put("step", -1), ValueError, "'step' is -1, which is out of range"),
    (put("seed", 2**70), ValueError, "out of range"),
    (put("data_position", 0.5), TypeError, "'data_position' is 0.5"),
])
def test_training_states(step, change, kind, message):
    step(X, Y)
    before = state(step)
    given = None
    if change:
        given = copy.deepcopy(before[1])
        given["optimizer"]["first.bias"]["exp_avg"] += 1
        given["step"] += 5
        change(given)
    with pytest.raises(kind, match=message):
        step.load_training_state(given)
    same(before, state(step))


def test_artifacts(step, tmp_path):
    with pytest.raises(_runtime.CompileError, match="none.so: no such file"):
        _runtime.open(str(tmp_path / "none.so"))
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(_runtime.CompileError, match="text.so: not an artifact"):
        _runtime.open(str(tmp_path / "text.so"))
    with pytest.raises(CompileError, match="cannot write in"):
        step._live.compiled.save(str(tmp_path / "none" / "a.so"))
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(CompileError, match="an artifact must be a regular file"):
        step._live.compiled.save(str(tmp_path / "full"))
    assert {p.name for p in tmp_path.iterdir()} == {"text.so", "full"}


@pytest.mark.parametrize("path", [True, 1, 2, 0.5, b"x", "", "a\0b"])
def test_pictures_have_a_path(step, path):
    """A number is not an open file, which would be closed."""
    for draw in (step.memory, step.placement, step.schedule,
                 lambda svg: step.visualize("first.weight", svg=svg),
                 lambda svg: step.schedule(trace=svg)):
        with pytest.raises((TypeError, ValueError), match="svg|trace"):
            draw(svg=path)
    for descriptor in (1, 2):
        os.fstat(descriptor)


@pytest.mark.parametrize("value", [None, 0, "", "no"])
def test_whether_a_state_is_checked_is_said(step, value, tmp_path):
    with pytest.raises(TypeError, match="check_finite is .*, not True or False"):
        step.save(tmp_path / "saved", check_finite=value)
    assert not list(tmp_path.iterdir())


def test_one_call_at_a_time():
    """While a step runs, other threads have their turn, but not at its memory."""
    model = net(width=256)
    batch = tokens(batch=16)
    step = cleave.compile(model, batch, token_loss, optimizer=cleave.SGD(lr=0.1),
                          target=cleave.Target(threads=1))
    ended = threading.Event()

    def work():
        while not ended.is_set():
            step(*batch)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="another thread runs this step"):
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                step.state_dict()
    finally:
        ended.set()
        thread.join()
    assert step.state_dict()
