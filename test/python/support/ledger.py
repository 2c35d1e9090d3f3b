# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The findings of tests of a module, for what only all of them together show.

Tests may be spread over processes. Each calls `note`; when all have passed, and the
module was run whole, `conftest` calls the module's `check_all` with everything that was
noted, in the first process.
"""

import json
import os
import pathlib

#: The folder of this run's notes.
FOLDER = "CLEAVE_TEST_LEDGER"


def _append(module, line):
    folder = os.environ.get(FOLDER)
    if folder:
        # A file for each process: nothing is interleaved.
        with open(pathlib.Path(folder, f"{module}.{os.getpid()}"), "a") as file:
            file.write(json.dumps(line) + "\n")


def note(module, facts):
    """Keeps `facts`, which JSON can hold, of a test of `module`."""
    _append(module, {"facts": facts})


def note_whole(module):
    """Says that all tests of `module` are run."""
    _append(module, {"whole": True})


def read(folder):
    """The notes of each module that was run whole."""
    lines = {}
    for path in sorted(pathlib.Path(folder).iterdir()):
        lines.setdefault(path.name.rsplit(".", 1)[0], []).extend(
            map(json.loads, path.read_text().splitlines()))
    return {module: [line["facts"] for line in own if "facts" in line]
            for module, own in lines.items() if any("whole" in line for line in own)}
