//===- Modules.cpp - A model as modules and a head ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Graph/Analysis/Modules.h"
#include "cleave/Dialect/Graph/Analysis/Slices.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace cleave::graph;

//===----------------------------------------------------------------------===//
// Live values
//===----------------------------------------------------------------------===//

Modules::Modules(func::FuncOp entry)
    : entry(entry), body(entry.getBody().front()) {
  lossValue = body.getTerminator()->getOperand(0);
  auto is = [&](Value value, StringRef role) {
    auto argument = dyn_cast<BlockArgument>(value);
    return argument && hasRole(entry, argument.getArgNumber(), role);
  };
  fromParameters = dependentValues(
      body, [&](Value value) { return is(value, "parameter"); });
  varying = dependentValues(body, [&](Value value) {
    return isa<BlockArgument>(value) && !is(value, "parameter") &&
           !is(value, "buffer");
  });
  OpSlice leading = backwardSlice(lossValue);
  for (Operation &op : body.without_terminator())
    if (leading.contains(&op) && op.getNumResults() &&
        fromParameters.contains(op.getResult(0)) &&
        varying.contains(op.getResult(0)))
      activations.push_back(&op);
  llvm::DenseMap<Operation *, size_t> places;
  for (auto [i, op] : llvm::enumerate(activations)) {
    places[op] = i;
    for (Value operand : op->getOperands())
      if (places.contains(operand.getDefiningOp()))
        ends[operand] = i + 1;
  }
  // The value is live after its op, up to its last reader.
  SmallVector<int64_t> change(activations.size() + 2, 0);
  for (auto [value, end] : ends) {
    ++change[places.lookup(value.getDefiningOp()) + 1];
    --change[end];
  }
  int64_t count = 0;
  for (size_t at = 0; at < activations.size(); ++at)
    live.push_back(count += change[at]);
}

bool Modules::isParameter(Value value) const {
  return isa<BlockArgument>(value) && fromParameters.contains(value);
}

ArrayRef<Operation *> Modules::ops(unsigned index) const {
  size_t begin = index == 0 ? 0 : cuts[index - 1];
  size_t end = index == cuts.size() ? activations.size() : cuts[index];
  return ArrayRef(activations).slice(begin, end - begin);
}

/// The one float activation that is live at `at`; null if there are several.
Value Modules::crossing(size_t at) const {
  if (live[at] != 1)
    return nullptr;
  for (size_t i = at; i-- > 0;)
    for (Value result : activations[i]->getResults())
      if (auto it = ends.find(result); it != ends.end() && it->second > at)
        return isa<FloatType>(
                   cast<RankedTensorType>(result.getType()).getElementType())
                   ? result
                   : Value();
  return nullptr;
}

LogicalResult Modules::reportCrossing(size_t at, StringRef what) const {
  InFlightDiagnostic error =
      emitError(activations[at]->getLoc())
      << what
      << " cannot begin here: of the values that depend on "
         "parameters, one float value must be "
         "live at this point, and "
      << live[at] << " values are live";
  if (live[at] == 1)
    error << ", which is not a float";
  unsigned shown = 0;
  for (size_t i = 0; i < at; ++i)
    for (Value result : activations[i]->getResults())
      if (auto it = ends.find(result);
          it != ends.end() && it->second > at && shown++ < 8)
        error.attachNote(result.getLoc())
            << "this one, of type " << result.getType();
  return error;
}

/// The parameters whose names are in `wanted`, and the values computed from
/// them alone.
llvm::DenseSet<Value>
Modules::weightsOf(llvm::function_ref<bool(StringRef)> wanted) const {
  llvm::DenseSet<Value> found;
  for (BlockArgument argument : body.getArguments())
    if (isParameter(argument) &&
        wanted(getArgString(entry, argument.getArgNumber(), kNameAttr)))
      found.insert(argument);
  for (Operation &op : body.without_terminator())
    if (op.getNumResults() && isWeight(op.getResult(0)) &&
        llvm::any_of(op.getOperands(),
                     [&](Value value) { return found.contains(value); }))
      found.insert(op.result_begin(), op.result_end());
  return found;
}

bool Modules::readsWeight(Operation *op) const {
  return llvm::any_of(op->getOperands(),
                      [&](Value value) { return isWeight(value); });
}

//===----------------------------------------------------------------------===//
// Cuts
//===----------------------------------------------------------------------===//

/// The position where `what` begins: at the first reader of a parameter whose
/// name begins with `name`, or before it, directly after the last reader of
/// another parameter.
FailureOr<size_t> Modules::cutAt(StringRef name, StringRef what) {
  llvm::DenseSet<Value> weights = weightsOf(
      [&](StringRef parameter) { return parameter.starts_with(name); });
  auto reader = llvm::find_if(activations, [&](Operation *op) {
    return llvm::any_of(op->getOperands(),
                        [&](Value value) { return weights.contains(value); });
  });
  if (reader == activations.end())
    return entry.emitOpError()
           << "has a loss that reads no parameter whose name begins with '"
           << name << "', where " << what << " is to begin";
  size_t first = reader - activations.begin();
  size_t before = cuts.empty() ? 0 : cuts.back();
  for (size_t at = first; at > before; --at) {
    if (crossing(at))
      return at;
    if (readsWeight(activations[at - 1]))
      break;
  }
  if (first <= before)
    return emitError(activations[first]->getLoc())
           << what << " cannot begin at '" << name
           << "': the module before it would be empty";
  return reportCrossing(first, (what + " at '" + name + "'").str());
}

LogicalResult Modules::cutByNames(ArrayRef<StringRef> names) {
  for (StringRef name : names) {
    FailureOr<size_t> at = cutAt(name, "a module");
    if (failed(at))
      return failure();
    cuts.push_back(*at);
    hiddens.push_back(crossing(*at));
  }
  return success();
}

/// The name without its first number, and that number: "h.3.w" gives "h." and
/// 3.
static std::pair<StringRef, StringRef> splitAtNumber(StringRef name) {
  for (size_t begin = 0; begin < name.size();) {
    size_t end = std::min(name.find('.', begin), name.size());
    StringRef part = name.slice(begin, end);
    if (!part.empty() && llvm::all_of(part, llvm::isDigit))
      return {name.take_front(begin), part};
    begin = end + 1;
  }
  return {};
}

/// The position after the last reader of a parameter of a list of layers:
/// parameters whose names differ only in a number. 0 if there is no list.
size_t Modules::behindLayers() const {
  llvm::StringMap<llvm::StringSet<>> lists;
  auto nameOf = [&](BlockArgument argument) {
    return getArgString(entry, argument.getArgNumber(), kNameAttr);
  };
  for (BlockArgument argument : body.getArguments())
    if (isParameter(argument))
      if (auto [list, number] = splitAtNumber(nameOf(argument));
          !number.empty())
        lists[list].insert(number);
  llvm::DenseSet<Value> weights = weightsOf([&](StringRef name) {
    auto [list, number] = splitAtNumber(name);
    return !number.empty() && lists[list].size() > 1;
  });
  for (size_t i = activations.size(); i-- > 0;)
    if (llvm::any_of(activations[i]->getOperands(),
                     [&](Value value) { return weights.contains(value); }))
      return i + 1;
  return 0;
}

/// The head reads a value of the type at the boundaries, if these are known.
LogicalResult Modules::cutHead(StringRef name) {
  static constexpr StringLiteral advice =
      "; name a parameter that the head begins with (--head)";
  size_t at = 0;
  if (!name.empty()) {
    FailureOr<size_t> found = cutAt(name, "the head");
    if (failed(found))
      return failure();
    at = *found;
  } else {
    at = behindLayers();
    if (at == 0)
      return entry.emitOpError() << "has no numbered list of layers that its "
                                    "head could follow"
                                 << advice;
    auto fits = [&](size_t at) {
      Value value = crossing(at);
      return value &&
             (hiddens.empty() || value.getType() == hiddens.front().getType());
    };
    while (at < activations.size() && !fits(at))
      ++at;
  }
  bool reads = false;
  for (size_t i = at; i < activations.size(); ++i)
    reads |= readsWeight(activations[i]);
  if (!reads)
    return entry.emitOpError()
           << "has no head after its last layer: no op there reads one "
              "value of the hidden state's type, and parameters"
           << advice;
  if (!cuts.empty() && at <= cuts.back())
    return emitError(activations[at]->getLoc())
           << "the head begins here, before the last module does";
  cuts.push_back(at);
  hiddens.push_back(crossing(at));
  return success();
}

LogicalResult Modules::cutEvenly(int64_t count) {
  size_t end = cuts.back();
  Type type = hiddens.back().getType();
  SmallVector<std::pair<size_t, int64_t>> places;
  int64_t cost = 0;
  for (size_t at = 0; at < end; ++at) {
    // Each value gives one position; values that the head reads give none.
    if (Value value = crossing(at);
        value && value.getType() == type && value != hiddens.back() &&
        (places.empty() || crossing(places.back().first) != value))
      places.push_back({at, cost});
    if (auto costed = dyn_cast<CostOpInterface>(activations[at]))
      cost += costed.getCost().flops;
  }
  if (static_cast<int64_t>(places.size()) < count - 1)
    return entry.emitOpError()
           << "cannot be cut into " << count << " modules: there are only "
           << places.size()
           << " positions before the head where only one value of type " << type
           << " is live";
  SmallVector<size_t> chosen;
  size_t next = 0;
  for (int64_t k = 1; k < count; ++k) {
    double wanted = static_cast<double>(cost) * k / count;
    // Positions are left for the modules that follow.
    size_t last = places.size() - (count - 1 - k);
    size_t best = next;
    for (size_t i = next; i < last; ++i)
      if (std::abs(places[i].second - wanted) <
          std::abs(places[best].second - wanted))
        best = i;
    chosen.push_back(places[best].first);
    next = best + 1;
  }
  SmallVector<Value> values;
  for (size_t at : chosen)
    values.push_back(crossing(at));
  cuts.insert(cuts.begin(), chosen.begin(), chosen.end());
  hiddens.insert(hiddens.begin(), values.begin(), values.end());
  return success();
}

/// One head reads the result of each module.
LogicalResult Modules::checkHidden() {
  Value last = hiddens.back();
  for (Value value : hiddens)
    if (value.getType() != last.getType())
      return (emitError(value.getLoc())
              << "a module ends with this value of type " << value.getType()
              << ", but the head reads one of type " << last.getType())
                 .attachNote(last.getLoc())
             << "the head reads this";
  return success();
}

LogicalResult Modules::cut(StringRef modules, StringRef head) {
  int64_t number = 0;
  if (!modules.getAsInteger(10, number)) {
    if (number < 2)
      return entry.emitOpError()
             << "is to be cut into " << number
             << (number == 1 ? " module" : " modules")
             << ": a gradient horizon needs two or more; say how many, or with "
                "which parameters they begin, from the second on (--modules)";
    return failure(failed(cutHead(head)) || failed(cutEvenly(number)) ||
                   failed(checkHidden()));
  }
  SmallVector<StringRef> names;
  modules.split(names, ',');
  for (StringRef &name : names)
    name = name.trim();
  if (names.size() > 1 && llvm::is_contained(names, ""))
    return entry.emitOpError()
           << "is to be cut into modules of which one begins at an empty name; "
              "between commas stand beginnings of parameters' names "
              "(--modules)";
  if (names.front().empty())
    return entry.emitOpError()
           << "is to be cut into one module: a gradient horizon needs two or "
              "more; say how many, or with which parameters they begin, from "
              "the second on (--modules)";
  return failure(failed(cutByNames(names)) || failed(cutHead(head)) ||
                 failed(checkHidden()));
}
