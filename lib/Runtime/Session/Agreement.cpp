//===- Agreement.cpp - Comparison of facts between processes --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Each process reads its own files and its own command line. If those of one
// machine are outdated, ranks would deadlock, or train on with different
// numbers.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Session/AllRanks.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/xxhash.h"

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;

/// "rank 3", "ranks 0 to 2 and 5".
std::string cleave::runtime::ranksText(llvm::ArrayRef<int> ranks) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1)
      ++last;
    std::string text = std::to_string(ranks[i]);
    if (last > i)
      text += (last > i + 1 ? " to " : " and ") + std::to_string(ranks[last]);
    ranges.push_back(std::move(text));
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + llvm::join(ranges, ", ");
}

/// The value of `name` in `facts`, encoded by `agree`.
static StringRef valueOf(StringRef facts, StringRef name) {
  llvm::SmallVector<StringRef> lines;
  facts.split(lines, '\x1e', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  for (StringRef line : lines)
    if (auto [key, value] = line.split('\x1f'); key == name)
      return value;
  return "not given";
}

/// "the seed: 1 (rank 0), 2 (rank 1)", or "" if all are equal.
static std::string differenceIn(StringRef name,
                                llvm::ArrayRef<std::string> all) {
  std::vector<std::pair<std::string, std::vector<int>>> values;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::string value = valueOf(all[rank], name).str();
    auto known = llvm::find_if(
        values, [&](const auto &entry) { return entry.first == value; });
    if (known == values.end())
      known = values.insert(values.end(), {value, {}});
    known->second.push_back(static_cast<int>(rank));
  }
  if (values.size() == 1)
    return "";
  std::vector<std::string> texts;
  for (const auto &[value, ranks] : values)
    texts.push_back(value + " (" + ranksText(ranks) + ")");
  return name.str() + ": " + llvm::join(texts, ", ");
}

Error AllRanks::agree(
    llvm::ArrayRef<std::pair<std::string, std::string>> facts) {
  std::string own;
  for (const auto &[name, value] : facts)
    own += name + '\x1f' + value + '\x1e';
  // Usually all are equal, which one number shows.
  auto hashes = bounds(static_cast<int64_t>(llvm::xxh3_64bits(own)));
  if (!hashes)
    return hashes.takeError();
  if (hashes->first == hashes->second)
    return Error::success();
  Expected<std::vector<std::string>> all = gather(own);
  if (!all)
    return all.takeError();
  // One process may have names that others do not have.
  std::vector<std::string> names, differences;
  for (const std::string &text : *all) {
    llvm::SmallVector<StringRef> lines;
    StringRef(text).split(lines, '\x1e', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
    for (StringRef line : lines)
      if (std::string name = line.split('\x1f').first.str();
          !llvm::is_contained(names, name))
        names.push_back(std::move(name));
  }
  for (const std::string &name : names)
    if (std::string text = differenceIn(name, *all); !text.empty())
      differences.push_back(std::move(text));
  return makeError("the ranks differ in " + llvm::join(differences, "; ") +
                   ": all of them need the same files and options");
}
