//===- Annotator.h - What recipes write with --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_ANNOTATOR_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_RECIPES_ANNOTATOR_H

#include "../DimensionClasses.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include <map>

namespace cleave::spmd {

/// Writes shardings of arguments, in all entries alike: an argument is known by
/// its name.
class Annotator {
public:
  Annotator(mlir::ModuleOp module, MeshOp mesh);

  const Mesh &getMesh() const { return mesh; }
  llvm::ArrayRef<mlir::func::FuncOp> entries() const { return functions; }
  /// The entry that trains; null where there is none.
  mlir::func::FuncOp training() const { return train; }
  /// The classes as they were when first asked for in this recipe.
  const DimensionClasses &classesOf(mlir::func::FuncOp function);
  /// What a recipe has inserted is known to the next one.
  void beginRecipe() { classes.clear(); }

  /// What is given for an argument so far.
  Sharding given(mlir::BlockArgument argument) const;
  /// Splits dimension `dim` of `argument`, and of its state, over `axis` too,
  /// behind what splits it already, in every entry.
  void split(mlir::BlockArgument argument, unsigned dim, const AxisRef &axis);
  void split(mlir::BlockArgument argument, unsigned dim, llvm::StringRef axis) {
    split(argument, dim, AxisRef{axis});
  }
  /// Gives `argument` and the state that belongs to it what a person asked for,
  /// in every entry; features and samples are then not split by recipes.
  void place(mlir::BlockArgument argument, const Sharding &sharding);
  bool isPlaced(mlir::BlockArgument argument) const;
  /// Whether `axis` splits `argument` already.
  bool isSplit(mlir::BlockArgument argument, llvm::StringRef axis) const {
    return given(argument).splits(mesh, {axis});
  }
  /// The dimension of `type` that divides best behind `sharding` into the parts
  /// of `axis`: the largest of those that divide, else the largest, which will
  /// be padded; nothing where there would be less than one element in a part.
  std::optional<unsigned> bestDim(mlir::RankedTensorType type,
                                  const Sharding &sharding,
                                  llvm::StringRef axis) const;

  /// `sharding`, as an attribute.
  ShardingAttr attribute(const Sharding &sharding) const {
    return ShardingAttr::get(meshName, sharding);
  }
  /// Puts an annotation behind `value`, for all its readers or for `readers`.
  ConstrainOp constrain(mlir::OpBuilder &builder, mlir::Value value,
                        const Sharding &sharding, bool reduced = false);

  /// Splits dimension `dim` of `value` over `axis`, behind what an annotation
  /// for all its readers says already.
  void splitValue(mlir::Value value, unsigned dim, llvm::StringRef axis);
  /// What such an annotation leaves each device of dimension `dim` of `value`.
  int64_t shardSize(mlir::Value value, unsigned dim) const;

  /// `constrain`, for a value whose dimension `dim` holds the sequence, and
  /// which a recipe splits by features elsewhere: recipes that split the
  /// sequence split this one too.
  void addStream(ConstrainOp constrain, unsigned dim) {
    streams.push_back({constrain, dim});
  }
  llvm::ArrayRef<std::pair<ConstrainOp, unsigned>> getStreams() const {
    return streams;
  }

  mlir::ModuleOp getModule() const { return module; }

private:
  /// The arguments that lie as `argument` does: the same one of every entry,
  /// and state of it.
  llvm::SmallVector<mlir::BlockArgument>
  followersOf(mlir::BlockArgument argument) const;
  void give(mlir::BlockArgument argument, const Sharding &sharding);

  mlir::ModuleOp module;
  mlir::FlatSymbolRefAttr meshName;
  Mesh mesh;
  llvm::SmallVector<mlir::func::FuncOp, 3> functions;
  mlir::func::FuncOp train;
  std::map<mlir::Operation *, std::unique_ptr<DimensionClasses>> classes;
  llvm::SmallVector<std::pair<ConstrainOp, unsigned>> streams;
  /// The arguments of a name, or that are state of it.
  llvm::StringMap<llvm::SmallVector<mlir::BlockArgument>> named;
  /// By name: what `place` was called for.
  llvm::StringSet<> placed;
};

/// The parts that `divisor` can be cut into, as a sentence's end: `2, 3 or 6`.
std::string partsThatFit(int64_t divisor);
/// Numbers of parts as a sentence's end.
std::string partsThatFit(llvm::ArrayRef<int64_t> parts);

/// Gives arguments what `placements` say, before any recipe speaks.
llvm::LogicalResult applyPlacements(Annotator &annotator,
                                    llvm::ArrayRef<Placement> placements);

// The recipes, one for each file. `axes` are names of axes of the mesh.
llvm::LogicalResult applyData(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyExpert(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyMegatron(Annotator &annotator, llvm::StringRef axis);
llvm::LogicalResult applyMegatronSequence(Annotator &annotator,
                                          llvm::StringRef axis);
/// The last two of `axes` split weights; all but the last split samples.
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
