"""Compares mixtures of experts with PyTorch and with dense models.

`layers`: SwiGLU experts of `--hidden` features, of which each has 4, 32 or 256 rows, in f32 and bf16,
forward and backward with the gradients of rows and weights, and an update by SGD. Beside Cleave's
step there are those of PyTorch by `grouped_mm`, by `bmm` and by a loop over experts; all begin with
rows in any order and f32 weights, which bf16 rounds in each step.

`models`: a step of a small mixture, by AdamW, beside that of a dense model whose feed-forward part
has as many active features, with 2 of 8 experts and 8 of 64.

All steps run in this process, one of each in a round, on one thread: figures are medians of CPU time,
which other processes hardly change. Results are printed as JSON lines.
"""

import argparse
import sys

import harness

sys.path.insert(0, str(harness.ROOT / "python"))

import json  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import cleave  # noqa: E402
import cleave.models  # noqa: E402
from cleave import moe  # noqa: E402

#: Experts of a model, those of a token, and the most of a dense model's time.
MODELS = [(8, 2, 1.25), (64, 8, 1.5)]


class Layer(nn.Module):
    """SwiGLU experts of rows, which are a parameter so that they have a gradient: of the expert of
    each row and factors of the result, both [rows, ...], their sums of products."""

    def __init__(self, rows, experts, hidden, inner):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Parameter(torch.randn(rows, hidden))
        self.up = nn.Parameter(torch.randn(experts, 2 * inner, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, hidden, inner) * 0.02)

    def forward(self, index, factors):
        gate, up = moe.grouped_linear(self.rows, self.up, index, transpose=True).chunk(2, -1)
        y = moe.grouped_linear(F.silu(gate) * up, self.down, index, transpose=True)
        return (y * factors).sum()


def by_grouped_mm(x, weight, sizes):
    offsets = sizes.cumsum(0).to(torch.int32)
    return F.grouped_mm(x, weight.transpose(1, 2), offs=offsets)


def by_bmm(x, weight, sizes):
    return torch.bmm(x.unflatten(0, (len(sizes), -1)), weight.transpose(1, 2)).flatten(0, 1)


def by_loop(x, weight, sizes):
    return torch.cat([F.linear(rows, own) for rows, own in zip(x.split(sizes.tolist()), weight)])


PEERS = {"grouped_mm": by_grouped_mm, "bmm": by_bmm, "loop": by_loop}


class Sorted(Layer):
    """The same by operations of PyTorch on sorted rows, in a type."""

    def __init__(self, product, dtype, *sizes):
        super().__init__(*sizes)
        self.product, self.dtype = product, dtype

    def forward(self, index, factors):
        rows, up, down = (p.to(self.dtype) for p in (self.rows, self.up, self.down))
        order = index.argsort(stable=True)
        sizes = torch.bincount(index, minlength=len(up))
        gate, other = self.product(rows[order], up, sizes).chunk(2, -1)
        y = self.product(F.silu(gate) * other, down, sizes)
        return (y[order.argsort()].float() * factors).sum()


def eager_step(module, optimizer, *batch):
    optimizer.zero_grad()
    loss = module(*batch)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def compiled(module, batch, optimizer, precision="f32"):
    # PyTorch does not ask whether gradients are finite.
    return cleave.compile(module, batch, optimizer=optimizer, precision=precision, check="off",
                          numerics=cleave.Numerics(check_finite="off"),
                          target=cleave.Target("cpu", threads=1))


def layer_case(precision, each, options):
    sizes = (options.experts * each, options.experts, options.hidden, options.inner)
    generator = torch.Generator().manual_seed(1)
    index = torch.arange(options.experts).repeat_interleave(each)
    batch = (index[torch.randperm(len(index), generator=generator)],
             torch.randn(len(index), options.hidden, generator=generator))
    # Rates of 0: weights of all steps stay the same, and so do losses.
    step = compiled(Layer(*sizes), batch, cleave.SGD(lr=0.0), precision)
    steps = {"cleave": lambda: step(*batch)}
    for name, product in PEERS.items():
        peer = Sorted(product, dict(f32=torch.float32, bf16=torch.bfloat16)[precision], *sizes)
        rule = torch.optim.SGD(peer.parameters(), lr=0.0, fused=True)
        steps[name] = lambda peer=peer, rule=rule: eager_step(peer, rule, *batch)
    medians, losses = harness.measure_cpu(steps, options.warmup, options.steps)
    size = float(batch[1].norm()) * {"f32": 1e-4, "bf16": 1e-2}[precision]
    spread = max(losses.values()) - min(losses.values())
    if spread > size:
        raise SystemExit(f"error: losses differ by {spread}: {losses}")
    best = min(PEERS, key=medians.get)
    return {"case": "layer", "precision": precision, "rows_per_expert": each, "cpu_ms": medians,
            "best_peer": best, "over_best_peer": medians["cleave"] / medians[best]}


def kept_of_rows(experts, choices, inner, options):
    """Bytes by which a mixture's arena is expected to exceed that of the dense model of as many active
    features, in f32: of the other experts weights, gradients and both moments; and in each layer,
    of each row (a choice of a token), 2 hidden beside the dense layer's one: what experts got and
    gave. Both have gate and up of the same features."""
    other = 3 * options.hidden * inner * (experts - choices) * options.layers
    rows = options.batch * options.seq * choices
    return 4 * (4 * other + 2 * rows * options.hidden * options.layers)


def model_case(experts, choices, bound, options):
    inner = options.active // choices
    size = dict(hidden=options.hidden, heads=8, layers=options.layers, seq=options.seq,
                vocab=options.vocab)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(options.vocab, (options.batch, options.seq), generator=generator)
    steps = {}
    for name, family, own in (
            ("dense", "llama", dict(ffn=options.active)),
            ("mixture", "mixtral", dict(ffn=inner, experts=experts, choices=choices, balance=0.0))):
        torch.manual_seed(0)
        steps[name] = compiled(cleave.models.FAMILIES[family](**size, **own), (ids, ids),
                               cleave.AdamW(lr=1e-4))
    medians, losses = harness.measure_cpu(
        {name: lambda step=step: step(ids, ids) for name, step in steps.items()}, options.warmup,
        options.steps)
    arenas = {name: step.report()["memory"]["arena"] for name, step in steps.items()}
    form = arenas["dense"] + kept_of_rows(experts, choices, inner, options)
    return {"case": "model", "experts": experts, "choices": choices, "cpu_ms": medians,
            "breakdown_ms": {name: step.timings() for name, step in steps.items()},
            "losses": losses, "over_dense": medians["mixture"] / medians["dense"], "bound": bound,
            "arena": arenas, "arena_form": form, "arena_over_form": arenas["mixture"] / form}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["layers", "models"], help="run this part only")
    parser.add_argument("--precision", nargs="+", default=["f32", "bf16"])
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 32, 256])
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--inner", type=int, default=1024, help="inner features of an expert")
    parser.add_argument("--active", type=int, default=2048, help="inner features of a token")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=7)
    options = harness.parse(parser, rows=[4], experts=4, hidden=64, inner=64, active=128, layers=1,
                            vocab=96, seq=16, batch=2, warmup=1, steps=1)
    torch.set_num_threads(1)
    show = lambda case: print(json.dumps(case), flush=True)
    if options.part != "models":
        for precision in options.precision:
            for each in options.rows:
                show(layer_case(precision, each, options))
    if options.part != "layers":
        for model in MODELS:
            show(model_case(*model, options))


if __name__ == "__main__":
    main()
