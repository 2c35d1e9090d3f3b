//===- ReadMeasurements.cpp - What a run took ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Scheduling/Timeline/MeasuredCosts.h"
#include "cleave/Support/OpenText.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace cleave;
using llvm::StringRef;

/// Larger traces are those of many steps, whose JSON would fill the memory.
static constexpr uint64_t kMostMib = 256;

static llvm::Expected<std::unique_ptr<llvm::MemoryBuffer>>
openTrace(StringRef path) {
  // Before it is read: what is no file has no size.
  uint64_t size = 0;
  if (!llvm::sys::fs::file_size(path, size) && size > kMostMib << 20)
    return runtime::makeError(path + " is larger than " +
                              llvm::Twine(kMostMib) +
                              " MiB; trace fewer steps");
  std::string error;
  auto buffer = openText(path, &error);
  if (!buffer)
    return runtime::makeError(error);
  return std::move(buffer);
}

llvm::Expected<scheduling::Timeline>
cleave::readMeasuredTimeline(StringRef path) {
  auto buffer = openTrace(path);
  if (!buffer)
    return buffer.takeError();
  std::string error;
  auto read =
      scheduling::readTimelineTrace((*buffer)->getBuffer(), "measured", error);
  if (!read)
    return runtime::makeError(path + " is no timeline: " + error);
  return std::move(*read);
}

llvm::Expected<std::string> cleave::readMeasuredCosts(StringRef path) {
  auto buffer = openTrace(path);
  if (!buffer)
    return buffer.takeError();
  std::string error;
  auto steps =
      scheduling::readTimelineSteps((*buffer)->getBuffer(), "measured", error);
  std::optional<scheduling::MeasuredCosts> costs;
  if (steps)
    costs = scheduling::MeasuredCosts::of(*steps, error);
  if (!costs)
    return runtime::makeError(path + " has no costs: " + error);
  return costs->str();
}

llvm::Expected<std::string> cleave::readMachine(StringRef text) {
  if (text.empty() || text.contains('='))
    return text.str();
  std::string error;
  auto buffer = openText(text, &error);
  if (!buffer)
    return runtime::makeError("'" + text +
                              "' is neither rates, as flops=1e12,link=1e10, "
                              "nor a file with them: " +
                              error);
  std::string rates;
  llvm::SmallVector<StringRef> lines;
  buffer->getBuffer().split(lines, '\n');
  for (StringRef line : lines) {
    line = line.split('#').first.trim();
    if (!line.empty())
      rates += (rates.empty() ? "" : ",") + line.str();
  }
  return rates;
}
