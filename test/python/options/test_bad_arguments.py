# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The tools and modules, bad arguments and outputs."""

import shutil
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cleave.testing.tools import tool
from refusal_support import make_model, refuse


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = make_model(tmp_path_factory.mktemp("model"))
    np.save(folder / "ok.npy", (np.arange(64) % 50).astype(np.uint16))
    tensors = load_file(folder / "g.safetensors")
    ids = {name: np.zeros((4, 16), "i8") for name in ("input_ids", "labels")}
    save_file({**tensors, **ids}, folder / "in.safetensors")
    bytecode = subprocess.run([tool("cleave-opt"), "g.mlir", "--emit-bytecode"], cwd=folder,
                              check=True, capture_output=True).stdout
    (folder / "g.mlirbc").write_bytes(bytecode)
    return folder


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "work"
    path.mkdir()
    (path / "full").symlink_to("/dev/full")
    return path


def run(model, *flags):
    return [tool("cleave-run"), model / "g.so", "--data", model / "ok.npy", "--steps", 2,
            *(flags if "--random-init" in flags or "--weights" in flags
              else ("--weights", model / "g.safetensors", *flags))]


def compiled(model, *flags):
    return [tool("cleave-compile"), model / "g.mlir", *flags]


def reference(model, *flags):
    return [tool("cleave-reference"), model / "g.mlir", "--inputs", model / "in.safetensors",
            *flags]


# Modules ------------------------------------------------------------------------------

ONE = '{graph.name = "x", graph.role = "input"}'
MODULES = {
    "syntax": (lambda m: b"func.func @loss(", "m.mlir:1:16: error"),
    "type": (lambda m: text(m).replace(b"4x16xi64>", b"4x17xi64>", 1),
             r"m.mlir:\d+:\d+: error: use of value .* expects different type"),
    "unknown_op": (lambda m: b'func.func @loss() {\n  "graph.nothing"() : () -> ()\n  return\n}',
                   "m.mlir:2:3: error: unregistered operation 'graph.nothing'"),
    "unknown_dialect": (lambda m: b'"some.op"() : () -> ()', "m.mlir:1:10: error: .*unregistered"),
    "truncated": (lambda m: text(m)[:len(text(m)) // 3], r"m.mlir:\d+:\d+: error"),
    "truncated_at_the_end": (lambda m: text(m).rstrip()[:-1], r"m.mlir:\d+:\d+: error"),
    "bytes": (lambda m: bytes(range(1, 256)), "m.mlir"),
    "image": (lambda m: b"\x89PNG\r\n\x1a\n" + bytes(99), "m.mlir"),
    "bytecode_magic": (lambda m: b"ML\xefR", "m.mlir:0:0: error"),
    "bytecode_garbage": (lambda m: b"ML\xefR" + bytes(i * 97 % 256 for i in range(2000)),
                         "m.mlir:0:0: error"),
    "bytecode_half": (lambda m: bytecode(m)[:len(bytecode(m)) // 2], "m.mlir:0:0: error"),
    "bytecode_short": (lambda m: bytecode(m)[:-1], "m.mlir:0:0: error"),
}
#: What is a module, but no model.
NO_MODELS = {
    "empty": (b"", "no function '@loss'|no entry 'loss'"),
    "other_function": (b"func.func @main() { return }", "no function '@loss'|no entry 'loss'"),
    "declaration": (b"func.func private @loss(tensor<f32>) -> tensor<f32>",
                    "must have one block|no entry 'loss'"),
    "dynamic": (f"func.func @loss(%x: tensor<?xf32> {ONE}) -> tensor<?xf32> "
                "{ return %x : tensor<?xf32> }".encode(),
                "float tensor of rank 0|not a tensor of static shape"),
}
OUTPUTS = {"cleave-compile": ("-o", "o.so", "--report", "o.json"),
           "cleave-opt": ("-o", "o.mlir", "--canonicalize"),
           "cleave-reference": ("--output", "o.safetensors")}


def text(model):
    return (model / "g.mlir").read_bytes()


def bytecode(model):
    return (model / "g.mlirbc").read_bytes()


# The driver of cleave-opt is the library's own: where its parser says two things
# of a truncated text, both are shown.
@pytest.mark.parametrize("name, case", [(name, case) for name in OUTPUTS for case in MODULES
                                        if (name, case) != ("cleave-opt", "truncated")])
def test_modules(model, folder, name, case):
    make, message = MODULES[case]
    (folder / "m.mlir").write_bytes(make(model))
    refuse([tool(name), "m.mlir", *OUTPUTS[name]], folder, message)


@pytest.mark.parametrize("case", NO_MODELS)
@pytest.mark.parametrize("name", ["cleave-compile", "cleave-reference"])
def test_modules_that_are_no_models(folder, name, case):
    content, message = NO_MODELS[case]
    (folder / "m.mlir").write_bytes(content)
    refuse([tool(name), "m.mlir", *OUTPUTS[name]], folder, message)


def test_bytes_of_bytecode_that_are_wrong(model, folder):
    """Whatever byte is wrong, the reader says so, or reads another module."""
    whole = bytecode(model)
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        (folder / "m.mlir").write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1:])
        result = subprocess.run([tool("cleave-opt"), "m.mlir", "-o", "o.mlir"], cwd=folder,
                                capture_output=True, timeout=60)
        assert result.returncode in (0, 1), (at, result.stderr)


def test_modules_that_are_not_there(folder):
    for name, outputs in OUTPUTS.items():
        result = subprocess.run([tool(name), "none.mlir", *outputs], cwd=folder, text=True,
                                capture_output=True)
        assert result.returncode == 1 and result.stderr.count("\n") == 1
        assert "cannot open input file 'none.mlir'" in result.stderr


# Flags --------------------------------------------------------------------------------

RUN_FLAGS = {
    "--bogus": "unknown option '--bogus'", "--stops=3": "did you mean --steps",
    "--steps": "requires a value",
    "--steps=0": "at least 1", "--steps=-3": "at least 1", "--steps=x": "invalid",
    "--steps=99999999999999999999": "invalid", "--lr=nan": "finite", "--lr=inf": "finite",
    "--lr=-1": "finite", "--min-lr=1": "--min-lr <= --lr", "--warmup=-1": "at least 0",
    "--threads=-1": "at least 0", "--seed=x": "invalid", "--lr-schedule=zigzag": "zigzag",
    "--token-dtype=u7": "u8, u16, u32, i32 or i64, not 'u7'", "--label-shift=2": "0 or 1",
    "--save-every=-1": "at least 0", "--keep=-1": "at least 0", "--eval-every=-1": "at least 0",
    "--keep=3": "--keep needs --save-every", "--save-dir c": "--save-dir needs --save-every",
    "--eval-every=3": "--eval-every needs --eval-data", "--trace-steps=3": "needs --trace",
    "--tokenizer t.json": "is tokens already",
    "--stop-at=0": "at least 1", "--trace-steps=0": "at least 1",
    "--lr=": "is not a number", "--min-lr=": "is not a number", "--steps=": "invalid",
    "--random-init --weights w": "exclude one another",
    "--random-init --resume c": "exclude one another",
    "--weights w --resume c": "exclude one another",
    "--weights=": "no weights to start from",
    "--ids-input input_ids --labels-input input_ids": "the same input",
    "second.so": "Too many positional arguments",
}
COMPILE_FLAGS = {
    "": "nothing to write", "--bogus": "unknown option '--bogus'",
    "--explain=much": "--explain is summary, layers, full, memory or cost, not 'much'",
    "--explain=full --emit=step": "--explain is of an artifact",
    "--opimizer sgd": "unknown option '--opimizer'; did you mean --optimizer",
    "-o o.so --max-grad-norm=-1": "--max-grad-norm must not be negative",
    "-o o.so --threads=0": "--threads must be positive", "-o": "requires a value",
    "-o o.so --micro-batches=0": "positive", "-o o.so --micro-batches=-2": "positive",
    "-o o.so --micro-batches=x": "--micro-batches is an integer, not 'x'", "-o o.so --threads=-1": "positive",
    "-o o.so --threads=1025": "at most 1024", "-o o.so --threads=9223372036854775807": "at most",
    "-o o.so --max-logits-bytes=0MiB": "positive", "-o o.so --vector-bits=300": "300 bits",
    "-o o.so --cpu=abacus": "unknown x86-64 processor 'abacus'",
    "-o o.so --optimizer=adam": "unknown optimizer 'adam'", "-o o.so --beta1=2": "below 1",
    "-o o.so --beta2=nan": "below 1", "-o o.so --eps=-1": "not negative",
    "-o o.so --max-grad-norm=nan": "is a finite number", "-o o.so --weight-decay=-1": "not negative",
    "-o o.so --weight-decay=nan": "not negative",
    "-o o.so --momentum=0.9": "--momentum has no effect with --optimizer adamw",
    "-o o.so --nesterov": "no effect", "-o o.so --optimizer sgd --beta1=0.5": "--beta1 has no effect",
    "-o o.so --optimizer sgd --eps=1": "no effect",
    "-o o.so --optimizer sgd --nesterov": "needs momentum",
    "-o o.so --optimizer sgd --dampening=nan": "finite",
    "-o o.so --eps=": "--eps is '', which is not a number",
    "-o o.so --weight-decay=": "--weight-decay is '', which is not a number",
    "-o o.so --beta1=true": "--beta1 is 'true', which is not a number",
    "-o o.so --max-grad-norm=": "is a finite number", "-o o.so --compress-stages=": "is a finite number",
    "-o o.so --clip=1 --max-grad-norm=1": "--clip is the former name of --max-grad-norm",
    "--emit=nothing": "executable, llvm, cuda, schedule or memory, not 'nothing'",
    "--emit=step --report=r.json": "excludes --emit", "-o -": "standard output",
    "-o o.so second.mlir": "Too many positional arguments",
}
OTHER_FLAGS = {
    "cleave-opt --bogus": "Unknown command line argument", "cleave-opt -o": "requires a value",
    "cleave-opt a b": "Too many positional arguments",
    "cleave-reference": "no module is given", "cleave-reference a b": "more than one module",
    "cleave-reference a --bogus": "unknown option '--bogus'",
    "cleave-reference a --entry": "needs a value",
    "cleave-reference a --mode=fast": "neither exact nor typed",
    "cleave-run": "Not enough positional arguments|Not enough positional",
    "cleave-compile": "Not enough positional",
}


@pytest.mark.parametrize("flags", RUN_FLAGS)
def test_flags_of_run(model, folder, flags):
    refuse(run(model, *flags.split()), folder, RUN_FLAGS[flags], code=2)


def test_run_without_data(model, folder):
    refuse([tool("cleave-run"), model / "g.so", "--random-init"], folder, "--data is missing",
           code=2)
    refuse([tool("cleave-run"), model / "g.so", "--data", "x"], folder, "no weights to start from",
           code=2)


@pytest.mark.parametrize("flags", COMPILE_FLAGS)
def test_flags_of_compile(model, folder, flags):
    refuse(compiled(model, *flags.split()), folder, COMPILE_FLAGS[flags], code=2)


@pytest.mark.parametrize("line", OTHER_FLAGS)
def test_flags_of_other_tools(folder, line):
    name, *flags = line.split()
    refuse([tool(name), *flags], folder, OTHER_FLAGS[line], code=2)


@pytest.mark.parametrize("flags, message", [
    ("-o o.so --micro-batches=5", r"g.mlir:2:3: error: .*4 samples, fewer than the 5 micro-batches"),
    ("-o o.so --no-decay=ndim<", "expected a number"),
    ("-o o.so --no-decay=nothing*", "'nothing.' matches no parameter"),
    ("-o o.so --no-decay=[a", "invalid glob"),
    ("-o o.so --group=*", "a group has no settings; write terms"),
    ("-o o.so --group=:lr-scale=2", "a group has no terms"),
    ("-o o.so --group=*:eps=true", "'eps=true': expected a setting and its value"),
    ("-o o.so --group=*:eps=", "'eps=': expected a setting and its value"),
])
def test_flags_that_do_not_fit_the_model(model, folder, flags, message):
    refuse(compiled(model, *flags.split()), folder, message)


@pytest.mark.parametrize("flags, message", [
    ("--ids-input=ids", "g.so: the program has no integer input 'ids'; it has input_ids, labels"),
    ("--labels-input=lr", "no integer input 'lr'"),
])
def test_inputs_that_the_program_has_not(model, folder, flags, message):
    refuse(run(model, flags), folder, message)


@pytest.mark.parametrize("name, flags", [
    ("cleave-compile", "-o o.so /dev/zero"), ("cleave-reference", "/dev/zero"),
    *(("cleave-compile", f"g.mlir --plan-only {flags}") for flags in (
        "--machine=/dev/zero", "--recompute-file=/dev/zero",
        "--mesh=pp=2 --micro-batches=2 --measured-costs=/dev/zero",
        "--mesh=pp=2 --micro-batches=2 --schedule-file=/dev/zero",
        "--precision=bf16 --precision-policy=/dev/zero")),
    ("cleave-compile", "g.mlir --emit=schedule --mesh=pp=2 --micro-batches=2 --schedule-format=svg "
                       "--measured-timeline=/dev/zero"),
])
def test_inputs_that_have_no_end(model, folder, name, flags):
    """A device is not read until memory ends."""
    (folder / "g.mlir").write_bytes((model / "g.mlir").read_bytes())
    limited = ["sh", "-c", 'ulimit -v 8000000; exec "$@"', "sh", tool(name), *flags.split()]
    # What may be given as text too is an error of usage.
    code = 2 if "--machine" in flags or "--precision-policy" in flags else 1
    refuse(limited, folder, "/dev/zero': it is a device, which may have no end", code=code)


# Outputs ------------------------------------------------------------------------------

OUTPUT_CASES = {
    "log_no_folder": (run, "--log no/m", "no/m: cannot write: No such file"),
    "log_folder": (run, "--log .", "cannot write: Is a directory"),
    "log_full": (run, "--log full", "full: cannot write: No space left"),
    "trace_no_folder": (run, "--trace no/t", "no/t: cannot write: No such file"),
    "trace_folder": (run, "--trace .", "cannot write: Is a directory"),
    "trace_full": (run, "--trace full", "full: cannot write: No space left"),
    "save_below_a_file": (run, "--save-every 1 --save-dir full/c", "full/c: cannot write: Not a d"),
    "artifact_no_folder": (compiled, "-o no/g.so --report r.json", "no/g.so: cannot write: No such"),
    "artifact_folder": (compiled, "-o . --report r.json", "cannot write: Is a directory"),
    "artifact_device": (compiled, "-o full --report r.json", "an artifact must be a regular file"),
    "report_no_folder": (compiled, "-o g.so --report no/r", "no/r: cannot write: No such file"),
    "report_full": (compiled, "--report full", "full: cannot write: No space left"),
    "emit_no_folder": (compiled, "--emit=step -o no/m", "no/m: cannot write: No such file"),
    "emit_full": (compiled, "--emit=llvm -o full", "full: cannot write: No space left"),
    "reference_no_folder": (reference, "--output no/o", "no/o: cannot write: No such file"),
    "reference_folder": (reference, "--output .", "cannot write: Is a directory"),
    "reference_full": (reference, "--output full", "full: cannot write: No space left"),
    "gradients_no_folder": (reference, "--output o --gradients no/g", "no/g: cannot write: No such"),
}


@pytest.mark.parametrize("case", OUTPUT_CASES)
def test_outputs(model, folder, case):
    make, flags, message = OUTPUT_CASES[case]
    refuse(make(model, *flags.split()), folder, message)
    # What is no file is still there, and still none.
    assert (folder / "full").is_symlink() and (folder / "full").is_char_device()


@pytest.mark.parametrize("make, flags", [(run, ()), (compiled, ("--emit=step",)),
                                         (reference, ())])
def test_standard_output_that_is_full(model, folder, make, flags):
    with open("/dev/full", "w") as full:
        refuse(make(model, *flags), folder, "standard output: cannot write: No space left",
               stdout=full)


def test_state_is_saved_when_the_log_cannot_be_written(model, folder):
    subprocess.run([*map(str, run(model, "--save-every", 1, "--save-dir", "c", "--stop-at", 1))],
                   cwd=folder, check=True, stdout=subprocess.DEVNULL)
    flags = run(model, "--save-every", 50, "--save-dir", "c", "--log", "full")
    flags[flags.index("--weights")] = "--resume"
    flags[flags.index(model / "g.safetensors")] = "c"
    new = ["c/step-2", *(f"c/step-2/{name}" for name in
                         ("model.safetensors", "optimizer.safetensors", "training.json"))]
    refuse(flags, folder, "full: cannot write: No space left", leaves=new)


FULL = 'mount -t tmpfs -o size=16k none disk && "$@"; code=$?; ls -A disk > left; exit $code'


@pytest.mark.parametrize("make, flags", [
    (run, "--save-every 2 --save-dir disk/c"), (compiled, "-o disk/g.so"),
    (compiled, "--emit=llvm -o disk/g.ll"), (reference, "--entry logits --output disk/o"),
])
def test_full_disk(model, folder, make, flags):
    """On a file system of 16 KiB."""
    (folder / "disk").mkdir()
    alone = ["unshare", "-rm", "sh", "-c"]
    if subprocess.run([*alone, FULL, "sh", "true"], cwd=folder, stderr=subprocess.PIPE).returncode:
        pytest.skip("no file system can be mounted here")
    (folder / "left").unlink()
    refuse([*alone, FULL, "sh", *make(model, *flags.split())], folder, "No space left",
           leaves=["left"])
    assert set((folder / "left").read_text().split()) <= {"c"}


def test_files_that_are_written_are_no_others(model, tmp_path):
    """Nothing is opened before that is known."""
    shutil.copy(model / "g.so", tmp_path / "g.so")
    shutil.copy(model / "ok.npy", tmp_path / "ok.npy")
    (tmp_path / "m.mlir").write_text("module {}")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    run = [tool("cleave-run"), "g.so", "--data", "ok.npy", "--random-init"]
    compile_ = [tool("cleave-compile"), "m.mlir"]
    for command, message in (
            ([*run, "--log", "ok.npy"], "--log would overwrite ok.npy, which --data reads"),
            ([*run, "--trace", "./g.so"], "--trace would overwrite ./g.so"),
            ([*run, "--trace", "a", "--log", "./a"], "--log and --trace write to one file"),
            ([*compile_, "-o", "m.mlir"], "-o would overwrite m.mlir"),
            ([*compile_, "-o", "x.so", "--report=x.so"], "-o and --report write to one file")):
        result = subprocess.run([str(c) for c in command], cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 2 and message in result.stderr, result.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
