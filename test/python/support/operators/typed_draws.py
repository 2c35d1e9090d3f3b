# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Cases of ops (op_cases) in other element types: what is f64 in a draw is of the type.

Parameters and inputs are f32 and cast to the type; what the case observes is cast to f32, and is a
result of the module. Where an op has results of another type, as statistics of norms, the types are
those that its verifier infers.
"""

import re

import torch

from cleave.testing.dual import Draw, dense
from cleave.testing.tools import ToolError, optimize
from op_cases import CASES


def _with(kind, element):
    """The type of a tensor with other elements."""
    return re.sub(r"[^x<]+>$", f"{element}>", kind)


class TypedDraw(Draw):
    """A draw whose floats are of a type."""

    shards = False

    def __init__(self, seed, element):
        super().__init__(seed)
        self.element = element
        self.results = []
        #: Types that are not those of the draw, by name.
        self.inferred = {}
        #: The results of each line.
        self.defined = []

    def argument(self, tensor, role):
        value = super().argument(tensor, role)
        return self._cast(value) if tensor.dtype == torch.float64 else value

    def constant(self, data):
        if data.dtype != torch.float64:
            return self._line([self._fresh(data)], f"graph.constant {dense(data)}")
        wide = self._fresh(data)
        self._line([wide], "graph.constant " + dense(data).replace("f64>", "f32>"))
        self.inferred[wide.name] = _with(wide.type, "f32")
        return self._cast(wide)

    def _cast(self, wide):
        self.inferred[wide.name] = _with(wide.type, "f32")
        typed = self._fresh(wide.tensor)
        return self._line([typed], lambda: f"graph.cast {wide.name} : ({self.type(wide)}) -> "
                                           f"{self.type(typed)}")

    def _line(self, results, text):
        self.lines.append(text)
        self.defined.append(results)
        return results[0]

    def type(self, value):
        kind = value.type
        return self.inferred.get(value.name, _with(kind, self.element) if "f64" in kind else kind)

    def op(self, name, operands, compute, attributes=None, segments=False):
        found = super().op(name, operands, compute, attributes, segments)
        results = found if isinstance(found, list) else [found]
        present = [x for x in operands if x is not None]
        head = self.lines.pop().partition(" = ")[2].rpartition(" : (")[0]
        self._line(results, lambda: f"{head} : ({', '.join(map(self.type, present))}) -> "
                                    f"({', '.join(map(self.type, results))})")
        return found

    def observe(self, *values):
        self.results += values

    def text(self):
        """The module; raises ToolError where an op does not take the type."""
        while True:
            text = self._text()
            try:
                optimize(text)
                return text
            except ToolError as error:
                place = re.search(r"<stdin>:(\d+):", error.stderr)
                types = re.search(r"inferred type\(s\) (.*) are incompatible", error.stderr)
                own = place and self.defined[int(place[1]) - 2:int(place[1]) - 1]
                if not types or not own:
                    raise
                self.inferred |= dict(zip((x.name for x in own[0]),
                                          re.findall(r"'(.*?)'", types[1])))

    def _text(self):
        arguments = [f'{v.name}: {self.type(v)} {{graph.name = "{v.name[1:]}", '
                     f'graph.role = "{role}"}}' for v, role in self.arguments]
        arguments.append('%z: tensor<f32> {graph.name = "z", graph.role = "input"}')
        arguments.append('%w: tensor<3xf32> {graph.name = "w", graph.role = "parameter"}')
        lines = [", ".join(x.name for x in own) + " = " + (x if isinstance(x, str) else x())
                 for own, x in zip(self.defined, self.lines)]
        types = [_with(self.type(x), "f32") for x in self.results]
        for i, (x, kind) in enumerate(zip(self.results, types)):
            lines += [f"%c{i} = graph.cast {x.name} : ({self.type(x)}) -> {kind}",
                      f"%r{i} = graph.add %c{i}, %z : ({kind}, tensor<f32>) -> {kind}"]
        lines += ['%l = graph.contract "a,a->" %w, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>',
                  "return " + ", ".join(["%l", *(f"%r{i}" for i in range(len(types)))]) + " : "
                  + ", ".join(["tensor<f32>", *types])]
        names = "".join(f', {kind} {{graph.name = "r{i}"}}' for i, kind in enumerate(types))
        return (f"func.func @loss({', '.join(arguments)}) -> (tensor<f32> {{graph.name = \"loss\"}}"
                f"{names}) {{\n" + "\n".join(lines) + "\n}\n")

    def given(self):
        """The values of the arguments, by name."""
        found = {v.name[1:]: v.tensor.detach() for v, _ in self.arguments}
        found = {k: v.float() if v.dtype == torch.float64 else v for k, v in found.items()}
        return {**found, "w": torch.ones(3), "z": torch.zeros(())}


def draw(name, element, seed=0):
    """A draw of a case in a type."""
    function, _ = CASES[name]
    drawn = TypedDraw([sorted(CASES).index(name), seed], element)
    function(drawn)
    return drawn
