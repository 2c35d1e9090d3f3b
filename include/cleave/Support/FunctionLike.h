//===- FunctionLike.h - Syntax of ops that are functions --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_FUNCTIONLIKE_H
#define CLEAVE_SUPPORT_FUNCTIONLIKE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Interfaces/FunctionImplementation.h"

namespace cleave {

/// Parses `@name(%argument: type, ...) -> (type, ...) attributes {...} {...}`.
template <typename Op>
mlir::ParseResult parseFunctionLike(mlir::OpAsmParser &parser,
                                    mlir::OperationState &result) {
  namespace impl = mlir::function_interface_impl;
  return impl::parseFunctionOp(
      parser, result, /*allowVariadic=*/false,
      Op::getFunctionTypeAttrName(result.name),
      [](mlir::Builder &builder, llvm::ArrayRef<mlir::Type> inputs,
         llvm::ArrayRef<mlir::Type> results, impl::VariadicFlag,
         std::string &) { return builder.getFunctionType(inputs, results); },
      Op::getArgAttrsAttrName(result.name),
      Op::getResAttrsAttrName(result.name));
}

/// Prints what `parseFunctionLike` parses.
template <typename Op>
void printFunctionLike(mlir::OpAsmPrinter &printer, Op op) {
  mlir::function_interface_impl::printFunctionOp(
      printer, op, /*isVariadic=*/false, op.getFunctionTypeAttrName(),
      op.getArgAttrsAttrName(), op.getResAttrsAttrName());
}

/// The function that `op` calls; an error where there is none, or where it has
/// other numbers of arguments and results than `op` of operands and results.
template <typename Op>
llvm::FailureOr<mlir::func::FuncOp>
lookupCallee(Op op, mlir::SymbolTableCollection &symbols) {
  auto callee = symbols.lookupNearestSymbolFrom<mlir::func::FuncOp>(
      op, op.getCalleeAttr());
  if (!callee)
    return op.emitOpError("'") << op.getCallee() << "' is not a function";
  mlir::FunctionType type = callee.getFunctionType();
  if (type.getNumInputs() != op.getInputs().size() ||
      type.getNumResults() != op->getNumResults())
    return op.emitOpError("'")
           << op.getCallee() << "' has " << type.getNumInputs()
           << " operands and " << type.getNumResults() << " results, expected "
           << op.getInputs().size() << " and " << op->getNumResults();
  return callee;
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_FUNCTIONLIKE_H
