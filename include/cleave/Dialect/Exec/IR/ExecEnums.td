//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_EXECENUMS_TD
#define CLEAVE_DIALECT_EXEC_IR_EXECENUMS_TD

include "mlir/IR/EnumAttr.td"

def Exec_Skeleton : I32EnumAttr<"Skeleton", "iteration order of a kernel", [
    I32EnumAttrCase<"Map", 0, "map">, I32EnumAttrCase<"Row", 1, "row">,
    I32EnumAttrCase<"Column", 2, "column">,
    I32EnumAttrCase<"Gather", 3, "gather">]> {
  let cppNamespace = "::cleave::exec";
}

#endif // CLEAVE_DIALECT_EXEC_IR_EXECENUMS_TD
