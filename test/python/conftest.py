# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Where tests find the package, what they share (support/) and each other.

A folder holds the tests of one: `trace` (the front end), `graph`, `spmd`,
`pipe`, `exec` (the dialects), `native` (generated code against the
interpreter), `interpreter`, `step` (cleave.compile and its step), `reports`,
`run` (cleave-run, checkpoints, processes), `feed` (databases), `docs` (what pages say), `examples`.
"""
import importlib
import logging
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import traceback
import zlib

HERE = pathlib.Path(__file__).resolve().parent
for folder in sorted(path for path in HERE.iterdir() if path.is_dir() and path.name[0] not in "._"):
    sys.path.insert(0, str(folder))
sys.path.insert(0, str(HERE.parents[1] / "python"))

import pytest  # noqa: E402

pytest.register_assert_rewrite(*(path.stem for path in sorted((HERE / "support").glob("*.py"))))

import ledger  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from proofs import ALL  # noqa: E402

# Tests compare with PyTorch themselves, more than "auto" does; test_check.py sets it back.
os.environ.setdefault("CLEAVE_CHECK", "off")
# An error of a pass has its name, in all tests.
os.environ.setdefault("CLEAVE_VERIFY", "passes")
# What a user's programs left on this machine is none of a test's; test_compile_cache.py has a
# folder of its own.
os.environ["CLEAVE_CACHE"] = "off"

#: Of the cases of each test of these files, `make test` runs one in so many; all run with
#: CLEAVE_TEST_ALL, or where tests are named.
SAMPLED = {
    "test_buckets": 4, "test_check_finite": 2, "test_check_large": 2, "test_cleave_run_ranks": 6,
    "test_collective_chunks": 2, "test_compressed_stages": 4, "test_conditions": 2,
    "test_cuda_device": 3, "test_cuda_order": 2, "test_cuda_ranks": 2, "test_delayed_updates": 2,
    "test_deterministic": 5, "test_expert_recipes": 3, "test_experts": 4, "test_extremes": 3,
    "test_folded": 4, "test_gathers": 4, "test_interlock": 2, "test_joined_batches": 8,
    "test_loss_scale": 6, "test_memory_forms": 5, "test_mixed_precision": 3,
    "test_native_four_axes": 2, "test_native_masks": 2, "test_native_pairs": 2,
    "test_native_pipedream": 6, "test_native_pipelines": 8, "test_offload": 3,
    "test_optimizer_fusion": 8, "test_ordered_norms": 4, "test_outputs": 3, "test_pipe_slices": 3,
    "test_pipeline_state": 3, "test_post_validation": 3, "test_precision_plans": 8,
    "test_processes": 2, "test_pruned_training": 2, "test_pruning": 2, "test_random_operators": 5,
    "test_recommender": 3, "test_recompute": 8, "test_repeat": 3, "test_rules_and_options": 7,
    "test_scatter_batches": 6, "test_small_programs": 2, "test_summa": 2, "test_trace_families": 3,
    "test_training_devices": 6, "test_training_dropout": 3, "test_traps": 2, "test_uneven": 3,
    "test_uneven_devices": 4, "test_uneven_micro_batches": 3, "test_update_rules_native": 8,
    "test_volumes": 8,
}


def left_out(items):
    """The cases that `make test` does not run: of each test all but those at every n-th
    place, from one on that follows from its name."""
    cases = {}
    for item in items:
        if hasattr(item, "callspec") and item.module.__name__ in SAMPLED:
            cases.setdefault(item.function, []).append(item)
    dropped = set()
    for function, own in cases.items():
        share = SAMPLED[own[0].module.__name__]
        first = zlib.crc32(function.__name__.encode()) % min(share, len(own))
        dropped.update(set(own) - set(own[first::share]))
    return dropped


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """The random numbers of a test are its own: the same in every run, alone or after others."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def shared_state():
    """What tests of one process share and could change for each other."""
    log = logging.getLogger("cleave")
    return {
        "logging.disable": logging.root.manager.disable,
        "the logger": (log.level, log.disabled, log.propagate, tuple(log.filters), tuple(log.handlers)),
        # PyTorch's compiler sets some of its own.
        **{f"${n}": v for n, v in os.environ.items()
           if not n.startswith(("PYTEST_", "TORCHINDUCTOR_", "TRITON_"))},
        "the folder": os.getcwd(),
        "the default type": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
        "signals": tuple(signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)),
        "sys.excepthook": sys.excepthook,
    }


@pytest.fixture(autouse=True)
def leaves_no_trace():
    """A test leaves the process as it found it: the next one runs as if it were alone. (Set up
    before what a test asks for, so it sees the process after that is torn down.)"""
    before = shared_state()
    yield
    after = shared_state()
    changed = {n: (before.get(n), after.get(n)) for n in {*before, *after} if before.get(n) != after.get(n)}
    assert not changed, "the test changed what other tests of this process meet"


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        # Of this process, which starts the others.
        os.environ[ledger.FOLDER] = tempfile.mkdtemp(prefix="cleave-ledger-")


def pytest_collection_modifyitems(config, items):
    """What chooses among the tests of a file leaves nothing whole."""
    chosen = config.option.keyword or config.option.markexpr or getattr(config.option, "lf", False)
    if chosen or any("::" in argument for argument in config.args):
        return
    if not ALL and not any(argument.endswith(".py") for argument in config.args):
        dropped = left_out(items)
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]
    for module in {item.module for item in items if hasattr(item, "module")}:
        if hasattr(module, "check_all"):
            ledger.note_whole(module.__name__)


def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workerinput"):
        return
    folder = os.environ.pop(ledger.FOLDER)
    notes = ledger.read(folder)
    shutil.rmtree(folder)
    if exitstatus != 0:
        return  # What a test that failed would have noted is missing.
    for name, facts in notes.items():
        try:
            importlib.import_module(name).check_all(facts)
        except AssertionError:
            print(f"\nFAILED {name}.check_all")
            traceback.print_exc()
            session.exitstatus = 1
