//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_INTERPRETER_REFERENCEINTERFACE_TD
#define CLEAVE_INTERPRETER_REFERENCEINTERFACE_TD

include "mlir/IR/OpBase.td"

def ReferenceOpInterface : OpInterface<"ReferenceOpInterface"> {
  let cppNamespace = "::cleave";
  let description = [{
    The reference semantics of an op, written for clarity and independent of any
    lowering.
  }];
  let methods = [
    InterfaceMethod<[{
        Computes the results from the operands. The results have the shapes of
        their types and are filled with zeros; the caller rounds them to their
        element types afterwards. Reports a located error if the operands are
        invalid, such as an index out of range.
      }],
      "::llvm::LogicalResult", "evaluate",
      (ins "const ::cleave::RefArgs &":$args,
           "::llvm::MutableArrayRef<::cleave::RefTensor>":$results,
           "::cleave::ReferenceContext &":$context)>,
  ];
}

def ReferenceCollectiveOpInterface
    : OpInterface<"ReferenceCollectiveOpInterface"> {
  let cppNamespace = "::cleave";
  let description = [{
    The reference semantics of an op that the ranks of a mesh execute together.
  }];
  let methods = [
    InterfaceMethod<[{
        Computes the results of all ranks from the operands of all ranks:
        `args[r]` and `results[r]` are those of the rank with number r.
      }],
      "::llvm::LogicalResult", "evaluateTogether",
      (ins "::llvm::ArrayRef<::cleave::RefArgs>":$args,
           "::llvm::ArrayRef<::llvm::MutableArrayRef<::cleave::RefTensor>>":$results,
           "::cleave::ReferenceContext &":$context)>,
  ];
}

#endif // CLEAVE_INTERPRETER_REFERENCEINTERFACE_TD
