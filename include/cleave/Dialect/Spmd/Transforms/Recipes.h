//===- Recipes.h - Named ways to annotate a step ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A recipe annotates: it says how arguments rest and what some values in
/// between look like. Propagation and partition do the rest, so that recipes
/// compose.
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

/// The axes of a mesh as a person writes them, major to minor: `dp=2,tp=4`.
/// Names are identifiers, each once; sizes are positive.
llvm::Expected<std::vector<MeshAxis>> parseMesh(llvm::StringRef text);

/// A recipe as a person asks for it: `zero3`, or bound to an axis of another
/// name, `zero3(fsdp)`.
struct RecipeCall {
  std::string name;
  /// One for each axis of the recipe.
  std::vector<std::string> axes;
};

/// `megatron-sp,zero1(fsdp)`; an error names what is unknown and lists what
/// there is.
llvm::Expected<std::vector<RecipeCall>> parseRecipes(llvm::StringRef text);

/// Where a person places arguments: `layers.*.q_proj.weight=[tp,-]`.
struct Placement {
  /// A glob (`*`, `?`, `[a-z]`) that fits a whole name, or its end after a dot.
  std::string pattern;
  /// For each dimension of the shape that the framework knows, the axes that
  /// split it, major to minor.
  std::vector<std::vector<std::string>> dims;
  /// Left out with a warning where it does not fit, instead of refused. Written
  /// with `?=`.
  bool hint = false;

  bool fits(llvm::StringRef name) const;
  /// As it is written.
  std::string str() const;
};

/// What a person asks for: recipes, and placements beside them.
struct Plan {
  std::vector<RecipeCall> recipes;
  std::vector<Placement> placements;
};

/// `megatron-sp,*.bias=[-],wte.weight=[dp+tp,-]`: recipes and placements in any
/// order. In a placement `-` keeps a dimension whole, `+` joins axes.
llvm::Expected<Plan> parsePlan(llvm::StringRef text);

/// What passes that prepare for recipes know of them.
struct PlanOnMesh {
  /// Those of the module's mesh, where it has one.
  std::vector<MeshAxis> axes;
  Plan plan;
};
/// Reads the options of a pass on `module`, and reports what is wrong with them.
llvm::FailureOr<PlanOnMesh>
readPlan(mlir::ModuleOp module, llvm::StringRef mesh, llvm::StringRef recipes);

/// What a recipe splits while it is computed with; `Resting`: nothing.
enum class RecipeSplit : uint8_t { Samples, Features, Sequence, Resting };

/// An axis of a recipe, by the name that it has where none is given, and what
/// is split over it.
struct RecipeAxis {
  llvm::StringRef name;
  RecipeSplit split;
};

/// What devices that hold parts of it add up in an order of their own.
enum class SumsInParts { None, Norm, Gradients };

/// What a table of recipes says of one.
struct RecipeInfo {
  llvm::StringRef name;
  llvm::SmallVector<RecipeAxis, 3> axes;
  llvm::StringRef summary;
  /// Where it splits features, their sizes must divide.
  bool even = false;
  /// Its positions see keys in turn, so that causal ones share their work where
  /// each has an early and a late chunk of the sequence.
  bool inTurn = false;
  SumsInParts sums = SumsInParts::None;
};
llvm::ArrayRef<RecipeInfo> recipeTable();

/// What a recipe that `parseRecipes` knows splits over `axis`; `Resting` where
/// it is not bound to it.
RecipeSplit splitBy(const RecipeCall &call, llvm::StringRef axis);
/// Whether what it splits must divide.
bool splitsEvenly(const RecipeCall &call);
/// Whether its positions see keys in turn.
bool seesKeysInTurn(const RecipeCall &call);
/// What it adds up in parts: of gradients, their norm too.
SumsInParts sumsInParts(const RecipeCall &call);

} // namespace cleave::spmd

#endif // CLEAVE_DIALECT_SPMD_TRANSFORMS_RECIPES_H
