"""The worker of PyTorch: eager or compiled, with fused AdamW and SDPA attention."""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

import torch

import models
import protocol
import torch_profile


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--autocast", action="store_true", help="compute in bf16 by autocast")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, ids = models.build(options.model, options.dropout)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, weight_decay=0.1, fused=True
    )

    def loss_of(ids):
        with torch.autocast("cpu", torch.bfloat16, enabled=options.autocast):
            return model(input_ids=ids, labels=ids).loss

    forward = torch.compile(loss_of) if options.compile else loss_of

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(ids)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    protocol.serve(
        step,
        lambda: torch_profile.breakdown(step),
        {"torch": torch.__version__},
    )


if __name__ == "__main__":
    main()
