# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Attention in rings: a model, and its inputs."""

import numpy as np

BATCH, HEADS, GROUPS, SIZE = 2, 4, 2, 8


def model(length, attributes=("causal",), dropout=True):
    """Dropout of a row of ones, and attention that gives the probabilities: its
    values are the unit matrix, and its queries 0. These and the keys have one
    sequence, as in a model."""
    x = f"tensor<{BATCH}x{length}x{GROUPS}x{SIZE}xf64>"
    heads = f"tensor<{BATCH}x{HEADS}x{length}x{SIZE}xf64>"
    keys = f"tensor<{BATCH}x{GROUPS}x{length}x{SIZE}xf64>"
    values = f"tensor<{BATCH}x{GROUPS}x{length}x{length}xf64>"
    output = f"tensor<{BATCH}x{HEADS}x{length}x{length}xf64>"
    lse = f"tensor<{BATCH}x{HEADS}x{length}xf64>"
    rate = ("dropout = 0.25 : f64", "dropout_id = 3 : i64") if dropout else ()
    hidden = ", ".join(("scale = 1.0 : f64", *rate, *attributes))
    argument = "graph.batch_dim = 0 : i64, graph.role = \"input\", graph.name"
    return f"""
func.func @logits(
    %x: {x} {{{argument} = "x"}},
    %q: tensor<{BATCH}x{length}x{HEADS}x{SIZE}xf64> {{{argument} = "q"}},
    %v: tensor<{BATCH}x{length}x{GROUPS}x{length}xf64> {{{argument} = "v"}},
    %rng: tensor<2xi64> {{graph.role = "rng", graph.name = "rng"}})
    -> ({x} {{graph.name = "dropped"}}, {output} {{graph.name = "probabilities"}}) {{
  %d = graph.dropout %x, %rng {{probability = 0.25 : f64, id = 2 : i64}} : ({x}, tensor<2xi64>) -> {x}
  %zero = graph.constant dense<0.0> : tensor<f64>
  %rows = graph.reduce sum %x {{dims = array<i64: 2, 3>}} : ({x}) -> tensor<{BATCH}x{length}xf64>
  %none = graph.mul %rows, %zero : (tensor<{BATCH}x{length}xf64>, tensor<f64>) -> tensor<{BATCH}x{length}xf64>
  %same = graph.reshape %none : (tensor<{BATCH}x{length}xf64>) -> tensor<{BATCH}x1x{length}x1xf64>
  %t = graph.transpose %q {{permutation = array<i64: 0, 2, 1, 3>}} : (tensor<{BATCH}x{length}x{HEADS}x{SIZE}xf64>) -> {heads}
  %h = graph.add %t, %same : ({heads}, tensor<{BATCH}x1x{length}x1xf64>) -> {heads}
  %k = graph.transpose %d {{permutation = array<i64: 0, 2, 1, 3>}} : ({x}) -> {keys}
  %w = graph.transpose %v {{permutation = array<i64: 0, 2, 1, 3>}} : (tensor<{BATCH}x{length}x{GROUPS}x{length}xf64>) -> {values}
  %o, %lse = graph.attention %h, %k, %w rng %rng {{{hidden}}}
      : ({heads}, {keys}, {values}, tensor<2xi64>) -> ({output}, {lse})
  return %d, %o : {x}, {output}
}}
"""


def inputs(length):
    return {
        "x": np.ones((BATCH, length, GROUPS, SIZE)),
        "q": np.zeros((BATCH, length, HEADS, SIZE)),
        "v": np.broadcast_to(np.eye(length)[None, :, None], (BATCH, length, GROUPS, length)).copy(),
        "rng": np.array([11, 4]),
    }
