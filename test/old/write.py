#!/usr/bin/env python3
# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Writes the files of this folder with the version whose package and tools it finds:

    git worktree add /tmp/old COMMIT && make -C /tmp/old build
    CLEAVE_BUILD_DIR=/tmp/old/build PYTHONPATH=/tmp/old/python \\
        /tmp/old/.venv/bin/python test/old/write.py COMMIT

COMMIT.tar.xz has the files, COMMIT.json the numbers that the version computed from them.
"""

import io
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).parent.resolve()
sys.path.append(str(HERE.parent / "python" / "support"))

import numpy  # noqa: E402
import tokenizers  # noqa: E402

import cleave  # noqa: E402
from cleave.trace import trace  # noqa: E402
from old_files import (ARTIFACTS, CASES, CPU, FLAGS, MODELS, STEPS, TEXTS, batch, model, run, step,  # noqa: E402
                       summary, train)

PHASES = ("step", "placed", "local", "scheduled", "executable")


def losses(log):
    """None for a step that was skipped."""
    return [json.loads(line).get("loss") for line in open(log)]


def rounded(value):
    """Floats with as many digits as tests compare."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def write_models():
    numpy.random.default_rng(0).integers(0, 16, 512).astype(numpy.uint16).tofile("tokens.bin")
    for name in MODELS:
        text = trace(model(name), batch()).mlir
        # Lines of the source are no part of the program.
        text = re.sub(r" loc\(.*\)$|^#loc.*\n", "", text, flags=re.M)
        pathlib.Path(f"{name}.mlir").write_text(text)


def write_checkpoints(numbers):
    for name, case in CASES.items():
        artifact = f"{name}.so"
        run("cleave-compile", f"{case.model}.mlir", *case.flags, *CPU, "--threads=1", "-o", artifact)
        run("cleave-run", f"./{artifact}", *FLAGS, "--random-init", "--stop-at=3",
            "--save-every=3", f"--save-dir=checkpoints/{name}")
        run("cleave-run", f"./{artifact}", *FLAGS, f"--resume=checkpoints/{name}",
            "--save-every=6", "--save-dir=end", "--log=log")
        numbers[name] = {"losses": losses("log"), "sums": summary("end/step-6")}
        shutil.rmtree("end")
        os.remove("log")
        if name not in ARTIFACTS:
            os.remove(artifact)


def write_cuda(numbers):
    """An artifact for a GPU, without its code, which is large: the table is what is read."""
    libraries = os.environ["CLEAVE_BUILD_DIR"] + "/fake_cuda"
    run("cleave-compile", "tiny.mlir", "--target=cuda", "-o", "cuda.so",
        CLEAVE_CUDA_LIBRARIES=libraries)
    data = bytearray(pathlib.Path("cuda.so").read_bytes())
    symbols = subprocess.run(["readelf", "-sW", "cuda.so"], capture_output=True, text=True).stdout
    for value, size in re.findall(r"(\w+) +(\w+) OBJECT .* cleave_(?:image|ptx)\n", symbols):
        start, count = int(value, 16), int(size, 0)
        data[start:start + count] = bytes(count)
    pathlib.Path("cuda.so").write_bytes(data)


def write_steps(numbers):
    for name in STEPS:
        made = step(name)
        train(made, 1)
        made.data_position = 12
        made.save(f"steps/{name}")
        numbers[f"step {name}"] = {"losses": train(made, 4)}
        made.save("end")
        numbers[f"step {name}"]["sums"] = summary("end")
        shutil.rmtree("end")


def write_texts(numbers):
    """Files that options name, and rates and times that are measured."""
    for name, (text, flags) in TEXTS.items():
        pathlib.Path(name).write_text(text)
        run("cleave-compile", "tiny.mlir", *flags.split(), *CPU, "--threads=1", "-o", "a.so")
        run("cleave-run", "./a.so", *FLAGS, "--resume=checkpoints/f32", "--log=log")
        numbers[name] = {"losses": losses("log")}
        os.remove("log")
    run("cleave-compile", "tiny.mlir", "--threads=1", "--measure-machine=machine.json", *CPU)
    pipeline = ["--mesh=pp=2", "--micro-batches=2"]
    run("cleave-compile", "tiny.mlir", *pipeline, "--threads=1", *CPU, "-o", "a.so")
    run("cleave-run", "./a.so", *FLAGS, "--random-init", "--trace=trace.json", "--trace-steps=1")
    run("cleave-run", "./pipeline.so", *FLAGS, "--random-init", CLEAVE_TUNING="tuning.json")
    os.remove("a.so")


def write_ir(numbers):
    """The program after each phase, of a pipeline of shards."""
    for phase in PHASES:
        run("cleave-compile", "tiny.mlir", "--mesh=pp=2,dp=2", "--recipe=zero2",
            "--micro-batches=2", "--clip=1", f"--emit={phase}", "-o", f"{phase}.mlir")


def write_tokens(numbers):
    """Text that is stored as tokens, in a folder of its own."""
    pathlib.Path("text.txt").write_text("abcdefgh " * 60)
    letters = {letter: i for i, letter in enumerate("abcdefgh ?")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.save("tokenizer.json", pretty=False)
    run("cleave-run", "./zero1.so", "--data=text.txt", "--tokenizer=tokenizer.json", *FLAGS[1:],
        "--resume=checkpoints/zero1", "--accept-changes", "--log=log",
        XDG_CACHE_HOME=os.path.abspath("cache"))
    numbers["tokens"] = {"losses": losses("log")}
    os.remove("log")


def write_store(numbers):
    """A database with a checkpoint, and rows of which a feed has used some."""
    store = cleave.feed.Store("store.db")
    numbers["store"] = {"hash": store.save("steps/dropout")}
    with sqlite3.connect("rows.db") as rows:
        rows.execute("create table rows (id integer primary key, value integer)")
        rows.executemany("insert into rows values (?, ?)", [(i, i * i) for i in range(10)])
    feed = feed_of_rows()
    batches = iter(feed)
    for _ in range(4):
        next(batches)
    numbers["feed"] = {"position": feed.position,
                       "values": [int(v) for _ in range(4) for v in next(batches)["value"]]}


def feed_of_rows():
    return cleave.feed.Feed(cleave.feed.SQLite("rows.db", "select id, value from rows", key="id"),
                            batch=3, shuffle=4, seed=2)


def main():
    commit = sys.argv[1]
    numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_models()
        for write in (write_checkpoints, write_cuda, write_steps, write_texts, write_ir,
                      write_tokens, write_store):
            write(numbers)
        with tarfile.open(HERE / f"{commit}.tar.xz", "w:xz", preset=9) as archive:
            for path in sorted(pathlib.Path(".").rglob("*")):
                if path.is_file():
                    entry = tarfile.TarInfo(str(path))
                    entry.size, entry.mode = path.stat().st_size, 0o755 if path.suffix == ".so" else 0o644
                    archive.addfile(entry, io.BytesIO(path.read_bytes()))
    rows = [f"{json.dumps(name)}: {json.dumps(rounded(value))}" for name, value in numbers.items()]
    (HERE / f"{commit}.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
