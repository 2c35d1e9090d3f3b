# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Compressed gradients in training: bits, messages, checkpoints, and loss beside the dense run."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import cleave
from cleave.models import gpt
from cleave.compiler.entrance import grouped
from proofs import ALL
from training_support import same_bits, snapshot, take_hashes

COMPRESSORS = ["topk,density=0.05", "threshold,keep=0.05,every=3", "powersgd,rank=2", "int8", "1bit"]


def compiled(compress=None, ranks=2, mesh=None, **options):
    torch.manual_seed(0)
    model = gpt(hidden=32, heads=2, layers=1, seq=16, vocab=64)
    ids = torch.randint(0, 64, (8, 16))
    return cleave.compile(model, (ids, ids), optimizer=cleave.optim.AdamW(lr=1e-2),
                          mesh=mesh or {"dp": ranks}, check="off",
                          **grouped(compress=compress, **options))


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 64, (8, 16), generator=generator) for _ in range(count)]


def train(step, count, seed=1):
    return [float(step(ids, ids)) for ids in batches(count, seed)]


ALL_SENT = ["topk,density=1,smallest=0", "threshold,keep=1,every=1,smallest=0"]


@pytest.mark.parametrize("compress", ALL_SENT)
def test_all_elements_of_two_workers_are_the_dense_sum(compress):
    """Two terms have one sum, whatever the order: the same bits."""
    dense, all_sent = compiled(), compiled(compress)
    assert train(dense, 4) == train(all_sent, 4)
    found, expected = snapshot(all_sent), snapshot(dense)
    kept = {key: value for key, value in found[1].items() if key[1] == "residual"}
    assert kept and not any(value.any() for value in kept.values())
    assert same_bits((found[0], {key: found[1][key] for key in expected[1]}, found[2]), expected)


class Products(torch.nn.Module):
    """The gradient of its matrix is `t.T @ x / samples`, whatever the matrix is."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(24, 40))

    def forward(self, x, t):
        return (x @ self.weight.T * t).sum() / len(x)


def integers(count):
    """Batches of small integers."""
    generator = torch.Generator().manual_seed(3)
    return [[torch.randint(-4, 5, (16, size), generator=generator).float() for size in (40, 24)]
            for _ in range(count)]


def products(compress, ranks, clip=None):
    """A rate of 1 subtracts what was sent from a matrix of zeros."""
    return cleave.compile(Products(), tuple(integers(1)[0]), mesh={"dp": ranks},
                          lossy=cleave.Lossy(compress=compress),
                          optimizer=cleave.SGD(lr=1.0, max_grad_norm=clip), check="off")


@pytest.mark.parametrize("compress", ALL_SENT)
def test_all_elements_of_four_workers_are_the_dense_sum(compress):
    """Ranks add up halves, (0 + 2) + (1 + 3), the compressor one worker after the other: what each
    order rounds to differs, but small integers are not rounded."""
    dense, all_sent = products(None, 4), products(compress, 4)
    for given in integers(3):
        assert float(dense(*given)) == float(all_sent(*given))
        assert dense.state_dict()["weight"].equal(all_sent.state_dict()["weight"])
    left, = residuals(all_sent).values()
    assert dense.state_dict()["weight"].any() and not left.any()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("compress", ["topk,density=0.05", "threshold,keep=0.05,every=2"])
def test_no_bit_is_lost(compress, ranks):
    """Gradients of small integers, over a power of two samples: what was sent and what is left are
    all gradients, without any rounding."""
    given, step = integers(5), products(compress + ",smallest=0", ranks)
    wanted = torch.zeros(24, 40, dtype=torch.float64)
    for x, t in given:
        step(x, t)
        wanted += t.double().T @ x.double() / len(x)
        sent = -step.state_dict()["weight"].double()
        left, = residuals(step).values()
        assert left.shape[0] == ranks and sent.any() and not sent.equal(wanted)
        assert (sent + left.sum(0)).equal(wanted)


@pytest.mark.parametrize("compress", [*ALL_SENT, "powersgd,rank=2"])
@pytest.mark.parametrize("clip", [1e6, 0.125])
def test_norms_are_those_of_sums(compress, clip):
    """What is subtracted is the decompressed gradient, or this with the norm of the clip."""
    step, before = products(compress, 2, clip), torch.zeros(24, 40, dtype=torch.float64)
    for x, t in integers(3):
        loss = step(x, t)
        after = step.state_dict()["weight"].double()
        applied, before = float((before - after).norm()), after
        dense = float((t.double().T @ x.double() / len(x)).norm())
        assert loss.grad_norm > 2 * 0.125
        assert applied == pytest.approx(min(loss.grad_norm, clip), rel=1e-5)
        # A sum of low rank has another norm.
        assert (loss.grad_norm == pytest.approx(dense, rel=1e-5)) == ("=1" in compress)


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_resumed_steps_have_the_same_bits(compress, tmp_path):
    first = compiled(compress)
    train(first, 3)
    first.save(tmp_path / "state")
    more = train(first, 3, seed=2)
    again = compiled(compress)
    again.load(tmp_path / "state")
    assert train(again, 3, seed=2) == more
    assert same_bits(snapshot(again), snapshot(first))


OPTIONS = [dict(micro_batches=2), dict(plan="zero1"), dict(precision="bf16"),
           dict(precision="fp16")]


@pytest.mark.parametrize("compress, options", [
    (compress, options) for i, compress in enumerate(COMPRESSORS)
    for j, options in enumerate(OPTIONS) if ALL or i % 4 == j], ids=str)
def test_losses_fall(compress, options):
    """On one batch; skipped steps of fp16 do not harm the residual."""
    step = compiled(compress, **options)
    ids = batches(1)[0]
    losses = [float(step(ids, ids)) for _ in range(20)]
    finite = [loss for loss in losses if np.isfinite(loss)]
    assert len(finite) >= 15 and finite[-1] < finite[0] - 0.5
    for key, value in snapshot(step)[1].items():
        assert torch.isfinite(value).all(), key


def test_a_checkpoint_is_read_with_other_axes(tmp_path):
    """What a worker keeps is sharded as its parameter is."""
    first = compiled("powersgd,rank=2,min_rate=1.2")
    train(first, 3)
    first.save(tmp_path / "state")
    more = train(first, 3, seed=2)
    torch.manual_seed(0)
    model = gpt(hidden=32, heads=2, layers=1, seq=16, vocab=64)
    ids = torch.randint(0, 64, (8, 16))
    again = cleave.compile(model, (ids, ids), optimizer=cleave.optim.AdamW(lr=1e-2),
                           mesh={"dp": 2, "tp": 2}, plan="megatron",
                           lossy=cleave.Lossy(compress="powersgd,rank=2,min_rate=1.2"), check="off")
    again.load(tmp_path / "state")
    assert train(again, 3, seed=2) == pytest.approx(more, rel=1e-4)


def residuals(step, slot="residual"):
    return {key[0]: value.double() for key, value in snapshot(step)[1].items() if key[1] == slot}


@pytest.mark.parametrize("compress", COMPRESSORS)
@pytest.mark.parametrize("ranks, others", [(4, 2), (2, 4)])
def test_other_workers_share_what_was_kept(compress, ranks, others, tmp_path):
    """The sum of all residuals stays, and so what training has still to be told."""
    first, again = compiled(compress, ranks), compiled(compress, others)
    train(first, 3)
    first.save(tmp_path / "state")
    train(again, 2, seed=5)
    again.load(tmp_path / "state")
    kept = residuals(first)
    assert kept and any(value.any() for value in kept.values())
    for name, value in residuals(again).items():
        share = (kept[name].sum(0) / others).float().double()
        assert all(worker.equal(share) for worker in value), name
    owned = residuals(first, "owner_residual")
    assert bool(owned) == (compress.split(",")[0] in ("int8", "1bit"))
    for name, value in residuals(again, "owner_residual").items():
        count = snapshot(again)[1][name, "exp_avg"].numel()
        assert value.ravel()[:count].equal(owned[name].ravel()[:count])
        assert not value.ravel()[count:].any()
    losses = train(again, 3, seed=2)
    assert losses == pytest.approx(train(first, 3, seed=2), rel=0.05)


@pytest.mark.parametrize("nodes, ranks", [(2, 4), (4, 2), (2, 1)])
def test_other_nodes_share_what_was_kept(nodes, ranks, tmp_path):
    """With other ranks in a node the pieces of a tensor are others; the sum is the same."""
    options = dict(compress="topk,density=0.05", compress_over="node", plan="dp(node),dp")
    first = compiled(mesh={"node": 2, "dp": 2}, **options)
    again = compiled(mesh={"node": nodes, "dp": ranks}, **options)
    train(first, 3)
    first.save(tmp_path / "state")
    again.load(tmp_path / "state")
    kept, taken = residuals(first), residuals(again)
    assert kept.keys() == taken.keys() and any(value.any() for value in kept.values())
    for name, value in taken.items():
        count = snapshot(again)[1][name, "exp_avg"].numel()
        share = (kept[name].sum(0).ravel()[:count] / nodes).float().double()
        assert all(worker.ravel()[:count].equal(share) for worker in value), name
        assert not value.reshape(nodes, -1)[:, count:].any()
    losses = train(again, 3, seed=2)
    assert losses == pytest.approx(train(first, 3, seed=2), rel=0.05)


def test_owners_of_another_model_are_refused(tmp_path):
    """A file with fewer elements than a tensor has changes nothing."""
    first = compiled("int8")
    train(first, 1)
    first.save(tmp_path / "state")
    path, = (tmp_path / "state").glob("*optimizer*.safetensors")
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(".owner_residual"))
    tensors[name] = tensors[name][:, :-1].contiguous()
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(tensors, path, metadata)
    take_hashes(path.parent)
    again = compiled("int8", ranks=4)
    before = snapshot(again)
    with pytest.raises(ValueError, match="owner_residual' is F32 .* in the file, but F32"):
        again.load(tmp_path / "state")
    assert same_bits(snapshot(again), before)


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_a_dense_run_goes_on_compressed(compress, tmp_path):
    """What compression keeps begins as zero; the next loss is that of the dense run."""
    dense = compiled()
    train(dense, 3)
    dense.save(tmp_path / "state")
    step = compiled(compress)
    train(step, 2, seed=5)
    with pytest.warns(UserWarning, match="has no state of compression, which begins as zero"):
        step.load(tmp_path / "state")
    optimizer = snapshot(dense)[1]
    for key, value in snapshot(step)[1].items():
        assert value.equal(optimizer[key]) if key in optimizer else not value.any(), key
    losses = train(step, 3, seed=2)
    expected = train(dense, 3, seed=2)
    assert losses[0] == expected[0] and losses == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("options, error, message", [
    (dict(compress=""), ValueError, "compress: unknown compression ''"),
    (dict(compress=4), TypeError, "compress is a text, not 4"),
    (dict(prune=""), ValueError, "'' is neither 2:4 nor the share"),
    (dict(prune=4), ValueError, "must be above 0 and below 1, got 4"),
    (dict(quantize=8), TypeError, "quantize is a text, not 8"),
    (dict(compress_over="node"), ValueError, "compress_over needs compress"),
    (dict(compress="topk,density=1", compress_over=1), TypeError, "compress_over is a text, not 1"),
])
def test_options_that_are_no_text(options, error, message):
    with pytest.raises(error, match=message):
        compiled(**options)


def test_techniques_together():
    """Compressed sums, of which updates are a step late, of pruned weights; a share is a number."""
    step = compiled("powersgd,rank=4", ranks=4, update_delay=1, prune=0.5)
    assert all(np.isfinite(loss) for loss in train(step, 3))
    pruned = [value for name, value in step.state_dict().items() if name.endswith("query.weight")]
    assert pruned and all((value == 0).double().mean() == 0.5 for value in pruned)
    compiled("powersgd,rank=4", ranks=4, update_delay=1, prune="2:4")


def test_a_part_of_what_was_kept_is_refused(tmp_path):
    first = compiled("int8")
    train(first, 1)
    first.save(tmp_path / "state")
    path, = (tmp_path / "state").glob("*optimizer*.safetensors")
    tensors = load_file(path)
    gone = next(name for name in tensors if name.endswith(".residual"))
    del tensors[gone]
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(tensors, path, metadata)
    take_hashes(path.parent)
    with pytest.raises(ValueError, match=f"missing in the file: '{gone}'"):
        compiled("int8").load(tmp_path / "state")


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_a_skipped_step_leaves_what_was_kept(compress):
    """Its gradients overflow in f16: all state has the bits of before."""
    step = compiled(compress, precision="fp16", loss_scale=cleave.LossScale(init=2.0**32))
    skipped = made = 0
    for ids in batches(40):
        before = residuals(step)
        if step(ids, ids).skipped:
            skipped += 1
            assert all(value.equal(before[name]) for name, value in residuals(step).items())
        elif made == 3:
            break
        else:
            made += 1
            assert any(not value.equal(before[name]) for name, value in residuals(step).items())
    assert skipped > 3 and made == 3
