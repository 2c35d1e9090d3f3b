# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Where tests find the package, what they share (support/) and each other.

A folder holds the tests of one: `trace` (the front end), `operators` and `models` of PyTorch,
`graph`, `spmd`, `pipe`, `exec` (the dialects), `experts` (rows that go to the ranks of their
experts), `precision` (layouts in 16 and 8 bits), `native` (generated code against the
interpreter), `interpreter`, `step` (cleave.compile and its step), `training` (steps beside
PyTorch), `loop` (cleave.Run), `options`, `cache`, `reports`, `run` (cleave-run, checkpoints, processes), `feed`
(databases), `docs` (what pages say), `examples`.
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
for parent in (HERE, HERE / "support"):
    for folder in sorted(path for path in parent.iterdir() if path.is_dir() and path.name[0] not in "._"):
        if not (folder / "__init__.py").exists():
            sys.path.insert(0, str(folder))
sys.path.insert(0, str(HERE.parents[1] / "python"))

import pytest  # noqa: E402

pytest.register_assert_rewrite(*(path.stem for path in sorted((HERE / "support").rglob("*.py"))))

import ledger  # noqa: E402
import numpy  # noqa: E402
import sample  # noqa: E402
import torch  # noqa: E402
from proofs import ALL  # noqa: E402

# Tests compare with PyTorch themselves, more than "auto" does; test_check.py sets it back.
os.environ.setdefault("CLEAVE_CHECK", "off")
# An error of a pass has its name, in all tests.
os.environ.setdefault("CLEAVE_VERIFY", "passes")
# Files that a user's programs left on this machine is none of a test's; test_compile_cache.py has a
# folder of its own.
os.environ["CLEAVE_CACHE"] = "off"


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
        # As it was: of the two, the first returns what it makes of it.
        "regions of autocast": (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()),
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


def is_sampled(config):
    """Whether cases are left out: not where all are asked for, or some by name."""
    named = any(argument.endswith(".py") or "::" in argument for argument in config.args)
    chosen = config.option.keyword or config.option.markexpr or getattr(config.option, "lf", False)
    return not (ALL or named or chosen)


def pytest_configure(config):
    config.left_out = config.collected = 0
    if hasattr(config, "workerinput"):
        return
    config.count_file = os.environ.pop(sample.COUNT, None)  # None of those that tests start.
    # Of this process, which starts the others.
    os.environ[ledger.FOLDER] = tempfile.mkdtemp(prefix="cleave-ledger-")
    if is_sampled(config):
        os.environ[sample.NAME] = sample.of_tree(HERE.parents[1])


def pytest_report_header(config):
    if is_sampled(config):
        return f"sample {os.environ[sample.NAME]}; {sample.NAME}={os.environ[sample.NAME]} repeats it"


def pytest_collection_modifyitems(config, items):
    """What chooses among the tests of a file leaves nothing whole."""
    chosen = config.option.keyword or config.option.markexpr or getattr(config.option, "lf", False)
    if chosen or any("::" in argument for argument in config.args):
        return
    parts = set()
    if is_sampled(config):
        dropped = sample.left_out(os.environ[sample.NAME], items)
        parts = {item.module for item in dropped}
        config.left_out, config.collected = len(dropped), len(items)
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]
    for module in {item.module for item in items if hasattr(item, "module")} - parts:
        if hasattr(module, "check_all"):
            ledger.note_whole(module.__name__)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """A process of xdist has ended: each of them collected all tests."""
    counts = getattr(node, "workeroutput", {}).get("left_out")
    if counts:
        node.config.left_out, node.config.collected = counts


def pytest_terminal_summary(terminalreporter, config):
    if not is_sampled(config):
        return
    terminalreporter.write_line(
        f"sample {os.environ[sample.NAME]} leaves out {config.left_out} of {config.collected} cases")
    if config.count_file:
        pathlib.Path(config.count_file).write_text(f"{config.left_out} of {config.collected}")


def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["left_out"] = session.config.left_out, session.config.collected
        return
    folder = os.environ.pop(ledger.FOLDER)
    notes = ledger.read(folder)
    shutil.rmtree(folder)
    if exitstatus != 0:
        return  # The notes of a test that failed are missing.
    for name, facts in notes.items():
        try:
            importlib.import_module(name).check_all(facts)
        except AssertionError:
            print(f"\nFAILED {name}.check_all")
            traceback.print_exc()
            session.exitstatus = 1
