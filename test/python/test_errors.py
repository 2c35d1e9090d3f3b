# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""No error of the C++ code is dropped. The support library would end a process that drops one, in
a build of its own that packages are not; so the text is searched for what can do it."""

import pathlib

import pytest

import error_lint

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sources():
    return {path: path.read_text() for base in ("lib", "include", "tools", "python")
            for path in sorted((ROOT / base).rglob("*")) if path.suffix in (".h", ".cpp")}


@pytest.fixture(scope="module")
def names(sources):
    return error_lint.functions(sources.values())


def test_no_error_is_dropped(sources, names):
    found = [f"{path.relative_to(ROOT)}:{line}: {statement}" for path, text in sources.items()
             for line, statement in error_lint.faults(text, names)]
    assert not found, "\n".join(found)
    assert {"writeCheckpoint", "writeFileAtomically", "finishUpdate", "fillBatch"} <= names


#: Each line that begins with "!" drops an error.
DROPPED = {
    "assigned in a loop": "Error failure = Error::success();\nfor (int i = 0; i < n; ++i) {\n! failure = train(i);\n}",
    "assigned behind another condition": "Error failure = first();\nif (!failure && x)\n y();\n! if (saves) failure = save();",
    "assigned in else": "Error e = one();\nif (!e)\n two();\n! else e = three();",
    "success assigned": "Error e = one();\nif (a && !e)\n two();\n! e = Error::success();",
    "joined without itself": "Error e = one();\nlog(e);\n! e = joinErrors(two(), three());",
    "never looked at": "void f() {\n! Error e = one();\n use(2);\n}",
    "left before": "Error f() {\n! Error e = one();\n if (done)\n return two();\n return e;\n}",
    "loop left before": "void f() {\n for (;;) {\n! Error e = one();\n if (done)\n break;\n use(e);\n }\n}",
    "expected never looked at": "void f() {\n! Expected<int> e = count();\n use(2);\n}",
    "expected used": "void f() {\n! Expected<int> e = count();\n use(*e);\n}",
    "expected used as a pointer": "void f() {\n! llvm::Expected<std::string> e = name();\n use(e->size());\n}",
    "called as a statement": "void f() {\n! session->saveIt(a);\n}",
    "called behind a condition": "void f() {\n! if (ready) session->saveIt(a);\n}",
    "called in a loop": "void f() {\n! for (int i : all) saveIt(i);\n}",
    "cast to void": "void f() {\n! (void)saveIt(a);\n}",
    "static_cast to void": "void f() {\n! static_cast<void>(saveIt(a));\n}",
    "ignored": "void f() {\n! std::ignore = saveIt(a);\n}",
    "maybe unused": "void f() {\n! [[maybe_unused]] Error e = saveIt(a);\n}",
    "a name that says so": "void f() {\n! auto ignored = saveIt(a);\n}",
    "tested without a name": "void f() {\n! if (saveIt(a)) return;\n}",
    "not tested": "void f() {\n! if (!saveIt(a)) return;\n}",
    "tested beside another": "void f() {\n! if (ready && !file.saveIt(a)) return;\n}",
    "as a bool": "void f() {\n! use(bool(saveIt(a)));\n}",
    "asserted": "void f() {\n! assert(!saveIt(a));\n}",
    "returned as a bool": "bool f() {\n! return !saveIt(a);\n}",
    "waited for": "void f() {\n! while (saveIt(a)) wait();\n}",
    "a choice of two": "void f() {\n! ready ? saveIt(a) : saveIt(b);\n}",
    "taken and left": "void f() {\n! value.takeError();\n}",
    "a text nobody reads": "void f() {\n! llvm::toString(value.takeError());\n}",
    "made and left": "void f() {\n! makeError(text);\n}",
    "joined and left": "void f() {\n! llvm::joinErrors(std::move(a), std::move(b));\n}",
    "without its text": "bool f() {\n! bool bad = llvm::errorToBool(saveIt(a));\n}",
    "kept in a vector": "! std::vector<llvm::Error> all;",
    "kept in a map": "! std::map<int, Error> all;",
    "kept in an optional": "! std::optional<Error> late;",
    "exchanged": "void f() {\n! std::swap(failure, other);\n}",
    "handled by nothing": "void f() {\n! llvm::handleAllErrors(std::move(e), [](const llvm::ErrorInfoBase &) {\n});\n}",
    "said to nobody": "void f() {\n! logAllUnhandledErrors(std::move(e), llvm::nulls());\n}",
    "caught": "void f() {\n try {\n g();\n! } catch (...) {\n}\n}",
    "a parameter": "! void f(int a, Error e) {\n use(a);\n}",
}
KEPT = [
    "if (Error error = one())\n  return error;\nError other = two();\nreturn other;",
    "Error e = Error::success();\nfor (int i : all)\n  if (!e)\n    e = saveIt(i);\nreturn e;",
    "e = llvm::joinErrors(std::move(e), last());",
    "Error f() {\n  return ready ? saveIt(a) : Error::success();\n}",
    "Error f() {\n  Error e = saveIt(a);\n  if (!e && more)\n    e = saveIt(b);\n  return e;\n}",
    "void f() {\n  if (Error e = saveIt(a))\n    say(llvm::toString(std::move(e)));\n}",
    "Error f() {\n  Expected<int> e = count();\n  if (!e)\n    return e.takeError();\n  use(*e);\n  return saveIt(*e);\n}",
    "void f() {\n  Expected<int> e = count();\n  use(e ? *e : 0);\n}",
    "void f() {\n  llvm::consumeError(saveIt(a)); // is said elsewhere\n}",
    "// (void)saveIt(a);\nvoid f() { say(\"saveIt(a);\"); }",
    "Error saveIt(int a);\nError Other::saveIt(int a) {\n  return one(a);\n}",
    "Error f(Error own) {\n  if (alone)\n    return own;\n  return share(std::move(own));\n}",
    "auto save = [&](int i) -> Error { return saveIt(i); };\nif (Error e = save(1))\n  return e;",
]


@pytest.mark.parametrize("name", DROPPED)
def test_one_that_is_dropped_is_found(name):
    lines = DROPPED[name].split("\n")
    expected = [number for number, line in enumerate(lines, 1) if line.startswith("!")]
    text = "\n".join(line.removeprefix("!") for line in lines)
    found = [line for line, _ in error_lint.faults(text, {"saveIt"})]
    assert len(expected) == 1 and set(found) == set(expected), text


@pytest.mark.parametrize("text", KEPT)
def test_one_that_is_kept_is_not(text):
    assert not error_lint.faults(text, {"saveIt"})


def test_what_returns_errors():
    assert error_lint.functions([
        "Error one(int a);\nllvm::Expected<std::vector<int>> Two::two() const {\n return load();\n}",
        "class A { llvm::Error three(); Error both(); };", "int both(int a);\nvoid four();",
    ]) == {"one", "two", "three"}
