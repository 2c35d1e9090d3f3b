//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_KINDS_TD
#define CLEAVE_DIALECT_GRAPH_IR_KINDS_TD

include "mlir/IR/EnumAttr.td"

// The enumerations that dialects share. Their C++ is not made of these
// definitions: KindAttributes.h has it. No file that enumerations are made of
// (GraphEnums.td, ExecEnums.td) includes this one.

def ReductionKind : I32EnumAttr<"ReductionKind", "reduction", [
    I32EnumAttrCase<"Sum", 0, "sum">, I32EnumAttrCase<"Max", 1, "max">,
    I32EnumAttrCase<"Min", 2, "min">]> {
  let cppNamespace = "::cleave";
}

/// The collectives of `exec`.
def CollectiveKind : I32EnumAttr<"CollectiveKind", "kind of exchange", [
    I32EnumAttrCase<"AllReduce", 0, "all_reduce">,
    I32EnumAttrCase<"AllGather", 1, "all_gather">,
    I32EnumAttrCase<"ReduceScatter", 2, "reduce_scatter">,
    I32EnumAttrCase<"AllToAll", 3, "all_to_all">,
    I32EnumAttrCase<"Permute", 4, "permute">,
    I32EnumAttrCase<"Broadcast", 5, "broadcast">,
    I32EnumAttrCase<"Reduce", 6, "reduce">]> {
  let cppNamespace = "::cleave";
}

#endif // CLEAVE_DIALECT_GRAPH_IR_KINDS_TD
