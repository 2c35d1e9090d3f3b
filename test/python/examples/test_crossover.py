# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Crossover scheduling: turns change when jobs compute, not what; the simulation gives the closed
form."""

import threading

import numpy as np
import pytest
import torch

import crossover


@pytest.mark.parametrize("c, m", [(1.0, 0.2), (1.0, 0.0), (1.0, 1.0), (1.0, 3.0), (0.7, 0.5)])
def test_closed_form(c, m):
    """Two equal jobs: `2 max(C, M)` for each pair of steps, a speed-up of `(C + M) / max(C, M)`."""
    ends = crossover.simulate([c, c], [m, m], 400)
    assert np.diff(ends)[5:] == pytest.approx(2 * max(c, m))
    speed_up = 400 * 2 * (c + m) / ends[-1]
    assert speed_up == pytest.approx((c + m) / max(c, m), rel=0.01) and speed_up <= 2
    if m == 0.2:
        assert speed_up == pytest.approx(1.2, rel=0.005)


def test_unequal_jobs():
    """A pair of steps takes as long as the device, the link, or one of the jobs needs for it."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        (c1, c2), (m1, m2) = generator.random((2, 2))
        ends = crossover.simulate([c1, c2], [m1, m2], 300)
        assert ends[-1] - ends[-2] == pytest.approx(max(c1 + c2, m1 + m2, c1 + m1, c2 + m2))
    one = crossover.simulate([1.0], [0.25], 8)
    assert one[-1] == pytest.approx(8 * 1.25), "a job alone gains nothing"


def by_pytorch(seed, width, samples, steps):
    """The losses of a job, by eager PyTorch from the same seeds."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    layers = [torch.nn.Linear(32, width), torch.nn.GELU(), torch.nn.Linear(width, width), torch.nn.GELU(),
              torch.nn.Linear(width, 4)]
    model, losses = torch.nn.Sequential(*layers), []
    rule = torch.randn(32, 4, generator=generator)
    torch.randn(samples, 32, generator=generator)      # that of the example inputs
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x = torch.randn(samples, 32, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(x), (x @ rule).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_turns_do_not_change_losses():
    """Of two steps of Cleave; they are PyTorch's."""
    apart, together = ([crossover.Job(seed, 16, 32) for seed in (1, 2)] for _ in range(2))
    crossover.run(apart, 6, 0.0, False)
    crossover.run(together, 6, 0.004, True)
    for one, other in zip(apart, together):
        assert len(one.losses) == 6 and one.losses == other.losses
        for name, value in one.replica.items():
            assert torch.equal(value, other.replica[name])
            assert torch.equal(value, one.step.state_dict()[name])
    assert apart[0].losses != apart[1].losses
    eager = by_pytorch(1, 16, 32, 6)
    assert together[0].losses == pytest.approx(eager, rel=1e-5)


def test_turns_are_taken_in_order():
    """One at a time, by turns; a job that leaves, or fails, keeps nobody waiting."""
    device, seen, inside = crossover.Turns(3), [], threading.Lock()

    def live(i):
        try:
            for k in range(3 + i):
                with device.turn(i):
                    assert inside.acquire(blocking=False)
                    seen.append(i)
                    inside.release()
                    if (i, k) == (1, 2):
                        return
        finally:
            device.leave(i)

    threads = [threading.Thread(target=live, args=(i,)) for i in (2, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [0, 1, 2] * 3 + [2, 2]
