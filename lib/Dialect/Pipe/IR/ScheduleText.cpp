//===- ScheduleText.cpp - Schedules as text -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ActionStep.h"
#include "cleave/Dialect/Pipe/IR/Schedule.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/raw_ostream.h"
#include <limits>

using namespace cleave::pipe;
using llvm::StringRef;

/// The list of a device that does nothing.
static constexpr llvm::StringLiteral kIdle = "-";

/// More actions than any schedule has: a repeat that a slip of the pen makes
/// huge must not fill the memory.
static constexpr int64_t kMaxActions = 1 << 24;

/// Of a part: a longer word is none.
static constexpr size_t kLongestName = 32;

/// Longer bodies of repeats are not looked for: a device with many chunks on
/// many devices has one of a few hundred.
static constexpr size_t kMaxBody = 4096;

/// With `microBatch` as it is written.
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

/// Takes leading digits off `word`; false when they leave the range.
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

/// Part of a text, for a message: short, and what cannot be printed as
/// numbers.
static std::string quote(StringRef text) {
  constexpr size_t kLongest = 40;
  std::string result = "'";
  llvm::raw_string_ostream os(result);
  llvm::printEscapedString(text.take_front(kLongest), os);
  os << (text.size() > kLongest ? "...'" : "'");
  return result;
}

namespace {
/// Reads the words of one device.
class DeviceReader {
public:
  /// Reads a list of at most `room` actions.
  DeviceReader(std::string &error, int64_t room) : error(error), room(room) {}

  bool read(StringRef text);
  std::vector<Action> actions;
  /// What each of them was read from; on failure, what is wrong.
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
  /// Of an open repeat: its first action, and where it begins.
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
                " begins no repeat; write {<times>+<step>: and the actions, "
                "as in {8+1: F0}");
  if (body)
    return fail(quote(word) + ": a repeat holds no other; close the first "
                              "with } before it");
  if (back)
    step = -step;
  body = actions.size();
  opened = word.data();
  word = word.drop_front(colon + 1);
  return true;
}

bool DeviceReader::closeRepeat() {
  if (!body)
    return fail("'}' closes no repeat; write {<times>+<step>: before its "
                "actions");
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
      return fail("'" + actions[i].str() +
                  "' runs once and cannot be repeated; write it outside of "
                  "the braces");
    if (actions[i].microBatch > std::numeric_limits<int64_t>::max() / 2)
      return fail("'" + actions[i].str() +
                  "' cannot be repeated; write a smaller micro-batch");
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
    return fail("a repeat is not closed; write } behind its last action");
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
        error = "device " + std::to_string(schedule.devices.size()) +
                " has no actions; write some, or -, or leave out a '|'";
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

/// The lists of the devices, each as `write` adds it to a text.
static std::string joinDevices(
    const Schedule &schedule, StringRef separator,
    llvm::function_ref<void(llvm::ArrayRef<Action>, std::string &)> write) {
  std::string text;
  for (const std::vector<Action> &actions : schedule.devices) {
    if (&actions != &schedule.devices.front())
      text += separator;
    std::string own;
    write(actions, own);
    text += own.empty() && schedule.devices.size() > 1 ? kIdle.str() : own;
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
    // The body that leaves most words unwritten.
    size_t best = 0, bestTimes = 0, bestGain = 0;
    for (size_t length = 1; length <= kMaxBody && i + 2 * length <= count;
         ++length) {
      int64_t step = stepBetween(actions[i], actions[i + length]);
      if (step == 0)
        continue;
      size_t end = i;
      while (end + length < count &&
             stepBetween(actions[end], actions[end + length]) == step)
        ++end;
      size_t times = (end - i) / length + 1;
      if (times < 2 || (times - 1) * length < 2)
        continue;
      if (size_t gain = (times - 1) * length; gain > bestGain)
        best = length, bestTimes = times, bestGain = gain;
    }
    if (!best) {
      writeWord(actions[i++].str(), text);
      continue;
    }
    int64_t step = actions[i + best].microBatch - actions[i].microBatch;
    writeWord("{" + llvm::Twine(bestTimes) + (step < 0 ? "" : "+") +
                  llvm::Twine(step) + ":",
              text);
    for (size_t k = 0; k < best; ++k)
      writeWord(actions[i + k].str(), text);
    text += '}';
    i += best * bestTimes;
  }
}

std::string Schedule::compact(StringRef separator) const {
  return joinDevices(*this, separator, writeCompact);
}
