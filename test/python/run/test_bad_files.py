# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`cleave-run` and damaged files: weights, data, artifacts and checkpoints."""

import copy
import ctypes
import json
import os
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cleave import _runtime
from cleave.testing.tools import tool
from proofs import ALL
from refusal_support import make_model, refuse

RUN = tool("cleave-run")
#: Four sequences, one batch.
TOKENS = np.arange(64) % 50


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = make_model(tmp_path_factory.mktemp("model"))
    np.save(folder / "ok.npy", TOKENS.astype(np.uint16))
    return folder


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "work"
    path.mkdir()
    return path


def command(model, *flags, artifact=None, start=("--weights",), data=None, steps=2):
    start = (*start, model / "g.safetensors") if start == ("--weights",) else start
    return [RUN, artifact or model / "g.so", *start, "--data", data or model / "ok.npy",
            "--steps", steps, *flags]


# Weights ------------------------------------------------------------------------------

QUERY, KEY = "blocks.0.attention.query.weight", "blocks.0.attention.key.weight"


class Parts:
    """A safetensors file in pieces."""

    def __init__(self, path):
        self.raw = path.read_bytes()
        size = struct.unpack("<Q", self.raw[:8])[0]
        self.header = json.loads(self.raw[8:8 + size])
        self.data = self.raw[8 + size:]
        self.tensors = load_file(path)

    def with_header(self, header):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + self.data

    def changed(self, name, field, value):
        header = copy.deepcopy(self.header)
        header[name][field] = value
        return self.with_header(header)

    def saved(self, path, **changes):
        tensors = {**self.tensors, **{k.replace("__", "."): v for k, v in changes.items()}}
        save_file({k: v for k, v in tensors.items() if v is not None}, path)
        return path.read_bytes()


WEIGHTS = {
    "empty": (lambda p, w: b"", "0 bytes"),
    "header_truncated": (lambda p, w: p.raw[:50], "the file is truncated: the header has"),
    "data_truncated": (lambda p, w: p.raw[:-7], "the file is truncated: its data ends at byte"),
    "header_too_long": (lambda p, w: struct.pack("<Q", 2**60) + b"{}", "above the limit"),
    "not_json": (lambda p, w: p.with_header(b"{nothing}"), "not valid JSON"),
    "not_utf8": (lambda p, w: p.with_header(b'{"\xff\xfe": 1}'), "Invalid UTF-8"),
    "deep": (lambda p, w: p.with_header(b"[" * 300000), "nested more than"),
    "no_object": (lambda p, w: p.with_header(b"[]"), "not a JSON object"),
    "overlap": (lambda p, w: p.changed(QUERY, "data_offsets", p.header[KEY]["data_offsets"]),
                "overlaps|hole"),
    "negative_offset": (lambda p, w: p.changed(QUERY, "data_offsets", [-8, 4]), "not a range"),
    "offset_beyond": (lambda p, w: p.changed(QUERY, "data_offsets", [2**40, 2**40 + 4096]),
                      "truncated"),
    "unknown_type": (lambda p, w: p.changed(QUERY, "dtype", "F31"), "unknown dtype 'F31'"),
    "other_size": (lambda p, w: p.changed(QUERY, "shape", [9, 9]), "takes 324 bytes"),
    "negative_size": (lambda p, w: p.changed(QUERY, "shape", [-1, -1024]), "other than sizes"),
    "missing": (lambda p, w: p.saved(w, **{QUERY: None, KEY: None}),
                f"missing in the file: '{QUERY}', '{KEY}'"),
    "extra": (lambda p, w: p.saved(w, a=np.zeros(3), b=np.zeros(2)),
              "unknown to the program: 'a', 'b'"),
    "shape": (lambda p, w: p.saved(w, **{QUERY: np.zeros((32, 31), "f4")}),
              rf"'{QUERY}' is F32 \[32, 31\] in the file, but F32 \[32, 32\]"),
    "type": (lambda p, w: p.saved(w, **{QUERY: np.zeros((32, 32), "i4")}),
             f"'{QUERY}' is I32 .* in the file, but F32"),
    "range": (lambda p, w: p.saved(w, **{QUERY: np.full((32, 32), 1e39)}),
              rf"'{QUERY}' is F64 in the file, and its element at \[0, 0\] is out of the range of F32"),
    "tied": (lambda p, w: p.saved(w, head__weight=np.ones((50, 32), "f4")),
             "'tokens.weight' and 'head.weight' are tied in the program, but differ"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights(model, folder, case):
    make, message = WEIGHTS[case]
    path = folder / "w.safetensors"
    path.write_bytes(make(Parts(model / "g.safetensors"), path))
    refuse(command(model, "--save-every", 1, start=("--weights", "w.safetensors")), folder,
           f"^cleave-run: error: w.safetensors: .*({message})")


# Data ---------------------------------------------------------------------------------


def replaced(index, value):
    tokens = TOKENS.astype(np.int64)
    tokens[index] = value
    return tokens


def npy(array):
    return lambda path: np.save(path, array)


def raw(data):
    return lambda path: path.write_bytes(data)


def truncated(size):
    return lambda path: (np.save(path, TOKENS), os.truncate(path, size))


DATA = {
    "npy_too_large": ("d.npy", npy(replaced(37, 50)), "token 37 is 50, but input 'input_ids' "
                                                      "takes 0 to 49"),
    "npy_negative": ("d.npy", npy(replaced(0, -1)), "token 0 is -1, "),
    "npy_ignored": ("d.npy", npy(replaced(63, -100)), "token 63 is -100, "),
    "bin_too_large": ("d.bin", raw(replaced(5, 60000).astype("u2").tobytes()),
                      "token 5 is 60000, "),
    "bin_negative": ("d.bin", raw(replaced(5, -7).astype("<i4").tobytes()), "token 5 is -7, "),
    "npy_floats": ("d.npy", npy(TOKENS.astype(float)), "its elements are '<f8'"),
    "npy_big_endian": ("d.npy", npy(TOKENS.astype(">i4")), "its elements are '>i4'"),
    "npy_objects": ("d.npy", npy(np.array([1, "a"], object)), "its elements are '.O'"),
    "npy_fortran": ("d.npy", npy(np.asfortranarray(TOKENS.reshape(8, 8))), "Fortran"),
    "npy_empty": ("d.npy", raw(b""), "not a NumPy file"),
    "npy_other": ("d.npy", raw(b"PK\x03\x04" + bytes(100)), "not a NumPy file"),
    "npy_header_truncated": ("d.npy", truncated(60), "truncated"),
    "npy_data_truncated": ("d.npy", truncated(300), "truncated"),
    "npy_short": ("d.npy", npy(TOKENS[:15]), "15 tokens do not fill one sequence of 16"),
    "npy_scalar": ("d.npy", npy(np.array(3)), "1 tokens do not fill"),
    "bin_empty": ("d.bin", raw(b""), "0 tokens do not fill"),
    "bin_short": ("d.bin", raw(bytes(6)), "3 tokens do not fill"),
    "bin_odd": ("d.bin", raw(bytes(33)), "33 bytes are not a multiple of the 2"),
    "missing": ("d.bin", None, "cannot read: No such file"),
    "missing_text": ("d.txt", None, "cannot read: No such file"),
    "folder": ("d.bin", lambda path: path.mkdir(), "cannot read: Is a directory"),
    "text_folder": ("d", lambda path: path.mkdir(), "cannot read: Is a directory"),
    "text_without_tokenizer": ("d.txt", raw(b"text"), "text needs --tokenizer"),
}


@pytest.mark.parametrize("flag", ["--data", "--eval-data"])
@pytest.mark.parametrize("case", DATA)
def test_data(model, folder, case, flag):
    name, make, message = DATA[case]
    if make:
        make(folder / name)
    types = ["--token-dtype", "i32"] if case == "bin_negative" else []
    flags = command(model, *types, data=name) if flag == "--data" \
        else command(model, *types, "--eval-data", name, steps=1)
    refuse(flags, folder, f"^cleave-run: error: {name}: .*{message}")


@pytest.fixture(scope="module")
def tokenizer(model):
    """One whose vocabulary of 260 is larger than the model's."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(["a b"], tokenizers.trainers.BpeTrainer(
        vocab_size=260, show_progress=False, initial_alphabet=alphabet))
    made.save(str(model / "tok.json"))
    return model / "tok.json"


TEXT = {
    "too_large": (b"z" * 64, None, r"d.txt: token \d+ is \d+, but input 'input_ids' takes 0 to 49"),
    "empty": (b"", None, "d.txt: 0 tokens do not fill"),
    "short": (b"ab", None, "d.txt: 2 tokens do not fill"),
    "not_utf8": (b"\xff\xfe\x00", None, "d.txt: .*not UTF-8"),
    "no_tokenizer": (b"a", "none.json", "none.json: cannot read: No such file"),
    "garbage": (b"a", b"\x00\xff garbage", "cannot read the tokenizer t.json: "),
    "empty_tokenizer": (b"a", b"", "cannot read the tokenizer t.json: "),
    "other_json": (b"a", b'{"model": 3}', "cannot read the tokenizer t.json: "),
    "list": (b"a", b"[1, 2]", "cannot read the tokenizer t.json: "),
}


@pytest.mark.parametrize("case", TEXT)
def test_text(model, tokenizer, folder, case):
    text, rules, message = TEXT[case]
    (folder / "d.txt").write_bytes(text)
    if isinstance(rules, bytes):
        (folder / "t.json").write_bytes(rules)
        rules = "t.json"
    refuse(command(model, "--tokenizer", rules or tokenizer, data="d.txt"), folder,
           f"^cleave-run: error: .*{message}")


# Artifacts ----------------------------------------------------------------------------


def build_library(path, source):
    compiler = shutil.which("cc") or shutil.which("clang-22")
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=source,
                   text=True, check=True)


def build_artifact(path, program=b"{}", abi=2):
    """A shared object that exports what an artifact does, without kernels."""
    build_library(path, f"const unsigned cleave_abi_version = {abi};\n"
                  f"const unsigned long cleave_program_size = {len(program)};\n"
                  "const unsigned char cleave_program[] = {"
                  + ",".join(map(str, program or b" ")) + "};\n")


def program_of(artifact):
    library = ctypes.CDLL(str(artifact))
    size = ctypes.c_uint64.in_dll(library, "cleave_program_size").value
    return ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "cleave_program")), size)


def changed(model, **fields):
    return json.dumps({**json.loads(program_of(model / "g.so")), **fields}).encode()


ARTIFACTS = {
    "empty": (lambda m, p: p.write_bytes(b""), "not an artifact"),
    "text": (lambda m, p: p.write_text("a text that is long enough to hold a header" * 9),
             "not an artifact"),
    "model": (lambda m, p: shutil.copy(m / "g.mlir", p), "not an artifact"),
    "folder": (lambda m, p: p.mkdir(), "Is a directory"),
    "missing": (lambda m, p: None, "no such file"),
    "other_library": (lambda m, p: build_library(p, "int x;"), "exports no cleave_program"),
    "other_abi": (lambda m, p: build_artifact(p, abi=99), "ABI version 99, .*compile the model"),
    "other_version": (lambda m, p: build_artifact(p, changed(m, version=99)),
                      "version 99, .*compile the model again"),
    "no_version": (lambda m, p: build_artifact(p), "has no version"),
    "not_json": (lambda m, p: build_artifact(p, b"garbage"), "not valid JSON"),
    "no_program": (lambda m, p: build_artifact(p, b""), "not valid JSON"),
    "deep": (lambda m, p: build_artifact(p, b"[" * 300000), "nested more than"),
    "unknown_field": (lambda m, p: build_artifact(p, changed(m, extra=1)), "unknown field"),
    "other_arena": (lambda m, p: build_artifact(p, changed(m, arenaBytes=64)), "arena"),
    "huge_arena": (lambda m, p: build_artifact(p, changed(m, arenaBytes=2**60)), "arena|no code"),
    "threads": (lambda m, p: build_artifact(p, changed(m, threads=0)), "0 threads"),
    # No processor of today has its XOP instructions.
    "processor": (lambda m, p: build_artifact(p, changed(m, cpu="bdver4")),
                  "processor 'bdver4', but this one lacks .*xop.*compile the model again"),
    "no_kernels": (lambda m, p: build_artifact(p, changed(m)), "kernel '.*' .* has no code"),
}


@pytest.mark.parametrize("case", ARTIFACTS)
def test_artifacts(model, folder, case):
    make, message = ARTIFACTS[case]
    make(model, folder / "a.so")
    refuse(command(model, "--save-every", 1, artifact="a.so"), folder,
           f"^cleave-run: error: a.so: .*({message})")


def without_hash(whole):
    """The artifact as an earlier version would have written it: its file does not end with a
    hash, and does not say that it does."""
    return whole[:whole.rindex(b"\nxxh3 of the file")].replace(
        b"cleave_file_hash", b"cleave_file_none")


def with_program(model, path, change):
    """The artifact with its kernels, and its program changed by `change`."""
    whole = (model / "g.so").read_bytes()
    text = program_of(model / "g.so")
    program = json.loads(text)
    change(program)
    new = json.dumps(program, separators=(",", ":")).encode()
    assert len(new) <= len(text) and whole.count(text) == 1
    # The hash of the table has another name then, as in an artifact of an earlier version.
    path.write_bytes(without_hash(whole).replace(text, new.ljust(len(text))).replace(
        b"cleave_program_hash", b"cleave_program_none"))


def flipped(data, at, bit):
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1:]


def test_each_bit_of_the_table_counts(model, folder):
    """Also of an artifact of an earlier version, whose file has no hash."""
    whole, text = without_hash((model / "g.so").read_bytes()), program_of(model / "g.so")
    begin, draw = whole.index(text), np.random.default_rng(0)
    for _ in range(100 if ALL else 10):
        at, bit = begin + int(draw.integers(len(text))), 1 << int(draw.integers(8))
        (folder / "a.so").write_bytes(flipped(whole, at, bit))
        refuse(command(model, artifact="a.so"), folder, "the artifact is damaged: its table")


def test_each_bit_of_an_artifact_counts(model, folder):
    """The loader relies on the tables of the file, and kernels on their code: all is compared
    before either sees it. The first kilobytes hold the tables and addresses."""
    whole, draw = (model / "g.so").read_bytes(), np.random.default_rng(1)
    end = whole.rindex(b"\nxxh3 of the file")
    places = [int(draw.integers(size)) for size in (64, 4096, len(whole)) for _ in range(
        1000 if ALL else 10)] + list(range(end, len(whole), 1 if ALL else 7))
    for at in places:
        (folder / "a.so").write_bytes(flipped(whole, at, 1 << int(draw.integers(8))))
        refuse(command(model, artifact="a.so"), folder,
               "the artifact is (damaged|truncated)|not an artifact")
    # Without the hash and with it, the rest being as it was.
    (folder / "a.so").write_bytes(whole[:end])
    refuse(command(model, artifact="a.so"), folder, "it does not end with its hash")
    (folder / "a.so").write_bytes(whole + b"\n")
    refuse(command(model, artifact="a.so"), folder, "it does not end with its hash")


def kernels_of(program):
    return [command["kernel"] for part in program["parts"] for command in part["commands"]
            if command["kind"] == "kernel"]


def test_kernels_and_what_the_program_gives_them(model, folder):
    """Kernels read as many addresses as they were compiled for, whatever the table says."""
    count = len(kernels_of(json.loads(program_of(model / "g.so"))))
    rng = np.random.default_rng(0)
    tried = 0

    def refused(change, message):
        nonlocal tried
        path = folder / f"{tried}.so"
        tried += 1

        def shorter(program):
            # Room for what is added.
            for part in program["parts"]:
                for command in part["commands"]:
                    command.pop("label", None)
            change(kernels_of(program))

        with_program(model, path, shorter)
        with pytest.raises(_runtime.CompileError, match=message):
            _runtime.open(str(path), 1)

    def fewer(kernel):
        del kernel["args"][rng.integers(len(kernel["args"]))]

    def more(kernel):
        kernel["args"].append(kernel["args"][0])

    picked = range(count) if ALL else rng.choice(count, 12, replace=False)
    for number in picked:
        refused(lambda kernels: fewer(kernels[number]),
                r"takes (\d+) arguments, but the program gives \d+$")
        refused(lambda kernels: more(kernels[number]), "arguments, but the program gives")
        refused(lambda kernels: kernels[number].update(args=[], inputs=0), "but the program gives 0")
    # Sums over many rows have two stages.
    (folder / "large").mkdir()
    model = make_model(folder / "large", "--batch=8", "--seq=64")
    all_kernels = kernels_of(json.loads(program_of(model / "g.so")))
    two = [i for i, kernel in enumerate(all_kernels) if kernel.get("finish")]
    assert two
    for number in two[:4]:
        kernel = all_kernels[number]
        refused(lambda kernels: kernels[number].pop("scratch"), "needs scratch memory")
        refused(lambda kernels: [kernels[number].pop(n) for n in ("finish", "finishItems")],
                "another stage")
        refused(lambda kernels: kernels[number].update(symbol=kernel["finish"]), "another stage")
        refused(lambda kernels: kernels[number].update(finish=kernel["symbol"]), "another stage")
    # One of another kernel, with as many arguments or not.
    for number in range(6):
        other = next(k for k in all_kernels if len(k["args"]) != len(all_kernels[number]["args"])
                     and not k.get("finish"))
        if not all_kernels[number].get("finish"):
            refused(lambda kernels: kernels[number].update(symbol=other["symbol"]),
                    "arguments, but the program gives")
    # What is not changed still runs.
    with_program(model, folder / "same.so", lambda program: None)
    _runtime.open(str(folder / "same.so"), 1)


def test_truncated_artifacts(model, folder):
    whole = (model / "g.so").read_bytes()
    sizes = {1, 63, 64, 200, 1000, 4096, *range(5000, len(whole), 7919), len(whole) - 64,
             len(whole) - 1}
    for size in sorted(sizes):
        (folder / "a.so").write_bytes(whole[:size])
        refuse(command(model, artifact="a.so"), folder, "truncated at|not an artifact")


# Checkpoints --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(model):
    subprocess.run([str(c) for c in command(model, "--save-every", 1, "--save-dir", "c")],
                   cwd=model, check=True, stdout=subprocess.DEVNULL)
    return model / "c"


def training(text):
    return lambda c: (c / "training.json").write_text(text)


def facts(**fields):
    return training(json.dumps({"version": 1, "seed": 0, "step": 2, "data_position": 8, **fields}))


def without_hashes(c):
    """Makes a checkpoint one of an earlier version."""
    known = json.loads((c / "training.json").read_text())
    del known["hash"], known["files"]
    (c / "training.json").write_text(json.dumps(known))


CHECKPOINTS = {
    "model_truncated": (lambda c: os.truncate(c / "model.safetensors", 2000),
                        "model.safetensors: .*the file is truncated"),
    "optimizer_truncated": (lambda c: os.truncate(c / "optimizer.safetensors", 2000),
                            "optimizer.safetensors: is damaged: the file is truncated"),
    "no_model": (lambda c: os.remove(c / "model.safetensors"), "model.safetensors: cannot read"),
    "no_optimizer": (lambda c: os.remove(c / "optimizer.safetensors"),
                     "optimizer.safetensors: cannot read"),
    "exchanged": (lambda c: shutil.copy(c / "model.safetensors", c / "optimizer.safetensors"),
                  "optimizer.safetensors: is damaged: .* of which .* were saved"),
    "exchanged_of_before": (lambda c: (without_hashes(c), shutil.copy(
        c / "model.safetensors", c / "optimizer.safetensors")),
        "optimizer.safetensors: the file does not fit"),
    "training_empty": (training(""), "training.json: not valid JSON"),
    "training_half": (training('{"version": 1, "seed": 0, "st'), "training.json: not valid JSON"),
    "training_list": (training("[]"), "training.json: not a JSON object"),
    "training_deep": (training("[" * 300000), "training.json: .*nested more than"),
    "version": (facts(version=2), "not a checkpoint of version 1"),
    "step": (facts(step=-1), "seed, step or data_position is missing or out of range"),
    "large_step": (facts(step=2**63 - 1), "out of range"),
    "position": (facts(data_position=2**63 - 1), "out of range"),
    "seed": (facts(seed="x"), "seed, step or data_position is missing"),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_checkpoints(model, saved, folder, case):
    damage, message = CHECKPOINTS[case]
    shutil.copytree(saved, folder / "c")
    damage(folder / "c" / "step-2")
    text = refuse(command(model, start=("--resume", "c"), steps=3), folder,
                  f"^cleave-run: error: c/step-2/.*{message}")
    assert "an earlier one" in text
    text = refuse(command(model, start=("--resume", "c/step-2"), steps=3), folder, message)
    assert "an earlier one" not in text
    # As the message says.
    subprocess.run([str(c) for c in command(model, start=("--resume", "c/step-1"))], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL)


def test_checkpoints_without_hashes(model, saved, folder):
    shutil.copytree(saved, folder / "c")
    without_hashes(folder / "c" / "step-2")
    subprocess.run([str(c) for c in command(model, start=("--resume", "c"), steps=3)], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL)


def test_folders_without_a_checkpoint(model, saved, folder):
    (folder / "empty").mkdir()
    (folder / "step-1.tmp.7").mkdir()
    (folder / "step-1.tmp.7" / "training.json").write_text("{}")
    for name in ("empty", "none", ".", str(model / "g.so")):
        refuse(command(model, start=("--resume", name)), folder,
               f"^cleave-run: error: {re.escape(name)}: no checkpoint here")
    refuse(command(model, "--seed", 4, start=("--resume", saved)), folder,
           "the checkpoint has seed 0, not 4")
