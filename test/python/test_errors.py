# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""No error of the C++ code is dropped. The support library would end a process that drops one, in
a build of its own that packages are not; so the text is searched for what can do it."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: A variable, member or reference of the type.
DECLARED = re.compile(r"\b(?:llvm::)?Error\s*&?(\w+)(?:;| = |\{)")
#: A statement that gives it another value, behind a condition or not.
ASSIGNED = re.compile(r"^(.*?)\b(\w+) = (?!=)")


def statements(text):
    """(line, text) of each statement, without comments and preprocessor lines."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/|^#[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), text,
                  flags=re.S | re.M)
    text = re.sub(r"\bfor \([^;{}]*;[^;{}]*;", lambda m: m[0].replace(";", ","), text)
    line, found, begin = 1, "", None
    for c in text:
        if begin is None and not c.isspace():
            begin = line
        found += c
        line += c == "\n"
        if c in ";{}":
            yield begin, " ".join(found.split())
            found, begin = "", None


def dropped(text):
    """Lines at which a variable of the type gets a value, and its own may be an error: there is
    neither a condition that it has none, nor are both joined."""
    names = set(DECLARED.findall(text))
    for line, statement in statements(text):
        found = ASSIGNED.match(statement)
        if not found or found[2] not in names or DECLARED.search(statement):
            continue
        before, name = found[1], found[2]
        if re.search(r"(?:[.>*&]|\b(?!else\b)\w+) ?$", before):
            continue  # A field, or a variable of another type.
        if re.search(rf"!{name}\b", before) or re.search(
                rf"{name} = (?:llvm::)?joinErrors\( ?std::move\({name}\)", statement):
            continue
        yield line, statement


def sources():
    for base in ("lib", "include", "tools", "python"):
        for path in sorted((ROOT / base).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                yield path


def test_no_error_is_assigned_over():
    found = [f"{path.relative_to(ROOT)}:{line}: {statement}" for path in sources()
             for line, statement in dropped(path.read_text())]
    assert not found, "\n".join(found)


def test_no_error_is_cast_away():
    """The compiler warns of one that is not used; this keeps it from being told not to."""
    away = re.compile(r"\(void\)\s*\w+(?:->|\.)(?:save|load|write|read|sync|run|take)\w*\(")
    assert not [f"{path}: {m[0]}" for path in sources() for m in away.finditer(path.read_text())]


def test_one_that_is_dropped_is_found():
    loop = """
      Error failure = Error::success();
      for (int i = 0; i < n; ++i) {
        failure = train(i);
        if (failure)
          break;
        if (saves(i))
          failure = save();
      }
      if (!failure)
        failure = report();
      failure = llvm::joinErrors(std::move(failure), last());
    """
    assert [line for line, _ in dropped(loop)] == [4, 7]
    assert not list(dropped("if (Error error = one())\n  return error;\nError other = two();\n"))
