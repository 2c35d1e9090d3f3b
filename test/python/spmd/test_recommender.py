# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""DLRM (arXiv 1906.00091): whole tables on each rank, and layers on all of them.

The model is compared with one of torch.nn.EmbeddingBag, ranks with one device and with
PyTorch, and what they send with B T e / N elements forward and as many backward, of which
(N - 1) / N go to other ranks.
"""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.models import dlrm
from cleave.testing.tools import ToolError, interpret, run_tool, tool
from cleave.trace import trace
from recipe_runs import OPTIMIZERS, agree, random_inputs
from native_layouts import agree_natively
from training_support import ALL, Case, assert_close, cleave_run, compile_case

BATCH = 8
SIZES = {
    "even": dict(tables=4, rows=20, width=8, bag=3, dense=5, bottom=(16,), top=(16,)),
    # Padded to eight tables on four ranks.
    "odd": dict(tables=6, rows=11, width=4, bag=1, dense=3, bottom=(8, 6), top=()),
}


def make(name):
    torch.manual_seed(0)
    model = dlrm(**SIZES[name])
    with torch.no_grad():
        model.embeddings.mul_(3)
    return model


def batch(name, seed=1):
    """Dense features, indices and labels; some indices come twice in a bag."""
    size, generator = SIZES[name], torch.Generator().manual_seed(seed)
    return (torch.randn(BATCH, size["dense"], generator=generator),
            torch.randint(0, size["rows"], (BATCH, size["tables"], size["bag"]),
                          generator=generator),
            torch.randint(0, 2, (BATCH,), generator=generator).float())


class Plain(nn.Module):
    """The same by an EmbeddingBag for each table, and a loop over pairs."""

    def __init__(self, model):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(table.detach().clone(), freeze=False, mode="sum")
            for table in model.embeddings)
        self.bottom, self.top = model.bottom, model.top

    def forward(self, dense, indices, labels):
        below = torch.relu(self.bottom(dense))
        vectors = [below, *(table(own) for table, own in zip(self.tables, indices.unbind(1)))]
        pairs = [(vectors[i] * vectors[j]).sum(-1) for i in range(len(vectors)) for j in range(i)]
        logits = self.top(torch.stack([*below.unbind(1), *pairs], 1)).squeeze(1)
        return F.binary_cross_entropy(torch.sigmoid(logits), labels)


@pytest.mark.parametrize("name", SIZES)
def test_the_model_is_that_of_the_paper(name):
    model = make(name).double()
    plain = Plain(model)
    dense, indices, labels = batch(name)
    loss = model(dense.double(), indices, labels.double())[0]
    loss.backward()
    own = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    expected = plain(dense.double(), indices, labels.double())
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    tables = torch.stack([table.weight.grad for table in plain.tables])
    torch.testing.assert_close(own.pop("embeddings"), tables, rtol=1e-10, atol=1e-14)
    for key, gradient in own.items():
        torch.testing.assert_close(gradient, plain.get_parameter(key).grad, rtol=1e-10,
                                   atol=1e-14)


@functools.cache
def traced(name):
    inputs = dict(zip(("dense", "indices", "labels"), batch(name)))
    return trace(make(name).double(), {
        n: v.double() if v.is_floating_point() else v for n, v in inputs.items()}).mlir


def emit(folder, name, phase, *flags):
    path = folder / f"{name}.mlir"
    path.write_text(traced(name))
    return run_tool([tool("cleave-compile"), str(path), f"--emit={phase}", *flags])


#: Mesh and recipes.
CASES = [("ep=2", "expert"), ("ep=4", "expert"), ("dp=2,ep=2", "expert"),
         ("ep=2,dp=2", "expert,zero1"), ("dp=2,ep=2", "expert,zero3,zero1(ep)"),
         ("ep=2,tp=2", "expert,megatron"), ("dp=2,tp=2", "megatron,expert(tp)"),
         ("pp=2,ep=2", "expert")]


@pytest.mark.parametrize("mesh, recipes", CASES)
@pytest.mark.parametrize("name", SIZES)
def test_ranks_equal_one_device(tmp_path, name, mesh, recipes):
    for parts in (1, 2) if ALL else (1 + len(mesh) % 2,):
        flags = OPTIMIZERS["adamw" if parts == 1 else "sgd"]
        step = emit(tmp_path, name, "step", *flags)
        dense, indices, labels = batch(name)
        values = {**random_inputs(step), "dense": dense.double().numpy(),
                  "indices": indices.numpy(), "labels": labels.double().numpy()}
        if "pairs" in values:
            values["pairs"] = make(name).pairs.numpy()
        results, gradients = interpret(step, values, entry="train")
        layout = [f"--mesh={mesh}", f"--plan={recipes}", f"--micro-batches={parts}"]
        program = emit(tmp_path, name, "scheduled", *flags, *layout)
        own_results, own_gradients = interpret(program, values, entry="train")
        agree(own_results, results)
        agree(own_gradients, gradients)
        agree_natively(tmp_path / f"{name}.mlir", flags, layout, step, values, results)


def case_of(name):
    return Case(lambda: make(name), [batch(name, seed) for seed in range(1, 5)],
                names=("dense", "indices", "labels"), key=("dlrm", name))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", SIZES)
def test_ranks_train_as_pytorch(name, ranks):
    case = case_of(name)
    eager = make(name).double()
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1, momentum=0.9)
    expected = []
    for number in range(6):
        dense, indices, labels = case.batches[number % 4]
        optimizer.zero_grad()
        loss = eager(dense.double(), indices, labels.double())[0]
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    run = cleave_run(case, 6, cleave.SGD(lr=0.1, momentum=0.9), mesh={"ep": ranks},
                     plan="expert")
    assert_close(run.losses, expected, rtol=1e-5)
    before = dict(make(name).double().named_parameters())
    for key, weight in eager.named_parameters():
        change = (weight - before[key]).detach()
        assert float((run.updates[key] - change).abs().max()) <= 1e-4 * float(change.abs().max())


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_sent(ranks):
    """Vectors of B T e / N elements of a rank, and indices before them; and the gradients of
    the layers, the loss and a check. No row of a table."""
    size = SIZES["even"]
    case = case_of("even")
    step = compile_case(case, cleave.SGD(lr=0.1), mesh={"ep": ranks}, plan="expert",
                        check_finite=False)
    step(*case.batches[0])
    share = (ranks - 1) / ranks
    vectors = share * BATCH * size["tables"] * size["width"] / ranks
    indices = share * BATCH * size["tables"] * size["bag"] / ranks
    layers = sum(p.numel() for n, p in make("even").named_parameters() if n != "embeddings")
    expected = {"all_to_all": (3, 2 * vectors + indices, 4 * 2 * vectors + 8 * indices),
                "all_reduce": (None, 2 * share * (layers + 1), 4 * 2 * share * (layers + 1))}
    report = step.report()["communication"]["train"]["totals"]
    for entries in (report, step.communication()):
        found = {entry["kind"].replace("-", "_"): entry for entry in entries}
        assert set(found) == set(expected)
        for kind, (count, elements, size_in_bytes) in expected.items():
            assert count in (None, found[kind]["count"])
            assert found[kind]["elements"] == elements
            assert found[kind]["bytes"] == size_in_bytes


def test_what_a_rank_holds():
    step = compile_case(case_of("even"), cleave.SGD(lr=0.1), mesh={"ep": 4}, plan="expert")
    tensors = step.report()["placement"]["tensors"]
    split = {name: [axis["axis"] for axes in tensor["dims"] for axis in axes]
             for name, tensor in tensors.items()}
    assert split["embeddings"] == ["ep"]
    assert not any(split[name] for name in split if name.startswith(("bottom", "top")))
    assert "each rank holds 640 B of 2.5 KiB" in step.visualize("embeddings")


def test_bad_sizes(tmp_path):
    with pytest.raises(ToolError, match='has 4 tables, fewer than the 8 positions of axis "ep"'):
        emit(tmp_path, "even", "local", "--mesh=ep=8", "--plan=expert")
    with pytest.raises(ValueError, match="rows is 0; it must be at least 1"):
        dlrm(rows=0)
    with pytest.raises(ValueError, match=r"top\[1\] is -3; it must be at least 1"):
        dlrm(top=(4, -3))


def test_an_index_out_of_range_is_refused():
    case = case_of("even")
    step = compile_case(case, cleave.SGD(lr=0.1), mesh={"ep": 2}, plan="expert")
    dense, indices, labels = case.batches[0]
    wrong = indices.clone()
    wrong[5, 3, 1] = 20
    with pytest.raises(cleave.StepError, match="has 20 at .*0 to 19"):
        step(dense, wrong, labels)
    assert np.isfinite(float(step(dense, indices, labels)))
