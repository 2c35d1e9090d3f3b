# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Interlocking backpropagation against the same construction by hand in PyTorch."""

import json
import re

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import cleave
from cleave.testing.dual import relative_error
from cleave.testing.tools import ToolError, interpret, run_tool, tool
from cleave.trace import TraceError, trace
from cleave.compiler.entrance import grouped
from recipe_runs import MAKERS, OPTIMIZERS, agree, family, random_inputs
from trace_support import AllDouble, entry_text, text_in_double
from training_support import assert_close

BATCH, LENGTH, VOCAB, WIDTH, LAYERS = 4, 8, 32, 16, 4
HORIZONS = [1, 2, 4]


class Layer(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)
        return x + self.dropout(self.out(F.gelu(y[:, 0])))


class Language(nn.Module):
    """A language model whose table is also its head's."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def embed(self, ids):
        return self.table(ids) + self.places(torch.arange(ids.shape[1]))

    def head_loss(self, x, labels):
        logits = self.norm(x) @ self.table.weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def forward(self, ids, labels):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head_loss(x, labels)


class Part(nn.Module):
    """One method of a model as a module of the same parameters."""

    def __init__(self, model, method):
        super().__init__()
        self.model, self.method = model, method

    def forward(self, *inputs):
        return self.method(self.model, *inputs)


def language(dropout=0.0, seed=0):
    torch.manual_seed(seed)
    model = Language(dropout)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.train()


#: The parameters of each head.
HEAD = ("norm.weight", "norm.bias", "table.weight")


def by_hand(model, auxiliary, ids, labels, horizon):
    """The losses of the auxiliary heads and of the last one, for `backward`.

    `auxiliary[k]` are the parameters of the head after module k by the names of the
    model's. Module j is trained by the loss of head min(j + horizon, LAYERS) - 1.
    """
    own = dict(model.named_parameters())

    def module(j, x, trained):
        parameters = {f"model.{n}": p if trained else p.detach() for n, p in own.items()}

        def compute(m, x):
            return m.layers[j](m.embed(x) if j == 0 else x)

        return functional_call(Part(model, compute), parameters, (x,))

    def head(parameters, x):
        named = {f"model.{n}": p for n, p in parameters.items()}
        return functional_call(Part(model, Language.head_loss), named, (x, labels))

    losses = []
    for t in range(LAYERS):
        x = ids
        for j in range(t + 1):
            x = module(j, x, min(j + horizon, LAYERS) - 1 == t)
            if j < t - horizon + 1:
                x = x.detach()
        losses.append(head(own if t == LAYERS - 1 else auxiliary[t], x))
    return losses


def heads_of(model):
    """Parameters of auxiliary heads, each a copy of the model's."""
    own = dict(model.named_parameters())
    return [{n: own[n].detach().clone().requires_grad_() for n in HEAD}
            for _ in range(LAYERS - 1)]


def tokens():
    """A pattern to learn, the same in every batch."""
    ids = (torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) * 7 + 3) % VOCAB
    return ids, ids.clone()


NAMES = [f"layers.{k}." for k in range(1, LAYERS)]


def emit(folder, model, phase, *flags):
    path = folder / "model.mlir"
    path.write_text(model if isinstance(model, str)
                    else text_in_double(trace(model, tokens()).mlir))
    return run_tool([tool("cleave-compile"), str(path), f"--emit={phase}", *flags])


def named_inputs(model, auxiliary, program):
    """The inputs of @train: the parameters of both, and anything for the rest."""
    values = random_inputs(program)
    ids, labels = tokens()
    values |= {"ids": ids.numpy(), "labels": labels.numpy()}
    values |= {n: p.detach().numpy() for n, p in model.named_parameters()}
    for k, own in enumerate(auxiliary, 1):
        values |= {f"auxiliary.{k}.{n}": p.detach().numpy() for n, p in own.items()}
    return values


@pytest.mark.parametrize("modules", ["--modules=4", "--modules=" + ",".join(NAMES)])
@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 9])
def test_gradients_are_those_by_hand(tmp_path, horizon, modules):
    model = language().double()
    auxiliary = heads_of(model)
    with torch.no_grad():
        for own in auxiliary:
            for parameter in own.values():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    with AllDouble():
        losses = by_hand(model, auxiliary, *tokens(), horizon)
        sum(losses).backward()
    expected = {n: p.grad for n, p in model.named_parameters()}
    for k, own in enumerate(auxiliary, 1):
        expected |= {f"auxiliary.{k}.{n}": p.grad for n, p in own.items()}

    program = emit(tmp_path, model, "step", "--optimizer=sgd", f"--grad-horizon={horizon}", modules)
    results, gradients = interpret(program, named_inputs(model, auxiliary, program), entry="train")
    assert gradients.keys() == expected.keys()
    for name, value in expected.items():
        assert float(value.abs().max()) > 1e-6, name
        assert relative_error(gradients[name], value.numpy()) <= 1e-10, name
    own = [results[f"auxiliary_loss.{k}"] for k in range(1, LAYERS)] + [results["loss"]]
    assert_close([float(x) for x in own], [x.item() for x in losses], rtol=1e-12)


@pytest.mark.parametrize("horizon, head", [(1, 0), (2, 1), (4, 3)])
def test_one_head_trains_a_module(tmp_path, horizon, head):
    """Module 1's gradient is that of one head's loss, by automatic differentiation of
    that alone; with as many as there are modules it is that of the model."""
    model = language().double()
    auxiliary = heads_of(model)
    ids, labels = tokens()
    with AllDouble():
        x = model.embed(ids)
        for layer in model.layers[:head + 1]:
            x = layer(x)
        parameters = list(model.layers[0].parameters())
        expected = torch.autograd.grad(model.head_loss(x, labels), parameters)
        whole = torch.autograd.grad(model(ids, labels), parameters)
    program = emit(tmp_path, model, "step", "--optimizer=sgd", f"--grad-horizon={horizon}",
                   "--modules=4")
    _, gradients = interpret(program, named_inputs(model, auxiliary, program), entry="train")
    for (name, _), value, full in zip(model.layers[0].named_parameters(), expected, whole):
        own = gradients[f"layers.0.{name}"]
        assert relative_error(own, value.numpy()) <= 1e-10
        assert (relative_error(own, full.numpy()) <= 1e-10) == (horizon == LAYERS)


def count_forward(program, ops):
    """The ops of @train that do not depend on the seed of backward."""
    seeded, found = set(), 0
    for line in entry_text(program, "train").splitlines():
        match = re.match(r"\s*(%.+?) = (graph\.\w+)(.*)", line)
        if not match:
            continue
        results, op, rest = match.groups()
        if op == "graph.seed" or set(re.findall(r"%\w+", rest)) & seeded:
            seeded |= {name.strip().split(":")[0] for name in results.split(",")}
        else:
            found += op in ops
    return found


@pytest.mark.parametrize("horizon", [1, 2, 3, 4])
def test_forward_is_computed_once(tmp_path, horizon):
    """Two products and one attention in each layer; heads are joined with their losses."""
    products = {"graph.linear", "graph.contract", "graph.attention"}
    for dropout in (0.0, 0.1):
        program = emit(tmp_path, language(dropout), "step", "--optimizer=sgd",
                       f"--grad-horizon={horizon}", "--modules=4")
        assert count_forward(program, products) == 3 * LAYERS
        assert count_forward(program, {"graph.dropout"}) == (LAYERS if dropout else 0)
        assert program.count("graph.head_loss") == LAYERS + 1
        assert "graph.stop_gradient" not in program
        assert "auxiliary" not in entry_text(program, "evaluate")


def test_without_a_horizon_nothing_changes(tmp_path):
    assert "auxiliary" not in emit(tmp_path, language(), "step")


#: Models with 4 layers, and the settings that make them.
FAMILIES = {"gpt2": dict(n_layer=4, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1),
            "llama": dict(num_hidden_layers=4, attention_dropout=0.1)}
for _name, _settings in FAMILIES.items():
    MAKERS[f"{_name}-4"] = family(_name, **_settings)


def traced_family(name):
    torch.manual_seed(0)
    module = MAKERS[f"{name}-4"]().train().double()
    ids = torch.randint(3, 96, (8, 8))
    return text_in_double(trace(module, dict(input_ids=ids, labels=ids)).mlir)


@pytest.mark.parametrize("name, horizon, mesh, flags", [
    ("gpt2", 2, "pp=2", ["--micro-batches=2", "--modules=2"]),
    ("gpt2", 2, "pp=4", ["--micro-batches=4"]),
    ("gpt2", 3, "pp=4", ["--micro-batches=2", "--schedule=zb-h1", "--modules="
                         + ",".join(f"transformer.h.{k}." for k in (1, 2, 3))]),
    ("llama", 1, "pp=4", ["--micro-batches=2", "--modules=4"]),
    ("llama", 2, "pp=2,dp=2", ["--modules=4", "--plan=zero1"]),
    ("llama", 4, "pp=2,dp=2", ["--modules=4", "--plan=zero3"]),
    ("gpt2", 2, "pp=2,tp=2", ["--modules=4", "--plan=megatron-sp", "--micro-batches=2"]),
    ("gpt2", 2, "tp=2,dp=2", ["--modules=4", "--plan=megatron,zero1"]),
])
def test_devices_equal_one(tmp_path, name, horizon, mesh, flags):
    model = traced_family(name)
    optimizer = OPTIMIZERS["adamw"]
    shared = [f"--grad-horizon={horizon}", "--max-grad-norm=0.5"]
    modules = next((flag for flag in flags if "modules" in flag), "--modules=4")
    step = emit(tmp_path, model, "step", *optimizer, *shared, modules)
    inputs = random_inputs(step)
    results, gradients = interpret(step, inputs, entry="train")
    assert sum(key.startswith("auxiliary.") for key in gradients) >= 2
    program = emit(tmp_path, model, "scheduled" if "pp" in mesh else "local", *optimizer, *shared,
                   f"--mesh={mesh}", *flags)
    own_results, own_gradients = interpret(program, inputs, entry="train")
    agree(own_results, results)
    agree(own_gradients, gradients)


# ---------------------------------------------------------------------------
# Natively, from Python
# ---------------------------------------------------------------------------


def compiled(model, horizon, **settings):
    return cleave.compile(model, tokens(),
                          optimizer=cleave.AdamW(lr=1e-2, eps=1e-5, weight_decay=0.1, max_grad_norm=1.0,
                               no_decay=lambda name, p: p.ndim < 2),
                          **grouped(grad_horizon=horizon, **{"modules": 4, "micro_batches": 2, **settings}))


@pytest.mark.parametrize("horizon", HORIZONS)
def test_training_equals_pytorch(horizon):
    """All losses of 20 steps, and the weights after them."""
    model = language()
    step = compiled(model, horizon)
    auxiliary = heads_of(model)
    named = dict(model.named_parameters())
    named |= {f"auxiliary.{k}.{n}": p for k, own in enumerate(auxiliary, 1)
              for n, p in own.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in named.values() if (p.ndim < 2) == plain],
          "weight_decay": 0.0 if plain else 0.1} for plain in (False, True)], lr=1e-2, eps=1e-5)
    history = []
    for _ in range(20):
        optimizer.zero_grad()
        losses = by_hand(model, auxiliary, *tokens(), horizon)
        sum(losses).backward()
        norm = nn.utils.clip_grad_norm_(named.values(), 1.0)
        optimizer.step()
        own = step(*tokens())
        expected = [x.item() for x in losses]
        assert_close([*own.auxiliary, float(own)], expected, rtol=1e-4)
        assert_close(own.grad_norm, norm.item(), rtol=1e-3)
        history.append(expected)
    assert all(last < 0.6 * first for first, last in zip(history[0], history[-1]))
    state = step.state_dict()
    assert state.keys() == named.keys()
    for name, value in named.items():
        torch.testing.assert_close(state[name], value.detach(), rtol=1e-3, atol=1e-4)
    evaluated = step.evaluate(*tokens())
    with torch.no_grad():
        assert_close(float(evaluated), model(*tokens()).item(), rtol=1e-4)


@pytest.mark.parametrize("mesh, horizon", [({"pp": 2}, 2), ({"pp": 4}, 1), ({"pp": 2, "dp": 2}, 3)])
def test_native_stages_equal_one_device(mesh, horizon):
    model = language(dropout=0.1)
    steps = [compiled(model, horizon, mesh=own) for own in (None, mesh)]
    for _ in range(3):
        one, several = (step(*tokens()) for step in steps)
        assert_close([*several.auxiliary, float(several)],
                     [*one.auxiliary, float(one)], rtol=1e-5)
    one, several = (step.state_dict() for step in steps)
    assert one.keys() == several.keys()
    for name, value in one.items():
        torch.testing.assert_close(several[name], value, rtol=1e-4, atol=1e-5)


def test_state_is_kept():
    model = language(dropout=0.1)
    first = compiled(model, 2)
    start = first.state_dict()
    for k in range(1, LAYERS):
        for name in HEAD:
            assert torch.equal(start[f"auxiliary.{k}.{name}"], start[name])
    first(*tokens())
    second = compiled(model, 2)
    state, training = first.state_dict(), first.training_state()
    assert "auxiliary.1.norm.weight" in training["optimizer"]
    second.load_state_dict(state)
    second.load_training_state(training)
    losses = [step(*tokens()) for step in (first, second)]
    assert float(losses[0]) == float(losses[1])
    assert losses[0].auxiliary == losses[1].auxiliary
    assert len(set(losses[0].auxiliary)) == LAYERS - 1
    # A state of the model alone: the heads begin as its head.
    second.load_state_dict(model.state_dict())
    for name, value in second.state_dict().items():
        assert torch.equal(value, start[name]), name
    with pytest.raises(KeyError, match="auxiliary.9.norm.weight"):
        second.load_state_dict(state | {"auxiliary.9.norm.weight": torch.zeros(WIDTH)})
    with pytest.raises(ValueError, match="auxiliary.1.norm.weight"):
        second.load_state_dict(state | {"auxiliary.1.norm.weight": torch.zeros(3)})


def test_modules_of_even_cost_are_those_named():
    """Layers are alike: a quarter of the cost is one of them."""
    model = language()
    even, named = compiled(model, 2), compiled(model, 2, modules=NAMES, head="norm.")
    assert even.ir("step") == named.ir("step")


@pytest.mark.parametrize("settings, error, message", [
    (dict(horizon=0), ValueError, "grad_horizon must be positive, not 0"),
    (dict(horizon=1, modules=1), cleave.CompileError, "cut into 1 module: a gradient horizon needs two"),
    (dict(horizon=1, modules=[]), ValueError, "modules is empty"),
    (dict(horizon=1, modules=["layers.1.", ""]), ValueError, "modules has ''; an entry is a text without a comma"),
    (dict(horizon=1, modules=None), cleave.CompileError, "cut into 1 module: .*--modules"),
    (dict(horizon=1, modules={"layers.1."}), TypeError, "modules is a text, not"),
    (dict(horizon=1, modules=["layer.1."]), cleave.CompileError, "begins with 'layer.1.'"),
    (dict(horizon=1, head="layers.9."), cleave.CompileError, "the head is to begin"),
    (dict(horizon=1, modules=["layers.1.out."]), cleave.CompileError, "2 values are live"),
    (dict(horizon=1, modules=["layers.2.", "layers.1."]), cleave.CompileError,
     "the module before it would be empty"),
    (dict(horizon=1, modules=90), cleave.CompileError, "cannot be cut into 90 modules"),
    (dict(horizon=None, modules=4), ValueError, "modules needs grad_horizon"),
])
def test_bad_modules(settings, error, message):
    with pytest.raises(error, match=message):
        compiled(language(), **settings)


@pytest.mark.parametrize("flags, message", [
    (["--grad-horizon=0"], "--grad-horizon must be positive"),
    (["--grad-horizon=-2"], "--grad-horizon must be positive"),
    (["--modules=4"], "--modules needs --grad-horizon"),
    (["--grad-horizon=2"], "cut into 1 module: .*--modules"),
    (["--grad-horizon=2", "--modules=layers.1.,"], "an empty name"),
])
def test_bad_flags(tmp_path, flags, message):
    with pytest.raises(ToolError, match=message):
        emit(tmp_path, language(), "step", *flags)


class NoLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_model_without_a_loss():
    with pytest.raises(TraceError, match="returns no scalar loss"):
        cleave.compile(NoLoss(), (torch.randn(2, 4),), interlock=cleave.Interlock(1, modules=2))


def test_from_a_file(tmp_path):
    """Weights of the model alone; the losses of heads are in the log."""
    traced = trace(language(), tokens())
    (tmp_path / "model.mlir").write_text(traced.mlir)
    weights = {p.name: p.tensor.detach() for p in traced.parameters}
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    np.save(tmp_path / "train.npy", np.tile(tokens()[0].flatten().numpy().astype("u2"), 8))
    run_tool([tool("cleave-compile"), str(tmp_path / "model.mlir"), "--grad-horizon=2",
              "--modules=4", "-o", str(tmp_path / "model.so")])
    run_tool([tool("cleave-run"), str(tmp_path / "model.so"), "--weights",
              str(tmp_path / "model.safetensors"), "--data", str(tmp_path / "train.npy"),
              "--steps=3", "--lr=0.01", "--log", str(tmp_path / "log"), "--save-every=3",
              "--save-dir", str(tmp_path / "saved")])
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    for line in lines:
        assert all(line[f"auxiliary_loss.{k}"] > 0 for k in range(1, LAYERS))
    saved = safetensors.torch.load_file(tmp_path / "saved" / "step-3" / "model.safetensors")
    assert len(saved) == len(weights) + (LAYERS - 1) * len(HEAD)
    run_tool([tool("cleave-run"), str(tmp_path / "model.so"), "--resume", str(tmp_path / "saved"),
              "--data", str(tmp_path / "train.npy"), "--steps=4", "--lr=0.01"])
