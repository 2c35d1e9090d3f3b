//===- OptionFlags.cpp - Flags of the table of options --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Flags.h"
#include "llvm/ADT/StringExtras.h"

using namespace cleave;
using llvm::StringRef;

cl::OptionCategory &cleave::categoryOf(OptionGroup group) {
  static std::map<OptionGroup, std::unique_ptr<cl::OptionCategory>> all;
  std::unique_ptr<cl::OptionCategory> &own = all[group];
  if (!own)
    own = std::make_unique<cl::OptionCategory>(groupTitle(group));
  return *own;
}

/// The help of an option, with the unit of a number that has none.
static std::string describe(const Option &option) {
  std::string text = spellOptions(option.help, Entrance::CommandLine);
  if (option.kind == OptionKind::Size && option.unit > 1)
    text += ". A number without a unit is in " +
            std::string(option.unit == 1024 ? "KiB" : "MiB");
  return text;
}

OptionFlags::OptionFlags() {
  // Flags refer to the texts, which must not move.
  size_t count = 0;
  for (const Option &option : optionTable())
    count += 1 + option.former.size();
  flags.reserve(count);
  for (const Option &option : optionTable()) {
    if (option.flag.empty())
      continue;
    Flag &own = flags.emplace_back();
    own.option = &option;
    own.text = describe(option);
    // One that is off by default is turned on by its name alone.
    bool bare = option.kind == OptionKind::Flag &&
                !std::get<bool>(option.get(CompileOptions()));
    own.value = std::make_unique<cl::opt<std::string>>(
        StringRef(option.flag), cl::desc(own.text),
        cl::cat(categoryOf(option.group)),
        bare ? cl::ValueOptional : cl::ValueRequired);
    if (!bare)
      own.value->setValueStr(option.kind == OptionKind::Flag
                                 ? StringRef("on|off")
                                 : StringRef(option.form));
    for (const FormerName &name : option.former) {
      Flag &former = flags.emplace_back();
      former.option = &option;
      former.former = &name;
      former.text = "The former name of --" + option.flag;
      former.value = std::make_unique<cl::opt<std::string>>(
          StringRef(name.name), cl::desc(former.text), cl::Hidden,
          cl::cat(categoryOf(option.group)));
    }
  }
}

std::string OptionFlags::read(CompileOptions &out) const {
  for (const Flag &flag : flags) {
    if (!flag.value->getNumOccurrences())
      continue;
    StringRef text = flag.value->getValue();
    if (flag.option->kind == OptionKind::Flag && text.empty())
      text = "on";
    if (flag.former && out.given.count(flag.option->name))
      return "--" + flag.former->name + " is the former name of --" +
             flag.option->flag + ": give one of them";
    if (flag.former)
      llvm::errs() << "warning: "
                   << formerNote(*flag.option, flag.former->name,
                                 Entrance::CommandLine)
                   << "\n";
    int64_t unit = flag.former ? flag.former->unit : flag.option->unit;
    if (auto mistake = flag.option->set(out, text, unit))
      return mistake->str(Entrance::CommandLine);
  }
  return "";
}

bool OptionFlags::given(StringRef name) const {
  return llvm::any_of(flags, [&](const Flag &flag) {
    return flag.option->name == name && flag.value->getNumOccurrences();
  });
}
