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
    What the layout of values, the order of commands and the plan of memory must
    know of a command.
  }];
  let methods = [
    InterfaceMethod<[{
        The results that may, or must, lie in the memory of an operand. A
        result that must destroys what the operand held.
      }],
      "::llvm::SmallVector<::cleave::exec::Share>", "getShares", (ins), [{}],
      [{ return {}; }]>,
    InterfaceMethod<[{
        Bytes of arena that the command needs while it runs on `threads`
        threads, beside its operands and results.
      }],
      "int64_t", "getScratchBytes", (ins "int64_t":$threads), [{}],
      [{ return 0; }]>,
    InterfaceMethod<"True when the command can write result `index` as `type` says.",
      "bool", "canWriteResult",
      (ins "unsigned":$index, "::mlir::RankedTensorType":$type), [{}],
      [{ return false; }]>,
    InterfaceMethod<"True when the command can read operand `index` as `type` says.",
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
    An op whose result consists of elements of operand 0, and nothing else.
  }];
  let methods = [
    InterfaceMethod<[{
        How the result addresses operand 0 when that lies densely; nothing when
        strides cannot say it.
      }],
      "::std::optional<::cleave::exec::Strided>", "getViewLayout", (ins)>,
  ];
}

def Exec_JoinLikeOpInterface : OpInterface<"JoinLikeOpInterface"> {
  let cppNamespace = "::cleave::exec";
  let description = [{
    An op whose operands, side by side, are its only result.
  }];
  let methods = [
    InterfaceMethod<"Where each operand lies in a dense result.",
      "::llvm::SmallVector<::cleave::exec::Strided>", "getOperandLayouts",
      (ins)>,
  ];
}

def Exec_MicroBatchValueOpInterface : OpInterface<"MicroBatchValueOpInterface"> {
  let cppNamespace = "::cleave::exec";
  let description = [{
    An op of a part whose only result is known when the micro-batch and the
    device are.
  }];
  let methods = [
    InterfaceMethod<[{
        The value for one of `microBatches` micro-batches: elements, or
        `#exec.device_values` where devices differ; null when more than that
        decides it.
      }],
      "::mlir::Attribute", "getValueAt",
      (ins "int64_t":$microBatch, "int64_t":$microBatches)>,
  ];
}

def Exec_IndexUseOpInterface : OpInterface<"IndexUseOpInterface"> {
  let cppNamespace = "::cleave::exec";
  let description = [{
    An op that reads an operand as indices, or passes its values on.
  }];
  let methods = [
    InterfaceMethod<"How operand `index` is used as indices.",
      "::cleave::exec::IndexUse", "getIndexUse", (ins "unsigned":$index)>,
  ];
}

#endif // CLEAVE_DIALECT_EXEC_IR_EXECINTERFACES_TD
