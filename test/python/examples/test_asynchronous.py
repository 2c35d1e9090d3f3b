# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Asynchronous processes against recurrences that are written here again, in NumPy."""

import itertools
import threading

import numpy as np
import pytest

import backup_workers
import bounded_staleness
import parameter_server
from asynchronous import FEATURES, SAMPLES, gradient, held_out, loss, samples, start

RATE = 0.4


def test_gradient_is_that_of_the_loss():
    weights = np.random.default_rng(5).normal(size=FEATURES)
    x, y = samples(2, 3)
    assert x.shape == (SAMPLES, FEATURES) and set(y) <= {-1.0, 1.0}
    for i in range(FEATURES):
        around = [loss(weights + sign * 1e-6 * np.eye(FEATURES)[i], x, y) for sign in (1, -1)]
        assert gradient(weights, 2, 3)[i] == pytest.approx((around[0] - around[1]) / 2e-6, abs=1e-7)


# ---------------------------------------------------------------------------------------------
# The parameter server
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", range(5))
def test_fixed_delay(tmp_path, delay):
    """`w[t+1] = w[t] - rate g(w[t-delay])` over 20 updates and more; without a delay this is
    plain gradient descent."""
    workers, updates = delay + 1, 25
    weights, kept = parameter_server.train("threads", workers, updates, RATE, True, tmp_path)
    history = [start()]
    for t in range(updates):
        old = history[max(0, t - delay)]
        history.append(history[-1] - RATE * gradient(old, t % workers, t // workers))
    assert np.array_equal(weights, history[-1])
    assert kept["log"] == parameter_server.turns(workers, updates)
    assert held_out(weights) < 0.8 * held_out(start())


def test_free_processes_replay_their_log(tmp_path):
    """As they come, on loopback; each update moves one gradient and one copy of the weights."""
    weights, kept = parameter_server.train("processes", 2, 30, RATE, False, tmp_path)
    history = [start()]
    for entry in kept["log"]:
        assert 0 <= entry["read"] < len(history)
        history.append(history[-1] - RATE * gradient(history[entry["read"]], entry["worker"], entry["step"]))
    assert np.array_equal(weights, history[-1])
    steps = [[entry["step"] for entry in kept["log"] if entry["worker"] == w] for w in range(2)]
    assert all(own == list(range(len(own))) for own in steps)
    # 30 gradients; weights when a worker begins (one may come too late), and after each update but the last.
    assert kept["moved"] / weights.nbytes in (30 + 29 + 1, 30 + 29 + 2)


def quadratic(weights, worker, step):
    """Of `a/2 w^2` with a = 3."""
    return 3.0 * weights


@pytest.mark.parametrize("delay", range(5))
def test_stability_limit(tmp_path, delay):
    """On both sides of `2 sin(pi / (4 delay + 2)) / a`, by 2 %, and by bisection."""
    limit = 2 * np.sin(np.pi / (4 * delay + 2))
    assert parameter_server.stability_limit(delay) == pytest.approx(limit, rel=0.02)
    ends = []
    for factor in (0.98, 1.02):
        weights, _ = parameter_server.train("threads", delay + 1, 900, factor * limit / 3.0, True, tmp_path,
                                            np.array([1.0]), quadratic)
        ends.append(abs(weights[0]))
    assert ends[0] < 0.5 and ends[1] > 2.0


# ---------------------------------------------------------------------------------------------
# Bounded staleness
# ---------------------------------------------------------------------------------------------


def seen(updates, worker, step, bound):
    """All updates of steps up to `step - bound - 1`, and those of the worker itself."""
    total = start()
    for own, steps in updates.items():
        for k, update in enumerate(steps[:step]):
            if k <= step - bound - 1 or own == worker:
                total = total - RATE * update
    return total


@pytest.mark.parametrize("nodes, workers, bound", [
    ("threads", 3, 0), ("threads", 3, 1), ("threads", 3, 3), ("threads", 1, 2), ("processes", 2, 2)])
def test_bounded_staleness(tmp_path, nodes, workers, bound):
    steps = 12
    weights, log = bounded_staleness.train(nodes, workers, bound, steps, RATE, 0.002, tmp_path)
    updates = {worker: [] for worker in range(workers)}
    for step in range(steps):
        for worker in range(workers):
            updates[worker].append(gradient(seen(updates, worker, step, bound), worker, step))
    end = start() - RATE * sum(sum(own) for own in updates.values())
    np.testing.assert_allclose(weights[-1], end, rtol=1e-11, atol=1e-13)
    assert np.array_equal(weights, bounded_staleness.recurrence(workers, bound, steps, RATE))
    # [worker, step, steps that the slowest one had finished]
    assert len(log["reads"]) == workers * steps
    assert all(step - slowest <= bound for _, step, slowest in log["reads"])


def test_bound_zero_is_synchronous(tmp_path):
    weights, _ = bounded_staleness.train("threads", 3, 0, 8, RATE, 0.001, tmp_path)
    own = start()
    for step in range(8):
        slopes = [gradient(own, worker, step) for worker in range(3)]
        for slope in slopes:
            own = own - RATE * slope
        assert np.array_equal(weights[step + 1], own)


def test_fast_workers_wait():
    """A server of which one worker never pushes lets the other be `bound` steps ahead."""
    server = bounded_staleness.Server(start(), RATE, 2, 2, 99, None, None)
    for step in range(3):
        server.pull(0, step)
        server.push(0, np.ones(FEATURES))
    released = []
    thread = threading.Thread(target=lambda: released.append(server.pull(0, 3)), daemon=True)
    thread.start()
    thread.join(0.2)
    assert not released
    server.push(1, np.ones(FEATURES))
    thread.join(10)
    # Both updates of step 0, and two of its own.
    np.testing.assert_allclose(released[0], -RATE * 4 * np.ones(FEATURES))


def test_finish_times():
    """Of the slowest in each step without a bound of freedom; of the slowest in all with any."""
    took = np.array([[bounded_staleness.seconds(w, c, 1.0) for w in range(5)] for c in range(30)])
    times = [bounded_staleness.finish_times(5, bound, 30, 1.0)[-1] for bound in (0, 1, 2, 4, 30)]
    assert times[0] == pytest.approx(took.max(1).sum())
    assert times[-1] == pytest.approx(took.sum(0).max())
    assert all(later <= before + 1e-12 for before, later in zip(times, times[1:]))
    assert times[2] < 0.9 * times[0]


# ---------------------------------------------------------------------------------------------
# Backup workers
# ---------------------------------------------------------------------------------------------

#: Which of four workers are late.
LATE = [late for size in range(3) for late in itertools.combinations(range(4), size)]


@pytest.mark.parametrize("late", LATE)
def test_dropped_gradients(late):
    """The update is that of synchronous training on the samples of the others."""
    class Over:
        def stop(self):
            raise AssertionError("there are more steps")

    server = backup_workers.Server(start(), RATE, 4 - len(late), 9, None, Over())
    own = start()
    for step in range(3):
        early = [worker for worker in (2, 0, 3, 1) if worker not in late]
        for worker in early:
            assert server.pull(-1)[0] == step
            server.push(worker, step, gradient(server.pull(-1)[1], worker, step))
        for worker in late:
            server.push(worker, step, np.full(FEATURES, 1e9))
        x, y = zip(*(samples(worker, step) for worker in sorted(early)))
        x, y = np.concatenate(x), np.concatenate(y)
        own = own + RATE * (y / (1 + np.exp(y * (x @ own)))) @ x / len(y)
        np.testing.assert_allclose(server.weights, own, rtol=1e-12)
    assert server.dropped == [[worker, step] for step in range(3) for worker in late]
    assert server.used == [sorted(early)] * 3


def test_backup_processes(tmp_path):
    weights, log = backup_workers.train("processes", 2, 1, 6, RATE, backup_workers.Exponential(0.004), tmp_path)
    assert all(len(set(used)) == 2 and max(used) < 3 for used in log["used"]) and len(log["used"]) == 6
    own = start()
    for step, used in enumerate(log["used"]):
        own = own - RATE * np.mean([gradient(own, worker, step) for worker in used], 0)
    np.testing.assert_allclose(weights, own, rtol=1e-12)
    assert np.array_equal(weights, backup_workers.recurrence(log["used"], RATE))
    assert all(worker not in log["used"][step] for worker, step in log["dropped"])


def test_order_statistics():
    """96+4 workers take 0.603 of the time of 96; no number of them takes longer."""
    exact = [(backup_workers.harmonic(96 + b) - backup_workers.harmonic(b)) / backup_workers.harmonic(96)
             for b in (0, 4, 9)]
    assert exact[:2] == pytest.approx([1.0, 0.603], rel=1e-3)
    generator = np.random.default_rng(7)
    for backup, ratio in zip((0, 4, 9), exact):
        assert backup_workers.simulate(96, backup, 12_000, generator) == pytest.approx(ratio, rel=0.01)
    times = generator.lognormal(size=(200, 20))
    slower = [np.partition(times[:, :10 + b], 9, axis=1)[:, 9] for b in range(11)]
    assert all((later <= before).all() for before, later in zip(slower, slower[1:]))


def test_times_of_steps():
    """All wait for the slowest without backup; a late worker skips to the current step."""
    seconds = backup_workers.Exponential(1.0)
    ends = backup_workers.step_times(5, 0, 20, seconds)
    assert ends == pytest.approx(np.cumsum([max(seconds(w, c) for w in range(5)) for c in range(20)]))

    def of(worker, step):
        return 10.0 if worker == 0 and step == 0 else 1.0

    # Worker 0 ends at 10.0, in step 9, and begins step 10 (or 9) with the others.
    assert backup_workers.step_times(2, 1, 12, of) == pytest.approx(range(1, 13))
    many = [backup_workers.step_times(8, b, 400, seconds)[-1] for b in (0, 1, 4)]
    assert many[0] > many[1] > many[2]


@pytest.mark.parametrize("module", [parameter_server, bounded_staleness, backup_workers])
def test_runs(module, tmp_path, capsys):
    module.main(["--smoke", "--nodes", "threads", "--work", str(tmp_path)])
    said = capsys.readouterr().out
    assert "bit for bit: True" in said and "False" not in said
    assert list(tmp_path.glob("*.svg"))
