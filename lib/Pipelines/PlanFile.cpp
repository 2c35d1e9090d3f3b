//===- PlanFile.cpp - Plans in files --------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/PlanFile.h"
#include "cleave/Pipelines/Options.h"
#include "cleave/Support/OpenText.h"
#include "llvm/Support/FormatVariadic.h"

using namespace cleave;
using llvm::StringRef;

/// The options that a plan file has.
static constexpr StringRef kParts[] = {"mesh", "plan"};

bool cleave::isPlanFile(StringRef plan) { return plan.ends_with(".plan"); }

/// The values of a file by the names of options.
static llvm::Expected<llvm::json::Object> readParts(const std::string &path) {
  std::string error;
  auto buffer = openText(path, &error);
  if (!buffer)
    return llvm::createStringError(error);
  auto value = llvm::json::parse(buffer->getBuffer());
  if (!value)
    return llvm::createStringError(
        path + " is not a plan: " + llvm::toString(value.takeError()));
  llvm::json::Object *object = value->getAsObject();
  if (!object)
    return llvm::createStringError(
        path + " is not a plan: it is not an object with a mesh and a plan");
  for (const auto &[key, part] : *object) {
    if (!llvm::is_contained(kParts, StringRef(key)))
      return llvm::createStringError(path +
                                     ": a plan file has a mesh and a "
                                     "plan, and no '" +
                                     key.str() + "'");
    if (isPlanFile(part.getAsString().value_or("")))
      return llvm::createStringError(path + ": a plan file names no other");
  }
  return std::move(*object);
}

llvm::Error cleave::readPlanFile(CompileOptions &options) {
  std::string path = options.phases.recipes;
  if (!isPlanFile(path))
    return llvm::Error::success();
  auto parts = readParts(path);
  if (!parts)
    return parts.takeError();
  CompileOptions read;
  for (StringRef name : kParts)
    if (const llvm::json::Value *given = parts->get(name))
      if (auto mistake = findOption(name)->set(read, *given))
        return llvm::createStringError(path + ": " +
                                       mistake->str(Entrance::Python));
  const std::string &mesh = options.phases.mesh;
  if (!mesh.empty() && mesh != read.phases.mesh)
    return llvm::createStringError(path + " has the mesh '" + read.phases.mesh +
                                   "', and '" + mesh +
                                   "' is given: leave one of them out");
  options.phases.mesh = read.phases.mesh;
  options.phases.recipes = read.phases.recipes;
  if (!mesh.empty())
    options.given.insert("mesh");
  return llvm::Error::success();
}

std::string cleave::writePlan(const CompileOptions &options) {
  llvm::json::Object parts;
  for (StringRef name : kParts)
    parts[name] = std::get<std::string>(findOption(name)->get(options));
  return llvm::formatv("{0:2}\n", llvm::json::Value(std::move(parts))).str();
}
