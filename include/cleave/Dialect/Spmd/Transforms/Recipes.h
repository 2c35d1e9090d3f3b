//===- Recipes.h - Recipes and placements of a plan -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A recipe is a named way to annotate a training step. It gives shardings to
/// arguments, as they are stored between steps, and to some intermediate
/// values. Propagation and partition do the rest, so that recipes compose.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_TRANSFORMS_RECIPES_H
#define CLEAVE_DIALECT_SPMD_TRANSFORMS_RECIPES_H

#include "cleave/Dialect/Spmd/IR/Axes.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"
#include <string>
#include <vector>

namespace cleave::spmd {

/// The axis over which samples are sharded, asked for or not.
inline constexpr llvm::StringLiteral kSamplesAxis = "dp";
/// The sequential axis whose positions are the micro-batches.
inline constexpr llvm::StringLiteral kMicroBatchAxis = "mb";

/// Parses the axes of a mesh, major to minor: `dp=2,tp=4`. Returns an error
/// unless names are distinct identifiers and sizes are positive.
llvm::Expected<std::vector<MeshAxis>> parseMesh(llvm::StringRef text);

/// A recipe as users write it: `zero3`, or bound to an axis of another name,
/// `zero3(fsdp)`.
struct RecipeCall {
  std::string name;
  /// The names of the mesh axes, one for each axis of the recipe.
  std::vector<std::string> axes;
  /// Another recipe of the list shards what is computed over the axis: this
  /// one shards parameters alone.
  bool folded = false;
};

/// Parses recipes: `megatron-sp,zero1(fsdp)`. The error of an unknown recipe
/// lists the known ones.
llvm::Expected<std::vector<RecipeCall>> parseRecipes(llvm::StringRef text);

/// A sharding of arguments as users write it: `layers.*.q_proj.weight=[tp,-]`.
struct Placement {
  /// A glob (`*`, `?`, `[a-z]`) that matches a name, or its end after a dot.
  std::string pattern;
  /// The axes over which each dimension is sharded, major to minor. Dimensions
  /// are those of the framework's shape.
  std::vector<std::vector<std::string>> dims;
  /// A placement that does not fit is ignored with a remark, instead of
  /// refused. Written with `?=`.
  bool hint = false;

  /// Whether the pattern matches `name`.
  bool fits(llvm::StringRef name) const;
  /// Returns the placement as users write it.
  std::string str() const;
};

/// The recipes and placements that users ask for.
struct Plan {
  std::vector<RecipeCall> recipes;
  std::vector<Placement> placements;
};

/// Parses recipes and placements, in any order:
/// `megatron-sp,*.bias=[-],wte.weight=[dp+tp,-]`. In a placement, `-`
/// replicates a dimension and `+` joins axes.
llvm::Expected<Plan> parsePlan(llvm::StringRef text);

/// A plan and the axes of its mesh, for passes that run before recipes.
struct PlanOnMesh {
  /// The axes of the option, or of the mesh of the module.
  std::vector<MeshAxis> axes;
  Plan plan;
};
/// Parses the options `mesh` and `recipes` of a pass on `module`. Reports
/// errors in them.
llvm::FailureOr<PlanOnMesh>
readPlan(mlir::ModuleOp module, llvm::StringRef mesh, llvm::StringRef recipes);

/// The dimension that a recipe shards in computation. `Resting`: none, the
/// recipe shards only values at rest.
enum class RecipeSplit : uint8_t { Samples, Features, Sequence, Resting };

/// An axis of a recipe: its default name, and the dimension sharded over it.
struct RecipeAxis {
  llvm::StringRef name;
  RecipeSplit split;
};

/// An entry in the table of recipes.
struct RecipeInfo {
  llvm::StringRef name;
  llvm::SmallVector<RecipeAxis, 3> axes;
  llvm::StringRef summary;
  /// The sizes of sharded features must be divisible, since they are not
  /// padded.
  bool even = false;
  /// The positions process keys in turn (a ring). Under a causal mask, zig-zag
  /// order of the sequence then balances their work.
  bool inTurn = false;
  /// Each micro-batch reduces gradients to shards, in an order of its own.
  bool sumsInParts = false;
  /// The recipe can have the axis over which another one shards features or the
  /// sequence.
  bool folds = false;
  /// Parameters are sharded at rest: no rank holds all of them.
  bool shardsParameters = false;
  /// Rows that have the weights of their groups may be sent to the ranks of
  /// these over the recipe's axis, instead of weights to the ranks of rows.
  bool sendsRows = false;
};
/// Returns the table of all recipes.
llvm::ArrayRef<RecipeInfo> recipeTable();
/// Returns the names of recipes that have a property, for messages:
/// "zero1, zero2".
std::string recipesThat(llvm::function_ref<bool(const RecipeInfo &)> have);
/// Whether a recipe shards values at rest alone, and leaves each rank the whole
/// gradient.
bool keepsGradientsWhole(const RecipeInfo &recipe);

/// Returns the dimension that a parsed recipe shards over `axis`; `Resting`
/// where the recipe is not bound to the axis.
RecipeSplit splitBy(const RecipeCall &call, llvm::StringRef axis);
/// Returns the dimension that `recipes` shard over `axis`: samples over the
/// axis of samples, also without a recipe; else `Resting` where none is bound
/// to it.
RecipeSplit splitBy(llvm::ArrayRef<RecipeCall> recipes, llvm::StringRef axis);
/// Whether a recipe shards only values at rest, and whether parameters are
/// among them.
bool shardsAtRest(const RecipeCall &call);
bool shardsParametersAtRest(const RecipeCall &call);
/// Whether the sizes that a recipe shards must be divisible.
bool splitsEvenly(const RecipeCall &call);
/// Whether the positions of a recipe process keys in turn.
bool seesKeysInTurn(const RecipeCall &call);
/// Whether a recipe reduces the gradients of each micro-batch to shards.
bool sumsInParts(const RecipeCall &call);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_RECIPES_H
