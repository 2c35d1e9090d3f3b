# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A step in several threads works one call at a time; in a forked process, or as a copy, it
is refused. Nothing waits forever."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.runtime.program import Program
from cleave.trace import UnsupportedError
from cleave.trace.asked_modes import AskedModes, ModesDiffer
from cleave.trace.patches import patched
from cleave.compiler.entrance import grouped

X, Y = torch.linspace(-1, 1, 16).view(4, 4), torch.tensor([0, 2, 1, 0])
MESHES = [None, {"dp": 2}]
#: Seconds after which something hangs.
PATIENCE = 180


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def compiled(model=None, **options):
    return cleave.compile(model or linear(), (X, Y), F.cross_entropy, optimizer=cleave.SGD(lr=0.1),
                          **grouped(**options))


@pytest.mark.parametrize("make", [
    pickle.dumps, copy.copy, copy.deepcopy, lambda step: torch.save(step, os.devnull),
    lambda step: copy.deepcopy({"step": step}),
])
def test_copies_are_refused(make):
    step = compiled()
    with pytest.raises(TypeError, match=r"cannot be copied or pickled.*step.save\(folder\)"):
        make(step)
    loss = step(X, Y)
    assert pickle.loads(pickle.dumps(loss)) == loss and loss.step == 1


def test_errors_are_pickled():
    error = UnsupportedError([("aten.mode", "no conversion", "model.py:3", 2)])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.operators == error.operators


def in_threads(work, count=2):
    """Runs `work(i)` in `count` threads, and raises what one of them raised."""
    raised = []

    def run(i):
        try:
            work(i)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_calls_of_threads_wait_for_each_other(mesh):
    """All are made, also those that compile programs for other shapes."""
    step, alone = compiled(mesh=mesh), compiled(mesh=mesh)
    in_threads(lambda i: [step(X, Y) for _ in range(20)])
    for _ in range(40):
        alone(X, Y)
    assert step.step == 40
    own, other = step.state_dict(), alone.state_dict()
    assert all(torch.equal(v, other[k]) for k, v in own.items())
    in_threads(lambda i: [step(X[:2 + 2 * (n % 2)], Y[:2 + 2 * (n % 2)]) for n in range(i, i + 6)])
    assert step.step == 52 and step(X, Y) > 0


def test_threads_save_and_load(tmp_path):
    step = compiled()
    in_threads(lambda i: [step.save(tmp_path / "c") or step.load(tmp_path / "c")
                          for _ in range(10)])
    assert step(X, Y).step == 1


def test_a_trace_changes_no_other_thread():
    """Modes that another thread reads while a forward is watched are not those of the forward; what
    two threads change for their traces is as it was after both."""
    asked, model, read = AskedModes(ends=True), nn.Linear(4, 4), []
    with asked.watched():
        other = threading.Thread(target=lambda: read.append(model.training))
        other.start()
        other.join()
        assert read == [True] and not asked.differs
        with pytest.raises(ModesDiffer):
            read.append(model.training)
    owner = type("Owner", (), {"value": 0})
    inside, left, seen = threading.Event(), threading.Event(), []

    def first():
        with patched((owner, "value", 1)):
            inside.set()
            left.wait(1)
            seen.append(owner.value)

    def second():
        inside.wait(60)
        with patched((owner, "value", 2)):
            left.set()
            seen.append(owner.value)

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [1, 2] and owner.value == 0


def test_threads_compile():
    losses = {}
    torch.manual_seed(0)
    models = [nn.Linear(4, 4) for _ in range(3)]

    def work(i):
        losses[i] = float(cleave.compile(models[i], (X, Y), F.cross_entropy, check="on")(X, Y))

    in_threads(work, 3)
    assert losses == {i: pytest.approx(float(F.cross_entropy(m(X), Y).detach()), rel=1e-5)
                      for i, m in enumerate(models)}


# Forked processes ---------------------------------------------------------------------


def forked(work):
    """What `work()` returns, or the text of what it raises, in a forked process."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(sink, text.encode())
        os._exit(0)
    os.close(sink)
    deadline = time.monotonic() + PATIENCE
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the forked process hangs")
        time.sleep(0.01)
    with os.fdopen(source) as file:
        return file.read()


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_forked_processes(mesh, threads, tmp_path):
    step = compiled(mesh=mesh, threads=threads)
    step(X, Y)
    step.save(tmp_path / "c")
    own = step.state_dict()
    for call in (lambda: step(X, Y), lambda: step(X[:2], Y[:2]), lambda: step.evaluate(X, Y),
                 lambda: step.logits(X), lambda: step.save(tmp_path / "d"),
                 lambda: step.load(tmp_path / "c"), lambda: step.load_weights(tmp_path / "c"),
                 lambda: step.load_state_dict(own),
                 lambda: step.load_training_state(step.training_state())):
        text = forked(call)
        assert text.startswith(f"RuntimeError: this process was forked from process {os.getpid()}")
        assert "Compile a step here, or save it there" in text
    assert forked(lambda: all(torch.equal(v, own[k]) for k, v in step.state_dict().items())) == "True"
    assert "Linear" in forked(lambda: repr(step))
    assert float(forked(lambda: float(compiled(mesh=mesh, threads=threads)(X, Y)))) > 0
    assert step(X, Y).step == 2


def test_forked_while_another_thread_compiles():
    """What that thread held would not be released."""
    # Made before: a thread that draws weights holds a lock of PyTorch's generator.
    models = [linear(), linear()]
    texts = forked_beside(lambda: compiled(models[0]),
                          lambda: float(compiled(models[1])(X, Y)), [0.1] * 6)
    refused = [text for text in texts if "forked while another thread compiled" in text]
    assert refused and all(float(text) > 0 for text in texts if text not in refused)
    assert float(forked(lambda: float(compiled()(X, Y)))) > 0


def test_forked_while_another_thread_frees():
    """Unloading a program takes a lock of the loader."""
    began, forked_once, model = threading.Event(), threading.Event(), linear()

    class Slow:
        def __del__(self):
            began.set()
            forked_once.wait(PATIENCE)

    programs = [Program(None, Slow(), [])]
    thread = threading.Thread(target=programs.clear)
    thread.start()
    began.wait(PATIENCE)
    try:
        text = forked(lambda: float(compiled(model)(X, Y)))
    finally:
        forked_once.set()
        thread.join()
    assert "forked while another thread compiled, ran or freed a step" in text
    assert float(forked(lambda: float(compiled(model)(X, Y)))) > 0


def forked_beside(work, forking, pauses):
    """What `forking()` gives in processes forked after `pauses` in seconds, while another
    thread repeats `work()`."""
    ended, texts = threading.Event(), []

    def repeat():
        while not ended.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        for pause in pauses:
            time.sleep(pause)
            texts.append(forked(forking))
    finally:
        ended.set()
        thread.join()
    return texts


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((4,), i / 32), i % 4


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_workers_of_a_data_loader(mesh):
    step = compiled(mesh=mesh)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, timeout=PATIENCE,
                                         multiprocessing_context="fork")
    for batch in loader:
        step(*batch)
    assert step.step == 8


@pytest.mark.parametrize("end", ["sys.exit(0)", "del step; gc.collect(); os._exit(0)"])
def test_forked_processes_end(end):
    """Threads that a forked process does not have are not waited for."""
    script = textwrap.dedent(f"""
        import gc, os, sys, torch, cleave
        x = torch.ones(4, 4)
        step = cleave.compile(torch.nn.Linear(4, 4), (x, x), torch.nn.functional.mse_loss,
                              mesh={{"dp": 2}})
        step(x, x)
        if os.fork() == 0:
            {end}
        assert os.wait()[1] == 0
        print(float(step(x, x)) > 0)
        """)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                            timeout=PATIENCE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert result.returncode == 0 and result.stdout.strip() == "True", result.stderr


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="there is no /proc")
def test_shapes_leave_no_threads():
    """A step that has seen five shapes of batches has the threads of one."""
    step = cleave.compile(nn.Linear(4, 4), (torch.ones(4, 4), torch.ones(4, 4)), F.mse_loss,
                          target=cleave.Target(threads=2))
    found = []
    for samples in (4, 1, 2, 3, 5):
        step(torch.ones(samples, 4), torch.ones(samples, 4))
        found.append(len(os.listdir("/proc/self/task")))
    assert max(found) == found[0], found
