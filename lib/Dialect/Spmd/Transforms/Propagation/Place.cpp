//===- Place.cpp - The mesh and the micro-batches -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "llvm/Support/MathExtras.h"

namespace cleave::spmd {
#define GEN_PASS_DEF_PLACE
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
struct PlacePass : spmd::impl::PlaceBase<PlacePass> {
  using PlaceBase::PlaceBase;

  void runOnOperation() override {
    if (microBatches < 1) {
      getOperation().emitError(
          "the number of micro-batches must be positive, got ")
          << microBatches.getValue();
      return signalPassFailure();
    }
    if (failed(countGrains()) || failed(checkSizes()) ||
        failed(splitSamples(kMicroBatchAxis, microBatches)))
      return signalPassFailure();
  }

private:
  LogicalResult splitSamples(StringRef axis, int64_t size) {
    FailureOr<MeshOp> mesh = addAxis(axis, size);
    if (failed(mesh))
      return failure();
    for (auto function : getOperation().getOps<func::FuncOp>())
      for (unsigned i = 0; i < function.getNumArguments(); ++i)
        if (std::optional<int64_t> dim = batchDim(function, i))
          split(function, i, *dim, *mesh);
    return success();
  }

  /// The dimension of argument `index` that holds samples.
  static std::optional<int64_t> batchDim(func::FuncOp function,
                                         unsigned index) {
    auto dim =
        function.getArgAttrOfType<IntegerAttr>(index, graph::kBatchDimAttr);
    if (!dim)
      return std::nullopt;
    return dim.getInt();
  }

  /// The samples of an argument.
  struct Samples {
    /// The number of samples, the number of their shards, and the largest
    /// shard.
    int64_t all, parts, each;
    /// The samples are not divisible by the shards, and will be padded.
    bool uneven;
  };
  Samples samplesOf(func::FuncOp function, unsigned index, int64_t dim) {
    int64_t size = cast<RankedTensorType>(function.getArgumentTypes()[index])
                       .getDimSize(dim);
    auto given = function.getArgAttrOfType<ShardingAttr>(index, kShardingAttr);
    MeshOp mesh = findMesh(getOperation());
    int64_t parts =
        given && mesh ? mesh.getMesh().size(given.getSharding().dims[dim]) : 1;
    return {size, parts, (size + parts - 1) / parts, size % parts != 0};
  }

  /// Refuses parameters that are sharded over an axis of the samples. Grains
  /// are summed in a tree, and the gradient of such a shard would be summed in
  /// another order.
  LogicalResult checkParameters() {
    MeshOp meshOp = findMesh(getOperation());
    if (!meshOp)
      return success();
    Mesh mesh = meshOp.getMesh();
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      AxisList samples;
      for (unsigned i = 0; i < function.getNumArguments(); ++i)
        if (std::optional<int64_t> dim = batchDim(function, i))
          if (auto given =
                  function.getArgAttrOfType<ShardingAttr>(i, kShardingAttr))
            llvm::append_range(samples, given.getSharding().dims[*dim]);
      for (BlockArgument argument : function.getArguments()) {
        unsigned i = argument.getArgNumber();
        auto role = function.getArgAttrOfType<StringAttr>(i, graph::kRoleAttr);
        auto given = function.getArgAttrOfType<ShardingAttr>(i, kShardingAttr);
        if (!role || role != "parameter" || !given)
          continue;
        for (const AxisList &axes : given.getSharding().dims)
          for (const AxisRef &axis : axes)
            if (mesh.overlap(axis, samples))
              return emitError(argument.getLoc())
                     << "parameter is sharded over \"" << axis.name
                     << "\", which also shards the samples: its gradient would "
                        "be summed in another order than that of the grains; "
                        "replicate it or shard it over another axis";
      }
    }
    return success();
  }

  /// Computes the number of micro-batches from the number of grains, which the
  /// shards of the samples divide evenly.
  LogicalResult countGrains() {
    if (grains == 0)
      return success();
    if (!llvm::isPowerOf2_64(grains))
      return getOperation().emitError("the number of grains must be a "
                                      "power of 2, since grains are summed in "
                                      "pairs; got ")
             << grains.getValue();
    int64_t parts = 0;
    for (auto function : getOperation().getOps<func::FuncOp>())
      for (unsigned i = 0; i < function.getNumArguments(); ++i)
        if (std::optional<int64_t> dim = batchDim(function, i))
          parts = samplesOf(function, i, *dim).parts;
    parts = std::max<int64_t>(parts, 1);
    if (failed(checkParameters()))
      return failure();
    if (grains % parts != 0)
      return getOperation().emitError("the number of grains, ")
             << grains.getValue() << ", is not divisible by the " << parts
             << " shards of the samples";
    microBatches = grains / parts;
    return success();
  }

  /// Returns the numbers of grains that divide all batches, as text.
  static std::string
  grainsThatFit(ArrayRef<std::pair<unsigned, Samples>> batches) {
    SmallVector<int64_t> sizes;
    int64_t parts = 1;
    for (const auto &[i, samples] : batches) {
      sizes.push_back(samples.each & -samples.each);
      parts = samples.parts;
    }
    std::string text;
    int64_t most = *llvm::min_element(sizes) * parts;
    for (int64_t n = parts; n <= most; n *= 2)
      text += (text.empty() ? ""
               : n == most  ? " or "
                            : ", ") +
              std::to_string(n);
    return text;
  }

  /// Checks that every micro-batch may have a sample. A batch that is not
  /// divisible is padded for micro-batches, as it is for its shards, so that
  /// the last ones are smaller; all arguments that hold the same samples are.
  /// Grains are alike.
  LogicalResult checkSizes() {
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      SmallVector<std::pair<unsigned, Samples>> batches;
      for (unsigned i = 0; i < function.getNumArguments(); ++i)
        if (std::optional<int64_t> dim = batchDim(function, i))
          batches.push_back({i, samplesOf(function, i, *dim)});
      bool padded = grains == 0 || llvm::any_of(batches, [](const auto &batch) {
                      return batch.second.uneven;
                    });
      for (auto &[i, samples] : batches) {
        if (padded ? samples.each >= microBatches
                   : samples.each % microBatches == 0)
          continue;
        // Users give grains for the global batch.
        if (grains > 0)
          return graph::emitArgumentError(function, i)
                 << " has " << samples.all << " samples, not divisible by "
                 << grains.getValue() << " grains: use "
                 << grainsThatFit(batches);
        return graph::emitArgumentError(function, i)
               << " has " << samples.each << " samples"
               << (samples.each == samples.all ? "" : " on each device")
               << ", fewer than the " << microBatches.getValue()
               << " micro-batches";
      }
    }
    return success();
  }

  /// Adds a sequential axis to the mesh, as its most significant one.
  FailureOr<MeshOp> addAxis(StringRef axis, int64_t size) {
    ModuleOp module = getOperation();
    OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
    SmallVector<Attribute> axes{builder.getStringAttr(axis)};
    SmallVector<Attribute> sequential = axes;
    SmallVector<int64_t> sizes{size};
    MeshOp old = findMesh(module);
    StringRef name = "mesh";
    Location loc = module.getLoc();
    if (old) {
      if (llvm::is_contained(old.getAxes(), axes.front()))
        return old.emitOpError("has an axis \"") << axis << "\" already";
      llvm::append_range(axes, old.getAxes());
      llvm::append_range(sizes, old.getSizes());
      if (ArrayAttr more = old.getSequentialAttr())
        llvm::append_range(sequential, more);
      name = old.getSymName();
      loc = old.getLoc();
    }
    auto mesh = MeshOp::create(builder, loc, name, builder.getArrayAttr(axes),
                               builder.getDenseI64ArrayAttr(sizes),
                               builder.getArrayAttr(sequential));
    if (old)
      old.erase();
    return mesh;
  }

  /// Shards dimension `dim` of an argument over the micro-batches, as the major
  /// axis, so that devices exchange values within one micro-batch.
  void split(func::FuncOp function, unsigned index, int64_t dim, MeshOp mesh) {
    auto type = cast<RankedTensorType>(function.getArgumentTypes()[index]);
    Sharding sharding = Sharding::replicated(type.getRank());
    if (auto given =
            function.getArgAttrOfType<ShardingAttr>(index, kShardingAttr))
      sharding = given.getSharding();
    AxisList &axes = sharding.dims[dim];
    axes.insert(axes.begin(), {cast<StringAttr>(mesh.getAxes()[0]).getValue()});
    function.setArgAttr(
        index, kShardingAttr,
        ShardingAttr::get(FlatSymbolRefAttr::get(mesh), sharding));
  }
};
} // namespace
