# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Values that stages send each other in few elements: the largest of each row, and their gradients.

The step of global tensors (`--emit=step`) has the masks; one device interprets it in f64. Programs
of stages equal it, whatever their schedule and what else is split.
"""

import re

import numpy as np
import pytest
import torch

import cleave
from cleave.testing.tools import ToolError, interpret, run_tool, tool
from cleave.trace import trace
from cleave.compiler.entrance import grouped
from pipedream_simulation import OPTIMIZERS as ASYNCHRONOUS
from pipedream_simulation import (Simulation, first_inputs, program_of, stages_of, state_after,
                                  step_of)
from pipeline_runs import MAKERS  # noqa: F401 (it adds models)
from recipe_runs import OPTIMIZERS, agree, emit, random_inputs
from training_support import same_bits, snapshot

DENSITY = 0.1
CASES = [
    ("gpt2", "pp=2", "", 2, ["--schedule=gpipe"]),
    ("llama", "pp=2", "", 4, ["--schedule=1f1b"]),
    ("gpt2", "pp=2,dp=2", "", 2, ["--schedule=interleaved", "--virtual-stages=2"]),
    ("llama", "pp=2,tp=2", "megatron", 2, ["--schedule=zb-h1"]),
    ("gpt2", "pp=2,tp=2", "megatron-sp", 2, ["--stages=transformer.h.1."]),
    ("bert", "pp=2,dp=2", "zero1", 2, ["--schedule=zb-h2"]),
    ("gpt2", "pp=2,dp=2", "zero3", 2, ["--schedule=zb-v"]),
    ("gpt2", "pp=2,cp=2", "ring", 2, ["--stages=transformer.h.1."]),
    ("llama", "pp=2,cp=2", "ulysses", 1, []),
    ("gpt2", "pp=2,tp=2", "megatron", 2, ["--pipe-slices=on"]),
    # The rows themselves are sharded.
    ("gpt2", "pp=2,row=2,col=2", "summa2d", 2, []),
    # Values jump stages, and one goes to several.
    ("t5", "pp=4", "", 2, []),
    ("t5", "pp=4,tp=2", "megatron", 2, []),
    ("skips", "pp=3,dp=2", "zero1", 1, []),
    ("skips", "pp=4", "", 2, ["--recompute=full"]),
]


def masked(folder, name, mesh, *flags, density=DENSITY, optimizer="adamw"):
    """The step of global tensors."""
    kept = [flag for flag in flags if flag.startswith(("--stages", "--virtual-stages", "--schedule"))]
    return emit(folder, name, "step", *OPTIMIZERS[optimizer], f"--mesh={mesh}",
                f"--compress-stages={density}", *kept)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:4])))
def test_stages_equal_the_step_of_whole_tensors(tmp_path, case):
    name, mesh, recipes, micro_batches, flags = case
    step = masked(tmp_path, name, mesh, *flags)
    assert "graph.top_k" in step
    inputs = random_inputs(step)
    expected = interpret(step, inputs, entry="train")
    text = emit(tmp_path, name, "scheduled", *OPTIMIZERS["adamw"], f"--mesh={mesh}",
                f"--plan={recipes}", f"--micro-batches={micro_batches}",
                f"--compress-stages={DENSITY}", *flags)
    found = interpret(text, inputs, entry="train")
    agree(found[0], expected[0])
    agree(found[1], expected[1])


@pytest.mark.parametrize("name, p, m, optimizer, bound, inner", [
    ("llama", 2, 4, "sgd", None, ""), ("gpt2", 4, 4, "adamw", 1, ""),
    ("llama", 2, 4, "adamw", None, "dp=2")], ids=str)
def test_pipedream_equals_its_simulation(tmp_path, name, p, m, optimizer, bound, inner):
    """A micro-batch is a step of the masked network on global tensors, of which each stage has the
    weights of PipeDream's rule; backward has the masks of its forward. Over two calls."""
    flags, make_optimizer = ASYNCHRONOUS[optimizer]
    packed = [f"--compress-stages={DENSITY}", *flags]
    own = ["--schedule=pipedream"] + ([] if bound is None else [f"--max-staleness={bound}"])
    program = program_of(tmp_path, name, ",".join(filter(None, [f"pp={p}", inner])), m,
                         *packed, *own)
    stages = stages_of(program)
    assert sorted(stages) == list(range(p))
    # The stages of a schedule decide where masks are.
    step = step_of(tmp_path, name, [f"--mesh=pp={p}", "--schedule=pipedream", *packed])
    assert "graph.top_k" in step
    inputs = first_inputs(step, m)
    bound = p if bound is None else bound
    simulation = Simulation(step, stages, make_optimizer, inputs, m, bound)
    for call in (1, 2):
        loss, weights, _ = simulation.call(inputs, call)
        results, _ = interpret(program, inputs, entry="train")
        assert float(results["loss"]) == pytest.approx(loss, rel=1e-10)
        agree({key: results[key] for key in weights}, weights)
        inputs = state_after(inputs, results) | {
            "step": np.array(call + 1), "rng": np.array([5, call + 1])}


@pytest.mark.parametrize("name, mesh", [("gpt2", "pp=4"), ("t5", "pp=2")])
def test_evaluation_has_the_masks(tmp_path, name, mesh):
    flags = [f"--mesh={mesh}", f"--compress-stages={DENSITY}", "--micro-batches=2"]
    step = emit(tmp_path, name, "step", *flags)
    inputs = random_inputs(step)
    expected, _ = interpret(step, inputs, entry="evaluate")
    found, _ = interpret(emit(tmp_path, name, "scheduled", *flags), inputs, entry="evaluate")
    agree(found, expected)
    # Parameters have the same shapes in it.
    dense, _ = interpret(emit(tmp_path, name, "step", flags[0]), inputs, entry="evaluate")
    assert abs(dense["loss"] - expected["loss"]) > 1e-6


def test_gradients_are_those_of_the_masked_network(tmp_path):
    """Central differences along drawn directions: so small a change leaves each mask as it is."""
    step = masked(tmp_path, "gpt2", "pp=3", optimizer="sgd")
    inputs = random_inputs(step)
    _, gradients = interpret(step, inputs, entry="train")
    rng = np.random.default_rng(2)
    for _ in range(3):
        change = {name: rng.standard_normal(inputs[name].shape) for name in gradients}
        loss = [float(interpret(step, {**inputs, **{name: inputs[name] + size * own
                                                    for name, own in change.items()}},
                                entry="train")[0]["loss"]) for size in (1e-6, -1e-6)]
        expected = sum((gradients[name].reshape(own.shape) * own).sum()
                       for name, own in change.items())
        assert (loss[0] - loss[1]) / 2e-6 == pytest.approx(expected, rel=1e-6)


def test_each_row_sends_its_largest_elements(tmp_path):
    """Of one layer before and one after the boundary, beside NumPy."""
    path = tmp_path / "two.mlir"
    path.write_text("""
        func.func @loss(%a: tensor<8xf64> {graph.name = "a", graph.role = "parameter"},
                        %b: tensor<8xf64> {graph.name = "b", graph.role = "parameter"},
                        %x: tensor<4x8xf64> {graph.name = "x", graph.role = "input",
                                             graph.batch_dim = 0 : i64})
            -> (tensor<f64> {graph.name = "loss"}) {
          %0 = graph.mul %x, %a : (tensor<4x8xf64>, tensor<8xf64>) -> tensor<4x8xf64>
          %1 = graph.mul %0, %b : (tensor<4x8xf64>, tensor<8xf64>) -> tensor<4x8xf64>
          %2 = graph.mul %1, %1 : (tensor<4x8xf64>, tensor<4x8xf64>) -> tensor<4x8xf64>
          %3 = graph.reduce sum %2 {dims = array<i64: 0, 1>} : (tensor<4x8xf64>) -> tensor<f64>
          return %3 : tensor<f64>
        }""")
    flags = ["--optimizer=sgd", "--mesh=pp=2", "--compress-stages=0.25", "--micro-batches=2",
             "--stages=b"]
    rng = np.random.default_rng(0)
    a, b, x = rng.standard_normal(8), rng.standard_normal(8), rng.standard_normal((4, 8))
    hidden = x * a
    kept = np.zeros_like(hidden)
    for row, own in zip(kept, hidden):
        largest = np.argsort(-np.abs(own), kind="stable")[:2]
        row[largest] = own[largest]
    mask = kept != 0
    assert (mask.sum(1) == 2).all()
    for phase in ("step", "scheduled"):
        text = run_tool([tool("cleave-compile"), str(path), f"--emit={phase}", *flags])
        inputs = {"a": a, "b": b, "x": x, "lr": np.array(0.1), "step": np.array(1)}
        results, gradients = interpret(text, inputs, entry="train")
        assert results["loss"] == pytest.approx(((kept * b) ** 2).sum(), rel=1e-12)
        assert gradients["b"] == pytest.approx((2 * kept ** 2 * b).sum(0), rel=1e-12)
        assert gradients["a"] == pytest.approx((2 * kept * b * b * mask * x).sum(0), rel=1e-12)


# Bytes ----------------------------------------------------------------------------------

#: Of a micro-batch: samples and places; and 8 of 240 elements of each row are sent.
ROWS, SIZE, SENT = 2 * 16, 240, 8
WIDE = dict(hidden=SIZE, heads=4, layers=4, seq=16, vocab=64)


def boundaries(step):
    return {(b["from"], b["to"]): b["bytes_per_micro_batch"]
            for b in step.report()["schedule"]["boundaries"] if b["bytes_per_micro_batch"]}


def compiled(density=None, mesh=None, batch=8, sizes=WIDE, **options):
    torch.manual_seed(0)
    model = cleave.models.gpt(**sizes)
    ids = torch.randint(0, 64, (batch, 16))
    return cleave.compile(model, (ids, ids), mesh=mesh or {"pp": 4}, check="off",
                          **grouped(compress_stages=density, **{"micro_batches": 4, **options}))


def linked(step):
    """The bytes that all positions sent to others in a step, as they counted them."""
    ids = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(1))
    assert np.isfinite(float(step(ids, ids)))
    return [sum(total["bytes"] for total in position["totals"] if total["kind"] == "send")
            for position in step.report()["communication"]["train"]["positions"]], sum(
                entry["bytes"] for entry in step.communication())


def test_messages_are_twenty_times_smaller():
    """Forward 8 bytes for an element that is sent, 4 bytes back; 4 and 4 for each without."""
    dense, packed = compiled(), compiled(0.0333)
    assert boundaries(dense) == {(a, b): 4 * ROWS * SIZE for i in range(3)
                                 for a, b in ((i, i + 1), (i + 1, i))}
    assert boundaries(packed) == {(a, b): (8 if a < b else 4) * ROWS * SENT for i in range(3)
                                  for a, b in ((i, i + 1), (i + 1, i))}
    assert sum(boundaries(dense).values()) == 20 * sum(boundaries(packed).values())
    # Of the first position, which sends forward, once for each of four micro-batches.
    whole, all_whole = linked(dense)
    few, all_few = linked(packed)
    # Beside these, stages send gradients of the tied table and numbers once in a step.
    saved = [4 * ROWS * (4 * SIZE - 8 * SENT), 4 * ROWS * (8 * SIZE - 12 * SENT),
             4 * ROWS * (8 * SIZE - 12 * SENT), 4 * ROWS * (4 * SIZE - 4 * SENT)]
    assert [a - b for a, b in zip(whole, few)] == saved
    assert all_whole - all_few in saved


@pytest.mark.parametrize("options", [{}, dict(optimizer=cleave.optim.SGD(lr=0.1, max_grad_norm=1.0))],
                         ids=["check", "clip"])
def test_one_micro_batch_is_no_larger(options):
    """Stages keep their gradients then, too: they send terms of the norm, and the tied table's."""
    step = compiled(micro_batches=1, **options)
    whole, counted = linked(step)
    neighbours = {(a, b): 4 * 4 * ROWS * SIZE for i in range(3) for a, b in ((i, i + 1), (i + 1, i))}
    assert boundaries(step) == {**neighbours, (3, 0): 4 * 64 * SIZE}
    # The table's gradient, once it is complete, and terms of the norm.
    rest = sum(whole) - sum(boundaries(step).values()) - 4 * 64 * SIZE
    assert 0 <= rest < 1000 and counted in whole


def test_16_bits_are_sent_in_16_bits():
    step = compiled(0.0333, precision="bf16")
    assert boundaries(step) == {(a, b): (6 if a < b else 2) * ROWS * SENT for i in range(3)
                                for a, b in ((i, i + 1), (i + 1, i))}


# Natively -------------------------------------------------------------------------------

SMALL = dict(hidden=32, heads=2, layers=2, seq=16, vocab=64)


def train(step, count=4):
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 64, (8, 16), generator=generator) for _ in range(count)]
    return [float(step(ids, ids)) for ids in batches]


@pytest.mark.parametrize("options", [
    {}, dict(mesh={"pp": 2, "dp": 2}, plan="zero1", schedule="zb-h1")], ids=str)
def test_all_elements_are_the_dense_run(options):
    """The same bits."""
    options = {"mesh": {"pp": 2}, "sizes": SMALL, "stages": ["blocks.1."], **options}
    dense, all_sent = compiled(**options), compiled(1, **options)
    assert train(dense) == train(all_sent)
    assert same_bits(snapshot(all_sent), snapshot(dense))


@pytest.mark.parametrize("residual", ["16bit", "f32"])
def test_all_elements_in_16_bits(residual):
    """Forward has the same bits; a gradient that is sent back is rounded once more."""
    options = {"mesh": {"pp": 2}, "sizes": SMALL, "stages": ["blocks.1."], "precision": "bf16",
               "residual": residual}
    dense, all_sent = train(compiled(**options)), train(compiled(1, **options))
    assert dense[0] == all_sent[0]
    assert all_sent == pytest.approx(dense, rel=1e-3)


NATIVE = [({"pp": 2}, None, "gpipe", None), ({"pp": 2, "dp": 2}, "zero1", "1f1b", None),
          ({"pp": 2, "tp": 2}, "megatron-sp", "zb-h1", None),
          ({"pp": 2}, None, "interleaved", 2)]


@pytest.mark.parametrize("mesh, plan, schedule, chunks", NATIVE, ids=str)
def test_ranks_equal_the_interpreter(tmp_path, mesh, plan, schedule, chunks):
    """Loss, gradients and weights of one step: the interpreter's, of global tensors in f64."""
    sizes = {**SMALL, "layers": 4}
    step = compiled(0.1, mesh=mesh, sizes=sizes, plan=plan, schedule=schedule, virtual_stages=chunks,
                    optimizer=cleave.SGD(lr=0.1, momentum=0.9))
    torch.manual_seed(0)
    model = cleave.models.gpt(**sizes)
    ids = torch.randint(0, 64, (8, 16))
    path = tmp_path / "gpt.mlir"
    path.write_text(trace(model, (ids, ids)).mlir)
    flags = [f"--virtual-stages={chunks}"] if chunks else []
    text = run_tool([tool("cleave-compile"), str(path), "--emit=step", "--optimizer=sgd",
                     "--momentum=0.9", "--mesh=pp=2", "--compress-stages=0.1",
                     f"--schedule={schedule}", *flags])
    inputs = random_inputs(text)
    weights = {name: value.numpy() for name, value in step.state_dict().items()}
    for name, value in inputs.items():
        if name in weights:
            inputs[name] = weights[name].reshape(value.shape)
        elif name.endswith("momentum_buffer"):
            inputs[name] = np.zeros_like(value)
    inputs |= {"input_ids": ids.numpy(), "labels": ids.numpy(),
               "lr": np.array(0.1, np.float32), "step": np.array(1)}
    results, gradients = interpret(text, inputs, entry="train")
    assert float(step(ids, ids)) == pytest.approx(float(results["loss"]), rel=1e-5)
    for name, slots in step.training_state()["optimizer"].items():
        own, expected = slots["momentum_buffer"].numpy(), gradients[name].reshape(
            weights[name].shape)
        assert np.abs(own.reshape(expected.shape) - expected).max() <= 1e-5 * max(
            np.abs(expected).max(), 1e-2), name


@pytest.mark.parametrize("options", [{}, dict(precision="fp16"), dict(compress="int8",
                                     mesh={"pp": 2, "dp": 2}), dict(recompute="full")], ids=str)
def test_losses_fall(options):
    step = compiled(0.1, **{"mesh": {"pp": 2}, "sizes": SMALL, **options},
                    optimizer=cleave.AdamW(lr=1e-2))
    ids = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(1))
    losses = [float(step(ids, ids)) for _ in range(20)]
    finite = [loss for loss in losses if np.isfinite(loss)]
    assert len(finite) >= 15 and finite[-1] < finite[0] - 0.5


# What is refused ------------------------------------------------------------------------

@pytest.mark.parametrize("density", ["0", "-0.1", "1.01", "nan", "inf"])
def test_bad_shares(tmp_path, density):
    with pytest.raises(ToolError, match="--compress-stages (must be above 0 and at most 1|is a finite number), not"):
        emit(tmp_path, "gpt2", "step", "--mesh=pp=2", f"--compress-stages={density}")
    with pytest.raises(ValueError, match="compress_stages (must be above 0 and at most 1|is a finite number), not"):
        cleave.compile(torch.nn.Linear(2, 2), (torch.ones(2, 2),),
                       lossy=cleave.Lossy(compress_stages=float(density)))


def test_shares_are_numbers():
    with pytest.raises(ValueError, match="compress_stages is a finite number, not '"):
        cleave.compile(torch.nn.Linear(2, 2), (torch.ones(2, 2),),
                       lossy=cleave.Lossy(compress_stages="0.1"))


@pytest.mark.parametrize("flags, message", [
    ([], 'need a pipeline of two or more stages: the mesh has no axis "pp" with them'),
    (["--mesh=dp=2"], 'need a pipeline of two or more stages'),
    (["--mesh=pp=1"], 'need a pipeline of two or more stages'),
    (["--mesh=pp=2", "--deterministic=2"], "cannot be deterministic for every number of ranks"),
    (["--mesh=pp=2", "--grad-horizon=1"], "do not go with a gradient horizon"),
    (["--mesh=pp=2", "--stages=none."], "has no parameter whose name begins with 'none.'"),
    (["--mesh=pp=64"], "cannot be cut into 64 stages"),
])
def test_what_is_refused(tmp_path, flags, message):
    with pytest.raises(ToolError, match=re.escape(message)):
        emit(tmp_path, "gpt2", "scheduled", "--compress-stages=0.1", *flags)
