# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The common part of parameter_server.py, bounded_staleness.py and backup_workers.py: logistic regression,
whose samples are a function of the worker and the step, so that a recurrence of a few lines
repeats what processes have computed to the bit."""

import numpy as np

FEATURES, SAMPLES = 16, 8


def samples(worker, step):
    """The samples of a worker in a step: [SAMPLES, FEATURES] and labels of -1 and 1."""
    truth = np.random.default_rng(0).normal(size=FEATURES)
    generator = np.random.default_rng((1, worker, step))
    x = generator.normal(size=(SAMPLES, FEATURES))
    return x, np.sign(x @ truth + 0.5 * generator.normal(size=SAMPLES))


def loss(weights, x, y):
    return float(np.mean(np.logaddexp(0, -y * (x @ weights))))


def gradient(weights, worker, step):
    """Of the mean loss of the worker's samples."""
    x, y = samples(worker, step)
    return -(y / (1 + np.exp(y * (x @ weights)))) @ x / SAMPLES


def held_out(weights):
    """The loss on samples of no worker."""
    x, y = zip(*(samples(10 ** 6, step) for step in range(64)))
    return loss(weights, np.concatenate(x), np.concatenate(y))


def start():
    return np.zeros(FEATURES)
