# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Updates in backward and in the next step: the bits are those of updates apart.

Models are tied and have dropout, so that each step depends on its number.
"""

import re
import sys

import numpy as np
import pytest
import torch

import cleave
from cleave.testing.tools import interpret, run_tool, tool
from recipe_runs import BATCH, LENGTH, OPTIMIZERS, emit, random_inputs
from training_support import (ALL, compile_once, family, gpt2, named_tokens, same_bits, snapshot,
                              token_batches, token_loss, tokens)

DROPOUT = dict(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
STEPS = 10

ADAMW = cleave.AdamW(lr=cleave.cosine(1e-2, warmup=2, steps=20), weight_decay=0.1,
                     no_decay=lambda name, p: p.ndim < 2)
CLIPPED = cleave.AdamW(lr=cleave.cosine(1e-2, warmup=2, steps=20), weight_decay=0.1,
                       max_grad_norm=0.05)
SGD = cleave.SGD(lr=0.05, momentum=0.9, dampening=0.1)
PLAIN = cleave.SGD(lr=0.05, weight_decay=0.1)
NESTEROV = cleave.SGD(lr=0.05, momentum=0.9, nesterov=True, max_grad_norm=0.5)


def compiled(fusion, optimizer=ADAMW, *, batch=4, make=None, **settings):
    torch.manual_seed(0)
    model = make() if make else gpt2(**DROPOUT)
    inputs = (tokens if "loss_fn" in settings else named_tokens)(batch=batch)
    return compile_once(make or "gpt2", model, inputs, optimizer=optimizer,
                        optimizer_fusion=fusion, seed=5,
                        **{"check_finite": fusion != "backward", **settings})


def train(step, batches):
    """The losses and norms, which are numbers, of a step for each batch."""
    return [(float(loss), loss.grad_norm) for loss in (step(*batch) for batch in batches)]


def batches(count=STEPS, batch=4):
    return token_batches(count, batch=batch, ignored=3)


def check_equal(fusions, optimizer, *, steps=STEPS, make=None, **settings):
    """All weights, all state and all losses of the runs are equal bit by bit."""
    data = batches(steps, batch=settings.get("batch", 4))
    runs = []
    for fusion in fusions:
        step = compiled(fusion, optimizer, make=make, **settings)
        runs.append((train(step, data), snapshot(step)))
    for losses, state in runs[1:]:
        assert losses == runs[0][0]
        assert same_bits(state, runs[0][1])
    assert len(set(runs[0][0])) == len(data)


# ---------------------------------------------------------------- bits, native


@pytest.mark.parametrize("optimizer", [ADAMW, SGD, PLAIN], ids=["adamw", "sgd", "plain"])
def test_bits(optimizer):
    check_equal(["none", "auto", "backward", "forward"], optimizer)


@pytest.mark.parametrize("optimizer", [CLIPPED, NESTEROV], ids=["adamw", "nesterov"])
def test_bits_with_a_clip(optimizer):
    check_equal(["none", "auto", "forward"], optimizer)


@pytest.mark.parametrize("optimizer", [ADAMW, CLIPPED], ids=["adamw", "clipped"])
def test_bits_of_micro_batches(optimizer):
    check_equal(["none", "forward"], optimizer, micro_batches=2)


def test_bits_in_a_tree():
    check_equal(["none", "forward"], CLIPPED, deterministic=4)


#: Meshes, plans, micro-batches; with a clip where the number is even.
MESHES = [
    ({"dp": 2}, None, 1),
    ({"dp": 2}, "zero1", 2),
    ({"dp": 2}, "zero3", 1),
    ({"tp": 2}, "megatron-sp", 1),
    ({"tp": 2}, "megatron", 2),
    ({"dp": 2, "tp": 2}, ["megatron-sp", "zero2"], 1),
    ({"pp": 2}, None, 1),
    ({"pp": 2}, None, 2),
    ({"pp": 2, "dp": 2}, "zero1", 2),
]


@pytest.mark.parametrize("mesh, plan, micro_batches", MESHES if ALL else MESHES[1:8:2], ids=str)
def test_bits_on_meshes(mesh, plan, micro_batches):
    fusions = ["none", "forward"]
    if micro_batches == 1 and "pp" not in mesh:
        fusions.append("backward")
    optimizer = ADAMW if micro_batches == 1 else CLIPPED
    check_equal(fusions, optimizer, batch=8, mesh=mesh, plan=plan, micro_batches=micro_batches)


#: Schedules of other kinds, a vocabulary that does not divide, heads after modules.
OTHERS = [
    dict(mesh={"pp": 2}, micro_batches=2, schedule="zb-h1"),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="interleaved", virtual_stages=2),
    dict(mesh={"pp": 2}, micro_batches=4, schedule="zb-v"),
    dict(mesh={"pp": 2}, micro_batches=1, schedule="zb-v"),
    dict(mesh={"tp": 2}, plan="megatron", model=dict(vocab_size=97)),
    dict(grad_horizon=1, modules=2),
]


@pytest.mark.parametrize("settings", OTHERS, ids=str)
def test_bits_of_other_forms(settings):
    settings = dict(settings)
    changes = settings.pop("model", dict(n_layer=4))
    check_equal(["none", "forward"], CLIPPED, steps=3, make=lambda: gpt2(**DROPOUT, **changes),
                **settings)


#: Layers whose attention and MLP are added: their last biases have one gradient.
PARALLEL = ["gpt_neox", "phi"]
ONE_GRADIENT = [
    dict(),
    dict(micro_batches=2),
    dict(mesh={"dp": 2}, plan="zero3"),
    dict(mesh={"dp": 2}, micro_batches=2, plan="zero1"),
    dict(mesh={"pp": 2}, micro_batches=2),
    dict(mesh={"tp": 2}, plan="megatron"),
]


class Both(torch.nn.Module):
    """Two parameters with one gradient: weights and biases."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(96, 32)
        self.a, self.b = torch.nn.Linear(32, 96), torch.nn.Linear(32, 96)

    def forward(self, ids):
        x = self.embedding(ids)
        return self.a(x) + self.b(x)


def check_one_gradient(make, settings, optimizer, **more):
    fusions = ["none", "forward"]
    if not settings and optimizer.max_grad_norm is None:
        fusions.append("backward")
    check_equal(fusions, optimizer, steps=3, batch=4, make=make, **settings, **more)


@pytest.mark.parametrize("optimizer", [ADAMW, CLIPPED, PLAIN], ids=["adamw", "clipped", "plain"])
@pytest.mark.parametrize("settings", ONE_GRADIENT[:-1], ids=str)
def test_two_parameters_with_one_gradient(settings, optimizer):
    if optimizer is not ADAMW and settings and not ALL:
        pytest.skip("proved with CLEAVE_TEST_ALL=1")
    check_one_gradient(Both, settings, optimizer, loss_fn=token_loss)


@pytest.mark.parametrize("name", PARALLEL)
@pytest.mark.parametrize("settings", ONE_GRADIENT if ALL else ONE_GRADIENT[3:5], ids=str)
def test_parallel_layers(name, settings):
    check_one_gradient(family(name).build, settings, ADAMW)


def test_a_gradient_of_several_in_a_tree():
    check_one_gradient(Both, dict(deterministic=4), CLIPPED, loss_fn=token_loss)


# ----------------------------------------------------------- bits, interpreted


def arguments(program, entry):
    """The arguments of an entry: (shape, element type, role) by name."""
    header = re.search(rf"pipe\.program @{entry}\((.*?)\n", program).group(1)
    found = {}
    for local, attributes in re.findall(
            r"%arg\d+: tensor<([^>]*)> \{(.*?)\}(?=, %arg|\) ->)", header):
        whole = re.search(r"spmd\.global_type = tensor<([^>]*)>", attributes)
        *shape, element = (whole.group(1) if whole else local).split("x")
        name, role = (re.search(rf'graph\.{key} = "([^"]*)"', attributes).group(1)
                      for key in ("name", "role"))
        found[name] = tuple(map(int, shape)), element, role
    return found


def interpret_steps(program, inputs, count):
    """Parameters, state and losses of `count` steps, as a session runs them."""
    known, losses, before = dict(inputs), [], None
    types = arguments(program, "train")
    numpy_types = {"f64": np.float64, "f32": np.float32, "i64": np.int64, "i1": np.bool_}
    for name, (shape, element, role) in types.items():
        if role == "gradient":
            # What is not read may be anything.
            known[name] = np.full(shape, np.nan, numpy_types[element])
    for number in range(1, count + 1):
        now = {"lr": 0.1 / number, "step": number}
        for name, value in now.items():
            known[name] = np.full_like(inputs[name], value)
            known[f"previous.{name}"] = np.full_like(
                inputs[name], before[name] if before else 0)
        known["rng"] = np.array([5, number])
        known["update_pending"] = np.array(before is not None)
        results, _ = interpret(program, known, entry="train")
        losses.append(results["loss"].item())
        known.update({name: value for name, value in results.items() if name in types})
        before = now
    if "pipe.program @update" in program:
        for name, value in before.items():
            known[f"previous.{name}"] = np.full_like(inputs[name], value)
        known["update_pending"] = np.array(True)
        results, _ = interpret(program, known, entry="update")
        known.update(results)
    return losses, {name: known[name] for name, (_, _, role) in types.items()
                    if role in ("parameter", "state")}


INTERPRETED = [
    ("", "", 1, "adamw"),
    ("", "", 1, "sgd"),
    ("", "", 2, "sgd"),
    ("dp=2", "zero1", 1, "adamw"),
    ("dp=2,tp=2", "megatron-sp,zero3", 2, "sgd"),
    ("pp=2", "", 2, "adamw"),
    ("pp=4,dp=2", "zero2", 2, "sgd"),
]


@pytest.mark.parametrize("mesh, recipe, micro_batches, optimizer", INTERPRETED)
def test_bits_interpreted(tmp_path, mesh, recipe, micro_batches, optimizer, name="gpt2",
                          sizes=(BATCH, LENGTH)):
    """In f64, SGD with a clip."""
    inputs = random_inputs(emit(tmp_path, name, "step", *OPTIMIZERS[optimizer], sizes=sizes))
    fusions = ["none", "forward"]
    if optimizer == "adamw" and micro_batches == 1:
        fusions.append("backward")
    runs = []
    for fusion in fusions:
        program = emit(tmp_path, name, "scheduled", *OPTIMIZERS[optimizer], f"--mesh={mesh}",
                       f"--plan={recipe}", f"--micro-batches={micro_batches}",
                       f"--optimizer-fusion={fusion}",
                       f"--check-finite={'off' if fusion == 'backward' else 'on'}", sizes=sizes)
        runs.append(interpret_steps(program, inputs, STEPS if not mesh else 3))
    for losses, values in runs[1:]:
        assert losses == runs[0][0]
        assert values.keys() == runs[0][1].keys()
        for name, value in values.items():
            assert np.array_equal(value, runs[0][1][name]), name
    assert len(set(runs[0][0])) == len(runs[0][0])


@pytest.mark.parametrize("name", PARALLEL)
@pytest.mark.parametrize("settings", [INTERPRETED[i] for i in (0, 2, 6)], ids=str)
def test_parallel_layers_interpreted(tmp_path, name, settings):
    layers = 4 if "pp=4" in settings[0] else 2
    test_bits_interpreted(tmp_path, *settings, name=name,
                          sizes=(BATCH, LENGTH, ("num_hidden_layers", layers)))


# --------------------------------------------------------- what reads in between


def test_whatever_reads_makes_up_for_updates():
    """Evaluations, states and loads between steps, in every order."""
    data = batches()
    apart, deferred = compiled("none", CLIPPED), compiled("forward", CLIPPED)
    for number, batch in enumerate(data):
        assert float(apart(*batch)) == float(deferred(*batch))
        if number % 4 == 1:
            assert float(apart.evaluate(*batch)) == float(deferred.evaluate(*batch))
            assert apart.evaluate(*batch) != apart.evaluate(*data[number - 1])
        if number % 4 == 2:
            assert same_bits(snapshot(apart), snapshot(deferred))
        if number % 4 == 3:
            assert torch.equal(apart.logits(batch[0]), deferred.logits(batch[0]))
        if number == 5:
            # What is loaded is not updated by what came before.
            start = {name: torch.zeros_like(t) + 0.01 for name, t in apart.state_dict().items()}
            for step in (apart, deferred):
                step.load_state_dict(start)
            assert same_bits(snapshot(apart), snapshot(deferred))
    assert same_bits(snapshot(apart), snapshot(deferred))


def test_a_state_from_the_middle_continues():
    data = batches()
    whole = compiled("none", CLIPPED)
    train(whole, data)
    first = compiled("forward", CLIPPED)
    train(first, data[:4])
    weights, state = first.state_dict(), first.training_state()
    # A read changes nothing.
    train(first, data[4:])
    second = compiled("forward", CLIPPED)
    train(second, data[:1])
    second.load_state_dict(weights)
    second.load_training_state(state)
    train(second, data[4:])
    for step in (first, second):
        assert same_bits(snapshot(step), snapshot(whole))


def test_a_batch_of_another_shape_takes_updates_along():
    apart, deferred = compiled("none"), compiled("forward")
    for step in (apart, deferred):
        step(*tokens())
        step(*tokens(batch=2))
        step(*tokens())
    assert same_bits(snapshot(apart), snapshot(deferred))


@pytest.mark.parametrize("mesh", [None, {"dp": 2}, {"pp": 2}], ids=str)
def test_a_step_that_fails_changes_nothing(mesh):
    """Neither what the step before has left, nor anything else."""
    ids, labels = tokens()
    ignored = torch.full_like(labels, -100)
    apart, deferred = (compiled(fusion, CLIPPED, mesh=mesh) for fusion in ("none", "forward"))
    for step in (apart, deferred):
        train(step, batches(3))
        for _ in range(2):
            with pytest.raises(cleave.StepError, match="every target of this batch is ignored"):
                step(ids, ignored)
    assert same_bits(snapshot(apart), snapshot(deferred))
    assert train(apart, batches(2)) == train(deferred, batches(2))
    assert same_bits(snapshot(apart), snapshot(deferred))


def test_a_gradient_that_is_not_finite_changes_nothing():
    """The norm is known when its gradients have been kept."""
    apart, deferred = compiled("none", CLIPPED), compiled("forward", CLIPPED)
    for step in (apart, deferred):
        train(step, batches(2))
        good = {name: t.clone() for name, t in step.state_dict().items()}
        bad = {**good, "transformer.ln_f.weight": good["transformer.ln_f.weight"] * 1e30}
        step.load_state_dict(bad)
        with pytest.raises(cleave.StepError, match="norm of the gradients is not finite"):
            step(*tokens())
        assert torch.equal(step.state_dict()["transformer.ln_f.weight"],
                           bad["transformer.ln_f.weight"])
        step.load_state_dict(good)
        train(step, batches(2))
    assert same_bits(snapshot(apart), snapshot(deferred))


# ----------------------------------------------------------------------- memory


def gradient_bytes(step):
    return step.memory()["train gradients"]


def sizes(step):
    """Bytes of the gradients of each parameter, each in lines of 64."""
    return {name: -(-t.numel() * 4 // 64) * 64
            for name, t in step.state_dict().items()
            if name in step.training_state()["optimizer"]}


def widest(own):
    """The largest gradient and that of its bias, which the same value is added up to: both
    are there at once."""
    return max(size + own.get(name.removesuffix("weight") + "bias", 0)
               for name, size in own.items() if name.endswith("weight"))


def untied():
    return gpt2(**DROPOUT, tie_word_embeddings=False, n_layer=3)


def test_gradients_of_updates_apart_are_all_there():
    step = compiled("none", make=untied)
    assert gradient_bytes(step) == sum(sizes(step).values())


@pytest.mark.parametrize("mesh", [None, {"dp": 2}])
def test_gradients_die_in_backward(mesh):
    step = compiled("backward", make=untied, mesh=mesh)
    own = sizes(step)
    assert gradient_bytes(step) == widest(own) == 4 * (32 * 128 + 128)
    assert gradient_bytes(step) < sum(own.values()) / 8


def test_a_tied_gradient_waits_for_all_its_uses():
    """It is there from the head, with which backward begins, to the embedding, where it
    ends, if the head is computed in pieces that are added up."""
    torch.manual_seed(0)
    step = cleave.compile(gpt2(**DROPOUT), named_tokens(length=32), optimizer=ADAMW,
                          memory=cleave.Memory(optimizer_fusion="backward", max_logits_bytes=1 << 14),
                          numerics=cleave.Numerics(check_finite=False))
    own = sizes(step)
    assert gradient_bytes(step) == own.pop("transformer.wte.weight") + widest(own)


def test_kept_gradients_are_reported():
    """They are state of the run: all of them, and of a clip its factor."""
    step = compiled("forward", CLIPPED, make=untied)
    own = sum(sizes(step).values())
    memory = step.memory()
    assert own <= gradient_bytes(step) <= own + 64
    assert own <= memory["gradient"] <= own + 64
    assert memory["state"] == compiled("none", CLIPPED, make=untied).memory()["state"]


def test_what_was_decided_is_explained():
    def line(*args, **settings):
        text = compiled(*args, **settings).explain("full")
        return re.search("train: optimizer fusion (.*)", text).group(1)

    assert line("auto", check_finite=False).startswith(
        "backward: each update runs after its gradient")
    assert line("auto").startswith("none: graph.global_norm reads the gradients of several")
    assert line("none", check_finite=False) == "none: it was asked to be apart"
    assert line("auto", CLIPPED).startswith("none: graph.global_norm reads the gradients of several")
    assert "complete only with the last of 2 micro-batches" in line("auto", micro_batches=2)
    assert line("forward", CLIPPED).startswith("forward: each update runs in the next step")


# --------------------------------------------------------------------- refusals


@pytest.mark.parametrize("settings, why", [
    (dict(optimizer=CLIPPED), "reads the gradients of several parameters"),
    (dict(micro_batches=2), "complete only with the last of 2 micro-batches"),
    (dict(deterministic=4), "complete only with the last of 4 micro-batches"),
    (dict(mesh={"pp": 2}), "before all stages have agreed"),
])
def test_refusals(settings, why):
    with pytest.raises(cleave.CompileError, match="optimizer fusion into backward is not possible"
                       ) as caught:
        compiled("backward", **settings)
    assert why in str(caught.value)


def test_unknown_fusions_are_refused():
    with pytest.raises(ValueError, match="optimizer_fusion is auto, none, backward or forward, not 'sideways'"):
        compiled("sideways")


# ------------------------------------------------------------------ cleave-run


def test_checkpoints_from_the_middle(tmp_path):
    """Files are the same, and one continues what the other has begun."""
    path = {name: str(tmp_path / name) for name in ("m.mlir", "w.safetensors", "data.bin")}
    run_tool([sys.executable, "-m", "cleave.models", "gpt", "--hidden=32", "--heads=4",
              "--layers=2", "--seq=16", "--vocab=96", "--batch=4",
              f"--weights={path['w.safetensors']}", "-o", path["m.mlir"]])
    np.random.default_rng(1).integers(0, 96, 1 << 12).astype(np.uint16).tofile(path["data.bin"])

    def run(fusion, *flags):
        artifact = str(tmp_path / f"{fusion}.so")
        run_tool([tool("cleave-compile"), path["m.mlir"], "--max-grad-norm=0.1",
                  f"--optimizer-fusion={fusion}", "-o", artifact])
        run_tool([tool("cleave-run"), artifact, "--data", path["data.bin"], "--lr=1e-2",
                  "--lr-schedule=cosine", "--warmup=2", "--steps=9", "--save-every=4",
                  "--seed=3", *flags])

    start = f"--weights={path['w.safetensors']}"
    folders = {name: tmp_path / name for name in ("apart", "deferred", "resumed")}
    run("none", start, f"--save-dir={folders['apart']}")
    run("forward", start, f"--save-dir={folders['deferred']}")
    run("none", start, f"--save-dir={folders['resumed']}", "--stop-at=4")
    run("forward", f"--resume={folders['resumed']}", f"--save-dir={folders['resumed']}")
    for checkpoint in ("step-4", "step-8"):
        files = [{name: (folder / checkpoint / name).read_bytes()
                  for name in ("model.safetensors", "optimizer.safetensors", "training.json")}
                 for folder in folders.values()]
        assert files[0] == files[1] == files[2]
