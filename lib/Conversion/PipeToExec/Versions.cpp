//===- Versions.cpp - Versions of updated values --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Versions.h"
#include "cleave/Dialect/Graph/IR/Entry.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

void Versions::plan(ArrayRef<std::pair<pipe::InvokeOp, int64_t>> runs,
                    llvm::function_ref<Value(BlockArgument)> value) {
  for (auto [argument, maker] : makers) {
    Tracked tracked;
    tracked.lastRead = {0};
    std::map<int64_t, unsigned> first;
    for (auto [n, run] : llvm::enumerate(runs)) {
      auto [invoke, microBatch] = run;
      unsigned number = n, newest = tracked.lastRead.size() - 1;
      if (llvm::is_contained(invoke.getInputs(), argument)) {
        unsigned version =
            invoke == maker.getOwner()
                ? newest
                : first.try_emplace(microBatch, newest).first->second;
        tracked.lastRead[version] = number;
        reads[{number, argument.getAsOpaquePointer()}] = version;
      }
      if (invoke == maker.getOwner())
        tracked.lastRead.push_back(number);
    }
    // An argument of another position is ignored.
    if (tracked.lastRead.size() == 1)
      continue;
    tracked.known = {value(argument)};
    versions[argument] = std::move(tracked);
  }
}

Value Versions::read(Value input) const {
  auto tracked = versions.find(input);
  auto version = reads.find({next, input.getAsOpaquePointer()});
  if (tracked == versions.end() || version == reads.end())
    return nullptr;
  return tracked->second.known[version->second];
}

std::optional<unsigned> Versions::placeOf(const Tracked &tracked) const {
  unsigned newest = tracked.known.size() - 1;
  if (newest + 2 == tracked.lastRead.size())
    return tracked.places.front();
  if (tracked.lastRead[newest] <= next)
    return newest;
  for (unsigned version : tracked.places)
    if (tracked.lastRead[version] < next)
      return version;
  return std::nullopt;
}

func::FuncOp Versions::formOf(pipe::InvokeOp invoke, func::FuncOp part,
                              SmallVectorImpl<Value> &operands,
                              SymbolTable &symbols) {
  // Each result, the operand whose memory it takes, and whether that is a
  // further operand.
  struct Link {
    unsigned result, operand;
  };
  SmallVector<Link> links;
  SmallVector<Value> more;
  std::string key;
  for (auto [argument, maker] : makers) {
    auto tracked = versions.find(argument);
    if (maker.getOwner() != invoke || tracked == versions.end())
      continue;
    std::optional<unsigned> place = placeOf(tracked->second);
    key += place ? "" : "new;";
    if (!place)
      continue;
    Value memory = tracked->second.known[*place];
    unsigned operand = llvm::find(operands, memory) - operands.begin();
    if (operand == operands.size()) {
      operand += more.size();
      more.push_back(memory);
    }
    key += std::to_string(operand) + ";";
    links.push_back({maker.getResultNumber(), operand});
  }
  if (key.empty())
    return part;
  operands.append(more);
  Forms &known = forms[part];
  func::FuncOp &form = known.made[key];
  if (form)
    return form;
  if (!known.plain) {
    known.plain = part.clone();
    form = part;
  } else {
    form = known.plain->clone();
    form.setName(
        (part.getName() + ".form" + std::to_string(known.made.size() - 1))
            .str());
    symbols.insert(form);
  }
  for (Value memory : more)
    form.front().addArgument(memory.getType(), invoke.getLoc());
  form.setFunctionType(FunctionType::get(form.getContext(),
                                         form.front().getArgumentTypes(),
                                         form.getResultTypes()));
  SmallVector<DictionaryAttr> attrs;
  form.getAllArgAttrs(attrs);
  attrs.resize(form.getNumArguments(), DictionaryAttr::get(form.getContext()));
  form.setAllArgAttrs(attrs);
  Builder builder(form.getContext());
  graph::EntryAttributes attributes(form);
  for (auto [result, operand] : links) {
    attributes.setArg(operand, kDiesAttr, builder.getUnitAttr());
    attributes.setResult(result, kAliasAttr,
                         builder.getI64IntegerAttr(operand));
    attributes.setResult(result, kUpdateAttr, builder.getUnitAttr());
  }
  attributes.write();
  return form;
}

void Versions::finish(pipe::InvokeOp invoke, ValueRange results) {
  for (auto [argument, maker] : makers) {
    auto found = versions.find(argument);
    if (maker.getOwner() != invoke || found == versions.end())
      continue;
    Tracked &tracked = found->second;
    if (std::optional<unsigned> place = placeOf(tracked))
      *llvm::find(tracked.places, *place) = tracked.known.size();
    else
      tracked.places.push_back(tracked.known.size());
    tracked.known.push_back(results[maker.getResultNumber()]);
  }
  ++next;
}
