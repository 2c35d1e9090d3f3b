# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every code block of the documentation runs; every link leads somewhere."""

import importlib.util
import re
import shutil
import subprocess

import pytest

import proofs
from doc_anchors import anchors
from doc_blocks import PAGES, ROOT, SHOWN, Page, blocks

#: The blocks that are run by default: the first Python that a newcomer meets.
SAMPLE = {"README.md": 1, "Tutorial.md": 3, "Run.md": 4}
#: The characters of a line of code that the site shows without scrolling.
WIDTH = 76


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_have_a_language(path):
    for block in blocks(path):
        place = f"{block.page}:{block.line}"
        assert block.language in {"python", "sh", *SHOWN}, place
        assert not block.reason or block.language not in SHOWN, f"{place}: it is not run anyway"


@pytest.mark.parametrize("path", [path for path in PAGES if any(
    block.language not in SHOWN and not block.reason for block in blocks(path))],
    ids=lambda path: path.name)
def test_blocks_run(path, tmp_path, monkeypatch):
    run = [b for b in blocks(path) if b.language not in SHOWN and not b.reason]
    if not proofs.ALL:
        run = [b for b in run if b.language == "python"][:SAMPLE.get(path.name, 0)]
    if not run:
        pytest.skip("CLEAVE_TEST_ALL=1 runs them")
    if any("mpirun" in block.text for block in run) and not shutil.which("mpirun"):
        pytest.skip("there is no mpirun")
    page = Page(tmp_path, monkeypatch)
    for block in run:
        page.run(block)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md"],
                         ids=lambda path: f"{path.parent.name}/{path.name}")
def test_blocks_fit_the_column(path):
    """The site shows 76 characters of a line; blocks within lists are measured with their indentation."""
    inside, wide = False, []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside and len(line) > WIDTH:
            wide.append(f"{path.name}:{number}: {len(line)} characters")
    assert not wide


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    text = re.sub(r"(?ms)^```.*?^```$", "", path.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found.read_text()), target


def test_reference_is_generated(tmp_path):
    """The pages of dialects and passes: each op and pass of TableGen is in one."""
    spec = importlib.util.spec_from_file_location("build_docs", ROOT / "scripts/build_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.stage(tmp_path / "pages")
    pages = {path.stem: path.read_text() for path in (tmp_path / "pages/reference").glob("*.md")}
    assert "`graph.contract`" in pages["Graph"] and "-pipe-split-stages" in pages["PipePasses"]
    assert set(module.TABLES) | {"Python"} == set(pages)
    for name in module.PYTHON:
        assert f"::: {name}\n" in pages["Python"]
        parts, found = name.split("."), None
        for i in range(len(parts), 0, -1):
            if importlib.util.find_spec(".".join(parts[:i])) if i == 1 else _module(parts[:i]):
                found = importlib.import_module(".".join(parts[:i]))
                for part in parts[i:]:
                    found = getattr(found, part)
                break
        assert found.__doc__, name
    navigation = (ROOT / "mkdocs.yml").read_text()
    for path in (tmp_path / "pages").rglob("*.md"):
        assert str(path.relative_to(tmp_path / "pages")) in navigation, path
    home = (tmp_path / "pages/index.md").read_text()
    assert "](docs/" not in home and "](Tutorial.md)" in home


def _module(parts):
    try:
        return importlib.util.find_spec(".".join(parts))
    except ModuleNotFoundError:
        return None


def test_what_never_ran_on_a_gpu_is_said_once():
    """One page has the table; the pages that tell what GPUs do link to it and repeat nothing."""
    rows = [row.split("|")[1:-1] for row in (ROOT / "docs/WhatRan.md").read_text().split("\n")
            if row.startswith("| ")][1:]
    never = " ".join(what for what, _, gpu in rows if gpu.strip().startswith("never"))
    for words in ("several GPUs, and so NCCL", "other than that H100", "fp8", "GPT, LLaMA and Mixtral",
                  "NCCL's bootstrap", "merged matmuls", "copied ahead", "checks that wait for each other"):
        assert words in never, words
    for path in PAGES:
        told = " ".join(path.read_text().split())
        told = re.findall(r"[^.]*\bnever (?:been )?r[au]n on (?:one|a GPU|several)[^.]*\.[^.]*", told)
        assert all("WhatRan.md" in sentence for sentence in told), (path.name, told)
    for page in ("README.md", "docs/Gpu.md", "docs/Performance.md"):
        assert "WhatRan.md" in (ROOT / page).read_text()


def test_the_changelog_has_the_version():
    """Its first section is of the version that the package has; a tag of this commit is that version."""
    from cleave.version import __version__

    title = re.search(r"^## (\S+), (not released yet|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert title and title[1] == __version__
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    versions = [tag for tag in tags.stdout.split() if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    assert versions in ([], [f"v{__version__}"])
    assert not versions or title[2] != "not released yet"
