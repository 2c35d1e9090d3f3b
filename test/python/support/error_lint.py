# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Finds in the text of C++ what drops an `llvm::Error` or `llvm::Expected`: what assigns over one that
was not looked at, leaves before it is, tests one that has no name, or throws one away."""

import functools
import re

TYPE = r"(?:llvm::)?(?:Error|Expected<[^;{}()]*>)"
#: A variable, member or reference of the type.
DECLARED = re.compile(r"\b(?:llvm::)?Error\s*&?(\w+)(?:;| = |\{)")
#: A statement that gives it another value, after a condition or not.
ASSIGNED = re.compile(r"^(.*?)\b(\w+) = (?!=)")
FUNCTION = re.compile(rf"(?<![\w:>]){TYPE}\s+(?:\w+::)*(\w+)\s*\(")
OTHER_FUNCTION = re.compile(r"\b(?!return|else|new|throw|case|goto|co_return|Error\b)(\w[\w:]*(?:<[^;{}()]*>)?)[\s*&]+(?:\w+::)*(\w+)\s*\(")
LEAVES = re.compile(r"\b(return|break|continue|goto|throw)\b")


@functools.cache
def plain(text):
    """Without comments, preprocessor lines and the contents of literals; lines stay."""
    def blank(match):
        found = match[0]
        if found[0] in "\"'" or found.startswith("R\""):
            return found[0] + re.sub(r"[^\n]", "", found) + found[-1] if found[0] in "\"'" else '""' + "\n" * found.count("\n")
        return re.sub(r"[^\n]", " ", found)

    return re.sub(r"R\"(\w*)\(.*?\)\1\"|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|(?<!\w)'(?:[^'\\\n]|\\.)*'",
                  blank, text, flags=re.S | re.M)


@functools.cache
def statements(text):
    """(line, depth, text) of each statement; the depth is that of braces around it."""
    return tuple(_statements(text))


def _statements(text):
    text = re.sub(r"\bfor \([^;{}]*;[^;{}]*;", lambda m: m[0].replace(";", ","), plain(text))
    line, depth, found, begin = 1, 0, "", None
    for c in text:
        if begin is None and not c.isspace():
            begin = line
        found += c
        line += c == "\n"
        if c in ";{}":
            depth -= c == "}"
            yield begin, depth, " ".join(found.split())
            depth += c == "{"
            found, begin = "", None


def functions(texts):
    """Names of functions that return the types, and never something else."""
    own, others = set(), set()
    for text in map(plain, texts):
        own |= set(FUNCTION.findall(text))
        for kind, name in OTHER_FUNCTION.findall(text):
            if not re.fullmatch(TYPE, kind):
                others.add(name)
    return own - others - {"success", "takeError", "operator", "remove"}


def assigned_over(text):
    """Lines at which a variable of the type gets a value, and its own may be an error: there is
    neither a condition that it has none, nor are both joined."""
    names = set(DECLARED.findall(plain(text)))
    for line, _, statement in statements(text):
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


def not_looked_at(text):
    """Lines of variables of the types that are not looked at before the function leaves their place,
    or used as values before."""
    all_statements = statements(text)
    declared = re.compile(rf"(?:^|\{{ ?|\) ?){TYPE} (\w+) = (?!(?:llvm::)?Error::success\(\))(.*);$")
    for at, (line, depth, statement) in enumerate(all_statements):
        found = declared.search(statement)
        if not found or re.match(r"(static|extern|using)\b", statement):
            continue
        name = found[1]
        for _, inner, later in all_statements[at + 1:]:
            if re.search(rf"\b{name}\b", later):
                value = re.search(rf"(?:\*{name}\b|\b{name}->)", later)
                test = re.search(rf"!{name}\b|[(&|?] ?{name}\b(?! ?->)(?!\.)|\b{name}\.takeError|\b{name} ?[?)&|]|move\({name}\)|ASSERT|EXPECT", later)
                if value and "Expected" in found[0] and (not test or test.start() > value.start()) and not re.search(
                        rf"\b{name} ?[?&]", later):
                    yield line, statement
                break
            if inner < depth or later == "}" and inner < depth or LEAVES.search(later):
                yield line, statement
                break


def thrown_away(text, names):
    """Lines at which the result of such a function, or an error, has no reader."""
    call = rf"(?:\w+(?:\(\))?(?:->|\.|::))*(?:{'|'.join(map(re.escape, sorted(names))) or '(?!)'})\("
    known = r"(?:llvm::)?(?:joinErrors|toString|makeError|createStringError|createFileError|errorCodeToError)\("
    faults = [
        rf"^(?:else |do )?(?:{call}|{known}).*;$",
        rf"^(?:if|while|for) \(.*\) (?:{call}|{known})[^=]*;$",
        rf"\(void\) ?!?(?:{call}|{known})",
        rf"static_cast<void>\( ?(?:{call}|{known})",
        r"std::ignore = ",
        rf"\[\[maybe_unused\]\] {TYPE} ",
        rf"(?:\b(?:if|while) \(|&& |\|\| )!? ?{call}",
        rf"\b(?:bool|assert)\(!? ?{call}",
        rf"\breturn !{call}",
        rf"^(?!(?:llvm::)?consumeError\()[^=?]*[?] ?{call}",
        r"^\w+(?:(?:->|\.)\w+)*\.takeError\(\);",
        r"\b(?:llvm::)?errorToBool\(",
        r"\b(?:vector|optional|deque|list|array|pair|tuple|function_ref<)<(?:[\w: ]+, ?)*(?:llvm::)?Error\b",
        r"\bmap<[^;{}]*, ?(?:llvm::)?Error>",
        r"\bnew (?:llvm::)?Error\b",
        r"std::(?:exchange|swap)\((?:error|failure|wrong)\b",
        r"handle(?:All)?Errors\(.*\[[^\]]*\]\([^)]*\) ?\{ ?$",
        r"logAllUnhandledErrors\(.*nulls\(\)",
        r"catch \(\.\.\.\) ?\{ ?$",
        r"^auto &?&?(?:unused|ignored|_) = ",
    ]
    pattern = [re.compile(fault) for fault in faults]
    for line, _, statement in statements(text):
        if re.match(r"return\b", statement):
            found = [p for p in pattern if p.search(statement) and "return !" in p.pattern]
        elif re.match(rf"(?:static |inline |virtual |friend |template.*> )*{TYPE} (?:\w+::)*\w+\([^=]*[;{{]$", statement):
            continue
        else:
            found = [p for p in pattern if p.search(statement)]
        if found:
            yield line, statement


def by_value(text):
    """Lines of functions that take an error, and do nothing with it."""
    all_statements = statements(text)
    for at, (line, depth, statement) in enumerate(all_statements):
        found = re.search(r"[(,] ?(?:llvm::)?Error (\w+)[,)][^=;]*\{$", statement)
        if not found:
            continue
        for _, inner, later in all_statements[at + 1:]:
            if inner <= depth:
                yield line, statement
                break
            if re.search(rf"\b{found[1]}\b", later):
                break


def faults(text, names):
    found = {*assigned_over(text), *not_looked_at(text), *thrown_away(text, names), *by_value(text)}
    return sorted(found)
