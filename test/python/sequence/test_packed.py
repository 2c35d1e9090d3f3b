# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Packed documents, in recipes of the sequence and in pipelines, against PyTorch's training of the
documents one by one: losses, parameters and the optimizer's state after three steps."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from family_models import GROUPED, build
from training_support import ALL, compile_once, double_precision

LENGTH, ROWS, STEPS = 16, 4, 3
#: Of larger epsilon, so that updates of small gradients follow from their sizes.
RATE = dict(lr=1e-2, eps=1e-4, weight_decay=0.0)


def packs():
    rng = np.random.default_rng(3)
    documents = [rng.integers(3, 96, n) for n in rng.integers(2, 15, 40)]
    found = cleave.pack(documents, LENGTH, method="first-fit")
    assert len(found) >= STEPS * ROWS
    # Some rows are full, others have padding, and documents cross the middle of a row.
    ends = {piece.offset + piece.size for row in found.pieces for piece in row}
    assert LENGTH in ends and len(ends) > 4
    return documents, found


class Segments(nn.Module):
    """Attention that compares given numbers of documents."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(96, 32), nn.Linear(32, 96)
        self.places, self.qkv = nn.Embedding(LENGTH, 32), nn.Linear(32, 96)

    def forward(self, input_ids, labels, position_ids, segment_ids):
        x = self.embed(input_ids) + self.places(position_ids)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        size = x.shape[1]
        seen = torch.ones(size, size, dtype=torch.bool).tril()
        seen = seen & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        logits = self.head(x[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def model(name):
    if name == "segments":
        torch.manual_seed(0)
        return Segments().train()
    return build(f"{name}ForCausalLM", f"{name}Config", **GROUPED).train()


def loss_of(module, name, document):
    """The sum of the losses of a document, and how many there are."""
    ids = torch.as_tensor(document)[None]
    places = torch.arange(ids.shape[1])[None]
    if ids.shape[1] < 2:
        return 0.0, 0
    given = dict(input_ids=ids, labels=ids, position_ids=places)
    if name == "segments":
        loss = module(**given, segment_ids=torch.zeros_like(ids))
    else:
        loss = module(**given, use_cache=False).loss
    count = ids.shape[1] - 1
    return loss * count, count


def one_by_one(name):
    """The losses, parameters and state of PyTorch in f64, of documents by themselves."""
    documents, found = packs()
    module, losses = copy.deepcopy(model(name)), []
    with double_precision():
        module.double()
        optimizer = torch.optim.AdamW(module.parameters(), **RATE)
        for step in range(STEPS):
            optimizer.zero_grad()
            pieces = [p for row in found.pieces[step * ROWS:(step + 1) * ROWS] for p in row]
            terms = [loss_of(module, name, documents[p.document][p.start:p.stop]) for p in pieces]
            loss = sum(total for total, _ in terms) / sum(count for _, count in terms)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    names = {p: n for n, p in module.named_parameters()}
    state = {f"{names[p]}.{key}": slots[key] for p, slots in optimizer.state.items()
             for key in ("exp_avg", "exp_avg_sq")}
    return losses, {n: p.detach() for n, p in module.named_parameters()}, state


@pytest.fixture(scope="module")
def alone():
    known = {}

    def of(name):
        if name not in known:
            known[name] = one_by_one(name)
        return known[name]
    return of


def check(found, expected, what):
    scale = expected.abs().max().clamp(min=1e-3)
    error = ((found.double().reshape(expected.shape) - expected).abs().max() / scale).item()
    assert error < 1e-5, (what, error)


LAYOUTS = {
    "one": {},
    "micro-batches": dict(micro_batches=2),
    "ring": dict(mesh={"cp": 4}, plan="ring"),
    "two-ring": dict(mesh={"cp": 2}, plan="two-ring"),
    "ulysses": dict(mesh={"cp": 2}, plan="ulysses"),
    "context": dict(mesh={"cp": 4}, plan="context"),
    "ring and dp": dict(mesh={"dp": 2, "cp": 2}, plan="zero1,ring"),
    "two levels": dict(mesh={"node": 2, "cp": 2}, plan="ulysses,ring(node)"),
    "megatron-sp": dict(mesh={"tp": 2}, plan="megatron-sp"),
    "stages": dict(mesh={"pp": 2}, schedule="1f1b", micro_batches=4),
    "stages and ring": dict(mesh={"pp": 2, "cp": 2}, plan="ring", schedule="1f1b", micro_batches=2),
    "recomputed": dict(mesh={"cp": 2}, plan="ring", recompute="full"),
}
MODELS = ["Llama", "Qwen2", "segments"]
CASES = [(name, layout) for name in MODELS for layout in LAYOUTS
         if name != "segments" or "pp" not in LAYOUTS[layout].get("mesh", {})]


SAMPLE = [("Llama", "ring"), ("Llama", "stages"), ("segments", "two-ring"), ("segments", "two levels")]


@pytest.mark.parametrize("name, layout", CASES if ALL else SAMPLE)
def test_documents_train_as_alone(alone, name, layout):
    _, found = packs()
    own = name == "segments"
    batches = [found.batch(slice(i * ROWS, (i + 1) * ROWS), segments=own) for i in range(STEPS)]
    rate = dict(RATE)
    step = compile_once(("packed", name), model(name), batches[0],
                        optimizer=cleave.AdamW(betas=(0.9, 0.999), **rate), check="off",
                        **LAYOUTS[layout])
    losses, parameters, state = alone(name)
    for batch, expected in zip(batches, losses):
        assert float(step(**batch)) == pytest.approx(expected, rel=1e-5)
    after = step.state_dict()
    for key, expected in parameters.items():
        check(after[key], expected, key)
    slots = step.training_state()["optimizer"]
    for key, expected in state.items():
        parameter, slot = key.rsplit(".", 1)
        check(slots[parameter][slot], expected, key)
