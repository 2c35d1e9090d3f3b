//===- Report.h - What is written about a compilation -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_REPORTS_REPORT_H
#define CLEAVE_REPORTS_REPORT_H

#include "llvm/Support/JSON.h"
#include <optional>
#include <string>

namespace cleave {

/// Facts as JSON, for people and for other programs. Outside of Reports it can
/// be written and not be read: decisions follow from the structs that a report
/// is made of (`MemoryPlan`, `ScheduleFacts`, ...), never from its keys.
class Report {
public:
  Report() : Report(llvm::json::Object()) {}
  explicit Report(llvm::json::Object facts) : facts(std::move(facts)) {}
  /// Reads what `str` has returned; nothing if it is no report.
  static std::optional<Report> parse(llvm::StringRef text);

  /// On one line.
  std::string str() const;
  /// On many lines.
  void print(llvm::raw_ostream &os) const;

private:
  /// For lines of text; in lib/Reports/ReportParts.h.
  friend const llvm::json::Object &factsOf(const Report &report);
  friend llvm::json::Object takeFactsOf(Report report);
  /// An object; written without a copy.
  llvm::json::Value facts;
};

/// For tests: every key of a report that is written begins with `prefix`, until
/// this is called again. No option and no variable of the environment leads
/// here.
void renameReportKeys(llvm::StringRef prefix);

} // namespace cleave

#endif // CLEAVE_REPORTS_REPORT_H
