//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_TD
#define CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_TD

include "mlir/IR/OpBase.td"

def Exec_CommandOpInterface : OpInterface<"CommandOpInterface"> {
  let cppNamespace = "::cleave::exec";
  let description = [{
    Properties of a command that are needed to assign layouts, order commands
    and plan memory.
  }];
  let methods = [
    InterfaceMethod<[{
        The results that may, or must, take the memory of an operand. A result
        that must do so overwrites the operand.
      }],
      "::llvm::SmallVector<::cleave::exec::Share>", "getShares", (ins), [{}],
      [{ return {}; }]>,
    InterfaceMethod<[{
        Bytes of the arena that the command needs while it runs on `threads`
        threads, in addition to its operands and results.
      }],
      "int64_t", "getScratchBytes", (ins "int64_t":$threads), [{}],
      [{ return 0; }]>,
    InterfaceMethod<"True when the command can write result `index` in the layout of `type`.",
      "bool", "canWriteResult",
      (ins "unsigned":$index, "::mlir::RankedTensorType":$type), [{}],
      [{ return false; }]>,
    InterfaceMethod<"True when the command can read operand `index` in the layout of `type`.",
      "bool", "canReadOperand",
      (ins "unsigned":$index, "::mlir::RankedTensorType":$type), [{}],
      [{ return false; }]>,
    InterfaceMethod<"Floating-point operations; a multiply-add counts two.",
      "int64_t", "getFlops", (ins), [{}], [{ return 0; }]>,
  ];
}

def Exec_ViewLikeOpInterface : OpInterface<"ViewLikeOpInterface"> {
  let cppNamespace = "::cleave::exec";
  let description = [{
    An op whose result consists of elements of operand 0 only.
  }];
  let methods = [
    InterfaceMethod<[{
        The layout with which the result addresses a dense operand 0; nothing if
        strides cannot express it.
      }],
      "::std::optional<::cleave::exec::Strided>", "getViewLayout", (ins)>,
  ];
}

def Exec_JoinLikeOpInterface : OpInterface<"JoinLikeOpInterface"> {
  let cppNamespace = "::cleave::exec";
  let description = [{
    An op whose only result is the concatenation of its operands.
  }];
  let methods = [
    InterfaceMethod<"The layout of each operand in a dense result.",
      "::llvm::SmallVector<::cleave::exec::Strided>", "getOperandLayouts",
      (ins)>,
  ];
}

def Exec_MicroBatchValueOpInterface : OpInterface<"MicroBatchValueOpInterface"> {
  let cppNamespace = "::cleave::exec";
  let description = [{
    An op of a part whose only result depends on nothing but the micro-batch and
    the rank.
  }];
  let methods = [
    InterfaceMethod<[{
        The value for one of `microBatches` micro-batches: elements, or
        `#exec.device_values` if ranks differ; null if it depends on anything
        else.
      }],
      "::mlir::Attribute", "getValueAt",
      (ins "int64_t":$microBatch, "int64_t":$microBatches)>,
  ];
}

#endif // CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_TD
