# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Files of checkpoints: damage is noticed, and what is of others stays."""

import json
import os
import random
import re
import shutil
import stat

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.trace.weights import write_tensors
from proofs import ALL
from training_support import same_bits, snapshot

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
FILES = ("model.safetensors", "optimizer.safetensors", "training.json")


@pytest.fixture(scope="module")
def step():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    made = cleave.compile(module, (X, X), F.mse_loss, optimizer=cleave.AdamW(lr=0.1))
    made(X, X)
    return made


def without_hashes(folder):
    facts = json.loads((folder / "training.json").read_text())
    del facts["hash"], facts["files"]
    (folder / "training.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("name", FILES)
def test_each_bit_counts(step, tmp_path, name):
    """One that is changed anywhere in a file is noticed, and nothing is loaded."""
    step.save(tmp_path / "c")
    path, before = tmp_path / "c" / name, snapshot(step)
    data, draw = path.read_bytes(), random.Random(name)
    for _ in range(2000 if ALL else 60):
        at, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1:])
        # What says the same is no damage: another space, a zero before a number.
        if name == "training.json" and _same_json(path, data):
            continue
        with pytest.raises((ValueError, FileNotFoundError), match=name):
            step.load(tmp_path / "c")
    assert same_bits(snapshot(step), before)
    path.write_bytes(data)
    step.load(tmp_path / "c")


def _same_json(path, data):
    try:
        return json.loads(re.sub(rb":0(?=\d)", b": ", path.read_bytes())) == json.loads(data)
    except ValueError:
        return False


def test_weights_of_a_checkpoint_are_compared(step, tmp_path):
    """As well where only they are read: by a module, `load_weights`, and cleave-run --weights."""
    step.save(tmp_path / "c")
    path = tmp_path / "c" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    for load in (lambda: cleave.load(tmp_path / "c", module), lambda: step.load_weights(path),
                 lambda: step.load_weights(tmp_path / "c"), lambda: step.load(tmp_path / "c")):
        with pytest.raises(ValueError, match="model.safetensors: is damaged"):
            load()
    # Elsewhere it is a file of weights, and one of a version without hashes is taken.
    shutil.copy(path, tmp_path / "own.safetensors")
    step.load_weights(tmp_path / "own.safetensors")
    without_hashes(tmp_path / "c")
    step.load(tmp_path / "c")
    cleave.load(tmp_path / "c", module)


def test_what_a_killed_save_has_left(step, tmp_path):
    """Before the facts are new, the files before belong to them; then the ones beside them."""
    step.save(tmp_path / "c")
    one = snapshot(step)
    shutil.copytree(tmp_path / "c", tmp_path / "old")
    step(X, X)
    two = snapshot(step)
    step.save(tmp_path / "new")
    for name in FILES[:2]:
        shutil.copy(tmp_path / "new" / name, tmp_path / "c" / (name + ".next"))
    step.load(tmp_path / "c")
    assert same_bits(snapshot(step), one)
    shutil.copy(tmp_path / "new" / "training.json", tmp_path / "c")
    step.load(tmp_path / "c")
    assert same_bits(snapshot(step), two)
    # One has its name.
    os.replace(tmp_path / "c" / "model.safetensors.next", tmp_path / "c" / "model.safetensors")
    step.load(tmp_path / "c")
    assert same_bits(snapshot(step), two)
    step.save(tmp_path / "c")
    assert sorted(os.listdir(tmp_path / "c")) == list(FILES)
    for name in FILES[:2]:
        assert (tmp_path / "c" / name).read_bytes() == (tmp_path / "new" / name).read_bytes()


def test_what_is_of_others_stays(step, tmp_path):
    """Beside the files of a checkpoint, and behind links."""
    step.save(tmp_path / "c")
    (tmp_path / "c" / "config.json").write_text("{}")
    (tmp_path / "c" / "step-1").mkdir()
    (tmp_path / "c" / "step-1" / "notes").write_text("notes")
    blob = tmp_path / "blob"
    os.replace(tmp_path / "c" / "model.safetensors", blob)
    (tmp_path / "c" / "model.safetensors").symlink_to("../blob")
    before = blob.read_bytes()
    step(X, X)
    step.save(tmp_path / "c")
    assert sorted(os.listdir(tmp_path / "c")) == sorted([*FILES, "config.json", "step-1"])
    assert blob.read_bytes() == before and not (tmp_path / "c" / "model.safetensors").is_symlink()
    step.load(tmp_path / "c")
    # A link to a checkpoint becomes one.
    (tmp_path / "latest").symlink_to("c")
    kept = (tmp_path / "c" / "training.json").read_bytes()
    step(X, X)
    step.save(tmp_path / "latest")
    assert not (tmp_path / "latest").is_symlink()
    assert (tmp_path / "c" / "training.json").read_bytes() == kept


@pytest.mark.parametrize("what", ["file", "dangling", "link_to_file", "link_to_folder", "facts_of_others",
                                  "weights"])
def test_what_is_no_checkpoint_is_not_replaced(step, tmp_path, what):
    place, other = tmp_path / "c", tmp_path / "other"
    if what == "file":
        place.write_text("text")
    elif what == "weights":
        place.mkdir()
        (place / "model.safetensors").write_text("weights")
    elif what == "facts_of_others":
        place.mkdir()
        (place / "training.json").write_text('{"epochs": 3}')
        (place / "code.py").write_text("")
    else:
        if what != "dangling":
            other.mkdir() if what == "link_to_folder" else other.write_text("text")
        if other.is_dir():
            (other / "notes").write_text("notes")
        place.symlink_to("other")

    def all_of():
        return sorted((str(p), p.is_symlink(), p.read_text() if p.is_file() else None)
                      for p in tmp_path.rglob("*"))

    before = all_of()
    with pytest.raises(OSError, match="is there and is no checkpoint; nothing of it is replaced"):
        step.save(place)
    assert all_of() == before


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_folders_have_the_modes_of_the_umask(step, tmp_path, mask):
    before = os.umask(mask)
    try:
        step.save(tmp_path / "a" / "b" / "c")
        write_tensors(str(tmp_path / "a" / "w.safetensors"), {"x": X}, {})
    finally:
        os.umask(before)
    for path in (tmp_path / "a").rglob("*"):
        full = 0o777 if path.is_dir() else 0o666
        assert stat.S_IMODE(path.stat().st_mode) == full & ~mask, path


def test_leftovers_are_removed(step, tmp_path):
    """Folders of killed saves, whatever number the process had; nothing that has other files."""
    step.save(tmp_path / "c")
    for name in (f"c.tmp.{os.getpid()}", "step-4.tmp.7", "step-4.old.8", "c.removed.0a1b2c3d"):
        shutil.copytree(tmp_path / "c", tmp_path / name)
    (tmp_path / "step-4.tmp.7" / "optimizer.safetensors.tmp-0a1b2c3d").write_text("")
    shutil.copytree(tmp_path / "c", tmp_path / "mine.tmp.9")
    (tmp_path / "mine.tmp.9" / "notes").write_text("notes")
    (tmp_path / "x.tmp.1").write_text("a file")
    step.save(tmp_path / "c")
    assert sorted(os.listdir(tmp_path)) == ["c", "mine.tmp.9", "x.tmp.1"]
    assert len(os.listdir(tmp_path / "mine.tmp.9")) == 4
