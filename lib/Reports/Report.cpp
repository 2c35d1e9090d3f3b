//===- Report.cpp - What is written about a compilation -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Reports/Report.h"
#include "ReportParts.h"
#include "cleave/Executable/Format/FileIO.h"

using namespace cleave;
using llvm::StringRef;
namespace json = llvm::json;

/// What keys begin with that are written.
static std::string &keyPrefix() {
  static std::string prefix;
  return prefix;
}

void cleave::renameReportKeys(StringRef prefix) { keyPrefix() = prefix.str(); }

static json::Value renamed(const json::Value &value, StringRef prefix) {
  if (const json::Array *array = value.getAsArray()) {
    json::Array all;
    for (const json::Value &item : *array)
      all.push_back(renamed(item, prefix));
    return all;
  }
  const json::Object *object = value.getAsObject();
  if (!object)
    return value;
  json::Object all;
  for (const auto &[key, item] : *object)
    all[(prefix + StringRef(key)).str()] = renamed(item, prefix);
  return all;
}

/// All keys of reports are written here.
static void write(llvm::raw_ostream &os, const json::Value &facts,
                  unsigned indent) {
  llvm::json::OStream out(os, indent);
  if (keyPrefix().empty())
    out.value(facts);
  else
    out.value(renamed(facts, keyPrefix()));
}

std::optional<Report> Report::parse(StringRef text) {
  auto value = runtime::parseJson(text);
  if (!value) {
    llvm::consumeError(value.takeError());
    return std::nullopt;
  }
  if (json::Object *facts = value->getAsObject())
    return Report(std::move(*facts));
  return std::nullopt;
}

std::string Report::str() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  write(os, facts, 0);
  return text;
}

void Report::print(llvm::raw_ostream &os) const {
  write(os, facts, 2);
  os << "\n";
}

const json::Object &cleave::factsOf(const Report &report) {
  return *report.facts.getAsObject();
}

json::Object cleave::takeFactsOf(Report report) {
  return std::move(*report.facts.getAsObject());
}
