//===- FoldedText.cpp - Lines that fold what layers repeat ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "FoldedText.h"
#include "CollectivePlaces.h"
#include "ReportText.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>
#include <set>
#include <tuple>

using namespace cleave;
using llvm::StringRef;
namespace json = llvm::json;

/// The items of a line that are listed, and the lines of a model whose
/// recomputed ops are; the others are one.
static constexpr size_t kItems = 24;
static constexpr size_t kLines = 12;

namespace {

/// A number of things, and their bytes.
struct Sum {
  int64_t count = 0;
  double bytes = 0;

  void add(int64_t times, double size) {
    count += times;
    bytes += size;
  }
};

/// What a cause is about, the text before and after it, and what is said of
/// several: of `"h.0.w" is sharded over "dp"` these are `"h.0.w"`, ``, ` is
/// sharded over "dp"` and `these are sharded over "dp"`. The subject is empty
/// where the cause is about nothing that could have a layer.
struct Cause {
  std::string subject, before, after, several;

  explicit Cause(StringRef text) : several(text) {
    auto [first, last] = text.split(" is ");
    StringRef about = first;
    if (!last.empty() && about.consume_front("a value of ")) {
      before = "a value of ";
      several = ("values of these are " + last).str();
    } else if (!last.empty() && about.size() > 2 && about.front() == '"' &&
               about.back() == '"') {
      several = ("these are " + last).str();
    } else if (about = text; about.consume_back(" reads it")) {
      subject = about.str();
      after = " reads it";
      several = "these read it";
      return;
    } else {
      return;
    }
    subject = about.str();
    after = (" is " + last).str();
  }
};

/// Collectives with a subject in common, but for the number of a layer, and of
/// one size.
struct Item {
  /// That of the first.
  std::string subject;
  Sum sum;
  std::set<std::string> layers, lines;

  /// `16 x "h.*.w"`.
  std::string name() const {
    return layers.size() > 1
               ? std::to_string(layers.size()) + " x " + foldLayers(subject)
               : subject;
  }
  /// ` at m.py:7 and m.py:9`; empty where there are more lines, as of a
  /// parameter that each op gathers.
  std::string where() const {
    std::string text;
    if (lines.size() <= 2)
      for (const std::string &line : lines)
        text += (text.empty() ? " at " : " and ") + line;
    return text;
  }
};

/// Collectives that are one line.
struct Group {
  std::string kind, axes;
  /// That of the first.
  Cause cause;
  Sum sum;
  /// By the folded subject, and the bytes of one collective.
  std::map<std::pair<std::string, double>, Item> items;

  void add(const CollectivePlace &place, const Cause &cause);
  std::string describe() const;
};

} // namespace

void Group::add(const CollectivePlace &place, const Cause &cause) {
  StringRef subject = cause.subject;
  if (subject.empty())
    subject = place.line;
  double each = place.count ? place.bytes / place.count : 0;
  Item &item = items[{foldLayers(subject), each}];
  if (item.sum.count == 0)
    item.subject = subject.str();
  item.sum.add(place.count, place.bytes);
  sum.add(place.count, place.bytes);
  std::string layer = layerOf(subject);
  if (!layer.empty())
    item.layers.insert(layer);
  // A parameter may stand for the line.
  StringRef name = subject;
  if (name.consume_front("\""))
    name.consume_back("\"");
  if (name != place.line && !place.line.empty())
    item.lines.insert(foldLayers(place.line));
}

std::string Group::describe() const {
  std::string text = llvm::formatv("{0} {1} over {2}, {3}", sum.count, kind,
                                   axes, formatBytes(sum.bytes));
  std::vector<const Item *> sorted;
  for (const auto &[key, item] : items)
    sorted.push_back(&item);
  llvm::stable_sort(sorted, [](const Item *a, const Item *b) {
    return a->sum.bytes > b->sum.bytes;
  });
  bool one = sorted.size() == 1;
  bool hasSubjects = !cause.subject.empty();
  std::string because = cause.several;
  if (one && hasSubjects) {
    text += sorted.front()->where();
    because = cause.before + sorted.front()->name() + cause.after;
  } else if (one && !sorted.front()->subject.empty()) {
    text += " at " + sorted.front()->name();
  }
  if (!because.empty())
    text += ", because " + because;
  if (one)
    return text;
  text += hasSubjects ? ": " : "; at ";
  Sum rest;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Sum &own = sorted[i]->sum;
    if (i >= kItems)
      rest.add(own.count, own.bytes);
    else
      text += llvm::formatv("{0}{1} ({2}, {3})", i ? "; " : "",
                            sorted[i]->name() + sorted[i]->where(), own.count,
                            formatBytes(own.bytes));
  }
  if (rest.count)
    text += llvm::formatv("; {0} more ({1}, {2})", sorted.size() - kItems,
                          rest.count, formatBytes(rest.bytes));
  return text;
}

std::vector<std::string> cleave::foldCollectives(const json::Object &sent) {
  std::vector<Group> groups;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> known;
  for (const CollectivePlace &place : collectivePlaces(sent, /*fold=*/false)) {
    Cause cause(place.cause);
    auto [it, fresh] = known.try_emplace(
        {place.kind, place.axes, cause.several}, groups.size());
    if (fresh)
      groups.push_back({place.kind, place.axes, cause, {}, {}});
    groups[it->second].add(place, cause);
  }
  std::vector<std::string> lines;
  for (const Group &group : groups)
    lines.push_back(group.describe());
  return lines;
}

/// `16 graph.mul (2.0 MiB), 16 graph.add; 2.0 MiB not saved`, the largest
/// first.
static std::string describeOps(const std::map<std::string, Sum> &ops) {
  std::vector<std::pair<StringRef, Sum>> sorted(ops.begin(), ops.end());
  llvm::stable_sort(sorted, [](const auto &a, const auto &b) {
    return a.second.bytes > b.second.bytes;
  });
  std::string text;
  double bytes = 0;
  for (const auto &[op, sum] : sorted) {
    text +=
        llvm::formatv("{0}{1} {2}", text.empty() ? "" : ", ", sum.count, op);
    if (sum.bytes > 0 && sorted.size() > 1)
      text += " (" + formatBytes(sum.bytes) + ")";
    bytes += sum.bytes;
  }
  return text + "; " + formatBytes(bytes) + " not saved";
}

namespace {
/// Ops that are recomputed, of one line of the model or of several.
struct Line {
  std::vector<std::string> names;
  std::map<std::string, Sum> ops;
  double bytes = 0;

  void add(StringRef op, int64_t count, double size) {
    ops[op.str()].add(count, size);
    bytes += size;
  }
  void add(const Line &other) {
    llvm::append_range(names, other.names);
    for (const auto &[op, sum] : other.ops)
      add(op, sum.count, sum.bytes);
  }
  /// ` at m.py:7`, ` at m.py:7, m.py:9`, or ` at 16 lines, as m.py:7`.
  std::string where() const {
    if (names.front().empty())
      return "";
    return " at " + (names.size() <= 4 ? llvm::join(names, ", ")
                                       : counted(names.size(), "line") +
                                             ", as " + names.front());
  }
};
} // namespace

/// Makes lines of the same ops one, as those of layers are that have lines of
/// their own.
static std::vector<Line> joinEqualLines(llvm::ArrayRef<Line> lines) {
  using Ops = std::vector<std::tuple<std::string, int64_t, double>>;
  std::vector<Line> joined;
  std::map<Ops, size_t> known;
  for (const Line &line : lines) {
    Ops ops;
    for (const auto &[op, sum] : line.ops)
      ops.push_back({op, sum.count, sum.bytes});
    auto [it, fresh] = known.try_emplace(ops, joined.size());
    if (fresh || line.names.front().empty())
      joined.push_back(line);
    else
      joined[it->second].add(line);
  }
  return joined;
}

std::vector<std::string> cleave::foldRecomputed(const json::Array &recomputed) {
  std::vector<Line> lines;
  std::map<std::string, size_t> known;
  for (const json::Value &value : recomputed) {
    const json::Object &group = *value.getAsObject();
    std::string name = foldLayers(textOf(group, "name"));
    auto [it, fresh] = known.try_emplace(name, lines.size());
    if (fresh)
      lines.push_back({{name}, {}, 0});
    lines[it->second].add(textOf(group, "op"),
                          group.getInteger("ops").value_or(0),
                          number(group, "bytes"));
  }
  lines = joinEqualLines(lines);
  llvm::stable_sort(
      lines, [](const Line &a, const Line &b) { return a.bytes > b.bytes; });
  std::vector<std::string> texts;
  Line rest;
  for (auto [i, line] : llvm::enumerate(lines)) {
    if (i < kLines)
      texts.push_back("recomputes in backward" + line.where() + ": " +
                      describeOps(line.ops));
    else
      rest.add(line);
  }
  if (!rest.names.empty())
    texts.push_back("recomputes in backward at " +
                    counted(rest.names.size(), "more line") + ": " +
                    describeOps(rest.ops));
  return texts;
}
