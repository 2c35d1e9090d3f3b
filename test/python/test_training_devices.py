# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Training on several devices, which are threads, against one device.

Sums are added in another order, and nothing else differs: losses, gradients and
weights agree with those of one device to rounding.
"""

import numpy as np
import pytest
import torch

import cleave
from training_support import cleave_run, compile_case, family, weights

STEPS = 6


def optimizer():
    return cleave.AdamW(lr=1e-3, weight_decay=0.1, max_grad_norm=1.0)


def check_devices(case, devices, **settings):
    return check_mesh(case, {"dp": devices}, [], **settings)


def check_mesh(case, mesh, plan, **settings):
    one = cleave_run(case, STEPS, optimizer(), **settings)
    many = cleave_run(case, STEPS, optimizer(), mesh=mesh, plan=plan, **settings)
    np.testing.assert_allclose(many.losses, one.losses, rtol=2e-5)
    np.testing.assert_allclose(many.norms, one.norms, rtol=2e-4)
    whole = float(torch.stack([g.norm() for g in one.gradients.values()]).norm())
    for name, gradient in one.gradients.items():
        error = float((many.gradients[name] - gradient).norm())
        assert error <= 2e-5 * float(gradient.norm()) + 1e-6 * whole, name
    return one, many


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_train_as_one(name, devices):
    check_devices(family(name, batch=4), devices)


def test_micro_batches_of_each_device():
    check_devices(family("gpt2", batch=8), 2, micro_batches=2)


def test_dropout_does_not_depend_on_the_mesh():
    """Each element draws by its place in the whole, attention's too."""
    case = family("gpt2", batch=8, resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2)
    one, many = check_devices(case, 4, micro_batches=2)
    still = cleave_run(family("gpt2", batch=8), STEPS, optimizer())
    assert abs(one.losses[0] - still.losses[0]) > 1e-3


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


#: What does not divide: a model, its samples and places, a mesh, a plan,
#: micro-batches.
UNEVEN = [
    ("gpt2", 6, 8, {"dp": 4}, [], 1),
    ("gpt2", 7, 8, {"dp": 2}, [], 2),
    ("gpt2", 4, 8, {"dp": 3}, ["zero1"], 1),
    ("qwen2", 6, 8, {"dp": 3}, ["zero2"], 1),
    ("gpt2", 6, 8, {"dp": 3}, ["zero3"], 1),
    ("llama", 5, 8, {"dp": 3}, ["zero3"], 1),
    ("llama", 4, 7, {"cp": 2}, ["ulysses"], 1),
    ("gpt2", 4, 7, {"tp": 2}, ["megatron-sp"], 1),
]


@pytest.mark.parametrize("name, batch, length, mesh, plan, parts", UNEVEN)
def test_uneven_sizes_train_as_one(name, batch, length, mesh, plan, parts):
    """Padded samples, places and parts of parameters count for nothing: neither
    in losses nor in norms."""
    check_mesh(family(name, batch=batch, length=length), mesh, plan, micro_batches=parts)


def test_padding_stays_inside():
    """State has the framework's shapes, and moves between meshes whose parts are
    padded each in its own way."""
    case = family("gpt2", batch=6)
    one = compile_case(case, optimizer())
    three = compile_case(case, optimizer(), mesh={"dp": 3}, plan=["zero3"])
    five = compile_case(case, optimizer(), mesh={"dp": 5}, plan=["zero1"])
    shapes = {name: tensor.shape for name, tensor in one.state_dict().items()}
    for old, new in ((one, three), (three, five), (five, one)):
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
    straight = compile_case(case, optimizer())
    for batch in case.batches[:2] * 3:
        straight(*batch)
    found = weights(one)
    for name, weight in weights(straight).items():
        assert float((weight - found[name]).norm()) <= 1e-4 * float(weight.norm()), name
    # A third of the elements, and what padding adds.
    whole, part = one.memory()["parameter"], three.memory()["parameter"]
    assert whole / 3 < part < whole / 3 * 1.1
