"""Writes the stubs of the native modules, python/cleave/_cleave.pyi and _runtime.pyi, by which mypy
knows their types without a build.

usage: python scripts/write_stubs.py
"""

import importlib
import pathlib

from nanobind import stubgen

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = ("_cleave", "_runtime")


def stub(name):
    """The stub of a native module: its signatures, and for what they do not say
    python/native/stubs.txt."""
    patterns = stubgen.load_pattern_file(str(ROOT / "python" / "native" / "stubs.txt"))
    writer = stubgen.StubGen(importlib.import_module(f"cleave.{name}"), patterns=patterns, quiet=True)
    writer.put(writer.module)
    unused = [p.query.pattern for p in patterns if not p.matches and p.query.pattern.startswith(("Session", name))]
    if unused:
        raise SystemExit(f"python/native/stubs.txt: {name} has no {', '.join(unused)}")
    head, _, rest = writer.get().partition("\n")
    return f"{head}\n\n# Written by scripts/write_stubs.py.\n{rest}"


if __name__ == "__main__":
    for name in MODULES:
        (ROOT / "python" / "cleave" / f"{name}.pyi").write_text(stub(name))
