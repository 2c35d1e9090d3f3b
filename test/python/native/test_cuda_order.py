# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The order of a GPU's work, on the stand-in of test/fake_cuda: by the record of the plugin's calls,
and by running them in other orders; and faults, of which each has to be found."""

import re
from collections import Counter

import numpy as np
import pytest

import stream_races
from cleave.testing.tools import build_dir, run_tool, tool
from cuda_fake import FAKE, fake_device  # noqa: F401
from proofs import ALL
from step_runs import differences, feed_apart, model, run_apart, run_variants

pytestmark = pytest.mark.skipif(
    not (FAKE / "libnccl.so.2").exists() or not (build_dir() / "lib" / "libcleave_cuda.so").exists(),
    reason="needs NVIDIA's headers and clang")

#: The family, and what is compiled of it.
LAYOUTS = {
    "state": ("gpt", ["--offload=state"]),
    "saved": ("gpt", ["--offload=state,saved"]),
    "zero1": ("gpt", ["--mesh=dp=2", "--plan=zero1", "--offload=state,saved"]),
    "zero2": ("gpt", ["--mesh=dp=2", "--plan=zero2"]),
    "zero3": ("llama", ["--mesh=dp=4", "--plan=zero3", "--offload=state"]),
    "sequence": ("gpt", ["--mesh=tp=2", "--plan=megatron-sp"]),
    "chunks": ("gpt", ["--mesh=tp=2", "--plan=megatron-sp", "--collective-chunks=2",
                       "--collective-chunk-bytes=0", "--bucket-bytes=0"]),
    "both": ("bert", ["--mesh=dp=2,tp=2", "--plan=megatron-sp,zero2"]),
    "ring": ("llama", ["--mesh=cp=2", "--plan=ring"]),
    "ulysses": ("gpt", ["--mesh=cp=2", "--plan=ulysses"]),
    "experts": ("mixtral", ["--mesh=ep=2", "--plan=expert"]),
    "1f1b": ("gpt", ["--mesh=pp=2", "--micro-batches=4", "--schedule=1f1b"]),
    "zb-h1": ("t5", ["--mesh=pp=2", "--micro-batches=4", "--schedule=zb-h1"]),
    "checked": ("gpt", ["--mesh=pp=2", "--micro-batches=4", "--schedule=zb-h1",
                        "--post-validation"]),
    "all": ("gpt", ["--mesh=pp=2,dp=2", "--micro-batches=2", "--schedule=1f1b", "--plan=zero2",
                    "--offload=state,saved"]),
}
#: By NCCL, through the host, or between ranks that share a GPU.
WAYS = ["nccl", "host", "shared"]
SAMPLE = [("saved", "f32", "host"), ("zero2", "bf16", "nccl"), ("1f1b", "f32", "nccl"),
          ("zero1", "f32", "shared"), ("chunks", "bf16", "nccl")]
CASES = [(layout, precision, way) for layout, (_, flags) in LAYOUTS.items()
         for precision in ("f32", "bf16") for way in WAYS if way == "host" or "--mesh" in flags[0]]


def compiled(layout, precision, folder):
    family, flags = LAYOUTS[layout]
    run_tool([tool("cleave-compile"), str(model(family, folder)), f"--precision={precision}", *flags,
              "--optimizer=adamw", "--target=cuda", "-o", str(folder / "device.so")])
    return folder / "device.so"


def exchanges(way, monkeypatch):
    """Sets how ranks exchange; returns options of runs."""
    monkeypatch.setenv("CLEAVE_NCCL", "on" if way == "nccl" else "off")
    monkeypatch.setenv("CLEAVE_SHARED_GPU", "on" if way == "shared" else "off")
    if way != "shared":
        return {}
    monkeypatch.setenv("CLEAVE_FAKE_DEVICES", "1")
    return {"ranks_per_device": 4}


# The calls of the plugin ---------------------------------------------------------------


@pytest.mark.parametrize("layout, precision, way", CASES if ALL else SAMPLE)
def test_all_work_is_ordered(layout, precision, way, tmp_path, monkeypatch):
    """Of each rank: computation, copies of offload memory, collectives and transfers, what is
    exchanged through the host, and what the host reads and writes. Without any of its waits or
    events, or with a command on a stream of its own, it is not: none is more than is needed."""
    options = exchanges(way, monkeypatch)
    device = compiled(layout, precision, tmp_path)
    monkeypatch.setenv("CLEAVE_CUDA_RECORD", str(tmp_path / "calls"))
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / "ops"))
    run_apart(device, 1, **options)
    records = [stream_races.read(path) for path in sorted(tmp_path.glob("calls*"))]
    mesh = LAYOUTS[layout][1][0]
    ranks = np.prod([int(n) for n in re.findall("=([0-9]+)", mesh)]) if "--mesh" in mesh else 1
    assert len(records) == ranks
    # The calls are those that the driver saw.
    lines = Counter(line["do"] for record in records for line in record)
    ops = (tmp_path / "ops").read_text()
    # Ranks that share a GPU wait for events of each other, too.
    assert (lines["wait"] < ops.count(" kind=wait") if way == "shared" else
            lines["wait"] == ops.count(" kind=wait"))
    assert lines["event"] <= ops.count(" kind=event")
    assert lines["work"] > 300
    streams = {line.get("stream") for record in records for line in record}
    assert any("transfers" in str(s) for s in streams) == (way == "nccl" and "pp=" in mesh)
    seen = Counter()
    for record in records if ALL else records[:1]:
        conflicts = stream_races.find_conflicts(record)
        assert not stream_races.find_races(record, conflicts)
        used = {one for one, _ in conflicts}
        for what, index, faulty in stream_races.faults(record):
            # What nothing uses any more may run at any time.
            if what == "stream" and index not in used:
                continue
            seen[what] += 1
            assert next(stream_races.races(faulty, conflicts), None), (what, record[index])
    assert seen["stream"] > 100
    # Two streams may wait for one event.
    assert seen["wait"] + seen["reach"] >= seen["event"]
    assert (seen["wait"] > 10) == (way != "host" or "offload" in " ".join(LAYOUTS[layout][1]))
    print(f"{layout} {precision} {way}: {dict(seen)}")


def test_chunks_are_sent_while_others_are_computed(tmp_path, monkeypatch):
    """With `--collective-chunks`, products have a collective beside them that nothing orders with
    them. Bits are those of whole collectives."""
    exchanges("nccl", monkeypatch)
    beside, given = {}, {}
    for layout in ("sequence", "chunks"):
        folder = tmp_path / layout
        folder.mkdir()
        device = compiled(layout, "bf16", folder)
        monkeypatch.setenv("CLEAVE_CUDA_RECORD", str(folder / "calls"))
        given[layout] = run_apart(device, 1)
        record = stream_races.read(min(folder.glob("calls*")))
        work = [i for i, line in enumerate(record) if line["do"] == "work"]
        pairs = [(i, j) for i in work if "communication" in str(record[i]["stream"])
                 for j in work if i < j and record[j]["label"].startswith("contract")]
        beside[layout] = len({j for _, j in stream_races.races(record, pairs)})
        products = sum(record[j]["label"].startswith("contract") for j in work)
        print(f"{layout}: {beside[layout]} of {products} products")
    assert beside["chunks"] >= beside["sequence"] + 20
    assert same(given["chunks"], given["sequence"])


def test_races_are_found():
    work = lambda stream, reads, writes: {"do": "work", "stream": stream, "reads": reads,
                                          "writes": writes}
    host = lambda reads, writes: {"do": "host", "reads": reads, "writes": writes}
    one, other, apart = [[0, 0, 8]], [[0, 4, 8]], [[0, 8, 8]]
    order = [{"do": "event", "stream": "a", "event": 1}, {"do": "wait", "stream": "b", "event": 1}]
    finish = {"do": "finish", "stream": "a"}
    first, second = work("a", [], one), work("b", other, [])
    assert stream_races.find_races([first, second]) == [(0, 1)]
    assert not stream_races.find_races([first, *order, second])
    # An event before the work, or a wait after it, orders nothing; nor does one of offload memory.
    assert stream_races.find_races([order[0], first, order[1], second])
    assert stream_races.find_races([first, order[0], second, order[1]])
    assert not stream_races.find_races([first, finish, second])
    assert not stream_races.find_races([first, work("a", other, [])])
    assert not stream_races.find_races([first, work("b", apart, [])])
    assert not stream_races.find_races([first, work("b", [[1, 0, 8]], [])])
    assert not stream_races.find_races([work("a", one, []), work("b", one, [])])
    # The host waits only for works that it has finished itself; later works follow them.
    assert stream_races.find_races([first, host(other, [])]) == [(0, 1)]
    assert not stream_races.find_races([first, finish, host(other, [])])
    assert not stream_races.find_races([host([], one), second])
    faults = list(stream_races.faults([first, *order, second]))
    assert [what for what, _, _ in faults] == ["stream", "event", "wait", "stream"]
    assert all(stream_races.find_races(faulty) for _, _, faulty in faults)


# What the host gives and takes ---------------------------------------------------------


def lines_of_runs(record):
    """The lines from where each run has its inputs to where the next one has."""
    begins = [i for i, line in enumerate(record) if line["do"] == "event"
              and line["stream"] == "inputs"]
    return [record[one:other] for one, other in zip(begins, begins[1:])]


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    """Programs of one rank on the CPU and on a GPU."""
    folder = tmp_path_factory.mktemp("fed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEAVE_CUDA_LIBRARIES", str(FAKE))
        for name, target in [("native", ["--threads=1"]), ("device", ["--target=cuda"])]:
            run_tool([tool("cleave-compile"), str(model("gpt", folder)), "--optimizer=adamw",
                      *target, "-o", str(folder / f"{name}.so")])
    return folder / "native.so", folder / "device.so"


@pytest.mark.parametrize("entry, result", [("train", "loss"), ("train", ""), ("logits", "")])
def test_inputs_are_given_while_a_run_is_under_way(entry, result, fed, tmp_path, monkeypatch):
    """The host waits for no copy of an input, nor for the end of a step, and for nothing at all
    where it has no flag to wait for, but for pinned memory that is still copied from. Without any
    of the waits or events there is a race."""
    monkeypatch.setenv("CLEAVE_CUDA_RECORD", str(tmp_path / "calls"))
    feed_apart(fed[1], [entry] * 6, result)
    record = stream_races.read(tmp_path / "calls0")
    conflicts = stream_races.find_conflicts(record)
    assert not stream_races.find_races(record, conflicts)
    used, seen = {one for one, _ in conflicts}, Counter()
    for what, index, faulty in stream_races.faults(record):
        if what == "stream" and index not in used:
            continue
        seen[what] += 1
        assert next(stream_races.races(faulty, conflicts), None), (what, record[index])
    copies = Counter(line["stream"] for line in record if line.get("label") == "an input"
                     and line["do"] == "work")
    assert copies == {"inputs": 12}
    print(entry, result, dict(seen))
    for lines in lines_of_runs(record)[2:]:
        done = Counter((line["do"], line.get("stream")) for line in lines)
        # The flag of the checks.
        assert done["finish", "compute"] == (entry == "train")
        assert done["finish", "inputs"] == 0
        assert done["wait", "compute"] == 1
        # Behind the check nothing reads an input.
        assert done["wait", "inputs"] == (entry == "logits")
        assert done["reach", ""] == (entry == "logits")


def test_fed_steps_have_the_same_bits(fed, monkeypatch):
    """With inputs of its own for each step; as on the CPU, but for rounding."""
    entries = ["train"] * 4 + ["evaluate", "train", "evaluate", "evaluate", "train"]
    expected, results = feed_apart(fed[0], entries), []
    assert len(expected) > 20
    for graphs, order in [("off", "earliest"), ("on", "latest"), *(("on", str(i)) for i in range(6))]:
        monkeypatch.setenv("CLEAVE_CUDA_GRAPHS", graphs)
        monkeypatch.setenv("CLEAVE_FAKE_ORDER", order)
        results.append(feed_apart(fed[1], entries, twice=order != "1"))
    for found in results:
        assert all(np.array_equal(a, b) for a, b in zip(found, results[0], strict=True))
        losses = zip(found[:len(entries)], expected)
        assert all(np.abs(a - b).max() < 1e-5 for a, b in losses)


# Other orders --------------------------------------------------------------------------


@pytest.mark.parametrize("layout, precision, way", [
    ("saved", "bf16", "host"), ("zero1", "f32", "nccl"), ("zero3", "bf16", "host"),
    ("1f1b", "f32", "nccl"), ("sequence", "bf16", "nccl"), ("checked", "f32", "nccl"),
    ("all", "f32", "nccl"), ("all", "bf16", "shared"), ("both", "f32", "shared"),
    ("chunks", "f32", "nccl"), ("chunks", "bf16", "shared")
][slice(None) if ALL else slice(0, 5, 3)])
def test_order_of_work_does_not_matter(layout, precision, way, tmp_path, monkeypatch):
    """Every order that streams, events and ranks allow gives the same bits."""
    options = exchanges(way, monkeypatch)
    device = compiled(layout, precision, tmp_path)
    results = run_variants(device, "CLEAVE_FAKE_ORDER",
                           ["earliest", "latest", *map(str, range(20))], **options)
    given, _, parameters = results["earliest"]
    for order, found in results.items():
        assert not isinstance(found, str), (order, found)
        assert np.array_equal(given, found[0]), order
        assert all(np.array_equal(v, found[2][k]) for k, v in parameters.items()), order


# Seeded faults ------------------------------------------------------------------------

#: The faults of the driver at the n-th call of its kind.
FAULTS = ["grid", "offset", "offset-last", "skip", "skip-call"]

#: Where a fault changes nothing, and why:
EQUIVALENT = {
    # a check that passes does nothing, with its flag or with the next one, which is set too;
    "cleave_check": ["grid", "offset", "offset-last", "skip"],
    # a kernel of sorts does not use all of their pointers;
    "cleave_sort_count": ["offset-last"],
    "cleave_sort_sum": ["offset"],
    # a second stage reads scratch memory, its last pointer, not the first;
    "cleave_finish_": ["offset"],
    # the number of labels is that of any bytes that are no ignored label.
    "cleave_kernel_compare_cast_reduce": ["offset"],
}
#: All that a step computes counts: each position has a label, the norm of all gradients clips them.
#: Parameters are so large that attention is not uniform, and its gradients count in the norm.
SCALE = 0.3
STEP = ["--optimizer=sgd", "--momentum=0.9", "--max-grad-norm=0.1"]


def launches(record, fault):
    """The names of what a run launches, or calls of the library, in order."""
    kind = " kind=call " if fault == "skip-call" else " kind=launch "
    return [re.search(r" name=(\S+)", line)[1] for line in record.read_text().split("\n")
            if kind in line]


def is_equivalent(fault, name):
    return any(name.startswith(start) and fault in faults for start, faults in EQUIVALENT.items())


def same(found, expected):
    """Whether a run has the results, parameters and state of another, bit for bit."""
    return not isinstance(found, str) and np.array_equal(found[0], expected[0]) and all(
        np.array_equal(found[2][name], value) for name, value in expected[2].items())


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEAVE_CUDA_LIBRARIES", str(FAKE))
        run_tool([tool("cleave-compile"), str(model("bert", folder)), *STEP, "--target=cuda", "-o",
                  str(folder / "device.so")])
    return folder / "device.so"


def test_faults_are_many(step, tmp_path, monkeypatch):
    """The faults of a full run: 300 and more that count, beside those that are listed as
    equivalent."""
    monkeypatch.setenv("CLEAVE_CUDA_GRAPHS", "off")
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / "record"))
    run_variants(step, "CLEAVE_FAKE_FAULT", [""], scale=SCALE)
    names = {fault: launches(tmp_path / "record", fault) for fault in FAULTS}
    counted = {fault: sum(not is_equivalent(fault, name) for name in own)
               for fault, own in names.items()}
    print(counted, {fault: len(own) - counted[fault] for fault, own in names.items()})
    assert sum(counted.values()) >= 300
    for start, faults in EQUIVALENT.items():
        for fault in faults:
            assert any(name.startswith(start) for name in names[fault]), (start, fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault, step, tmp_path, monkeypatch):
    """In two steps. A fault gives other bits, or ends the process; nearly all of those of products
    differ by more than rounding too."""
    monkeypatch.setenv("CLEAVE_CUDA_GRAPHS", "off")
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / "record"))
    expected = run_variants(step, "CLEAVE_FAKE_FAULT", [""], scale=SCALE)[""]
    names = launches(tmp_path / "record", fault)
    monkeypatch.delenv("CLEAVE_FAKE_RECORD")
    assert len(names) > 80
    places = [place + 1 for place in np.random.default_rng(len(fault)).permutation(len(names))
              if ALL or not is_equivalent(fault, names[place])][:None if ALL else 4]
    assert len(places) == (len(names) if ALL else 4)
    results = run_variants(step, "CLEAVE_FAKE_FAULT", [f"{fault}:{place}" for place in places],
                           scale=SCALE)
    unseen = [place for place in places if same(results[f"{fault}:{place}"], expected)]
    missed = [(place, names[place - 1]) for place in unseen
              if not is_equivalent(fault, names[place - 1])]
    print(f"{fault}: {len(places) - len(unseen)} of {len(places)}; equivalent: "
          f"{len(unseen) - len(missed)}; missed: {missed}")
    # Of all, two in a hundred; of a sample, one.
    assert len(missed) <= ((len(places) - len(unseen) + len(missed)) // 50 if ALL else 1)
    if fault == "skip-call":
        quiet = [place for place, found in results.items() if not isinstance(found, str)
                 and not list(differences(expected, found, "f32"))]
        assert len(quiet) <= len(places) // 25, quiet


@pytest.mark.parametrize("family, hidden, flags", [
    ("bert", 256, STEP), ("gpt", 512, ["--precision=bf16", *STEP]),
    ("llama", 256, ["--optimizer=adamw8bit"])
][slice(None) if ALL else slice(0, 1)])
def test_missing_barriers_are_found(family, hidden, flags, tmp_path, monkeypatch):
    """Of each line of the kernels where threads of a block meet. Rows have several warps here, and
    loops over keys and ids several turns."""
    path = model(family, tmp_path, hidden, "--seq=144", "--layers=1")
    device = tmp_path / "device.so"
    run_tool([tool("cleave-compile"), str(path), *flags, "--target=cuda", "-o", str(device)])
    monkeypatch.setenv("CLEAVE_FAKE_BARRIERS", str(tmp_path / "reached"))
    expected = run_variants(device, "CLEAVE_FAKE_FAULT", [""])[""]
    monkeypatch.delenv("CLEAVE_FAKE_BARRIERS")
    lines = sorted({int(line) for line in (tmp_path / "reached").read_text().split()})
    assert len(lines) > 15
    left = lines if ALL else lines[::6]
    for order in ("down", "up", "1"):
        monkeypatch.setenv("CLEAVE_THREAD_ORDER", order)
        results = run_variants(device, "CLEAVE_FAKE_FAULT", ["", *(f"barrier:{n}" for n in left)])
        # The order of threads is none of the result's.
        assert same(results[""], expected)
        left = [n for n in left if same(results[f"barrier:{n}"], expected)]
    print(f"{family}: {len(lines) - len(left)} of {len(lines)}")
    assert not left
