//===- OptionTable.cpp - The table of options -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Support/ByteSize.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>

using namespace cleave;
using llvm::StringRef;

StringRef cleave::groupTitle(OptionGroup group) {
  static constexpr StringRef titles[] = {"Batch and layout over devices",
                                         "Numerics",
                                         "Precision",
                                         "Pipeline",
                                         "Communication",
                                         "Memory",
                                         "Changed mathematics",
                                         "Interlocking backpropagation",
                                         "Target"};
  return titles[static_cast<size_t>(group)];
}

StringRef cleave::groupClass(OptionGroup group) {
  static constexpr StringRef classes[] = {
      "",       "Numerics", "Precision", "Pipeline", "Communication",
      "Memory", "Lossy",    "Interlock", "Target"};
  return classes[static_cast<size_t>(group)];
}

std::string cleave::keyOfOption(StringRef name) {
  return llvm::join(llvm::split(name, '-'), "_");
}

/// Adds a row without its values.
static Option &addRow(std::vector<Option> &rows, OptionGroup group,
                      std::string name, OptionKind kind) {
  Option &option = rows.emplace_back();
  option.argument = keyOfOption(name);
  option.name = option.flag = std::move(name);
  option.group = group;
  option.kind = kind;
  return option;
}

/// Adds a row that is kept in `member` as it is.
template <typename Own, typename T>
static OptionDeclaration addMember(std::vector<Option> &rows, OptionGroup group,
                                   std::string name, OptionKind kind,
                                   OptionMember<T> member) {
  Option &option = addRow(rows, group, std::move(name), kind);
  option.get = [member](const CompileOptions &options) -> OptionValue {
    return static_cast<Own>(member.in(options));
  };
  option.put = [member](CompileOptions &options, OptionValue value) {
    member.in(options) = static_cast<T>(std::get<Own>(value));
  };
  return OptionDeclaration(option);
}

OptionDeclaration OptionTable::flag(std::string name,
                                    OptionMember<bool> member) {
  return addMember<bool>(rows, current, std::move(name), OptionKind::Flag,
                         member);
}

OptionDeclaration OptionTable::integer(std::string name,
                                       OptionMember<int64_t> member) {
  return addMember<int64_t>(rows, current, std::move(name), OptionKind::Integer,
                            member)
      .form("number");
}

OptionDeclaration OptionTable::number(std::string name,
                                      OptionMember<double> member) {
  return addMember<double>(rows, current, std::move(name), OptionKind::Number,
                           member)
      .form("number");
}

OptionDeclaration OptionTable::number(std::string name,
                                      OptionMember<float> member) {
  return addMember<double>(rows, current, std::move(name), OptionKind::Number,
                           member)
      .form("number");
}

OptionDeclaration
OptionTable::number(std::string name,
                    OptionMember<std::optional<double>> member) {
  return custom(
             std::move(name), OptionKind::Number,
             [member](const CompileOptions &options) -> OptionValue {
               return member.in(options).value_or(0);
             },
             [member](CompileOptions &options, OptionValue value) {
               member.in(options) = std::get<double>(value);
             })
      .form("number");
}

OptionDeclaration OptionTable::size(std::string name,
                                    OptionMember<int64_t> member) {
  return addMember<int64_t>(rows, current, std::move(name), OptionKind::Size,
                            member)
      .form("size");
}

OptionDeclaration OptionTable::choice(std::string name,
                                      OptionMember<std::string> member,
                                      std::vector<std::string> choices) {
  OptionDeclaration declaration = addMember<std::string>(
      rows, current, std::move(name), OptionKind::Choice, member);
  declaration.form(llvm::join(choices, "|"));
  rows.back().choices = std::move(choices);
  return declaration;
}

OptionDeclaration OptionTable::text(std::string name,
                                    OptionMember<std::string> member) {
  return addMember<std::string>(rows, current, std::move(name),
                                OptionKind::Text, member)
      .form("text");
}

OptionDeclaration
OptionTable::custom(std::string name, OptionKind kind,
                    std::function<OptionValue(const CompileOptions &)> get,
                    std::function<void(CompileOptions &, OptionValue)> put) {
  Option &option = addRow(rows, current, std::move(name), kind);
  option.get = std::move(get);
  option.put = std::move(put);
  return OptionDeclaration(option);
}

llvm::ArrayRef<Option> cleave::optionTable() {
  static const std::vector<Option> table = [] {
    OptionTable made;
    for (auto [group, declare] :
         std::initializer_list<std::pair<OptionGroup, void (*)(OptionTable &)>>{
             {OptionGroup::Layout, declareLayout},
             {OptionGroup::Numerics, declareNumerics},
             {OptionGroup::Precision, declarePrecision},
             {OptionGroup::Pipeline, declarePipeline},
             {OptionGroup::Communication, declareCommunication},
             {OptionGroup::Memory, declareMemory},
             {OptionGroup::Lossy, declareLossy},
             {OptionGroup::Interlock, declareInterlock},
             {OptionGroup::Target, declareTarget}}) {
      made.group(group);
      declare(made);
    }
    return std::move(made.rows);
  }();
  return table;
}

const Option *cleave::findOption(StringRef name) {
  for (const Option &option : optionTable())
    if (option.name == name || option.key() == name)
      return &option;
  return nullptr;
}

const Option *cleave::findFormer(StringRef name) {
  for (const Option &option : optionTable())
    for (const FormerName &former : option.former)
      if (former.name == name || keyOfOption(former.name) == name)
        return &option;
  return nullptr;
}

std::string cleave::formerNote(const Option &option, StringRef former,
                               Entrance entrance) {
  std::string old =
      entrance == Entrance::Python ? keyOfOption(former) : "--" + former.str();
  return old + " is " + spellOptions("{" + option.name + "}", entrance) +
         " now; the former name goes with the next version";
}

bool Option::isDefault(const CompileOptions &options) const {
  static const CompileOptions defaults;
  return get(options) == get(defaults);
}

/// `auto, on or off`.
static std::string listChoices(llvm::ArrayRef<std::string> choices) {
  std::string text;
  for (auto [i, choice] : llvm::enumerate(choices))
    text += (i == 0 ? "" : i + 1 < choices.size() ? ", " : " or ") + choice;
  return text;
}

/// `0.5`, `100`.
static std::string showNumber(double number) {
  return llvm::formatv("{0}", llvm::format("%.9g", number)).str();
}

/// What is wrong with a number.
static std::optional<OptionMistake>
checkBounds(const Option &option, double value, const std::string &shown) {
  if (!(option.least && value < *option.least) &&
      !(option.above && value <= *option.above) &&
      !(option.most && value > *option.most))
    return std::nullopt;
  if (option.least && value < *option.least &&
      (*option.least == 0 || *option.least == 1))
    return OptionMistake{option.name,
                         *option.least == 1
                             ? " must be positive, not " + shown
                             : " must not be negative, but is " + shown};
  std::string range = option.above   ? "above " + showNumber(*option.above)
                      : option.least ? "at least " + showNumber(*option.least)
                                     : "";
  if (option.most)
    range += (range.empty() ? "at most " : " and at most ") +
             showNumber(*option.most);
  return OptionMistake{option.name, " must be " + range + ", not " + shown};
}

/// What a value of an option's kind is, for the message on another one. A size
/// without a unit counts `bare` bytes.
static std::string describeKind(const Option &option, int64_t bare) {
  switch (option.kind) {
  case OptionKind::Flag:
    return "on or off";
  case OptionKind::Integer:
    return "an integer";
  case OptionKind::Number:
    return "a finite number";
  case OptionKind::Size:
    return "a size: a number of " +
           std::string(bare == 1      ? "bytes"
                       : bare == 1024 ? "KiB"
                                      : "MiB") +
           ", or with a unit, as 80GB (10^9 bytes each) or 24GiB (2^30)";
  case OptionKind::Choice:
    return listChoices(option.choices);
  case OptionKind::Text:
    return "a text";
  }
  llvm_unreachable("a kind of options");
}

/// Sets `option` if `value` is valid.
static std::optional<OptionMistake> put(const Option &option,
                                        CompileOptions &options,
                                        OptionValue value,
                                        const std::string &shown) {
  if (auto *integer = std::get_if<int64_t>(&value))
    if (auto mistake =
            checkBounds(option, static_cast<double>(*integer), shown))
      return mistake;
  if (auto *number = std::get_if<double>(&value)) {
    if (!std::isfinite(*number))
      return OptionMistake{option.name, " is a finite number, not " + shown};
    if (auto mistake = checkBounds(option, *number, shown))
      return mistake;
  }
  if (auto *text = std::get_if<std::string>(&value)) {
    if (StringRef(*text).contains('\0'))
      return OptionMistake{option.name, " has a zero byte"};
    if (option.kind == OptionKind::Choice &&
        !llvm::is_contained(option.choices, *text))
      return OptionMistake{option.name, " is " + listChoices(option.choices) +
                                            ", not '" + shown + "'"};
    if (option.problem)
      if (std::string why = option.problem(*text); !why.empty())
        return OptionMistake{option.name, ": " + why};
  }
  option.put(options, std::move(value));
  options.given.insert(option.name);
  return std::nullopt;
}

std::optional<OptionMistake> Option::set(CompileOptions &options,
                                         StringRef text, int64_t bare) const {
  OptionMistake other{name, " is " + describeKind(*this, bare) + ", not '" +
                                text.str() + "'"};
  OptionValue value = text.str();
  switch (kind) {
  case OptionKind::Flag:
    if (text != "on" && text != "off" && text != "true" && text != "false")
      return other;
    value = text == "on" || text == "true";
    break;
  case OptionKind::Integer: {
    int64_t integer;
    if (text.getAsInteger(10, integer))
      return other;
    value = integer;
    break;
  }
  case OptionKind::Number: {
    double number;
    if (text.empty() || text.getAsDouble(number))
      return other;
    value = number;
    break;
  }
  case OptionKind::Size: {
    std::optional<int64_t> bytes =
        parseByteSize(text, static_cast<double>(bare));
    if (!bytes)
      return other;
    value = *bytes;
    break;
  }
  case OptionKind::Choice:
  case OptionKind::Text:
    break;
  }
  return ::put(*this, options, std::move(value), text.str());
}

std::optional<OptionMistake> Option::set(CompileOptions &options,
                                         const llvm::json::Value &value) const {
  std::string shown = value.getAsString()
                          ? "'" + value.getAsString()->str() + "'"
                          : llvm::formatv("{0}", value).str();
  OptionMistake other{name, " is " + describeKind(*this, 1) + ", not " + shown};
  switch (kind) {
  case OptionKind::Flag:
    if (auto flag = value.getAsBoolean())
      return ::put(*this, options, *flag, shown);
    break;
  case OptionKind::Integer:
    if (auto integer = value.getAsInteger())
      return ::put(*this, options, *integer, shown);
    return other;
  case OptionKind::Number:
    if (auto number = value.getAsNumber())
      return ::put(*this, options, *number, showNumber(*number));
    return other;
  case OptionKind::Size:
    if (auto integer = value.getAsInteger())
      return ::put(*this, options, *integer, shown);
    break;
  case OptionKind::Choice:
  case OptionKind::Text:
    break;
  }
  if (auto text = value.getAsString())
    return set(options, *text, 1);
  return other;
}

std::string cleave::spellOptions(StringRef text, Entrance entrance) {
  std::string spelled;
  while (!text.empty()) {
    size_t open = text.find('{');
    spelled += text.take_front(open);
    if (open == StringRef::npos)
      break;
    text = text.drop_front(open + 1);
    auto [name, rest] = text.split('}');
    const Option *option = findOption(name);
    if (!option)
      spelled += ("{" + name + "}").str();
    else if (entrance == Entrance::Python)
      spelled += option->key();
    else
      spelled += "--" + (option->flag.empty() ? option->name : option->flag);
    text = rest;
  }
  return spelled;
}

std::string OptionMistake::str(Entrance entrance) const {
  return spellOptions(option.empty() ? text : "{" + option + "}" + text,
                      entrance);
}

llvm::json::Array cleave::describeOptions() {
  static constexpr StringRef kinds[] = {"flag", "integer", "number",
                                        "size", "choice",  "text"};
  static const CompileOptions defaults;
  llvm::json::Array all;
  for (const Option &option : optionTable()) {
    llvm::json::Array former;
    for (const FormerName &own : option.former)
      former.push_back(
          llvm::json::Object{{"name", own.name}, {"unit", own.unit}});
    llvm::json::Object row{{"name", option.name},
                           {"key", option.key()},
                           {"flag", option.flag},
                           {"former", std::move(former)},
                           {"argument", option.argument},
                           {"group", groupTitle(option.group)},
                           {"class", groupClass(option.group)},
                           {"plain", option.plain},
                           {"fact", option.fact},
                           {"kind", kinds[static_cast<size_t>(option.kind)]},
                           {"form", option.form},
                           {"help", option.help},
                           {"choices", llvm::json::Array(option.choices)},
                           {"drawn", llvm::json::Array(option.drawn)},
                           {"unit", option.unit}};
    if (option.least)
      row["least"] = *option.least;
    if (option.above)
      row["above"] = *option.above;
    if (option.most)
      row["most"] = *option.most;
    std::visit([&](const auto &value) { row["default"] = value; },
               option.get(defaults));
    all.push_back(std::move(row));
  }
  return all;
}
