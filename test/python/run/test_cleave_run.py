# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The behaviour of `cleave-run`, seen from outside, with a small model written by hand.

CLEAVE_BUILD_DIR names the build folder (default: `build` of this checkout).
"""

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy
import pytest
import safetensors.numpy
from run_support import (ARTIFACT, TOOL, folder, metrics, pytestmark, read_terminal,  # noqa: F401
                         run, start, train, wait_until)


def test_learns_and_logs(folder):
    result = train("--steps", 200, "--lr", 3, "--log", "m.jsonl", "--report-memory",
                   "--progress=lines")
    lines = metrics("m.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 201))
    assert lines[0]["loss"] == pytest.approx(math.log(64), abs=0.1)
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]
    for line in lines:
        assert line["tokens_per_s"] > 0 and line["grad_norm"] > 0
        total = sum(line["breakdown"].values())
        assert total == pytest.approx(line["ms"], rel=0.05, abs=0.02)
    assert "step 200/200" in result.stdout
    assert "do not fill a sequence" in result.stdout
    assert "arena" in result.stdout


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_rates_equal_those_of_transformers(folder, kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    train("--lr", 0.3, "--lr-schedule", kind, "--warmup", 5, "--steps", 30, "--log", "m")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    make = getattr(transformers, f"get_{kind}_schedule_with_warmup")
    steps = {} if kind == "constant" else {"num_training_steps": 30}
    schedule = make(optimizer, num_warmup_steps=5, **steps)
    for line in metrics("m"):
        assert line["lr"] == pytest.approx(schedule.get_last_lr()[0], rel=1e-12, abs=1e-15)
        optimizer.step()
        schedule.step()


def test_text_is_encoded(folder):
    tokenizers = pytest.importorskip("tokenizers")
    text = "the cat sat on the mat and the dog sat on the cat\n" * 200
    (folder / "train.txt").write_text(text)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save("tok.json")
    count = len(tokenizer.encode(text).ids)
    flags = ["--random-init", "--data", "train.txt", "--steps", 2]
    result = run(*flags, "--tokenizer", "tok.json")
    assert f"train.txt: {count} tokens" in result.stdout
    # The second time needs no Python.
    os.environ["CLEAVE_PYTHON"] = "no-such-python"
    result = run(*flags, "--tokenizer", "tok.json")
    assert f"train.txt: {count} tokens" in result.stdout
    (folder / "train.txt").write_text(text + "the end\n")
    result = run(*flags, "--tokenizer", "tok.json", code=1)
    assert "needs python3 with the package 'tokenizers'" in result.stderr
    os.environ["CLEAVE_PYTHON"] = sys.executable
    assert "--tokenizer" in run(*flags, code=1).stderr
    (folder / "bad.json").write_text("{}")
    result = run(*flags, "--tokenizer", "bad.json", code=1)
    assert "cannot read the tokenizer" in result.stderr
    (folder / "train.txt").write_bytes(b"\xff\xfe\x00")
    result = run(*flags, "--tokenizer", "tok.json", code=1)
    assert "not UTF-8" in result.stderr
    assert len(os.listdir(folder / "cache/cleave/tokens")) == 1


def test_missing_tokenizers_package(folder):
    python = folder / "python-without"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    os.environ["CLEAVE_PYTHON"] = str(python)
    (folder / "t.txt").write_text("text")
    (folder / "tok.json").write_text("{}")
    result = run("--random-init", "--data", "t.txt", "--tokenizer", "tok.json", code=1)
    assert "lacks the package 'tokenizers'" in result.stderr


def test_npy_equals_bin(folder):
    tokens = numpy.fromfile("train.bin", dtype=numpy.uint16)
    numpy.save("train.npy", tokens.astype(numpy.int64).reshape(8, -1))
    train("--steps", 3, "--log", "a")
    run("--random-init", "--data", "train.npy", "--threads", 2, "--steps", 3, "--log", "b")
    assert [m["loss"] for m in metrics("a")] == [m["loss"] for m in metrics("b")]


def test_evaluation_uses_all_sequences(folder):
    # 10 sequences in batches of 4: the last batch is padded.
    numpy.fromfile("train.bin", dtype=numpy.uint16)[: 10 * 32 + 1].tofile("val.bin")
    weights = {
        "embedding.weight": numpy.random.default_rng(0).normal(size=(64, 16)),
        "out.weight": numpy.random.default_rng(1).normal(size=(64, 16)),
    }
    weights = {k: v.astype(numpy.float32) for k, v in weights.items()}
    safetensors.numpy.save_file(weights, "w.safetensors")
    train(
        *("--steps", 1, "--lr", 0, "--eval-data", "val.bin", "--log", "m"),
        start="--weights=w.safetensors",
    )
    tokens = numpy.fromfile("val.bin", dtype=numpy.uint16).astype(int)
    ids, labels = tokens[:320], tokens[1:321]
    logits = weights["embedding.weight"][ids].astype(float) @ weights["out.weight"].T
    logits -= logits.max(-1, keepdims=True)
    loss = numpy.log(numpy.exp(logits).sum(-1)) - logits[range(320), labels]
    assert metrics("m")[-1]["eval_loss"] == pytest.approx(loss.mean(), rel=1e-5)


def test_trace(folder):
    train("--steps", 5, "--trace", "t.json", "--trace-steps", 2)
    events = json.load(open("t.json"))["traceEvents"]
    steps = [e for e in events if e["cat"] == "step"]
    assert len(steps) == 2
    for event in events:
        assert event["ph"] == "X" and event["dur"] >= 0
    for step in steps:
        inside = [
            e
            for e in events
            if e["tid"] == 1 and step["ts"] <= e["ts"] <= step["ts"] + step["dur"]
        ]
        assert {e["name"] for e in inside} >= {"contract", "bigram_loss", "scatter"}


def test_interrupt(folder):
    process = subprocess.Popen(
        [TOOL, ARTIFACT, "--random-init", "--data", "train.bin", "--steps", "100000000"]
        + ["--save-every", "50000000", "--log", "m"],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.time() + 60
    while time.time() < deadline:
        if os.path.exists("m") and os.path.getsize("m") > 1000:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    (checkpoint,) = os.listdir("checkpoints")
    last = metrics("m")[-1]["step"]
    assert checkpoint == f"step-{last}"
    state = json.load(open(f"checkpoints/{checkpoint}/training.json"))
    assert state["step"] == last and state["data_position"] == 4 * last
    train("--steps", last + 1, start="--resume=checkpoints")


def test_saved_weights_are_plain_safetensors(folder):
    train("--steps", 1, "--save-every", 1, "--keep", 1, "--save-dir", "c")
    weights = safetensors.numpy.load_file("c/step-1/model.safetensors")
    assert weights.keys() == {"embedding.weight", "out.weight"}
    assert weights["out.weight"].shape == (64, 16)
    train("--steps", 3, "--save-every", 1, "--keep", 2, "--save-dir", "c", start="--resume=c")
    assert sorted(os.listdir("c")) == ["step-2", "step-3"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028", "\n\r"])
def test_line_ends_are_tokens(folder, end):
    """A text has the tokens of its bytes, also in several pieces of whole lines."""
    tokenizers = pytest.importorskip("tokenizers")
    ends = ["\n", "\r", "\u2028"]
    rules = tokenizers.Tokenizer(tokenizers.models.WordLevel(
        {**{c: i for i, c in enumerate("ab" + "".join(ends))}, "?": 63}, unk_token="?"))
    rules.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    rules.save("tok.json")
    text = ("ab" * 100 + end) * 10_500  # More than a piece of 2^20.
    (folder / "train.txt").write_bytes(text.encode())
    said = run("--random-init", "--data", "train.txt", "--tokenizer", "tok.json", "--steps", 1).stdout
    assert f"train.txt: {len(text)} tokens" in said
    (found,) = (folder / "cache/cleave/tokens").glob("*.bin")
    assert numpy.fromfile(found, "u4")[:500].tolist() == rules.encode(text[:500]).ids


def test_labels_are_named(folder):
    """What the model learns depends on them: this one is compiled for the next tokens."""
    assert "\nlabels: the next tokens\n" in "\n" + train("--steps", 1).stdout
    said = train("--steps", 1, "--label-shift", 0).stdout
    assert "labels: the tokens themselves, for a model that shifts them; --label-shift 1" in said
    names = [name for name in ("ids", "input_ids", "tokens")
             if b'"' + name.encode() + b'"' in ARTIFACT.read_bytes()]
    result = train("--steps", 1, f"--labels-input={names[0]}", code=1)
    assert "which takes the tokens unless --ids-input names another" in result.stderr


def test_what_ends_with_the_run_is_said(folder):
    assert "no checkpoints: the trained weights end with this run" in train("--steps", 1).stdout
    assert "no checkpoints" not in train("--steps", 1, "--save-every", 1).stdout


def test_another_run_is_not_saved_among_checkpoints(folder):
    flags = ["--save-every", 2, "--save-dir", "c"]
    train("--steps", 4, *flags)
    result = train("--steps", 2, *flags, code=1)
    assert "c: holds checkpoints of another run (c/step-4), of which" in result.stderr
    assert "name another --save-dir" in result.stderr
    train("--steps", 6, *flags, start="--resume=c")
    assert sorted(os.listdir("c")) == ["step-2", "step-4", "step-6"]
    # One that goes on from an earlier step is told of what is later.
    said = train("--steps", 5, *flags, start="--resume=c/step-2").stdout
    assert "c/step-6 is later than the start of this run: --resume c takes it until" in said
    assert "is later" not in train("--steps", 7, *flags, start="--resume=c").stdout
    # An empty folder, or one of other files, is as good as none.
    os.makedirs("d/step-3")
    train("--steps", 2, "--save-every", 2, "--save-dir", "d")


def test_folder_that_takes_no_files_is_refused_before_the_first_step(folder):
    result = train("--steps", 2, "--save-every", 1, "--save-dir", "/proc/none/c", code=1)
    assert "/proc/none/c: cannot write: " in result.stderr and "step 1" not in result.stdout


def test_threads_of_a_checkpoint(folder):
    train("--steps", 1, "--save-every", 1, "--save-dir", "c")
    result = run("--resume=c", "--data", "train.bin", "--threads", 1, "--steps", 2)
    assert ("the checkpoint was made with 2 threads of all ranks together, and this run has 1:"
            in result.stdout)


def test_artifact_that_is_not_there():
    result = subprocess.run([TOOL, "nope.so"], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == "cleave-run: error: nope.so: no such file\n"


def test_help(folder):
    text = subprocess.run([TOOL, "--help"], capture_output=True, text=True).stdout
    assert "--lr-schedule" in text and "x86-asm-syntax" not in text


# Signals, folders and changes ----------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_end_a_run(folder, name):
    number = getattr(signal, name)
    process = start("--random-init", "--save-every", "50000000", "--save-dir", "c d")
    process.send_signal(number)
    said, wrong = process.communicate(timeout=100)
    assert process.returncode == 128 + number and wrong == ""
    (checkpoint,) = os.listdir("c d")
    last = metrics("m")[-1]["step"]
    assert checkpoint == f"step-{last}"
    # The command that is printed goes on from there.
    head, command = said.rstrip("\n").splitlines()[-2:]
    assert head == f"{name}: ended after step {last}; resume with"
    assert "--random-init" not in command and f"--resume 'c d/step-{last}'" in command
    command = command.replace("--steps 100000000", f"--steps {last + 2}")
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert f"resumed from c d/step-{last} after step {last}\n" in result.stdout


def test_signal_without_checkpoints(folder):
    process = start("--random-init")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM
    assert said.endswith("and nothing was saved\n")


def test_hangup_that_is_ignored_stays_so(folder):
    process = start("--random-init",
                    preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    size = os.path.getsize("m")
    wait_until(lambda: os.path.getsize("m") > size + 10000)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM


def test_second_signal_ends_at_once(folder):
    """The first cannot take effect: the log is a pipe that nobody reads any more."""
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    process = subprocess.Popen(
        [TOOL, ARTIFACT, "--random-init", "--data", "train.bin", "--threads", "1", "--log", "pipe",
         "--steps", "100000000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: open(f"/proc/{process.pid}/wchan").read().startswith("pipe")
               or open(f"/proc/{process.pid}/stat").read().split()[2] == "S")
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == -signal.SIGINT
    os.close(reader)


def test_user_signal_saves_and_goes_on(folder):
    process = start("--random-init", "--save-every", "50000000")
    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: any(name.startswith("step-") and "." not in name
                           for name in os.listdir("checkpoints")))
    size = os.path.getsize("m")
    wait_until(lambda: os.path.getsize("m") > size)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert len(os.listdir("checkpoints")) == 2
    process = start("--random-init")
    process.send_signal(signal.SIGUSR1)
    size = os.path.getsize("m")
    wait_until(lambda: os.path.getsize("m") > size + 5000)
    process.send_signal(signal.SIGINT)
    assert "SIGUSR1: nothing is saved without --save-every" in process.communicate(timeout=100)[0]


def test_progress(folder):
    assert "step 1/" not in train("--steps", 3).stdout
    assert "step 1/" not in train("--steps", 3, "--progress=none").stdout
    lines = train("--steps", 3, "--progress=lines").stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["1/3", "2/3", "3/3"]


@pytest.mark.parametrize("columns", [1, 10, 20, 40, 60, 80, 100, 200])
def test_bar_fits_the_terminal(folder, columns):
    import fcntl
    import pty
    import struct
    import termios

    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([TOOL, ARTIFACT, "--random-init", "--data", "train.bin", "--threads",
                                "1", "--steps", "30"], stdout=side, stderr=subprocess.DEVNULL)
    os.close(side)
    said = read_terminal(main)
    assert process.wait(100) == 0
    drawn = said.decode().split("\r\x1b[K")[1:]
    assert len(drawn) == 29
    for line in drawn:
        assert len(line.rstrip("\r\n")) < columns
    assert ("30/30" in drawn[-1]) == (columns > 10)
    assert ("tokens/s" in drawn[-1]) == (columns > 50)


def test_two_runs_in_one_folder(folder):
    process = start("--random-init", "--save-every", "10000000", "--save-dir", "c")
    result = train("--steps", 2, "--save-every", 1, "--save-dir", "c", code=1)
    assert f"c: another run (process {process.pid}, cleave-run) saves here" in result.stderr
    assert os.listdir("c") == []
    # It ends with who holds it, however that ends.
    process.kill()
    process.communicate(timeout=100)
    train("--steps", 2, "--save-every", 1, "--save-dir", "c")


def test_folder_of_a_run_that_saved_nothing_goes(folder):
    train("--steps", 2, "--save-every", 1, "--save-dir", "a/c", "--log", "none/m", code=1)
    assert not os.path.exists("a/c")
