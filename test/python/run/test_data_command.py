# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`cleave-run --data-command`: rows that a command writes."""

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time

import numpy
import pytest

from cleave.testing.tools import tool
from proofs import ALL
from rank_runs import TWO, needs_mpi
from run_support import ARTIFACT, TOOL, folder, metrics, pytestmark, wait_until  # noqa: F401

SAME = ["--lr", "0.5", "--threads", "2"]
FLAGS = ["--random-init", "--seed", "5", *SAME]


def tokens():
    return numpy.fromfile("train.bin", dtype=numpy.uint16).astype(int)


def database(path="rows.db", count=60):
    """Documents of different lengths, in an SQLite file; their tokens, joined."""
    parts = numpy.array_split(tokens()[: 40 * count + 5], numpy.cumsum(
        numpy.random.default_rng(0).integers(0, 90, count - 1)))
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, tokens TEXT)")
        connection.executemany("INSERT INTO rows VALUES (?, ?)",
                               [(i, json.dumps(part.tolist())) for i, part in enumerate(parts)])
    return numpy.concatenate(parts)


#: Prints the rows of a query, as the client of the database does.
CLIENT = "import sqlite3; [print(t) for (t,) in sqlite3.connect('rows.db').execute({!r})]"


def command(query="SELECT tokens FROM rows ORDER BY id"):
    return shlex.join([sys.executable, "-c", CLIENT.format(query)])


def run(*args, artifact=ARTIFACT, code=0, start=FLAGS, **settings):
    result = subprocess.run([TOOL, artifact, *start, *map(str, args)], capture_output=True,
                            text=True, timeout=120, **settings)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def losses(path):
    return [line["loss"] for line in metrics(path) if "loss" in line]


@pytest.fixture(autouse=True)
def same_kernels(monkeypatch):
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")


def test_the_bits_of_the_same_rows(folder):  # noqa: F811
    """Losses of cleave-run by rows of a database, whose documents have other lengths, and of a
    step in Python by sequences that NumPy cuts; two epochs and more."""
    import cleave
    import torch
    from process_script import net, token_loss

    joined = database()
    example = torch.zeros(4, 8, dtype=torch.int64)
    step = cleave.compile(net(0), (example, example), token_loss, target=cleave.Target(threads=1),
                          optimizer=cleave.AdamW(lr=1e-2))
    step.save_artifact("net.so")
    step.save("start")
    count = len(joined) // 8
    steps = 2 * count // 4 + 3
    numpy.save("rows.npy", joined[: count * 8].reshape(count, 8))
    rows = numpy.concatenate([numpy.load("rows.npy")] * 3)
    expected = []
    for i in range(0, 4 * steps, 4):
        batch = torch.from_numpy(rows[i : i + 4])
        expected.append(float(step(batch, batch)))
    out = run("--data-command", command(), "--steps", steps, "--lr", "1e-2", "--log", "m",
              "--label-shift", 0,
              artifact="./net.so", start=["--weights", "start/model.safetensors"]).stdout
    assert losses("m") == expected and steps * 4 > 2 * count
    assert (f"data command: an epoch has 60 rows with {len(joined)} tokens, {count} sequences; the "
            f"last {len(joined) % 8} tokens do not fill a sequence and are not used") in out


def test_labels_are_the_next_tokens(folder):  # noqa: F811
    """Sequences share a token then, as those of a file do: one sequence has no order."""
    one = tokens()[:33]
    numpy.save("one.npy", one)
    run("--data", "one.npy", "--steps", 4, "--log", "a")
    run("--data-command", "echo " + " ".join(map(str, one)), "--steps", 4, "--log", "b")
    assert losses("a") == losses("b")


@pytest.mark.parametrize("stop", [3, 7, 19] if ALL else [7])
def test_resumed(folder, stop):  # noqa: F811
    """In the first epoch, or a later one, with the losses of a run that did not stop."""
    joined = database(count=18)
    epoch = (len(joined) - 1) // 32
    assert 3 * 4 < epoch < 7 * 4
    flags = ["--data-command", command(), "--save-every", "100", "--save-dir", "c"]
    run(*flags, "--steps", 24, "--log", "all")
    os.rename("c", "whole")
    run(*flags, "--steps", 24, "--stop-at", stop, "--log", "m")
    out = run(*flags, "--steps", 24, "--log", "m", start=["--resume", "c", *SAME]).stdout
    assert losses("m") == losses("all") and len(losses("m")) == 24
    used = 4 * stop
    assert (f"reading the {used % epoch} sequences of epoch {used // epoch} that were used before"
            in out)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert open(f"c/step-24/{name}", "rb").read() == open(f"whole/step-24/{name}", "rb").read()


def test_killed_and_resumed(folder):  # noqa: F811
    with open("rows.txt", "w") as out:
        out.write("".join(f"{row.tolist()}\n" for row in numpy.array_split(tokens()[:1000], 25)))
    flags = ["--data-command", "cat rows.txt", "--steps", "4000", "--save-every", "50", "--keep", "2"]
    process = subprocess.Popen([TOOL, ARTIFACT, *FLAGS, *flags, "--log", "m"])
    wait_until(lambda: os.path.exists("checkpoints/step-100"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    saved = max(int(name[5:]) for name in os.listdir("checkpoints") if name[5:].isdigit())
    end = saved + 30
    run(*flags[:3], end, "--log", "again", start=["--resume", "checkpoints", *SAME])
    run(*flags[:3], end, "--log", "whole")
    assert losses("again") == losses("whole")[saved:]


@pytest.mark.parametrize("text, message", [
    ("echo 1 2 3; exit 7", "the data command ended with status 7 after 1 row of epoch 0: "
                           "that is not the end of the data"),
    ("seq 60; seq 60; seq 60; kill -9 $$",
     "the data command was ended by signal 9 after 180 rows of epoch 0"),
    ("no-such-command", "the data command ended with status 127 after 0 rows of epoch 0"),
    ("seq 20", "the data command wrote 20 rows with 20 tokens, which do not fill one sequence of 33"),
    ("echo 1 two 3", "the data command, row 1 of epoch 0: 't' is no token id; a row is a line of "
                     "integers, separated by spaces, tabs or commas"),
    ("seq 50 99; seq 99", "the data command: a token of epoch 0 is 64, but input 'labels' takes 0 to 63"),
])
def test_a_command_that_fails(folder, text, message):  # noqa: F811
    result = run("--data-command", text, "--steps", 3, code=1)
    assert message in result.stderr.splitlines()[-1]


def test_a_query_that_fails_half_way(folder):  # noqa: F811
    """Is no end of the data: steps before it stay, and are saved; the run is resumed when the
    reason is gone."""
    database()
    joined = "SELECT tokens FROM rows ORDER BY id"
    fails = ("SELECT CASE id WHEN 50 THEN abs(-9223372036854775807 - 1) ELSE tokens END FROM rows "
             "ORDER BY id")
    flags = ["--steps", "30", "--save-every", "100", "--log", "m"]
    result = run("--data-command", command(fails), *flags, code=1)
    assert "integer overflow" in result.stderr
    # This client computes a row before it returns the one before.
    assert re.search("the data command ended with status 1 after (49|50) rows of epoch 0: ",
                     result.stderr)
    done = len(losses("m"))
    assert 5 < done < 30 and os.listdir("checkpoints") == [f"step-{done}"]
    out = run("--data-command", command(joined), *flags,
              start=["--resume", "checkpoints", *SAME]).stdout
    assert "data_command: " in out
    run("--data-command", command(joined), "--steps", "30", "--log", "whole")
    assert losses("m") == losses("whole")


def test_a_batch_that_was_refused_is_read_again(folder):  # noqa: F811
    """It was read, and not trained on: the checkpoint is that before it."""
    rows = [" ".join(map(str, row)) + "\n" for row in tokens()[:1200].reshape(40, 30)]
    open("good.txt", "w").write("".join(rows))
    open("bad.txt", "w").write("".join([*rows[:25], "99\n"]) + "1 2 3\n" * 100)
    flags = ["--steps", "12", "--save-every", "100"]
    result = run("--data-command", "cat bad.txt", *flags, "--log", "m", code=1)
    assert "the data command: a token of epoch 0 is 99, but input" in result.stderr
    done = len(losses("m"))
    assert done == (25 * 30 - 1) // 32 // 4 and os.listdir("checkpoints") == [f"step-{done}"]
    run("--data-command", "cat good.txt", *flags, "--log", "m",
        start=["--resume", "checkpoints", *SAME])
    run("--data-command", "cat good.txt", "--steps", 12, "--log", "whole")
    assert losses("m") == losses("whole")


def test_other_rows_are_refused(folder):  # noqa: F811
    database()
    flags = ["--steps", "8", "--save-every", "100"]
    run("--data-command", command(), *flags, "--stop-at", 4)
    resume = ["--resume", "checkpoints", *SAME]
    other = command("SELECT tokens FROM rows ORDER BY id DESC")
    few = command("SELECT tokens FROM rows ORDER BY id LIMIT 10")
    result = run("--data-command", other, *flags, code=1, start=resume)
    assert ("checkpoints/step-4: the first 16 sequences of epoch 0 that the data command writes are "
            "not those that were used before; --accept-changes") in result.stderr
    result = run("--data-command", few, *flags, code=1, start=resume)
    assert "of which 16 were used before" in result.stderr
    result = run("--data", "train.bin", *flags, code=1, start=resume)
    assert "the run had other data (of the command " in result.stderr
    run("--data-command", other, *flags, start=[*resume, "--accept-changes"])


def test_a_run_of_a_file_goes_on_by_a_command(folder):  # noqa: F811
    flags = ["--steps", "8", "--save-every", "100"]
    run("--data", "train.bin", *flags, "--stop-at", 4)
    database()
    result = run("--data-command", command(), *flags, code=1, start=["--resume", "checkpoints"])
    assert ("the run had other data (\"train.bin\", 4000 tokens), and 16 sequences of it were used; "
            "--accept-changes continues with the data command from that number on") in result.stderr
    out = run("--data-command", command(), *flags,
              start=["--resume", "checkpoints", "--accept-changes"]).stdout
    assert "reading the 16 sequences of epoch 0" in out


def test_documents(folder):  # noqa: F811
    """With a tokenizer a row is a JSON string; a line end in it is text."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["red", "green", "blue", "\n"]
    rules = tokenizers.Tokenizer(tokenizers.models.WordLevel(
        {word: i for i, word in enumerate(words)}, unk_token="red"))
    rules.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "removed")
    rules.save("tok.json")
    texts = ["red green", "blue", "", "green \n blue"] * 20
    ids = [words.index(word) for text in texts for word in text.split(" ") if word]
    with open("rows.jsonl", "w") as out:
        out.write("".join(json.dumps(text) + "\n" for text in texts))
    run("--data-command", "cat rows.jsonl", "--tokenizer", "tok.json", "--steps", 3, "--log", "a")
    run("--data-command", "echo " + " ".join(map(str, ids)), "--steps", 3, "--log", "b")
    assert losses("a") == losses("b")
    for text, message in [
            ("cat rows.jsonl; exit 3", "ended with status 3 after 80 rows"),
            ("head -2 rows.jsonl; echo red", "row 3 of epoch 0: with --tokenizer a row is a document "
                                             "as a JSON string"),
            ("echo 17", "row 1 of epoch 0: with --tokenizer a row is a document as a JSON string")]:
        steps = 1 if "exit" not in text else 9
        result = run("--data-command", text, "--tokenizer", "tok.json", "--steps", steps, code=1)
        assert message in result.stderr
    result = run("--data-command", "cat rows.jsonl", "--tokenizer", "rows.jsonl", code=1)
    assert "cannot read the tokenizer rows.jsonl" in result.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_while_the_command_writes_nothing(folder, name):  # noqa: F811
    """The run ends, saves, and leaves no process."""
    number = getattr(signal, name)
    text = "seq -s ' ' 1 63; seq -s ' ' 1 63; seq -s ' ' 1 63; exec sleep 4242"
    process = subprocess.Popen(
        [TOOL, ARTIFACT, *FLAGS, "--data-command", text, "--log", "m", "--save-every", "100"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: os.path.exists("m") and os.path.getsize("m") > 10)
    time.sleep(0.3)
    process.send_signal(number)
    said, wrong = process.communicate(timeout=60)
    assert process.returncode == 128 + number and not wrong
    assert f"{name}: ended after step 1; resume with\n" in said and "--data-command 'seq" in said
    assert os.listdir("checkpoints") == ["step-1"]
    assert not any("4242" in open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc")
                   if pid.isdigit() and os.path.exists(f"/proc/{pid}/cmdline")
                   and pid != str(os.getpid()))


@needs_mpi
def test_processes(folder):  # noqa: F811
    """Each runs the command; the losses are those of threads. What differs is found."""
    database()

    def start(text, code=0):
        result = subprocess.run(
            ["mpirun", "--oversubscribe", "-n", "2", TOOL, TWO, *FLAGS[:-1], "1", "--data-command",
             text, "--steps", "6", "--log", "p"], capture_output=True, text=True, timeout=120)
        assert bool(result.returncode) == bool(code), result.stderr
        return result

    start(command())
    run("--data-command", command(), "--steps", 6, "--log", "t", artifact=TWO)
    assert losses("p") == losses("t")
    result = start("seq 200 | awk -v r=$OMPI_COMM_WORLD_RANK '{print ($1 + r) % 60}'", code=1)
    assert "the ranks differ in the rows that the data command wrote (hash)" in result.stderr


def test_flags(folder):  # noqa: F811
    for flags, message in [
            ([], "--data is missing, or --data-command"),
            (["--data-command", ""], "--data-command is empty"),
            (["--data-command", "x", "--data", "train.bin"],
             "--data and --data-command exclude one another")]:
        assert message in run(*flags, code=2).stderr
    shown = subprocess.run([tool("cleave-run"), "--help"], capture_output=True, text=True).stdout
    assert "--data-command=<command>" in shown and "CLEAVE_EPOCH" in shown
