"""Trains GPT-2 (124M) for a few steps, by Cleave and by PyTorch, side by side.

The text is whatever prose this machine holds; a byte-pair encoding is trained
on it. Both sides start from the same random weights and see the same batches;
each runs in a process of its own, one after the other.
"""

import argparse
import glob
import gzip
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACES = [
    "/usr/share/common-licenses/*",
    "/usr/share/doc/*/copyright",
    "/usr/share/doc/*/README*",
    "/usr/share/doc/*/NEWS*",
    "/usr/share/doc/*/changelog*.gz",
    "/usr/share/perl/**/*.pod",
]


def gather(limit):
    """Prose found on this machine, up to `limit` characters."""
    texts, size = [], 0
    for place in PLACES:
        for path in sorted(glob.glob(place, recursive=True)):
            try:
                opened = gzip.open if path.endswith(".gz") else open
                with opened(path, "rt", errors="ignore") as file:
                    text = file.read(200_000)
            except OSError:
                continue
            if len(text) < 500:
                continue
            texts.append(text)
            size += len(text)
            if size >= limit:
                return texts
    if size < 100_000:
        raise SystemExit("error: this machine has too little text under /usr/share")
    return texts


def prepare(folder, options):
    """Writes tok.json, tokens.npy and facts about them into `folder`."""
    import numpy as np
    import tokenizers

    texts = gather(options.characters)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=50257,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tok.json"))
    ids = []
    for encoding in tokenizer.encode_batch(texts):
        ids += encoding.ids
    tokens = np.asarray(ids, dtype=np.uint16)
    np.save(folder / "tokens.npy", tokens)
    (folder / "train.txt").write_text("\n".join(texts))
    print(
        f"text: {sum(map(len, texts)):,} characters, {len(tokens):,} tokens, "
        f"{tokenizer.get_vocab_size():,} words in the vocabulary"
    )


def batches(folder, options):
    """The same `steps` batches of token ids for both sides."""
    import numpy as np
    import torch

    tokens = np.load(folder / "tokens.npy")
    generator = np.random.default_rng(0)
    for _ in range(options.steps):
        starts = generator.integers(
            0, len(tokens) - options.sequence, options.batch
        )
        rows = [tokens[s : s + options.sequence].astype(np.int64) for s in starts]
        yield torch.from_numpy(np.stack(rows))


def model_for(options):
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    config.n_layer = options.layers
    return transformers.AutoModelForCausalLM.from_config(config).train()


def say(**facts):
    print(json.dumps(facts), flush=True)


def run_torch(folder, options):
    """The PyTorch side: eager, SDPA, fused AdamW."""
    import torch

    model = model_for(options)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, weight_decay=0.1, fused=True
    )
    for ids in batches(folder, options):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        say(loss=float(loss.detach()), ms=(time.perf_counter() - start) * 1e3)
    say(peak=peak_mib())


def run_cleave(folder, options):
    """The Cleave side: traced from the same module."""
    import cleave

    model = model_for(options)
    data = batches(folder, options)
    first = next(data)
    start = time.perf_counter()
    step = cleave.compile(model, example_inputs={"input_ids": first, "labels": first},
                          optimizer=cleave.AdamW(lr=3e-4, weight_decay=0.1),
                          target=cleave.Target(threads=options.threads))
    del model
    say(compiled=time.perf_counter() - start, arena=step.memory()["arena"])
    for ids in [first, *data]:
        start = time.perf_counter()
        loss = step(ids, ids)
        say(loss=float(loss), ms=(time.perf_counter() - start) * 1e3)
    say(peak=peak_mib())


def peak_mib():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024


def side(name, folder, options):
    """Runs one side in a process of its own; yields what it says."""
    command = [sys.executable, __file__, "--side", name, "--work", str(folder)]
    for flag in ("steps", "batch", "sequence", "threads", "layers"):
        command += [f"--{flag}", str(getattr(options, flag))]
    env = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    env["PYTHONPATH"] = f"{ROOT / 'python'}:{env.get('PYTHONPATH', '')}"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)
    if process.wait():
        raise SystemExit(f"error: the {name} side ended with {process.returncode}")


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build", help="unused; for make")
    parser.add_argument("--work", default=str(ROOT / "out" / "demo"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0))
    )
    parser.add_argument("--characters", type=int, default=4_000_000)
    parser.add_argument("--side", choices=["torch", "cleave"], help=argparse.SUPPRESS)
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args()[0].smoke:
        parser.set_defaults(steps=2, batch=2, sequence=32, layers=1, characters=200_000)
    options = parser.parse_args()
    folder = pathlib.Path(options.work)
    if options.side:
        return {"torch": run_torch, "cleave": run_cleave}[options.side](
            folder, options
        )
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, options)
    results = {}
    for name in ("cleave", "torch"):
        print(f"{name}: {options.steps} steps ...", flush=True)
        results[name] = list(side(name, folder, options))
    losses = {
        name: [r["loss"] for r in said if "loss" in r]
        for name, said in results.items()
    }
    times = {
        name: [r["ms"] for r in said if "ms" in r][3:] or [r["ms"] for r in said if "ms" in r]
        for name, said in results.items()
    }
    peaks = {name: said[-1]["peak"] for name, said in results.items()}
    print(f"{'step':>4} {'Cleave':>12} {'PyTorch':>12} {'difference':>12}")
    for i, (ours, theirs) in enumerate(zip(losses["cleave"], losses["torch"]), 1):
        print(f"{i:4} {ours:12.6f} {theirs:12.6f} {abs(ours - theirs) / theirs:12.1e}")
    compiled = next(r for r in results["cleave"] if "compiled" in r)
    print(f"traced and compiled in {compiled['compiled']:.1f} s")
    print(
        f"step (median, after 3): Cleave {median(times['cleave']):.0f} ms, "
        f"PyTorch {median(times['torch']):.0f} ms"
    )
    print(
        f"peak memory of the process: Cleave {peaks['cleave']:.0f} MiB "
        f"(arena {compiled['arena'] / 2**20:.0f} MiB, known before the run), "
        f"PyTorch {peaks['torch']:.0f} MiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
