//===- ReadMeasured.cpp - What a run took ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Pipe/IR/MeasuredCosts.h"
#include "cleave/Pipelines/Schedules.h"
#include "cleave/Runtime/ProgramIO.h"
#include "mlir/Support/FileUtilities.h"
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
  auto buffer = mlir::openInputFile(path, &error);
  if (!buffer)
    return runtime::makeError(error);
  return std::move(buffer);
}

llvm::Expected<pipe::Timeline> cleave::readMeasuredTimeline(StringRef path) {
  auto buffer = openTrace(path);
  if (!buffer)
    return buffer.takeError();
  std::string error;
  auto read =
      pipe::readTimelineTrace((*buffer)->getBuffer(), "measured", error);
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
      pipe::readTimelineSteps((*buffer)->getBuffer(), "measured", error);
  std::optional<pipe::MeasuredCosts> costs;
  if (steps)
    costs = pipe::MeasuredCosts::of(*steps, error);
  if (!costs)
    return runtime::makeError(path + " has no costs: " + error);
  return costs->str();
}
