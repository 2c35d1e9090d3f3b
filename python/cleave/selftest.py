# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Checks of an installed package, which need nothing but PyTorch.

usage: python -m cleave.selftest [--filter WORD]

Values and gradients of ops, steps of models on one device and on meshes of threads, 16 bits,
checkpoints and the command-line tools are compared with eager PyTorch or with each other. The last
line is `N passed, N failed`; the exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from typing import Any, Callable

import numpy as np
import torch
import torch.nn.functional as F

import cleave
from cleave import models

from .testing.tools import interpret, optimize, tool

#: Checks by name, in the order in which they run.
CHECKS: dict[str, Callable[[], None]] = {}


def check(name: str):
    """Adds a check, which raises AssertionError if it fails."""
    def add(function: Callable[[], None]):
        CHECKS[name] = function
        return function
    return add


def close(name: str, found: torch.Tensor, wanted: torch.Tensor, relative: float,
          absolute: float = 1e-6) -> None:
    """Asserts that no element differs by more than `relative` of the largest one, or `absolute`."""
    found, wanted = found.detach().double(), wanted.detach().double()
    assert found.shape == wanted.shape, f"{name}: {found.shape} is not {wanted.shape}"
    bound = relative * float(wanted.abs().max()) + absolute
    error = float((found - wanted).abs().max())
    assert error <= bound, f"{name} differs by {error:.2e}, more than {bound:.2e}"


# Values and gradients of ops.


class Op(torch.nn.Module):
    """The sum of an op's result, weighted; the op's operands are parameters."""

    def __init__(self, function: Callable[..., torch.Tensor], operands: list[torch.Tensor]):
        super().__init__()
        self.function = function
        self.operands = torch.nn.ParameterList(operands)

    def forward(self, weights: torch.Tensor) -> torch.Tensor:
        return (self.function(*self.operands) * weights).sum()


def check_op(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...],
             positive: bool = False) -> None:
    """Compares the loss, and the gradients: with SGD of rate 1 an update is the gradient."""
    operands = [torch.rand(shape) + 0.5 if positive else torch.randn(shape) for shape in shapes]
    model = Op(function, operands)
    weights = torch.randn(function(*operands).shape)
    step = cleave.compile(model, (weights,), optimizer=cleave.SGD(lr=1.0))
    loss = step(weights)
    wanted = model(weights)
    wanted.backward()
    close("the loss", torch.tensor(float(loss)), wanted, 1e-5, 2e-5)
    after = step.state_dict()
    for name, operand in model.named_parameters():
        close(f"the gradient of {name}", operand.detach() - after[name], operand.grad, 1e-5, 5e-6)


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


#: Name, function, whether operands are positive, and their shapes.
OPS: list[tuple[str, Callable[..., torch.Tensor], bool, list[tuple[int, ...]]]] = [
    ("add, sub and mul with broadcasts", lambda a, b, c: (a + b) * c - b, False,
     [(5, 7), (7,), (5, 1)]),
    ("division and powers", lambda a, b: a / b + a ** 3 + b ** -0.5, True, [(4, 6), (4, 6)]),
    ("exp, log and sqrt", lambda a: a.exp() + a.log() + a.sqrt(), True, [(5, 9)]),
    ("tanh, sigmoid and erf", lambda a: a.tanh() * a.sigmoid() + a.erf(), False, [(6, 7)]),
    ("sin and cos", lambda a: a.sin() * (2 * a).cos(), False, [(3, 11)]),
    ("gelu, silu, relu and leaky relu",
     lambda a: F.gelu(a) + F.gelu(a, approximate="tanh") + F.silu(a) + F.relu(a) +
     F.leaky_relu(a), False, [(8, 9)]),
    ("where and clamp", lambda a, b: torch.where(a > b, a * b, a).clamp(-1, 1), False,
     [(6, 6), (6, 6)]),
    ("minimum and maximum", lambda a, b: torch.minimum(a, b) + 2 * torch.maximum(a, b), False,
     [(4, 5), (4, 5)]),
    ("sums, means and variances",
     lambda a: a.sum(1) + a.mean(1) + a.var(1, unbiased=False), False, [(5, 8)]),
    ("maxima along a dimension", lambda a: a.amax(0) + a.max(dim=0).values, False, [(5, 8)]),
    ("cumulative sums", lambda a: a.cumsum(1), False, [(3, 9)]),
    ("matmul", lambda a, b: a @ b, False, [(17, 33), (33, 9)]),
    ("batched matmul", lambda a, b: a @ b.transpose(1, 2), False, [(3, 5, 8), (3, 7, 8)]),
    ("einsum", lambda a, b: torch.einsum("bshd,btd->bhst", a, b), False,
     [(2, 4, 3, 8), (2, 5, 8)]),
    ("linear with a bias", F.linear, False, [(2, 6, 8), (10, 8), (10,)]),
    ("transpose, reshape and flatten",
     lambda a: a.transpose(0, 1).reshape(6, 10).t().flatten(), False, [(3, 4, 5)]),
    ("slices and concatenation", lambda a, b: torch.cat([a[:, 1:4], b[:, ::2]], 1), False,
     [(4, 6), (4, 6)]),
    ("stack, split and roll", lambda a, b: torch.stack([a.split(2, 1)[1], b[:, :2]]).roll(1, 1),
     False, [(3, 6), (3, 4)]),
    ("padding and expansion", lambda a: F.pad(a, (1, 2)).unsqueeze(1).expand(3, 4, 7), False,
     [(3, 4)]),
    ("gather and index select",
     lambda a: a.gather(1, torch.tensor([[0, 2], [1, 1], [3, 0]])) +
     a[:, torch.tensor([3, 1])], False, [(3, 4)]),
    ("embedding", lambda a: F.embedding(torch.tensor([[1, 3, 3], [0, 6, 1]]), a), False, [(7, 8)]),
    ("softmax and log-softmax", lambda a: a.softmax(-1) + a.log_softmax(-1), False, [(5, 12)]),
    ("layer norm", lambda a, b, c: F.layer_norm(a, (16,), b, c), False, [(6, 16), (16,), (16,)]),
    ("RMS norm", lambda a, b: F.rms_norm(a, (16,), b, 1e-6), False, [(6, 16), (16,)]),
    ("cross entropy",
     lambda a: F.cross_entropy(a, torch.tensor([1, 0, -100, 6, 3]), reduction="none"), False,
     [(5, 9)]),
    ("attention", attend, False, [(2, 4, 24, 16)] * 3),
    ("grouped attention",
     lambda q, k, v: attend(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)), False,
     [(1, 4, 20, 8), (1, 2, 20, 8), (1, 2, 20, 8)]),
]
for _name, _function, _positive, _shapes in OPS:
    CHECKS[f"op: {_name}"] = (lambda function=_function, positive=_positive, shapes=_shapes:
                              check_op(function, *shapes, positive=positive))


# Steps of models.

SIZE = dict(vocab=96, hidden=64, heads=4, layers=2, seq=32)
OPTIMIZERS: dict[str, tuple[Callable[[], Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (lambda: cleave.SGD(lr=0.2, momentum=0.9),
            lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9)),
    "adamw": (lambda: cleave.AdamW(lr=0.01, eps=1e-3, weight_decay=0.1),
              lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-3,
                                                   weight_decay=0.1)),
}


def batches_of(count: int = 4, batch: int = 4) -> list[torch.Tensor]:
    return list(torch.randint(SIZE["vocab"], (count, batch, SIZE["seq"])))


def check_steps(model: torch.nn.Module, optimizer: str = "sgd", *, relative: float = 2e-3,
                loss_error: float = 1e-5, **options: Any) -> cleave.Step:
    """Compares losses of four steps and the parameters after them with eager PyTorch; returns the
    step. Errors of parameters are relative to their change."""
    before = copy.deepcopy(model.state_dict())
    ours, torchs = OPTIMIZERS[optimizer]
    batches = batches_of()
    step = cleave.compile(model, (batches[0], batches[0]), optimizer=ours(), **options)
    update = torchs(model.parameters())
    for ids in batches:
        update.zero_grad()
        wanted = model(ids, ids)[0]
        wanted.backward()
        update.step()
        found = float(step(ids, ids))
        error = abs(found / float(wanted.detach()) - 1)
        assert error <= loss_error, f"a loss differs by {error:.2e} of it"
    after = step.state_dict()
    for name, parameter in model.named_parameters():
        # An ulp for each step, besides.
        ulps = 3e-7 * float(parameter.detach().abs().max()) + 3e-7
        close(name, after[name] - before[name], parameter - before[name], relative, ulps)
    return step


MODELS: list[tuple[str, Callable[[], torch.nn.Module]]] = [
    ("GPT", lambda: models.gpt(**SIZE)),
    ("Llama with grouped heads", lambda: models.llama(**SIZE, kv_heads=2, ffn=96)),
    ("Gemma", lambda: models.gemma(**SIZE)),
    ("mixture of experts", lambda: models.mixtral(**SIZE, experts=4)),
    ("state space", lambda: models.mamba2(**{**SIZE, "hidden": 64}, head_width=16)),
]
for _label, _build in MODELS:
    CHECKS[f"model: {_label}"] = lambda build=_build: check_steps(build()) and None
CHECKS["model: GPT with AdamW"] = lambda: check_steps(models.gpt(**SIZE), "adamw") and None

MESHES: list[tuple[str, dict]] = [
    ("4 micro-batches", dict(micro_batches=4)),
    ("dp=2", dict(mesh={"dp": 2})),
    ("dp=4, ZeRO-3", dict(mesh={"dp": 4}, plan=["zero3"])),
    ("tp=2, sequence parallel", dict(mesh={"tp": 2}, plan=["megatron-sp"])),
    ("dp=2, tp=2, ZeRO-1", dict(mesh={"dp": 2, "tp": 2}, plan=["megatron-sp", "zero1"])),
    ("cp=2, ring attention", dict(mesh={"cp": 2}, plan=["ring"])),
    ("pp=2, 1F1B", dict(mesh={"pp": 2}, pipeline="1f1b", micro_batches=4)),
    ("dp=2, pp=2, zero bubble", dict(mesh={"dp": 2, "pp": 2}, pipeline="zb-h1",
                                     micro_batches=2)),
]
for _label, _options in MESHES:
    CHECKS[f"mesh: {_label}"] = (lambda options=_options:
                                 check_steps(models.gpt(**SIZE), **options) and None)


@check("mesh: experts on ep=2")
def check_experts() -> None:
    check_steps(models.mixtral(**SIZE, experts=4), mesh={"ep": 2}, plan=["expert"])


@check("mesh: dropout is that of one device")
def check_dropout() -> None:
    model = models.gpt(**SIZE, dropout=0.2)
    batches = batches_of()
    losses = []
    for options in ({}, dict(mesh={"dp": 2, "tp": 2}, plan=["megatron-sp"])):
        step = cleave.compile(model, (batches[0], batches[0]), optimizer=cleave.SGD(lr=0.1),
                              seed=3, **options)
        losses.append([float(step(ids, ids)) for ids in batches])
    close("losses", torch.tensor(losses[1]), torch.tensor(losses[0]), 1e-5)


# 16 bits, checkpoints, tools.


@check("precision: bf16")
def check_bf16() -> None:
    check_steps(models.gpt(**SIZE), precision="bf16", relative=0.2, loss_error=0.01)


@check("precision: fp16, with a scaled loss")
def check_fp16() -> None:
    step = check_steps(models.gpt(**SIZE), precision="fp16", relative=0.1, loss_error=0.01)
    assert step.skipped == 0 and step.loss_scale and step.loss_scale > 1, step.loss_scale


@check("checkpoint: saved on a mesh, loaded on one device")
def check_checkpoint() -> None:
    model = models.gpt(**SIZE)
    batches = batches_of(6)

    def compiled(**options: Any) -> cleave.Step:
        return cleave.compile(model, (batches[0], batches[0]),
                              optimizer=cleave.AdamW(lr=0.01, eps=1e-3), **options)

    one = compiled(mesh={"dp": 2, "tp": 2}, plan=["megatron-sp", "zero1"])
    two = compiled()
    with tempfile.TemporaryDirectory() as folder:
        for ids in batches[:3]:
            one(ids, ids)
        one.save(os.path.join(folder, "checkpoint"))
        two.load(os.path.join(folder, "checkpoint"))
    assert two.step == 3, two.step
    for name, value in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], value), name
    for ids in batches[3:]:
        close("a loss", torch.tensor(float(two(ids, ids))), torch.tensor(float(one(ids, ids))),
              1e-5)
    for name, value in one.state_dict().items():
        close(name, two.state_dict()[name], value, 1e-4)


@check("evaluation: no state changes")
def check_evaluation() -> None:
    model = models.gpt(**SIZE)
    ids = batches_of(1)[0]
    step = cleave.compile(model, (ids, ids))
    before = step.state_dict()
    found = float(step.evaluate(ids, ids))
    assert math.isclose(found, float(model(ids, ids)[0].detach()), rel_tol=1e-5), found
    close("logits", step.logits(ids, ids), model(ids, ids)[1], 1e-4)
    for name, value in step.state_dict().items():
        assert torch.equal(before[name], value), name


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-500:]}{done.stderr[-1500:]}"
    return done.stdout


@check("tools: an artifact of Python, and one of cleave-compile, train")
def check_tools() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ids = batches_of(1)[0]
        cleave.compile(models.gpt(**SIZE), (ids, ids)).save_artifact(folder / "step.so")
        tokens = torch.randint(SIZE["vocab"], (2000,)).numpy().astype(np.uint16)
        np.save(folder / "tokens.npy", tokens)
        run(sys.executable, "-m", "cleave.models", "gpt", "--layers", 1, "--hidden", 32, "--heads",
            2, "--seq", 16, "--vocab", 256, "--batch", 2, "-o", folder / "model.mlir", "--weights",
            folder / "model.safetensors")
        run(tool("cleave-compile"), folder / "model.mlir", "--mesh=dp=2", "-o", folder / "model.so")
        for artifact, weights in (("step.so", ["--random-init"]),
                                  ("model.so", ["--weights", folder / "model.safetensors"])):
            log = folder / f"{artifact}.jsonl"
            run(tool("cleave-run"), folder / artifact, *weights, "--data", folder / "tokens.npy",
                "--steps", 3, "--log", log)
            losses = [line["loss"] for line in map(json.loads, log.read_text().splitlines())
                      if "loss" in line]
            assert len(losses) == 3 and all(3 < loss < 7 for loss in losses), losses


@check("tools: the interpreter computes what a pass changed")
def check_interpreter() -> None:
    ids = batches_of(1)[0]
    model = models.gpt(**SIZE)
    step = cleave.compile(model, (ids, ids), mesh={"dp": 2})
    inputs = {name: value.numpy() for name, value in step.state_dict().items()}
    text = step.ir("model")
    names = ("input_ids", "labels")
    inputs.update({name: ids.numpy() for name in names})
    before, _ = interpret(text, inputs)
    after, _ = interpret(optimize(text, "--canonicalize"), inputs)
    wanted = float(model(ids, ids)[0].detach())
    for results in (before, after):
        (loss, *_) = results.values()
        assert math.isclose(float(loss), wanted, rel_tol=1e-5), (float(loss), wanted)


def main(words: list[str] | None = None) -> int:
    described = __doc__ or ""
    parser = argparse.ArgumentParser(
        prog="python -m cleave.selftest", description=described.split("usage:")[0],
        epilog=described.split("\n\n", 2)[2], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", metavar="WORD",
                        help="only checks whose names contain it")
    options = parser.parse_args(words)
    wanted = [name for name in CHECKS if options.filter in name]
    if not wanted:
        parser.error(f"no check has '{options.filter}' in its name; there are:\n  " +
                     "\n  ".join(CHECKS))
    os.environ.setdefault("CLEAVE_CACHE", "off")
    begin, failed = time.perf_counter(), 0
    for name in wanted:
        start = time.perf_counter()
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                CHECKS[name]()
            said = "passed"
        except Exception as error:
            failed += 1
            said = "FAILED"
            shown = error if isinstance(error, AssertionError) else traceback.format_exc()
            print(f"{name}: {shown}", file=sys.stderr)
        print(f"{said}  {name} ({time.perf_counter() - start:.1f} s)", flush=True)
    print(f"in {time.perf_counter() - begin:.0f} s, cleave {cleave.__version__}, torch "
          f"{torch.__version__}")
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
