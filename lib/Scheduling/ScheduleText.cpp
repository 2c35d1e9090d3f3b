//===- ScheduleText.cpp - Schedules as text -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ActionStep.h"
#include "cleave/Scheduling/Schedule.h"
#include "cleave/Support/Repetition.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/raw_ostream.h"
#include <limits>

using namespace cleave::scheduling;
using llvm::StringRef;

/// The text of an empty list.
static constexpr llvm::StringLiteral kIdle = "-";

/// The most actions of a schedule, so that a mistyped repeat cannot exhaust
/// memory.
static constexpr int64_t kMaxActions = 1 << 24;

/// The longest name of a part.
static constexpr size_t kLongestName = 32;

/// The longest body of a repeat that `compact` searches for. A position with
/// many chunks in a long pipeline has a body of a few hundred actions.
static constexpr size_t kMaxBody = 4096;

/// The text of an action, with `microBatch` as the text of its micro-batch.
static std::string textOf(const Action &action, const std::string &microBatch) {
  std::string text;
  if (action.kind == Action::Kind::Receive)
    text = std::to_string(action.to) + '<';
  if (action.stage)
    text += std::to_string(action.stage);
  text += action.part + microBatch;
  if (action.kind == Action::Kind::Send)
    text += '>' + std::to_string(action.to);
  return text;
}

std::string Action::str() const {
  return textOf(*this, microBatch >= 0 ? std::to_string(microBatch) : "");
}

std::string Action::pattern() const {
  return textOf(*this, microBatch >= 0 ? "*" : "");
}

Action Action::send(int64_t stage) const {
  Action action = run();
  action.kind = Kind::Send;
  action.to = stage;
  return action;
}

Action Action::receive(int64_t stage) const {
  Action action = send(stage);
  action.kind = Kind::Receive;
  return action;
}

bool Schedule::isPartName(StringRef name) {
  return !name.empty() && llvm::all_of(name, llvm::isAlpha);
}

/// Removes leading digits from `word`; false if they overflow.
static bool takeNumber(StringRef &word, int64_t &value) {
  StringRef digits = word.take_while(llvm::isDigit);
  word = word.drop_front(digits.size());
  return digits.empty() || !digits.getAsInteger(10, value);
}

static bool takeAction(StringRef word, Action &action) {
  auto [before, after] = word.split('<');
  if (before.size() != word.size()) {
    action.kind = Action::Kind::Receive;
    if (before.getAsInteger(10, action.to) || !llvm::isDigit(before.front()))
      return false;
    word = after;
  }
  if (!takeNumber(word, action.stage))
    return false;
  StringRef part = word.take_while(llvm::isAlpha);
  action.part = part.str();
  word = word.drop_front(part.size());
  if (part.empty() || part.size() > kLongestName ||
      !takeNumber(word, action.microBatch))
    return false;
  if (action.kind == Action::Kind::Run && word.consume_front(">")) {
    action.kind = Action::Kind::Send;
    if (word.empty() || !takeNumber(word, action.to))
      return false;
  }
  return word.empty();
}

std::optional<Action> Action::parse(StringRef text) {
  Action action;
  if (!takeAction(text, action))
    return std::nullopt;
  return action;
}

/// Quotes text for a message: shortened, with unprintable bytes escaped.
static std::string quote(StringRef text) {
  constexpr size_t kLongest = 40;
  std::string result = "'";
  llvm::raw_string_ostream os(result);
  llvm::printEscapedString(text.take_front(kLongest), os);
  os << (text.size() > kLongest ? "...'" : "'");
  return result;
}

namespace {
/// Parses the list of one position.
class DeviceReader {
public:
  /// Parses a list of at most `room` actions.
  DeviceReader(std::string &error, int64_t room) : error(error), room(room) {}

  bool read(StringRef text);
  std::vector<Action> actions;
  /// The text of each action; on failure, the text at fault.
  std::vector<const char *> begins;
  const char *wrong = nullptr;

private:
  bool openRepeat(StringRef &word);
  bool closeRepeat();
  bool fail(const llvm::Twine &text) {
    error = text.str();
    return false;
  }

  std::string &error;
  int64_t room;
  /// The first action and the text of an open repeat.
  std::optional<size_t> body;
  const char *opened = nullptr;
  int64_t times = 0, step = 0;
};
} // namespace

/// `{<times>+<step>:` or `{<times>-<step>:`.
bool DeviceReader::openRepeat(StringRef &word) {
  size_t colon = word.find(':');
  StringRef head = word.take_front(colon).drop_front();
  bool back = head.contains('-');
  auto [count, offset] = head.split(back ? '-' : '+');
  bool valid = colon != StringRef::npos && llvm::all_of(count, llvm::isDigit) &&
               llvm::all_of(offset, llvm::isDigit) &&
               !count.getAsInteger(10, times) &&
               !offset.getAsInteger(10, step) && times > 0 && step > 0;
  if (!valid)
    return fail(quote(word) +
                " is not the beginning of a repeat; write {<times>+<step>: "
                "and the actions, as in {8+1: F0}");
  if (body)
    return fail(quote(word) + ": repeats cannot be nested; close the first "
                              "one with } before it");
  if (back)
    step = -step;
  body = actions.size();
  opened = word.data();
  word = word.drop_front(colon + 1);
  return true;
}

bool DeviceReader::closeRepeat() {
  if (!body)
    return fail("'}' without an open repeat; write {<times>+<step>: before "
                "its actions");
  size_t end = actions.size(), length = end - *body;
  if (length == 0)
    return fail("a repeat has no actions; write some before }");
  if (times > room / static_cast<int64_t>(length) ||
      std::abs(step) > kMaxActions)
    return fail("a repeat of " + llvm::Twine(times) + " times " +
                llvm::Twine(length) + " actions by steps of " +
                llvm::Twine(step) + " is too long; write fewer");
  for (size_t i = *body; i < end; ++i) {
    if (actions[i].microBatch < 0)
      return fail(
          "'" + actions[i].str() +
          "' has no micro-batch and cannot be repeated; write it outside "
          "of the braces");
    if (actions[i].microBatch > std::numeric_limits<int64_t>::max() / 2)
      return fail("'" + actions[i].str() +
                  "' has too large a micro-batch to be repeated; write a "
                  "smaller one");
    if (actions[i].microBatch + (times - 1) * step < 0)
      return fail("'" + actions[i].str() + "' repeated " + llvm::Twine(times) +
                  " times by steps of " + llvm::Twine(step) +
                  " falls below micro-batch 0; write fewer times");
  }
  for (int64_t k = 1; k < times; ++k)
    for (size_t i = *body; i < end; ++i) {
      Action action = actions[i];
      action.microBatch += k * step;
      actions.push_back(std::move(action));
      begins.push_back(begins[i]);
    }
  body.reset();
  return true;
}

bool DeviceReader::read(StringRef text) {
  llvm::SmallVector<StringRef> words;
  llvm::SplitString(text, words);
  for (StringRef word : words) {
    wrong = word.data();
    if (word.starts_with("{") && !openRepeat(word))
      return false;
    StringRef whole = word;
    bool close = word.consume_back("}");
    Action action;
    if (!word.empty()) {
      if (!takeAction(word, action))
        return fail(quote(whole) +
                    " is not an action; write <stage><part><micro-batch>, as "
                    "in F0 or 2B1, F0>1 to send its results to stage 1, and "
                    "1<F0 to receive them there");
      actions.push_back(std::move(action));
      begins.push_back(word.data());
    }
    if (close && !closeRepeat())
      return false;
    if (static_cast<int64_t>(actions.size()) > room)
      return fail("the schedule has too many actions; write fewer than " +
                  llvm::Twine(kMaxActions));
  }
  wrong = opened;
  if (body)
    return fail("a repeat is not closed; write } after its last action");
  return true;
}

std::optional<Schedule> Schedule::parse(StringRef text, std::string &error,
                                        SchedulePlaces *places) {
  SchedulePlaces unused;
  SchedulePlaces &known = places ? *places : unused;
  known = {};
  Schedule schedule;
  schedule.devices.clear();
  llvm::SmallVector<StringRef> lines;
  text.split(lines, '\n');
  int64_t room = kMaxActions;
  for (auto [number, whole] : llvm::enumerate(lines)) {
    StringRef line = whole.take_until([](char c) { return c == '#'; }).trim();
    if (line.empty())
      continue;
    auto placeOf = [&, begin = whole.data(), row = number + 1](const char *at) {
      return TextPlace{static_cast<int64_t>(row), at - begin + 1};
    };
    llvm::SmallVector<StringRef> lists;
    line.split(lists, '|');
    for (StringRef list : lists) {
      DeviceReader reader(error, room);
      list = list.trim();
      bool idle = list == kIdle;
      if (!idle && !reader.read(list)) {
        known.error = placeOf(reader.wrong);
        return std::nullopt;
      }
      known.devices.push_back(placeOf(list.data()));
      if (!idle && reader.actions.empty()) {
        error = "pipeline position " + std::to_string(schedule.devices.size()) +
                " has no actions; write some, write -, or remove a '|'";
        known.error = known.devices.back();
        return std::nullopt;
      }
      room -= static_cast<int64_t>(reader.actions.size());
      schedule.devices.push_back(std::move(reader.actions));
      std::vector<TextPlace> &own = known.actions.emplace_back();
      for (const char *begin : reader.begins)
        own.push_back(placeOf(begin));
    }
  }
  if (schedule.devices.empty()) {
    schedule.devices.emplace_back();
    known.devices.push_back({1, 1});
    known.actions.emplace_back();
  }
  return schedule;
}

/// Joins the lists of all positions; `write` appends one list to a text.
static std::string joinDevices(
    const Schedule &schedule, StringRef separator,
    llvm::function_ref<void(llvm::ArrayRef<Action>, std::string &)> write) {
  std::string text;
  for (const std::vector<Action> &actions : schedule.devices) {
    if (&actions != &schedule.devices.front())
      text += separator;
    std::string list;
    write(actions, list);
    text += list.empty() && schedule.devices.size() > 1 ? kIdle.str() : list;
  }
  return text;
}

static void writeWord(const llvm::Twine &word, std::string &text) {
  text += text.empty() ? "" : " ";
  text += word.str();
}

static void writeAll(llvm::ArrayRef<Action> actions, std::string &text) {
  for (const Action &action : actions)
    writeWord(action.str(), text);
}

std::string Schedule::str(StringRef separator) const {
  return joinDevices(*this, separator, writeAll);
}

static void writeCompact(llvm::ArrayRef<Action> actions, std::string &text) {
  size_t count = actions.size();
  for (size_t i = 0; i < count;) {
    // One action that comes twice is shorter written twice.
    cleave::Repetition found = cleave::repetitionFrom(
        i, count, kMaxBody,
        [&](size_t a, size_t b) { return stepBetween(actions[a], actions[b]); },
        cleave::Repeated::Saved);
    if (found.times * found.length < 3) {
      writeWord(actions[i++].str(), text);
      continue;
    }
    writeWord("{" + llvm::Twine(found.times) + (found.step < 0 ? "" : "+") +
                  llvm::Twine(found.step) + ":",
              text);
    for (size_t k = 0; k < found.length; ++k)
      writeWord(actions[i + k].str(), text);
    text += '}';
    i += found.length * found.times;
  }
}

std::string Schedule::compact(StringRef separator) const {
  return joinDevices(*this, separator, writeCompact);
}
