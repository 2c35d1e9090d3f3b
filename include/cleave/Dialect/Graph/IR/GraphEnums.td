//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_GRAPHENUMS_TD
#define CLEAVE_DIALECT_GRAPH_IR_GRAPHENUMS_TD

include "mlir/IR/EnumAttr.td"

def Graph_Predicate : I32EnumAttr<"Predicate", "comparison", [
    I32EnumAttrCase<"eq", 0>, I32EnumAttrCase<"ne", 1>,
    I32EnumAttrCase<"lt", 2>, I32EnumAttrCase<"le", 3>,
    I32EnumAttrCase<"gt", 4>, I32EnumAttrCase<"ge", 5>]> {
  let cppNamespace = "::cleave::graph";
}

#endif // CLEAVE_DIALECT_GRAPH_IR_GRAPHENUMS_TD
