# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models with a head over a vocabulary."""

import numpy as np

CLASSES, WIDTH = 10, 3


def head(rows, flat, bias, smoothing, ignored, gradient):
    """A head on rows of a shape, which are one dimension to it if `flat`."""
    count = int(np.prod(rows))
    own = (count,) if flat else rows
    dims = lambda shape: "".join(f"{n}x" for n in shape)
    x, x1 = (f"tensor<{dims(shape)}{WIDTH}xf64>" for shape in (rows, own))
    t, t1 = (f"tensor<{dims(shape)}xi64>".replace("xx", "x") for shape in (rows, own))
    r1 = f"tensor<{dims(own)}f64>"
    w, b = f"tensor<{CLASSES}x{WIDTH}xf64>", f"tensor<{CLASSES}xf64>"
    operands = [x1, w] + [b] * bias + [t1] + [r1] * gradient
    results = [r1] + ([x1, w] + [b] * bias if gradient else [])
    named = ", ".join(f'{kind} {{graph.name = "r{i}"}}' for i, kind in enumerate(results))
    role = 'graph.role = "input"'
    return f"""
func.func @train(%x: {x} {{graph.name = "x", {role}}}, %w: {w} {{graph.name = "w", graph.role = "parameter"}},
    %b: {b} {{graph.name = "b", graph.role = "parameter"}}, %t: {t} {{graph.name = "t", {role}}},
    %g: {r1} {{graph.name = "g", {role}}}) -> ({named}) {{
  %x1 = graph.reshape %x : ({x}) -> {x1}
  %t1 = graph.reshape %t : ({t}) -> {t1}
  %h{f":{len(results)}" if len(results) > 1 else ""} = graph.head_loss %x1, %w {"bias %b" if bias else ""} targets %t1
      {"gradient %g" if gradient else ""} {{label_smoothing = {smoothing} : f64, ignore_index = {ignored} : i64}}
      : ({", ".join(operands)}) -> ({", ".join(results)})
  return {", ".join(f"%h#{i}" for i in range(len(results))) if len(results) > 1 else "%h"} : {", ".join(results)}
}}"""
