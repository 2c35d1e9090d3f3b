//===- RandomShardings.cpp - Random annotations of a step -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Testing/RandomShardings.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Testing/RandomReshard.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {

class Annotator {
public:
  Annotator(func::FuncOp function, uint64_t seed,
            const RandomShardingOptions &options)
      : function(function), options(options), random(Random(seed).next()),
        mesh(drawMesh(random, options.maxPositions)),
        builder(function.getContext()) {}

  void run() {
    addMesh();
    // Some programs are annotated sparsely, some everywhere.
    double density = random.uniform(0.1, 0.9);
    for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i) {
      auto type = cast<RankedTensorType>(function.getArgumentTypes()[i]);
      auto batch =
          function.getArgAttrOfType<IntegerAttr>(i, graph::kBatchDimAttr);
      Sharding sharding =
          draw(type.getShape(), batch ? batch.getInt() : -1, density);
      for (size_t dim = 0; dim < sharding.open.size(); ++dim)
        sharding.open[dim] = random.chance(0.1);
      function.setArgAttr(i, kShardingAttr,
                          ShardingAttr::get(meshName, sharding));
    }
    for (Operation &op : llvm::make_early_inc_range(
             function.getBody().front().without_terminator()))
      for (OpResult result : op.getResults())
        if (!result.use_empty() && random.chance(options.constrain))
          constrain(result);
  }

private:
  void addMesh() {
    auto module = function->getParentOfType<ModuleOp>();
    builder.setInsertionPointToStart(module.getBody());
    SmallVector<StringRef> names;
    SmallVector<int64_t> sizes;
    for (const MeshAxis &axis : mesh.axes) {
      names.push_back(axis.name);
      sizes.push_back(axis.size);
    }
    // No tensor is sharded over it.
    if (options.stages) {
      names.push_back(kPipelineAxis);
      sizes.push_back(options.stages);
    }
    auto op = MeshOp::create(builder, module.getLoc(), "mesh",
                             builder.getStrArrayAttr(names),
                             builder.getDenseI64ArrayAttr(sizes), ArrayAttr());
    meshName = FlatSymbolRefAttr::get(op);
  }

  /// A sharding by which `shape` is divisible, unless uneven sizes are drawn;
  /// dimension `batch` must be divisible by the micro-batches too.
  Sharding draw(ArrayRef<int64_t> shape, int64_t batch, double density) {
    Sharding sharding = Sharding::replicated(shape.size());
    for (const AxisRef &digit : drawDigits(random, mesh, random.chance(0.3))) {
      if (shape.empty() || !random.chance(density))
        continue;
      int64_t dim = random.integer(0, shape.size() - 1);
      int64_t devices = mesh.size(sharding.dims[dim]) * mesh.size(digit);
      int64_t parts = dim == batch ? devices * options.microBatches : devices;
      // Samples that are divisible are not padded for micro-batches alone.
      if (shape[dim] % parts == 0 ||
          (options.uneven > 0 && random.chance(options.uneven) &&
           shape[dim] >= parts && shape[dim] % devices != 0))
        sharding.dims[dim].push_back(digit);
    }
    for (AxisList &axes : sharding.dims)
      axes = mesh.normalize(axes);
    return sharding;
  }

  void constrain(OpResult value) {
    auto type = cast<RankedTensorType>(value.getType());
    // Any dimension may hold samples.
    SmallVector<int64_t> shape;
    for (int64_t size : type.getShape())
      shape.push_back(
          size % options.microBatches == 0 ? size / options.microBatches : 1);
    builder.setInsertionPointAfterValue(value);
    auto op =
        ConstrainOp::create(builder, value.getLoc(), value,
                            ShardingAttr::get(meshName, draw(shape, -1, 0.5)));
    value.replaceAllUsesExcept(op, op);
  }

  func::FuncOp function;
  const RandomShardingOptions &options;
  Random random;
  Mesh mesh;
  OpBuilder builder;
  FlatSymbolRefAttr meshName;
};

} // namespace

void cleave::drawShardings(ModuleOp module, StringRef entry, uint64_t seed,
                           const RandomShardingOptions &options) {
  module.getContext()->loadDialect<SpmdDialect>();
  if (auto function = module.lookupSymbol<func::FuncOp>(entry))
    Annotator(function, seed, options).run();
}
