# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The bytes that the printed CUDA kernels move, counted from their text, beside what the kernels of the
executable module (``--emit=executable``) have as operands and results.

An access of the text counts as often as it runs: grid, loops and lanes together; a value that all
threads of a block read alike counts once for the block. Reads of one element by several rows, as of
a bias, are found in a cache and count once; a second read of a row by a later pass counts again.
"""

import dataclasses
import math
import re

SIZES = {"double": 8, "float": 4, "__half": 2, "__nv_bfloat16": 2, "__nv_fp8_e4m3": 1,
         "__nv_fp8_e5m2": 1, "long long": 8, "int": 4, "signed char": 1, "unsigned char": 1}
BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8E4M3FN": 1, "f8E5M2": 1, "i64": 8, "i32": 4,
         "i8": 1, "i1": 1}

# The executable module ----------------------------------------------------------------


@dataclasses.dataclass
class Access:
    """A read or write of an element; `of` is the number of the argument, or None for a kept row."""
    of: int | None
    map: object
    symbols: int
    #: In which pass, or None for a value of the row.
    at: int | None
    #: At an index that differs between columns, or under a condition.
    scattered: bool
    write: bool


@dataclasses.dataclass
class Kernel:
    name: str
    skeleton: str
    rows: int
    cols: int
    valid: int
    #: Elements and bytes of an element, by argument.
    arguments: list
    inputs: int
    alignment: list
    accesses: list
    body: str

    def operand_bytes(self):
        """Of operands and results; of what is gathered, only what is read, as often as indices say:
        a token is read for each of its experts."""
        total = 0
        for i, (count, size) in enumerate(self.arguments):
            gathered = [a for a in self.accesses if a.of == i and (a.symbols or a.scattered)]
            if any(a.symbols and not a.write for a in gathered):
                count = self.rows * self.cols
            total += min(count, self.rows * self.cols) * size if gathered else count * size
        return total


def _function(text):
    """An affine map of one result as a function of (row, column, symbols)."""
    head, result = re.fullmatch(r"\((.*?)\) -> \((.*)\)", re.sub(r"\)\[.*?\] ->", ") ->", text)
                                ).groups()
    symbols = re.search(r"\[(.*?)\] ->", text)
    names = [n.strip() for n in head.split(",")] + (
        [n.strip() for n in symbols[1].split(",")] if symbols else [])
    code = result.replace("floordiv", "//").replace("mod", "%")
    assert "ceildiv" not in code
    return eval(f"lambda {', '.join(names)}: {code}"), len(names) - 2


def parse_module(text):
    """The kernels of an executable module, by name."""
    maps = dict(re.findall(r"^(#map\d*) = affine_map<(.*)>$", text, re.M))
    kernels = {}
    for head, body in re.findall(r"^  exec\.kernel (@.*?) \{\n(.*?)^  \}$", text, re.S | re.M):
        name, skeleton, rows, cols, rest = re.match(
            r"@(\S+) (\w+) \[(\d+), (\d+)\] (.*)", head, re.S).groups()
        signature, _, attributes = rest.partition(" attributes ")
        inputs, outputs = signature.split(" -> ", 1)
        numbers, arguments = {}, []
        for part, words in (("in", inputs), ("out", outputs)):
            for argument, kind in re.findall(r"(%\w+): tensor<([^,>]*)", words):
                *sizes, element = kind.split("x")
                numbers[argument] = len(arguments)
                arguments.append((math.prod(map(int, sizes)), BYTES[element]))
            if part == "in":
                count = len(arguments)
        valid = re.search(r"valid = (\d+)", attributes)
        aligned = re.search(r"alignment = array<i64: ([^>]*)>", attributes)
        accesses, at, passes, inside = [], None, 0, set()
        for line in body.splitlines():
            if "exec.pass" in line:
                at, inside = passes, set()
                passes += 1
            elif re.match(r"    \}", line):
                at = None
            if at is not None:
                inside |= set(re.findall(r"^\s*(%\w+) =", line))
            access = re.search(r"exec\.(load|store) (.*?) at (#map\d*|affine_map<.*?\)>)", line)
            if not access:
                continue
            kind, words, place = access.groups()
            memory = words.split(", ")[1] if kind == "store" else re.match(r"%\w+", words)[0]
            index = re.search(r"\[(.*?)\]", words)
            symbols = [s.strip() for s in index[1].split(",")] if index else []
            function, _ = _function(maps[place] if place in maps else place[11:-1])
            accesses.append(Access(numbers.get(memory), function, len(symbols), at,
                                   " where " in words or any(s in inside for s in symbols),
                                   kind == "store"))
        kernels[name] = Kernel(name, skeleton, int(rows), int(cols),
                               int(valid[1]) if valid else int(rows) * int(cols), arguments, count,
                               [int(a) for a in aligned[1].split(",")] if aligned else [1] * len(
                                   arguments), accesses, body)
    return kernels


# The text -----------------------------------------------------------------------------

FUNCTION = re.compile(r'// grid (\d+), block (\d+)([^\n]*)\nextern "C" __global__ void [^\n]*\n'
                      r"cleave_(kernel|finish)_(\w+)\(([^)]*)\) \{\n(.*?)\n\}\n", re.S)
#: Of a kernel of which a launch has many uses: its code, and the first of what calls it.
CALLED = re.compile(r"static __device__ __forceinline__ void\n"
                    r"cleave_(kernel|finish)0_(\w+)\(const unsigned block, ([^)]*)\) \{\n"
                    r"(.*?)\n\}\n\n// grid (\d+), block (\d+)[^\n]*\n[^\n]*\n"
                    r"cleave_(?:kernel|finish)(\d*)_", re.S)


@dataclasses.dataclass
class Stage:
    """One function of a kernel."""
    name: str
    finish: bool
    grid: int
    block: int
    body: str
    parameters: list

    @property
    def row_threads(self):
        """Those that have a row, of a block that has several at once."""
        team = re.search(r"const int lane = threadIdx\.x % (\d+), team", self.body)
        return int(team[1]) if team else self.block


def parse_text(text):
    """The functions, of one use each."""
    found = [(kind, name, int(grid), block, body, parameters)
             for grid, block, _, kind, name, parameters, body in FUNCTION.findall(text)
             if f"cleave_{kind}0_{name}(" not in text]
    found += [(kind, name, int(grid) // int(uses or 1), block,
               re.sub(r"\bblock\b", "blockIdx.x", body), parameters)
              for kind, name, parameters, body, grid, block, uses in CALLED.findall(text)]
    return [Stage(name, kind == "finish", grid, int(block), body,
                  [p.strip().replace("__restrict__ ", "").replace("const ", "")
                   for p in parameters.split(",")])
            for kind, name, grid, block, body, parameters in found]


def end(text):
    """Where the kernels end, and those of other commands follow."""
    last = list(re.finditer(r"\ncleave_(?:kernel|finish)\d*_\w+\([^)]*\) \{\n", text))[-1]
    return text.index("\n}\n", last.end()) + 3


def _trips(stage, kernel):
    """Each line of a function, how often the threads run it together, and whether all threads of
    a block do the same in it."""
    stack, threads = [], stage.grid * stage.block
    teams, pieces = stage.block // stage.row_threads, 1
    lanes = re.search(r"const int c = .*?\* (\d+);", stage.body)
    vector = int(lanes[1]) if lanes else 1
    before = ""
    for line in stage.body.splitlines():
        text = line.strip()
        factor = math.prod(f for f, _ in stack)
        if re.match(r"if \((threadIdx.x|lane) == 0\b", before):
            factor /= stage.row_threads
        elif re.match(r"if \(warp == 0 && c < \d+\)$", before):
            factor *= int(before[:-1].split("< ")[1]) / (stage.grid * stage.block * factor)
        before = text
        columns = any(c for _, c in stack)
        yield text, threads * factor, columns, vector
        if text.endswith("{"):
            loop = re.match(r"for \(int (\w+) = ([^;]*); \w+ < (\w+);", text)
            f, c = 1.0, False
            if loop and loop[1] in ("row", "first"):
                groups = re.search(r"group = blockIdx\.x(?: / (\d+))?;", stage.body)
                f = kernel.rows * int(groups[1] or 1) / (stage.grid * teams)
            elif text == "if (team == 0) {":
                f = 1 / teams
            elif loop and loop[1] == "k":
                f = pieces = int(loop[3])
            elif loop and loop[1] == "j":
                f = int(loop[3])
            elif loop and loop[1] == "group":
                f = int(re.search(r"min\(\(warp \+ 1\) \* \d+, (\d+)\)", stage.body)[1]) / (
                    stage.block // 32)
            elif stage.finish:
                width = re.match(r"if \(c < (\d+)\)", text)
                f = int(width[1]) / (stage.grid * 32) if width else 1.0
                among = re.match(
                    r"if \(int\(blockIdx.x\) >= (\d+) && int\(blockIdx.x\) < (\d+)\)", text)
                if among:
                    f = (int(among[2]) - int(among[1])) / stage.grid
                elif width and any(f != 1 for f, _ in stack):
                    # Of the blocks of this sum.
                    f /= stack[0][0]
            elif text.startswith("if (c < "):
                tiles = re.search(r"blockIdx\.x % (\d+)", stage.body)
                f = kernel.cols / (
                    pieces * stage.row_threads * vector * int(tiles[1] if tiles else 1))
                if kernel.valid != kernel.rows * kernel.cols:
                    f *= kernel.valid / (kernel.rows * kernel.cols)
            elif text.startswith("if (threadIdx.x == 0)"):
                f = 1 / stage.row_threads
            c = bool(loop and loop[1] == "k") or text == "{"
            stack.append((f, c))
        if text.startswith("}"):
            stack.pop()


@dataclasses.dataclass
class Traffic:
    """Of one kernel, in bytes."""
    operands: int
    moved: float = 0
    #: Of `moved`, the largest that one operand was read more than once.
    again: float = 0
    scratch: float = 0
    #: What several rows read: found in a cache but for the first time.
    cached: float = 0
    #: Of accesses at indices, which are not in `moved` nor in `operands`.
    gathered: float = 0
    grid: int = 0
    skeleton: str = ""


def count(text, module):
    """The traffic of each kernel by name; of the two stages together."""
    kernels, found = parse_module(module), {}
    for stage in parse_text(text):
        kernel = kernels[stage.name]
        traffic = found.setdefault(stage.name, Traffic(kernel.operand_bytes()))
        if not stage.finish:
            traffic.grid, traffic.skeleton = stage.grid, kernel.skeleton
        reads = {}
        flat = "int i = blockIdx.x" in stage.body or "long long i = blockIdx.x" in stage.body
        for line, trips, columns, vector in _trips(stage, kernel):
            if flat or stage.finish:
                columns = True
                trips = min(trips, (kernel.valid / vector) * (vector if line.startswith("const")
                                                              else 1)) if flat else trips
            for _, name, number, place in _accesses(line):
                if name == "scratch":
                    traffic.scratch += trips * number * vector
                    continue
                index = int(name[3:] if name.startswith("out") else name[2:])
                index += kernel.inputs if name.startswith("out") else 0
                elements, size = kernel.arguments[index]
                wide = vector if number else 1
                amount = trips * wide * size
                if not columns:
                    # A value of the row: all of its threads read the same.
                    amount = amount / stage.row_threads
                if "v" in place and re.search(r"\bv\d+", place):
                    traffic.gathered += amount
                    continue
                once = min(amount, elements * size)
                traffic.moved += once
                traffic.cached += amount - once
                if amount >= 0.9 * elements * size:
                    reads.setdefault(name, []).append(once)
        traffic.again = max([traffic.again] + [sum(r) - r[0] for n, r in reads.items()
                                               if n.startswith("in")])
    for traffic in found.values():
        traffic.moved += traffic.scratch
    return found


def _accesses(line):
    """The accesses of a line: (store?, memory, whole vector?, offset)."""
    if line.startswith(("const int last", "for ", "#pragma")):
        return
    vector = re.match(r"(load|store)Vector(?:<\d+>)?\((.*)\);$", line)
    if vector:
        words = vector[2].split(", ")
        memory = re.match(r"(in\d+|out\d+)\b( \+ (.*))?", words[vector[1] == "load"])
        if memory:
            yield vector[1] == "store", memory[1], 1, memory[3] or ""
        elif "partial" in vector[2]:
            yield True, "scratch", 4, ""
        return
    for memory, place in re.findall(r"\b(in\d+|out\d+)\[([^\]]*(?:\[[^\]]*\])?[^\]]*)\]", line):
        yield line.startswith(memory), memory, 0, place
    if re.match(r"partial\d+_row\[", line) or ">(scratch + " in line and "next = " in line:
        yield True, "scratch", 4, ""
