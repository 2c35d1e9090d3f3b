//===- Options.h - The table of options -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each option of a training step is declared once, in lib/Pipelines/Options:
/// its name, type, default, bounds, rules and help. The flags of
/// `cleave-compile`, the keys of the JSON object that the Python module passes,
/// the arguments of `cleave.compile`, the page of options and the random sets
/// of the tests follow from this table, so that every entrance accepts and
/// refuses the same.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_OPTIONS_H
#define CLEAVE_PIPELINES_OPTIONS_H

#include "cleave/Pipelines/Compile.h"
#include "llvm/ADT/STLExtras.h"
#include <variant>

namespace cleave {

/// The values of an option. On the command line a flag is `on` or `off`, and a
/// size has a unit (`2GiB`).
enum class OptionKind : uint8_t { Flag, Integer, Number, Size, Choice, Text };

/// The headings under which options are listed.
enum class OptionGroup : uint8_t {
  Layout,
  Numerics,
  Precision,
  Pipeline,
  Communication,
  Memory,
  Lossy,
  Interlock,
  Target
};
/// "Pipeline", and what the group is about.
llvm::StringRef groupTitle(OptionGroup group);
/// The class of the group in Python; empty where its options are arguments of
/// `cleave.compile` themselves.
llvm::StringRef groupClass(OptionGroup group);

/// A flag, an integer or a size in bytes, a number, or a text.
using OptionValue = std::variant<bool, int64_t, double, std::string>;

/// Where options are given, which decides how messages spell their names:
/// `--merge-matmuls` or `merge_matmuls`.
enum class Entrance : uint8_t { CommandLine, Python };

/// Why options are refused: the name of one, and the rest of the sentence.
/// Names of other options are in braces, `{precision}`.
struct OptionMistake {
  std::string option, text;
  /// Of a schedule in a file: `option` is empty, and the text has the place.
  std::string str(Entrance entrance) const;
};

/// A name with underscores.
std::string keyOfOption(llvm::StringRef name);

/// A name that an option had in an earlier version, which is accepted with a
/// warning, and the bytes that a number without a unit counted there.
struct FormerName {
  std::string name;
  int64_t unit = 1;
};

/// One row of the table.
struct Option {
  /// With hyphens; keys of JSON and names in Python have underscores.
  std::string name;
  OptionGroup group = OptionGroup::Layout;
  OptionKind kind = OptionKind::Text;
  /// What stands for the value in a list of options: `steps`.
  std::string form;
  /// Sentences; names of other options are in braces.
  std::string help;
  /// Of a choice.
  std::vector<std::string> choices;
  /// Bounds of a number that is given, both included.
  std::optional<double> least, most;
  /// A bound of a number that is given, not included.
  std::optional<double> above;
  /// The flag; "" for an option that the command line does not have.
  std::string flag;
  std::vector<FormerName> former;
  /// What gives the option in Python, if it is not called as the option is;
  /// "" for an option that Python does not have.
  std::string argument;
  /// Whether it is what a plain value gives in the place of the group in
  /// Python, as in `precision="bf16"`.
  bool plain = false;
  /// Whether checkpoints say the value.
  bool fact = false;
  /// The bytes that a number without a unit counts on the command line.
  int64_t unit = 1;
  /// Values that random sets of options have, beside choices; some of them are
  /// refused.
  std::vector<std::string> drawn;

  std::function<OptionValue(const CompileOptions &)> get;
  std::function<void(CompileOptions &, OptionValue)> put;
  /// Why a text that is given is invalid by itself; empty if it is valid.
  std::function<std::string(llvm::StringRef)> problem;
  /// Why a value other than the default contradicts other options, or has no
  /// effect with them: the end of a sentence that begins with the option's
  /// name. Empty if it does not.
  std::function<std::string(const CompileOptions &)> contradiction;
  /// The same for what is only a warning.
  std::function<std::string(const CompileOptions &)> idle;

  std::string key() const { return keyOfOption(name); }
  bool isDefault(const CompileOptions &options) const;
  /// Sets the option to a text, as the command line has it. Bare sizes count
  /// `bare` bytes.
  std::optional<OptionMistake> set(CompileOptions &options,
                                   llvm::StringRef text, int64_t bare) const;
  /// The same for a value of JSON.
  std::optional<OptionMistake> set(CompileOptions &options,
                                   const llvm::json::Value &value) const;
};

/// All options, group by group.
llvm::ArrayRef<Option> optionTable();
/// By name or key; null if there is none.
const Option *findOption(llvm::StringRef name);
/// The option that had the name or key `name` in an earlier version; null if
/// none had.
const Option *findFormer(llvm::StringRef name);
/// `recipe is plan now; the former name goes with the next version`.
std::string formerNote(const Option &option, llvm::StringRef former,
                       Entrance entrance);

/// The first mistake of options that are valid one by one: what contradicts
/// another option, or has no effect with it.
std::optional<OptionMistake> checkOptions(const CompileOptions &options);
/// The options that are not at their defaults and have no effect, though they
/// contradict nothing.
std::vector<OptionMistake> findIdleOptions(const CompileOptions &options);

/// Reads the files that options name (of a schedule, measured costs and a
/// machine), and sets what follows from other options. They are checked after
/// that.
llvm::Error completeOptions(CompileOptions &options);

/// `text` with the names in braces as the entrance spells them.
std::string spellOptions(llvm::StringRef text, Entrance entrance);

/// What of the options in a JSON object (see `parseCompileOptions`) has no
/// effect, or has a former name. Empty if the object is refused.
std::vector<std::string> warnOfOptions(llvm::StringRef json);

/// The table as JSON: a list of objects with "name", "key", "flag", "former",
/// "argument", "group", "class", "plain", "fact", "kind", "form", "help",
/// "choices", "drawn", "unit", "least", "above", "most" and "default".
llvm::json::Array describeOptions();

} // namespace cleave

#endif // CLEAVE_PIPELINES_OPTIONS_H
