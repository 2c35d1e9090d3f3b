# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The cache of compiled programs: a step from it is the step that is compiled without it, in all
that it reports and leaves behind. What is on the disk may be damaged, foreign, full or raced for."""

import fcntl
import json
import logging
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
import warnings

import pytest
import torch

import cleave
from cleave import _cleave
from cleave.compiler.entrance import grouped
from damaged_entries import damages
from proofs import ALL
from process_script import net, token_loss
from written_modules import loaded

HERE = pathlib.Path(cleave.__file__).parent


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of a cache of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CLEAVE_CACHE", str(folder))
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    return folder


# Equality -----------------------------------------------------------------------------

RULES = [lambda: cleave.AdamW(lr=1e-2, max_grad_norm=1.0), lambda: cleave.SGD(lr=0.1, momentum=0.9),
         lambda: cleave.Adafactor(lr=1e-2), lambda: cleave.LAMB(lr=1e-2, weight_decay=0.1),
         lambda: cleave.AdamW8bit(lr=1e-2)]
LAYOUTS = [{}, {"mesh": {"dp": 2}, "plan": "zero1"}, {"mesh": {"tp": 2}, "plan": "megatron-sp"},
           {"mesh": {"pp": 2}, "micro_batches": 2, "schedule": "1f1b"},
           {"mesh": {"dp": 2, "tp": 2, "data": 1}, "plan": ["megatron", "zero2"]},
           {"mesh": {"pp": 2, "dp": 2}, "micro_batches": 2, "schedule": "zb-h1"}]
OTHERS = [{}, {"precision": "bf16"}, {"precision": "fp16"}, {"recompute": "full"},
          {"memory_limit": "64MB"}, {"optimizer_fusion": "forward"}, {"machine": "flops=1e11"},
          {"precision": "bf16", "residual": "f32"}]


IDS = torch.randint(96, (4, 8), generator=torch.Generator().manual_seed(1))


def drawn(seed):
    draw = random.Random(seed)
    options = {**draw.choice(LAYOUTS), **draw.choice(OTHERS)}
    return draw.choice(RULES), options


def trained(make, options, caplog):
    """A step after three calls, and all that it says."""
    caplog.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step = cleave.compile(net(3), (IDS, IDS), token_loss, optimizer=make(), check="off",
                              **grouped(threads=1, **options))
    said = sorted(str(w.message) for w in warned) + [r.getMessage() for r in caplog.records]
    cached = step._live.compiled.cached
    losses = [float(step(IDS, IDS)) for _ in range(3)]
    facts = {
        "losses": losses, "evaluated": float(step.evaluate(IDS, IDS)), "said": said,
        "report": step.report(), "memory": step.memory(), "schedule": step.schedule(),
        **{detail: step.explain(detail) for detail in ("summary", "layers", "full", "memory")},
        **{phase: step.ir(phase) for phase in ("model", "step", "placed", "local", "scheduled",
                                                "executable", "llvm")}}
    training = step.training_state()
    tensors = {**step.state_dict(),
               **{f"{name}.{slot}": value for name, slots in training.pop("optimizer").items()
                  for slot, value in slots.items()}}
    return cached, {**facts, "training": training}, tensors


@pytest.mark.parametrize("seed", range(36 if ALL else 2))
def test_hit_is_miss(seed, cache, monkeypatch, caplog):
    """Compiled without a cache, into it, and read from it."""
    make, options = drawn(seed)
    runs = {}
    for name, value in (("off", "off"), ("miss", str(cache)), ("hit", str(cache))):
        monkeypatch.setenv("CLEAVE_CACHE", value)
        cached, runs[name], tensors = trained(make, options, caplog)
        assert cached == (name == "hit")
        runs[name]["tensors"] = {n: t.reshape(-1).view(torch.uint8).numpy().tobytes()
                                 for n, t in tensors.items()}
    for name in ("miss", "hit"):
        for fact, value in runs["off"].items():
            assert runs[name][fact] == value, (name, fact)


def test_artifact(cache, tmp_path):
    """The saved artifact of a program from the cache."""
    written = []
    for name in ("miss.so", "hit.so"):
        compiled = small()
        compiled.save(str(tmp_path / name))
        written.append((tmp_path / name).read_bytes())
    assert compiled.cached and written[0] == written[1]


# Keys ---------------------------------------------------------------------------------

def small(text=None, **options):
    return _cleave.compile(traced() if text is None else text,
                           json.dumps({"optimizer": {"kind": "sgd"}, "threads": 1, **options}))


class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (x * self.w).sum()


def traced(_kept=[]):
    import cleave.trace
    if not _kept:
        _kept.append(cleave.trace.trace(Product(), (torch.ones(4, 3),)).named_mlir)
    return _kept[0]


def entries(folder):
    return sorted(folder.glob("*.cleave"))


def test_key(cache, tmp_path):
    """All that a program follows from, and nothing else."""
    rates = tmp_path / "rates"
    rates.write_text("flops=1e11\n")
    text = traced()
    assert not small().cached and small().cached
    line = text.index('.py":') + 5
    moved = text[:line] + "9" + text[line:]
    for other, options in ((moved, {}), (text + "\n", {}), (text, {"threads": 2}),
                           (text, {"optimizer": {"kind": "adamw"}}),
                           (text, {"machine": str(rates)}), (text, {"cpu": "x86-64-v2"}),
                           (text, {"vector_bits": 128})):
        assert not small(other, **options).cached and small(other, **options).cached
    rates.write_text("flops=2e11\n")
    assert not small(machine=str(rates)).cached
    rates.write_text("flops=2e11\n\n# a comment\n")
    assert small(machine=str(rates)).cached
    assert len(entries(cache)) == 9


def test_errors_are_not_kept(cache):
    with pytest.raises(_cleave.CompileError, match="no entry has"):
        small(parameters={"nothing": {"weight_decay": 1.0}})
    with pytest.raises(_cleave.CompileError):
        small(memory_limit=1)
    assert not entries(cache)


def test_off(cache, monkeypatch):
    monkeypatch.setenv("CLEAVE_CACHE", "off")
    for _ in range(2):
        compiled = small()
        assert not compiled.cached and not compiled.cache_problem
    assert not cache.exists()


def test_default_folder(tmp_path, monkeypatch):
    """A folder of XDG that is not absolute is none."""
    monkeypatch.setenv("CLEAVE_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    small()
    own = tmp_path / "home" / ".cache" / "cleave" / "compiled"
    assert len(entries(own)) == 1 and own.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    small()
    assert len(entries(tmp_path / "xdg" / "cleave" / "compiled")) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    assert "HOME is not set" in small().cache_problem


# Damage -------------------------------------------------------------------------------


def test_damaged_entries(cache):
    """Compiled again, and replaced."""
    report = small().report()
    entry, = entries(cache)
    whole = entry.read_bytes()
    for damaged in damages(whole, random.Random(1), 3000 if ALL else 20):
        entry.write_bytes(damaged)
        compiled = small()
        assert not compiled.cached and compiled.report() == report
        assert entry.read_bytes() == whole
    assert small().cached


def test_entry_of_another_key(cache):
    small()
    small(threads=2)
    one, other = entries(cache)
    one.write_bytes(other.read_bytes())
    assert [small(threads=n).cached for n in (1, 2)].count(False) == 1


@pytest.mark.parametrize("kind", ["folder", "link", "device", "fifo", "group", "owner"])
def test_entry_of_another_kind(cache, tmp_path, kind):
    small()
    entry, = entries(cache)
    whole, other = entry.read_bytes(), tmp_path / "other"
    if kind in ("group", "owner"):
        if kind == "owner" and os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chmod(entry, 0o620) if kind == "group" else os.chown(entry, 12345, -1)
    else:
        entry.unlink()
        other.write_bytes(whole)
        {"folder": lambda: entry.mkdir(), "link": lambda: entry.symlink_to(other),
         "device": lambda: entry.symlink_to("/dev/zero"),
         "fifo": lambda: os.mkfifo(entry)}[kind]()
    compiled = small()
    assert not compiled.cached
    if kind == "folder":
        assert "Is a directory" in compiled.cache_problem and entry.is_dir()
    else:
        assert not compiled.cache_problem and small().cached and not entry.is_symlink()
    assert not other.exists() or other.read_bytes() == whole


@pytest.mark.parametrize("kind", ["file", "below a file", "group", "owner", "size", "proc"])
def test_unusable_folder(cache, tmp_path, monkeypatch, kind, caplog):
    """One remark, and no cache; nothing is changed."""
    if kind == "owner" and os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    if kind in ("file", "below a file"):
        cache.write_text("of others")
        if kind != "file":
            monkeypatch.setenv("CLEAVE_CACHE", str(cache / "folder"))
    elif kind == "proc":
        monkeypatch.setenv("CLEAVE_CACHE", "/proc/nothing/here")
    elif kind == "size":
        monkeypatch.setenv("CLEAVE_CACHE_BYTES", "many")
    else:
        cache.mkdir()
        os.chmod(cache, 0o770) if kind == "group" else os.chown(cache, 12345, -1)
    message = {"file": "Not a directory", "below a file": "Not a directory",
               "group": "other users can write", "owner": "belongs to another user",
               "size": "CLEAVE_CACHE_BYTES is 'many'", "proc": "No such file"}[kind]
    with caplog.at_level(logging.WARNING, "cleave"):
        for _ in range(2):
            step = cleave.compile(Product(), (torch.ones(4, 3),), optimizer=cleave.SGD(lr=0.1))
    said = [r.getMessage() for r in caplog.records if "not kept for the next start" in r.getMessage()]
    assert len(said) == 1 and message in said[0]
    assert not step._live.compiled.cached
    assert not cache.is_dir() or not list(cache.iterdir())


# Sizes, other files, time -------------------------------------------------------------


def test_bound(cache, monkeypatch):
    """Those that were not used for the longest time go first; what is of others stays."""
    small()
    size = entries(cache)[0].stat().st_size
    foreign = [cache / "notes.txt", cache / ("0" * 64 + ".cleav"), cache / ("g" * 64 + ".cleave"),
               cache / ("0" * 64 + ".next-1"), cache / ("0" * 63 + ".cleave")]
    for path in foreign:
        path.write_bytes(bytes(4 * size))
    kept = cache / ("f" * 64 + ".cleave")
    kept.mkdir()
    monkeypatch.setenv("CLEAVE_CACHE_BYTES", str(int(4.5 * size)))
    for n in range(2, 12):
        assert small().cached  # used again and again
        small(vector_bits=128, max_logits_bytes=n)
        time.sleep(0.01)
        own = [path for path in entries(cache) if path not in foreign and path != kept]
        assert sum(path.stat().st_size for path in own) <= 4.5 * size
    assert small().cached and not small(vector_bits=128, max_logits_bytes=2).cached
    assert small(vector_bits=128, max_logits_bytes=11).cached
    assert kept.is_dir() and all(path.stat().st_size == 4 * size for path in foreign)
    monkeypatch.setenv("CLEAVE_CACHE_BYTES", "1kB")
    compiled = small(max_logits_bytes=99)
    assert not compiled.cached and not compiled.cache_problem
    assert not small(max_logits_bytes=99).cached


@pytest.mark.parametrize("shift", [-10**9, 10**9])
def test_clock_that_was_wrong(cache, monkeypatch, shift):
    """Times that are still to come are none, so that new entries stay."""
    for n in range(3):
        small(max_logits_bytes=1 + n)
    size = max(path.stat().st_size for path in entries(cache))
    for path in entries(cache):
        os.utime(path, (time.time() + shift,) * 2)
    monkeypatch.setenv("CLEAVE_CACHE_BYTES", str(int(3.5 * size)))
    small(max_logits_bytes=10)
    small(max_logits_bytes=11)
    assert small(max_logits_bytes=10).cached and small(max_logits_bytes=11).cached
    assert len(entries(cache)) == 3


def test_what_writers_leave(cache):
    """What a writer leaves that was killed is removed; who writes holds a lock."""
    small()
    name = entries(cache)[0].stem
    left, held = (cache / f"{name}.next-{n * 16}" for n in "ab")
    left.write_bytes(b"half")
    with open(held, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        small(threads=2)
        assert held.exists() and not left.exists()
    small(threads=3)
    assert not held.exists()


# Processes ----------------------------------------------------------------------------

#: Compiles without torch, which takes long to import.
WRITER = f"""
import hashlib, json, os, resource, sys
sys.path.insert(0, {str(HERE)!r})
import _cleave
text, what = open(sys.argv[1]).read(), sys.argv[2]
if what == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
sys.stdin.readline()
found = []
for n in map(int, sys.argv[3:]):
    compiled = _cleave.compile(text, json.dumps(
        {{"optimizer": {{"kind": "sgd"}}, "threads": 1, "max_logits_bytes": n}}))
    found.append([hashlib.sha256(compiled.report().encode()).hexdigest(), compiled.cached,
                  compiled.cache_problem])
print(json.dumps(found))
"""


def start(tmp_path, what, numbers):
    model, script = tmp_path / "model.mlir", tmp_path / "writer.py"
    if not model.exists():
        model.write_text(traced())
        script.write_text(WRITER)
    return subprocess.Popen([sys.executable, "-B", str(script), str(model), what,
                             *map(str, numbers)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_racing_processes(cache, tmp_path):
    """All get the same programs, and leave them whole."""
    count = 60 if ALL else 12
    writers = [start(tmp_path, "race", range(1, 5)) for _ in range(count)]
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    found = [json.loads(writer.communicate(timeout=600)[0]) for writer in writers]
    assert len({tuple(report for report, _, _ in own) for own in found}) == 1
    assert not any(problem for own in found for _, _, problem in own)
    assert len(list(cache.iterdir())) == 4
    assert all(small(max_logits_bytes=n).cached for n in range(1, 5))


def test_full_disk(cache, tmp_path):
    writer = start(tmp_path, "full", [1, 1])
    found = json.loads(writer.communicate("\n", timeout=600)[0])
    assert [cached for _, cached, _ in found] == [False, False]
    assert all("File too large" in problem for _, _, problem in found)
    assert not list(cache.iterdir())


def test_killed_writers(cache, tmp_path):
    """Whenever a writer is killed, no later one reads what is not whole."""
    draw = random.Random(3)
    for _ in range(60 if ALL else 2):
        writer = start(tmp_path, "race", range(1, 30))
        writer.stdin.write("\n")
        writer.stdin.flush()
        time.sleep(draw.uniform(0.2, 1.0))
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    writer = start(tmp_path, "race", range(1, 30))
    after = json.loads(writer.communicate("\n", timeout=600)[0])
    os.environ["CLEAVE_CACHE"] = "off"  # as monkeypatch restores it
    writer = start(tmp_path, "race", range(1, 30))
    plain = json.loads(writer.communicate("\n", timeout=600)[0])
    assert [report for report, _, _ in after] == [report for report, _, _ in plain]
    assert not list(cache.glob("*.next-*"))


@pytest.mark.skipif(not ALL, reason="processes that import torch take long: CLEAVE_TEST_ALL")
@pytest.mark.parametrize("form", ["zero1", "pp"])
def test_one_rank_reads_what_another_compiles(cache, tmp_path, monkeypatch, form):
    """They agree, and train what two do that compile."""
    support = pathlib.Path(__file__).parents[1] / "support" / "files"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    def run(name, folders):
        (tmp_path / name).mkdir()
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        ranks = [subprocess.Popen(
            [sys.executable, str(support / "process_script.py"), form, str(tmp_path / name)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "CLEAVE_PORT": str(port),
                 "CLEAVE_CACHE": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True) for rank, folder in enumerate(folders)]
        said = [rank.communicate(timeout=500)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], said
        return torch.load(tmp_path / name / "results.pt", weights_only=False)

    plain = run("plain", ["off", "off"])
    run("first", [cache, "off"])
    kept = {path.name: path.stat().st_mtime_ns for path in entries(cache)}
    mixed = run("mixed", [cache, tmp_path / "empty"])
    assert kept.keys() == {path.name for path in entries(cache)}
    assert kept.keys() == {path.name for path in entries(tmp_path / "empty")}
    assert plain["losses"] == mixed["losses"]
    for own in ("state",), *(("training", "optimizer", name)
                             for name in plain["training"]["optimizer"]):
        one, other = plain, mixed
        for part in own:
            one, other = one[part], other[part]
        assert one.keys() == other.keys() and all(one[n].equal(other[n]) for n in one)


# The default check --------------------------------------------------------------------

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(6, 6)
    def forward(self, x, y):
        return (self.a(x) - y).square().mean()
"""


@pytest.fixture
def comparisons(tmp_path, monkeypatch):
    """How often a program was compared with eager PyTorch."""
    import cleave.compiler.compare as compare
    # Files that other tests in this process loaded and removed are unknown code: all is compared.
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.isabs(file) and not os.path.exists(file):
            monkeypatch.delitem(sys.modules, name)
    # A worker of pytest has none.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", pytest.__file__, raising=False)
    # What comparing loads, it loads once.
    compiled_net(loaded(tmp_path / "first_net.py", NET, monkeypatch).Net(), check="on")
    calls, original = [], compare.compare
    monkeypatch.delenv("CLEAVE_CHECK", raising=False)
    monkeypatch.setattr(compare, "compare", lambda *args: calls.append(1) or original(*args))
    return calls


def compiled_net(model, **options):
    return cleave.compile(model, (torch.randn(4, 6), torch.randn(4, 6)),
                          optimizer=cleave.SGD(lr=0.1), **grouped(threads=1, **options))


def test_check_is_not_repeated(cache, tmp_path, monkeypatch, comparisons):
    """For the same program of the same files; values may be others."""
    path = tmp_path / "own_net.py"
    for _ in range(3):
        compiled_net(loaded(path, NET, monkeypatch).Net())
    assert len(comparisons) == 1
    compiled_net(loaded(path, NET, monkeypatch).Net(), check="on")
    assert len(comparisons) == 2
    # The traced text is the same.
    changed = NET.replace("(self.a(x) - y)", "(self.a(x) - y )")
    compiled_net(loaded(path, changed, monkeypatch).Net())
    assert len(comparisons) == 3
    compiled_net(loaded(path, changed, monkeypatch).Net(), max_logits_bytes=1 << 20)
    assert len(comparisons) == 4
    monkeypatch.setenv("CLEAVE_CACHE", "off")
    compiled_net(loaded(path, changed, monkeypatch).Net())
    assert len(comparisons) == 5


def test_what_tracing_does_not_see(cache, tmp_path, monkeypatch, comparisons):
    """A model that differs from its trace is refused after one with the same trace has passed."""
    path = tmp_path / "own_net.py"
    compiled_net(loaded(path, NET, monkeypatch).Net())
    hidden = NET.replace("return (self.a(x) - y)", "return (self.a(x) - y + self.more(x))") + """
    def more(self, x):
        return 0.0 if torch.compiler.is_exporting() else 1.0
"""
    for _ in range(2):
        with pytest.raises(cleave.CompileError, match="differs from eager PyTorch"):
            compiled_net(loaded(path, hidden, monkeypatch).Net())


def test_code_in_no_file(cache, comparisons):
    """As in a notebook: it may be another at each start."""
    names = {}
    exec(NET, names)
    for n in (1, 2):
        compiled_net(names["Net"]())
        assert len(comparisons) == n


def test_remarks_of_the_check_are_repeated(cache, tmp_path, monkeypatch, comparisons, caplog):
    text = NET.replace("(self.a(x) - y).square()",
                       "((self.a(x) - y).square() + 0 * self.a.bias[0].sqrt())")
    for n in (1, 2):
        caplog.clear()
        net = loaded(tmp_path / "own_net.py", text, monkeypatch).Net()
        with torch.no_grad():
            net.a.bias.zero_()
        compiled_net(net)
        assert len(comparisons) == n
        assert any("NaN or infinite" in r.getMessage() for r in caplog.records)
