# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Files without an end, that shrink, or that may not grow; processes that are forgotten; passwords.
Each is an error of `cleave-run` with its reason, and what was computed is saved."""

import json
import os
import resource
import shlex
import signal
import subprocess

import pytest

from run_support import ARTIFACT, TOOL, folder, metrics, pytestmark, wait_until  # noqa: F401

FLAGS = ("--threads", "1", "--lr", "0.1")
ROWS = "for i in $(seq 1 60); do echo 1 2 3 4 5 6 7 8 9 10; done"


def run(*args, start=("--random-init",), **settings):
    return subprocess.run([TOOL, ARTIFACT, *start, *FLAGS, *map(str, args)], capture_output=True,
                          text=True, timeout=60, **settings)


@pytest.mark.parametrize("device", ["/dev/full", "/dev/zero"])
@pytest.mark.parametrize("flag", ["--weights", "--data", "--tokenizer", "--resume", "--eval-data", "artifact"])
def test_a_device_has_no_end(folder, flag, device):  # noqa: F811
    """Memory is limited, so that reading all of it fails soon."""
    os.mkdir("c")
    os.symlink(device, "c/training.json")
    for name in ("d.bin", "w.safetensors", "t.npy"):
        os.symlink(device, name)
    open("text.txt", "w").write("text")
    args, start, artifact = ["--data", "train.bin"], ["--random-init"], ARTIFACT
    if flag == "--weights":
        start = ["--weights", device]
    elif flag == "--resume":
        start = ["--resume", "c"]
    elif flag == "--data":
        args = ["--data", "d.bin"]
    elif flag == "--eval-data":
        args += ["--eval-data", "t.npy"]
    elif flag == "--tokenizer":
        args = ["--data", "text.txt", "--tokenizer", device]
    else:
        artifact = device
    done = subprocess.run([TOOL, artifact, *start, *args, "--steps", "1"], capture_output=True, text=True,
                          timeout=60, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)))
    assert done.returncode == 1 and "it is a device or a pipe, which may have no end" in done.stderr, done


def test_the_latest_checkpoint_cannot_be_read(folder):  # noqa: F811
    """An older one is not taken for it, without a word; one that is named is."""
    done = run("--data", "train.bin", "--steps", 3, "--save-every", 1, "--save-dir", "c")
    assert done.returncode == 0, done.stderr
    os.remove("c/step-3/training.json")
    os.symlink("training.json", "c/step-3/training.json")
    done = run("--data", "train.bin", "--steps", 4, start=("--resume", "c"))
    assert done.returncode == 1 and "c/step-3/training.json: cannot be read: " in done.stderr, done
    os.remove("c/step-1/training.json")
    os.symlink("training.json", "c/step-1/training.json")
    os.rename("c/step-3", "c/other")
    done = run("--data", "train.bin", "--steps", 4, start=("--resume", "c"))
    assert done.returncode == 0, done.stderr


def test_data_that_shrink(folder):  # noqa: F811
    """The state before is saved, and the run goes on with the whole file."""
    whole = open("train.bin", "rb").read()
    process = subprocess.Popen([TOOL, ARTIFACT, "--random-init", *FLAGS, "--data", "train.bin", "--steps",
                                "1000000", "--save-every", "1000000", "--save-dir", "c", "--log", "m"],
                               stderr=subprocess.PIPE, text=True)
    wait_until(lambda: os.path.exists("m") and len(metrics("m")) > 3)
    os.truncate("train.bin", 100)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 1 and "train.bin: the file was shortened while it was read" in text
    (saved,) = os.listdir("c")
    step = int(saved[5:])
    assert step == len(metrics("m"))
    open("train.bin", "wb").write(whole)
    done = run("--data", "train.bin", "--steps", step + 1, start=("--resume", "c"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [100, 4096])
def test_files_that_may_not_grow(folder, size):  # noqa: F811
    """As a disk that is full; and then there is space again."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    flags = ("--data", "train.bin", "--save-every", 1, "--save-dir", "c")
    done = run(*flags, "--steps", 2, preexec_fn=limit)
    assert done.returncode == 1 and "cannot write: File too large" in done.stderr, done
    assert "Stack dump" not in done.stderr and (not os.path.exists("c") or os.listdir("c") == [])
    assert run(*flags, "--steps", 2).returncode == 0
    done = run(*flags, "--steps", 3, start=("--resume", "c"), preexec_fn=limit)
    assert done.returncode == 1 and sorted(os.listdir("c")) == ["step-1", "step-2"]
    assert run(*flags, "--steps", 3, start=("--resume", "c")).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk")
def test_a_small_disk(folder):  # noqa: F811
    """It holds two checkpoints: the third one ends the run, and behind space it goes on."""
    os.mkdir("disk")
    pages = sum(-(-os.path.getsize(path) // 4096) for path in _saved())
    size = 4096 * (5 * pages // 2)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "cleave-test", "disk"],
                      capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        flags = ("--data", "train.bin", "--save-every", 1, "--save-dir", "disk/c")
        done = run(*flags, "--steps", 9)
        assert done.returncode == 1 and "step-3: " not in done.stdout and "No space left" in done.stderr
        assert sorted(os.listdir("disk/c")) == ["step-1", "step-2"]
        done = run(*flags, "--steps", 9, "--keep", 1, start=("--resume", "disk/c"))
        assert done.returncode == 1 and "No space left" in done.stderr
        subprocess.run(["rm", "-r", "disk/c/step-1"], check=True)
        done = run(*flags, "--steps", 9, "--keep", 1, start=("--resume", "disk/c"))
        assert done.returncode == 0 and os.listdir("disk/c") == ["step-9"], done.stderr
    finally:
        subprocess.run(["umount", "disk"], check=True)


def _saved():
    assert run("--data", "train.bin", "--save-every", 1, "--steps", 1, "--save-dir", "one").returncode == 0
    return [os.path.join("one/step-1", name) for name in os.listdir("one/step-1")]


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "ignored"])
@pytest.mark.parametrize("end", ["exit 3", "kill -9 $$"])
def test_a_failed_command_is_no_end_of_the_data(folder, handler, end):  # noqa: F811
    done = run("--data-command", f"{ROWS}; {end}", "--steps", 60,
               preexec_fn=lambda: signal.signal(signal.SIGCHLD, handler))
    assert done.returncode == 1 and "that is not the end of the data" in done.stderr
    # Nor is a tokenizer that fails to be read.
    open("t.json", "w").write("{}")
    open("text.txt", "w").write("text")
    done = run("--data", "text.txt", "--tokenizer", "t.json", "--steps", 1,
               preexec_fn=lambda: signal.signal(signal.SIGCHLD, handler))
    assert done.returncode == 1 and "cannot encode the text" in done.stderr


@pytest.mark.parametrize("command, shown", [
    ("PGPASSWORD=hunter2 true", "true ..."), ("PGPASSWORD='hunter2 hunter2' /usr/bin/env true", "env ..."),
    ("PGPASSWORD=\"hunter2 hunter2\" true -p hunter2", "true ..."), ("export A=hunter2; true", "export ..."),
    ("true postgresql://me:hunter2@db/x", "true ..."), ("A=$(echo hunter2) true", "..."),
    ("A=a\\ hunter2 true", "..."), ("'true' hunter2", "..."), ("A=hunter2; true", "true ..."),
    ("true|cat hunter2 2>/dev/null", "true ..."), ("true;A=hunter2", "true ..."), ("true>hunter2.txt", "...")])
def test_no_file_or_line_has_the_command(folder, command, shown):  # noqa: F811
    """But the name of its program, and a hash by which another one is noticed."""
    whole = f"{command}; {ROWS}"
    flags = ("--save-every", 2, "--save-dir", "c", "--log", "m")
    done = run("--data-command", whole, "--steps", 2, *flags)
    assert done.returncode == 0, done.stderr
    texts = [done.stdout, done.stderr]
    facts = json.load(open("c/step-2/training.json"))["run"]
    assert facts["data_command"] == shown
    same = run("--data-command", whole, "--steps", 3, start=("--resume", "c"))
    other = run("--data-command", whole + " ", "--steps", 3, start=("--resume", "c"))
    assert same.returncode == other.returncode == 0
    assert "data_command" not in same.stdout and "data_command: other arguments" in other.stdout
    texts += [same.stdout, other.stdout, same.stderr, other.stderr]
    for root, _, names in os.walk("."):
        texts += [open(os.path.join(root, name), "rb").read().decode(errors="replace") for name in names]
    assert not [text for text in texts if "hunter2" in text]


def test_the_command_to_resume_by_has_no_password(folder):  # noqa: F811
    process = subprocess.Popen([TOOL, ARTIFACT, "--random-init", *FLAGS, "--data-command",
                                f"A=hunter2 true; while true; do {ROWS}; done", "--steps", "100000",
                                "--save-every", "100000", "--save-dir", "c", "--log", "m"],
                               stdout=subprocess.PIPE, text=True)
    wait_until(lambda: os.path.exists("m") and len(metrics("m")) > 3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and "resume with" in out and "--data-command 'true ...'" in out
    assert "hunter2" not in out


def test_a_checkpoint_of_an_earlier_version_has_the_command(folder):  # noqa: F811
    """It is compared, and not printed."""
    assert run("--data-command", ROWS, "--steps", 1, "--save-every", 1, "--save-dir", "c").returncode == 0
    facts = json.load(open("c/step-1/training.json"))
    del facts["hash"], facts["files"], facts["run"]["data_command_hash"]
    for command, changed in ((ROWS, False), ("A=hunter2 true;" + ROWS, True)):
        facts["run"]["data_command"] = command
        json.dump(facts, open("c/step-1/training.json", "w"))
        done = run("--data-command", ROWS, "--steps", 2, start=("--resume", "c"))
        assert done.returncode == 0 and "hunter2" not in done.stdout + done.stderr
        assert ("data_command" in done.stdout) == changed, done.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_standard_streams_that_are_closed(folder, closed):  # noqa: F811
    """No file gets their numbers, and with it what is printed."""
    flags = [TOOL, ARTIFACT, "--random-init", *FLAGS, "--data", "train.bin", "--steps", "2", "--save-every", "1",
             "--save-dir", "c", "--log", "m", "--progress=lines"]
    done = subprocess.run(["/bin/sh", "-c", f"{shlex.join(map(str, flags))} {closed}"], timeout=60)
    assert done.returncode == 0 and len(metrics("m")) == 2
    for name in ("model.safetensors", "optimizer.safetensors", "training.json"):
        assert b"saved c/step" not in open(f"c/step-2/{name}", "rb").read()
    assert run("--data", "train.bin", "--steps", 3, start=("--resume", "c")).returncode == 0


@pytest.mark.parametrize("flag", ["--log", "--trace"])
def test_a_pipe_that_nothing_reads(folder, flag):  # noqa: F811
    os.mkfifo("pipe")
    done = run("--data", "train.bin", "--steps", 2, flag, "pipe", "--patience", 1)
    assert done.returncode == 1 and "pipe: cannot write: nothing has read this pipe for 1 s" in done.stderr
    reader = subprocess.Popen(["sh", "-c", "sleep 0.5; cat pipe"], stdout=subprocess.PIPE)
    assert run("--data", "train.bin", "--steps", 2, flag, "pipe", "--patience", 20).returncode == 0
    assert reader.communicate(timeout=20)[0].startswith(b"{")
