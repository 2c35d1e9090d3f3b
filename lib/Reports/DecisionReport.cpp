//===- DecisionReport.cpp - What was decided, for people ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CollectivePlaces.h"
#include "FoldedText.h"
#include "ReportParts.h"
#include "ReportText.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>

using namespace cleave;
using llvm::StringRef;
namespace json = llvm::json;

/// The lines that a page has.
static constexpr size_t kPage = 60;

namespace {

/// Writes a line for each fact of a report. In a pipeline, each line begins
/// with its position.
class Explainer {
public:
  /// With `fold`, what differs in the numbers of layers alone is one line. With
  /// `brief`, the kinds of collectives are those of the first entry alone.
  Explainer(const json::Object &report, bool fold, bool brief);
  json::Array explain();

private:
  using Texts = std::vector<std::string>;
  void explainUpdates(const json::Object &entry, StringRef prefix);
  static Texts explainMemory(const json::Object &entry);
  void explainRecomputation(const json::Object &entry, StringRef prefix);
  Texts explainCommunication(const json::Object &sent, bool kinds) const;
  void explainSaving(StringRef name);
  /// Adds the texts of each entry at each position. With `fold`, a text that
  /// several positions have is one line.
  void addOfPositions(
      llvm::function_ref<Texts(size_t position, StringRef name)> textsAt);
  void add(const llvm::Twine &prefix, const llvm::Twine &text) {
    lines.push_back((prefix + text).str());
  }
  /// The memory plan and the communication of entry `name` at a position; null
  /// if missing.
  const json::Object *entryAt(size_t position, StringRef name) const;
  const json::Object *sentAt(size_t position, StringRef name) const;

  const json::Object &report;
  bool fold, brief;
  /// The memory plan of each position; one without a pipeline.
  std::vector<const json::Object *> positions;
  /// The names of the entries; the one that trains comes first.
  std::vector<std::string> names;
  json::Array lines;
};

} // namespace

Explainer::Explainer(const json::Object &report, bool fold, bool brief)
    : report(report), fold(fold), brief(brief) {
  const json::Object &plan = *report.getObject("plan");
  if (const json::Array *several = plan.getArray("positions"))
    for (const json::Value &position : *several)
      positions.push_back(position.getAsObject());
  else
    positions.push_back(&plan);
  for (const json::Object *position : positions)
    if (const json::Object *entries = position->getObject("entries"))
      for (const auto &[name, entry] : *entries)
        if (!llvm::is_contained(names, StringRef(name)))
          names.push_back(StringRef(name).str());
  llvm::sort(names, [](const std::string &a, const std::string &b) {
    return std::make_pair(a != "train", a) < std::make_pair(b != "train", b);
  });
}

const json::Object *Explainer::entryAt(size_t position, StringRef name) const {
  const json::Object *entries = positions[position]->getObject("entries");
  return entries ? entries->getObject(name) : nullptr;
}

const json::Object *Explainer::sentAt(size_t position, StringRef name) const {
  const json::Object *sent = report.getObject("communication")->getObject(name);
  const json::Array *each = sent ? sent->getArray("positions") : nullptr;
  if (!each)
    return sent;
  return position < each->size() ? (*each)[position].getAsObject() : nullptr;
}

/// Explains the part in which updates run.
void Explainer::explainUpdates(const json::Object &entry, StringRef prefix) {
  auto fusion = entry.getString("optimizer_fusion");
  if (!fusion)
    return;
  add(prefix + "optimizer fusion ",
      llvm::StringSwitch<StringRef>(*fusion)
          .Case("backward", "backward: each update runs after its gradient, "
                            "which is freed there")
          .Case("forward", "forward: each update runs in the next step, before "
                           "its parameter is read first")
          .Default(*fusion));
}

/// Explains the memory of gradients and of the old values that updates keep.
Explainer::Texts Explainer::explainMemory(const json::Object &entry) {
  Texts texts;
  if (auto bytes = entry.getNumber("gradient_peak_bytes"))
    texts.push_back("gradients take at most " + formatBytes(*bytes) +
                    " at a time");
  if (auto bytes = entry.getNumber("kept_bytes"))
    texts.push_back("updates are validated after they run; the values that "
                    "they overwrite are kept until then, " +
                    formatBytes(*bytes));
  return texts;
}

void Explainer::explainRecomputation(const json::Object &entry,
                                     StringRef prefix) {
  const json::Array *recomputed = entry.getArray("recomputed");
  if (!recomputed || recomputed->empty())
    return;
  if (fold)
    for (const std::string &text : foldRecomputed(*recomputed))
      add(prefix, text);
  for (const json::Value &value : *recomputed) {
    if (fold)
      break;
    const json::Object &group = *value.getAsObject();
    std::string line = textOf(group, "name");
    add(prefix + "recomputes in backward: ",
        llvm::formatv("{0} {1}{2}, {3} not saved",
                      group.getInteger("ops").value_or(0), textOf(group, "op"),
                      line.empty() ? line : " at " + line,
                      formatBytes(number(group, "bytes"))));
  }
  add(prefix, "recomputation saves " +
                  formatBytes(number(entry, "unsaved_bytes")) +
                  " less for each micro-batch");
}

/// Explains the bytes that forward saves for backward; for a pipeline, the
/// lines of the schedule do so by stage.
void Explainer::explainSaving(StringRef name) {
  const json::Object *schedule = report.getObject("schedule");
  if (!schedule || textOf(*schedule, "entry") != name)
    return;
  double bytes = 0;
  for (const json::Value &stage : *schedule->getArray("stages"))
    bytes += number(*stage.getAsObject(), "saved_bytes_per_micro_batch");
  add(name,
      ": saves " + formatBytes(bytes) + " for backward of each micro-batch");
}

/// Explains the bytes that a device sends in one run of an entry, by
/// collective where `kinds`.
Explainer::Texts Explainer::explainCommunication(const json::Object &sent,
                                                 bool kinds) const {
  int64_t count = sent.getInteger("count").value_or(0);
  if (count == 0)
    return {};
  Texts texts{("each device sends " + formatBytes(number(sent, "bytes")) +
               " in " + llvm::Twine(count) + " collectives")
                  .str()};
  if (const json::Object *again = sent.getObject("updated_again"))
    texts.push_back("a repeated update sends " +
                    formatBytes(number(*again, "bytes")) + " more");
  if (!kinds)
    return texts;
  if (fold)
    llvm::append_range(texts, foldCollectives(sent));
  else
    for (const CollectivePlace &place : collectivePlaces(sent, /*fold=*/false))
      texts.push_back(place.describe());
  return texts;
}

/// `position 1`, `positions 0-2, 5`, or `all positions`.
static std::string namePositions(llvm::ArrayRef<size_t> these, size_t all) {
  if (these.size() == all)
    return "all positions";
  std::string text = these.size() == 1 ? "position " : "positions ";
  for (size_t i = 0; i < these.size(); ++i) {
    size_t first = i;
    while (i + 1 < these.size() && these[i + 1] == these[i] + 1)
      ++i;
    text += (first ? ", " : "") + std::to_string(these[first]);
    if (i > first)
      text += "-" + std::to_string(these[i]);
  }
  return text;
}

void Explainer::addOfPositions(
    llvm::function_ref<Texts(size_t, StringRef)> textsAt) {
  if (!fold) {
    for (size_t i = 0; i < positions.size(); ++i)
      for (const std::string &name : names)
        for (const std::string &text : textsAt(i, name))
          add("position " + llvm::Twine(i) + ", " + name + ": ", text);
    return;
  }
  for (const std::string &name : names) {
    llvm::MapVector<std::string, std::vector<size_t>,
                    std::map<std::string, unsigned>>
        where;
    for (size_t i = 0; i < positions.size(); ++i)
      for (const std::string &text : textsAt(i, name))
        where[text].push_back(i);
    for (const auto &[text, these] : where)
      add(namePositions(these, positions.size()) + ", " + name + ": ", text);
  }
}

/// Why ranks have room for so many rows of experts.
static std::string explainExpertBuffer(const json::Object &choice) {
  if (choice.getBoolean("given").value_or(false)) {
    double shares = number(choice, "shares");
    return shares == 0
               ? "room for those of all ranks, as the option says"
               : llvm::formatv("room for {0} even shares, as the option "
                               "says",
                               llvm::format("%g", shares))
                     .str();
  }
  auto other = static_cast<int64_t>(number(choice, "other_shares"));
  if (other == 0)
    return "room for those of all ranks, which are at most twice an even share";
  if (number(choice, "other_arena_bytes") == 0)
    return llvm::formatv("room for those of all ranks: there is no plan with "
                         "room for {0} even shares",
                         other);
  bool worst = number(choice, "shares") == 0;
  return llvm::formatv(
      "room for {0}: buffers for those of all ranks take {1} of an arena of "
      "{2}, {3} than {4}, a tenth of it; for {5} even shares {6} of {7}",
      worst ? "those of all ranks"
            : llvm::formatv("{0} even shares", other).str(),
      formatBytes(number(choice, "worst_bytes")),
      formatBytes(number(choice, "arena_bytes")), worst ? "no more" : "more",
      formatBytes(number(choice, "most_bytes")), other,
      formatBytes(number(choice, "other_bytes")),
      formatBytes(number(choice, "other_arena_bytes")));
}

json::Array Explainer::explain() {
  bool several = positions.size() > 1;
  if (several) {
    if (const json::Value *schedule = report.get("schedule"))
      for (std::string &line : explainSchedule(*schedule))
        lines.push_back(std::move(line));
    // The facts that are the same at all positions.
    for (const std::string &name : names) {
      const json::Object *entry = nullptr;
      for (size_t i = 0; i < positions.size() && !entry; ++i)
        entry = entryAt(i, name);
      explainUpdates(*entry, "all positions, " + name + ": ");
      explainRecomputation(*entry, "all positions, " + name + ": ");
    }
    int64_t largest =
        report.getObject("plan")->getInteger("largest").value_or(0);
    for (auto [i, position] : llvm::enumerate(positions))
      add("position " + llvm::Twine(i) + ": the arena of a device has ",
          formatBytes(number(*position, "arena_bytes")) +
              (static_cast<int64_t>(i) == largest ? ", the largest" : ""));
  }
  auto memoryAt = [&](size_t position, StringRef name) {
    const json::Object *entry = entryAt(position, name);
    return entry ? explainMemory(*entry) : Texts();
  };
  auto sentTexts = [&](size_t position, StringRef name) {
    const json::Object *sent = sentAt(position, name);
    bool kinds = !brief || name == names.front();
    return sent ? explainCommunication(*sent, kinds) : Texts();
  };
  if (several)
    addOfPositions(memoryAt);
  for (const std::string &name : names) {
    const json::Object *entry = entryAt(0, name);
    if (several || !entry)
      continue;
    explainUpdates(*entry, name + ": ");
    for (const std::string &text : memoryAt(0, name))
      add(name + ": ", text);
    explainSaving(name);
    explainRecomputation(*entry, name + ": ");
  }
  if (!report.getBoolean("check_finite").value_or(true))
    add("check of losses and gradients: ",
        "off; a step whose loss or gradients are not finite updates all the "
        "same");
  if (const json::Object *choice = report.getObject("recompute"))
    add("recomputation: ",
        llvm::formatv("'{0}', of {1} plans that were tried; a device needs {2}"
                      "{3}; {4} binds",
                      textOf(*choice, "policy"),
                      choice->getArray("tried")->size(),
                      formatBytes(number(*choice, "bytes")),
                      number(*choice, "limit") > 0
                          ? " of " + formatBytes(number(*choice, "limit"))
                          : "",
                      textOf(*choice, "binds")));
  if (const json::Object *choice = report.getObject("expert_buffer"))
    add("rows of experts: ", explainExpertBuffer(*choice));
  add("micro-batches: ",
      llvm::Twine(report.getInteger("micro_batches").value_or(1)));
  if (several)
    addOfPositions(sentTexts);
  else
    for (const std::string &name : names)
      for (const std::string &text : sentTexts(0, name))
        add(name + ": ", text);
  return std::move(lines);
}

json::Array cleave::explainDecisions(const json::Object &report) {
  return Explainer(report, /*fold=*/false, /*brief=*/false).explain();
}

std::optional<Detail> cleave::parseDetail(StringRef name) {
  return llvm::StringSwitch<std::optional<Detail>>(name)
      .Case("summary", Detail::Summary)
      .Case("layers", Detail::Layers)
      .Case("full", Detail::Full)
      .Case("memory", Detail::Memory)
      .Case("cost", Detail::Cost)
      .Default(std::nullopt);
}

std::vector<std::string> cleave::explainReport(const Report &whole,
                                               Detail detail) {
  const json::Object &report = factsOf(whole);
  if (detail == Detail::Summary)
    return summarizeReport(report);
  if (detail == Detail::Memory)
    return explainMemory(report);
  if (detail == Detail::Cost)
    return explainCost(report);
  auto linesOf = [&](bool brief) {
    std::vector<std::string> lines;
    for (const json::Value &line :
         Explainer(report, detail == Detail::Layers, brief).explain())
      lines.push_back(line.getAsString()->str());
    return lines;
  };
  std::vector<std::string> lines = linesOf(/*brief=*/false);
  if (detail != Detail::Layers || lines.size() <= kPage)
    return lines;
  // So that many positions are a page, too.
  lines = foldRanges(lines);
  return lines.size() <= kPage ? lines : foldRanges(linesOf(/*brief=*/true));
}
