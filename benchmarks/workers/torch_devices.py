"""The worker of PyTorch on two ranks over Gloo, which are single-threaded processes.

`ddp` shards the batch of the transformers model. `tp` shards the layers of an equal GPT-2 as
DTensors; `tp-sp` also shards the sequence between them. The loss is that of the whole batch.
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

import gpt2
import models
import other_ranks
import protocol
import torch_profile

RANKS = 2


def data_parallel(model, ids, rank):
    """Returns the module to train, and a function that computes the loss of this rank's part of the
    batch."""
    replica = torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, static_graph=True
    )
    mine = ids.chunk(RANKS)[rank]
    return replica, lambda: replica(input_ids=mine, labels=mine).loss


def split_layers(model, sequence):
    """Shards the layers of a Gpt2, and if `sequence` the sequence between them."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    between = Shard(1) if sequence else Replicate()
    whole = {"desired_input_layouts": Replicate()}
    block = "blocks.*."
    plan = {
        "tokens": tp.RowwiseParallel(
            input_layouts=Replicate(), output_layouts=between
        ),
        # The three matrix multiplications share one input, so that its gradients are summed before
        # they are reduced.
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
    """Returns the module to train, and a function that computes the loss of the whole batch."""
    ours = gpt2.from_transformers(model)
    split_layers(ours, sequence)
    labels = gpt2.next_tokens(ids).flatten()
    return ours, lambda: F.cross_entropy(ours(ids).flatten(0, 1), labels)


def optimizer_for(model):
    """Returns fused AdamW, with DTensors and plain tensors in separate groups, as it requires."""
    kinds = {True: [], False: []}
    for parameter in model.parameters():
        kinds[isinstance(parameter, DTensor)].append(parameter)
    groups = [{"params": kind} for kind in kinds.values() if kind]
    return torch.optim.AdamW(groups, lr=1e-4, weight_decay=0.1, fused=True)


def connect(options):
    """Starts the other ranks if this is rank 0, and joins the process group; returns the other
    ranks, which only rank 0 has."""
    others = []
    if options.rank == 0:
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            store = os.path.join(folder, "store")
            others = [
                other_ranks.OtherRank(rank, "--store", store) for rank in range(1, RANKS)
            ]
            join(store, 0)
        return others
    other_ranks.end_with_parent(options.parent)
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
    # The store is not needed after all ranks have joined.
    dist.barrier()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kind", choices=["ddp", "tp", "tp-sp"], required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rank", type=int, default=0, help="the number of another rank")
    parser.add_argument("--parent", type=int, help="the process id of rank 0")
    parser.add_argument("--store", help="the file by which ranks rendezvous")
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
        """Runs a step on all ranks; returns the mean of their losses."""
        for other in others:
            other.send("step")
        losses = [train(), *(other.receive()["loss"] for other in others)]
        return sum(losses) / len(losses)

    def profile():
        for other in others:
            other.send("step")
        kinds = torch_profile.breakdown(train)
        for other in others:
            other.receive()
        return kinds

    def memory():
        for other in others:
            other.send("quit")
        own = protocol.peak_mib()
        ranks = [own, *(other.receive()["vm_hwm_mib"] for other in others)]
        return {"vm_hwm_mib": sum(ranks), "vm_hwm_mib_per_rank": max(ranks)}

    for other in others:
        other.receive()
    protocol.serve(step, profile, {"torch": torch.__version__}, memory)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
