//===- Cause.cpp - The annotation behind a collective ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/Cause.h"
#include "mlir/IR/BuiltinAttributes.h"

using namespace mlir;

Location cleave::spmd::withCause(Location loc, StringRef cause) {
  if (cause.empty())
    return loc;
  return FusedLoc::get(loc.getContext(), {loc},
                       StringAttr::get(loc.getContext(), cause));
}

StringRef cleave::spmd::causeOf(Location loc) {
  auto fused = dyn_cast<FusedLoc>(loc);
  if (!fused)
    return {};
  if (auto cause = dyn_cast_or_null<StringAttr>(fused.getMetadata()))
    return cause.getValue();
  for (Location part : fused.getLocations())
    if (StringRef cause = causeOf(part); !cause.empty())
      return cause;
  return {};
}
