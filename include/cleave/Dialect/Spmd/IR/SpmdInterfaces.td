//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_SPMDINTERFACES_TD
#define CLEAVE_DIALECT_SPMD_IR_SPMDINTERFACES_TD

include "mlir/IR/OpBase.td"

def Spmd_CommunicationOpInterface : OpInterface<"CommunicationOpInterface"> {
  let cppNamespace = "::cleave::spmd";
  let description = [{
    An op that moves data between positions of the mesh, and what it sends. One
    operand moves, one result. Elements are counted in ring terms, with N the number
    of devices of a group and n the elements of the larger of operand and
    result:

    | op | sent by each position |
    |---|---|
    | all_reduce | 2(N-1)/N n |
    | all_gather, reduce_scatter, all_to_all | (N-1)/N n |
    | permute | n; 0 where a position keeps its own shard |
    | rotate | n |
    | broadcast, reduce | (N-1)/N n, n the elements of the part |

    A part is sent to the N-1 positions that lack it, or from them: of all N
    parts together, each position sends (N-1) n.

    Along a sequential axis nothing is sent.
  }];
  let methods = [
    InterfaceMethod<"The mesh on which it moves.",
      "::mlir::FlatSymbolRefAttr", "getCommunicationMesh", (ins)>,
    InterfaceMethod<[{
        The axes that move, major to minor. A group is the positions that
        differ in digits of these alone, in the order of
        `Mesh::partIndex(axes, coordinates)`.
      }],
      "::cleave::spmd::AxisList", "getCommunicationAxes", (ins)>,
    InterfaceMethod<"The elements that the busiest position sends.",
      "double", "getElementsSent", (ins "const ::cleave::spmd::Mesh &":$mesh)>,
    InterfaceMethod<"The elements that the position `coordinates` sends.",
      "double", "getElementsSentBy",
      (ins "const ::cleave::spmd::Mesh &":$mesh,
           "::llvm::ArrayRef<int64_t>":$coordinates), [{}], [{
        return $_op.getElementsSent(mesh);
      }]>,
  ];
  let extraClassDeclaration = [{
    /// The bytes that the busiest position sends.
    double getBytesSent(const ::cleave::spmd::Mesh &mesh);
  }];
}

#endif // CLEAVE_DIALECT_SPMD_IR_SPMDINTERFACES_TD
