# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Puts the archive of a call on a GPU (all.tgz of `run_bundle.py all`) into the repository: a folder
of benchmarks/gpu/results, named by date and hardware, which git then knows; --commit commits it.

Large files are kept compressed. Refused are an archive that is no result of such a call, one of a
machine without a GPU, and one that is there already."""

import argparse
import gzip
import json
import pathlib
import re
import subprocess
import sys
import tarfile

from session import NO_GPU

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
#: A longer file is compressed.
LARGE = 128 << 10
#: More than this, compressed, is no result of one call.
MOST = 16 << 20


def read(path):
    """The name of the folder of an archive, and its files: their bytes, by name."""
    files, tops = {}, set()
    with tarfile.open(path) as packed:
        for member in packed:
            top, _, name = member.name.partition("/")
            tops.add(top)
            if member.isdir() and not name:
                continue
            if not member.isfile() or not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
                sys.exit(f"{path}: '{member.name}' is no file of results")
            if sum(map(len, files.values())) + member.size > 64 * MOST:
                sys.exit(f"{path}: there is more in it than a call leaves")
            files[name] = packed.extractfile(member).read()
    if len(tops) != 1 or not re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+", next(iter(tops))) \
            or "results.jsonl" not in files:
        sys.exit(f"{path}: this is no archive of `run_bundle.py all`")
    return tops.pop(), files


def facts_of(path, files):
    """The first line of the results."""
    try:
        facts = json.loads(files["results.jsonl"].decode().splitlines()[0])
        machine = facts["machine"]
    except (ValueError, IndexError, KeyError):
        sys.exit(f"{path}: results.jsonl does not say which machine this was")
    if machine == NO_GPU:
        sys.exit(f"{path}: this was not measured on a GPU")
    return facts


def keep(path, results):
    """The folder that is made."""
    name, files = read(path)
    facts_of(path, files)
    packed = {}
    for file, data in files.items():
        large = len(data) > LARGE
        packed[f"{file}.gz" if large else file] = gzip.compress(data, 9, mtime=0) if large else data
    size = sum(map(len, packed.values()))
    if size > MOST:
        sys.exit(f"{path}: {size / 2**20:.1f} MiB are more than the repository takes of a call")
    # Several calls of a day have numbers.
    folder, number = results / name, 1
    while folder.exists():
        kept = {file.name: file.read_bytes() for file in folder.iterdir()}
        if kept.get("results.jsonl") == packed.get("results.jsonl") and kept.get(
                "results.jsonl.gz") == packed.get("results.jsonl.gz"):
            sys.exit(f"{path}: {folder} has these results already")
        number += 1
        folder = results / f"{name}-{number}"
    folder.mkdir(parents=True)
    for file, data in packed.items():
        (folder / file).write_bytes(data)
    return folder, size


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, metavar="FOLDER",
                        help="where folders of results are (default: those of the repository)")
    parser.add_argument("--commit", action="store_true", help="commit the folder, and it alone")
    options = parser.parse_args()
    folder, size = keep(options.archive, options.results)
    print(f"{folder}: {size / 2**10:.0f} KiB")
    git = ["git", "-C", folder]
    subprocess.run([*git, "add", "--force", "."], check=True)
    if options.commit:
        subprocess.run([*git, "commit", "--quiet", "-m", f"Keep the results of {folder.name}",
                        "--", "."], check=True)


if __name__ == "__main__":
    main()
