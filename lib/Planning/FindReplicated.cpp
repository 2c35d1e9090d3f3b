//===- FindReplicated.cpp - Operations that ranks compute alike -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Graph/IR/OpCost.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Planning/CostForms.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>

using namespace mlir;
using namespace cleave;

namespace {
/// The operations of a rank, and those of the ranks of an axis that are not
/// repeated, for one axis.
struct Shares {
  double all = 0, own = 0;
  /// The place where most is repeated.
  std::map<std::string, std::pair<double, LocationAttr>> repeated;
};
} // namespace

/// The number of positions of axis `name` over which `op` is sharded: by
/// dimensions of its results, or by what it sums.
static int64_t shardsOver(const spmd::Mesh &mesh, Operation *op,
                          StringRef name) {
  spmd::AxisList used;
  auto add = [&](const spmd::AxisRef &axis) {
    if (axis.name == name && !mesh.overlap(axis, used))
      used.push_back(axis);
  };
  for (Value result : op->getResults()) {
    std::optional<spmd::Sharding> sharding = spmd::writtenSharding(result);
    if (!sharding)
      continue;
    for (const spmd::AxisList &axes : sharding->dims)
      llvm::for_each(axes, add);
    for (const spmd::PartialAxis &partial : sharding->partial)
      add(partial.axis);
  }
  return mesh.size(used);
}

std::vector<CostFacts::Replicated> cleave::findReplicated(ModuleOp module) {
  spmd::MeshOp meshOp = spmd::findMesh(module);
  if (!meshOp)
    return {};
  spmd::Mesh mesh = meshOp.getMesh();
  std::map<std::string, Shares> axes;
  auto train = module.lookupSymbol<func::FuncOp>("train");
  if (!train || train.isExternal())
    return {};
  for (Operation &op : train.getBody().front().without_terminator()) {
    std::optional<double> work = operationsOf(&op);
    if (!work)
      continue;
    for (const spmd::MeshAxis &axis : mesh.axes)
      if (axis.sequential)
        *work *= static_cast<double>(shardsOver(mesh, &op, axis.name));
    for (const spmd::MeshAxis &axis : mesh.axes) {
      if (axis.sequential || axis.size == 1 || axis.name == spmd::kPipelineAxis)
        continue;
      double own = static_cast<double>(shardsOver(mesh, &op, axis.name)) /
                   static_cast<double>(axis.size);
      Shares &shares = axes[axis.name];
      shares.all += *work;
      shares.own += *work * own;
      if (own == 1)
        continue;
      auto &[sum, location] = shares.repeated[sourceLine(op.getLoc())];
      sum += *work * (1 - own);
      location = op.getLoc();
    }
  }
  std::vector<CostFacts::Replicated> found;
  for (const spmd::MeshAxis &axis : mesh.axes) {
    const Shares &shares = axes[axis.name];
    if (shares.all <= shares.own * (1 + closedforms::kTolerance))
      continue;
    const auto &[line, most] =
        *llvm::max_element(shares.repeated, [](const auto &a, const auto &b) {
          return a.second.first < b.second.first;
        });
    found.push_back(
        {most.second, axis.name, line, axis.size, shares.all / shares.own});
  }
  return found;
}

void cleave::remarkReplicated(ArrayRef<CostFacts::Replicated> found) {
  for (const CostFacts::Replicated &entry : found)
    emitRemark(Location(entry.location))
        << "the " << entry.ranks << " ranks of axis \"" << entry.axis
        << "\" compute " << llvm::formatv("{0:f2}", entry.times).str()
        << " times the operations of a step together, because what is computed "
           "here and in other places is not sharded over it";
}
