# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Makes a folder that tests and times Cleave on a machine with a GPU, where nothing of Cleave is
installed: programs, compiled models, and what the CPU computed with them.

On that machine, `python3 run_bundle.py test`, `bench`, `loss` and `sanitize` print results as JSON
lines and tables, and `all` does them in one call. They need Python and a driver, and a torch of
CUDA 13, whose libraries of NVIDIA they use. A folder of more than 60 MiB, with the files of the
repository, is a failure.
"""

import argparse
import dataclasses
import gzip
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

SMALL = dict(hidden=128, layers=2, heads=4, seq=64, vocab=512, batch=8)
#: With heads of 64 channels.
WIDER = {**SMALL, "hidden": 256, "seq": 128}


@dataclasses.dataclass
class Case:
    """A small model whose losses are compared: the arguments of `cleave.models` and flags of
    cleave-compile, and for each run its name, and its environment on the GPU."""

    name: str
    model: list
    flags: list
    ranks: int = 1
    sizes: dict = dataclasses.field(default_factory=lambda: SMALL)
    runs: dict = dataclasses.field(default_factory=dict)


CASES = [
    Case("gpt-f32", ["gpt"], ["--max-grad-norm=1"]),
    Case("gpt-bf16", ["gpt"], ["--precision=bf16", "--max-grad-norm=1"]),
    Case("gpt-fp16", ["gpt"], ["--precision=fp16"]),
    Case("gpt-dropout", ["gpt", "--dropout=0.1"], ["--precision=bf16"]),
    Case("llama-bf16", ["llama", "--kv-heads=2"], ["--precision=bf16"]),
    Case("mixtral-f32", ["mixtral"], []),
    Case("gpt-offload", ["gpt"], ["--precision=bf16", "--offload=state"]),
    Case("gpt-micro", ["gpt"], ["--micro-batches=4", "--recompute=full"]),
    Case("gpt-zero2", ["gpt"], ["--mesh=dp=2", "--plan=zero2"], 2),
    Case("gpt-zero3", ["gpt"], ["--mesh=dp=4", "--plan=zero3", "--precision=bf16"], 4),
    Case("gpt-sp", ["gpt"], ["--mesh=tp=2", "--plan=megatron-sp"], 2),
    Case("gpt-zb", ["gpt"], ["--mesh=pp=2", "--micro-batches=4", "--schedule=zb-h1"], 2),
    Case("gpt-all", ["gpt"], ["--mesh=dp=2,tp=2,pp=2", "--plan=megatron-sp,zero1",
                              "--micro-batches=2"], 8),
    # Attention by generated kernels, and by cuDNN.
    Case("gpt-bf16-d64", ["gpt"], ["--precision=bf16", "--max-grad-norm=1"], sizes=WIDER,
         runs={"gpt-bf16-d64-kernels": {"CLEAVE_CUDNN": "off"},
               "gpt-bf16-d64-cudnn": {"CLEAVE_CUDNN": "required"}}),
]
#: Those that run under compute-sanitizer.
SANITIZED = ("gpt-f32", "gpt-bf16")
#: Those of --smoke.
QUICK = ("gpt-f32", "gpt-zero2", "gpt-bf16-d64")

GPT2 = dict(hidden=768, layers=12, heads=12, seq=1024, vocab=50304)
F32 = {"f32": ["--residual=f32"]}
#: Timed: name, sizes, samples of a step, micro-batches, and further programs of the same model: what
#: the name has at its end, and flags.
TIMED = [
    ("gpt2-124m", GPT2, 64, 4, {"limit": ["--memory-limit=6700"], "apart": ["--merge-matmuls=off"],
                                **F32}),
    ("gpt2-350m", dict(hidden=1024, layers=24, heads=16, seq=2048, vocab=50304), 16, 4, {}),
    ("gpt2-1.3b", dict(hidden=2048, layers=24, heads=32, seq=2048, vocab=50304), 16, 8, {}),
]
#: Whose losses are compared with PyTorch's: one part, so that each sample weighs the same.
LOSSES = [("gpt2-124m", GPT2, 8, 1, F32)]
TINY = dict(hidden=64, layers=2, heads=2, seq=64, vocab=512)
#: All but this one, and what the repository alone needs.
SCRIPTS = sorted(path.name for path in HERE.glob("*.py")
                 if path.name not in ("bundle.py", "keep_results.py"))
#: Those of two ranks, which two processes compute on one card.
BY_NCCL = ("gpt-zero2", "gpt-sp", "gpt-zb")
#: The most bytes of the folder, with the files of the repository.
MOST_BYTES = 60 << 20
LIBRARIES = ["libgomp.so.1", "libstdc++.so.6"]


def tool(build, name):
    return str(pathlib.Path(build) / "bin" / name)


def write_model(path, family, sizes):
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    subprocess.run([sys.executable, "-m", "cleave.models", *family, *flags, "-o", str(path)],
                   check=True, stdout=subprocess.DEVNULL)


def losses_of(build, artifact, tokens, steps):
    log = artifact.parent / "log"
    log.unlink(missing_ok=True)
    subprocess.run([tool(build, "cleave-run"), artifact, "--random-init", "--data", tokens,
                    f"--steps={steps}", "--lr=1e-3", "--label-shift=0", "--log", log],
                   check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()
            if "loss" in json.loads(line)]


def write_tokens(path, count, vocab):
    """A chain in which each token decides the next one, most of the time."""
    state, tokens = 1, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % (1 << 31)
        tokens.append((tokens[-1] * 7 + 3) % vocab if tokens and state % 8 else state % vocab)
    path.write_bytes(struct.pack(f"<{count}H", *tokens))


def copy_libraries(build, out):
    """The libraries that cleave-run links, but for the C library."""
    linked = subprocess.run(["ldd", tool(build, "cleave-run")], capture_output=True, text=True,
                            check=True).stdout
    for line in linked.splitlines():
        words = line.split()
        if words and words[0] in LIBRARIES and len(words) > 2:
            copy_program(os.path.realpath(words[2]), out / words[0])


def copy_program(source, target):
    """Without symbols, where there is a tool for that."""
    strip = shutil.which("llvm-strip-22") or shutil.which("strip")
    if not strip or subprocess.run([strip, "-o", target, source]).returncode:
        shutil.copy(source, target)


def size_of(folder):
    """Its bytes; ends the process where they are too many to be carried."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    tree = size_of_tree()
    if size + tree > MOST_BYTES:
        sys.exit(f"{folder}: the bundle has {size / 2**20:.1f} MiB, and the repository "
                 f"{tree / 2**20:.1f}, but they may have at most {MOST_BYTES >> 20} together")
    return size


def size_of_tree():
    """The bytes of the files of the repository, which go to the machine too; 0 without git."""
    top = subprocess.run(["git", "rev-parse", "--show-toplevel"], cwd=HERE, capture_output=True,
                         text=True).stdout.strip()
    if not top:
        return 0
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=top, capture_output=True).stdout
    paths = [pathlib.Path(top) / os.fsdecode(name) for name in listed.split(b"\0") if name]
    return sum(path.lstat().st_size for path in paths if path.is_file())


class Bundle:
    """The folder that is made, by the binaries of `build`."""

    def __init__(self, options):
        self.options, self.out = options, pathlib.Path(options.out)
        self.work = pathlib.Path(tempfile.mkdtemp())

    def compile(self, model, artifact, *flags):
        subprocess.run([tool(self.options.build, "cleave-compile"), model, *flags, "-o", artifact],
                       check=True)

    def compile_cuda(self, model, name, *flags):
        """Compressed: most of a program is text."""
        artifact = self.work / "device.so"
        self.compile(model, artifact, *flags, "--target=cuda", f"--arch={self.options.arch}")
        with open(artifact, "rb") as program, \
                gzip.open(self.out / "cases" / f"{name}.so.gz", "wb") as packed:
            shutil.copyfileobj(program, packed)

    def add_case(self, case):
        """The runs of a small model, with the losses of the CPU."""
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        model, native = self.work / "model.mlir", self.work / "native.so"
        write_model(model, case.model, case.sizes)
        self.compile(model, native, *case.flags, "--threads=1")
        self.compile_cuda(model, case.name, *case.flags)
        facts = {"artifact": case.name, "ranks": case.ranks, "steps": self.options.steps,
                 "losses": losses_of(self.options.build, native, self.out / "tokens.bin",
                                     self.options.steps),
                 "bound": 2e-4 if "16" not in " ".join(case.flags) else 2e-2}
        return [{"name": name, "environment": environment, **facts}
                for name, environment in (case.runs or {case.name: {}}).items()]

    def add_gpt(self, prefix, name, sizes, batch, parts, more):
        """Programs that train a GPT in bf16, with what the compiler states of them. PyTorch's step is
        timed once for those that have the same residual stream."""
        model, report = self.work / "model.mlir", self.work / "report.json"
        write_model(model, ["gpt", "--no-logits"], {**sizes, "batch": batch})
        cases = []
        for end, flags in {"": [], **more}.items():
            own = f"{name}-{end}" if end else name
            wide = "--residual=f32" in flags
            print(f"{prefix} {own} ...", file=sys.stderr, flush=True)
            self.compile_cuda(model, f"{prefix}-{own}", "--precision=bf16", "--max-grad-norm=1",
                              f"--micro-batches={parts}", *flags, "--report", report,
                              f"--predict={self.options.predict}")
            facts = json.loads(report.read_text())
            cases.append({"name": own, "artifact": f"{prefix}-{own}", "flags": flags,
                          "residual": "f32" if wide else "16bit",
                          "beside": own if wide else name,
                          **sizes, "batch": batch, "parts": parts,
                          "arena": facts["plan"]["arena_bytes"],
                          "outside": facts["plan"]["outside"],
                          "prediction": facts["prediction"]})
        return cases

    def make(self):
        """Returns the facts about it."""
        options, out = self.options, self.out
        shutil.rmtree(out, ignore_errors=True)
        for folder in ("bin", "lib", "cases"):
            (out / folder).mkdir(parents=True)
        copy_program(tool(options.build, "cleave-run"), out / "bin" / "cleave-run")
        copy_program(pathlib.Path(options.build) / "lib" / "libcleave_cuda.so",
                     out / "lib" / "libcleave_cuda.so")
        copy_libraries(options.build, out / "lib")
        for script in SCRIPTS:
            shutil.copy(HERE / script, out)
        write_tokens(out / "tokens.bin", 200_000, 512)
        timed, losses = TIMED, LOSSES
        if options.smoke:
            timed = [("gpt2-tiny", TINY, 4, 2, {"free": ["--recompute=free"], **F32})]
            losses = [("gpt2-tiny", TINY, 4, 1, {})]
        cases = {
            "test": [run for case in CASES if not options.smoke or case.name in QUICK
                     for run in self.add_case(case)],
            "bench": [own for case in timed for own in self.add_gpt("bench", *case)],
            "loss": [own for case in losses for own in self.add_gpt("loss", *case)]}
        cases["nccl"] = [case for case in cases["test"] if case["name"] in BY_NCCL]
        cases["sanitize"] = [case for case in cases["test"] if case["name"] in SANITIZED]
        (out / "cases.json").write_text(json.dumps(cases, indent=1))
        return {"bundle": str(out), "mib": round(size_of(out) / 2**20, 1),
                "cases": len(cases["test"]), "timed": len(cases["bench"]), "losses": len(cases["loss"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--arch", default="sm_90", help="the architecture of the GPU")
    parser.add_argument("--predict", default="h100", help="the device whose estimates are kept, to "
                        "be held against what is measured: h100, h200 or a100")
    parser.add_argument("--out", default="cuda-bundle", help="the folder to make")
    parser.add_argument("--steps", type=int, default=20, help="of each small model")
    parser.add_argument("--smoke", action="store_true", help="few cases, and small ones to time")
    bundle = Bundle(parser.parse_args())
    try:
        print(json.dumps(bundle.make()))
    finally:
        shutil.rmtree(bundle.work, ignore_errors=True)


if __name__ == "__main__":
    main()
