//===- PlacementReport.cpp - Which device holds what ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Target/ProgramTable.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
namespace json = llvm::json;

static json::Array dimsOf(const spmd::Mesh &mesh,
                          const spmd::Sharding &sharding) {
  json::Array dims;
  for (const spmd::AxisList &list : sharding.dims) {
    json::Array axes;
    for (const spmd::AxisRef &axis : mesh.deviceAxes(list))
      axes.push_back(json::Object{
          {"axis", axis.name}, {"pre", axis.pre}, {"size", mesh.size(axis)}});
    dims.push_back(std::move(axes));
  }
  return dims;
}

json::Value cleave::placementReport(ModuleOp module) {
  json::Object report, tensors;
  spmd::MeshOp meshOp = spmd::findMesh(module);
  if (!meshOp)
    return report;
  spmd::Mesh mesh = meshOp.getMesh();
  json::Array axes;
  for (const spmd::MeshAxis &axis : mesh.axes)
    if (!axis.sequential)
      axes.push_back(json::Object{{"axis", axis.name}, {"size", axis.size}});
  report["mesh"] = std::move(axes);
  for (auto program : module.getOps<ProgramOp>())
    for (BlockArgument argument : program.getBody().getArguments()) {
      unsigned index = argument.getArgNumber();
      auto name = program.getArgAttrOfType<StringAttr>(index, graph::kNameAttr);
      if (!name || tensors.get(name.getValue()))
        continue;
      auto sharding = program.getArgAttrOfType<spmd::ShardingAttr>(
          index, spmd::kShardingAttr);
      auto global =
          program.getArgAttrOfType<TypeAttr>(index, spmd::kGlobalTypeAttr);
      auto type = cast<RankedTensorType>(global ? global.getValue()
                                                : argument.getType());
      json::Object tensor;
      tensor["shape"] = json::Array(type.getShape());
      tensor["element_bits"] =
          static_cast<int64_t>(type.getElementTypeBitWidth());
      tensor["dims"] =
          dimsOf(mesh, sharding ? sharding.getSharding()
                                : spmd::Sharding::replicated(type.getRank()));
      if (auto shape = program.getArgAttrOfType<DenseI64ArrayAttr>(
              index, graph::kFrameworkShapeAttr))
        tensor["framework_shape"] = json::Array(shape.asArrayRef());
      if (auto aliases =
              program.getArgAttrOfType<ArrayAttr>(index, graph::kAliasesAttr))
        for (auto alias : aliases.getAsRange<StringAttr>())
          tensors[alias.getValue()] = json::Object(tensor);
      tensors[name.getValue()] = std::move(tensor);
    }
  report["tensors"] = std::move(tensors);
  return report;
}
