"""Checks the words of documentation, docstrings and comments; `make lint` runs it.

Pages (README.md, CONTRIBUTING.md, docs/, examples/README.md) have none of the words of the
table below, and neither have comments and docstrings of the package. In comments elsewhere
each word has a number, which may only become smaller: `--lower` writes the numbers of today
into this file.

usage: python scripts/check_words.py [--lower]
"""

import argparse
import ast
import collections
import dataclasses
import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Word:
    name: str
    pattern: str
    better: str
    #: How many there are in comments outside of the package.
    allowed: int
    #: Folders in which the word is one to avoid; everywhere if there is none.
    under: tuple = ()


#: Not of numbers or sizes.
PRODUCT = r"(?<!sums of )(?<!element-wise )\bproducts?\b(?! along| of (?:the|their|three|pairs)\b| x | and diff)"

#: The words to avoid, and those of the field. Names of options and other code stand in backticks,
#: which are not read.
WORDS = (
    Word("behind", r"\bbehind\b", "after", 125),
    Word("processor", r"\bprocessors?\b", "CPU, of a GPU multiprocessor", 90),
    Word("product", PRODUCT, "matmul", 268),
    Word("tier", r"\b(?:second )?tier\b", "offload memory", 67),
    Word("in parts", r"\b(?:lie|lies|lying) in parts\b", "is sharded", 5),
    Word("whole tensor", r"\bwhole tensors?\b", "global tensor", 58),
    Word("exchange", r"\bexchang(?:e|es|ed|ing)\b", "collective, bucket or transport; for a verb, send", 163),
    Word("movement", r"(?<!data )\bmovements?\b(?!\.py)", "collective", 9),
    Word("is no", r"(?<!here )\b(?:is|are) no (?!longer\b|more\b)", "is not a", 58),
    Word("What", r"(?:^|[.:;] )What (?!if\b)(?![^.]*\?)", "a noun, the subject of the sentence", 609),
    Word("loss chunk", r"\bloss chunks?\b", "loss tile", 0),
    Word("device", r"\bdevices?\b", "pipeline position", 0, ("lib/Scheduling", "include/cleave/Scheduling")),
)

#: Pages that a program writes: their texts are in its code.
GENERATED = {"docs/Attributes.md", "docs/Options.md", "docs/Status.md", "docs/Models.md", "docs/Operators.md"}
#: Comments and docstrings that have none of the words either.
CLEAN = ("python/cleave/", "scripts/")
#: Except there, where numbers hold.
COUNTED = ("python/cleave/compiler/",)


def tracked(*patterns):
    """The files of the repository that fit."""
    return subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True).split()


def page_lines(text):
    """The lines of a page without code blocks, code, targets of links and headings, by number."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    text = re.sub(r"(?ms)^ *```.*?^ *```$", blank, text)
    text = re.sub(r"``[^`]+``|`[^`]+`|\]\([^)]*\)|(?m:^#.*$)", blank, text)
    return list(enumerate(text.split("\n"), 1))


def python_lines(text):
    """The lines of comments and docstrings, by number."""
    found = [(token.start[0], token.string.lstrip("#:! ")) for token in
             tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) \
                and ast.get_docstring(node, clean=False):
            first = node.body[0].lineno
            found += enumerate((line.strip() for line in node.body[0].value.value.split("\n")), first)
    return [(number, without_code(line)) for number, line in found]


def cpp_lines(text):
    """The lines of comments of C++, by number."""
    return [(number, without_code(match[1].lstrip("/<! "))) for number, line in enumerate(text.split("\n"), 1)
            if (match := re.search(r"(?:^|[\s;{}])//(.*)", line))]


def table_lines(text):
    """The lines of descriptions and comments of TableGen, by number."""
    return [(number, without_code(line.strip().lstrip("/ "))) for number, line in enumerate(text.split("\n"), 1)]


def without_code(line):
    return re.sub(r"``?[^`]+``?", lambda match: " " * len(match.group()), line)


READERS = {".md": page_lines, ".py": python_lines, ".td": table_lines, ".h": cpp_lines, ".cpp": cpp_lines,
           ".inc": cpp_lines, ".c": cpp_lines, ".cu": cpp_lines}


def clean(file):
    return file.endswith(".md") or file.startswith(CLEAN) and not file.startswith(COUNTED)


def hits():
    """(word, file, line) of every word to avoid."""
    pages = set(tracked("README.md", "CONTRIBUTING.md", "docs/*.md", "examples/README.md")) - GENERATED
    code = [file for file in tracked() if pathlib.Path(file).suffix in READERS and not file.endswith(".md")]
    for file in [*sorted(pages), *code]:
        path = ROOT / file
        # A file may be tracked and removed; this one names the words.
        if not path.exists() or file == "scripts/check_words.py":
            continue
        for number, line in READERS[path.suffix](path.read_text()):
            for word in WORDS:
                if not word.under or file.startswith(word.under):
                    for _ in re.finditer(word.pattern, line):
                        yield word, file, number


def added():
    """The lines (file, number) that came after the numbers of this file were written, as Git knows."""
    try:
        since = subprocess.check_output(["git", "log", "-1", "--format=%H", "--", "scripts/check_words.py"],
                                        cwd=ROOT, text=True, stderr=subprocess.DEVNULL).strip()
        text = subprocess.check_output(["git", "diff", "-U0", "--no-ext-diff", since], cwd=ROOT, text=True,
                                       errors="replace", stderr=subprocess.DEVNULL) if since else ""
    except subprocess.CalledProcessError:
        return set()
    found, file = set(), None
    for line in text.split("\n"):
        if line.startswith("+++ b/"):
            file = line[6:]
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            found |= {(file, int(match[1]) + i) for i in range(int(match[2] or 1))}
    return found


def lower(counts):
    """Writes the numbers of today into this file, where they are smaller."""
    path = ROOT / "scripts/check_words.py"
    text = path.read_text()
    for word in WORDS:
        pattern = rf'(    Word\("{word.name}", .*, )\d+((?:, \(.*\))?\),\n)'
        number = min(counts[word], word.allowed)
        text = re.sub(pattern, lambda match, number=number: f"{match[1]}{number}{match[2]}", text)
    path.write_text(text)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="write the numbers of today into this file")
    options = parser.parse_args(arguments)
    found = collections.defaultdict(list)
    wrong = []
    for word, file, number in hits():
        if clean(file):
            wrong.append(f"{file}:{number}: '{word.name}': write {word.better}")
        else:
            found[word].append((file, number))
    counts = {word: len(found[word]) for word in WORDS}
    if options.lower:
        lower(counts)
        return 0
    for word in WORDS:
        if counts[word] > word.allowed:
            new = [place for place in found[word] if place in added()] or found[word]
            wrong += [f"{file}:{number}: '{word.name}': write {word.better}" for file, number in new]
            wrong.append(f"comments have '{word.name}' {counts[word]} times, and may have it {word.allowed} times")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
