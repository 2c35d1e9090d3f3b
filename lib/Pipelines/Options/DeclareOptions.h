//===- DeclareOptions.h - How options are declared --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A file of this folder declares the options of a group:
///
///   table.choice("merge-matmuls", &PhaseOptions::mergeMatmuls,
///                {"auto", "on", "off"})
///       .says("With 16-bit precision, ...")
///       .unless(isF32, " on needs {precision} bf16 or fp16: ...");
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_PIPELINES_OPTIONS_DECLAREOPTIONS_H
#define CLEAVE_LIB_PIPELINES_OPTIONS_DECLAREOPTIONS_H

#include "cleave/Pipelines/Options.h"

namespace cleave {

/// Where an option is kept: a member of `CompileOptions` or of its phases.
template <typename T> class OptionMember {
public:
  OptionMember(T CompileOptions::*member)
      : find([=](CompileOptions &o) -> T & { return o.*member; }) {}
  OptionMember(T PhaseOptions::*member)
      : find([=](CompileOptions &o) -> T & { return o.phases.*member; }) {}
  OptionMember(T graph::OptimizerOptions::*member)
      : find([=](CompileOptions &o) -> T & {
          return o.phases.optimizer.*member;
        }) {}
  OptionMember(T runtime::LossScaling::*member)
      : find([=](CompileOptions &o) -> T & { return o.lossScaling.*member; }) {}

  T &in(CompileOptions &options) const { return find(options); }
  const T &in(const CompileOptions &options) const {
    return find(const_cast<CompileOptions &>(options));
  }

private:
  std::function<T &(CompileOptions &)> find;
};

/// Adds to a row of the table.
class OptionDeclaration {
public:
  using Rule = std::function<std::string(const CompileOptions &)>;
  using Condition = std::function<bool(const CompileOptions &)>;

  explicit OptionDeclaration(Option &option) : option(option) {}

  OptionDeclaration &says(std::string help) {
    option.help = std::move(help);
    return *this;
  }
  OptionDeclaration &form(std::string form) {
    option.form = std::move(form);
    return *this;
  }
  /// The command line does not have it.
  OptionDeclaration &withoutFlag() {
    option.flag = "";
    return *this;
  }
  /// On the command line, a number alone counts `bytes`.
  OptionDeclaration &unit(int64_t bytes) {
    option.unit = bytes;
    return *this;
  }
  /// A name of an earlier version, where a number alone counted `unit` bytes.
  OptionDeclaration &formerly(std::string name, int64_t unit = 1) {
    option.former.push_back({std::move(name), unit});
    return *this;
  }
  /// In Python, what `argument` says; nothing if that is empty.
  OptionDeclaration &inPython(std::string argument) {
    option.argument = std::move(argument);
    return *this;
  }
  /// In Python, a plain value in the place of the group is its.
  OptionDeclaration &plain() {
    option.plain = true;
    return *this;
  }
  /// Checkpoints say the value.
  OptionDeclaration &fact() {
    option.fact = true;
    return *this;
  }
  OptionDeclaration &least(double bound) {
    option.least = bound;
    return *this;
  }
  OptionDeclaration &above(double bound) {
    option.above = bound;
    return *this;
  }
  OptionDeclaration &most(double bound) {
    option.most = bound;
    return *this;
  }
  OptionDeclaration &drawn(std::vector<std::string> values) {
    option.drawn = std::move(values);
    return *this;
  }
  OptionDeclaration &
  valid(std::function<std::string(llvm::StringRef)> problem) {
    option.problem = std::move(problem);
    return *this;
  }
  /// A value other than the default needs a condition, else it is refused.
  OptionDeclaration &needs(Condition condition, std::string otherwise) {
    return refused([=](const CompileOptions &options) {
      return condition(options) ? std::string() : otherwise;
    });
  }
  /// The rules of an option are asked in the order of their declaration.
  OptionDeclaration &refused(Rule rule) {
    return add(option.contradiction, rule);
  }
  OptionDeclaration &idleUnless(Condition condition, std::string otherwise) {
    return add(option.idle, [=](const CompileOptions &options) {
      return condition(options) ? std::string() : otherwise;
    });
  }

private:
  OptionDeclaration &add(Rule &rules, Rule rule) {
    rules = [before = std::move(rules), rule](const CompileOptions &options) {
      std::string why = before ? before(options) : "";
      return why.empty() ? rule(options) : why;
    };
    return *this;
  }

  Option &option;
};

/// The rows of the table.
class OptionTable {
public:
  /// Options that follow are listed under this heading.
  void group(OptionGroup heading) { current = heading; }

  OptionDeclaration flag(std::string name, OptionMember<bool> member);
  OptionDeclaration integer(std::string name, OptionMember<int64_t> member);
  OptionDeclaration number(std::string name, OptionMember<double> member);
  OptionDeclaration number(std::string name, OptionMember<float> member);
  OptionDeclaration number(std::string name,
                           OptionMember<std::optional<double>> member);
  OptionDeclaration size(std::string name, OptionMember<int64_t> member);
  OptionDeclaration choice(std::string name, OptionMember<std::string> member,
                           std::vector<std::string> choices);
  OptionDeclaration text(std::string name, OptionMember<std::string> member);
  /// An option that is kept in another form than its own.
  OptionDeclaration
  custom(std::string name, OptionKind kind,
         std::function<OptionValue(const CompileOptions &)> get,
         std::function<void(CompileOptions &, OptionValue)> put);

  std::vector<Option> rows;

private:
  OptionGroup current = OptionGroup::Layout;
};

void declareLayout(OptionTable &table);
void declareNumerics(OptionTable &table);
void declarePrecision(OptionTable &table);
void declarePipeline(OptionTable &table);
void declareCommunication(OptionTable &table);
void declareMemory(OptionTable &table);
void declareLossy(OptionTable &table);
void declareInterlock(OptionTable &table);
void declareTarget(OptionTable &table);

} // namespace cleave

#endif // CLEAVE_LIB_PIPELINES_OPTIONS_DECLAREOPTIONS_H
