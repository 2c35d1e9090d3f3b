# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Trains a model by Cleave and by PyTorch from the same weights and data."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import json
import pathlib
from typing import Callable, Hashable
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.entrance import grouped
import cleave.trace
from family_models import FAMILIES, build
from proofs import ALL  # noqa: F401 (tests import it from here)
from trace_support import AllDouble

GPT2 = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=96, n_positions=32,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def gpt2(**changes):
    """A small GPT-2 with random weights in training mode."""
    return build("GPT2LMHeadModel", "GPT2Config", **{**GPT2, **changes}).train()


def tokens(batch=4, length=8, vocab=96, seed=1, ignored=0, low=3):
    """Token ids and labels; the last `ignored` labels of sample 0 do not count."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(low, vocab, (batch, length), generator=generator)
    labels = ids.clone()
    if ignored:
        labels[0, length - ignored:] = -100
    return ids, labels


def named_tokens(**settings):
    """The same by name, as the models of `transformers` take them."""
    return dict(zip(("input_ids", "labels"), tokens(**settings)))


def token_batches(count=4, **settings):
    """Batches of tokens that differ."""
    return [tokens(seed=seed, **settings) for seed in range(1, count + 1)]


class Net(nn.Module):
    """A transformer layer written by hand: pre-norm, SwiGLU, a learned position
    bias, and a skip around it all."""

    def __init__(self, vocab=96, width=32, heads=4, length=8):
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocab, width)
        self.bias = nn.Parameter(torch.randn(heads, length, length) * 0.1)
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.after = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, 2 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        x = self.embedding(ids)
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).chunk(3, dim=-1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5 + self.bias
        mixed = scores.softmax(-1) @ v
        y = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        z = self.after(y)
        y = y + self.down(F.silu(self.gate(z)) * self.up(z))
        return self.head(y + torch.tanh(x))


def token_loss(logits, targets):
    """Mean cross entropy of all rows."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def assert_close(found, expected, **bounds):
    """numpy's `assert_allclose`, of finite numbers: NaN beside NaN, or inf beside inf, is no
    agreement."""
    for kind, values in (("found", found), ("expected", expected)):
        assert np.isfinite(np.asarray(values, dtype=np.float64)).all(), f"{kind}: not finite"
    np.testing.assert_allclose(found, expected, **bounds)


def net(seed=0, **settings):
    torch.manual_seed(seed)
    return Net(**settings)


@dataclasses.dataclass
class Case:
    """A model and what it trains on."""

    #: Makes the module, the same at each call.
    build: Callable[[], nn.Module]
    #: Batches of a step, in the order of the step's inputs.
    batches: list[tuple[torch.Tensor, ...]]
    #: As `cleave.compile` takes it.
    loss_fn: Callable[..., torch.Tensor] | None = None
    #: Names of the inputs for PyTorch, where it takes them by name.
    names: tuple[str, ...] = ("input_ids", "labels")
    #: What tells its model from all others; with one, the model is traced once for all tests.
    key: Hashable = None

    def examples(self, batch=None, module=None):
        """A batch, by default the first, as `cleave.compile` takes it: by name, where the
        model has the loss and takes what `names` says."""
        batch = self.batches[0] if batch is None else batch
        taken = inspect.signature(module.forward).parameters if module else self.names
        named = self.loss_fn is None and all(name in taken for name in self.names)
        return dict(zip(self.names, batch)) if named else batch

    def loss(self, module, batch):
        """PyTorch's loss of a batch."""
        if self.loss_fn is not None:
            return self.loss_fn(module(*batch[:-1]), batch[-1])
        given = dict(zip(self.names, batch))
        if hasattr(module.config, "use_cache"):
            given["use_cache"] = False
        return module(**given).loss


def family(name, *, length=8, batch=4, **changes):
    """The case of a language model of test_trace_families."""
    model, config, settings, _ = FAMILIES[name]
    settings = {**settings, **changes}
    return Case(lambda: build(model, config, **settings).train(),
                token_batches(length=length, batch=batch, vocab=settings["vocab_size"],
                              ignored=length // 2 - 1), key=("family", name, repr(changes)))


def images(size=16, batch=4, hidden=32, layers=2):
    """The case of an image classifier."""
    settings = dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4,
                    intermediate_size=2 * hidden, image_size=size, patch_size=4, num_labels=10)
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(batch, 3, size, size, generator=generator),
                torch.randint(0, 10, (batch,), generator=generator)) for _ in range(4)]
    return Case(lambda: build("ViTForImageClassification", "ViTConfig", **settings).train(),
                batches, names=("pixel_values", "labels"), key=("images", repr(settings)))


def written_by_hand(length=8, batch=4, width=32):
    """The case of `Net` with a loss function."""
    return Case(lambda: net(length=length, width=width), token_batches(length=length, batch=batch),
                token_loss, key=("net", width))


@dataclasses.dataclass
class Run:
    """The result of a training run."""

    losses: list[float]
    #: Gradients of the first step by parameter.
    gradients: dict[str, torch.Tensor]
    #: Weights after the last step minus those before the first, in f64.
    updates: dict[str, torch.Tensor]
    #: 2-norms of all gradients, where the run clips.
    norms: list[float]


@contextlib.contextmanager
def double_precision(wanted=True):
    """PyTorch computes in f64 here, also where a model asks for f32."""
    if not wanted:
        yield
        return
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with AllDouble():
            yield
    finally:
        torch.set_default_dtype(default)


def copies(module):
    """The parameters by name, in f64."""
    return {n: p.detach().double().clone() for n, p in module.named_parameters()}


def torch_run(case, steps, make_optimizer, *, double=False, clip=None, module=None,
              schedule=None):
    """`steps` steps of PyTorch; `make_optimizer(module)` gives the optimizer."""
    module = copy.deepcopy(case.build() if module is None else module)
    run = Run([], {}, {}, [])
    with double_precision(double):
        if double:
            module.double()
        start = copies(module)
        optimizer = make_optimizer(module)
        scheduler = schedule(optimizer) if schedule else None
        for step in range(steps):
            batch = case.batches[step % len(case.batches)]
            if double:
                batch = tuple(t.double() if t.is_floating_point() else t for t in batch)
            optimizer.zero_grad()
            loss = case.loss(module, batch)
            loss.backward()
            if step == 0:
                run.gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                                 for n, p in module.named_parameters()}
            if clip is not None:
                run.norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), clip)))
            optimizer.step()
            if scheduler:
                scheduler.step()
            run.losses.append(loss.item())
    run.updates = {n: p - start[n] for n, p in copies(module).items()}
    return run


#: The traces, by the key of the model, its inputs and settings of the trace.
TRACED = {}
WHOLE_TRACE = cleave.trace.trace


def trace_once(key, module, inputs, loss_fn=None, **settings):
    """`cleave.trace.trace`, or what it made before of a model that has this key, with the
    tensors of this one."""
    tensors = inputs.values() if isinstance(inputs, dict) else inputs
    key = (key, loss_fn, repr([(t.shape, t.dtype) for t in tensors]), repr(settings))
    if key not in TRACED:
        TRACED[key] = WHOLE_TRACE(module, inputs, loss_fn=loss_fn, **settings)
        return TRACED[key]
    own = {**dict(module.named_buffers(remove_duplicate=False)),
           **dict(module.named_parameters(remove_duplicate=False))}

    def of_module(entry):
        if entry.parts:
            return torch.stack([own[part].detach() for part in entry.parts])
        return own[entry.name].detach() if entry.name in own else entry.tensor

    traced = TRACED[key]
    return dataclasses.replace(traced, tensors=[
        dataclasses.replace(entry, tensor=of_module(entry)) for entry in traced.tensors])


def compile_once(key, module, inputs, loss_fn=None, **settings):
    """`cleave.compile` of a model that has a key: all models of one key are the same, and
    traced once for all tests of a process."""
    with mock.patch("cleave.trace.trace", functools.partial(trace_once, key)):
        return cleave.compile(module, inputs, loss_fn, **grouped(**settings))


def compile_case(case, optimizer, *, module=None, **settings):
    """`cleave.compile` of the model and the first batch of a case."""
    settings.update(loss_fn=case.loss_fn, optimizer=optimizer)
    once = module is None and case.key is not None
    module = case.build() if module is None else module
    inputs = case.examples(module=module)
    if once:
        return compile_once(case.key, module, inputs, **settings)
    return cleave.compile(module, inputs, **grouped(**settings))


def weights(step):
    """Parameters and buffers of a step by name, in f64."""
    return {n: t.double() for n, t in step.state_dict().items() if t.is_floating_point()}


def cleave_run(case, steps, optimizer, **settings):
    """`steps` steps of Cleave; AdamW's first mean holds the first gradients, as does
    momentum (scaled, where their norm was clipped)."""
    step = compile_case(case, optimizer, **settings)
    start = weights(step)
    run = Run([], {}, {}, [])
    for number in range(steps):
        loss = step(*case.batches[number % len(case.batches)])
        run.losses.append(float(loss))
        if loss.grad_norm is not None:
            run.norms.append(loss.grad_norm)
        if number == 0 and isinstance(optimizer, cleave.AdamW):
            for name, slots in step.training_state()["optimizer"].items():
                gradient = slots["exp_avg"].double() / (1 - optimizer.betas[0])
                run.gradients[name] = gradient.reshape(start[name].shape)
        elif number == 0 and optimizer.momentum:
            for name, slots in step.training_state()["optimizer"].items():
                run.gradients[name] = slots["momentum_buffer"].double().reshape(start[name].shape)
    run.updates = {n: t - start[n] for n, t in weights(step).items()}
    return run


def snapshot(step):
    """All state of a step, copied."""
    state = step.training_state()
    return ({n: t.clone() for n, t in step.state_dict().items()},
            {(n, s): t.clone() for n, slots in state["optimizer"].items()
             for s, t in slots.items()}, state["step"])


def same_bits(first, second):
    """Whether two snapshots are equal bit by bit (a NaN equals itself)."""
    def equal(a, b):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.contiguous().reshape(-1).view(torch.uint8).equal(
            b.contiguous().reshape(-1).view(torch.uint8))
    return all(a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
               for a, b in zip(first[:2], second[:2])) and first[2] == second[2]


def take_hashes(folder):
    """Lets the files of a checkpoint be changed: without hashes they are loaded as they are."""
    path = pathlib.Path(folder) / "training.json"
    facts = json.loads(path.read_text())
    del facts["hash"], facts["files"]
    path.write_text(json.dumps(facts))
