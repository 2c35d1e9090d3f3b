# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""State-space and linear-attention layers of the transformers library, as scans.

The forms in `cleave.trace.scans` are compared with the library's functions, in values and
gradients, and models of them are traced and trained.
"""

import importlib
import inspect
import re
import types

import pytest
import torch
import transformers

import cleave
from cleave import recurrence
from cleave.testing.tools import interpret, run_tool, tool
from cleave.trace import scans, trace
from recipe_runs import agree, random_inputs
from trace_support import check, count, text_in_double

SELECTIVE, CHUNKED, DELTA, KIMI = scans._SCANS

FUNCTIONS = [("mamba", SELECTIVE), ("falcon_mamba", SELECTIVE), ("jamba", SELECTIVE),
             ("mamba2", CHUNKED), ("bamba", CHUNKED), ("nemotron_h", CHUNKED),
             ("qwen3_next", DELTA), ("olmo_hybrid", DELTA), ("qwen3_5", DELTA),
             ("bailing_hybrid", KIMI), ("kimi_linear", KIMI), ("glm5_next", KIMI)]


class WideTorch:
    """The module torch, in which f32 is f64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def module_of(family):
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


@pytest.mark.parametrize("length", [1, 6, 12])
@pytest.mark.parametrize("family, name", FUNCTIONS)
def test_forms_are_the_library_s(family, name, length, monkeypatch):
    """Values and gradients are equal in f64, in which the library's casts to f32 compute here."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    module, scan = module_of(family), scans._SCANS[name]
    function = inspect.unwrap(vars(module)[name])
    monkeypatch.setitem(vars(module), "torch", WideTorch())
    generator = torch.Generator().manual_seed(length)
    case = scans._DRAWS[scan](
        lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64), length)
    found = []
    for compute in (function, scan):
        given = {k: v.clone().requires_grad_() if torch.is_tensor(v) else v
                 for k, v in case.items()}
        results = compute(**given)
        assert all(y.dtype == torch.float64 for y in results)
        weights = torch.Generator().manual_seed(2)
        sum((y * torch.randn(y.shape, generator=weights, dtype=y.dtype)).sum()
            for y in results).backward()
        found.append([*results, *(v.grad for v in given.values() if torch.is_tensor(v))])
    for own, known in zip(*found, strict=True):
        torch.testing.assert_close(own, known, rtol=1e-10, atol=1e-10)


def test_another_function_of_the_name_is_left_alone():
    assert scans._computes(vars(module_of("mamba"))[SELECTIVE], scans._SCANS[SELECTIVE])
    assert not scans._computes(lambda **given: given["hidden_states"], scans._SCANS[SELECTIVE])


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_the_operator(reverse):
    generator = torch.Generator().manual_seed(0)
    factor, x = (torch.randn(3, 5, 2, generator=generator, dtype=torch.float64, requires_grad=True)
                 for _ in range(2))
    run = lambda a, b: recurrence.linear_scan(a, b, 1, reverse)  # noqa: E731
    assert torch.autograd.gradcheck(run, (factor, x))
    assert torch.autograd.gradgradcheck(run, (factor, x))


def by_position(query, key, value, decay, beta):
    """The gated delta rule as its paper writes it (arXiv 2412.06464, equation 10)."""
    state, outputs = torch.zeros(*key.shape[:2], key.shape[-1], value.shape[-1], dtype=key.dtype), []
    for q, k, v, g, b in zip(*(x.unbind(2) for x in (query, key, value, decay, beta))):
        state = state * g.reshape(*g.shape[:2], -1, 1).exp()
        new = (v - torch.einsum("bak,bakv->bav", k, state)) * b[..., None]
        state = state + k[..., None] * new[..., None, :]
        outputs.append(torch.einsum("bak,bakv->bav", q, state))
    return torch.stack(outputs, 2), state


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("length, chunk", [(1, 1), (3, 2), (8, 2), (17, 2), (17, 4), (33, 1), (64, 4),
                                           (70, 2)])
def test_gated_delta_rule_by_position(length, chunk, rows):
    """Values and gradients, where chunks are in one block and in several, whole and not; the state
    decays as a whole, or by rows (Kimi Linear)."""
    generator = torch.Generator().manual_seed(length)
    draw = lambda *shape: torch.randn(2, 3, length, *shape, generator=generator,  # noqa: E731
                                      dtype=torch.float64)
    inputs = [draw(4) / 2, draw(4) / 2, draw(5), -draw(*([4] if rows else [])).abs(),
              draw().sigmoid()]
    for x in inputs:
        x.requires_grad_()
    results = []
    for rule in (by_position, lambda *x: recurrence.gated_delta_rule(*x, chunk)):
        output, state = rule(*inputs)
        loss = (output * output.sin()).sum() + (state * state.cos()).sum()
        results.append((output, state, *torch.autograd.grad(loss, inputs)))
    for expected, own in zip(*results):
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-10)


def test_inverse_of_blocks():
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 4, 8, 16, 64):
        matrix = torch.randn(3, size, size, generator=generator, dtype=torch.float64) / size ** 0.5
        expected = torch.linalg.inv(matrix.tril(-1) + torch.eye(size, dtype=torch.float64))
        torch.testing.assert_close(recurrence.unit_lower_inverse(matrix), expected)
    with pytest.raises(ValueError, match="12 rows are not a power of two"):
        recurrence.unit_lower_inverse(torch.zeros(12, 12))


SIZE = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, use_cache=False)
LINEAR = dict(intermediate_size=64, layer_types=["linear_attention"] * 2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=8, linear_value_head_dim=8, num_experts=4, num_experts_per_tok=2,
              mlp_only_layers=[0, 1])
#: The model, its settings, and the recurrences of a trace of 20 positions.
MODELS = {
    "mamba": ("MambaForCausalLM", "MambaConfig", dict(state_size=8), 2),
    "mamba2": ("Mamba2ForCausalLM", "Mamba2Config", dict(
        state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=4), 2),
    "qwen3_next": ("Qwen3NextForCausalLM", "Qwen3NextConfig", LINEAR, 0),
}
COMPILED = [("mamba", {}), ("mamba2", {}), ("qwen3_next", {}),
            *((family, dict(mesh=mesh, plan=plan)) for family in ("mamba", "mamba2")
              for mesh, plan in (({"dp": 2}, "zero3"), ({"cp": 2}, "context"))),
            ("qwen3_next", dict(mesh={"cp": 2}, plan="context"))]


def build(family):
    model, config, settings, _ = MODELS[family]
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**SIZE, **settings)).train()


def batch(seed, length=20):
    generator = torch.Generator().manual_seed(seed)
    ids, labels = (torch.randint(3, 96, (2, length), generator=generator) for _ in range(2))
    return dict(input_ids=ids, labels=labels)


@pytest.mark.parametrize("family, rule", [("mamba", "selective_scan"), ("mamba2", "chunked_scan"),
                                          ("qwen3_next", "gated_delta_rule")])
def test_trace_has_recurrences(family, rule, monkeypatch):
    """Each layer is recognised; the arguments of the whole model do not hide it."""
    calls, known = [], getattr(recurrence, rule)
    monkeypatch.setattr(recurrence, rule, lambda *args: calls.append(type(args[0])) or known(*args))
    traced = check(build(family), batch(0), logits=False)
    assert count(traced.mlir, "linear_scan") == MODELS[family][3]
    # Others are of the comparison with the library's function.
    traces = calls.count(torch._subclasses.FakeTensor)
    assert traces and traces % SIZE["num_hidden_layers"] == 0


@pytest.mark.parametrize("family, options", COMPILED)
def test_five_steps_are_those_of_torch(family, options):
    """Losses and parameters after five steps of AdamW, on one rank and on two."""
    settings = dict(lr=1e-2, eps=1e-6, weight_decay=0.01)
    # Four chunks of the rule, two on each rank.
    length = 256 if family == "qwen3_next" and options else 20
    step = cleave.compile(build(family), batch(0, length), optimizer=cleave.AdamW(**settings),
                          check="off", **options)
    model = build(family)
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    for seed in range(5):
        optimizer.zero_grad()
        loss = model(**batch(seed, length)).loss
        loss.backward()
        optimizer.step()
        assert float(step(**batch(seed, length))) == pytest.approx(float(loss.detach()), abs=2e-5)
    trained = step.state_dict()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(torch.as_tensor(trained[name]), parameter.detach(), rtol=1e-3,
                                   atol=1e-4)


class Causal(torch.nn.Module):
    """Tokens whose convolution is cut off behind them, as layers of these models write it."""

    def __init__(self, taps=4, dilation=1, groups=8, bias=True, cut=None):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.cut = torch.nn.Embedding(96, 8), cut
        self.config = types.SimpleNamespace()
        self.convolution = torch.nn.Conv1d(8, 8, taps, dilation=dilation, groups=groups, bias=bias,
                                           padding=dilation * (taps - 1))

    def forward(self, input_ids, labels):
        x = self.table(input_ids)
        length = self.cut or x.shape[1]
        y = self.convolution(x.transpose(1, 2))[..., :length].transpose(1, 2)
        loss = x.square().mean() + y.sin().square().mean() + 0 * labels.sum()
        return types.SimpleNamespace(loss=loss, logits=y)


CAUSAL = [dict(), dict(taps=2, bias=False), dict(taps=3, dilation=2), dict(groups=2), dict(groups=1),
          dict(taps=1), dict(cut=15), dict(cut=17)]


@pytest.mark.parametrize("settings", CAUSAL, ids=str)
def test_causal_convolution(settings):
    """Its windows are those of the tokens, and none is computed to be cut off; other cuts are left."""
    traced = check(Causal(**settings), batch(0, 16), logits=False)
    windows = re.findall(r"graph.patches .*-> tensor<2x1x(\d+)x", traced.mlir)
    expected = {"19"} if "cut" in settings else {"16"}
    assert set(windows) == (set() if settings.get("taps") == 1 else expected)


@pytest.mark.parametrize("settings", CAUSAL[:6], ids=str)
@pytest.mark.parametrize("ranks", [2, 4])
def test_causal_convolution_over_ranks(tmp_path, settings, ranks):
    """Of the tokens of the rank before, a rank reads as many as windows reach back: a step in f64
    by the interpreter, and what is gathered."""
    path = tmp_path / "m.mlir"
    path.write_text(text_in_double(trace(Causal(**settings).double(), batch(0, 16)).mlir))
    step, local = (run_tool([tool("cleave-compile"), str(path), *flags])
                   for flags in (["--emit=step"], ["--emit=local", f"--mesh=cp={ranks}", "--plan=context"]))
    inputs = random_inputs(step)
    for found, expected in zip(interpret(local, inputs, entry="train"),
                               interpret(step, inputs, entry="train")):
        agree(found, expected)
    train = local.split("func.func @train")[1].split("func.func")[0]
    reach = settings.get("dilation", 1) * (settings.get("taps", 4) - 1)
    gathered = re.findall(r"spmd.all_gather .*: (tensor<\S+f64>) -> ", train)
    assert gathered == [f"tensor<2x8x1x1x{reach}xf64>"] * (2 if reach else 0)
