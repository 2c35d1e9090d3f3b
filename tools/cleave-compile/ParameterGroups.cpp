//===- NoDecay.cpp - Parameters without weight decay ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "NoDecay.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/GlobPattern.h"

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

llvm::Error excludeFromDecay(ModuleOp module, StringRef terms,
                             std::map<std::string, ParameterOptions> &out) {
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
      ranks[name.str()] = shape ? shape.size() : type.getRank();
    }

  SmallVector<StringRef> parts;
  terms.split(parts, ',', -1, /*KeepEmpty=*/false);
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
        out[name].weightDecay = 0.0;
      }
    if (!any && !*rank)
      return llvm::createStringError("'" + term + "' matches no parameter");
  }
  return llvm::Error::success();
}
