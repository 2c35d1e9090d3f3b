//===- KindAttributes.h - Enumerations as attributes ---------- -*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The enumerations of Support that ops of all dialects have as attributes
/// (Kinds.td). TableGen does not declare them, because the runtime, which knows
/// nothing of MLIR, has the same ones.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_KINDATTRIBUTES_H
#define CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_KINDATTRIBUTES_H

#include "cleave/Support/CollectiveKind.h"
#include "cleave/Support/ReductionKind.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"

namespace cleave {

/// An enumerator as an integer of 32 bits.
template <typename Kind, std::optional<Kind> (*symbolize)(uint32_t)>
class KindAttr : public mlir::IntegerAttr {
public:
  using ValueType = Kind;
  using IntegerAttr::IntegerAttr;

  static bool classof(mlir::Attribute attribute) {
    auto number = llvm::dyn_cast<mlir::IntegerAttr>(attribute);
    return number && number.getType().isSignlessInteger(32) &&
           symbolize(static_cast<uint32_t>(number.getInt())).has_value();
  }
  static KindAttr get(mlir::MLIRContext *context, Kind kind) {
    return llvm::cast<KindAttr>(mlir::Attribute(mlir::IntegerAttr::get(
        mlir::IntegerType::get(context, 32), static_cast<int64_t>(kind))));
  }
  Kind getValue() const { return static_cast<Kind>(getInt()); }
};

using ReductionKindAttr = KindAttr<ReductionKind, symbolizeReductionKind>;
using CollectiveKindAttr = KindAttr<CollectiveKind, symbolizeCollectiveKind>;

} // namespace cleave

#endif // CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_KINDATTRIBUTES_H
