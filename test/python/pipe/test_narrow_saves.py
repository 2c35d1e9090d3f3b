# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Values that forward saves in 16 or 8 bits: forward is the same, gradients are near.

The judge is the step that saves f32, and PyTorch's `saved_tensors_hooks`, which round what autograd
saves.
"""

import pytest
import torch

import cleave
from cleave.compiler.entrance import grouped
from mixed_precision import SIZE, batch, compiled, model
from proofs import ALL
from training_support import same_bits, snapshot

LAYOUTS = [
    {}, dict(micro_batches=2), dict(mesh={"dp": 2}, plan="zero3"),
    dict(mesh={"tp": 2}, plan="megatron-sp"), dict(mesh={"cp": 2}, plan="ring"),
    dict(mesh={"pp": 2}, micro_batches=2, schedule="zb-h1"),
    dict(mesh={"pp": 2}, micro_batches=2, schedule="1f1b", recompute="full"),
]


def gradients(**options):
    """The loss of one step, and what it adds to the weights, with a rate of -1."""
    step = compiled(model(), optimizer=cleave.SGD(lr=1.0), **options)
    before = step.state_dict()
    loss = float(step(**batch()))
    return loss, {n: (before[n] - v).double() for n, v in step.state_dict().items()}, step


@pytest.fixture(scope="module")
def wide_step():
    return gradients()[2]


def saved(step):
    return step.report()["plan"]["entries"]["train"]["saved_by_block"]


@pytest.mark.parametrize("options, precision, digits", [
    (options, *kind) for i, options in enumerate(LAYOUTS)
    for j, kind in enumerate([("bf16", 9), ("fp16", 12), ("fp8", 4)]) if ALL or i % 3 == j], ids=str)
def test_forward_is_the_same_and_gradients_are_near(options, precision, digits):
    loss, wide, _ = gradients(**options)
    again, narrow, step = gradients(**options, save_precision=precision)
    assert again == loss
    assert "pipe.narrowed" in step.ir("scheduled")
    error = sum(((narrow[n] - g) ** 2).sum() for n, g in wide.items()).sqrt()
    norm = sum((g**2).sum() for g in wide.values()).sqrt()
    assert 0 < error <= 4 * 2.0**-digits * norm


@pytest.mark.parametrize("precision, part", [("bf16", 2), ("fp8", 4)])
def test_part_of_the_bytes(wide_step, precision, part):
    """But for statistics (of norms, two numbers for a position, and of attention, one for a head),
    and for the last block's output, from which the loss is computed."""
    narrow = gradients(save_precision=precision)[2]
    layers, rows = SIZE["layers"], batch()["input_ids"].numel()

    def of_blocks(step):
        return sum(g["bytes"] * len(g["blocks"]) for g in saved(step) if g["blocks"])

    statistics = layers * rows * (2 * 2 + SIZE["heads"]) * 4
    exact = statistics + rows * SIZE["hidden"] * 4
    assert of_blocks(narrow) - exact == (of_blocks(wide_step) - exact) / part


@pytest.mark.parametrize("precision, kind", [
    ("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)])
def test_as_torch_rounds_what_it_saves(precision, kind):
    """It saves more than a step does, and rounds that too."""
    own = model()
    parameters = {id(p) for p in own.parameters()}

    def pack(value):
        narrow = value.is_floating_point() and value.dim() > 1 and id(value) not in parameters
        return value.to(kind) if narrow else value

    with torch.autograd.graph.saved_tensors_hooks(
            pack, lambda v: v.float() if v.dtype == kind else v):
        own(**batch())[0].backward()
    theirs = {n: p.grad.double() for n, p in own.named_parameters()}
    _, exact, _ = gradients()
    _, narrow, _ = gradients(save_precision=precision)
    error = {name: sum(((one[n] - exact[n]) ** 2).sum() for n in theirs).sqrt()
             for name, one in (("ours", narrow), ("theirs", theirs))}
    assert 0 < error["ours"] <= 2 * error["theirs"]


def test_little_is_left_in_mixed_precision():
    one, two = (compiled(model(), precision="bf16", save_precision=p) for p in ("f32", "bf16"))
    assert float(one(**batch())) == float(two(**batch()))
    assert same_bits(snapshot(one), snapshot(two))


def test_unknown_type():
    with pytest.raises(ValueError, match="save_precision is f32, bf16, fp16 or fp8, not 'f8'"):
        compiled(model(), save_precision="f8")


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
def test_16_bit_activations_in_8_bits(precision):
    """About half the bytes, but for statistics and the last block's output."""
    loss, wide, step = gradients(precision=precision)
    again, narrow, narrowed = gradients(precision=precision, save_precision="fp8")
    assert again == loss
    error = sum(((narrow[n] - g) ** 2).sum() for n, g in wide.items()).sqrt()
    norm = sum((g**2).sum() for g in wide.values()).sqrt()
    assert 0 < error <= 4 * 2.0**-4 * norm
    def total(own):
        return sum(group["bytes"] * max(len(group["blocks"]), 1) for group in saved(own))

    # With fp8, what linear layers read is in 8 bits already.
    assert total(narrowed) < (0.9 if precision == "fp8" else 0.6) * total(step)


class Flags(torch.nn.Module):
    """Saves where it is positive; all numbers are small integers, which bf16 holds."""

    def __init__(self, hidden):
        super().__init__()
        self.first, self.second = (torch.nn.Linear(*sizes, bias=False)
                                   for sizes in ((16, hidden), (hidden, hidden)))
        for p in self.parameters():
            p.data = torch.randint(-1, 2, p.shape).float()

    def forward(self, x):
        h = torch.relu(self.first(x))
        h = torch.where(h > 2, h, -h)
        return torch.where(self.second(h) > 1, h, 2 * h).sum()


@pytest.mark.parametrize("hidden", [64, 33])
@pytest.mark.parametrize("options", [{}, dict(mesh={"dp": 2}), dict(micro_batches=2)], ids=str)
def test_flags_are_saved_in_bits(hidden, options):
    """Where they fill numbers of 32 flags; else in bytes. Exactly in both."""
    torch.manual_seed(4)
    own, x = Flags(hidden), torch.randint(-2, 3, (8, 16)).float()
    wide, narrow = (cleave.compile(own, (x,), optimizer=cleave.SGD(lr=1.0),
                                   **grouped(recompute="none", save_precision=p, **options)) for p in ("f32", "bf16"))
    assert float(wide(x)) == float(narrow(x))
    assert same_bits(snapshot(wide), snapshot(narrow))

    def flags(step):
        return sum(t["bytes"] for group in saved(step) for t in group["tensors"]
                   if t["op"] == "graph.compare")

    assert flags(wide) > 0 and flags(narrow) == flags(wide) / (8 if hidden == 64 else 1)
