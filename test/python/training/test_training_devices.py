# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Training on several devices, which are threads, against one device.

Sums are added in another order, and nothing else differs: losses, gradients and
weights agree with those of one device to rounding.
"""

import pytest
import torch

import cleave
from device_runs import STEPS, check_devices, optimizer
from training_support import assert_close, cleave_run, compile_case, family, weights


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_train_as_one(name, devices):
    check_devices(family(name, batch=4), devices)


def test_micro_batches_of_each_device():
    check_devices(family("gpt2", batch=8), 2, micro_batches=2)


@pytest.mark.parametrize("name, mesh, plan", [
    ("gpt2", {"tp": 2}, "megatron"),
    ("gpt2", {"tp": 4}, "megatron-sp"),
    ("llama", {"dp": 2, "tp": 2}, ["megatron-sp", "zero1"]),
    ("llama", {"tp": 2}, "megatron"),
    ("bert", {"tp": 2}, "megatron-sp"),
    ("bert", {"tp": 2, "dp": 2}, ["megatron", "zero3"]),
])
def test_vocabulary_in_parts(name, mesh, plan):
    """With two micro-batches, and logits in several chunks of rows."""
    check_devices(family(name, batch=8), mesh, plan, micro_batches=2, max_logits_bytes=1 << 10)


@pytest.mark.parametrize("name, mesh, plan", [
    ("gpt2", {"row": 2, "col": 2}, "summa2d"),
    ("llama", {"depth": 2, "row": 2, "col": 2}, "summa25d"),
    ("bert", {"dp": 2, "row": 2, "col": 2}, ["summa2d", "zero3"]),
])
def test_products_in_steps(name, mesh, plan):
    micro_batches = 1 if len(mesh) > 2 else 2
    check_devices(family(name, batch=8), mesh, plan, micro_batches=micro_batches,
                  max_logits_bytes=1 << 10)


def test_labels_are_checked_against_the_whole_vocabulary():
    case = family("gpt2", batch=4)
    step = compile_case(case, optimizer(), mesh={"tp": 2}, plan="megatron")
    ids, labels = case.batches[0]
    labels = labels.clone()
    labels[1, 2] = 95
    step(ids, labels)
    labels[1, 2] = 96
    with pytest.raises(cleave.StepError, match="has 96 at .* 0 to 95"):
        step(ids, labels)


def test_runs_of_ranks_repeat():
    case = family("gpt2", batch=4)
    runs = [cleave_run(case, 3, optimizer(), mesh={"dp": 4}) for _ in range(2)]
    assert runs[0].losses == runs[1].losses
    for name, update in runs[0].updates.items():
        assert torch.equal(update, runs[1].updates[name]), name


def test_state_of_ranks_is_whole():
    """State moves between meshes by `state_dict` and `training_state`."""
    case = family("gpt2", batch=4)
    one = compile_case(case, optimizer())
    two = compile_case(case, optimizer(), mesh={"dp": 2})
    for batch in case.batches[:2]:
        one(*batch)
    two.load_state_dict(one.state_dict())
    two.load_training_state(one.training_state())
    for batch in case.batches[:2]:
        assert abs(float(one(*batch)) - float(two(*batch))) < 1e-4
    first, second = weights(one), weights(two)
    for name, weight in first.items():
        assert float((weight - second[name]).norm()) <= 1e-4 * float(weight.norm()), name


def test_logits_are_joined():
    case = family("gpt2", batch=4)
    one = compile_case(case, optimizer())
    two = compile_case(case, optimizer(), mesh={"dp": 2})
    torch.testing.assert_close(two.logits(*case.batches[0]), one.logits(*case.batches[0]),
                 rtol=1e-5, atol=1e-5)


def test_what_is_sent_is_told():
    """Gradients are summed once in a step, however many micro-batches it has."""
    case = family("gpt2", batch=8)
    step = compile_case(case, optimizer(), mesh={"dp": 2}, micro_batches=2)
    step(*case.batches[0])
    sent = step.communication()
    assert {c["axes"] for c in sent} == {"dp"}
    assert {c["kind"] for c in sent} == {"all-reduce"}
    elements = sum(p.numel() for p in step.state_dict().values())
    total = sum(c["elements"] for c in sent)
    # 2 (N - 1) / N elements of each gradient, and a few numbers beside them.
    assert 0.9 * elements <= total <= 1.1 * elements
    assert all(c["bytes"] >= 4 * c["elements"] > 0 for c in sent)


@pytest.mark.parametrize("plan", [None, "zero1", "zero2"])
def test_small_exchanges_go_together(plan):
    """In buckets the same is sent in fewer exchanges, in the same memory, and adds
    up to the same bits."""
    case = family("gpt2", batch=4)
    steps = [compile_case(case, optimizer(), mesh={"dp": 2}, plan=plan, bucket_bytes=size)
             for size in (0, 4096, 1 << 20)]
    losses = [[float(step(*batch)) for batch in case.batches[:2]] for step in steps]
    assert losses[0] == losses[1] == losses[2]
    for name, weight in weights(steps[0]).items():
        for step in steps[1:]:
            assert torch.equal(weight, weights(step)[name]), name
    assert steps[0].memory() == steps[2].memory()

    def total(step, what):
        return sum(c[what] for c in step.communication())

    assert len({total(step, "elements") for step in steps}) == 1
    assert len({total(step, "count") for step in steps}) == 1
    alone, some, most = (total(step, "exchanges") for step in steps)
    assert alone == total(steps[0], "count")
    # What shares memory with something else cannot wait for more.
    assert most <= some < alone / 1.5


@pytest.mark.parametrize("mesh, plan", [
    ({"dp": 2}, "zero3"),
    ({"tp": 2}, "megatron"),
    ({"tp": 2}, "megatron-sp"),
    ({"cp": 2}, "ulysses"),
    ({"cp": 4}, "context"),
    ({"cp": 2, "tp": 2}, ["context", "megatron-sp"]),
    ({"cp": 4}, "ring"),
    ({"cp": 4}, "two-ring"),
    ({"cp": 2, "tp": 2}, ["ring", "megatron-sp"]),
    ({"dp": 2, "cp": 2}, ["ring", "zero3"]),
    ({"dp": 2, "tp": 2}, ["megatron-sp", "zero1"]),
])
def test_recipes_train_as_one(mesh, plan):
    """And refuse what one device refuses: the range of ids and labels is known
    after every movement."""
    case = family("llama")
    one = cleave_run(case, STEPS, optimizer())
    many = cleave_run(case, STEPS, optimizer(), mesh=mesh, plan=plan)
    assert_close(many.losses, one.losses, rtol=2e-5)
    whole = float(torch.stack([g.norm() for g in one.gradients.values()]).norm())
    for name, gradient in one.gradients.items():
        error = float((many.gradients[name] - gradient).norm())
        assert error <= 2e-5 * float(gradient.norm()) + 1e-6 * whole, name
    step = compile_case(case, optimizer(), mesh=mesh, plan=plan)
    ids, labels = case.batches[0]
    for bad in (100000, -5):
        wrong_ids, wrong_labels = ids.clone(), labels.clone()
        wrong_ids[1, 2] = wrong_labels[1, 2] = bad
        with pytest.raises(cleave.StepError, match="input_ids"):
            step(wrong_ids, labels)
        with pytest.raises(cleave.StepError, match="labels"):
            step(ids, wrong_labels)
