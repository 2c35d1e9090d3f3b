# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A demonstration of a minute: trains a small GPT on one device and on meshes of threads.

usage: python -m cleave.demo [--steps N] [--seed N]

The text is the help of Python, read as bytes; where a Python has none, it is the source of this
package. The same random weights are trained on the same batches three times: on one device, on
four devices with data and tensor parallelism, and on four with a pipeline. The exit status is 1
if their losses differ by more than the order of sums in f32 explains.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

#: Relative difference of losses that counts as one: sums in f32 have another order on a mesh, and
#: the updates of AdamW grow what is nearly 0.
TOLERANCE = 2e-3

#: Name, and arguments of `cleave.compile`.
LAYOUTS: list[tuple[str, dict]] = [
    ("one device", {}),
    ("dp=2, tp=2", dict(mesh={"dp": 2, "tp": 2}, plan=["megatron-sp", "zero1"])),
    ("dp=2, pp=2", dict(mesh={"dp": 2, "pp": 2}, pipeline="1f1b")),
]
BATCH, SEQUENCE = 8, 128


def read_text() -> bytes:
    """English prose of this machine, a few hundred kilobytes."""
    try:
        from pydoc_data import topics
        return "\n".join(text for _, text in sorted(topics.topics.items())).encode()
    except ImportError:
        files = sorted(pathlib.Path(__file__).parent.rglob("*.py"))
        return b"\n".join(path.read_bytes() for path in files)


def train(name, options, batches, seed):
    """Compiles and trains; returns the step, and its losses."""
    import torch

    import cleave
    from cleave import models

    torch.manual_seed(seed)
    model = models.gpt(vocab=256, hidden=128, heads=4, layers=4, seq=SEQUENCE)
    start = time.perf_counter()
    step = cleave.compile(model, (batches[0], batches[0]), micro_batches=4,
                          optimizer=cleave.AdamW(lr=2e-3, weight_decay=0.1), **options)
    compiled = time.perf_counter()
    losses = [float(step(ids, ids)) for ids in batches]
    done = time.perf_counter()
    print(f"{name}: compiled in {compiled - start:.1f} s, {len(losses)} steps in "
          f"{done - compiled:.1f} s, {step.memory()['arena'] / 2**20:.1f} MiB of memory a device, "
          f"loss {losses[0]:.3f} to {losses[-1]:.3f}", flush=True)
    return step, losses


def print_losses(losses: dict[str, list[float]]) -> float:
    """A table of losses; returns the largest relative difference from the first column."""
    print("\nstep  " + "".join(f"{name:>14}" for name in losses))
    columns = [*losses.values()]
    count = len(columns[0])
    for i in range(count):
        if i % max(1, count // 8) == 0 or i == count - 1:
            print(f"{i + 1:4}  " + "".join(f"{column[i]:14.6f}" for column in columns))
    return max(abs(one - other) / abs(one)
               for column in columns[1:] for one, other in zip(columns[0], column))


def main(words: list[str] | None = None) -> int:
    described = __doc__ or ""
    parser = argparse.ArgumentParser(
        prog="python -m cleave.demo", description=described.split("usage:")[0],
        epilog=described.split("\n\n", 2)[2], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="updates (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches")
    options = parser.parse_args(words)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    begin = time.perf_counter()
    import torch

    text = torch.frombuffer(bytearray(read_text()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(options.seed)
    batches = []
    for _ in range(options.steps):
        starts = torch.randint(len(text) - SEQUENCE, (BATCH,), generator=generator).tolist()
        batches.append(torch.stack([text[i : i + SEQUENCE] for i in starts]))
    print(f"a GPT of 4 layers and 128 channels, on {len(text):,} bytes of text, "
          f"{options.steps} steps of {BATCH} x {SEQUENCE} bytes in 4 micro-batches\n", flush=True)
    steps, losses = {}, {}
    for name, layout in LAYOUTS:
        steps[name], losses[name] = train(name, layout, batches, options.seed)
    difference = print_losses(losses)
    print(f"\nThe step of {LAYOUTS[1][0]}:\n{steps[LAYOUTS[1][0]].explain()}")
    drawing = [line[1:].strip() for line in steps[LAYOUTS[2][0]].schedule().splitlines()
               if line.startswith(("# predicted", "# position", "# F forward", "#    ")) and
               "busy" not in line]
    print(f"\nThe schedule of {LAYOUTS[2][0]}:\n" + "\n".join(drawing))
    print(f"\nlargest relative difference of losses: {difference:.1e}; "
          f"{time.perf_counter() - begin:.0f} s in all")
    if not difference <= TOLERANCE:
        print(f"error: losses of the layouts differ by more than {TOLERANCE:.0e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
