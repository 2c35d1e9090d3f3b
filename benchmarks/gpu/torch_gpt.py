# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""GPT-2 in PyTorch, for run_bundle.py, and what it asks of torch. Each part prints a line of JSON:

  rates    what this machine reaches: copies on the device, and a product in bf16
  bench    the median time of a training step, and its peak of memory
  loss     the loss of each step, from given weights and tokens
  weights  writes initial weights under Cleave's names of parameters

A step is AdamW with clipping by the norm, dropout 0. The size is a case of cases.json, as JSON."""

import argparse
import functools
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Modes of torch.compile that replay graphs of CUDA.
GRAPHED = ("max-autotune", "reduce-overhead")
#: Steps before those that are timed: they compile, tune, and record graphs.
WARM_UP = 8


class Block(nn.Module):
    """A block, normalised before each part; Q, K and V are one projection."""

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
    """The model of `python -m cleave.models gpt`. `residual` is the type of the residual stream, or
    None for that of the embeddings."""

    def __init__(self, case, residual=None):
        super().__init__()
        width = case["hidden"]
        self.residual = residual
        self.tokens = nn.Embedding(case["vocab"], width)
        self.places = nn.Embedding(case["seq"], width)
        self.blocks = nn.ModuleList(Block(width, case["heads"]) for _ in range(case["layers"]))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        if self.residual is not None:
            x = x.to(self.residual)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def initialize(model):
    """Draws weights on the device: how fast products are depends on the numbers."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)


def read_tokens(path, case):
    """The tokens of one step, from a file of 16-bit integers."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    ids = torch.frombuffer(data, dtype=torch.uint16).long()
    return ids.view(case["batch"], case["seq"]).to(DEVICE)


def next_tokens(ids):
    """Labels of `ids`; the last position has none."""
    return F.pad(ids[:, 1:], (0, 1), value=-100)


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


# Weights ------------------------------------------------------------------------------

#: Layers of a block by Cleave's names; a tuple are the rows of one layer here.
LAYERS = {"norm1": "norm1", "norm2": "norm2", "out": "attention.output",
          "up": "feed_forward.up", "down": "feed_forward.down",
          "qkv": ("attention.query", "attention.key", "attention.value")}


def initial_weights(case, seed=0):
    """Weights as `cleave.models` draws them: normal with deviation 0.02, smaller for the last layer
    of a part; biases 0, norms 1."""
    torch.manual_seed(seed)
    width, layers = case["hidden"], case["layers"]
    weights = {}

    def linear(name, rows, columns, deviation=0.02):
        weights[f"{name}.weight"] = deviation * torch.randn(rows, columns)
        weights[f"{name}.bias"] = torch.zeros(rows)

    def norm(name):
        weights[f"{name}.weight"], weights[f"{name}.bias"] = torch.ones(width), torch.zeros(width)

    weights["tokens.weight"] = 0.02 * torch.randn(case["vocab"], width)
    weights["positions.weight"] = 0.02 * torch.randn(case["seq"], width)
    last = 0.02 / math.sqrt(2 * layers)
    for i in range(layers):
        norm(f"blocks.{i}.norm1")
        for part in ("query", "key", "value"):
            linear(f"blocks.{i}.attention.{part}", width, width)
        linear(f"blocks.{i}.attention.output", width, width, last)
        norm(f"blocks.{i}.norm2")
        linear(f"blocks.{i}.feed_forward.up", 4 * width, width)
        linear(f"blocks.{i}.feed_forward.down", width, 4 * width, last)
    norm("norm")
    return weights


def load(model, weights):
    """Sets the parameters of a Gpt from weights with Cleave's names, all of which are needed."""
    state = {"tokens.weight": weights["tokens.weight"],
             "places.weight": weights["positions.weight"]}
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"] = weights[f"norm.{kind}"]
        for i in range(len(model.blocks)):
            for own, names in LAYERS.items():
                names = (names,) if isinstance(names, str) else names
                state[f"blocks.{i}.{own}.{kind}"] = torch.cat(
                    [weights[f"blocks.{i}.{name}.{kind}"] for name in names])
    model.load_state_dict(state)


# Steps --------------------------------------------------------------------------------


class Trainer:
    """Training of a Gpt; `precision` is bf16 (autocast) or f32 (without TF32), `residual` f32 or
    16bit, `mode` eager or one of torch.compile."""

    def __init__(self, case, mode, precision, residual, rate):
        self.case, self.rate = case, rate
        self.narrow = precision == "bf16"
        torch.set_float32_matmul_precision("high" if self.narrow else "highest")
        torch.manual_seed(0)
        self.model = Gpt(case, torch.bfloat16 if residual == "16bit" else None).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate,
                                           fused=DEVICE == "cuda")
        self.forward = self.model
        if mode != "eager":
            self.forward = torch.compile(self.model, mode="default" if mode == "compile" else mode)
        # Gradients that a graph returns are overwritten when it runs again: those of several
        # micro-batches are added to tensors that no graph has made.
        self.keep = mode in GRAPHED
        if self.keep:
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)

    def step(self, ids, labels, rate=None):
        """The loss, before the update."""
        part = self.case["batch"] // self.case["parts"]
        total = 0.0
        for i in range(self.case["parts"]):
            if self.keep:
                torch.compiler.cudagraph_mark_step_begin()
            own = slice(i * part, (i + 1) * part)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=self.narrow):
                loss = self.forward(ids[own], labels[own]) / self.case["parts"]
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.keep)
        return float(total)


def time_steps(options):
    case = options.case
    trainer = Trainer(case, options.mode, "bf16", options.residual, 3e-4)
    initialize(trainer.model)
    ids = read_tokens(options.tokens, case)
    labels = next_tokens(ids)
    times = []
    for index in range(options.steps + WARM_UP):
        # The time of compiling and tuning does not count; memory of graphs is only seen as they are
        # recorded.
        if index == WARM_UP and DEVICE == "cuda" and not trainer.keep:
            torch.cuda.reset_peak_memory_stats()
        synchronize()
        began = time.perf_counter()
        loss = trainer.step(ids, labels)
        times.append(time.perf_counter() - began)
        if index in (0, WARM_UP - 1):
            print(f"step {index + 1}: {times[-1]:.2f} s", file=sys.stderr, flush=True)
    peak = DEVICE == "cuda"
    return {"ms": 1e3 * statistics.median(times[WARM_UP:]), "loss": loss,
            "allocated": torch.cuda.max_memory_allocated() if peak else None,
            "reserved": torch.cuda.max_memory_reserved() if peak else None}


def train(options):
    from safetensors.torch import load_file
    case = options.case
    trainer = Trainer(case, options.mode, options.precision, options.residual, options.rate)
    load(trainer.model, load_file(options.weights))
    ids = read_tokens(options.tokens, case)
    labels = next_tokens(ids)
    losses = []
    for index in range(options.steps):
        # As cleave-run's --warmup: the first step has rate 0.
        share = min(1.0, index / options.warmup) if options.warmup else 1.0
        losses.append(trainer.step(ids, labels, options.rate * share))
    return {"losses": losses}


def write_weights(options):
    from safetensors.torch import save_file
    weights = initial_weights(options.case)
    save_file(weights, options.weights)
    return {"parameters": sum(weight.numel() for weight in weights.values())}


# Rates --------------------------------------------------------------------------------


def median_seconds(work, times=10):
    """Of one call of `work` on the device, after three others."""
    for _ in range(3):
        work()
    found = []
    for _ in range(times):
        if DEVICE == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
        else:
            began = time.perf_counter()
            work()
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def measure_rates(_):
    # The CPU takes less, so that tests of this end.
    size, side = (2 << 30, 8192) if DEVICE == "cuda" else (16 << 20, 256)
    source = torch.randint(256, (size,), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    copied = 2 * size / median_seconds(functools.partial(target.copy_, source))
    del source, target
    a, b = (torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    product = 2 * side**3 / median_seconds(lambda: torch.mm(a, b, out=c))
    facts = {"copy_gb_per_s": copied / 1e9, "copy_bytes": size, "product_tflops": product / 1e12,
             "product_side": side, "torch": torch.__version__}
    if DEVICE == "cuda":
        facts |= {"cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda}
    return facts


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)

    def add(name, function, *flags):
        part = parts.add_parser(name)
        part.set_defaults(function=function)
        for flag in flags:
            part.add_argument(*flag[0], **flag[1])

    case = (["case"], dict(type=json.loads, help="its sizes, as JSON"))
    mode = (["--mode"], dict(default="compile", help="eager, compile, or a mode of torch.compile"))
    steps = (["--steps"], dict(type=int, default=30))
    residual = (["--residual"], dict(choices=["f32", "16bit"], default="f32",
                                     help="the type of the residual stream"))
    weights = (["--weights"], dict(required=True, help="safetensors, with Cleave's names"))
    add("rates", measure_rates)
    tokens = (["--tokens"], dict(required=True, help="those of one step, in 16 bits"))
    add("bench", time_steps, case, mode, steps, residual, tokens)
    add("weights", write_weights, case, weights)
    add("loss", train, case, mode, steps, residual, weights, tokens,
        (["--precision"], dict(choices=["f32", "bf16"], default="bf16")),
        (["--rate"], dict(type=float, default=3e-4)), (["--warmup"], dict(type=int, default=0)))
    options = parser.parse_args()
    print(json.dumps(options.function(options)))


if __name__ == "__main__":
    main()
