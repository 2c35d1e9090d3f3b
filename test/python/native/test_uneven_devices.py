# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Training with sizes that do not divide, natively, against one device."""

import pytest
import torch

import cleave
from device_runs import check_devices, optimizer
from training_support import assert_close, cleave_run, compile_case, family, weights


def steady(**settings):
    """AdamW for which a gradient that is 0 but for rounding is none."""
    return cleave.AdamW(**{"lr": 1e-3, "weight_decay": 0.1, "eps": 1e-3, "max_grad_norm": 1.0,
                           **settings})


#: A model and changes of it, samples, places, a mesh, a plan, micro-batches.
UNEVEN = [
    ("gpt2", {}, 6, 8, {"dp": 4}, [], 1),
    ("gpt2", {}, 7, 8, {"dp": 2}, [], 2),
    ("gpt2", {}, 4, 8, {"dp": 3}, ["zero1"], 1),
    ("qwen2", {}, 6, 8, {"dp": 3}, ["zero2"], 1),
    ("gpt2", {}, 6, 8, {"dp": 3}, ["zero3"], 1),
    ("llama", {}, 5, 8, {"dp": 3}, ["zero3"], 1),
    ("llama", {}, 4, 7, {"cp": 2}, ["ulysses"], 1),
    ("gpt2", {}, 4, 7, {"tp": 2}, ["megatron-sp"], 1),
    ("gpt2", {"vocab_size": 97}, 4, 8, {"tp": 4}, ["megatron"], 1),
    ("llama", {"vocab_size": 97}, 6, 8, {"dp": 3, "tp": 2}, ["megatron-sp", "zero3"], 1),
    ("bert", {"vocab_size": 98}, 4, 8, {"tp": 4}, ["megatron-sp"], 2),
    ("gpt2", {"vocab_size": 50257, "n_embd": 16}, 2, 8, {"tp": 4}, ["megatron"], 1),
    # More positions than groups of heads.
    ("llama", {}, 4, 8, {"tp": 4}, ["megatron"], 1),
    ("qwen2", {}, 4, 8, {"tp": 4, "dp": 2}, ["megatron-sp", "zero1"], 1),
]


@pytest.mark.parametrize("case", UNEVEN, ids=lambda case: "-".join(map(str, case)))
def test_uneven_sizes_train_as_one(case):
    """Padded samples, places and parts of parameters count for nothing: neither
    in losses nor in norms."""
    name, changes, batch, length, mesh, plan, parts = case
    check_devices(family(name, batch=batch, length=length, **changes), mesh, plan,
                  micro_batches=parts)


@pytest.mark.parametrize("plan", [[], ["zero3"]])
def test_devices_with_few_valid_tokens(plan):
    """The first device has no label that counts, the second one has one."""
    case = family("gpt2", batch=8)
    for _, labels in case.batches:
        labels[:6] = -100
        labels[4, 5] = 17
    check_devices(case, {"dp": 3}, plan)


@pytest.mark.parametrize("plan", ["zero1", "zero2", "zero3"])
def test_three_ranks_share_tied_and_decayed(plan):
    """An embedding that is the head too, and parameters that do not decay."""
    def decayed():
        return steady(lr=1e-2, weight_decay=0.5, no_decay=lambda name, p: p.ndim < 2)

    case = family("gpt2", batch=6, vocab_size=97)
    one = cleave_run(case, 4, decayed())
    three = cleave_run(case, 4, decayed(), mesh={"dp": 3}, plan=plan)
    assert_close(three.losses, one.losses, rtol=2e-5)
    assert_close(three.norms, one.norms, rtol=2e-4)
    for name, update in one.updates.items():
        error = float((three.updates[name] - update).norm())
        assert error <= 1e-4 * float(update.norm()), name


def test_tokens_behind_the_vocabulary_are_refused():
    """Also those that name padding."""
    case = family("gpt2", batch=4, vocab_size=97)
    step = compile_case(case, optimizer(), mesh={"tp": 4}, plan="megatron")
    for bad in (97, 99, 100, -5):
        for which in (0, 1):
            batch = [t.clone() for t in case.batches[0]]
            batch[which][1, 2] = bad
            with pytest.raises(cleave.StepError, match=f"has {bad} at .* 0 to 96"):
                step(*batch)
    step(*case.batches[0])


def test_logits_have_no_padding():
    case = family("gpt2", batch=5, vocab_size=97)
    one = compile_case(case, steady())
    many = compile_case(case, steady(), mesh={"dp": 2, "tp": 4}, plan="megatron")
    logits = many.logits(*case.batches[0])
    assert logits.shape == (5, 8, 97)
    torch.testing.assert_close(logits, one.logits(*case.batches[0]), rtol=1e-5, atol=1e-5)


def test_padding_stays_inside():
    """State has the framework's shapes, and moves between meshes whose parts are
    padded each in its own way."""
    case = family("gpt2", batch=6, vocab_size=97)
    one = compile_case(case, steady())
    three = compile_case(case, steady(), mesh={"dp": 3}, plan=["zero3"])
    four = compile_case(case, steady(), mesh={"tp": 4}, plan="megatron")
    five = compile_case(case, steady(), mesh={"dp": 5}, plan=["zero1"])
    shapes = {name: tensor.shape for name, tensor in one.state_dict().items()}
    assert shapes["transformer.wte.weight"] == (97, 32)
    for old, new in ((one, three), (three, four), (four, five), (five, one)):
        for batch in case.batches[:2]:
            old(*batch)
        new.load_state_dict(old.state_dict())
        new.load_training_state(old.training_state())
        assert {n: t.shape for n, t in new.state_dict().items()} == shapes
        for name, weight in old.state_dict().items():
            assert torch.equal(new.state_dict()[name], weight), name
        for name, state in old.training_state()["optimizer"].items():
            for slot, tensor in state.items():
                found = new.training_state()["optimizer"][name][slot]
                assert torch.equal(torch.as_tensor(found), torch.as_tensor(tensor)), (name, slot)
    straight = compile_case(case, steady())
    for batch in case.batches[:2] * 4:
        straight(*batch)
    found = weights(one)
    for name, weight in weights(straight).items():
        assert float((weight - found[name]).norm()) <= 1e-4 * float(weight.norm()), name
    # A third of the elements, and what padding adds.
    whole, part = one.memory()["parameter"], three.memory()["parameter"]
    assert whole / 3 < part < whole / 3 * 1.1
