# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Converters of PyTorch operators, one file for each subject.

`registry.converter_for` imports all of them. A file imports only files of its own row and of the
rows above:

    elementwise, bits, reduction, padding
                              element-wise operators and types; logic; sums and extremes
    functions, division, trigonometry, activation
                              functions composed of other ops
    shape, index, diagonal, memory
                              views, slices; reads by index; diagonals of matrices; strides
    contraction, windows, convolution
                              matrix multiplication, einsum; pooling, interpolation
    statistics, scan, order, quantile
                              variances and norms; cumulative operators; sorting
    assignment, scatter       writes by index
    random, neural, batch_norm, loss
                              dropout and random numbers; norms, attention, losses
    complex, narrow           complex numbers as pairs; integers that the dialect lacks
"""
