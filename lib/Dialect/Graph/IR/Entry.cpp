//===- Entry.cpp - Arguments and attributes of an entry -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/IR/Entry.h"
#include "mlir/IR/BuiltinOps.h"

using namespace mlir;
using namespace cleave::graph;

std::string cleave::graph::auxiliaryName(unsigned head, StringRef name) {
  return ("auxiliary." + Twine(head) + "." + name).str();
}

StringRef cleave::graph::getArgString(func::FuncOp entry, unsigned index,
                                      StringRef attribute) {
  auto value = entry.getArgAttrOfType<StringAttr>(index, attribute);
  return value ? value.getValue() : StringRef();
}

bool cleave::graph::hasRole(func::FuncOp entry, unsigned index,
                            StringRef role) {
  return getArgString(entry, index, kRoleAttr) == role;
}

bool cleave::graph::isTrained(func::FuncOp entry, unsigned index) {
  return hasRole(entry, index, "parameter") &&
         !entry.getArgAttr(index, kFrozenAttr);
}

bool cleave::graph::isOptimizerState(func::FuncOp entry, unsigned index) {
  return hasRole(entry, index, "state") &&
         !getArgString(entry, index, kOfAttr).empty();
}

std::optional<int64_t> cleave::graph::dimOfParameter(func::FuncOp entry,
                                                     BlockArgument argument,
                                                     int64_t dim) {
  auto dims = entry.getArgAttrOfType<DenseI64ArrayAttr>(argument.getArgNumber(),
                                                        kParameterDimsAttr);
  if (!dims)
    return dim;
  const int64_t *found = llvm::find(dims.asArrayRef(), dim);
  if (found == dims.asArrayRef().end())
    return std::nullopt;
  return found - dims.asArrayRef().begin();
}

FailureOr<func::FuncOp> cleave::graph::findEntry(ModuleOp module,
                                                 StringRef name) {
  auto entry = module.lookupSymbol<func::FuncOp>(name);
  if (!entry) {
    InFlightDiagnostic error = module.emitError()
                               << "there is no function '@" << name << "'";
    auto functions = module.getOps<func::FuncOp>();
    if (!functions.empty()) {
      error << "; the module has ";
      llvm::interleaveComma(functions, error, [&](func::FuncOp function) {
        error << "'@" << function.getSymName() << "'";
      });
    }
    return failure();
  }
  if (!entry.getBody().hasOneBlock())
    return entry.emitError() << "'@" << name << "' must have one block";
  return entry;
}

FailureOr<SmallVector<func::FuncOp>>
cleave::graph::findBodies(ModuleOp module) {
  SmallVector<func::FuncOp> found;
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function.isExternal())
      continue;
    if (!function.getBody().hasOneBlock())
      return function.emitOpError("must have one block");
    found.push_back(function);
  }
  return found;
}

SmallVector<BlockArgument> cleave::graph::updatedArguments(func::FuncOp entry) {
  llvm::DenseMap<Attribute, BlockArgument> named;
  for (unsigned i = 0, e = entry.getNumArguments(); i < e; ++i)
    if (Attribute name = entry.getArgAttr(i, kNameAttr))
      named.try_emplace(name, entry.getArgument(i));
  SmallVector<BlockArgument> updated;
  for (unsigned i = 0, e = entry.getNumResults(); i < e; ++i) {
    Attribute name = entry.getResultAttr(i, kUpdatesAttr);
    updated.push_back(name ? named.lookup(name) : BlockArgument());
  }
  return updated;
}

FailureOr<func::FuncOp> cleave::graph::cloneEntry(func::FuncOp entry,
                                                  StringRef name) {
  auto module = entry->getParentOfType<ModuleOp>();
  if (Operation *taken = module.lookupSymbol(name)) {
    InFlightDiagnostic error = entry.emitError() << "cannot create '@" << name
                                                 << "': the name is taken";
    error.attachNote(taken->getLoc()) << "by this";
    return error;
  }
  OpBuilder builder(entry->getContext());
  builder.setInsertionPointAfter(entry);
  auto copy = cast<func::FuncOp>(builder.clone(*entry));
  copy.setSymName(name);
  return copy;
}

cleave::graph::EntryAttributes::EntryAttributes(FunctionOpInterface function)
    : function(function) {
  SmallVector<DictionaryAttr> all;
  function.getAllArgAttrs(all);
  all.resize(function.getNumArguments());
  for (DictionaryAttr dictionary : all)
    args.emplace_back(dictionary);
  all.clear();
  function.getAllResultAttrs(all);
  all.resize(function.getNumResults());
  for (DictionaryAttr dictionary : all)
    results.emplace_back(dictionary);
}

void cleave::graph::EntryAttributes::write() {
  auto dictionaries = [&](ArrayRef<NamedAttrList> lists) {
    SmallVector<DictionaryAttr> all;
    for (const NamedAttrList &list : lists)
      all.push_back(list.getDictionary(function->getContext()));
    return all;
  };
  function.setAllArgAttrs(dictionaries(args));
  function.setAllResultAttrs(dictionaries(results));
}
