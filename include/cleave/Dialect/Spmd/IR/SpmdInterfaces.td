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
    A collective: an op that exchanges data between positions of the mesh, and the
    number of elements that it sends. It communicates one operand into one result.
    Elements are counted as for ring algorithms, with N the number of devices of a
    group and n the elements of the larger of operand and result:

    | op | sent by each position |
    |---|---|
    | all_reduce | 2(N-1)/N n |
    | all_gather, reduce_scatter, all_to_all | (N-1)/N n |
    | all_to_all_rows | (N-1)/N n, n the elements of the smaller one: with even shares |
    | permute | n; 0 where a position keeps its own shard |
    | rotate | n |
    | broadcast, reduce | (N-1)/N n, n the elements of the part |

    A broadcast sends a part to the N-1 other positions, and a reduce receives from
    them: over all N parts, each position sends (N-1) n.

    Along a sequential axis nothing is sent.
  }];
  let methods = [
    InterfaceMethod<"Returns the mesh of the collective.",
      "::mlir::FlatSymbolRefAttr", "getCommunicationMesh", (ins)>,
    InterfaceMethod<[{
        Returns the axes of the collective, major to minor. A group is the
        positions that differ in digits of these axes alone, in the order of
        `Mesh::partIndex(axes, coordinates)`.
      }],
      "::cleave::spmd::AxisList", "getCommunicationAxes", (ins)>,
    InterfaceMethod<"Returns the number of elements that the busiest position sends.",
      "double", "getElementsSent", (ins "const ::cleave::spmd::Mesh &":$mesh)>,
    InterfaceMethod<"Returns the number of elements that the position `coordinates` sends.",
      "double", "getElementsSentBy",
      (ins "const ::cleave::spmd::Mesh &":$mesh,
           "::llvm::ArrayRef<int64_t>":$coordinates), [{}], [{
        return $_op.getElementsSent(mesh);
      }]>,
  ];
  let extraClassDeclaration = [{
    /// Returns the number of bytes that the busiest position sends.
    double getBytesSent(const ::cleave::spmd::Mesh &mesh);
  }];
}

#endif // CLEAVE_DIALECT_SPMD_IR_SPMDINTERFACES_TD
