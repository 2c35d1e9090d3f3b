# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Tensors that are not dense, and names that nothing can be called by, are refused by name
wherever they come in."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.trace import TraceError
from cleave.compiler.entrance import grouped

X, Y = torch.linspace(-1, 1, 16).view(4, 4), torch.tensor([0, 2, 1, 0])

#: How a dense tensor becomes one of another kind, and what is said of it.
KINDS = {
    "coo": (lambda x: x.to_sparse(), r"not dense \(sparse_coo\); call to_dense\(\)"),
    "csr": (lambda x: x.to_sparse_csr(), r"not dense \(sparse_csr\)"),
    "mkldnn": (lambda x: x.to_mkldnn(), r"not dense \(mkldnn\)"),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
                  r"quantized \(qint8\); call dequantize\(\)"),
    "nested": (lambda x: torch.nested.nested_tensor([x[0], x[1][:2]]), "a nested tensor; pad it"),
    "jagged": (lambda x: torch.nested.nested_tensor([x[0], x[1][:2]], layout=torch.jagged),
               "a nested tensor; pad it"),
    "lazy": (lambda x: nn.parameter.UninitializedParameter(), "not initialized; call the model"),
}

kinds = pytest.mark.parametrize("kind", KINDS)
pytestmark = pytest.mark.filterwarnings("ignore")


class Shifted(nn.Module):
    """A layer, and a tensor called `name` that is added to its result, and that it
    writes if it is `written`."""

    def __init__(self, name="shift", value=None, role="buffer", written=False):
        super().__init__()
        self.layer, self.name, self.written = nn.Linear(4, 4), name, written
        value = torch.ones(4) if value is None else value
        if role == "buffer":
            self.register_buffer(name, value)
        elif role == "parameter":
            trained = isinstance(value, nn.Parameter)
            self.register_parameter(name, value if trained else nn.Parameter(value, False))
        else:
            object.__setattr__(self, name, value)

    def forward(self, x):
        shift = getattr(self, self.name)
        if self.written:
            shift.add_(1.0)
        return self.layer(x) + shift


def compiled(model=None, inputs=(X, Y), loss_fn=F.cross_entropy, **options):
    torch.manual_seed(0)
    return cleave.compile(model or Shifted(), inputs, loss_fn, **grouped(**options))


@pytest.fixture(scope="module")
def step():
    return compiled()


@kinds
def test_inputs(step, kind):
    make, message = KINDS[kind]
    with pytest.raises(TypeError, match=message):
        compiled(inputs=(make(X), Y))
    with pytest.raises(TraceError, match=f"input 'x' is {message}"):
        cleave.trace.trace(Shifted(), (make(X), Y), F.cross_entropy)
    for call in (step, step.evaluate, step.logits):
        with pytest.raises(TypeError, match=f"input 'x' is {message}"):
            call(make(X), *([] if call == step.logits else [Y]))


@kinds
@pytest.mark.parametrize("role", ["buffer", "parameter"])
def test_tensors_of_the_model(kind, role):
    make, message = KINDS[kind]
    with pytest.raises(TraceError, match=f"{role} 'shift' is {message}"):
        compiled(Shifted(value=make(X), role=role))


@pytest.mark.parametrize("kind", ["coo", "mkldnn"])
def test_constants(kind):
    make, message = KINDS[kind]
    with pytest.raises(TraceError, match=rf"test_bad_tensors.py:\d+: .* {message}"):
        compiled(Shifted(value=make(X), role="attribute"))


@kinds
def test_state(step, kind):
    make, message = KINDS[kind]
    own, training = step.state_dict(), step.training_state()
    with pytest.raises(TypeError, match=f"layer.weight: a tensor given that is {message}"):
        step.load_state_dict({**own, "layer.weight": make(X)})
    training["optimizer"]["layer.weight"]["exp_avg"] = make(X)
    with pytest.raises(TypeError, match=f"'exp_avg' of 'layer.weight': .* {message}"):
        step.load_training_state(training)
    assert all(torch.equal(v, own[k]) for k, v in step.state_dict().items())


def test_negative_views(step):
    """Of which torch keeps the sign beside the memory."""
    view = torch._neg_view(X)
    assert step.evaluate(view, Y) == step.evaluate(-X, Y)
    model = Shifted(value=torch._neg_view(X))
    assert torch.equal(compiled(model).state_dict()["shift"], -X)


def test_tensors_without_values(step):
    fake = torch._subclasses.FakeTensorMode().from_tensor(X)
    for call in (lambda x: step(x, Y), lambda x: step.evaluate(x, Y), step.logits):
        with pytest.raises(ValueError, match="input 'x' is a FakeTensor, which has no values"):
            call(fake)
        for transform in (torch.func.vmap, torch.func.grad):
            with pytest.raises(TypeError, match="input 'x' is one of torch.func"):
                transform(lambda x: call(x))(X[None] if transform is torch.func.vmap else X)


def test_other_devices():
    """torch says that devices differ; which tensors are where is added."""
    with pytest.raises(TraceError, match="'layer.weight' and 'layer.bias' are on cpu; 'shift' is "
                       "on meta"):
        compiled(Shifted(value=torch.ones(4, device="meta")))


# Names --------------------------------------------------------------------------------

ODD = ["a\0b", "a\nb", 'a"b', "a\\b", "a b", "é", "input:x", "%0", "a=b,c", "x" * 3000]


@pytest.mark.parametrize("name", ODD, ids=ascii)
@pytest.mark.parametrize("role", ["buffer", "parameter"])
def test_odd_names_work(name, role, tmp_path):
    value = nn.Parameter(torch.ones(4)) if role == "parameter" else None
    step = compiled(Shifted(name, value, role))
    step(X, Y)
    before = step.state_dict()
    step.save(tmp_path / "c")
    step(X, Y)
    step.load(tmp_path / "c")
    after = step.state_dict()
    assert name in after and all(torch.equal(v, before[k]) for k, v in after.items())


@pytest.mark.parametrize("name", ["loss", "loss_weight", "logits", "grad_norm", "lr", "step", "rng"])
@pytest.mark.parametrize("written", [False, True])
def test_names_of_values_of_a_step(name, written):
    with pytest.raises(TraceError, match=f"buffer '{name}' has the name of a value that a compiled "
                       "step has itself; rename it"):
        compiled(Shifted(name, written=written))
    with pytest.raises(TraceError, match=f"parameter '{name}' has the name"):
        compiled(Shifted(name, role="parameter"))


def test_inputs_named_like_others():
    with pytest.raises(TraceError, match="input 'x' has the name of a buffer of the model"):
        compiled(Shifted("x", value=X))
    with pytest.raises(TraceError, match="input 'lr' has the name of a value"):
        compiled(loss_fn=lambda out, lr: F.cross_entropy(out, lr))


def test_what_is_not_read_has_any_name():
    model = Shifted()
    model.register_buffer("step", torch.zeros((), dtype=torch.int64))
    model.register_buffer("x", torch.zeros(3))
    assert compiled(model)(X, Y) > 0


@pytest.mark.parametrize("role", ["buffer", "parameter"])
def test_names_that_are_no_text(role):
    with pytest.raises(TraceError, match=rf"{role} 'a\\ud800b' is not valid Unicode"):
        compiled(Shifted("a\ud800b", role=role))


@pytest.mark.parametrize("name", ["a\0b", 'a"b', "a\nb"], ids=ascii)
def test_names_that_torch_does_not_write(name):
    """In the code that it makes of a graph, which a trace does without."""
    losses, states = [], []
    for used in (name, "plain"):
        torch.manual_seed(0)
        step = compiled(Shifted(used, written=True))
        losses.append([float(step(X, Y)) for _ in range(3)])
        states.append(step.state_dict())
    assert losses[0] == losses[1]
    assert states[0].keys() == {name, "layer.weight", "layer.bias"}
    assert all(states[0][key].equal(states[1]["plain" if key == name else key]) for key in states[0])


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"], ids=ascii)
def test_strings(step, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options in (dict(plan=text), dict(plan={text: cleave.P("dp")}), dict(mesh={text: 2}),
                    dict(schedule=text), dict(stages=[text]), dict(grad_horizon=1, head=text)):
        with pytest.raises(ValueError, match="not valid Unicode|with a null character|not the name of an axis"):
            compiled(**{"mesh": {"dp": 2, "pp": 2}, "micro_batches": 2, **options})
    for call in (step.save, step.load, step.save_artifact, step.load_weights):
        with pytest.raises(ValueError, match="(folder|path) has 'a.*b', "):
            call(text)
    assert not os.listdir(tmp_path)
