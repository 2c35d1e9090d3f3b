//===- Reports.cpp - What a training run tells of itself ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Runtime/FileIO.h"
#include "cleave/Runtime/ProgramIO.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Twine;

Error Trainer::writeTrace() {
  return writeFileAtomically(options.trace, [&](llvm::raw_ostream &os) {
    llvm::json::OStream json(os);
    auto event = [&](llvm::StringRef name, llvm::StringRef category,
                     int64_t start, int64_t duration, int track,
                     std::optional<int64_t> microBatch) {
      json.object([&] {
        json.attribute("name", llvm::json::fixUTF8(name));
        json.attribute("cat", category);
        json.attribute("ph", "X");
        json.attribute("ts", static_cast<double>(start) / 1e3);
        json.attribute("dur", static_cast<double>(duration) / 1e3);
        json.attribute("pid", 0);
        json.attribute("tid", track);
        if (microBatch)
          json.attributeObject(
              "args", [&] { json.attribute("micro_batch", *microBatch); });
      });
    };
    json.object([&] {
      json.attribute("displayTimeUnit", "ms");
      json.attributeArray("traceEvents", [&] {
        for (auto [i, step] : llvm::enumerate(tracedSteps))
          event(("traced step " + Twine(i + 1)).str(), "step", step.first,
                step.second, 0, std::nullopt);
        for (int rank = 0; rank < session->getLocalRanks(); ++rank)
          for (const TraceEvent &e : session->getExecutor(rank).getTrace()) {
            llvm::StringRef category = timeClassName(e.command->timeClass);
            event(e.command->label.empty() ? category : e.command->label,
                  category, e.start, e.duration, 1 + rank, e.microBatch);
          }
      });
    });
    os << "\n";
  });
}

/// The largest resident size of this process so far, in bytes.
static int64_t peakResident() {
  auto buffer = llvm::MemoryBuffer::getFileAsStream("/proc/self/status");
  if (!buffer)
    return 0;
  llvm::StringRef text = (*buffer)->getBuffer();
  size_t at = text.find("VmHWM:");
  int64_t kilobytes = 0;
  if (at != llvm::StringRef::npos)
    text.substr(at + 6).ltrim().consumeInteger(10, kilobytes);
  return kilobytes * 1024;
}

void Trainer::reportMemory() const {
  MemoryReport memory = session->getMemory();
  auto line = [&](llvm::StringRef name, int64_t bytes) {
    out() << llvm::format("%10.1f MiB  ",
                          static_cast<double>(bytes) / (1 << 20))
          << name << "\n";
  };
  line(memory.ranks == 1
           ? "arena"
           : ("arena of each of " + Twine(memory.ranks) + " ranks").str(),
       memory.arena);
  for (const auto &[kind, bytes] : memory.byKind)
    line("  " + kind, bytes);
  line("workspace of the library", memory.workspace);
  line("peak resident size of the process", peakResident());
}

void Trainer::reportCommunication() const {
  llvm::ArrayRef<Communication> sums =
      session->getExecutor().getCommunication("train");
  out() << "communication of a rank in a step"
        << (sums.empty() ? ": none\n" : "\n");
  for (const Communication &c : sums)
    out() << llvm::format("%10.3f MiB  %14.1f elements  %6lld in %lld x ",
                          c.bytes / (1 << 20), c.elements,
                          static_cast<long long>(c.count),
                          static_cast<long long>(c.exchanges))
          << c.kind << " over " << c.axes
          << llvm::format("  %.2f ms\n",
                          static_cast<double>(c.nanoseconds) / 1e6);
}
