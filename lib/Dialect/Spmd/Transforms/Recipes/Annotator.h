//===- Annotator.h - Annotations of recipes ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_ANNOTATOR_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_ANNOTATOR_H

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Propagation/DimensionClasses.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include <map>

namespace cleave::spmd {

/// Writes the annotations of recipes: shardings of arguments, which are the
/// same for all arguments of one name in all entry functions, and
/// `spmd.constrain` ops.
class Annotator {
public:
  /// `grains` is the number of equal parts of the samples that are summed in
  /// pairs, or 0.
  Annotator(mlir::ModuleOp module, MeshOp mesh, int64_t grains);

  const Mesh &getMesh() const { return mesh; }
  llvm::ArrayRef<mlir::func::FuncOp> entries() const { return functions; }
  /// Returns the entry function that trains, or null.
  mlir::func::FuncOp training() const { return train; }
  /// Returns the dimension classes of `function`, as of the first call in a
  /// recipe.
  const DimensionClasses &classesOf(mlir::func::FuncOp function);
  /// Drops the cached classes, so that a recipe sees the ops that others
  /// inserted.
  void beginRecipe() { classes.clear(); }

  /// Returns the sharding of `argument` so far.
  Sharding given(mlir::BlockArgument argument) const;
  /// Adds `axis` as the minor axis of dimension `dim` of `argument` and of its
  /// optimizer state, in every entry function.
  void split(mlir::BlockArgument argument, unsigned dim, const AxisRef &axis);
  void split(mlir::BlockArgument argument, unsigned dim, llvm::StringRef axis) {
    split(argument, dim, AxisRef{axis});
  }
  /// Gives `argument` and its optimizer state the sharding of a user's
  /// placement, in every entry function. Recipes do not shard its features or
  /// samples then.
  void place(mlir::BlockArgument argument, const Sharding &sharding);
  bool isPlaced(mlir::BlockArgument argument) const;
  /// Whether `argument` is sharded over `axis` already.
  bool isSplit(mlir::BlockArgument argument, llvm::StringRef axis) const {
    return given(argument).splits(mesh, {axis});
  }
  /// Returns the best dimension of `type`, of sharding `sharding`, to shard
  /// over `axis`: the largest divisible one, else the largest one, which is
  /// padded later. With grains, one that they divide comes first: its slices
  /// are the same for any number of positions. Returns nothing if all have less
  /// than one element per position.
  std::optional<unsigned> bestDim(mlir::RankedTensorType type,
                                  const Sharding &sharding,
                                  llvm::StringRef axis) const;

  /// Returns the axes over which samples are sharded so far.
  AxisList sampleAxes() const;

  /// Returns `sharding` as an attribute.
  ShardingAttr attribute(const Sharding &sharding) const {
    return ShardingAttr::get(meshName, sharding);
  }
  /// Builds an annotation of `value`. The caller replaces the uses.
  ConstrainOp constrain(mlir::OpBuilder &builder, mlir::Value value,
                        const Sharding &sharding, bool reduced = false);

  /// Builds the annotations `shardings` of `value`, one after the other, for
  /// `readers`, which send it in the type `narrow` if that is not null. Readers
  /// that round to this type read what was sent, and the others read it in
  /// their own type again.
  void send(mlir::OpBuilder &builder, mlir::Value value, mlir::FloatType narrow,
            llvm::ArrayRef<Sharding> shardings,
            llvm::ArrayRef<mlir::OpOperand *> readers);

  /// Adds `axis` as the minor axis of dimension `dim` of `value`, to the
  /// annotation for all its readers or to a new one.
  void splitValue(mlir::Value value, unsigned dim, llvm::StringRef axis);
  /// Returns the size of dimension `dim` of a shard of `value` under such an
  /// annotation.
  int64_t shardSize(mlir::Value value, unsigned dim) const;

  /// Records that inputs are sharded over `axis` along the sequence.
  void addSequenceAxis(const AxisRef &axis) {
    if (!llvm::is_contained(sequenceAxes, axis))
      sequenceAxes.push_back(axis);
  }
  /// The axes over which recipes shard the sequence so far, major to minor.
  const AxisList &getSequenceAxes() const { return sequenceAxes; }

  /// Records the annotation `constrain` of a value between blocks, whose
  /// dimension `dim` is the sequence. Recipes that shard the sequence add their
  /// axis to it, unless it is `except`.
  void addStream(ConstrainOp constrain, unsigned dim,
                 llvm::StringRef except = "") {
    streams.push_back({constrain, dim, except});
  }
  struct Stream {
    ConstrainOp constrain;
    unsigned dim;
    llvm::StringRef except;
  };
  llvm::ArrayRef<Stream> getStreams() const { return streams; }
  /// Lets readers read what `constrain` annotates, and erases it.
  void drop(ConstrainOp constrain) {
    llvm::erase_if(streams, [&](const Stream &stream) {
      return stream.constrain == constrain;
    });
    constrain.replaceAllUsesWith(constrain.getInput());
    constrain.erase();
  }

  mlir::ModuleOp getModule() const { return module; }
  /// The number of equal parts of the samples that are summed in pairs, or 0.
  int64_t getGrains() const { return grains; }

private:
  /// Returns the arguments that are sharded as `argument` is: those of the same
  /// name in every entry function, and its optimizer state, in the dimensions
  /// that it has.
  llvm::SmallVector<mlir::BlockArgument>
  followersOf(mlir::BlockArgument argument) const;
  void give(mlir::BlockArgument argument, const Sharding &sharding);

  mlir::ModuleOp module;
  mlir::FlatSymbolRefAttr meshName;
  Mesh mesh;
  int64_t grains;
  llvm::SmallVector<mlir::func::FuncOp, 3> functions;
  mlir::func::FuncOp train;
  std::map<mlir::Operation *, std::unique_ptr<DimensionClasses>> classes;
  llvm::SmallVector<Stream> streams;
  AxisList sequenceAxes;
  /// The arguments of each name, and the optimizer state of each name.
  llvm::StringMap<llvm::SmallVector<mlir::BlockArgument>> named;
  /// The names of arguments with a placement.
  llvm::StringSet<> placed;
};

/// Returns the largest dimension of `type` whose `parts[dim]` shards are each
/// divisible into `grains` slices, if any.
std::optional<unsigned> bestSlicedDim(mlir::RankedTensorType type,
                                      llvm::ArrayRef<int64_t> parts,
                                      int64_t grains);

/// Returns the divisors of `divisor` above 1, as text: `2, 3 or 6 positions`;
/// empty without any.
std::string partsThatFit(int64_t divisor);
/// Returns the numbers `parts` of positions as text.
std::string partsThatFit(llvm::ArrayRef<int64_t> parts);

/// Applies placements to arguments, before any recipe. Reports placements that
/// do not fit.
llvm::LogicalResult applyPlacements(Annotator &annotator,
                                    llvm::ArrayRef<Placement> placements);

// The recipes. `axis` and `axes` are names of axes of the mesh. Each reports
// what it cannot apply to the module.
llvm::LogicalResult applyDp(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyExpert(Annotator &annotator, llvm::StringRef axis);
/// Shards experts over an axis that other recipes shard features or the
/// sequence over, and no samples.
llvm::LogicalResult applyFoldedExpert(Annotator &annotator,
                                      llvm::StringRef axis);
/// Gathers the tokens of experts over the axes that shard both features of
/// these and the sequence between blocks.
void gatherTokens(Annotator &annotator);
/// Rounds gradients in f32 of activations in 16 bits at places of experts
/// before ranks that share a sequence gather them, and has those that share
/// features, too, scatter sums and gather slices. For experts that are not
/// sharded over other ranks, whose recipe does so.
void roundPlaces(Annotator &annotator);

/// Rounds places of experts that tokens fill after they have the dimension of
/// experts: as sums in f32 they are scattered over ranks that share a sequence.
void roundFilledPlaces(mlir::ModuleOp module);
/// Lets readers of partial sums of experts that round these and widen them
/// again read them as they are: what they are added up to is reduced then.
void keepPartialSums(Annotator &annotator);
llvm::LogicalResult applyMegatron(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyMegatronSequence(Annotator &annotator,
                                          llvm::StringRef axis);
/// Shards weights over the last two of `axes`, and samples over all but the
/// last.
llvm::LogicalResult applySumma(Annotator &annotator,
                               llvm::ArrayRef<std::string> axes);
llvm::LogicalResult applyContext(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyRing(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyTwoRings(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyUlysses(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyZero1(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyZero2(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyZero3(Annotator &annotator, llvm::StringRef axis);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_ANNOTATOR_H
