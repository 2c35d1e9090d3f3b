# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The tree as docs/Architecture.md has it: which folder may include which."""
import ast
import collections
import functools
import importlib.util
import itertools
import json
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: From low to high. A file includes headers of its own folder and of folders
#: above it in this list; the last name of a row that fits a path decides.
ROOMS = [
    "Support",
    "Machines",
    "ClosedForms",
    "Scheduling",
    "Executable/Format",
    "Executable/Files",
    "Executable/Cuda",
    "Executable/Transforms",
    "Runtime/Core",
    "Runtime/Communicator",
    "Runtime/CPU",
    "Runtime/CUDA",
    "Runtime/MPI",
    "Runtime/Data",
    "Runtime/Session",
    "Dialect/Graph/IR",
    "Dialect/Graph/Analysis",
    "Dialect/Graph/Transforms",
    "Dialect/Spmd/IR",
    "Dialect/Spmd/Transforms",
    "Dialect/Pipe/IR",
    "Dialect/Pipe/Transforms",
    "Dialect/Exec/IR",
    "Dialect/Exec/Kernels",
    "Conversion",
    "Dialect/Exec/Transforms",
    "Interpreter",
    "Target",
    "Reports",
    "Pipelines",
    "Planning",
    "Testing",
]

#: What nothing of MLIR may be included by, and what LLVM only in part.
WITHOUT_MLIR = ("Scheduling", "Machines", "ClosedForms", "Executable", "Runtime")

#: Rooms that come before in the list and that a room still does not use.
FORBIDDEN = {
    "Executable": ("Machines", "Scheduling"),
    "Executable/Transforms": ("Executable/Cuda",),
    "Dialect": ("Executable", "Runtime"),
    "Conversion": ("Executable", "Runtime"),
    "Interpreter": ("Runtime",),
    "Target": ("Runtime",),
    "Reports": ("Runtime",),
    "Pipelines": ("Runtime",),
    "Runtime": ("Scheduling", "Machines"),
    "Runtime/CUDA": ("Runtime/CPU",),
    "Runtime/MPI": ("Runtime/CPU", "Runtime/CUDA"),
}

INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)


def room_of(path):
    """The room of a path below lib/ or include/cleave/."""
    found = [room for room in ROOMS if path == room or path.startswith(room + "/")]
    assert found, f"{path} is in no room of the list; add its folder"
    return max(found, key=len)


def sources():
    """Each C++ file of lib/ and include/cleave/: its path below these, and its text."""
    for base in (ROOT / "lib", ROOT / "include" / "cleave"):
        for path in sorted(base.rglob("*")):
            if path.suffix in (".h", ".cpp", ".inc"):
                yield path, str(path.relative_to(base)), path.read_text()


def included(path, relative, text):
    """The headers of this project that a file includes, as paths below lib/ or include/cleave/."""
    for name in INCLUDE.findall(text):
        if name.startswith("cleave/"):
            yield name.removeprefix("cleave/")
        elif (path.parent / name).exists():
            yield str((path.parent / name).resolve().relative_to((ROOT / "lib").resolve()))


def wrong_includes(files):
    """Lines that say which file includes a header of a room that it must not use."""
    order = {room: index for index, room in enumerate(ROOMS)}
    for path, relative, text in files:
        own = room_of(relative)
        for header in included(path, relative, text):
            other = room_of(header)
            forbidden = any(own.startswith(a) and other.startswith(b) for a, bs in FORBIDDEN.items() for b in bs)
            if order[other] > order[own] or forbidden:
                yield f"{relative} ({own}) includes {header} ({other})"


def test_includes_run_from_high_to_low():
    files = list(sources())
    assert len(files) > 300
    assert not list(wrong_includes(files))


def test_a_wrong_include_is_found():
    path = ROOT / "lib" / "Scheduling" / "Schedule.cpp"
    bad = [(path, "Scheduling/Schedule.cpp", '#include "cleave/Dialect/Pipe/IR/PipeOps.h"\n')]
    assert len(list(wrong_includes(bad))) == 1


#: How members of llvm::json are read.
JSON_ACCESS = re.compile(
    r"(?:\.|->)getAs(?:Object|Array|String|Number|Integer|UINT64|Boolean|Null)\(\)"
    r"|(?:\.|->)get(?:Object|Array|String|Number|Integer|Boolean|Null)\(|json::(?:parse|ObjectMapper|Path)\b")

#: Rooms that decide, and so read no report; and their files that read JSON that a person or
#: another program has written.
DECIDING = ("Pipelines", "Planning")
READ_JSON = {
    "Pipelines/Options/OptionsFromJson.cpp": "options, as `cleave.compile` passes them",
    "Pipelines/Options/OptionTable.cpp": "the value of one of these",
    "Pipelines/Options/DeclareOptions.h": "the same",
    "Pipelines/PlanFile.cpp": "the values of options in a file",
}


def json_reads(files):
    """Lines that say which file of a room that decides reads a member of JSON."""
    for _, relative, text in files:
        if relative.startswith(DECIDING) and relative not in READ_JSON:
            for number, line in enumerate(text.splitlines(), 1):
                if JSON_ACCESS.search(line):
                    yield f"{relative}:{number}: {line.strip()}"


def test_decisions_read_no_json():
    """Reports render facts; what is decided follows from the structs that they are made of."""
    files = list(sources())
    assert not list(json_reads(files))
    names = {relative for _, relative, _ in files}
    assert READ_JSON.keys() <= names, "the list names files that are gone"


@pytest.mark.parametrize("line", [
    'planned.seconds = facts.getNumber("makespan").value_or(0);',
    'if (const json::Array *all = plan->getArray("positions"))',
    "const json::Object &facts = *schedule->getAsObject();", "auto value = llvm::json::parse(text);"])
def test_a_decision_that_reads_json_is_found(line):
    assert len(list(json_reads([(None, "Planning/Fit.cpp", line)]))) == 1
    assert not list(json_reads([(None, "Reports/Summary.cpp", line)]))


def test_reports_are_renamed_by_tests_alone():
    """What renames the keys of reports is called by the test of decisions, and by nothing that a
    person runs."""
    callers = {str(path.relative_to(ROOT)) for folder in ("lib", "tools", "python", "include")
               for path in (ROOT / folder).rglob("*") if path.suffix in (".cpp", ".h")
               and "renameReportKeys(" in path.read_text()}
    assert callers == {"include/cleave/Reports/Report.h", "lib/Reports/Report.cpp",
                       "lib/Testing/ReportKeys.cpp"}


@pytest.mark.parametrize("room", WITHOUT_MLIR)
def test_no_mlir(room):
    names = [f"{relative}: {name}" for _, relative, text in sources() if relative.startswith(room)
             for name in INCLUDE.findall(text) if name.startswith("mlir/")]
    assert not names


def test_include_mirrors_lib():
    """Every folder of include/cleave is one of lib, but for headers alone."""
    headers_only = {"Support"}
    for path in sorted((ROOT / "include" / "cleave").rglob("*")):
        if path.is_dir():
            relative = path.relative_to(ROOT / "include" / "cleave")
            assert str(relative) in headers_only or (ROOT / "lib" / relative).is_dir(), relative


#: Files that hold the map of their folder.
MAPS = ("README.md", "__init__.py", "CMakeLists.txt")


def map_of(folder):
    """The map of a folder: its README, the docstring of its package, and comments of its
    CMakeLists.txt and of the Passes.td that describes it."""
    texts = []
    if (folder / "README.md").exists():
        texts.append((folder / "README.md").read_text())
    if (folder / "__init__.py").exists():
        texts.append(ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "")
    described = [folder / "CMakeLists.txt"]
    if folder.is_relative_to(ROOT / "lib"):
        described.append(ROOT / "include" / "cleave" / folder.relative_to(ROOT / "lib") / "Passes.td")
    for path in described:
        lines = path.read_text().splitlines() if path.exists() else []
        texts.append("\n".join(line for line in lines if line.startswith(("#", "//"))))
    return "\n".join(texts)


def unmapped(names, text):
    """The names of files whose stems are no words of a map."""
    stems = {pathlib.PurePath(name).stem for name in names if name not in MAPS}
    return sorted(s for s in stems if not re.search(rf"(?<![\w-]){re.escape(s)}(?![\w-])", text))


def tracked():
    """The names of the files of each folder of the repository."""
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    folders = collections.defaultdict(list)
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            folders[(ROOT / name).parent].append(pathlib.PurePath(name).name)
    return folders


def test_large_folders_have_a_map():
    """Each file of a folder of more than 25 files is named in the map of its folder."""
    large = {folder: names for folder, names in tracked().items() if len(names) > 25}
    assert large
    missing = {str(folder.relative_to(ROOT)): found for folder, names in large.items()
               if (found := unmapped(names, map_of(folder)))}
    assert not missing, f"the maps of folders lack files: {missing}"


#: Folders that have more than 25 files: the front end, whose files are one for each subject. None
#: comes to it.
LARGE = {"python/cleave/trace", "python/cleave/trace/converters"}


def test_folders_are_of_a_size():
    """What one looks through by eye; a larger folder is parted by subject."""
    large = {str(folder.relative_to(ROOT)) for folder, names in tracked().items() if len(names) > 25}
    assert large == LARGE, "a folder of more than 25 files, or one that is no longer"


def test_a_map_names_whole_files():
    assert unmapped(["split.mlir", "split-one.mlir"], "| `split-one` | stages |") == ["split"]


def test_architecture_names_files():
    """Every file that docs/Architecture.md names in full exists."""
    names = {path.name for folder in ("docs", "include", "lib", "python", "test", "tools", "cmake")
             for path in (ROOT / folder).rglob("*")}
    names |= {path.name for path in ROOT.iterdir()}
    text = (ROOT / "docs" / "Architecture.md").read_text()
    named = {word for code in re.findall(r"`([^`]*)`", text)
             for word in re.findall(r"(?<![\w>}*.-])\w[\w-]*\.(?:cpp|h|inc|py|td|md|cmake)\b", code)}
    assert len(named) > 50
    assert not named - names


#: A run of this many lines that stands twice is a repetition.
REPEATED = 6


def lines_of(path):
    """Lines that count, with their numbers: no blank ones, comments, punctuation alone, imports."""
    passed = ("#" if path.suffix == ".py" else "//", "#include", "import ", "from ")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = " ".join(line.split())
        if re.search(r"\w", line) and not line.startswith(passed):
            yield number, line


def repetitions(paths):
    """Pairs of files, and of places of one, that have a run of lines in common."""
    places = collections.defaultdict(list)
    for path in paths:
        lines = list(lines_of(path))
        for i in range(len(lines) - REPEATED + 1):
            run = "\n".join(line for _, line in lines[i:i + REPEATED])
            places[run].append((path, lines[i][0]))
    found = {}
    for same in places.values():
        for (one, line), (other, place) in itertools.combinations(same, 2):
            found.setdefault((one, other), f"{one}:{line} ~ {other}:{place}")
    return list(found.values())


def test_repetitions_become_fewer():
    """What stands twice is wrong in one of the places some day. The number only shrinks."""
    paths = sorted(path for folder in ("include", "lib", "python", "tools")
                   for path in (ROOT / folder).rglob("*")
                   if path.suffix in (".h", ".cpp", ".inc", ".cu", ".py"))
    assert len(paths) > 800
    found = repetitions(paths)
    assert len(found) <= 9, "\n".join(found)


def test_a_repetition_is_found(tmp_path):
    lines = [f"int a{i} = {i};" for i in range(REPEATED)]
    (tmp_path / "one.h").write_text("\n".join(lines))
    (tmp_path / "two.h").write_text("// More.\n#include <a>\n\n" + "\n}\n".join(lines))
    (tmp_path / "three.h").write_text("\n".join(lines[1:]))
    assert len(repetitions(sorted(tmp_path.iterdir()))) == 1


def test_no_test_imports_a_test():
    """What tests share is in support/; a file of tests that another one imports cannot change alone."""
    found = []
    for path in sorted((ROOT / "test" / "python").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = ([node.module or ""] if isinstance(node, ast.ImportFrom) else
                     [name.name for name in node.names] if isinstance(node, ast.Import) else [])
            found += [f"{path.name} imports {name}" for name in names if name.startswith("test_")]
    assert not found


def test_questions_name_files():
    """test/which_file.json: thirty questions whose answers are found by the names of files."""
    questions = json.loads((ROOT / "test/which_file.json").read_text())["questions"]
    assert len(questions) >= 30
    for question, files in questions:
        assert files and all((ROOT / file).is_file() for file in files), question


def test_names_are_unique():
    """No two source files of the compiler have one name, but for those of the same part of different dialects."""
    # A pass is named as its file, in whichever dialect; the interpreter draws random numbers by
    # a second implementation, which tests compare with the first.
    parts = {"CMakeLists.txt", "Passes.h", "Passes.td", "Verify.cpp", "Philox.h", "Philox.cpp"}
    seen = collections.defaultdict(list)
    for path, relative, _ in sources():
        if path.name not in parts:
            seen[path.name].append(relative)
    mirrored = ("Graph/IR/Canonicalization", "Graph/IR/Costs", "Graph/IR/Gradients",
                "Graph/IR/ShapeInference", "Graph/IR/ShardingRules", "Interpreter/Models")
    for where in seen.values():
        rest = [w for w in where if not any(part in w for part in mirrored)]
        assert len(rest) <= 1, rest


#: An attribute's constant and its name.
ATTRIBUTE = re.compile(r'StringLiteral\s+(k\w*Attr)\s*=\s*"([^"]*)"')


def wrong_attributes(texts, known):
    """Lines that say which constant has no prefix of a dialect, or no row in the dialect's table."""
    for relative, text in texts:
        for constant, name in ATTRIBUTE.findall(text):
            if not re.fullmatch(r"(graph|spmd|pipe|exec)\.\w+", name):
                yield f"{relative}: {constant} is '{name}', which has no prefix of a dialect"
            elif name not in known:
                yield f"{relative}: {constant}, '{name}', is in no table (lib/Dialect/*/IR/*Attributes.cpp)"


def test_attributes_are_in_the_tables():
    known = set(re.findall(r"^\| `(\w+\.\w+)`", (ROOT / "docs" / "Attributes.md").read_text(), re.MULTILINE))
    texts = [(relative, text) for _, relative, text in sources()]
    named = {name for _, text in texts for _, name in ATTRIBUTE.findall(text)}
    assert len(named) > 80
    assert not list(wrong_attributes(texts, known))
    # And the table has no row that no constant names.
    assert not known - named


def test_a_wrong_attribute_is_found():
    bad = [("a.h", 'inline constexpr llvm::StringLiteral kTwinAttr = "twin";'),
           ("b.h", 'inline constexpr llvm::StringLiteral kTwinAttr =\n    "graph.twin";')]
    assert len(list(wrong_attributes(bad, {"graph.other"}))) == 2


#: The functions of more than 120 lines, and their lines. Nothing is added here, and none grows.
LONG_FUNCTIONS = {
    "lib/Target/CUDA/Kernels/Attention.cu attentionForward": 149,
    "lib/Target/CUDA/Kernels/Attention16.cu attentionForward16": 158,
    "test/unit/Runtime/Bigram.cpp cleave::test::makeBigram": 305,
}


def long_functions():
    spec = importlib.util.spec_from_file_location("long_functions", ROOT / "scripts" / "long_functions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_are_short():
    try:
        found = collections.Counter()
        for path, name, _, lines in long_functions().all_functions():
            if lines > 120:
                found[f"{path} {name}"] = lines
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    longer = {name: lines for name, lines in found.items() if lines > LONG_FUNCTIONS.get(name, 120)}
    assert not longer, f"split these, at most 120 lines each: {longer}"
    assert not [name for name in LONG_FUNCTIONS if name not in found], "take them off the list"


def test_a_long_function_is_found():
    text = "namespace a {\nstruct S {\n  int f(int x) const {\n" + "    x += '{';\n" * 130 + "  }\n};\n} // namespace a\n"
    assert [(name, lines) for name, _, lines in long_functions().c_functions(text)] == [("f", 132)]


#: What is defined once, and where: a pattern of its definition, in C++ without comments.
SINGLE = {
    "the tensor type of a value": (
        r"RankedTensorType\s+\w+\((?:mlir::)?Value \w+\)\s*\{\s*return (?:\w+::)?cast<[\w:]*RankedTensorType>"
        r"\(\w+\.getType\(\)\);", "Dialect/Graph/IR/TensorType.h"),
    "the kinds of collectives": (
        r"enum(?: class)? \w*[^{};]*\{[^}]*\bAllGather\b[^}]*\bAllToAll\b", "Support/CollectiveKind.h"),
    "the kinds of reductions": (
        r"enum(?: class)? \w*[^{};]*\{\s*Sum,\s*Max,\s*Min\s*\}", "Support/ReductionKind.h"),
    "the cosine of learning rates": (r"\bcos\([^;]*progress", "Runtime/Session/LearningRate.cpp"),
    "patterns of precisions": (r"class PrecisionPatterns\b[^;]*\{", "Dialect/Graph/Transforms/PrecisionPatterns.h"),
    "what a target's name means": (r"== \"cuda\"", "Support/TargetTraits.h"),
    "where updates begin": (r"isa<(?:graph::)?GradientOp>\(\*?op\)\)\s*role", "Dialect/Graph/Analysis/StepRoles.cpp"),
}

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def definitions(pattern, files):
    return [relative for _, relative, text in files if re.search(pattern, COMMENT.sub("", text))]


@pytest.mark.parametrize("what", SINGLE)
def test_one_definition(what):
    pattern, home = SINGLE[what]
    assert definitions(pattern, sources()) == [home]


def test_a_second_definition_is_found():
    for pattern, text in ((SINGLE["the tensor type of a value"][0],
                           "static RankedTensorType typeOf(Value v) {\n  return cast<RankedTensorType>(v.getType());\n}"),
                          (SINGLE["the kinds of reductions"][0], "enum class Reduction : uint8_t { Sum, Max, Min };"),
                          (SINGLE["the kinds of collectives"][0],
                           "enum class Exchange : uint8_t {\n  AllReduce,\n  AllGather, // all\n  AllToAll };")):
        assert definitions(pattern, [(None, "Other.h", text)])


def test_no_target_is_asked_by_its_name():
    """A decision asks what a target is (Support/TargetTraits.h), not what it is called."""
    asked = re.compile(r"\btarget\s*[!=]=\s*\"|\bprocessors\s*(?:>|==|!=)\s*0|program\.target\.empty\(\)\s*\?")
    found = {relative for _, relative, text in sources() if asked.search(COMMENT.sub("", text))}
    found |= {path.name for path in (ROOT / "tools").rglob("*.cpp") if asked.search(COMMENT.sub("", path.read_text()))}
    assert not found


def recipe_names():
    """The recipes that Recipes.cpp declares."""
    text = (ROOT / "lib/Dialect/Spmd/Transforms/Recipes/Recipes.cpp").read_text()
    table = text[text.index("static const Recipe recipes[]"):text.index("cleave::spmd::recipeTable()")]
    return set(re.findall(r"\{\{\"([\w-]+)\",\s*\{\{", table))


#: Where recipes and axes are declared, offered or drawn.
RECIPES_ARE_NAMED = ("Dialect/Spmd/Transforms/Recipes", "Dialect/Spmd/IR/Axes.h", "ClosedForms/", "Pipelines/Options/",
                     "Pipelines/Phases.h", "Testing/")


def strings_of_code():
    """The texts in quotes in C++ and in the Python that compiles, without comments and docstrings."""
    files = [(relative, text) for _, relative, text in sources() if not relative.startswith(RECIPES_ARE_NAMED)]
    files += [(path.name, path.read_text()) for folder in ("tools", "python/native")
              for path in sorted((ROOT / folder).rglob("*.cpp"))]
    for name, text in files:
        yield from ((name, found) for found in re.findall(r'"((?:[^"\\\n]|\\.)*)"', COMMENT.sub("", text)))
    for path in sorted((ROOT / "python/cleave/compiler").glob("*.py")):
        tree = ast.parse(path.read_text())
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        yield from ((path.name, node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)
                    and isinstance(node.value, str) and id(node) not in prose)


def test_generic_code_names_no_recipe():
    """A recipe is asked for a property, and an axis has a constant (Recipes.h, Axes.h). Of names
    that are words too, only a text that is nothing else counts."""
    recipes = recipe_names()
    assert {"dp", "zero3", "megatron-sp", "ring"} <= recipes
    words = re.compile(r"(?<![\w-])(?:%s)(?![\w-])" % "|".join(
        re.escape(name) for name in recipes if not name.isalpha() or name in ("megatron", "ulysses")))
    exact = recipes | {"tp", "cp", "ep", "pp", "fsdp"}
    # The default of an option, the axis of stages, and advice for a model without a plan.
    allowed = {("api.py", "dp"), ("options.py", "dp"), ("shardings.py", "pp")}
    found = {(name, text) for name, text in strings_of_code()
             if (text in exact or words.search(text)) and "has no tp_plan" not in text}
    assert not found - allowed


# Precompiled headers save time and nothing else: what they hold is of rooms that a library may
# use, and sources include what they use all the same.
LEVELS = ROOT / "cmake" / "pch"


@functools.cache
def reached(path):
    """The headers of this project that a file includes, over others too."""
    found = {path}
    for name in INCLUDE.findall(path.read_text()):
        near = [folder / name for folder in (ROOT / "include", path.parent) if (folder / name).exists()]
        if near and near[0].resolve() not in found:
            found |= reached(near[0].resolve())
    return frozenset(found)


def rooms(level):
    """The rooms of the headers of a level."""
    base = ROOT / "include" / "cleave"
    return {room_of(str(path.relative_to(base))) for path in reached(LEVELS / f"{level}.h")
            if path.is_relative_to(base)}


def libraries():
    """Each library of lib/ that names a level: its room, its name and the level."""
    for path in sorted((ROOT / "lib").rglob("CMakeLists.txt")):
        for name, level in re.findall(r"cleave_add_library\((\w+)\s+PCH (\w+)", path.read_text()):
            relative = str((path.parent / name).relative_to(ROOT / "lib"))
            yield room_of(relative), name, level


def too_high(found):
    order = {room: index for index, room in enumerate(ROOMS)}
    return [f"{name} ({own}) is compiled with {level}.h, which includes {other}"
            for own, name, level in found for other in rooms(level) if order[other] > order[own]]


def test_a_library_is_compiled_with_lower_rooms():
    found = list(libraries())
    assert len(found) > 15
    assert not too_high(found)
    assert too_high([("Dialect/Graph/IR", "X", "Spmd")])


def test_rooms_without_mlir():
    for own, name, level in libraries():
        if own.startswith(WITHOUT_MLIR):
            assert level == "Plain", name
    for level in ("Plain", "PlainTests", "Runtime"):
        text = "".join(path.read_text() for path in reached(LEVELS / f"{level}.h"))
        assert "mlir/" not in text and "cleave/" not in text


#: Where the ops of each dialect are declared.
OPS = {dialect.lower(): ROOT / f"include/cleave/Dialect/{dialect}/IR/{dialect}Ops.h"
       for dialect in ("Graph", "Spmd", "Pipe", "Exec")}


def missing(path, text):
    """The dialects whose ops a file names in full without their header."""
    return [dialect for dialect, header in OPS.items()
            # OnOp is a place of attributes.
            if re.search(rf"\b{dialect}::(?!OnOp)[A-Z]\w*Op\b", text) and header not in reached(path)]


@pytest.mark.parametrize("folder", ["lib", "tools", "test/unit"])
def test_sources_include_the_ops_that_they_name(folder):
    files = sorted((ROOT / folder).rglob("*.cpp"))
    assert len(files) > 20
    assert not {str(path): own for path in files if (own := missing(path, path.read_text()))}


def test_a_missing_include_is_found():
    path = ROOT / "lib" / "Dialect" / "Graph" / "IR" / "GraphOps.cpp"
    assert missing(path, "isa<spmd::AllReduceOp>(op)") == ["spmd"]
    assert not missing(path, "isa<graph::AddOp>(op)")
