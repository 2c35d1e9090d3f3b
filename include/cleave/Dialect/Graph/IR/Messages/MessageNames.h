//===- MessageNames.h - What messages call values ---------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_MESSAGES_MESSAGENAMES_H
#define CLEAVE_DIALECT_GRAPH_IR_MESSAGES_MESSAGENAMES_H

#include "mlir/Interfaces/FunctionInterfaces.h"
#include <string>

namespace cleave::graph {

/// What messages call argument `index` of `function`: its role and its name, as
/// `input "x"`; without a name its number, as `argument 3`.
std::string nameArgument(mlir::FunctionOpInterface function, unsigned index);
std::string nameArgument(mlir::BlockArgument argument);

/// What messages call result `index` of `function`: `result "loss"`, `the new
/// value of parameter "w"`; without a name its number, as `result 2`.
std::string nameResult(mlir::FunctionOpInterface function, unsigned index);

/// What messages call `value`: an argument as above, else the op that gives it,
/// with its line if it has one, as `'graph.add' at model.py:12`.
std::string nameValue(mlir::Value value);

/// An operand of an op by its number, and the value, as
/// `operand 1 (parameter "w")`.
std::string nameOperand(mlir::OpOperand &operand);

/// Begins an error with the name of an argument.
mlir::InFlightDiagnostic emitArgumentError(mlir::FunctionOpInterface function,
                                           unsigned index);

/// Begins an error with the name of a result, at the line that computes it.
mlir::InFlightDiagnostic emitResultError(mlir::FunctionOpInterface function,
                                         unsigned index);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_MESSAGES_MESSAGENAMES_H
