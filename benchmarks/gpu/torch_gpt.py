# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A training step of GPT-2 in PyTorch on a GPU: bf16 autocast, fused attention, fused AdamW, clipping
by the norm, dropout 0; a case of run_bundle.py as JSON, the mode (eager, compile, max-autotune) and
the number of steps. Prints the median time of a step and the peak memory as a line of JSON."""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        shape = (*x.shape[:2], self.heads, x.shape[2] // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).chunk(3, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, case):
        super().__init__()
        width = case["hidden"]
        self.tokens = nn.Embedding(case["vocab"], width)
        self.places = nn.Embedding(case["seq"], width)
        self.blocks = nn.ModuleList(Block(width, case["heads"]) for _ in range(case["layers"]))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    case, mode, steps = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Gpt(case).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    step_model = model
    if mode != "eager":
        step_model = torch.compile(model, mode="default" if mode == "compile" else mode)
    part = case["batch"] // case["parts"]
    ids = torch.randint(case["vocab"], (case["batch"], case["seq"]), device=device)
    times = []
    for index in range(steps + 8):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        total = 0.0
        for i in range(case["parts"]):
            own = ids[i * part:(i + 1) * part]
            with torch.autocast(device, torch.bfloat16):
                loss = step_model(own, own.roll(-1, 1)) / case["parts"]
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = float(total)
        if index >= 8:
            times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    print(json.dumps({"ms": 1e3 * statistics.median(times), "peak_bytes": peak, "loss": total,
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()
