//===- LayoutOptions.cpp - Options of meshes and plans --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Pipelines/PlanFile.h"

using namespace cleave;
using llvm::StringRef;

/// The error of a parser, or "".
template <typename T> static std::string problemOf(llvm::Expected<T> parsed) {
  return parsed ? std::string() : llvm::toString(parsed.takeError());
}

/// The recipes are bound to axes that the mesh has.
static std::string bindingProblem(const CompileOptions &options) {
  // What is wrong with either by itself was said where it was given.
  auto axes = spmd::parseMesh(options.phases.mesh);
  auto plan = spmd::parsePlan(options.phases.recipes);
  if (!axes || !plan) {
    if (!axes)
      llvm::consumeError(axes.takeError());
    if (!plan)
      llvm::consumeError(plan.takeError());
    return "";
  }
  for (const spmd::RecipeCall &call : plan->recipes)
    for (const std::string &bound : call.axes)
      if (llvm::none_of(*axes, [&](const spmd::MeshAxis &axis) {
            return axis.name == bound;
          }))
        return ": '" + call.name + "' is bound to axis \"" + bound +
               "\", which {mesh} does not have";
  return "";
}

void cleave::declareLayout(OptionTable &table) {
  table.integer("micro-batches", &PhaseOptions::microBatches)
      .least(1)
      .drawn({"2", "4", "0", "-3"})
      .says("Equal parts in which the batch is computed, one after another")
      .refused([](const CompileOptions &options) -> std::string {
        return options.phases.grains
                   ? " is replaced by the grains of {deterministic}: leave it "
                     "out"
                   : "";
      });
  table.text("mesh", &PhaseOptions::mesh)
      .form("axes")
      .drawn({"dp=2", "tp=2", "dp=2,tp=2", "pp=2", "pp=2,dp=2", "dp=0", "x"})
      .says("The devices as named axes, major to minor: dp=2,tp=4. Positions "
            "of an axis pp are stages of a pipeline")
      .valid([](StringRef text) { return problemOf(spmd::parseMesh(text)); });
  table.text("plan", &PhaseOptions::recipes)
      .formerly("recipe")
      .form("recipes")
      .drawn({"megatron", "zero1", "megatron,zero1", "zero3", "zero9",
              "megatron(", "auto"})
      .says(
          "What is sharded over them, such as megatron-sp,zero1; a recipe is "
          "bound to its own axis, or to another: zero3(fsdp). An axis \"dp\" "
          "shards the samples. --plan=help lists all. The name of a file that "
          "ends with .plan stands for the mesh and the plan in it")
      .valid([](StringRef text) -> std::string {
        if (text == "auto")
          return "auto needs a planner that chooses a mesh and recipes, which "
                 "is to come; name recipes, or a plan file";
        return isPlanFile(text) ? "" : problemOf(spmd::parsePlan(text));
      })
      .refused(bindingProblem);
}
