//===- AnnotateParameters.cpp - Settings of single parameters -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Pipelines/Compile.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace cleave;

LogicalResult cleave::annotateParameters(
    ModuleOp module,
    const std::map<std::string, ParameterOptions> &parameters) {
  llvm::DenseSet<StringRef> seen;
  Builder builder(module.getContext());
  for (auto function : module.getOps<func::FuncOp>()) {
    graph::EntryAttributes attributes(function);
    for (unsigned i = 0; i < function.getNumArguments(); ++i) {
      auto name = function.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
      if (!name)
        continue;
      auto it = parameters.find(name.str());
      if (it == parameters.end())
        continue;
      seen.insert(name.getValue());
      if (it->second.weightDecay)
        attributes.setArg(i, graph::kWeightDecayAttr,
                          builder.getF64FloatAttr(*it->second.weightDecay));
      if (it->second.lrScale)
        attributes.setArg(i, graph::kLrScaleAttr,
                          builder.getF64FloatAttr(*it->second.lrScale));
      NamedAttrList own;
      if (!it->second.rule.empty())
        own.set(graph::kRuleEntry, builder.getStringAttr(it->second.rule));
      for (const auto &[setting, value] : it->second.settings)
        own.set(setting, builder.getF64FloatAttr(value));
      if (!own.empty())
        attributes.setArg(i, graph::kOptimizerAttr,
                          own.getDictionary(module.getContext()));
    }
    attributes.write();
  }
  for (const auto &[name, settings] : parameters)
    if (!seen.contains(StringRef(name)))
      return emitError(module.getLoc()) << "options name the parameter '"
                                        << name << "', which no entry has";
  return success();
}
