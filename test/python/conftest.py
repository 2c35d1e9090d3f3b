# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Where tests find the package, what they share (support/) and each other.

A folder holds the tests of one: `trace` (the front end), `graph`, `spmd`,
`pipe`, `exec` (the dialects), `native` (generated code against the
interpreter), `interpreter`, `step` (cleave.compile and its step), `reports`,
`run` (cleave-run, checkpoints, processes), `docs` (what pages say).
"""
import importlib
import os
import pathlib
import shutil
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).resolve().parent
for folder in sorted(path for path in HERE.iterdir() if path.is_dir() and path.name[0] not in "._"):
    sys.path.insert(0, str(folder))
sys.path.insert(0, str(HERE.parents[1] / "python"))

import ledger  # noqa: E402

# Tests compare with PyTorch themselves, more than "auto" does; test_check.py sets it back.
os.environ.setdefault("CLEAVE_CHECK", "off")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        # Of this process, which starts the others.
        os.environ[ledger.FOLDER] = tempfile.mkdtemp(prefix="cleave-ledger-")


def pytest_collection_modifyitems(config, items):
    """What chooses among the tests of a file leaves nothing whole."""
    chosen = config.option.keyword or config.option.markexpr or getattr(config.option, "lf", False)
    if chosen or any("::" in argument for argument in config.args):
        return
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
