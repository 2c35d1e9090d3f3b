//===- ExecDialect.cpp - The exec dialect ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecDialect.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

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
  size_t dims = axes.getDims().size();
  if ((dims ? base.empty() || base.size() % dims : !base.empty()) ||
      factors.size() != count)
    return emitError() << "needs one base for each of the " << dims
                       << " dimensions, in each row, and one factor for each "
                       << "of the " << count << " axes";
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
