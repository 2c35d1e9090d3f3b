//===- RecomputePolicyText.cpp - Recompute policies as text ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/Transforms/RecomputePolicy.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

using namespace cleave::pipe;
using llvm::StringRef;

static std::string nameOf(const RecomputeChoice &choice) {
  std::string text;
  for (auto [has, name] :
       {std::pair(choice.free, "free"),
        std::pair(choice.selective, "selective"),
        std::pair(choice.full, "full"), std::pair(choice.regions, "regions")})
    if (has)
      text += (text.empty() ? "" : ",") + std::string(name);
  if (choice.price > 0)
    llvm::raw_string_ostream(text) << (text.empty() ? "" : ",")
                                   << llvm::format("price=%.6g", choice.price);
  return text.empty() ? "none" : text;
}

/// Parses `free,selective`.
static std::optional<RecomputeChoice> parseChoice(StringRef text,
                                                  std::string &error) {
  RecomputeChoice choice;
  llvm::SmallVector<StringRef> names;
  text.split(names, ',');
  for (StringRef name : names) {
    name = name.trim();
    if (StringRef worth = name; worth.consume_front("price=")) {
      if (worth.getAsDouble(choice.price) || !(choice.price > 0) ||
          choice.price > 1e30) {
        error = ("'" + name + "': expected a positive number of bytes").str();
        return std::nullopt;
      }
      continue;
    }
    if (name == "free")
      choice.free = true;
    else if (name == "selective")
      choice.selective = true;
    else if (name == "full")
      choice.full = true;
    else if (name == "regions")
      choice.regions = true;
    else if (name != "none" || names.size() > 1) {
      error = ("unknown policy '" + name +
               "'; policies: none, free, selective, full, regions, or several "
               "of them with commas")
                  .str();
      return std::nullopt;
    }
  }
  return choice;
}

std::optional<RecomputePolicy> RecomputePolicy::parse(StringRef text,
                                                      std::string &error) {
  RecomputePolicy policy;
  policy.blocks.clear();
  std::optional<RecomputeChoice> outside;
  std::string plain;
  for (StringRef line : llvm::split(text, '\n'))
    plain += line.split('#').first.str() + ";";
  for (StringRef item : llvm::split(plain, ';')) {
    item = item.trim();
    if (item.empty())
      continue;
    if (item.consume_front("outside ")) {
      outside = parseChoice(item, error);
      if (!outside)
        return std::nullopt;
      continue;
    }
    uint64_t count = 1;
    if (auto [number, rest] = item.split(' ');
        !rest.empty() && !number.getAsInteger(10, count))
      item = rest;
    if (count < 1 || count > (1 << 20)) {
      error = "the number of blocks is not positive, or too large";
      return std::nullopt;
    }
    auto choice = parseChoice(item, error);
    if (!choice)
      return std::nullopt;
    policy.blocks.insert(policy.blocks.end(), count, *choice);
  }
  if (policy.blocks.empty()) {
    error = "no policy is given";
    return std::nullopt;
  }
  RecomputeChoice free;
  free.free =
      llvm::any_of(policy.blocks, [](RecomputeChoice c) { return c.free; });
  policy.outside = outside.value_or(free);
  return policy;
}

std::string RecomputePolicy::str() const {
  std::string text = "outside " + nameOf(outside);
  for (size_t i = 0; i < blocks.size();) {
    size_t end = i + 1;
    while (end < blocks.size() && blocks[end] == blocks[i])
      ++end;
    text += "; " + std::to_string(end - i) + " " + nameOf(blocks[i]);
    i = end;
  }
  return text;
}
