//===- ProgramOps.cpp - Entries as lists of actions -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Interfaces/FunctionImplementation.h"

using namespace mlir;
using namespace cleave::exec;

ParseResult ProgramOp::parse(OpAsmParser &parser, OperationState &result) {
  return function_interface_impl::parseFunctionOp(
      parser, result, /*allowVariadic=*/false,
      getFunctionTypeAttrName(result.name),
      [](Builder &builder, ArrayRef<Type> inputs, ArrayRef<Type> results,
         function_interface_impl::VariadicFlag,
         std::string &) { return builder.getFunctionType(inputs, results); },
      getArgAttrsAttrName(result.name), getResAttrsAttrName(result.name));
}

void ProgramOp::print(OpAsmPrinter &printer) {
  function_interface_impl::printFunctionOp(
      printer, *this, /*isVariadic=*/false, getFunctionTypeAttrName(),
      getArgAttrsAttrName(), getResAttrsAttrName());
}

LogicalResult ProgramOp::verify() {
  if (getBody().front().empty() || !isa<ReturnOp>(getBody().front().back()))
    return emitOpError("must end in exec.return");
  return success();
}

LogicalResult ReturnOp::verify() {
  auto program = cast<ProgramOp>((*this)->getParentOp());
  if (!llvm::equal(getOperandTypes(), program.getResultTypes()))
    return emitOpError("operand types (")
           << getOperandTypes() << ") are not the program's result types ("
           << program.getResultTypes() << ")";
  return success();
}

/// `type` moved to offset 0.
static RankedTensorType atStart(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  Strided layout = getLayout(tensor);
  layout.offset = 0;
  return withLayout(tensor, layout);
}

LogicalResult RunOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto part =
      symbols.lookupNearestSymbolFrom<func::FuncOp>(*this, getCalleeAttr());
  if (!part)
    return emitOpError("'") << getCallee() << "' is not a function";
  FunctionType type = part.getFunctionType();
  if (type.getNumInputs() != getInputs().size() ||
      type.getNumResults() != getNumResults())
    return emitOpError("'")
           << getCallee() << "' takes " << type.getNumInputs()
           << " operands and gives " << type.getNumResults() << " results";
  for (auto [i, value] : llvm::enumerate(getInputs()))
    if (atStart(value.getType()) != type.getInput(i))
      return emitOpError("operand ") << i << " of type " << value.getType()
                                     << ", but the part takes "
                                     << type.getInput(i);
  for (auto [i, value] : llvm::enumerate(getOutputs()))
    if (atStart(value.getType()) != type.getResult(i))
      return emitOpError("result ") << i << " of type " << value.getType()
                                    << ", but the part gives "
                                    << type.getResult(i);
  return success();
}
