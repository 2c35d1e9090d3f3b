//===- PrecisionPatterns.cpp - Precisions of ops by their names -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "PrecisionPatterns.h"
#include "cleave/Dialect/Graph/IR/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Support/OpenText.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/MemoryBuffer.h"
#include <set>

using namespace mlir;
using namespace cleave;

llvm::Expected<PrecisionPatterns::Entry>
PrecisionPatterns::parse(StringRef text, const std::string &place) {
  auto [pattern, precision] = text.rsplit('=');
  pattern = pattern.trim();
  precision = precision.trim();
  if (pattern.empty() || !text.contains('='))
    return llvm::createStringError(place +
                                   ": expected pattern=f32 or "
                                   "pattern=16bit, not '" +
                                   text + "'");
  if (precision != "f32" && precision != "16bit")
    return llvm::createStringError(place + ": unknown precision '" + precision +
                                   "' of '" + pattern +
                                   "'; there are f32 and 16bit");
  auto glob = llvm::GlobPattern::create(pattern);
  if (!glob)
    return llvm::createStringError(place + ": '" + pattern +
                                   "': " + llvm::toString(glob.takeError()));
  return Entry{std::move(*glob), pattern.str(), precision.str(), place};
}

llvm::Expected<PrecisionPatterns> PrecisionPatterns::read(StringRef text) {
  std::unique_ptr<llvm::MemoryBuffer> file;
  std::string name = "entry ";
  if (!text.contains('=')) {
    std::string error;
    file = openText(text, &error);
    if (!file)
      return llvm::createStringError(
          "'" + text +
          "' is neither entries, as softmax=f32, nor a file with "
          "them: " +
          error);
    name = (text + ":").str();
    text = file->getBuffer();
  }
  PrecisionPatterns policy;
  SmallVector<StringRef> lines;
  text.split(lines, '\n');
  for (auto [index, line] : llvm::enumerate(lines)) {
    SmallVector<StringRef> terms;
    line.split('#').first.split(terms, ',');
    for (auto [column, term] : llvm::enumerate(terms)) {
      if (term.trim().empty())
        continue;
      auto entry = parse(term.trim(),
                         name + std::to_string((file ? index : column) + 1));
      if (!entry)
        return entry.takeError();
      policy.entries.push_back(std::move(*entry));
    }
  }
  if (policy.entries.empty())
    return llvm::createStringError("there is no entry in it");
  return policy;
}

/// Adds the places in the source that `location` has: of each, the path from
/// any folder on.
static void addPlaces(Location location, std::set<std::string> &names) {
  location->walk([&](Location part) {
    if (auto place = dyn_cast<FileLineColLoc>(part)) {
      std::string line = ":" + std::to_string(place.getLine());
      for (StringRef path = place.getFilename(); !path.empty();
           path = path.split('/').second) {
        names.insert(path.str() + line);
        names.insert(path.str());
      }
    }
    return WalkResult::advance();
  });
}

llvm::Error PrecisionPatterns::apply(ModuleOp module) const {
  std::vector<bool> matched(entries.size());
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function.isExternal())
      continue;
    // Parameters, and what is computed from nothing but them.
    llvm::DenseMap<Value, std::set<std::string>> parameters;
    for (BlockArgument argument : function.getArguments()) {
      unsigned i = argument.getArgNumber();
      auto role = function.getArgAttrOfType<StringAttr>(i, graph::kRoleAttr);
      auto name = function.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
      if (role && role.getValue() == "parameter" && name)
        parameters[argument].insert(name.str());
    }
    for (Operation &op : function.getBody().front().without_terminator()) {
      std::set<std::string> read;
      bool onlyParameters = op.getNumOperands() > 0;
      for (Value operand : op.getOperands()) {
        auto found = parameters.find(operand);
        onlyParameters &= found != parameters.end();
        if (found != parameters.end())
          read.insert(found->second.begin(), found->second.end());
      }
      std::set<std::string> names{op.getName().getStringRef().str(),
                                  op.getName().stripDialect().str()};
      addPlaces(op.getLoc(), names);
      for (StringRef name : read)
        for (; !name.empty();
             name = name.contains('.') ? name.rsplit('.').first : StringRef())
          names.insert(name.str());
      if (onlyParameters)
        for (Value result : op.getResults())
          parameters[result] = read;
      for (auto [i, entry] : llvm::enumerate(entries))
        if (llvm::any_of(names, [&](const std::string &name) {
              return entry.glob.match(name);
            })) {
          matched[i] = true;
          op.setAttr(graph::kPrecisionAttr,
                     StringAttr::get(op.getContext(), entry.precision));
        }
    }
  }
  for (auto [entry, any] : llvm::zip(entries, matched))
    if (!any)
      return llvm::createStringError(
          entry.place + ": '" + entry.pattern +
          "' matches no op, no parameter that an op reads, no module of one, "
          "and no place in the source");
  return llvm::Error::success();
}
