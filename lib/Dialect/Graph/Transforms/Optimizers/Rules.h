//===- Rules.h - The update rules of the table ------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// One function a rule, each in a file of its own; Rules.cpp has the table,
/// Settings.h what several have.
///
/// | file | rule | state |
/// |---|---|---|
/// | AdamW.cpp | AdamW, one op | two tensors of the parameter's shape |
/// | Sgd.cpp | SGD, one op | with momentum, one |
/// | AdamW8bit.cpp | AdamW | codes of 8 bits, and scales of blocks |
/// | Lion.cpp | Lion | one |
/// | Adagrad.cpp | Adagrad | one |
/// | Lamb.cpp | LAMB | two |
/// | Adafactor.cpp | Adafactor | a row and a column of each matrix |
/// | Muon.cpp | Muon, of matrices | one |
///
/// WrittenRule.cpp updates as a function of the module says.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_RULES_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_RULES_H

#include "cleave/Dialect/Graph/Transforms/Optimizer.h"

namespace cleave::graph {

const OptimizerRule &adamwRule();
const OptimizerRule &sgdRule();
const OptimizerRule &adamw8bitRule();
const OptimizerRule &lionRule();
const OptimizerRule &adagradRule();
const OptimizerRule &lambRule();
const OptimizerRule &adafactorRule();
const OptimizerRule &muonRule();

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_OPTIMIZERS_RULES_H
