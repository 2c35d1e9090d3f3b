//===- ParameterGroups.cpp - Settings of parameters by their names --------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ParameterGroups.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/GlobPattern.h"
#include <set>

using namespace mlir;
using namespace cleave;

using Predicate = std::function<bool(StringRef name, int64_t rank)>;

/// Parses `ndim<N` and the like; nothing if `term` does not have this form.
static llvm::Expected<std::optional<Predicate>> parseRank(StringRef term) {
  StringRef rest = term;
  if (!rest.consume_front("ndim"))
    return std::nullopt;
  rest = rest.ltrim();
  StringRef op =
      rest.take_while([](char c) { return StringRef("<=>").contains(c); });
  int64_t bound;
  if (rest.drop_front(op.size()).trim().getAsInteger(10, bound))
    return llvm::createStringError("'" + term +
                                   "': expected a number, as in "
                                   "'ndim<2'");
  auto compare = [&]() -> std::function<bool(int64_t)> {
    if (op == "<")
      return [=](int64_t rank) { return rank < bound; };
    if (op == "<=")
      return [=](int64_t rank) { return rank <= bound; };
    if (op == "==")
      return [=](int64_t rank) { return rank == bound; };
    if (op == ">=")
      return [=](int64_t rank) { return rank >= bound; };
    if (op == ">")
      return [=](int64_t rank) { return rank > bound; };
    return nullptr;
  }();
  if (!compare)
    return llvm::createStringError(
        "'" + term + "': expected one of < <= == >= > after ndim");
  return Predicate([=](StringRef, int64_t rank) { return compare(rank); });
}

/// The names of the parameters that `terms` match, in order.
static llvm::Expected<SmallVector<std::string>>
matchParameters(ModuleOp module, StringRef terms) {
  // Names and framework ranks of all parameters, once each.
  std::map<std::string, int64_t> ranks;
  for (auto function : module.getOps<func::FuncOp>())
    for (unsigned i = 0; i < function.getNumArguments(); ++i) {
      auto role = function.getArgAttrOfType<StringAttr>(i, graph::kRoleAttr);
      auto name = function.getArgAttrOfType<StringAttr>(i, graph::kNameAttr);
      auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[i]);
      if (!role || role.getValue() != "parameter" || !name || !type)
        continue;
      auto shape = function.getArgAttrOfType<DenseI64ArrayAttr>(
          i, graph::kFrameworkShapeAttr);
      int64_t rank = shape ? shape.size() : type.getRank();
      ranks[name.str()] =
          rank - (function.getArgAttr(i, graph::kStackedAttr) ? 1 : 0);
    }

  SmallVector<StringRef> parts;
  terms.split(parts, ',', -1, /*KeepEmpty=*/false);
  std::set<std::string> found;
  for (StringRef term : parts) {
    term = term.trim();
    auto rank = parseRank(term);
    if (!rank)
      return rank.takeError();
    Predicate matches;
    if (*rank) {
      matches = **rank;
    } else {
      auto glob = llvm::GlobPattern::create(term);
      if (!glob)
        return glob.takeError();
      matches = [pattern = *glob](StringRef name, int64_t) {
        return pattern.match(name);
      };
    }
    bool any = false;
    for (const auto &[name, dims] : ranks)
      if (matches(name, dims)) {
        any = true;
        found.insert(name);
      }
    if (!any && !*rank)
      return llvm::createStringError("'" + term + "' matches no parameter");
  }
  return SmallVector<std::string>(found.begin(), found.end());
}

llvm::Error excludeFromDecay(ModuleOp module, StringRef terms,
                             std::map<std::string, ParameterOptions> &out) {
  auto names = matchParameters(module, terms);
  if (!names)
    return names.takeError();
  for (const std::string &name : *names)
    if (!out[name].weightDecay)
      out[name].weightDecay = 0.0;
  return llvm::Error::success();
}

/// Parses `optimizer=adamw lr-scale=0.1 beta1=0.8`.
static llvm::Expected<ParameterOptions> parseGroup(StringRef text) {
  ParameterOptions group;
  SmallVector<StringRef> words;
  text.split(words, ' ', -1, /*KeepEmpty=*/false);
  if (words.empty())
    return llvm::createStringError(
        "a group has no settings; write terms, a colon and settings, as in "
        "'*bias: lr-scale=2'");
  for (StringRef word : words) {
    auto [key, value] = word.split('=');
    if (key == "optimizer") {
      if (!graph::findOptimizerRule(value))
        return llvm::createStringError("unknown optimizer '" + value +
                                       "'; there are " +
                                       graph::optimizerRuleNames());
      group.rule = value.str();
      continue;
    }
    std::string name = llvm::join(llvm::split(key, '-'), "_");
    std::optional<double> number = graph::parseSetting(value);
    bool isFlag = llvm::any_of(graph::allOptimizerSettings(),
                               [&](const graph::NamedSetting &known) {
                                 return known.name == name && known.isFlag;
                               });
    if (!number || (!isFlag && (value == "true" || value == "false")))
      return llvm::createStringError(
          "'" + word + "': expected a setting and its value, as in 'eps=1e-6'");
    if (name == "lr_scale")
      group.lrScale = *number;
    else if (name == "weight_decay")
      group.weightDecay = *number;
    else
      group.settings[name] = *number;
  }
  return group;
}

llvm::Error applyGroups(ModuleOp module, ArrayRef<std::string> groups,
                        std::map<std::string, ParameterOptions> &out) {
  llvm::StringSet<> given;
  for (StringRef text : groups) {
    auto [terms, settings] = text.split(':');
    if (terms.trim(", ").empty())
      return llvm::createStringError("a group has no terms, and so no "
                                     "parameters");
    auto names = matchParameters(module, terms);
    if (!names)
      return names.takeError();
    auto group = parseGroup(settings);
    if (!group)
      return group.takeError();
    for (const std::string &name : *names)
      if (given.insert(name).second)
        out[name] = *group;
  }
  return llvm::Error::success();
}
