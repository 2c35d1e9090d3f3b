# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of 16 bits: `model.bfloat16()`, and regions of `torch.autocast`.

The judge is the same model in eager PyTorch, in its own types: losses and weights differ by
roundings to bf16. The trace check compares each of them in f32 besides.
"""

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import cleave
from cleave.compiler.entrance import grouped

SIZE, CLASSES, BATCH = 32, 16, 8
X = torch.randn(BATCH, SIZE, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, CLASSES, (BATCH,), generator=torch.Generator().manual_seed(2))


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.float(), targets)


class Casts(nn.Module):
    """Casts of forwards that are written for 16 bits."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.norm = nn.Parameter(torch.ones(SIZE))
        self.last = nn.Linear(SIZE, CLASSES)

    def forward(self, x):
        x = self.first(x.to(self.first.weight.dtype))
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        x = self.norm * wide.to(x.dtype)
        weights = torch.softmax(x.float() @ x.float().T, -1).type_as(x)
        return self.last(weights @ x + F.gelu(x))


class Tied(nn.Module):
    """A tied weight, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, CLASSES, bias=False)
        self.last = nn.Linear(SIZE, CLASSES, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("shift", torch.linspace(-1, 1, SIZE))

    def forward(self, x):
        return self.last(F.linear(torch.relu(self.first(x)), self.first.weight.T) + self.shift)


class Normalised(nn.Module):
    """Buffers that are written."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.norm = nn.BatchNorm1d(SIZE)
        self.last = nn.Linear(SIZE, CLASSES)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Mixed(nn.Module):
    """Parameters of two types."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(SIZE)
        self.last = nn.Linear(SIZE, CLASSES, dtype=torch.bfloat16)

    def forward(self, x):
        return self.last(self.norm(self.first(x).float()).bfloat16())


class Frozen(nn.Module):
    """16-bit and integer parameters that are not trained."""

    def __init__(self, cast):
        super().__init__()
        self.cast = cast
        self.first = nn.Linear(SIZE, SIZE)
        self.last = nn.Linear(SIZE, CLASSES, dtype=torch.bfloat16).requires_grad_(False)
        self.order = nn.Parameter(torch.arange(SIZE).flip(0), requires_grad=False)

    def forward(self, x):
        x = self.first(x.float())[:, self.order]
        if self.cast:
            return F.linear(x, self.last.weight.float(), self.last.bias.float())
        return self.last(x.bfloat16())


class Regions(nn.Module):
    """f32 parameters, and regions of autocast."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.last = nn.Linear(SIZE, CLASSES)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.norm(self.first(x))
            with torch.autocast("cpu", enabled=False):
                x = x + F.linear(x.float(), self.first.weight)
            return self.last(x)


class Decorated(Regions):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Plain(Regions):
    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Trainer(nn.Module):
    """A model whose loss has autocast around the call."""

    def __init__(self):
        super().__init__()
        self.model = Plain()

    def forward(self, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(self.model(x), y)


def made(kind):
    torch.manual_seed(0)
    return kind()


def compiled(model, inputs=(X, Y), loss_fn=cross_entropy, **options):
    options = dict(optimizer=cleave.SGD(lr=0.2), check="on", threads=1) | options
    return cleave.compile(model, inputs, loss_fn, **grouped(**options))


def trained_eagerly(model, inputs, loss_fn=cross_entropy, steps=4):
    """Losses of a copy that is trained, and the copy."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*inputs) if loss_fn is None else loss_fn(model(inputs[0]), inputs[1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


NARROW = X.bfloat16(), Y
CASES = {
    "casts": (lambda: Casts().bfloat16(), (X, Y), cross_entropy),
    "tied": (lambda: Tied().bfloat16(), NARROW, cross_entropy),
    "written": (lambda: Normalised().bfloat16(), NARROW, cross_entropy),
    "mixed": (Mixed, NARROW, cross_entropy),
    "frozen": (lambda: Frozen(False), (X, Y), cross_entropy),
    "regions": (Regions, (X, Y), cross_entropy),
    "decorated": (Decorated, (X, Y), cross_entropy),
    "around": (Trainer, (X, Y), None),
}


@pytest.mark.parametrize("name", CASES)
def test_as_eager_in_16_bits(name, caplog):
    kind, inputs, loss_fn = CASES[name]
    model = made(kind)
    expected, after = trained_eagerly(model, inputs, loss_fn)
    step = compiled(model, inputs, loss_fn)
    assert 'is compiled with precision="bf16"' in caplog.text
    assert [float(step(*inputs)) for _ in expected] == pytest.approx(expected, abs=2e-2)
    own, masters, wanted = step.state_dict(), step.state_dict(masters=True), after.state_dict()
    assert list(own) == list(wanted)
    for key, value in wanted.items():
        assert own[key].dtype == value.dtype
        torch.testing.assert_close(own[key].double(), value.double(), atol=2e-2, rtol=2e-2)
        trained = value.dtype == torch.bfloat16 and name != "frozen"
        assert masters[key].dtype == (torch.float32 if trained else value.dtype)
        if trained:
            assert torch.equal(masters[key].bfloat16(), own[key])
    assert all(p.dtype == own[n].dtype for n, p in model.named_parameters())


def test_values_of_the_model_are_those_of_the_masters(tmp_path):
    model = made(lambda: Tied().bfloat16())
    step = compiled(model, NARROW)
    masters = step.state_dict(masters=True)
    assert torch.equal(masters["first.weight"], model.first.weight.detach().float())
    for _ in range(3):
        step(*NARROW)
    step.save(tmp_path / "checkpoint")
    masters = step.state_dict(masters=True)
    saved = load_file(tmp_path / "checkpoint/model.safetensors")
    assert saved["first.weight"].dtype == torch.float32
    assert torch.equal(saved["first.weight"], masters["first.weight"])
    assert not torch.equal(masters["first.weight"], masters["first.weight"].bfloat16().float())
    again = compiled(made(lambda: Tied().bfloat16()), NARROW)
    again.load(tmp_path / "checkpoint")
    assert float(again(*NARROW)) == float(step(*NARROW))
    back = cleave.load(tmp_path / "checkpoint", made(lambda: Tied().bfloat16()))
    assert torch.equal(back.last.weight, masters["first.weight"].bfloat16())
    back.load_state_dict(step.state_dict())


def test_a_frozen_parameter_that_is_cast_asks_for_nothing(caplog):
    model = made(lambda: Frozen(True))
    expected, _ = trained_eagerly(model, (X, Y))
    step = compiled(model)
    assert "precision" not in caplog.text
    assert [float(step(X, Y)) for _ in expected] == pytest.approx(expected, rel=1e-5)
    assert step.state_dict()["last.weight"].dtype == torch.bfloat16


def test_a_precision_that_is_given():
    """f32 is that of a model in f32; 16 bits are those that are asked for."""
    wide = compiled(made(Casts))
    first = float(wide.evaluate(X, Y))
    asked = compiled(made(lambda: Casts().bfloat16()), precision="f32")
    asked.load_state_dict(wide.state_dict())
    assert [float(asked(X, Y)) for _ in range(3)] == [float(wide(X, Y)) for _ in range(3)]
    plain = compiled(made(Plain), precision="bf16")
    regions = compiled(made(Decorated))
    assert [float(regions(X, Y)) for _ in range(3)] == [float(plain(X, Y)) for _ in range(3)]
    half = compiled(made(lambda: Casts().half()), precision="bf16")
    assert float(half(X, Y)) == pytest.approx(first, abs=2e-2)
    assert half.state_dict()["norm"].dtype == torch.float16


def test_two_types_are_a_choice_of_the_person():
    model = made(lambda: nn.Sequential(Casts().bfloat16(), nn.Linear(CLASSES, CLASSES).half()))
    model.forward = lambda x: model[1](model[0](x).half())
    with pytest.raises(ValueError, match="has both bfloat16 and float16 .*choose one: precision="):
        compiled(model)


def test_inputs_of_16_bits():
    """They may be given in f32, for the same program, and in another shape."""
    model = made(lambda: Tied().bfloat16())
    step = compiled(model, NARROW)
    assert float(step.evaluate(*NARROW)) == float(step.evaluate(X.bfloat16().float(), Y))
    expected = cross_entropy(model(X[:4].bfloat16()), Y[:4]).item()
    assert float(step.evaluate(X[:4], Y[:4])) == pytest.approx(expected, abs=2e-2)
    assert step.logits(X[:4], Y[:4]).dtype == torch.float32


def test_a_model_on_the_meta_device():
    with torch.device("meta"):
        model = Casts().bfloat16()
    step = compiled(model, check="off")
    step.load_state_dict(made(lambda: Casts().bfloat16()).state_dict())
    expected, _ = trained_eagerly(made(lambda: Casts().bfloat16()), (X, Y))
    assert [float(step(X, Y)) for _ in expected] == pytest.approx(expected, abs=2e-2)


def test_wrong_models_are_found_in_16_bits(monkeypatch):
    """The check still sees what a trace does not."""
    class Wrong(Casts):
        def forward(self, x):
            return super().forward(x) * (1.5 if torch.compiler.is_exporting() else 1.0)

    with pytest.raises(cleave.CompileError, match="differs from eager PyTorch"):
        compiled(made(lambda: Wrong().bfloat16()))


@pytest.mark.parametrize("mesh, plan", [({"dp": 2}, "zero3"), ({"tp": 2}, None)])
def test_shards(mesh, plan):
    one = compiled(made(lambda: Mixed()), NARROW, check="off")
    step = compiled(made(lambda: Mixed()), NARROW, check="off", mesh=mesh, threads=None,
                    plan=plan or {"first.weight": cleave.P("tp", None)})
    for _ in range(3):
        assert float(step(*NARROW)) == pytest.approx(float(one(*NARROW)), rel=2e-3)


def llama(**config):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, **config))


@pytest.mark.parametrize("tied, attention", [(True, "eager"), (False, "sdpa")])
def test_llama(tied, attention):
    model = llama(tie_word_embeddings=tied, attn_implementation=attention).bfloat16().train()
    ids = torch.randint(0, 128, (4, 32), generator=torch.Generator().manual_seed(3))
    batch = dict(input_ids=ids, labels=ids)
    step = cleave.compile(model, batch, optimizer=cleave.SGD(lr=0.2), check="on",
                          target=cleave.Target(threads=1))
    text = step.ir("model")
    assert "graph.rms_norm" in text and "graph.attention" in text and "bf16" not in text
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        assert float(step(**batch)) == pytest.approx(loss.item(), abs=2e-2)
    assert {v.dtype for v in step.state_dict().values()} == {torch.bfloat16}


class Stacked(nn.Module):
    """Parameters, a written buffer and two layers of 16 bits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.register_buffer("seen", torch.zeros(8))
        self.bfloat16()

    def forward(self, x):
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean(0) * 0.1)
        return self.b(torch.tanh(self.a(x)))


def stacked(**options):
    x, y = (torch.randn(4, 8, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    step = cleave.compile(Stacked(), (x.bfloat16(), y), lambda o, t: ((o.float() - t) ** 2).mean(),
                          optimizer=cleave.AdamW(lr=1e-4), **grouped(threads=1, **options))
    return step, (x.bfloat16(), y)


@pytest.mark.parametrize("options", [{}, {"mesh": {"dp": 2}, "plan": "zero1"}], ids=str)
def test_states_of_a_16_bit_model_continue_it_bit_for_bit(options):
    step, batch = stacked(**options)
    for _ in range(20):
        step(*batch)
    weights, state = step.state_dict(), step.training_state()
    assert weights["a.weight"].dtype == torch.bfloat16
    assert state["masters"].keys() == {"a.weight", "a.bias", "b.bias", "seen"}
    other, _ = stacked(**options)
    other.load_state_dict(weights)
    other.load_training_state(state)

    def all_of(step):
        slots = step.training_state()["optimizer"]
        return {**step.state_dict(masters=True),
                **{f"{n} {s}": v for n, own in slots.items() for s, v in own.items()}}

    for _ in range(4):
        ours, theirs = all_of(other), all_of(step)
        assert all(torch.equal(ours[n], v) for n, v in theirs.items())
        assert float(step(*batch)) == float(other(*batch))
    third, _ = stacked(**options)
    third.load_state_dict(step.state_dict(masters=True))
    third.load_training_state(step.training_state())
    assert all(torch.equal(v, all_of(third)[n]) for n, v in all_of(step).items())


def test_masters_of_other_weights_are_refused():
    step, batch = stacked()
    for _ in range(20):
        step(*batch)
    state, (other, _) = step.training_state(), stacked()
    before = other.state_dict(masters=True)
    with pytest.raises(ValueError, match="masters of .* first load the state_dict"):
        other.load_training_state(state)
    assert other.step == 0
    for change, kind, message in (
            (lambda m: m.pop("a.bias"), KeyError, "missing a.bias"),
            (lambda m: m.update(c=torch.ones(1)), KeyError, "unknown c"),
            (lambda m: m.update({"a.bias": torch.ones(3)}), ValueError, r"a.bias: \[3\] given"),
            (lambda m: m.update({"a.bias": 3}), TypeError, "a.bias: int given")):
        wrong = {**state, "masters": dict(state["masters"])}
        change(wrong["masters"])
        with pytest.raises(kind, match=message):
            other.load_training_state(wrong)
    assert all(torch.equal(v, before[n]) for n, v in other.state_dict(masters=True).items())
    # Without masters it trains on from the weights as they are.
    other.load_training_state({k: v for k, v in state.items() if k != "masters"})
    assert other.step == 20
