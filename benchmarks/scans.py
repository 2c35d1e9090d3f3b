"""Compares layers whose cost is linear in the length with PyTorch, and with themselves at half of it.

A step, by SGD, of one layer of the transformers library's Mamba, Mamba-2 and Qwen3-Next (the gated
delta rule), at `--seq` positions and at twice as many; and at a quarter of them beside the library's
own code in eager PyTorch, which for Mamba runs position by position.

All steps run in this process, one of each in a round, on one thread: figures are medians of CPU time,
which other processes hardly change. Results are printed as JSON lines.
"""

import argparse
import json
import sys

import harness

sys.path.insert(0, str(harness.ROOT / "python"))

import torch  # noqa: E402
import transformers  # noqa: E402

import cleave  # noqa: E402

#: The most time at twice the length, and beside PyTorch.
GROWTH, OVER_TORCH = 2.2, 1.0


def model(name, hidden):
    """A language model of one layer, `hidden` features wide."""
    torch.manual_seed(0)
    size = dict(vocab_size=256, hidden_size=hidden, num_hidden_layers=1, use_cache=False)
    if name == "mamba":
        config = transformers.MambaConfig(**size, state_size=16)
        return transformers.MambaForCausalLM(config).train()
    if name == "mamba2":
        config = transformers.Mamba2Config(**size, state_size=64, head_dim=hidden // 2, num_heads=4,
                                           n_groups=1, chunk_size=128)
        return transformers.Mamba2ForCausalLM(config).train()
    heads = dict(head_dim=64, linear_key_head_dim=64, linear_value_head_dim=64)
    count = dict(num_attention_heads=hidden // 64, num_key_value_heads=hidden // 64,
                 linear_num_key_heads=hidden // 64, linear_num_value_heads=hidden // 64)
    config = transformers.Qwen3NextConfig(
        **size, **heads, **count, layer_types=["linear_attention"], mlp_only_layers=[0],
        intermediate_size=hidden, num_experts=4, num_experts_per_tok=2)
    return transformers.Qwen3NextForCausalLM(config).train()


def tokens(length):
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(256, (1, length), generator=generator)
    return {"input_ids": ids, "labels": ids}


def compiled(name, length, options):
    step = cleave.compile(model(name, options.hidden), tokens(length), check="off",
                          optimizer=cleave.SGD(lr=0.0), target=cleave.Target("cpu", threads=1),
                          numerics=cleave.Numerics(check_finite="off"))
    return lambda: step(**tokens(length))


def eager(name, length, options):
    own = model(name, options.hidden)
    rule = torch.optim.SGD(own.parameters(), lr=0.0)

    def step():
        rule.zero_grad()
        loss = own(**tokens(length)).loss
        loss.backward()
        rule.step()
        return float(loss.detach())

    return step


def case(name, options):
    quarter = options.seq // 4
    steps = {f"cleave {length}": compiled(name, length, options)
             for length in (quarter, options.seq, 2 * options.seq)}
    steps[f"torch {quarter}"] = eager(name, quarter, options)
    medians, losses = harness.measure_cpu(steps, options.warmup, options.steps)
    own, short, long, peer = medians.values()
    off = abs(losses[f"cleave {quarter}"] - losses[f"torch {quarter}"])
    if off > 1e-3:
        raise SystemExit(f"error: losses of {name} differ by {off}: {losses}")
    return {"model": name, "cpu_ms": medians, "growth": long / short, "growth_bound": GROWTH,
            "over_torch": own / peer, "over_torch_bound": OVER_TORCH}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["mamba", "mamba2", "qwen3_next"])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    options = harness.parse(parser, hidden=64, seq=64, warmup=1, steps=1)
    torch.set_num_threads(1)
    for name in options.model:
        print(json.dumps(case(name, options)), flush=True)


if __name__ == "__main__":
    main()
