//===- PlacementReport.cpp - Which device holds what ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportParts.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include <map>
#include <set>

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

/// Describes the tensor that is argument `index` of `program`.
static json::Object describe(const spmd::Mesh &mesh, ProgramOp program,
                             unsigned index) {
  auto sharding =
      program.getArgAttrOfType<spmd::ShardingAttr>(index, spmd::kShardingAttr);
  auto global =
      program.getArgAttrOfType<TypeAttr>(index, spmd::kGlobalTypeAttr);
  auto type = cast<RankedTensorType>(
      global ? global.getValue()
             : program.getBody().getArgument(index).getType());
  json::Object tensor;
  tensor["shape"] = json::Array(type.getShape());
  tensor["element_bits"] = static_cast<int64_t>(type.getElementTypeBitWidth());
  tensor["dims"] =
      dimsOf(mesh, sharding ? sharding.getSharding()
                            : spmd::Sharding::replicated(type.getRank()));
  if (auto shape = program.getArgAttrOfType<DenseI64ArrayAttr>(
          index, graph::kFrameworkShapeAttr))
    tensor["framework_shape"] = json::Array(shape.asArrayRef());
  return tensor;
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
  // Entries and positions may hold the same tensor.
  std::map<std::string, std::set<int64_t>> positions;
  for (auto program : module.getOps<ProgramOp>())
    for (unsigned index = 0, end = program.getBody().getNumArguments();
         index < end; ++index) {
      auto name = program.getArgAttrOfType<StringAttr>(index, graph::kNameAttr);
      if (!name)
        continue;
      SmallVector<StringRef> names{name.getValue()};
      if (auto aliases =
              program.getArgAttrOfType<ArrayAttr>(index, graph::kAliasesAttr))
        for (auto alias : aliases.getAsRange<StringAttr>())
          names.push_back(alias.getValue());
      for (StringRef known : names) {
        if (program.getPosition())
          positions[known.str()].insert(program.getPipelinePosition());
        if (!tensors.get(known))
          tensors[known] = describe(mesh, program, index);
      }
    }
  for (auto &[name, held] : positions)
    (*tensors.getObject(name))["positions"] =
        json::Array(std::vector<int64_t>(held.begin(), held.end()));
  report["tensors"] = std::move(tensors);
  return report;
}
