//===- CheckMessage.h - Numbers in the messages of checks -------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The message of a check that has values says them where it has `{i}`, the
/// number of the rank that failed where it has `{rank}`, and value i divided by
/// n, rounded up to two places, where it has `{i/n}`.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_CHECKMESSAGE_H
#define CLEAVE_SUPPORT_CHECKMESSAGE_H

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace cleave {

/// The most values of a check.
inline constexpr int kCheckValues = 4;

/// value / count, which are not negative, with the digits that it needs of two
/// places, rounded up.
inline std::string quotientText(int64_t value, int64_t count) {
  // Of the rest alone, so that nothing exceeds 64 bits.
  int64_t whole = value / count,
          places = (value % count * 100 + count - 1) / count;
  whole += places / 100;
  places %= 100;
  std::string text = std::to_string(whole);
  if (places == 0)
    return text;
  text += "." + std::to_string(places / 10);
  return places % 10 ? text + std::to_string(places % 10) : text;
}

/// The text of what stands between braces; nothing if it names no value.
inline std::optional<std::string> checkField(const std::string &field,
                                             const int64_t *values, int count,
                                             int64_t rank) {
  if (field == "rank")
    return std::to_string(rank);
  char *end = nullptr;
  long index = std::strtol(field.c_str(), &end, 10);
  if (end == field.c_str() || index < 0 || index >= count)
    return std::nullopt;
  if (*end == 0)
    return std::to_string(values[index]);
  if (*end != '/')
    return std::nullopt;
  const char *begin = end + 1;
  long long by = std::strtoll(begin, &end, 10);
  if (end == begin || *end != 0 || by < 1)
    return std::nullopt;
  return quotientText(values[index], by);
}

/// The message with what its fields name; without values it has none.
inline std::string checkMessage(const std::string &message,
                                const int64_t *values, int count,
                                int64_t rank) {
  if (count == 0)
    return message;
  std::string text;
  size_t at = 0;
  while (at < message.size()) {
    size_t open = message.find('{', at), close = message.find('}', open);
    if (open == std::string::npos || close == std::string::npos)
      break;
    text += message.substr(at, open - at);
    auto field = checkField(message.substr(open + 1, close - open - 1), values,
                            count, rank);
    // Other braces are those of names.
    text += field ? *field : "{";
    at = field ? close + 1 : open + 1;
  }
  return text + message.substr(at);
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_CHECKMESSAGE_H
