//===- PrecisionPatterns.cpp - Precisions of ops by their names -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Transforms/PrecisionPatterns.h"
#include "cleave/Dialect/Graph/IR/Attributes/ChosenPrecision.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Support/OpenText.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/MemoryBuffer.h"
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

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
  return makeEntry(pattern, precision, place);
}

llvm::Expected<PrecisionPatterns::Entry>
PrecisionPatterns::makeEntry(StringRef pattern, StringRef precision,
                             const std::string &place) {
  if (precision != "f32" && precision != "16bit")
    return llvm::createStringError(place + ": unknown precision '" + precision +
                                   "' of '" + pattern +
                                   "'; there are f32 and 16bit");
  auto own = std::make_shared<const std::string>(pattern);
  auto glob = llvm::GlobPattern::create(*own);
  if (!glob)
    return llvm::createStringError(place + ": '" + pattern +
                                   "': " + llvm::toString(glob.takeError()));
  return Entry{std::move(own), std::move(*glob), precision.str(), place};
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

llvm::Expected<PrecisionPatterns>
PrecisionPatterns::of(ArrayRef<std::pair<std::string, std::string>> pairs) {
  PrecisionPatterns policy;
  for (auto [i, pair] : llvm::enumerate(pairs)) {
    auto entry =
        makeEntry(pair.first, pair.second, "entry " + std::to_string(i + 1));
    if (!entry)
      return entry.takeError();
    policy.entries.push_back(std::move(*entry));
  }
  return policy;
}

std::string PrecisionPatterns::match(const std::vector<std::string> &names) {
  std::string precision;
  for (Entry &entry : entries)
    if (llvm::any_of(names, [&](const std::string &name) {
          return entry.glob.match(name);
        })) {
      entry.matched = true;
      precision = entry.precision;
    }
  return precision;
}

std::vector<std::string> PrecisionPatterns::unmatched() const {
  std::vector<std::string> patterns;
  for (const Entry &entry : entries)
    if (!entry.matched)
      patterns.push_back(*entry.pattern);
  return patterns;
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

llvm::Error PrecisionPatterns::apply(ModuleOp module) {
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function.isExternal())
      continue;
    // Parameters, and what is computed from nothing but them.
    llvm::DenseMap<Value, std::set<std::string>> parameters;
    for (BlockArgument argument : function.getArguments()) {
      unsigned i = argument.getArgNumber();
      auto role = function.getArgAttrOfType<StringAttr>(i, kRoleAttr);
      auto name = function.getArgAttrOfType<StringAttr>(i, kNameAttr);
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
      std::string precision = match({names.begin(), names.end()});
      if (!precision.empty())
        op.setAttr(kPrecisionAttr, StringAttr::get(op.getContext(), precision));
    }
  }
  for (const Entry &entry : entries)
    if (!entry.matched)
      return llvm::createStringError(
          entry.place + ": '" + *entry.pattern +
          "' matches no op, no parameter that an op reads, no module of one, "
          "and no place in the source");
  return llvm::Error::success();
}
