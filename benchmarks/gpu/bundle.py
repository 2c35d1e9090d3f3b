# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Makes a folder that tests and times Cleave on a machine with a GPU, where nothing of Cleave is
installed: programs, compiled models, and what the processor computed with them.

On that machine, `python3 run_bundle.py test` and `python3 run_bundle.py bench` print their results
as JSON lines. They need Python and a driver; `bench` and NVIDIA's libraries come from a torch of
CUDA 13 there.
"""

import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

#: Small models, whose losses are compared: name, what model, flags of cleave-compile, ranks.
CASES = [
    ("gpt-f32", ["gpt"], ["--clip=1"], 1),
    ("gpt-bf16", ["gpt"], ["--precision=bf16", "--clip=1"], 1),
    ("gpt-fp16", ["gpt"], ["--precision=fp16"], 1),
    ("gpt-dropout", ["gpt", "--dropout=0.1"], ["--precision=bf16"], 1),
    ("llama-bf16", ["llama", "--kv-heads=2"], ["--precision=bf16"], 1),
    ("mixtral-f32", ["mixtral"], [], 1),
    ("gpt-offload", ["gpt"], ["--precision=bf16", "--offload=state"], 1),
    ("gpt-micro", ["gpt"], ["--micro-batches=4", "--recompute=full"], 1),
    ("gpt-zero2", ["gpt"], ["--mesh=dp=2", "--recipe=zero2"], 2),
    ("gpt-zero3", ["gpt"], ["--mesh=dp=4", "--recipe=zero3", "--precision=bf16"], 4),
    ("gpt-sp", ["gpt"], ["--mesh=tp=2", "--recipe=megatron-sp"], 2),
    ("gpt-zb", ["gpt"], ["--mesh=pp=2", "--micro-batches=4", "--schedule=zb-h1"], 2),
    ("gpt-all", ["gpt"], ["--mesh=dp=2,tp=2,pp=2", "--recipe=megatron-sp,zero1",
                          "--micro-batches=2"], 8),
]
#: Timed: name, sizes, samples of a step, micro-batches.
TIMED = [
    ("gpt2-124m", dict(hidden=768, layers=12, heads=12, seq=1024), 64, 4),
    ("gpt2-350m", dict(hidden=1024, layers=24, heads=16, seq=2048), 16, 4),
    ("gpt2-1.3b", dict(hidden=2048, layers=24, heads=32, seq=2048), 16, 8),
]
SMALL = dict(hidden=128, layers=2, heads=4, seq=64, vocab=512, batch=8)
LIBRARIES = ["libgomp.so.1", "libstdc++.so.6"]


def tool(build, name):
    return str(pathlib.Path(build) / "bin" / name)


def write_model(path, family, sizes):
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    subprocess.run([sys.executable, "-m", "cleave.models", *family, *flags, "-o", str(path)],
                   check=True, stdout=subprocess.DEVNULL)


def losses_of(build, artifact, folder, steps):
    log = folder / "log"
    log.unlink(missing_ok=True)
    subprocess.run([tool(build, "cleave-run"), str(artifact), "--random-init", "--data",
                    str(folder / "tokens.bin"), f"--steps={steps}", "--lr=1e-3", "--log", str(log)],
                   check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()
            if "loss" in json.loads(line)]


def write_tokens(path, count, vocab):
    """A chain in which each token decides the next one, most of the time."""
    state, tokens = 1, []
    for i in range(count):
        state = (state * 1103515245 + 12345) % (1 << 31)
        tokens.append((tokens[-1] * 7 + 3) % vocab if tokens and state % 8 else state % vocab)
    path.write_bytes(struct.pack(f"<{count}H", *tokens))


def copy_libraries(build, out):
    """What cleave-run links, but for the C library."""
    linked = subprocess.run(["ldd", tool(build, "cleave-run")], capture_output=True, text=True,
                            check=True).stdout
    for line in linked.splitlines():
        words = line.split()
        if words and words[0] in LIBRARIES and len(words) > 2:
            shutil.copy(os.path.realpath(words[2]), out / words[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--arch", default="sm_90", help="the architecture of the GPU")
    parser.add_argument("--out", default="cuda-bundle", help="the folder to make")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--smoke", action="store_true", help="two cases, and a small one to time")
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    shutil.rmtree(out, ignore_errors=True)
    for folder in ("bin", "lib", "cases"):
        (out / folder).mkdir(parents=True)
    shutil.copy(tool(options.build, "cleave-run"), out / "bin")
    shutil.copy(pathlib.Path(options.build) / "lib" / "libcleave_cuda.so", out / "lib")
    copy_libraries(options.build, out / "lib")
    for script in ("run_bundle.py", "torch_gpt.py"):
        shutil.copy(HERE / script, out)
    write_tokens(out / "tokens.bin", 200_000, 512)
    compiler = [tool(options.build, "cleave-compile")]
    cases, timed = [], []
    for name, family, flags, ranks in CASES[:9:8] if options.smoke else CASES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        model, native = out / "model.mlir", out / "native.so"
        write_model(model, family, SMALL)
        subprocess.run([*compiler, model, *flags, "--threads=1", "-o", native], check=True)
        subprocess.run([*compiler, model, *flags, "--target=cuda", f"--arch={options.arch}", "-o",
                        out / "cases" / f"{name}.so"], check=True)
        cases.append({"name": name, "ranks": ranks, "steps": options.steps,
                      "losses": losses_of(options.build, native, out, options.steps),
                      "bound": 2e-4 if "16" not in " ".join(flags) else 2e-2})
        native.unlink()
    sizes = [("gpt2-tiny", dict(hidden=64, layers=2, heads=2, seq=64), 4, 2)]
    for name, shape, batch, parts in sizes if options.smoke else TIMED:
        print(f"{name} ...", file=sys.stderr, flush=True)
        model = out / "model.mlir"
        vocab = 512 if options.smoke else 50304
        write_model(model, ["gpt"], {**shape, "vocab": vocab, "batch": batch})
        subprocess.run([*compiler, model, "--precision=bf16", "--clip=1",
                        f"--micro-batches={parts}", "--target=cuda", f"--arch={options.arch}",
                        "--report", out / "report.json", "-o", out / "cases" / f"{name}.so"],
                       check=True)
        memory = json.loads((out / "report.json").read_text())["plan"]
        timed.append({"name": name, **shape, "vocab": vocab, "batch": batch, "parts": parts,
                      "arena": memory["arena_bytes"], "outside": memory["outside"]})
    for rest in ("model.mlir", "report.json", "log"):
        (out / rest).unlink(missing_ok=True)
    (out / "cases.json").write_text(json.dumps({"test": cases, "bench": timed}, indent=1))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(json.dumps({"bundle": str(out), "mib": round(size / 2**20, 1), "cases": len(cases),
                      "timed": len(timed)}))


if __name__ == "__main__":
    main()
