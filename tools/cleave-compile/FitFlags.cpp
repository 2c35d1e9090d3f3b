//===- FitFlags.cpp - Flags of questions and measurements -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Flags.h"
#include "cleave/Dialect/Spmd/Transforms/Recipes.h"
#include "cleave/Planning/Fit.h"

using namespace cleave;

std::string cleave::checkFitFlags(const Flags &flags,
                                  const CompileOptions &options) {
  if (!flags.measureMachine.empty() &&
      (!flags.output.empty() || !flags.emit.empty() || !flags.explain.empty() ||
       !flags.reportFile.empty() || !flags.fit.empty() || flags.planOnly))
    return "--measure-machine writes rates alone: it excludes -o, --emit, "
           "--report, --explain, --plan-only and --fit";
  if (flags.fit.empty())
    return flags.fit.getNumOccurrences()
               ? "--fit is micro-batch, devices or devices:<axis>"
               : "";
  auto question = parseFitQuestion(flags.fit);
  if (!question)
    return "--fit is micro-batch, devices or devices:<axis>, not '" +
           flags.fit + "'";
  if (options.memoryLimit <= 0)
    return "--fit needs --memory-limit: what has to fit, as 80GB or "
           "24GiB";
  if (!flags.output.empty() || !flags.emit.empty() || !flags.explain.empty())
    return "--fit plans and generates no code: it excludes -o, --emit and "
           "--explain";
  if (!options.dumpPhases.empty())
    return "--fit tries many plans: it excludes --dump-phases";
  if (question->kind == FitQuestion::Kind::MicroBatch)
    for (const char *name : {"micro-batches", "deterministic"})
      if (flags.options.given(name))
        return "--fit=micro-batch finds the number of micro-batches: leave "
               "out --" +
               std::string(name);
  if (question->kind == FitQuestion::Kind::Devices &&
      options.phases.mesh.empty())
    return "--fit=devices begins at --mesh, such as --mesh dp=1";
  auto axes = spmd::parseMesh(options.phases.mesh);
  if (!axes)
    return "--mesh: " + llvm::toString(axes.takeError());
  if (!question->axis.empty() &&
      llvm::none_of(*axes, [&](const spmd::MeshAxis &axis) {
        return axis.name == question->axis;
      }))
    return "--fit: --mesh has no axis \"" + question->axis + "\"";
  return "";
}
