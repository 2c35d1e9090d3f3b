//===- Plan.cpp - Recipes and placements as they are written --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/GlobPattern.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

template <typename... Args>
static llvm::Error makeError(const char *format, Args &&...args) {
  return llvm::createStringError(
      llvm::formatv(format, std::forward<Args>(args)...).str());
}

bool Placement::fits(StringRef name) const {
  auto glob = llvm::GlobPattern::create(pattern);
  if (!glob) {
    llvm::consumeError(glob.takeError());
    return false;
  }
  while (true) {
    if (!name.empty() && glob->match(name))
      return true;
    size_t dot = name.find('.');
    if (dot == StringRef::npos)
      return false;
    name = name.substr(dot + 1);
  }
}

std::string Placement::str() const {
  std::string text = pattern + (hint ? "?=[" : "=[");
  for (auto [i, axes] : llvm::enumerate(dims)) {
    text += i ? "," : "";
    text += axes.empty() ? "-" : llvm::join(axes, "+");
  }
  return text + "]";
}

/// Removes the first entry of a comma-separated list from `text` and returns
/// it. Commas inside of brackets belong to the entry.
static StringRef takeEntry(StringRef &text) {
  int depth = 0;
  size_t end = 0;
  for (; end < text.size() && (depth > 0 || text[end] != ','); ++end) {
    depth += text[end] == '[' || text[end] == '(';
    depth -= text[end] == ']' || text[end] == ')';
  }
  StringRef entry = text.take_front(end).trim();
  text = text.drop_front(std::min(end + 1, text.size()));
  return entry;
}

static llvm::Expected<Placement> parsePlacement(StringRef entry) {
  Placement placement;
  auto [pattern, list] = entry.rsplit('=');
  placement.hint = pattern.consume_back("?");
  placement.pattern = pattern.trim().str();
  list = list.trim();
  if (placement.pattern.empty() || !list.consume_front("[") ||
      !list.consume_back("]"))
    return makeError("a placement is written as 'layers.*.weight=[tp,-]', not "
                     "'{0}'",
                     entry);
  if (auto glob = llvm::GlobPattern::create(placement.pattern); !glob)
    return makeError("invalid name pattern '{0}': {1}", placement.pattern,
                     llvm::toString(glob.takeError()));
  if (list.trim().empty())
    return placement;
  for (StringRef dim : llvm::split(list, ',')) {
    std::vector<std::string> axes;
    if (dim.trim() != "-")
      for (StringRef axis : llvm::split(dim, '+')) {
        axis = axis.trim();
        if (axis.empty())
          return makeError("'{0}': each dimension is an axis, several joined "
                           "with '+', or '-'",
                           entry);
        for (const auto &before : placement.dims)
          if (llvm::is_contained(before, axis))
            return makeError("'{0}' splits two dimensions over axis \"{1}\"",
                             entry, axis);
        if (llvm::is_contained(axes, axis))
          return makeError("'{0}' names axis \"{1}\" twice", entry, axis);
        axes.push_back(axis.str());
      }
    placement.dims.push_back(std::move(axes));
  }
  return placement;
}

llvm::Expected<Plan> cleave::spmd::parsePlan(StringRef text) {
  Plan plan;
  std::string recipes;
  while (!(text = text.ltrim(" ,")).empty()) {
    StringRef entry = takeEntry(text);
    if (!entry.contains('=')) {
      recipes += (recipes.empty() ? "" : ",") + entry.str();
      continue;
    }
    auto placement = parsePlacement(entry);
    if (!placement)
      return placement.takeError();
    plan.placements.push_back(std::move(*placement));
  }
  auto calls = parseRecipes(recipes);
  if (!calls)
    return calls.takeError();
  plan.recipes = std::move(*calls);
  return plan;
}

FailureOr<PlanOnMesh> cleave::spmd::readPlan(ModuleOp module, StringRef mesh,
                                             StringRef recipes) {
  auto axes = parseMesh(mesh);
  auto plan = parsePlan(recipes);
  if (!axes || !plan) {
    llvm::Error error =
        llvm::joinErrors(axes ? llvm::Error::success() : axes.takeError(),
                         plan ? llvm::Error::success() : plan.takeError());
    return module.emitError(llvm::toString(std::move(error)));
  }
  if (MeshOp known = findMesh(module)) {
    if (!axes->empty())
      return known.emitOpError("exists already: leave the option 'mesh' out");
    llvm::append_range(*axes, known.getMesh().axes);
  }
  return PlanOnMesh{std::move(*axes), std::move(*plan)};
}
