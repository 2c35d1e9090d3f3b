"""Breaks down the time of a PyTorch step with PyTorch's profiler."""

import time

import torch

CONTRACTIONS = ("mm", "addmm", "bmm", "baddbmm", "linear", "mkl", "gemm")
COMMUNICATION = ("c10d", "gloo", "_c10d_functional")


def classify(name):
    """Returns the kind of work of a profiler event, by its name."""
    space, _, plain = name.rpartition("::")
    if space in COMMUNICATION:
        return "communication"
    if "scaled_dot_product" in plain or "flash_attention" in plain:
        return "attention"
    if "adam" in plain:
        return "optimizer"
    if plain.lstrip("_") in CONTRACTIONS or "mkl_linear" in plain:
        return "contractions"
    return "row_wise"


def breakdown(step):
    """Returns the milliseconds of one `step()` by kind of work, in the calling thread.

    Time outside of any operation is idle. It includes the wait of DDP at the end of backward
    for the communication of other threads.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU]
    ) as recorded:
        start = time.perf_counter()
        step()
        total = (time.perf_counter() - start) * 1e3
    kinds = dict.fromkeys(
        ("contractions", "attention", "row_wise", "optimizer", "communication"), 0.0
    )
    for event in recorded.key_averages():
        kinds[classify(event.key)] += event.self_cpu_time_total / 1e3
    kinds["idle"] = total - sum(kinds.values())
    return kinds
