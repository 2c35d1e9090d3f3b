# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A signal whose handler raises, whenever it comes: the state, the number of steps and
what the last of them returned belong together, and are those of a run without it.

Handlers run between two instructions of Python. Each of these is tried in turn, and
random moments besides, also inside of the compiled step.
"""

import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import cleave
from cleave.compiler.entrance import grouped
from training_support import ALL, net, same_bits, snapshot, token_loss, tokens

PACKAGE = str(pathlib.Path(cleave.__file__).parent)
BATCHES = [tokens(seed=seed) for seed in range(4)]
#: Another shape, which another program takes.
LONG = tokens(batch=2, seed=9)
FORMS = {
    "one": {},
    "ranks": {"mesh": {"dp": 2}},
    "pipeline": {"mesh": {"pp": 2}, "micro_batches": 4},
    "fused": {"optimizer_fusion": "forward"},
}


def interrupted_at(number, body):
    """Runs `body`, and raises in front of instruction `number` of the package; whether
    it has as many."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        body()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.fixture(scope="module", params=FORMS)
def run(request):
    """A step; snapshots and losses by the number of steps; training states."""
    step = cleave.compile(net(), BATCHES[0], token_loss, optimizer=cleave.AdamW(lr=1e-2),
                          **grouped(threads=1, **FORMS[request.param]))
    states, taken, losses = [], [], [None]
    for number in range(4):
        states.append((step.state_dict(), step.training_state()))
        taken.append(snapshot(step))
        if number < 3:
            losses.append(float(step(*BATCHES[number])))
    return step, states, taken, losses


def restore(step, state):
    step.load_state_dict(state[0])
    step.load_training_state(state[1])


def check(step, taken, losses, possible):
    """What `step` says and holds is that of one of the `possible` numbers of steps."""
    count = step.step
    assert count in possible
    assert same_bits(snapshot(step), taken[count])
    if step.last is not None:
        assert step.last.step == count and float(step.last) == losses[count]
    return count


#: Every so many instructions.
STRIDE = 1 if ALL else 7


def test_step(run):
    step, states, taken, losses = run
    seen = set()
    number = 1
    while True:
        restore(step, states[1])
        if not interrupted_at(number, lambda: step(*BATCHES[1])):
            break
        count = check(step, taken, losses, (1, 2))
        assert (step.last is None) == (count == 1)
        seen.add(count)
        # It goes on from there.
        assert float(step(*BATCHES[count])) == losses[count + 1]
        check(step, taken, losses, (count + 1,))
        number += STRIDE
    assert seen == {1, 2}


def test_another_shape(run):
    """The state moves to another program and back."""
    step, states, taken, losses = run
    step.evaluate(*LONG)
    number = 1
    while True:
        restore(step, states[1])
        step.evaluate(*LONG)
        if not interrupted_at(number, lambda: step(*BATCHES[1])):
            break
        count = check(step, taken, losses, (1, 2))
        assert float(step(*BATCHES[count])) == losses[count + 1]
        number += 20 * STRIDE
    assert number > 100


@pytest.mark.parametrize("entry", ["evaluate", "logits", "state_dict", "training_state"])
def test_what_only_reads(run, entry):
    step, states, taken, losses = run
    restore(step, states[1])
    step(*BATCHES[1])
    body = getattr(step, entry)
    given = {"evaluate": BATCHES[0], "logits": BATCHES[0][:1]}.get(entry, ())
    number = 1
    while interrupted_at(number, lambda: body(*given)):
        check(step, taken, losses, (2,))
        number += 4 * STRIDE
    assert number > 20


def test_loading(run):
    """All of it is loaded, or nothing."""
    step, states, taken, _ = run
    number, seen = 1, set()
    while True:
        restore(step, states[1])
        if not interrupted_at(number, lambda: step.load_state_dict(states[2][0])):
            break
        values = snapshot(step)
        which = [i for i in (1, 2) if same_bits(({**values[0]}, {}, 0), (taken[i][0], {}, 0))]
        assert len(which) == 1 and step.step == 1
        seen.add(which[0])
        number += 8 * STRIDE
    assert 1 in seen
    number, seen = 1, set()
    while True:
        restore(step, states[1])
        if not interrupted_at(number, lambda: step.load_training_state(states[2][1])):
            break
        values = snapshot(step)
        assert same_bits(({}, values[1], step.step), ({}, taken[step.step][1], step.step))
        seen.add(step.step)
        number += 8 * STRIDE
    assert 1 in seen


def test_random_moments(run):
    """A timer, whose handler raises as that of an interrupt does."""
    step, states, taken, losses = run
    rng = random.Random(1)
    # How long a step takes, in seconds.
    restore(step, states[0])
    start = time.perf_counter()
    for number in range(3):
        step(*BATCHES[number])
    length = (time.perf_counter() - start) / 3
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = 0
    try:
        for _ in range(400 if ALL else 60):
            restore(step, states[0])
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 3.5 * length))
                for number in range(3):
                    step(*BATCHES[number])
                time.sleep(10 * length)
            except KeyboardInterrupt:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            count = check(step, taken, losses, range(4))
            for number in range(count, 3):
                assert float(step(*BATCHES[number])) == losses[number + 1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 10


SCRIPT = """
    import sys
    import torch, cleave
    from training_support import net, snapshot, token_loss, tokens
    batches = [tokens(seed=seed) for seed in range(4)]
    def make():
        return cleave.compile(net(), batches[0], token_loss, optimizer=cleave.AdamW(lr=1e-2),
                              target=cleave.Target(threads=1), mesh={"dp": 2})
    step = make()
    print("ready", flush=True)
    try:
        while True:
            step(*batches[step.step % 4])
    except KeyboardInterrupt:
        pass
    done, loss = step.step, step.last
    other = make()
    for number in range(done):
        last = other(*batches[number % 4])
    from training_support import same_bits
    assert same_bits(snapshot(step), snapshot(other))
    assert done == 0 or (loss.step == done and loss == last)
    print("equal after", done)
"""


def test_interrupt_of_a_process():
    """Ctrl-C, at random moments, with ranks that are threads."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    rng = random.Random(2)
    for _ in range(10 if ALL else 1):
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SCRIPT)], text=True,
                                   stdout=subprocess.PIPE, env=environment)
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.02, 0.2))
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and said.startswith("equal after")
