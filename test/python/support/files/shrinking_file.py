# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A file that gets shorter before a chosen read of it (shrinking_file.c)."""

import functools
import os
import pathlib
import subprocess
import tempfile

from file_calls import COMPILER


@functools.cache
def library():
    out = os.path.join(tempfile.mkdtemp(prefix="cleave-shrinking-"), "shrinking.so")
    source = pathlib.Path(__file__).with_suffix(".c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", out, str(source), "-ldl"], check=True)
    return out


def environment(file, at, to=0):
    """For a process that finds `file` with `to` bytes from its read number `at`, from 0, on."""
    return {**os.environ, "LD_PRELOAD": library(), "SHRINKING_FILE": os.path.realpath(file),
            "SHRINKING_AT": str(at), "SHRINKING_TO": str(to)}
