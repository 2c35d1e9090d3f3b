//===- VerifyPlaced.cpp - Checks that every value has a sharding ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_VERIFYPLACED
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
struct VerifyPlaced : spmd::impl::VerifyPlacedBase<VerifyPlaced> {
  void runOnOperation() override {
    MeshOp mesh = findMesh(getOperation());
    if (!mesh) {
      getOperation().emitError("the module has no spmd.mesh");
      return signalPassFailure();
    }
    meshName = mesh.getSymName();
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (!function.isExternal() && failed(verifyFunction(function)))
        return signalPassFailure();
  }

  /// The dialect has checked that a sharding that is there fits its tensor.
  LogicalResult verifySharding(ShardingAttr sharding, bool ofEntry,
                               function_ref<InFlightDiagnostic()> error) {
    if (!sharding)
      return error() << " has no sharding";
    if (sharding.getMesh().getValue() != meshName)
      return error() << " has a sharding on '@" << sharding.getMesh().getValue()
                     << "', not on '@" << meshName << "'";
    Sharding data = sharding.getSharding();
    if (llvm::is_contained(data.open, true))
      return error() << " has an open dimension: " << data.str();
    if (ofEntry && !data.partial.empty())
      return error() << " is partial: " << data.str();
    return success();
  }

  LogicalResult verifyFunction(func::FuncOp function) {
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block");
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      if (failed(verifySharding(
              function.getArgAttrOfType<ShardingAttr>(i, kShardingAttr),
              /*ofEntry=*/true,
              [&] { return graph::emitArgumentError(function, i); })))
        return failure();
    for (unsigned i = 0; i < function.getNumResults(); ++i)
      if (failed(verifySharding(
              function.getResultAttrOfType<ShardingAttr>(i, kShardingAttr),
              /*ofEntry=*/true,
              [&] { return graph::emitResultError(function, i); })))
        return failure();
    for (Operation &op : function.getBody().front().without_terminator()) {
      auto shardings = op.getAttrOfType<ArrayAttr>(kShardingsAttr);
      for (unsigned i = 0; i < op.getNumResults(); ++i)
        if (failed(
                verifySharding(shardings ? dyn_cast<ShardingAttr>(shardings[i])
                                         : ShardingAttr(),
                               /*ofEntry=*/false,
                               [&] { return op.emitOpError("result ") << i; })))
          return failure();
    }
    return success();
  }

  StringRef meshName;
};
} // namespace
