# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Update rules in native code, from Python: a small GPT-2 in f32 against the same rule in
PyTorch in f64, on one device, on recipes and in a pipeline; resumed runs; memory.
"""

import functools

import pytest
import torch

import cleave
from adamw8bit_reference import Reference
from expert_models import switch
from native_rules import LAMB, Lion
from training_support import (assert_close, compile_case, family, same_bits, snapshot, torch_run,
                              weights)

STEPS = 3


def is_matrix(name, p):
    return p.ndim == 2 and "wte" not in name and "wpe" not in name


class MuonWithAdamW:
    """torch's Muon of the matrices and AdamW of the rest, as a person writes it."""

    def __init__(self, module):
        named = list(module.named_parameters())
        self.both = [
            torch.optim.Muon([p for n, p in named if is_matrix(n, p)], lr=0.01),
            torch.optim.AdamW([p for n, p in named if not is_matrix(n, p)], lr=0.001, eps=1e-4)]

    def zero_grad(self):
        for optimizer in self.both:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.both:
            optimizer.step()


#: Each rule of cleave, and the same of torch. Large eps, because a gradient that is 0 up to
#: rounding would make a step of full size.
RULES = {
    "lion": (cleave.Lion(lr=1e-3, weight_decay=0.1),
             lambda m: Lion(m.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)),
    "adagrad": (cleave.Adagrad(lr=0.01, lr_decay=0.1, eps=1e-4),
                lambda m: torch.optim.Adagrad(m.parameters(), lr=0.01, lr_decay=0.1, eps=1e-4)),
    "lamb": (cleave.LAMB(lr=0.01, eps=1e-4),
             lambda m: LAMB(m.parameters(), lr=0.01, betas=(0.9, 0.999), eps=1e-4,
                            weight_decay=0.01)),
    "adafactor": (cleave.Adafactor(lr=0.01, eps1=1e-8),
                  lambda m: torch.optim.Adafactor(m.parameters(), lr=0.01, eps=(1e-30, 1e-3))),
    "muon": (cleave.Muon(lr=0.01, param_groups=[
        dict(match=lambda n, p: not is_matrix(n, p),
             optimizer=cleave.AdamW(lr=0.001, eps=1e-4))]), MuonWithAdamW),
}


@functools.cache
def case():
    return family("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def train(step, count=STEPS, first=0):
    return [float(step(*case().batches[i % 4])) for i in range(first, first + count)]


@pytest.mark.parametrize("rule", RULES)
def test_losses_are_those_of_torch(rule, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # Muon's iterations
    optimizer, theirs = RULES[rule]
    expected = torch_run(case(), STEPS + 1, theirs, double=True)
    step = compile_case(case(), optimizer)
    assert_close(train(step, STEPS + 1), expected.losses, rtol=2e-4)


SETTINGS = [
    dict(mesh={"dp": 2}, plan="zero1"), dict(mesh={"dp": 2}, plan="zero2", micro_batches=2),
    dict(mesh={"dp": 2}, plan="zero3"), dict(mesh={"tp": 2}, plan="megatron"),
    dict(mesh={"row": 2, "col": 2}, plan="summa2d"), dict(mesh={"pp": 2}, micro_batches=2),
    dict(mesh={"pp": 2, "dp": 2}, plan="zero1", micro_batches=2),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s["mesh"]) + s.get("plan", ""))
@pytest.mark.parametrize("rule", RULES)
def test_ranks_equal_one_device(rule, settings):
    optimizer, _ = RULES[rule]
    one, several = (compile_case(case(), optimizer, **kind) for kind in ({}, settings))
    assert_close(train(several), train(one), rtol=2e-4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fusion", ["backward", "forward"])
def test_updates_are_the_same_wherever_they_run(rule, fusion):
    """Bit by bit, if a rule sums nothing: a kernel that also makes a gradient may sum the
    squares for a norm in another order."""
    optimizer, _ = RULES[rule]
    found = []
    for where in ("none", fusion):
        step = compile_case(case(), optimizer, optimizer_fusion=where, check_finite=False)
        train(step)
        found.append(snapshot(step))
    if rule in ("lion", "adagrad"):
        assert same_bits(*found)
    for one, other in zip(found[0][:2], found[1][:2]):
        for name, value in one.items():
            assert_close(other[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_a_resumed_run_has_the_same_bits(rule, tmp_path):
    optimizer, _ = RULES[rule]
    whole, part, rest = (compile_case(case(), optimizer) for _ in range(3))
    train(whole, 4)
    train(part, 2)
    part.save(str(tmp_path / "c"))
    rest.load(str(tmp_path / "c"))
    train(rest, 2, first=2)
    assert same_bits(snapshot(whole), snapshot(rest))


@pytest.mark.parametrize("rule", RULES)
def test_a_checkpoint_is_read_on_another_mesh(rule, tmp_path):
    """State of other shapes than its parameter's is gathered and cut."""
    optimizer, _ = RULES[rule]
    two = compile_case(case(), optimizer, mesh={"dp": 2}, plan="zero3")
    train(two, 2)
    two.save(str(tmp_path / "c"))
    one = compile_case(case(), optimizer)
    one.load(str(tmp_path / "c"))
    assert same_bits(snapshot(one), snapshot(two))


@pytest.mark.parametrize("rule", ["lamb", "adafactor", "muon"])
def test_sums_over_shards_are_refused_with_deterministic(rule):
    """Their bits would depend on the number of ranks."""
    optimizer, _ = RULES[rule]
    with pytest.raises(cleave.CompileError, match="recipe 'zero1': the update of this parameter "
                       "is a sum over its elements"):
        compile_case(case(), optimizer, mesh={"dp": 2}, plan="zero1", deterministic=2)


def test_lion_is_deterministic():
    optimizer, _ = RULES["lion"]
    steps = [compile_case(case(), optimizer, deterministic=2, **kind)
             for kind in ({}, dict(mesh={"dp": 2}, plan="zero1"))]
    for step in steps:
        train(step)
    assert same_bits(*map(snapshot, steps))


def test_training_state_moves_between_steps():
    first, second = (compile_case(case(), RULES["adafactor"][0]) for _ in range(2))
    train(first, 2)
    second.load_state_dict(first.state_dict())
    second.load_training_state(first.training_state())
    assert same_bits(snapshot(first), snapshot(second))
    state = first.training_state()["optimizer"]["transformer.h.0.attn.c_attn.weight"]
    assert {slot: tuple(t.shape) for slot, t in state.items()} == {
        "row_var": (32,), "col_var": (96,)}


@pytest.mark.parametrize("rule", ["lamb", "adafactor", "muon"])
def test_stacked_experts_are_updated_each_on_its_own(rule, monkeypatch):
    """As the parameters of the module that they are there: norms are of one expert."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # Muon's iterations
    experts = switch()
    optimizer, theirs = RULES[rule]
    if rule == "adafactor":
        # Gradients of experts with few tokens are small.
        optimizer = cleave.Adafactor(lr=0.01)
    expected = torch_run(experts, 3, theirs, double=True)
    step = compile_case(experts, optimizer)
    assert "graph.stacked" in step.ir("model")
    start = weights(step)
    losses = [float(step(*experts.batches[i])) for i in range(3)]
    assert_close(losses, expected.losses, rtol=5e-4)
    names = [n for n in start if ".experts.expert_" in n]
    assert len(names) >= 8 and set(names) <= set(step.training_state()["optimizer"])
    after = weights(step)
    for name in names:
        update = expected.updates[name]
        assert (after[name] - start[name] - update).norm() <= 0.02 * update.norm(), name


def test_groups_set_what_they_name():
    base = dict(eps=1e-4, weight_decay=0.0)
    groups = [dict(match=lambda n, p: "mlp" in n, lr=0.0),
              dict(match=lambda n, p: "attn" in n, betas=(0.0, 0.0), lr_scale=0.5)]
    step = compile_case(case(), cleave.AdamW(lr=1e-3, param_groups=groups, **base))
    start = weights(step)
    train(step, 1)
    moved = {n: float((t - start[n]).abs().max()) for n, t in weights(step).items()}
    for name, size in moved.items():
        if "mlp" in name:
            assert size == 0
        elif "attn.c_proj.weight" in name:
            assert 4e-4 < size < 5.01e-4
        elif "wte" in name:
            assert 8e-4 < size < 1.001e-3


class AdamW8bit(torch.optim.Optimizer):
    """The published rule where blocks of 256 elements end with rows, else AdamW."""

    def __init__(self, parameters, lr, eps):
        super().__init__(parameters, dict(lr=lr, eps=eps))
        self.blocks = Reference(lr, eps=eps)
        self.adamw = torch.optim.AdamW(
            [p for p in self.param_groups[0]["params"] if not self.in_blocks(p)], lr=lr, eps=eps)
        self.t = 0

    @staticmethod
    def in_blocks(p):
        return p.numel() >= 4096 and (p.shape[-1] % 256 == 0 or 256 % p.shape[-1] == 0)

    @torch.no_grad()
    def step(self):
        self.t += 1
        self.adamw.step()
        for i, p in enumerate(self.param_groups[0]["params"]):
            if self.in_blocks(p):
                p.copy_(torch.tensor(self.blocks.step(i, p.numpy(), p.grad.numpy(), self.t)))


@functools.cache
def wide_case():
    """Large enough for state in blocks."""
    return family("gpt2", n_embd=256, n_layer=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


@pytest.mark.parametrize("settings", [
    {}, dict(mesh={"dp": 2}, plan="zero1"), dict(mesh={"dp": 2}, plan="zero3"),
    dict(mesh={"tp": 2}, plan="megatron"), dict(mesh={"row": 2, "col": 2}, plan="summa2d"),
    dict(optimizer_fusion="forward")], ids=lambda s: "-".join(map(str, s.values())) or "one")
def test_8_bit_state_is_that_of_bitsandbytes(settings):
    expected = torch_run(wide_case(), 4, lambda m: AdamW8bit(m.parameters(), 1e-3, 1e-4),
                         double=True)
    step = compile_case(wide_case(), cleave.AdamW8bit(lr=1e-3, eps=1e-4), **settings)
    losses = [float(step(*wide_case().batches[i])) for i in range(4)]
    assert_close(losses, expected.losses, rtol=1e-5)
    slots = step.training_state()["optimizer"]["transformer.h.0.mlp.c_fc.weight"]
    assert {n: (t.dtype, tuple(t.shape)) for n, t in slots.items()} == {
        f"{kind}{i}": (torch.int8, (256, 1024)) if kind == "state" else (torch.float32, (256, 4))
        for kind in ("state", "absmax") for i in (1, 2)}


def test_8_bit_state_is_resumed_on_another_mesh(tmp_path):
    optimizer = cleave.AdamW8bit(lr=1e-3)
    two = compile_case(wide_case(), optimizer, mesh={"dp": 2}, plan="zero3")
    for batch in wide_case().batches[:2]:
        two(*batch)
    two.save(str(tmp_path / "c"))
    one = compile_case(wide_case(), optimizer)
    one.load(str(tmp_path / "c"))
    assert same_bits(snapshot(one), snapshot(two))
    kept = compile_case(wide_case(), cleave.AdamW()).memory()["state"]
    assert one.memory()["state"] < 0.27 * kept


def test_adafactor_needs_less_memory():
    adamw, adafactor = (compile_case(case(), o).memory() for o in (cleave.AdamW(),
                                                                   cleave.Adafactor()))
    assert adafactor["state"] < 0.1 * adamw["state"]
    assert adafactor["arena"] < adamw["arena"]
