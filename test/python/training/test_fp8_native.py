# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Linear layers of 8 bits natively: against the interpreter, f32, other layouts and a run that is
resumed. Scales and histories belong to global tensors: they are those of one device everywhere."""

import numpy as np
import pytest
import torch

import cleave
from cleave.testing.tools import interpret
from mixed_precision import batch, compiled, losses, model
from proofs import ALL

FP8 = dict(precision="fp8", fp8_history=4)

LAYOUTS = [
    dict(micro_batches=2),
    dict(mesh={"dp": 2}, plan="zero3"),
    dict(mesh={"pp": 2}, micro_batches=2, schedule="1f1b"),
    dict(mesh={"dp": 2}),
    dict(mesh={"tp": 2}, plan="megatron"),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="zb-h1"),
    dict(mesh={"dp": 2}, plan="zero1", micro_batches=2),
    dict(mesh={"pp": 2, "dp": 2}, micro_batches=2),
    dict(optimizer_fusion="forward"),
    dict(offload=("state", "masters")),
    dict(optimizer_fusion="backward", check_finite=False),
]


def scales(step):
    """The state of scales, by name."""
    return step.training_state()["optimizer"][""]


@pytest.fixture(scope="module")
def one():
    step = compiled(model(), **FP8)
    first = losses(step, 1)
    state = scales(step)
    return first + losses(step, 5), state, scales(step)


def test_trains_as_f32_does(one):
    f32 = losses(compiled(model()), 6)
    assert one[0] != f32
    assert one[0] == pytest.approx(f32, rel=1e-2)
    assert one[0][-1] < one[0][0] - 0.2


def test_the_interpreter_agrees():
    """Native code and the typed interpreter, which share no code, after one step and after four."""
    step = compiled(model(), **FP8)
    for number in (1, 4):
        losses(step, number - 1 - step.step)
        given = {n: t.numpy() for n, t in step.state_dict().items()}
        slots = step.training_state()["optimizer"]
        given |= {f"{of}.{slot}".strip("."): t.numpy() for of, own in slots.items()
                  for slot, t in own.items()}
        given |= {n: t.numpy() for n, t in batch().items()}
        given |= {"lr": np.float32(1e-3), "step": np.int64(number)}
        results, _ = interpret(step.ir("step"), given, entry="train", mode="typed")
        loss = losses(step, 1)[0]
        assert loss == pytest.approx(float(results["loss"]), rel=1e-3)
        for name, value in scales(step).items():
            np.testing.assert_allclose(results[name], value.numpy(), rtol=0.05, err_msg=name)


@pytest.mark.parametrize("layout", LAYOUTS if ALL else LAYOUTS[:5], ids=str)
def test_layouts_are_one_device(one, layout):
    expected, first, last = one
    step = compiled(model(), **FP8, **layout)
    found = losses(step, 1)
    # From the same weights, maxima differ by roundings to 16 bits.
    own = scales(step)
    assert own.keys() == first.keys()
    for name, value in first.items():
        torch.testing.assert_close(own[name], value, rtol=0.02, atol=0, msg=lambda m: f"{name}: {m}")
    found += losses(step, 5)
    assert found == pytest.approx(expected, rel=2e-3)
    for name, value in scales(step).items():
        torch.testing.assert_close(value, last[name], rtol=0.2, atol=0, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("layout", [
    dict(mesh={"cp": 2}, plan="ulysses"), dict(mesh={"cp": 2}, plan="context"),
    dict(mesh={"pp": 2}, micro_batches=2, schedule="zb-h1"), dict(mesh={"tp": 2}, plan="megatron-sp")], ids=str)
def test_layouts_leave_the_weights_of_one_device(layout):
    """After three updates each is nearer to it than that is to f32, or by a hundredth of an update:
    no layout rounds more. Gradients of biases of keys are 0 but for roundings, which an update by
    their signs would show."""
    def left(**options):
        step = compiled(model(), **options)
        before = {name: value.double() for name, value in step.state_dict().items()}
        losses(step, 3)
        return {name: value.double() - before[name] for name, value in step.state_dict().items()}

    wide, alone, found = left(), left(**FP8), left(**FP8, **layout)
    far = {name: float((found[name] - value).norm()
                       / ((value - wide[name]).norm() + 0.01 * value.norm() + 1e-12))
           for name, value in alone.items()}
    assert found.keys() == alone.keys()
    assert max(far.values()) < 1.5, sorted(far.items(), key=lambda item: -item[1])[:5]


def test_a_tensor_has_one_scale(one):
    """Queries, keys and values read one input; each layer has an input, a weight, a gradient."""
    names = [n for n in one[1] if n.endswith("_scale")]
    assert len(names) == len(set(names)) >= 2 * 4 * 2
    assert all(float(one[1][n]) > 0 for n in names)
    assert all(len(value) == 4 for n, value in one[1].items() if n.endswith("_history"))
    # The tied head and embedding, and attention, have none.
    assert not [n for n in names if "embed" in n or "head" in n]


def test_evaluation_has_the_values_of_training():
    step = compiled(model(), **FP8)
    losses(step, 3)
    before = scales(step)
    evaluated = float(step.evaluate(**batch()))
    assert all(torch.equal(before[n], value) for n, value in scales(step).items())
    assert evaluated == pytest.approx(losses(step, 1)[0], rel=1e-6)


def test_a_step_that_stops_changes_no_scale():
    step = compiled(model(), **FP8)
    losses(step, 2)
    good = step.state_dict()
    before = scales(step)
    bad = {n: t.clone() for n, t in good.items()}
    # An infinity would be clamped.
    bad["blocks.0.feed_forward.up.weight"][0] = float("nan")
    step.load_state_dict(bad)
    with pytest.raises(cleave.StepError, match="not finite"):
        step(**{n: torch.zeros_like(t) for n, t in batch().items()})
    assert all(torch.equal(before[n], value) for n, value in scales(step).items())


def test_a_checkpoint_is_loaded_on_another_mesh(tmp_path):
    first = compiled(model(), **FP8, mesh={"dp": 2}, plan="zero3")
    losses(first, 3)
    first.save(tmp_path / "state")
    second = compiled(model(), **FP8, mesh={"pp": 2}, micro_batches=2)
    second.load(tmp_path / "state")
    own = scales(second)
    assert own.keys() == scales(first).keys()
    assert all(torch.equal(own[n], value) for n, value in scales(first).items())
    assert losses(second, 3) == pytest.approx(losses(first, 3), rel=1e-3)


@pytest.mark.parametrize("options, message", [
    (dict(precision="bf16", fp8_history=4), 'fp8_history needs precision fp8'),
    (dict(precision="fp8", fp8_history=0), "fp8_history"),
    (dict(precision="fp8", gradient_dtype="bf16"), "gradient_dtype"),
    (dict(precision="fp8", activation_reduction="16bit"), "products of 8 bits are f32"),
    (dict(precision="fp9"), "precision is f32, bf16, fp16 or fp8, not 'fp9'"),
])
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        compiled(model(), **options)
