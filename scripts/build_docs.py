"""Builds the site of the documentation.

Collects the pages of docs/ and README.md, writes the reference of dialects and
passes by mlir-tblgen, and calls mkdocs, which makes that of the Python package
from its docstrings. Needs what requirements-docs.txt lists.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include" / "cleave"

#: Pages of TableGen: title, generator, file, and what is generated of it.
TABLES = {
    "Graph": ("The dialect graph", "-gen-op-doc", "Dialect/Graph/IR/GraphOps.td"),
    "Spmd": ("The dialect spmd", "-gen-op-doc", "Dialect/Spmd/IR/SpmdOps.td"),
    "Pipe": ("The dialect pipe", "-gen-op-doc", "Dialect/Pipe/IR/PipeOps.td"),
    "Exec": ("The dialect exec", "-gen-op-doc", "Dialect/Exec/IR/ExecOps.td"),
    "GraphPasses": ("Passes of graph", "-gen-pass-doc", "Dialect/Graph/Transforms/Passes.td"),
    "SpmdPasses": ("Passes of spmd", "-gen-pass-doc", "Dialect/Spmd/Transforms/Passes.td"),
    "PipePasses": ("Passes of pipe", "-gen-pass-doc", "Dialect/Pipe/Transforms/Passes.td"),
    "ExecPasses": ("Passes of exec", "-gen-pass-doc", "Dialect/Exec/Transforms/Passes.td"),
    "ConversionPasses": ("Conversions", "-gen-pass-doc", "Conversion/Passes.td"),
}

#: The names in the Python reference, in this order.
PYTHON = (
    "cleave.compiler.api.compile", "cleave.compiler.groups", "cleave.runtime.step.Step", "cleave.reports.text.Reports",
    "cleave.run.loop.Run", "cleave.run.callbacks.Callback", "cleave.run.loggers",
    "cleave.runtime.checkpoint.Checkpoints", "cleave.runtime.checkpoint.load", "cleave.runtime.results",
    "cleave.training.optim", "cleave.compiler.shardings.P", "cleave.trace.trace", "cleave.models",
    "cleave.models.size.Size", "cleave.moe", "cleave.feed.reader.Feed", "cleave.feed.sqlite.SQLite",
    "cleave.feed.postgres.Postgres", "cleave.feed.mongo.Mongo", "cleave.feed.source.Source",
    "cleave.feed.source.FeedError", "cleave.feed.store.Store", "cleave.feed.store.Record",
)

#: Pages that have another name, or are in another folder, in the repository.
MOVED = {"examples/README.md": "Examples.md", "CONTRIBUTING.md": "Contributing.md", "CHANGELOG.md": "Changelog.md"}


def llvm(*query):
    return subprocess.check_output(["llvm-config-22", *query], text=True).strip()


def write_tables(folder):
    """The pages of dialects and passes."""
    folder.mkdir(parents=True)
    generator = os.path.join(llvm("--bindir"), "mlir-tblgen")
    for name, (title, kind, table) in TABLES.items():
        text = subprocess.check_output(
            [generator, kind, f"-I{ROOT / 'include'}", f"-I{llvm('--includedir')}",
             str(INCLUDE / table)], text=True)
        text = text.replace("[TOC]", "")
        (folder / f"{name}.md").write_text(f"# {title}\n\n{text}")


def write_python(folder):
    """The page from which mkdocstrings makes the reference of the package."""
    parts = ["# The package cleave", ""]
    for name in PYTHON:
        parts += [f"::: {name}", ""]
    (folder / "Python.md").write_text("\n".join(parts))


def moved(text):
    """A page with the links that it has where all pages are in one folder; files that are not
    pages are named without a link."""
    text = re.sub(r"\[(`[^`]*`)\]\(\w+\.py\)", r"\1", text)
    for file, page in MOVED.items():
        text = re.sub(rf"\]\((?:\.\./)*{re.escape(file)}", f"]({page}", text)
    return re.sub(r"(\]\(|src=\")(?:\.\./)*(?:docs/)?(?:\w+/)?(?=\w+\.(?:md|svg))", r"\1", text)


def stage(folder):
    """Collects all pages in `folder`, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in (ROOT / "docs").glob("*.svg"):
        shutil.copy(path, folder)
    shutil.copytree(ROOT / "examples" / "pictures", folder / "pictures")
    # The README is the map of the folder; the site has its navigation.
    pages = {path.name: path for path in (ROOT / "docs").rglob("*.md") if path.name != "README.md"}
    pages |= {"index.md": ROOT / "README.md"} | {page: ROOT / file for file, page in MOVED.items()}
    for name, path in pages.items():
        (folder / name).write_text(moved(path.read_text()))
    write_tables(folder / "reference")
    write_python(folder / "reference")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build", help="the build folder; the site is in its docs/site")
    parser.add_argument("--stage-only", action="store_true", help="collect the pages alone")
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve() / "docs"
    stage(build / "pages")
    if options.stage_only:
        return 0
    environment = dict(os.environ, CLEAVE_DOCS=str(build / "pages"), NO_MKDOCS_2_WARNING="1")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet",
                           "--config-file", str(ROOT / "mkdocs.yml"),
                           "--site-dir", str(build / "site")], env=environment)
    if done.returncode == 0:
        print(f"the site is {build / 'site' / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
