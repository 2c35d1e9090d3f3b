"""Lists functions of C++, CUDA and Python by their lines.

usage: python scripts/long_functions.py [LINES]     those above LINES, 120 by default
"""

import ast
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
C_SUFFIXES = (".cpp", ".h", ".cu", ".inc", ".c")

#: Literals, comments and directives, whose braces do not count.
NO_CODE = re.compile(r'R"([^()\\ ]{0,16})\((?:.|\n)*?\)\1"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"'
                     r"|(?<![\w])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
#: Words before a brace that is not of a function.
OTHER = re.compile(r"^(?:extern|inline)?\s*namespace\b|^(?:template\s*<.*>\s*)?(?:typedef\s+)?"
                   r"(?:class|struct|enum|union)\b|^(?:else\s+)?(?:if|for|while|switch|do|else|catch)\b", re.DOTALL)


def c_functions(text):
    """The name, first line and number of lines of each function with a body."""
    text = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)
    opened, after = [], 0
    for match in re.finditer(r"[{};]", text):
        at = match.start()
        if match.group(0) == "{":
            opened.append((at, after))
        elif match.group(0) == "}" and opened:
            begin, head_begin = opened.pop()
            head = text[head_begin:begin].strip()
            named = re.search(r"([~\w:]+(?:\s*\([^()]*\))?)\s*\(", head)
            if named and not OTHER.match(head) and not head.endswith("="):
                yield (named.group(1), text.count("\n", 0, begin) + 1, text.count("\n", begin, at) + 1)
        after = at + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # A docstring is not code, as the comment above a function of C++ is not.
            said = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            lines = said.end_lineno - said.lineno + 1 if said else 0
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1 - lines


def all_functions():
    """Each function of the tree: its file, name, first line and number of lines."""
    for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        find = python_functions if name.endswith(".py") else c_functions if name.endswith(C_SUFFIXES) else None
        if find and (ROOT / name).is_file():
            for function, line, lines in find((ROOT / name).read_text()):
                yield name, function, line, lines


if __name__ == "__main__":
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    for name, function, line, lines in sorted(all_functions(), key=lambda row: -row[3]):
        if lines > limit:
            print(f"{lines:5} {name}:{line} {function}")
