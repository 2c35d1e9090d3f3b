//===- ExecDialect.cpp - The exec dialect ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecDialect.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/Path.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

#include "cleave/Dialect/Exec/IR/ExecDialect.cpp.inc"
#include "cleave/Dialect/Exec/IR/ExecEnums.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "cleave/Dialect/Exec/IR/ExecAttrs.cpp.inc"

LogicalResult
DeviceValuesAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                         ArrayRef<int64_t> base, spmd::ShardingAttr axes,
                         ArrayRef<int64_t> factors) {
  size_t count = 0;
  for (const spmd::DimSharding &dim : axes.getDims())
    count += dim.axes.size();
  if (base.size() != axes.getDims().size() || factors.size() != count)
    return emitError() << "needs one base for each of the "
                       << axes.getDims().size()
                       << " dimensions and one factor for each of the "
                       << count << " axes";
  return success();
}

void ExecDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "cleave/Dialect/Exec/IR/ExecAttrs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "cleave/Dialect/Exec/IR/ExecOps.cpp.inc"
      >();
}

std::string cleave::exec::sourceLine(Location loc) {
  if (auto file = dyn_cast<FileLineColLoc>(loc))
    return (llvm::sys::path::filename(file.getFilename().getValue()) + ":" +
            Twine(file.getLine()))
        .str();
  if (auto name = dyn_cast<NameLoc>(loc)) {
    std::string child = sourceLine(name.getChildLoc());
    return child.empty() ? name.getName().str() : child;
  }
  if (auto call = dyn_cast<CallSiteLoc>(loc))
    return sourceLine(call.getCallee());
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (Location part : fused.getLocations())
      if (std::string text = sourceLine(part); !text.empty())
        return text;
  return "";
}
