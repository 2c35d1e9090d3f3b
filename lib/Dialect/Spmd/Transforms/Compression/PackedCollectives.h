//===- PackedCollectives.h - One message for many tensors ---------*- C++
//-*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_PACKEDCOLLECTIVES_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_PACKEDCOLLECTIVES_H

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "llvm/ADT/DenseSet.h"

namespace cleave::spmd {

/// What ranks exchange of all compressed gradients, as few messages: compressed
/// tensors are small. Exchanges are sums over the first dimension, and
/// `spmd.constrain`.
///
/// The ops behind the gradients are ordered in rounds: first of all gradients
/// what comes before the first exchange, then what comes before the second one,
/// and so on. The exchanges of a round of one kind and type become one, of
/// their operands one after the other along the last dimension.
class PackedCollectives {
public:
  /// Adds a gradient from which exchanges are computed.
  void begin(mlir::Operation *gradient) { gradients.insert(gradient); }
  void add(mlir::Operation *exchange) { exchanges.insert(exchange); }
  /// Completes the exchanges; those of a round and of one kind are one message
  /// if `together`.
  void pack(mlir::OpBuilder &builder, mlir::FlatSymbolRefAttr mesh,
            bool together);

private:
  std::vector<std::vector<mlir::Operation *>> findRounds(mlir::Block &block);

  llvm::DenseSet<mlir::Operation *> gradients, exchanges;
};

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_PACKEDCOLLECTIVES_H
