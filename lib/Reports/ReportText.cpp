//===- ReportText.cpp - Numbers and names in lines ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportText.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>
#include <set>

using llvm::StringRef;

std::string cleave::formatBytes(double bytes) {
  if (bytes < 1024)
    return llvm::formatv("{0} B", static_cast<int64_t>(bytes));
  StringRef unit;
  for (StringRef larger : {"KiB", "MiB", "GiB"}) {
    if (bytes < 1024)
      break;
    bytes /= 1024;
    unit = larger;
  }
  return llvm::formatv("{0:F1} {1}", bytes, unit);
}

std::string cleave::formatShare(double share) {
  return llvm::formatv("{0:F1} %", share * 100);
}

std::string cleave::counted(int64_t count, StringRef noun) {
  return (llvm::Twine(count) + " " + noun +
          (count == 1             ? ""
           : noun.ends_with("ch") ? "es"
                                  : "s"))
      .str();
}

/// Calls `visit` for each component of a text that is a number between other
/// components of a name, as the 3 of `h.3.w`; not for those of `1.5` or of
/// `a.py:3`. `visit` gets the position and the length.
template <typename Visit>
static void visitNumbers(StringRef text, const Visit &visit) {
  auto isName = [&](size_t at) {
    return at < text.size() && (llvm::isAlnum(text[at]) || text[at] == '_');
  };
  for (size_t at = 0; at < text.size();) {
    if (!isName(at)) {
      ++at;
      continue;
    }
    size_t begin = at;
    bool number = true;
    for (; isName(at); ++at)
      number &= llvm::isDigit(text[at]);
    bool inside = begin >= 2 && text[begin - 1] == '.' && isName(begin - 2) &&
                  at < text.size() && text[at] == '.' && isName(at + 1);
    if (number && inside)
      visit(begin, at - begin);
  }
}

std::string cleave::foldLayers(StringRef text) {
  std::string folded;
  size_t done = 0;
  visitNumbers(text, [&](size_t at, size_t length) {
    folded += text.slice(done, at).str() + "*";
    done = at + length;
  });
  return folded + text.drop_front(done).str();
}

std::string cleave::layerOf(StringRef text) {
  std::string numbers;
  visitNumbers(text, [&](size_t at, size_t length) {
    numbers += (numbers.empty() ? "" : ".") + text.substr(at, length).str();
  });
  return numbers;
}

namespace {

/// A number in a line.
struct NumberText {
  enum Kind : char { Plain = 1, Bytes, Place, Layer, SourceLine } kind;
  /// As written, with the unit of bytes.
  std::string text;
  double value = 0;
};

/// A line as a form, with a mark in the place of each number, and its numbers.
struct FormedLine {
  std::string form;
  std::vector<NumberText> numbers;

  explicit FormedLine(StringRef line);
};

} // namespace

/// The length of the number that `text` begins with: digits, and where
/// `decimal` a fraction and an exponent.
static size_t numberLength(StringRef text, bool decimal) {
  auto digits = [&](size_t at) {
    size_t end = at;
    while (end < text.size() && llvm::isDigit(text[end]))
      ++end;
    return end;
  };
  size_t end = digits(0);
  if (!decimal)
    return end;
  if (end < text.size() && text[end] == '.')
    if (size_t last = digits(end + 1); last > end + 1)
      end = last;
  if (text.substr(end, 2) == "e+" || text.substr(end, 2) == "e-")
    if (size_t last = digits(end + 2); last > end + 2)
      end = last;
  return end;
}

FormedLine::FormedLine(StringRef line) {
  auto isName = [](char c) { return llvm::isAlnum(c) || c == '_'; };
  for (size_t at = 0; at < line.size();) {
    StringRef rest = line.drop_front(at);
    if (!isName(rest.front())) {
      form += rest.front();
      ++at;
      continue;
    }
    char before = at ? line[at - 1] : ' ';
    size_t length = numberLength(rest, before != '.');
    StringRef digits = rest.take_front(length), after = rest.drop_front(length);
    char next = after.empty() ? ' ' : after.front();
    NumberText number{NumberText::Plain, digits.str(), 0};
    if (before == '.')
      number.kind = NumberText::Layer;
    else if (before == ':')
      number.kind = NumberText::SourceLine;
    else if (StringRef(form).ends_with("position ") ||
             StringRef(form).ends_with("stage "))
      number.kind = NumberText::Place;
    // A line of a model in Python is a place of its own, as those of a list of
    // positions are; lines of a module are as many as its ops.
    if (length == 0 || isName(next) || before == '-' || next == '-' ||
        (before == ':' && !line.take_front(at - 1).ends_with(".mlir"))) {
      StringRef word = rest.take_while(isName);
      form += word;
      at += word.size();
      continue;
    }
    (void)digits.getAsDouble(number.value);
    double unit = 1;
    for (StringRef name : {" B", " KiB", " MiB", " GiB"}) {
      if (after.starts_with(name) &&
          (after.size() == name.size() || !isName(after[name.size()]))) {
        number = {NumberText::Bytes, number.text + name.str(),
                  number.value * unit};
        length += name.size();
      }
      unit *= 1024;
    }
    form += static_cast<char>(number.kind);
    numbers.push_back(std::move(number));
    at += length;
  }
}

/// `0-2, 5`, or `0-62` of what has more gaps.
static std::string placesOf(const std::set<double> &places) {
  std::vector<std::string> runs;
  for (auto it = places.begin(); it != places.end();) {
    auto first = static_cast<int64_t>(*it), last = first;
    while (++it != places.end() && *it == static_cast<double>(last + 1))
      ++last;
    runs.push_back(std::to_string(first) +
                   (last > first ? "-" + std::to_string(last) : ""));
  }
  if (runs.size() <= 3)
    return llvm::join(runs, ", ");
  return llvm::formatv("{0}-{1}", static_cast<int64_t>(*places.begin()),
                       static_cast<int64_t>(*places.rbegin()));
}

/// The line of several of one form. With `countPlaces`, it has the number of
/// positions and stages instead of their names.
static std::string joinLines(llvm::ArrayRef<FormedLine> lines,
                             bool countPlaces) {
  std::string text;
  size_t n = 0;
  StringRef form = lines.front().form;
  auto isMark = [&](size_t at) {
    return at < form.size() && form[at] <= NumberText::SourceLine;
  };
  for (size_t at = 0; at < form.size(); ++at) {
    if (!isMark(at)) {
      text += form[at];
      continue;
    }
    std::set<double> values;
    const NumberText *least = &lines.front().numbers[n], *most = least;
    for (const FormedLine &line : lines) {
      const NumberText &own = line.numbers[n];
      values.insert(own.value);
      least = own.value < least->value ? &own : least;
      most = own.value > most->value ? &own : most;
    }
    ++n;
    // Of a range that was there, the ends.
    bool isFirst = form.substr(at + 1).starts_with(" to ") && isMark(at + 5);
    bool isLast = form.take_front(at).ends_with(" to ") && isMark(at - 5);
    char kind = form[at];
    if (values.size() == 1 || isFirst) {
      text += least->text;
    } else if (isLast) {
      text += most->text;
    } else if (kind == NumberText::Layer) {
      text += "*";
    } else if (kind == NumberText::Place && countPlaces) {
      StringRef noun =
          StringRef(text).ends_with("stage ") ? "stage" : "position";
      text.resize(text.size() - noun.size() - 1);
      text += cleave::counted(values.size(), noun);
    } else if (kind == NumberText::Place) {
      text.insert(text.size() - 1, "s");
      text += placesOf(values);
    } else {
      text += least->text + (kind == NumberText::SourceLine ? "-" : " to ") +
              most->text;
    }
  }
  return text;
}

static std::vector<std::string> foldForms(llvm::ArrayRef<std::string> lines,
                                          bool countPlaces) {
  std::vector<std::vector<FormedLine>> groups;
  std::map<std::string, size_t> known;
  for (const std::string &line : lines) {
    FormedLine formed(line);
    auto [it, fresh] = known.try_emplace(formed.form, groups.size());
    if (fresh)
      groups.emplace_back();
    groups[it->second].push_back(std::move(formed));
  }
  std::vector<std::string> folded;
  for (const std::vector<FormedLine> &group : groups)
    folded.push_back(joinLines(group, countPlaces));
  return folded;
}

/// Folds the list that a line ends with: `idle: 3 % at position 0, 5 % at
/// position 1` becomes `idle: 3 to 5 % at 2 positions`. A short one stays.
static std::string foldList(const std::string &line) {
  constexpr size_t kShort = 8;
  size_t begin = line.rfind(": ");
  if (begin == std::string::npos)
    return line;
  begin += 2;
  StringRef list = StringRef(line).drop_front(begin);
  bool inner = list.contains("; ");
  std::vector<std::string> items;
  for (StringRef item : llvm::split(list, inner ? "; " : ", "))
    items.push_back(item.str());
  std::vector<std::string> folded = foldForms(items, /*countPlaces=*/true);
  if (items.size() <= kShort || folded.size() > items.size() / 2)
    return line;
  return line.substr(0, begin) + llvm::join(folded, inner ? "; " : ", ");
}

std::vector<std::string> cleave::foldRanges(llvm::ArrayRef<std::string> lines) {
  std::vector<std::string> shorter;
  for (const std::string &line : lines)
    shorter.push_back(foldList(line));
  return foldForms(shorter, /*countPlaces=*/false);
}
