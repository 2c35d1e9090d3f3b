"""PyTorch as a contestant on two ranks over Gloo, processes of one thread each.

`ddp` splits the samples of transformers' model. `tp` splits the layers of an equal
GPT-2 as DTensors, `tp-sp` also the sequence between them. The loss is that of the
whole batch.
"""

import argparse
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel as tp
from torch.nn import functional as F

import followers
import gpt2
import models
import protocol
import torch_profile

RANKS = 2


def data_parallel(model, ids, rank):
    """The loss of this rank's samples, and what is trained."""
    replica = torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, static_graph=True
    )
    mine = ids.chunk(RANKS)[rank]
    return replica, lambda: replica(input_ids=mine, labels=mine).loss


def split_layers(model, sequence):
    """Splits the layers of a Gpt2, and the sequence between them if asked to."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    between = Shard(1) if sequence else Replicate()
    whole = {"desired_input_layouts": Replicate()}
    block = "blocks.*."
    plan = {
        "tokens": tp.RowwiseParallel(
            input_layouts=Replicate(), output_layouts=between
        ),
        # One input for the three products, so that its gradients are summed
        # before they are reduced.
        block + "attention": tp.PrepareModuleInput(input_layouts=between, **whole),
        block + "attention.query": tp.ColwiseParallel(),
        block + "attention.key": tp.ColwiseParallel(),
        block + "attention.value": tp.ColwiseParallel(),
        block + "attention.out": tp.RowwiseParallel(output_layouts=between),
        block + "mlp.up": tp.ColwiseParallel(input_layouts=between),
        block + "mlp.down": tp.RowwiseParallel(output_layouts=between),
        "head": tp.ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if sequence:
        norms = (block + "norm1", block + "norm2", "norm")
        plan |= dict.fromkeys(norms, tp.SequenceParallel(use_local_output=True))
        plan["positions"] = tp.PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(0)
        )
    tp.parallelize_module(model, mesh, plan)
    model.tie()


def tensor_parallel(model, ids, sequence):
    """The loss of all samples, and what is trained."""
    ours = gpt2.from_transformers(model)
    split_layers(ours, sequence)
    labels = gpt2.next_tokens(ids).flatten()
    return ours, lambda: F.cross_entropy(ours(ids).flatten(0, 1), labels)


def optimizer_for(model):
    """Fused AdamW, which takes DTensors and plain tensors apart."""
    kinds = {True: [], False: []}
    for parameter in model.parameters():
        kinds[isinstance(parameter, DTensor)].append(parameter)
    groups = [{"params": kind} for kind in kinds.values() if kind]
    return torch.optim.AdamW(groups, lr=1e-4, weight_decay=0.1, fused=True)


def connect(options):
    """Starts the other ranks, or joins the first; returns the others."""
    others = []
    if options.rank == 0:
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            store = os.path.join(folder, "store")
            others = [
                followers.Follower(rank, "--store", store) for rank in range(1, RANKS)
            ]
            join(store, 0)
        return others
    followers.end_with(options.leader)
    join(options.store, options.rank)
    return others


def join(store, rank):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
    )
    # Nobody needs the file afterwards.
    dist.barrier()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kind", choices=["ddp", "tp", "tp-sp"], required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rank", type=int, default=0, help="of another rank")
    parser.add_argument("--leader", type=int, help="the process of the first rank")
    parser.add_argument("--store", help="where ranks meet: a file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    others = connect(options)
    model, ids = models.build(options.model, 0.0)
    if options.kind == "ddp":
        model, loss_of = data_parallel(model, ids, options.rank)
    else:
        model, loss_of = tensor_parallel(model, ids, options.kind == "tp-sp")
    forward = torch.compile(loss_of) if options.compile else loss_of
    optimizer = optimizer_for(model)

    def train():
        with tp.loss_parallel():
            loss = forward()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.detach()
        return float(loss.full_tensor() if isinstance(loss, DTensor) else loss)

    def step():
        """The step of all ranks; the mean of their losses."""
        for other in others:
            other.tell("step")
        losses = [train(), *(other.hear()["loss"] for other in others)]
        return sum(losses) / len(losses)

    def profile():
        for other in others:
            other.tell("step")
        kinds = torch_profile.breakdown(train)
        for other in others:
            other.hear()
        return kinds

    def memory():
        for other in others:
            other.tell("quit")
        own = protocol.peak_mib()
        ranks = [own, *(other.hear()["vm_hwm_mib"] for other in others)]
        return {"vm_hwm_mib": sum(ranks), "vm_hwm_mib_per_rank": max(ranks)}

    for other in others:
        other.hear()
    protocol.serve(step, profile, {"torch": torch.__version__}, memory)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
