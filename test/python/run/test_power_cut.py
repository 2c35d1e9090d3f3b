# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Saves, replacements and removals, call by call: at each call the power is cut, the process is
killed, or the call fails. What is left has a whole checkpoint and all files of others."""

import errno
import os
import random
import shutil
import subprocess

import pytest

import file_calls
from proofs import ALL
from run_support import ARTIFACT, TOOL, folder  # noqa: F401

pytestmark = pytest.mark.skipif(not TOOL.exists() or not ARTIFACT.exists() or not file_calls.COMPILER,
                                reason="cleave-run is not built, or there is no C compiler")
FILES = ("model.safetensors", "optimizer.safetensors", "training.json")


def run(*flags, start=("--random-init",), **settings):
    return subprocess.run([TOOL, ARTIFACT, *start, "--data", "train.bin", "--threads", "1", "--lr", "0.1",
                           "--save-every", "1", "--save-dir", "run", *map(str, flags)],
                          capture_output=True, text=True, timeout=120, **settings)


def must(*flags, **settings):
    done = run(*flags, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def keeping():
    """Three checkpoints, of which one is kept, beside files and folders of others."""
    os.makedirs("run/step-notes/step-1.tmp.notes")
    open("run/step-notes/step-1.tmp.notes/text", "w").write("text")
    open("run/notes.txt", "w").write("notes")
    return dict(flags=("--steps", 3, "--keep", 1), start=("--random-init",)), 0


def replacing():
    """Over later checkpoints, one with a file of others; beside a folder of a killed run."""
    must("--steps", 3)
    open("run/step-2/config.json", "w").write("{}")
    os.mkdir("run/step-2/more")
    os.mkdir("run/step-9.tmp.123")
    shutil.copy("run/step-1/model.safetensors", "run/step-9.tmp.123")
    return dict(flags=("--steps", 3, "--lr", "0.2"), start=("--resume", "run/step-1")), 1


def linked():
    """Over a link to an archive, and with `--keep` beside one."""
    must("--steps", 2)
    os.mkdir("archive")
    for step in (1, 2):
        os.rename(f"run/step-{step}", f"archive/step-{step}")
        os.symlink(f"../archive/step-{step}", f"run/step-{step}")
    return dict(flags=("--steps", 3, "--keep", 2), start=("--resume", "run/step-1")), 1


def removing():
    """Checkpoints in which others have files lose their own."""
    must("--steps", 2)
    for step in (1, 2):
        open(f"run/step-{step}/evaluation.txt", "w").write("0.3")
    return dict(flags=("--steps", 4, "--keep", 1), start=("--resume", "run")), 2


CASES = [keeping, replacing, linked, removing]


def place(case):
    os.makedirs("disk", exist_ok=True)
    shutil.rmtree("disk")
    os.mkdir("disk")
    shutil.copy("train.bin", "disk/train.bin")
    os.chdir("disk")
    return case()


def of_others(tree, path=""):
    """The files that are not those of runs, by path."""
    found = {}
    for name, own in tree.items():
        where = f"{path}/{name}"
        if isinstance(own, dict) and not where.startswith("/archive"):
            found.update(of_others(own, where))
        elif name not in FILES and not name.startswith(FILES) and not isinstance(own, str):
            found[where] = own
    return found


def follow(tree, name):
    """A folder of `run`, or what a link there refers to."""
    own = tree["run"][name]
    return tree["archive"][os.path.basename(own)] if isinstance(own, str) else own


def latest(tree):
    """The step that --resume takes; `None` without one."""
    steps = [int(name[5:]) for name in tree.get("run", {}) if name[5:].isdigit()
             and name.startswith("step-") and "training.json" in follow(tree, name)]
    return max(steps, default=None)


def is_whole(files, versions):
    """Whether a folder has what one save has written; a file that is being replaced by X.next is
    that of the facts."""
    return any(files["training.json"] == version["training.json"] and all(
        version[name] in (files.get(name), files.get(name + ".next")) for name in FILES[:2])
        for version in versions)


def versions_of(record, disk):
    """The files of each save, by the text of its training.json."""
    found = []

    def look(node):
        names = {name: bytes(own.data) for name, own in node.names.items()
                 if isinstance(own, file_calls.File)}
        if set(FILES) <= set(names):
            version = {name: names[name] for name in FILES[:2]}
            version.update({name: names[name + ".next"] for name in FILES[:2] if name + ".next" in names})
            version["training.json"] = names["training.json"]
            if version not in found:
                found.append(version)
        for own in node.names.values():
            if isinstance(own, file_calls.Folder):
                look(own)

    look(disk.top)
    for call in record:
        disk.apply(*call)
        # A commit; between other calls a folder has files of two saves.
        if call[0] == "rename" and call[2].endswith("training.json"):
            look(disk.top)
    return found


def recorded(case):
    """The calls of a case, the files before, and the number of steps saved before."""
    settings, first = place(case)
    before = file_calls.read_tree(".")
    must(*settings["flags"], start=settings["start"], env=file_calls.environment(".", "../log"))
    return file_calls.calls("../log"), before, first


def cut_states(record, before, first, draws=4):
    """All states that a cut of the power can leave: (where, the files, the latest step, what is
    wrong with them)."""
    versions = versions_of(record, file_calls.Disk(".", file_calls.copy_tree(before)))
    disk = file_calls.Disk(".", file_calls.copy_tree(before))
    others = of_others(contents(disk))
    draw, saved = random.Random(1), first
    for number, call in enumerate([None, *record]):
        if call:
            disk.apply(*call)
            # A save begins: those before it have ended.
            if call[0] == "mkdir" and ".tmp." in call[1] and "step-" in call[1]:
                saved = max(saved, int(os.path.basename(call[1])[5:].split(".")[0]) - 1)
        for what, tree in file_calls.cuts(disk, draw, draws):
            step = latest(tree)
            wrong = "files of others" if of_others(tree) != others else ""
            if (step or 0) < saved:
                wrong = f"the checkpoint of step {saved}"
            for name in tree.get("run", {}):
                if (name.startswith("step-") and name[5:].isdigit()
                        and "training.json" in follow(tree, name)
                        and not is_whole(follow(tree, name), versions)):
                    wrong = f"half of {name}"
            yield f"after call {number}, {call and call[:3]}: {what}", tree, step, wrong
    assert contents(disk) == tree_now(), "calls were not recorded"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_power_is_cut(folder, case):  # noqa: F811
    """At each call: what was not synchronised is lost, in whole, in part or not at all."""
    record, before, first = recorded(case)
    resumed = set()
    for where, tree, step, wrong in cut_states(record, before, first):
        assert not wrong, f"{wrong} {where}"
        # The run itself finds the same checkpoint, and goes on.
        key = str(sorted((name, sorted(own) if isinstance(own, dict) else own)
                         for name, own in tree.get("run", {}).items() if name.startswith("step-")))
        if step and key not in resumed and (ALL or len(resumed) < 3):
            resumed.add(key)
            shutil.rmtree("../cut", ignore_errors=True)
            file_calls.write_tree(tree, "../cut")
            done = run("--steps", step + 1, start=("--resume", "run"), cwd="../cut")
            assert done.returncode == 0 and f"after step {step}" in done.stdout, where + done.stderr
    assert resumed


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.__name__)
def test_a_wrong_order_is_found(folder, case):  # noqa: F811
    """The same calls without those that synchronise; or with contents alone synchronised, which
    is enough where names change in one folder, whose changes a disk gets in their order."""
    record, before, first = recorded(case)
    folders = {call[1] for call in record if call[0] == "mkdir"} | {os.path.abspath("run")} | {
        os.path.abspath(f"run/step-{step}") for step in (1, 2, 3)}
    for left_out in ("all", "folders", "files"):
        calls = [call for call in record if call[0] != "sync" or left_out != "all" and
                 (call[1] in folders) != (left_out == "folders")]
        assert len(calls) < len(record)
        assert (case, left_out) == (replacing, "folders") or any(wrong for *_, wrong in cut_states(calls, before, first))


def contents(disk):
    return disk.state(lambda folder: folder.names, lambda file: bytes(file.data))


def tree_now():
    return contents(file_calls.Disk(".", file_calls.read_tree(".")))


def count(case):
    settings, _ = place(case)
    must(*settings["flags"], start=settings["start"], env=file_calls.environment(".", "../log"))
    os.chdir("..")
    found = len(file_calls.calls("log"))
    os.remove("log")
    return found


def some(numbers, most):
    """All of them, or a spread sample."""
    numbers = list(numbers)
    step = max(1, len(numbers) // most)
    return numbers if ALL else numbers[step // 2 :: step]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_process_is_killed(folder, case):  # noqa: F811
    """Before each call: the run goes on from what is there, removes what was left, and leaves
    what is of others."""
    for at in some(range(count(case)), 3):
        settings, first = place(case)
        others = of_others(tree_now())
        run(*settings["flags"], start=settings["start"],
            env=file_calls.environment(".", "../log", at=at))
        assert of_others(tree_now()) == others, at
        step = latest(tree_now())
        start = ("--resume", "run") if step is not None else ("--random-init",)
        done = must("--steps", (step or 0) + 1, start=start)
        assert of_others(tree_now()) == others, at
        assert step is not None or first == 0
        left = [name for name in os.listdir("run") if ".tmp." in name or ".removed." in name]
        assert not left, (at, left, done.stdout)
        os.chdir("..")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_a_call_fails(folder, case, error):  # noqa: F811
    """Each of them: an error that the run ends with, and the run goes on when the disk does."""
    for at in some(range(count(case)), 2):
        settings, first = place(case)
        others = of_others(tree_now())
        done = run(*settings["flags"], start=settings["start"],
                   env=file_calls.environment(".", "../log", at=at, do=error))
        failed = any(call[0] == "failed" for call in file_calls.calls("../log"))
        os.remove("../log")
        if failed:
            assert done.returncode == 1 and os.strerror(error) in done.stderr, (at, done.stdout, done.stderr)
        assert of_others(tree_now()) == others, at
        step = latest(tree_now())
        start = ("--resume", "run") if step is not None else ("--random-init",)
        must("--steps", (step or 0) + 1, start=start)
        assert of_others(tree_now()) == others, at
        assert step is not None or first == 0
        os.chdir("..")


@pytest.mark.parametrize("name", ["model.safetensors", "notes.txt"])
def test_a_folder_of_others_is_not_replaced(folder, name):  # noqa: F811
    """At the name of a checkpoint: the run says so and ends, and what it has saved stays."""
    os.makedirs("run/step-2")
    open(f"run/step-2/{name}", "w").write("text")
    done = run("--steps", 3)
    assert done.returncode == 1 and "run/step-2: is there and is no checkpoint" in done.stderr
    assert os.listdir("run/step-2") == [name] and latest(tree_now()) == 1
    shutil.rmtree("run/step-2")
    must("--steps", 3, start=("--resume", "run"))


def test_a_disk_that_is_full_for_a_while(folder):  # noqa: F811
    """All calls of the second save fail: the run ends with an error, and the first one stays."""
    settings, _ = place(keeping)
    must(*settings["flags"], start=settings["start"], env=file_calls.environment(".", "../log"))
    begins = [i for i, call in enumerate(file_calls.calls("../log"))
              if call[0] == "mkdir" and "step-2.tmp" in call[1]][0]
    os.chdir("..")
    settings, _ = place(keeping)
    done = run(*settings["flags"], start=settings["start"],
               env=file_calls.environment(".", "../log", at=begins, do=errno.ENOSPC, count=10**6))
    assert done.returncode == 1 and "step-2: cannot write: No space left" in done.stderr
    assert latest(tree_now()) == 1
    must("--steps", 3, start=("--resume", "run"))
    assert latest(tree_now()) == 3
