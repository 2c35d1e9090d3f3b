# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Update rules as modules of one update."""

import re

#: The stored shape of each parameter, and the framework's.
SHAPES = {
    "wide": ((3, 8), (3, 8)),
    "tall": ((8, 3), (8, 3)),
    "heads": ((4, 3, 2), (4, 6)),
    "rows": ((3, 2, 4), (6, 4)),
    "stack": ((2, 3, 4), (2, 3, 4)),
    "vector": ((5,), (5,)),
    "factors": ((3, 2), (6,)),
    "scalar": ((), ()),
}
TOLERANCE = 1e-12


def tensor(shape):
    return f"tensor<{''.join(f'{n}x' for n in shape)}f64>"


def module(names, attributes=None):
    """A loss whose gradient for parameter ``x`` is the input ``x.g``."""
    arguments, lines, sums = [], [], []
    for name in names:
        stored, framework = SHAPES[name]
        more = (attributes or {}).get(name, "")
        if stored != framework:
            more += f", graph.framework_shape = array<i64: {', '.join(map(str, framework))}>"
        type = tensor(stored)
        arguments += [
            f'%{name}: {type} {{graph.name = "{name}", graph.role = "parameter"{more}}}',
            f'%{name}_g: {type} {{graph.name = "{name}.g", graph.role = "input"}}']
        dims = f"array<i64: {', '.join(map(str, range(len(stored))))}>" if stored else "array<i64>"
        lines += [f"%{name}_p = graph.mul %{name}, %{name}_g : ({type}, {type}) -> {type}",
                  f"%{name}_s = graph.reduce sum %{name}_p {{dims = {dims}}} : ({type}) "
                  "-> tensor<f64>"]
        sums.append(f"%{name}_s")
    total = sums[0]
    for i, term in enumerate(sums[1:]):
        lines.append(f"%t{i} = graph.add {total}, {term} : (tensor<f64>, tensor<f64>) "
                     "-> tensor<f64>")
        total = f"%t{i}"
    body = "\n  ".join([*lines, f"return {total} : tensor<f64>"])
    return (f"func.func @loss({', '.join(arguments)})\n"
            f'    -> (tensor<f64> {{graph.name = "loss"}}) {{\n  {body}\n}}\n')


def state_shapes(step):
    """The shape of each state argument of a step."""
    header = re.search(r"func\.func @train\((.*?)\n", step).group(1)
    found = re.findall(r"%arg\d+: tensor<((?:\d+x)*)f64> (\{.*?\})(?=, %arg|\) ->)", header)
    return {re.search(r'graph\.name = "([^"]*)"', text).group(1):
            tuple(int(n) for n in shape.split("x")[:-1])
            for shape, text in found if 'graph.role = "state"' in text}
