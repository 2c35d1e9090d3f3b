"""PyTorch as a contestant: eager or compiled, fused AdamW, SDPA attention."""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

import torch

import models
import protocol

CONTRACTIONS = ("mm", "addmm", "bmm", "baddbmm", "linear", "mkl", "gemm")


def classify(name):
    """The kind of work a profiler event of this name is."""
    plain = name.split("::")[-1]
    if "scaled_dot_product" in plain or "flash_attention" in plain:
        return "attention"
    if "adam" in plain:
        return "optimizer"
    if plain.lstrip("_") in CONTRACTIONS or "mkl_linear" in plain:
        return "contractions"
    return "row_wise"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, ids = models.build(options.model, options.dropout)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, weight_decay=0.1, fused=True
    )

    def loss_of(ids):
        return model(input_ids=ids, labels=ids).loss

    forward = torch.compile(loss_of) if options.compile else loss_of

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(ids)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    def profile():
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU]
        ) as recorded:
            step()
        kinds = dict.fromkeys(
            ("contractions", "attention", "row_wise", "optimizer"), 0.0
        )
        for event in recorded.key_averages():
            kinds[classify(event.key)] += event.self_cpu_time_total / 1e3
        return kinds

    protocol.serve(step, profile, {"torch": torch.__version__})


if __name__ == "__main__":
    main()
