# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Collectives between GPUs that are stand-ins (test/fake_cuda): the real plugin, with NVIDIA's
libraries replaced by ones that run on the host, against the same steps on the CPU. The
stand-in of NCCL sums in another order than the CPU, so that results agree within bounds."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from cleave.testing.tools import build_dir, run_tool, tool
from cuda_fake import FAKE, compile_both, fake_device  # noqa: F401
from proofs import ALL
from row_models import BYTES, check_steps, counts_of, inputs_of, rows_model
from step_runs import differences, farther, model, run, run_apart, train_on_apart, trip_apart

pytestmark = pytest.mark.skipif(
    not (FAKE / "libnccl.so.2").exists() or not (build_dir() / "lib" / "libcleave_cuda.so").exists(),
    reason="needs NVIDIA's headers and clang")

LAYOUTS = {
    "zero1": ["--mesh=dp=2", "--plan=zero1"],
    "zero2": ["--mesh=dp=2", "--plan=zero2"],
    "zero3": ["--mesh=dp=4", "--plan=zero3"],
    "sequence": ["--mesh=tp=2", "--plan=megatron-sp"],
    "both": ["--mesh=dp=2,tp=2", "--plan=megatron-sp,zero2"],
    "1f1b": ["--mesh=pp=2", "--micro-batches=4", "--schedule=1f1b"],
    "zb-h1": ["--mesh=pp=2", "--micro-batches=2", "--schedule=zb-h1"],
    "gpipe": ["--mesh=pp=2", "--micro-batches=4", "--schedule=gpipe"],
    "interleaved": ["--mesh=pp=2", "--micro-batches=4", "--schedule=interleaved", "--virtual-stages=2"],
    "zb-v": ["--mesh=pp=2", "--micro-batches=4", "--schedule=zb-v"],
    "dualpipe-v": ["--mesh=pp=2", "--micro-batches=4", "--schedule=dualpipe-v"],
    "ring": ["--mesh=cp=2", "--plan=ring"],
    "two-ring": ["--mesh=cp=2", "--plan=two-ring"],
    "summa2d": ["--mesh=row=2,col=2", "--plan=summa2d"],
    "summa25d": ["--mesh=depth=2,row=2,col=2", "--plan=summa25d"],
    "ulysses": ["--mesh=cp=2", "--plan=ulysses"],
    "experts": ["--mesh=ep=2", "--plan=expert"],
}
FAMILY = {"experts": "mixtral", "ring": "llama", "two-ring": "llama", "zero3": "llama"}
#: Layers of schedules whose positions have several stages each.
DEEP = {"interleaved": 4, "zb-v": 4, "dualpipe-v": 4}
SAMPLE = [("zero2", "bf16"), ("both", "f32"), ("1f1b", "f32"), ("zb-v", "f32"),
          ("two-ring", "bf16"), ("summa2d", "f32")]


def compiled(layout, precision, folder):
    folder.mkdir(exist_ok=True)
    path = model(FAMILY.get(layout, "gpt"), folder, 32, f"--layers={DEEP.get(layout, 2)}")
    return compile_both(path, folder,
                        f"--precision={precision}", *LAYOUTS[layout], "--optimizer=sgd",
                        "--momentum=0")


def disagree(layout, precision, expected, found, folder):
    """The results that differ by more than rounding. Many layers add up roundings to 16 bits: then what
    is farther from f32 than the same roundings in another order."""
    if layout in DEEP and precision == "bf16":
        exact, _ = compiled(layout, "f32", folder)
        return list(farther(run(exact), expected, found))
    if layout == "experts" and precision == "bf16":
        # Sums in another order can change which experts a token has.
        expected, found = ((one[0][:2], *one[1:]) for one in (expected, found))
    return list(differences(expected, found, precision))


def says(artifact, sharing=1, **environment):
    """The last line of what steps say in a process of their own, which must end by itself."""
    script = """
import sys
from cleave import _runtime
session = _runtime.open(sys.argv[1], ranks_per_device=int(sys.argv[2]))
for _ in range(2):
    message = session.run("train", 0, 2)
    if message:
        sys.exit(message)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(artifact), str(sharing)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment})
    return result.stderr.strip().split("\n")[-1] if result.returncode else ""


@pytest.mark.parametrize("layout, precision", [
    (layout, precision) for layout in LAYOUTS for precision in ("f32", "bf16")] if ALL else SAMPLE)
def test_steps_agree(layout, precision, tmp_path, monkeypatch):
    native, device = compiled(layout, precision, tmp_path)
    expected = run(native)
    monkeypatch.setenv("CLEAVE_FAKE_DEVICES", "8")
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / "record"))
    for how in ("on", "off"):
        monkeypatch.setenv("CLEAVE_NCCL", how)
        found = run_apart(device)
        assert not disagree(layout, precision, expected, found, tmp_path / "f32"), how
        # What was asked for is what ran.
        record = tmp_path / "record"
        assert ("name=nccl-" in record.read_text()) == (how == "on")
        record.unlink()


@pytest.mark.parametrize("layout, precision", [("zero2", "fp16"), *(
    (layout, precision) for layout in LAYOUTS for precision in ("f32", "bf16"))] if ALL
    else [("both", "bf16"), ("1f1b", "f32")])
def test_ranks_that_share_a_gpu(layout, precision, tmp_path, monkeypatch):
    """What they exchange stays on the device, in any order of work, with the bits of what goes
    through the host, which reduces as the CPU's ranks do."""
    native, device = compiled(layout, precision, tmp_path)
    monkeypatch.setenv("CLEAVE_FAKE_DEVICES", "1")
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / "record"))
    results = {}
    for how in ("off", "on"):
        monkeypatch.setenv("CLEAVE_SHARED_GPU", how)
        results[how] = run_apart(device, 2, ranks_per_device=8)
        used = re.search("name=cleave_reduce|kind=copy-dtod", (tmp_path / "record").read_text())
        assert bool(used) == (how == "on")
    monkeypatch.delenv("CLEAVE_FAKE_RECORD")
    for order in ["latest", *map(str, range(6 if ALL else 1))]:
        monkeypatch.setenv("CLEAVE_FAKE_ORDER", order)
        results[order] = run_apart(device, 2, ranks_per_device=8)
    given, _, parameters = results["off"]
    for how, (others, _, found) in results.items():
        assert np.array_equal(given, others), how
        assert all(np.array_equal(v, found[k]) for k, v in parameters.items()), how
    assert not disagree(layout, precision, run(native), results["on"], tmp_path / "f32")


@pytest.mark.parametrize("kind", BYTES if ALL else ["bf16"])
def test_rows_to_all_ranks(kind, tmp_path, monkeypatch):
    """As many as values say: by NCCL, whose calls the host makes when it knows them, and through the
    host; a wrong number ends all ranks."""
    ranks, held, room = 4, 5, 12
    rng = np.random.default_rng(11)
    counts = counts_of("uneven", ranks, held, rng)
    inputs = inputs_of(ranks, held, room, counts, rng)
    (tmp_path / "m.mlir").write_text(rows_model(ranks, held, room, kind))
    _, device = compile_both(tmp_path / "m.mlir", tmp_path, "--optimizer=sgd", "--momentum=0")
    wrong = {**inputs, "r": inputs["r"] + (np.arange(ranks * (ranks + 1)) == 2)}
    for how in ("on", "off"):
        monkeypatch.setenv("CLEAVE_NCCL", how)
        check_steps(train_on_apart(device, inputs, 3), inputs, counts, 3, BYTES[kind])
        assert "member 0" in train_on_apart(device, wrong)[3], how


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The artifact of one layout, which several tests run."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEAVE_CUDA_LIBRARIES", str(FAKE))
        return compiled("zero2", "f32", folder)[1]


def test_failures_end_with_one_message(device):
    with_nccl = {"CLEAVE_NCCL": "on", "CLEAVE_PATIENCE": "2"}
    which = r"the [a-z-]+ of part '[^']+' \(.*\.py:\d+.*\)"
    for fault, message in [
            # A rank that fails is named, with what it did and where that is in the model.
            *((f"refuse:{rank}:7", f"^rank {rank}: {which}: NCCL: starting it: internal error")
              for rank in (0, 1)),
            *((f"error:{rank}:12", f"^rank {rank}: {which}: NCCL: an exchange: remote process exited")
              for rank in (0, 1)),
            # All ranks wait for one that does not come: one of them says so.
            *((f"hang:{rank}:12", f"^rank [01]: {which} has not ended after 2 s: not all ranks take "
                                  r"part in it; --patience ")
              for rank in (0, 1)),
            # Of a communicator's first exchange nothing differs but that one does not come.
            ("leave-out:1:1", r"rank 0: the first exchange of ranks 0 1 has not ended after 2 s")]:
        said = says(device, CLEAVE_FAKE_NCCL=fault, **with_nccl)
        assert len(said) < 1000
        assert re.search(message, said), (fault, said)


@pytest.mark.parametrize("layout", ["both", "1f1b"] if ALL else ["1f1b"])
def test_exchanges_of_several_groups_end_together(layout, tmp_path):
    """A communicator's abort waits for all that is under way on its GPU, and so for what another
    group began and no rank ends: none is ended alone."""
    device = compiled(layout, "f32", tmp_path)[1]
    with_nccl = {"CLEAVE_NCCL": "on", "CLEAVE_PATIENCE": "2", "CLEAVE_FAKE_NCCL_PATIENCE": "10",
                 "CLEAVE_FAKE_ORDER": "latest"}
    for fault in [f"hang:1:{n}" for n in (range(6, 30) if ALL else [9])]:
        said = says(device, CLEAVE_FAKE_NCCL=fault, **with_nccl)
        assert "has not ended after 2 s: not all ranks take part in it" in said, (fault, said)


def test_a_full_queue_does_not_hide_a_lost_exchange(tmp_path):
    """Behind an exchange that does not end the host would wait in a launch, and look no more: it
    does not run so far ahead."""
    path = model("gpt", tmp_path, 32, "--layers=4")
    device = tmp_path / "device.so"
    run_tool([tool("cleave-compile"), str(path), *LAYOUTS["sequence"], "--micro-batches=4",
              "--optimizer=sgd", "--momentum=0", "--target=cuda", "-o", str(device)])
    said = says(device, CLEAVE_FAKE_NCCL="hang:1:9", CLEAVE_NCCL="on", CLEAVE_PATIENCE="2",
                CLEAVE_FAKE_NCCL_PATIENCE="10", CLEAVE_FAKE_QUEUE="600")
    assert re.search(r"^rank [01]: the [a-z-]+ of part .* has not ended after 2 s: not all ranks "
                     "take part in it", said), said


def test_a_lost_exchange_ends_the_program(device, tmp_path):
    """With one message, and the status of an error."""
    data = tmp_path / "tokens.bin"
    data.write_bytes((np.arange(4096, dtype=np.uint16) % 64).tobytes())
    result = subprocess.run(
        [tool("cleave-run"), str(device), "--random-init", "--data", str(data), "--steps", "3"],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "CLEAVE_FAKE_NCCL": "hang:0:12", "CLEAVE_NCCL": "on",
             "CLEAVE_PATIENCE": "1"})
    assert result.returncode == 1
    assert re.search(r"^.*error: .*step 1: rank [01]: the [a-z-]+ of part .* has not ended after 1 s",
                     result.stderr) and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize("ways", ["one", "nccl", "host", "shared"] if ALL else ["one", "nccl"])
def test_a_check_that_fails_leaves_the_state(ways, tmp_path, monkeypatch):
    """A gradient that is not finite is found before anything is written: parameters and state of the
    optimizer keep every byte, whatever has been enqueued. The next step is as usual."""
    monkeypatch.setenv("CLEAVE_NCCL", "on" if ways == "nccl" else "off")
    monkeypatch.setenv("CLEAVE_SHARED_GPU", "on" if ways == "shared" else "off")
    layout = [] if ways == "one" else ["--mesh=dp=2", "--plan=zero1"]
    device = compile_both(model("gpt", tmp_path), tmp_path, *layout, "--optimizer=adamw",
                          "--max-grad-norm=1")[1]
    record = tmp_path / "record"
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(record))
    # The third run is the first of graphs.
    for graphs, steps in [("on", 3), ("off", 3), ("on", 0)]:
        monkeypatch.setenv("CLEAVE_CUDA_GRAPHS", graphs)
        said, moved, kept, later = trip_apart(device, steps,
                                              ranks_per_device=2 if ways == "shared" else 1)
        assert re.search("not finite|NaN", said), said
        assert kept == [], "these changed in a step that was stopped"
        assert len(later) > 20 and (not steps or len(moved) > 20)
        assert (" graph=1 " in record.read_text()) == (graphs == "on" and steps > 0)
        record.unlink()


def test_a_failure_ends_the_ranks_that_share_a_gpu(device, tmp_path):
    """Wherever one rank fails, the other does not wait for what no longer comes: a launch is refused
    among those of both ranks' steps, of which some are of the exchange."""
    record = tmp_path / "record"
    sharing = dict(sharing=2, CLEAVE_FAKE_DEVICES="1", CLEAVE_SHARED_GPU="on")
    assert says(device, CLEAVE_FAKE_RECORD=str(record), **sharing) == ""
    launches = [line for line in record.read_text().splitlines() if "kind=launch" in line]
    of_exchanges = [i for i, line in enumerate(launches) if "cleave_reduce" in line]
    assert of_exchanges
    step = len(launches) // 2
    wanted = range(2, step, 5) if ALL else [2, of_exchanges[0], step // 2, step - 8]
    for number in wanted:
        said = says(device, CLEAVE_FAKE_FAULT=f"refuse-launch:{number + 1}", **sharing)
        assert "launching a kernel" in said and len(said) < 1000, (number, said)


def test_without_the_library(device, tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    for file in FAKE.iterdir():
        if "nccl" not in file.name:
            (folder / file.name).symlink_to(file)
    # What is chosen is not replaced by what else the machine has.
    (folder / "libnccl.so.2").write_text("no library")
    environment = {"CLEAVE_CUDA_LIBRARIES": str(folder)}
    assert says(device, **environment) == ""
    said = says(device, CLEAVE_NCCL="on", **environment)
    assert "NCCL cannot be used: collectives between GPUs needs libnccl.so.2" in said
    assert str(folder) in said
