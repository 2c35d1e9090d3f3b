# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Conditions on values of which one branch only raises are checks of the step; others are refused
at their lines."""

import inspect
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.trace import TraceError
from cleave.trace.conditions import compared
from cleave.compiler.entrance import grouped

X, LABELS = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


class Classifier(nn.Module):
    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 5)
        self.strict, self.compute = True, forward
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, labels):
        return self.compute(self, x, labels)

    def loss(self, x, labels):
        return F.cross_entropy(self.a(x), labels)


def raises(m, x, labels):
    if labels.max() >= 4:
        raise ValueError("below 4")
    return m.loss(x, labels)


def names_a_value(m, x, labels):
    if labels.max() >= 4:
        raise ValueError(f"below 4, not {labels.max()} or {labels.max().item()}")
    return m.loss(x, labels)


def asserts(m, x, labels):
    assert labels.max() < 4, "below 4"
    return m.loss(x, labels)


def torch_asserts(m, x, labels):
    torch._assert(labels.max() < 4, "below 4")
    return m.loss(x, labels)


def torch_asserts_async(m, x, labels):
    torch._assert_async(labels.max() < 4, "below 4")
    return m.loss(x, labels)


def torch_checks(m, x, labels):
    torch._check(labels.max().item() < 4, lambda: "below 4")
    return m.loss(x, labels)


def not_all(m, x, labels):
    if not (labels < 4).all():
        raise ValueError("below 4")
    return m.loss(x, labels)


def item(m, x, labels):
    if labels.max().item() + 1 > 4 and m.strict:
        raise ValueError("below 4")
    return m.loss(x, labels)


def float_item(m, x, labels):
    if labels.float().max().item() >= 3.0000001:
        raise ValueError("below 4")
    return m.loss(x, labels)


def contains(m, x, labels):
    if 4 in labels or torch.equal(labels, LABELS + 4):
        raise ValueError("below 4")
    return m.loss(x, labels)


def nested(m, x, labels):
    if labels.min() >= 0:
        if labels.max() >= 4:
            raise ValueError("below 4")
    return m.loss(x, labels)


def other_branch_goes_on(m, x, labels):
    if labels.max() < 4:
        return m.loss(x, labels)
    else:
        raise ValueError("below 4")


def either(m, x, labels):
    if labels.min() < 0 or labels.max() >= 4:
        raise ValueError("below 4")
    return m.loss(x, labels)


def both(m, x, labels):
    if labels.min() >= 0 and labels.max() >= 4:
        raise ValueError("below 4")
    return m.loss(x, labels)


def of_what_is_computed(m, x, labels):
    scores = m.a(x)
    if not torch.isfinite(scores).all() or labels.max() >= 4:
        raise ValueError("below 4")
    return F.cross_entropy(scores, labels)


def several(m, x, labels):
    if x.isnan().any():
        raise ValueError("not a number")
    assert labels.min() >= 0, "negative"
    if labels.max() >= 4:
        raise ValueError("below 4")
    return m.loss(x, labels)


CHECKS = [raises, names_a_value, asserts, torch_asserts, torch_asserts_async, torch_checks, not_all,
          item, float_item, contains, nested, other_branch_goes_on, either, both,
          of_what_is_computed, several]


@pytest.mark.parametrize("forward", CHECKS, ids=lambda f: f.__name__)
def test_what_only_raises_is_a_check(forward):
    """The step trains as eager code does; where that raises, it stops and changes nothing."""
    module = Classifier(forward)
    step = cleave.compile(module, (X, LABELS), target=cleave.Target(threads=1),
                          optimizer=cleave.SGD(lr=0.1))
    trained = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        trained.zero_grad()
        loss = module(X, LABELS)
        loss.backward()
        trained.step()
        assert float(step(X, LABELS)) == pytest.approx(float(loss.detach()), rel=1e-5)
    before = {name: value.clone() for name, value in step.state_dict().items()}
    for name, value in module.state_dict().items():
        torch.testing.assert_close(before[name], value)
    with pytest.raises((ValueError, AssertionError, RuntimeError), match="below 4"):
        module(X, LABELS + 1)
    for call in (step, step.evaluate):
        with pytest.raises(cleave.StepError, match=rf"{__file__}:\d+: \w+Error: below 4") as caught:
            call(X, LABELS + 1)
        first = inspect.getsourcelines(forward)[1]
        assert first < int(str(caught.value).split(":")[1]) <= first + 7
    assert all(torch.equal(value, before[name]) for name, value in step.state_dict().items())
    assert torch.isfinite(torch.tensor(float(step(X, LABELS))))


def computes_something_else(m, x, labels):
    labels = labels.clamp(max=3) if labels.max() >= 4 else labels
    return m.loss(x, labels)


def is_caught(m, x, labels):
    try:
        if labels.max() >= 4: raise ValueError("below 4")  # noqa: E701
    except ValueError:
        labels = labels.clamp(max=3)
    return m.loss(x, labels)


def only_prints(m, x, labels):
    if labels.max() >= 4: print("large")  # noqa: E701
    return m.loss(x, labels)


def loops(m, x, labels):
    while x.abs().max() > 1: x = x / 2  # noqa: E701
    return m.loss(x, labels)


def draws(m, x, labels):
    if torch.rand(()) > 0.5: x = torch.rand(()) * x  # noqa: E701
    return m.loss(x, labels)


def writes(m, x, labels):
    if labels.max() >= 4: m.strict = False  # noqa: E701
    return m.loss(x, labels)


def writes_a_buffer(m, x, labels):
    if labels.max() >= 4:
        m.seen = m.seen + 1
        if labels.max() >= 5: raise ValueError("below 5")  # noqa: E701
    return m.loss(x, labels)


def writes_in_place(m, x, labels):
    x = x * 1
    if labels.max() >= 4:
        x.mul_(2)
        if labels.max() >= 5: raise ValueError("below 5")  # noqa: E701
    return m.loss(x, labels)


def number_of_python(m, x, labels):
    if int(labels.max()) >= 4: raise ValueError("below 4")  # noqa: E701
    return m.loss(x, labels)


@pytest.mark.parametrize("forward", [computes_something_else, is_caught, only_prints, loops, draws,
                                     writes, writes_a_buffer, writes_in_place,
                                     number_of_python], ids=lambda f: f.__name__)
def test_other_conditions_are_refused_at_their_line(forward):
    lines, first = inspect.getsourcelines(forward)
    line = first + next(i for i, text in enumerate(lines) if " if " in text or "while" in text)
    with pytest.raises(TraceError, match="depends on the values of a tensor") as caught:
        cleave.trace.trace(Classifier(forward), (X, LABELS))
    assert f"{__file__}:{line}: " in str(caught.value)


@pytest.mark.parametrize("bound", [0.1, 1 / 3, 0.5, 16777217.0, -0.1, float("inf")])
def test_numbers_are_compared_as_python_does(bound):
    """A bound that f32 does not have is not rounded to one that it has."""
    near = torch.tensor(bound, dtype=torch.float32)
    values = [torch.nextafter(near, torch.tensor(end)).item() for end in (-3e38, 3e38)]
    for value in (*values, near.item()):
        for name in ("gt", "ge", "lt", "le", "eq", "ne"):
            found = compared(getattr(torch, name), torch.tensor(value), bound)
            assert found.item() == getattr(operator, name)(value, bound), (name, value)
            found = compared(getattr(torch, name), bound, torch.tensor(value))
            assert found.item() == getattr(operator, name)(bound, value), (name, value)


class Tagger(nn.Module):
    """Checks of tokens, a mask, what is computed, and labels."""

    def __init__(self):
        super().__init__()
        self.e, self.h = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.m = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def forward(self, ids, mask, labels=None):
        if ids.max() >= 12:
            raise ValueError("a token")
        if not mask.any(dim=1).all():
            raise ValueError("a mask")
        hidden = self.m(self.e(ids)) * mask[..., None]
        if hidden.abs().max() > 1e3:
            raise ValueError("hidden")
        logits = self.h(hidden)
        if labels is None:
            return {"logits": logits}
        if labels.max() >= 12:
            raise ValueError("a label")
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize("family", ["Wav2Vec2", "Hubert"])
def test_models_with_a_ctc_loss(family):
    """They check their labels, and select those that are not padding."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=12, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, conv_dim=(8,), conv_stride=(8,), conv_kernel=(8,),
        num_feat_extract_layers=1, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        apply_spec_augment=False, layerdrop=0.0, hidden_dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
        ctc_loss_reduction="mean")
    module = getattr(transformers, f"{family}ForCTC")(config)
    audio, labels = torch.randn(3, 96), torch.randint(1, 12, (3, 4))
    labels[0, 2:] = labels[2, 3:] = -100
    inputs = dict(input_values=audio, labels=labels)
    step = cleave.compile(module, inputs, target=cleave.Target(threads=1),
                          optimizer=cleave.SGD(lr=0.01))
    module.train()
    trained = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(3):
        trained.zero_grad()
        loss = module(**inputs).loss
        loss.backward()
        trained.step()
        assert float(step(**inputs)) == pytest.approx(float(loss.detach()), rel=1e-4)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(step.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    with pytest.raises(cleave.StepError, match=r"modeling_\w+.py:\d+: ValueError: Label values"):
        step(audio, labels.clamp(max=3) + 10)


def test_distributions_check_their_arguments():
    """If they are asked to; by default they do not in a step, as under `python -O`."""
    for validate in (True, None):
        def forward(m, x, labels):
            normal = torch.distributions.Normal(x, x.exp(), validate_args=validate)
            return m.loss(x, labels) - normal.log_prob(x * 2).mean()

        step = cleave.compile(Classifier(forward), (X, LABELS), target=cleave.Target(threads=1))
        step.evaluate(X, LABELS)
        if validate:
            with pytest.raises(cleave.StepError, match="ValueError: Expected parameter scale"):
                step.evaluate(X - 1e3, LABELS)
        else:
            step.evaluate(X - 50, LABELS)


def selects(m, x, labels):
    chosen = x.masked_select(x > 0)
    return m.loss(x, labels) * chosen.mean()


@pytest.mark.parametrize("forward", [selects], ids=lambda f: f.__name__)
def test_elements_that_are_selected_are_refused_elsewhere(forward):
    with pytest.raises(TraceError, match="depends on the values of a tensor") as caught:
        cleave.trace.trace(Classifier(forward), (X, LABELS))
    assert f"{__file__}:{inspect.getsourcelines(forward)[1] + 1}: " in str(caught.value)


@pytest.mark.parametrize("options", [
    dict(micro_batches=4), dict(mesh={"dp": 2, "pp": 2}, micro_batches=2),
    dict(mesh={"dp": 2}, micro_batches=2, plan="zero2", precision="bf16")],
    ids=["micro-batches", "pipeline", "zero2"])
def test_checks_on_meshes(options):
    """The last sample fails, which is of the last micro-batch and rank."""
    torch.manual_seed(0)
    ids, labels = torch.randint(0, 12, (8, 6)), torch.randint(0, 12, (8, 6))
    mask = torch.ones(8, 6)
    step = cleave.compile(Tagger(), dict(ids=ids, mask=mask, labels=labels),
                          **grouped(ranks="threads", **options))
    float(step(ids, mask, labels))
    before = {name: value.clone() for name, value in step.state_dict().items()}

    def changed(tensor, value):
        tensor = tensor.clone()
        tensor[-1] = value
        return tensor

    for inputs, text in (((changed(ids, 13), mask, labels), "a token"),
                         ((ids, changed(mask, 0), labels), "a mask"),
                         ((ids, changed(mask, 1e6), labels), "hidden"),
                         ((ids, mask, changed(labels, 13)), "a label")):
        for call in (step, step.evaluate):
            with pytest.raises(cleave.StepError, match=f"ValueError: {text}"):
                call(*inputs)
    assert all(torch.equal(value, before[name]) for name, value in step.state_dict().items())
    with pytest.raises(cleave.StepError, match="a token"):
        step.logits(changed(ids, 13), mask)
    assert step.logits(ids, mask).shape == (8, 6, 16)
