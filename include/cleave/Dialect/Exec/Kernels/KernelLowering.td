//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_KERNELS_KERNELLOWERING_TD
#define CLEAVE_DIALECT_EXEC_KERNELS_KERNELLOWERING_TD

include "mlir/IR/OpBase.td"

def KernelLoweringInterface : OpInterface<"KernelLoweringInterface"> {
  let cppNamespace = "::cleave";
  let description = [{
    An op that generated kernels can compute: it defines its space of rows and
    columns, and emits scalar code for one element.
  }];
  let methods = [
    InterfaceMethod<"The space of rows and columns of the op's code.",
      "::cleave::KernelSpace", "getKernelSpace", (ins)>,
    InterfaceMethod<[{
        Emits the scalar code of one element or row. Operands are read, and
        results defined, through the builder alone.
      }],
      "::llvm::LogicalResult", "emitKernel",
      (ins "::cleave::KernelBuilder &":$builder)>,
  ];
}

def KernelDecompositionInterface
    : OpInterface<"KernelDecompositionInterface"> {
  let cppNamespace = "::cleave";
  let description = [{
    An op that needs more than one kernel: it rewrites itself into ops that have
    a `KernelLoweringInterface`.
  }];
  let methods = [
    InterfaceMethod<[{
        Builds the ops that compute the op's results, and returns the results.
      }],
      "::llvm::SmallVector<::mlir::Value>", "decompose",
      (ins "::mlir::OpBuilder &":$builder)>,
  ];
}

#endif // CLEAVE_DIALECT_EXEC_KERNELS_KERNELLOWERING_TD
