//===- Recipes.cpp - The table of recipes, and their pass -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DecomposeGlobalNorm.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Dialect/Spmd/Transforms/Passes.h"
#include "cleave/Support/PassCounts.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Debug.h"

#define DEBUG_TYPE "spmd-apply-recipes"

static cleave::PassCount shardedArguments(DEBUG_TYPE,
                                          "Arguments that have a sharding");
static cleave::PassCount
    constrainedValues(DEBUG_TYPE, "Shardings of other values (spmd.constrain)");

namespace cleave::spmd {
#define GEN_PASS_DEF_APPLYRECIPES
#include "cleave/Dialect/Spmd/Transforms/Passes.h.inc"
} // namespace cleave::spmd

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
/// The axes that a recipe is bound to, in the order of its table.
using RecipeAxes = ArrayRef<std::string>;

struct Recipe {
  RecipeInfo info;
  LogicalResult (*apply)(Annotator &, RecipeAxes);
  /// Recipes are applied in this order, however they are asked for: what splits
  /// parameters for good comes before what lets the rest lie in parts, and an
  /// axis that splits the sequence inside of attention before one that does
  /// outside alone.
  int rank;
  /// What becomes of keys and values in an attention, where it says so.
  StringRef keys = "";
  /// It splits the features of every product: no other recipe does.
  bool allFeatures = false;
  /// What is applied instead to a folded call, before all other recipes.
  LogicalResult (*applyFolded)(Annotator &, RecipeAxes) = nullptr;
};

/// A recipe of one axis.
template <LogicalResult (*Apply)(Annotator &, StringRef)>
LogicalResult one(Annotator &annotator, RecipeAxes axes) {
  return Apply(annotator, axes.front());
}
} // namespace

static constexpr auto kSamples = RecipeSplit::Samples;
static constexpr auto kFeatures = RecipeSplit::Features;
static constexpr auto kSequence = RecipeSplit::Sequence;
static constexpr auto kResting = RecipeSplit::Resting;

static const Recipe recipes[] = {
    {{"context",
      {{"cp", kSequence}},
      "the sequence; keys and values are gathered"},
     one<applyContext>,
     1,
     "gathers keys and values"},
    {{"dp", {{"dp", kSamples}}, "the samples (implied by an axis \"dp\")"},
     one<applyDp>,
     3},
    {{"expert",
      {{"ep", kSamples}},
      "the samples, and the experts of mixtures of experts or stacked tables",
      /*even=*/false,
      /*inTurn=*/false,
      /*sumsInParts=*/false,
      /*folds=*/true,
      /*shardsParameters=*/false,
      /*sendsRows=*/true},
     one<applyExpert>,
     4,
     /*keys=*/"",
     /*allFeatures=*/false,
     one<applyFoldedExpert>},
    {{"megatron",
      {{"tp", kFeatures}},
      "heads, inner features of MLPs and the vocabulary"},
     one<applyMegatron>,
     0},
    {{"megatron-sp", {{"tp", kFeatures}}, "megatron, and the sequence between"},
     one<applyMegatronSequence>,
     0},
    {{"ring",
      {{"cp", kSequence}},
      "the sequence; keys and values travel around a ring",
      /*even=*/false,
      /*inTurn=*/true},
     one<applyRing>,
     1,
     "lets keys and values travel and never gathers them"},
    {{"summa25d",
      {{"depth", kSamples}, {"row", kSamples}, {"col", kFeatures}},
      "summa2d, and the samples over a third axis",
      /*even=*/true},
     applySumma,
     0,
     "",
     /*allFeatures=*/true},
    {{"summa2d",
      {{"row", kSamples}, {"col", kFeatures}},
      "samples by features; weights by both: products go in steps",
      /*even=*/true},
     applySumma,
     0,
     "",
     /*allFeatures=*/true},
    {{"two-ring",
      {{"cp", kSequence}},
      "the sequence; keys travel a ring, and values another"},
     one<applyTwoRings>,
     1,
     "makes whole rows of scores"},
    {{"ulysses",
      {{"cp", kSequence}},
      "the sequence, and the heads inside of attention"},
     one<applyUlysses>,
     2},
    {{"zero1", {{"dp", kResting}}, "the optimizer's state"},
     one<applyZero1>,
     5},
    {{"zero2",
      {{"dp", kResting}},
      "zero1, and gradients",
      /*even=*/false,
      /*inTurn=*/false,
      /*sumsInParts=*/true},
     one<applyZero2>,
     5},
    {{"zero3",
      {{"dp", kResting}},
      "zero2, and parameters",
      /*even=*/false,
      /*inTurn=*/false,
      /*sumsInParts=*/true,
      /*folds=*/false,
      /*shardsParameters=*/true},
     one<applyZero3>,
     5},
};

ArrayRef<RecipeInfo> cleave::spmd::recipeTable() {
  static const SmallVector<RecipeInfo> table = [] {
    SmallVector<RecipeInfo> result;
    for (const Recipe &recipe : recipes)
      result.push_back(recipe.info);
    return result;
  }();
  return table;
}

std::string
cleave::spmd::recipesThat(llvm::function_ref<bool(const RecipeInfo &)> have) {
  std::string names;
  for (const Recipe &recipe : recipes)
    if (have(recipe.info))
      names += (names.empty() ? "" : ", ") + recipe.info.name.str();
  return names;
}

bool cleave::spmd::keepsGradientsWhole(const RecipeInfo &recipe) {
  return recipe.axes.front().split == RecipeSplit::Resting &&
         !recipe.sumsInParts;
}

static const Recipe *findRecipe(StringRef name) {
  const Recipe *found = llvm::find_if(
      recipes, [&](const Recipe &recipe) { return recipe.info.name == name; });
  return found == std::end(recipes) ? nullptr : found;
}

RecipeSplit cleave::spmd::splitBy(const RecipeCall &call, StringRef axis) {
  if (call.folded)
    return RecipeSplit::Resting;
  if (const Recipe *recipe = findRecipe(call.name))
    for (auto [own, name] : llvm::zip(recipe->info.axes, call.axes))
      if (name == axis)
        return own.split;
  return RecipeSplit::Resting;
}

RecipeSplit cleave::spmd::splitBy(ArrayRef<RecipeCall> recipes,
                                  StringRef axis) {
  RecipeSplit split =
      axis == kSamplesAxis ? RecipeSplit::Samples : RecipeSplit::Resting;
  for (const RecipeCall &call : recipes)
    if (RecipeSplit own = splitBy(call, axis); own != RecipeSplit::Resting)
      split = own;
  return split;
}

bool cleave::spmd::shardsAtRest(const RecipeCall &call) {
  const Recipe *recipe = findRecipe(call.name);
  return recipe && recipe->info.axes.front().split == RecipeSplit::Resting;
}

bool cleave::spmd::shardsParametersAtRest(const RecipeCall &call) {
  const Recipe *recipe = findRecipe(call.name);
  return recipe && recipe->info.shardsParameters;
}

bool cleave::spmd::splitsEvenly(const RecipeCall &call) {
  const Recipe *recipe = findRecipe(call.name);
  return recipe && recipe->info.even;
}

bool cleave::spmd::seesKeysInTurn(const RecipeCall &call) {
  const Recipe *recipe = findRecipe(call.name);
  return recipe && recipe->info.inTurn;
}

bool cleave::spmd::sumsInParts(const RecipeCall &call) {
  const Recipe *recipe = findRecipe(call.name);
  return recipe && recipe->info.sumsInParts;
}

static bool splitsFeatures(const Recipe *recipe) {
  return llvm::any_of(recipe->info.axes, [](const RecipeAxis &axis) {
    return axis.split == RecipeSplit::Features;
  });
}

/// What is computed with lies in parts of one kind along an axis.
static bool contradict(RecipeSplit a, RecipeSplit b) {
  return a != b && a != RecipeSplit::Resting && b != RecipeSplit::Resting;
}

/// Whether `recipe` can have the axis over which `other` shards `split`.
static bool foldsOver(const Recipe &recipe, const Recipe &other,
                      RecipeSplit split) {
  return recipe.info.folds && !other.allFeatures &&
         (split == kFeatures || split == kSequence);
}

static StringRef describe(RecipeSplit split) {
  switch (split) {
  case RecipeSplit::Samples:
    return "samples";
  case RecipeSplit::Features:
    return "features";
  case RecipeSplit::Sequence:
    return "the sequence";
  case RecipeSplit::Resting:
    return "nothing";
  }
  return "";
}

template <typename... Args>
static llvm::Error makeError(const char *format, Args &&...args) {
  return llvm::createStringError(
      llvm::formatv(format, std::forward<Args>(args)...).str());
}

static bool isIdentifier(StringRef text) {
  return !text.empty() && !llvm::isDigit(text.front()) &&
         llvm::all_of(text,
                      [](char c) { return llvm::isAlnum(c) || c == '_'; });
}

llvm::Expected<std::vector<MeshAxis>> cleave::spmd::parseMesh(StringRef text) {
  std::vector<MeshAxis> axes;
  if (text.trim().empty())
    return axes;
  for (StringRef entry : llvm::split(text, ',')) {
    auto [name, number] = entry.split('=');
    name = name.trim();
    int64_t size;
    if (!isIdentifier(name) || number.trim().getAsInteger(10, size) || size < 1)
      return makeError("a mesh is written as \"dp=2,tp=4\": '{0}' is not an "
                       "axis with a positive size",
                       entry.trim());
    if (name == "mb")
      return makeError("\"mb\" is the axis of micro-batches: name another");
    if (llvm::any_of(axes,
                     [&](const MeshAxis &axis) { return axis.name == name; }))
      return makeError("the mesh names axis \"{0}\" twice", name);
    axes.push_back({name.str(), size, false});
  }
  return axes;
}

/// Gives `call` its axes, and holds them against those of the calls before.
static llvm::Error bindAxes(RecipeCall &call, const Recipe &recipe,
                            ArrayRef<RecipeCall> calls) {
  std::string form;
  for (const RecipeAxis &axis : recipe.info.axes)
    form += (form.empty() ? "" : ",") + axis.name.str();
  if (call.axes.empty())
    for (const RecipeAxis &axis : recipe.info.axes)
      call.axes.push_back(axis.name.str());
  bool known = call.axes.size() == recipe.info.axes.size() &&
               llvm::all_of(call.axes, isIdentifier);
  for (size_t i = 0; known && i < call.axes.size(); ++i)
    known = llvm::count(call.axes, call.axes[i]) == 1;
  if (!known)
    return makeError(
        "recipe '{0}' is bound to {1}: {0}({2})", call.name,
        recipe.info.axes.size() == 1 ? "one axis" : "different axes", form);
  for (const std::string &axis : call.axes) {
    RecipeSplit split = splitBy(call, axis);
    if (axis == kPipelineAxis)
      return makeError("recipe '{0}' is bound to axis \"{1}\", whose positions "
                       "are stages of a pipeline: bind it to another axis",
                       call.name, axis);
    // Samples are split over this axis, asked for or not.
    if (axis == kSamplesAxis && contradict(RecipeSplit::Samples, split))
      return makeError("recipe '{0}' splits {1} over axis \"dp\", which splits "
                       "the samples: an axis has one of them; bind the recipe "
                       "to another axis",
                       call.name, describe(split));
    for (const RecipeCall &other : calls) {
      if (!llvm::is_contained(other.axes, axis))
        continue;
      RecipeSplit before = splitBy(other, axis);
      const Recipe &otherRecipe = *findRecipe(other.name);
      if (foldsOver(recipe, otherRecipe, before) ||
          foldsOver(otherRecipe, recipe, split))
        continue;
      if (before == split)
        return makeError("recipes '{0}' and '{1}' both split the same things "
                         "over axis \"{2}\": name one of them",
                         other.name, call.name, axis);
      if (contradict(before, split))
        return makeError("recipes '{0}' and '{1}' split {3} and {4} over axis "
                         "\"{2}\": an axis has one of them; bind one recipe to "
                         "another axis",
                         other.name, call.name, axis, describe(before),
                         describe(split));
    }
  }
  return llvm::Error::success();
}

llvm::Expected<std::vector<RecipeCall>>
cleave::spmd::parseRecipes(StringRef text) {
  std::vector<RecipeCall> calls;
  while (!(text = text.ltrim(" ,")).empty()) {
    size_t end = text.find_first_of("(,");
    RecipeCall call{text.take_front(end).rtrim().str(), {}};
    text = text.substr(end == StringRef::npos ? text.size() : end);
    if (text.consume_front("(")) {
      size_t close = text.find(')');
      if (close == StringRef::npos)
        return makeError("recipe '{0}': expected ')'", call.name);
      for (StringRef axis : llvm::split(text.take_front(close), ','))
        call.axes.push_back(axis.trim().str());
      text = text.drop_front(close + 1).ltrim();
      if (!text.empty() && text.front() != ',')
        return makeError("recipe '{0}': expected ',' before '{1}'", call.name,
                         text);
    }
    const Recipe *recipe = findRecipe(call.name);
    if (!recipe) {
      std::string known;
      for (const RecipeInfo &info : recipeTable())
        known += (known.empty() ? "" : ", ") + info.name.str();
      return makeError("there is no recipe '{0}'; there are {1}", call.name,
                       known);
    }
    if (llvm::Error error = bindAxes(call, *recipe, calls))
      return std::move(error);
    for (const RecipeCall &other : calls)
      if (StringRef keys = findRecipe(other.name)->keys;
          !keys.empty() && !recipe->keys.empty() && keys != recipe->keys)
        return makeError("recipe '{0}' {1}, and '{2}' {3}: name one of them",
                         other.name, keys, call.name, recipe->keys);
      else if (splitsFeatures(findRecipe(other.name)) &&
               splitsFeatures(recipe) &&
               (findRecipe(other.name)->allFeatures || recipe->allFeatures))
        return makeError(
            "recipes '{0}' and '{1}' both split the features: '{2}' "
            "those of every product, and what lies in blocks of two "
            "kinds cannot be multiplied; name one of them",
            other.name, call.name,
            recipe->allFeatures ? call.name : other.name);
    calls.push_back(std::move(call));
  }
  // Marked last: a call is held against all others first.
  std::vector<size_t> folded;
  for (auto [i, call] : llvm::enumerate(calls))
    for (const RecipeCall &other : calls)
      if (llvm::is_contained(other.axes, call.axes.front()) &&
          foldsOver(*findRecipe(call.name), *findRecipe(other.name),
                    splitBy(other, call.axes.front())))
        folded.push_back(i);
  for (size_t i : folded)
    calls[i].folded = true;
  return calls;
}

namespace {
struct ApplyRecipesPass : spmd::impl::ApplyRecipesBase<ApplyRecipesPass> {
  using ApplyRecipesBase::ApplyRecipesBase;

  LogicalResult apply() {
    auto read = readPlan(getOperation(), mesh, recipes);
    if (failed(read))
      return failure();
    Plan &plan = read->plan;
    std::vector<RecipeCall> &calls = plan.recipes;
    MeshOp meshOp = findMesh(getOperation());
    if (!meshOp && !read->axes.empty())
      meshOp = createMesh(read->axes);
    if (!meshOp) {
      if (calls.empty() && plan.placements.empty()) {
        if (grains > 0)
          GlobalNormDecomposition(getOperation(), grains).finish(nullptr);
        return success();
      }
      return getOperation().emitError("a recipe needs a mesh");
    }
    Mesh known = meshOp.getMesh();
    bool data = llvm::any_of(calls, [](const RecipeCall &call) {
      return call.name == "dp" && call.axes.front() == "dp";
    });
    if (!data && known.find(kSamplesAxis))
      calls.push_back({"dp", {"dp"}});
    llvm::stable_sort(calls, [](const RecipeCall &a, const RecipeCall &b) {
      auto rank = [](const RecipeCall &call) {
        return call.folded ? -1 : findRecipe(call.name)->rank;
      };
      return rank(a) < rank(b);
    });
    if (failed(verifyParameters()))
      return failure();
    roundFilledPlaces(getOperation());
    GlobalNormDecomposition norms(getOperation(), grains);
    Annotator annotator(getOperation(), meshOp, grains);
    if (failed(applyPlacements(annotator, plan.placements)))
      return failure();
    // Tokens are sharded by then, and experts not over ranks with other tokens.
    bool gathered = false, kept = false;
    auto gather = [&] {
      if (std::exchange(gathered, true))
        return;
      annotator.beginRecipe();
      gatherTokens(annotator);
      if (llvm::none_of(calls, [](const RecipeCall &call) {
            return findRecipe(call.name)->info.sendsRows;
          })) {
        annotator.beginRecipe();
        roundPlaces(annotator);
      }
    };
    auto keepSums = [&] {
      gather();
      annotator.beginRecipe();
      keepPartialSums(annotator);
    };
    for (const RecipeCall &call : calls) {
      for (const std::string &axis : call.axes) {
        if (known.find(axis))
          continue;
        std::string names;
        for (const MeshAxis &axis : known.axes)
          names += (names.empty() ? "\"" : ", \"") + axis.name + "\"";
        return getOperation().emitError("recipe '")
               << call.name << "' is bound to axis \"" << axis
               << "\", which the mesh does not have: it has " << names;
      }
      // Weights that are sharded at rest are read through annotations.
      if (shardsAtRest(call) && !std::exchange(kept, true))
        keepSums();
      const Recipe &recipe = *findRecipe(call.name);
      if (recipe.info.sendsRows && !call.folded)
        gather();
      annotator.beginRecipe();
      auto apply = call.folded ? recipe.applyFolded : recipe.apply;
      if (failed(apply(annotator, call.axes)))
        return failure();
    }
    if (!kept)
      keepSums();
    splitOrderedSamples(annotator);
    norms.finish(&annotator);
    eraseUnread(annotator);
    return success();
  }

  /// Erases casts of which annotations have taken all readers: a stage of a
  /// pipeline would be said to read their operands.
  static void eraseUnread(Annotator &annotator) {
    for (func::FuncOp function : annotator.entries())
      for (Operation &op : llvm::make_early_inc_range(
               llvm::reverse(function.getBody().front())))
        if (isa<graph::CastOp>(op) && op.use_empty())
          op.erase();
  }

  /// Shards samples in another order than that of the arguments as these are.
  static void splitOrderedSamples(Annotator &annotator) {
    AxisList axes = annotator.sampleAxes();
    for (func::FuncOp function : annotator.entries())
      for (Operation &op :
           llvm::make_early_inc_range(function.getBody().front()))
        if (auto dim = op.getAttrOfType<IntegerAttr>(kSamplesAttr)) {
          op.removeAttr(kSamplesAttr);
          for (const AxisRef &axis : axes)
            if (axis.isWhole())
              annotator.splitValue(op.getResult(0), dim.getInt(), axis.name);
        }
  }

  /// What is a parameter of one entry is that of all entries that name it: a
  /// recipe places it once for all of them.
  LogicalResult verifyParameters() {
    llvm::StringMap<BlockArgument> parameters;
    auto visit = [&](llvm::function_ref<LogicalResult(BlockArgument, bool)> f) {
      for (auto function : getOperation().getOps<func::FuncOp>())
        if (!function.isExternal())
          for (BlockArgument argument : function.getArguments())
            if (failed(f(argument,
                         graph::hasRole(function, argument.getArgNumber(),
                                        "parameter"))))
              return failure();
      return success();
    };
    auto nameOf = [](BlockArgument argument) {
      return graph::getArgString(
          cast<func::FuncOp>(argument.getOwner()->getParentOp()),
          argument.getArgNumber(), graph::kNameAttr);
    };
    (void)visit([&](BlockArgument argument, bool isParameter) {
      if (isParameter && !nameOf(argument).empty())
        parameters.try_emplace(nameOf(argument), argument);
      return success();
    });
    return visit([&](BlockArgument argument,
                     bool isParameter) -> LogicalResult {
      auto known = parameters.find(nameOf(argument));
      if (known == parameters.end())
        return success();
      BlockArgument first = known->second;
      if (isParameter && argument.getType() == first.getType())
        return success();
      auto entryOf = [](BlockArgument own) {
        return cast<func::FuncOp>(own.getOwner()->getParentOp()).getName();
      };
      InFlightDiagnostic error = mlir::emitError(argument.getLoc());
      error << "'" << known->first() << "' is a parameter " << first.getType()
            << " of @" << entryOf(first) << " and ";
      if (isParameter)
        error << argument.getType();
      else
        error << "no parameter";
      return error << " of @" << entryOf(argument)
                   << ": give it one role and one type, or names of its own";
    });
  }

  MeshOp createMesh(ArrayRef<MeshAxis> axes) {
    ModuleOp module = getOperation();
    OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
    SmallVector<Attribute> names;
    SmallVector<int64_t> sizes;
    for (const MeshAxis &axis : axes) {
      names.push_back(builder.getStringAttr(axis.name));
      sizes.push_back(axis.size);
    }
    return MeshOp::create(builder, module.getLoc(), "mesh",
                          builder.getArrayAttr(names),
                          builder.getDenseI64ArrayAttr(sizes), ArrayAttr());
  }

  void runOnOperation() override {
    if (failed(apply()))
      return signalPassFailure();
    for (auto function : getOperation().getOps<func::FuncOp>())
      count(function);
  }

  void count(func::FuncOp function) {
    for (unsigned i = 0; i < function.getNumArguments(); ++i) {
      auto sharding = function.getArgAttrOfType<ShardingAttr>(i, kShardingAttr);
      if (!sharding)
        continue;
      ++shardedArguments;
      LLVM_DEBUG(llvm::dbgs() << "@" << function.getSymName() << ": "
                              << graph::nameArgument(function, i) << " is "
                              << sharding.getSharding().str() << "\n");
    }
    function.walk([&](ConstrainOp) { ++constrainedValues; });
  }
};
} // namespace
