//===- Reports.cpp - Reports of a training run ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

/// The actions of this process: for the first rank of each pipeline position, a
/// line of JSON for each action.
static std::string describeActions(const Session &session) {
  std::string text;
  llvm::raw_string_ostream os(text);
  for (int rank = 0; rank < session.getLocalRanks(); ++rank) {
    if (!session.leadsPosition(rank))
      continue;
    for (const ActionEvent &e : session.getActions("train", rank)) {
      llvm::json::Object args{{"device", session.getPosition(rank)},
                              {"stage", e.stage},
                              {"step", e.run},
                              {"waited", static_cast<double>(e.waited) / 1e3}};
      if (e.microBatch >= 0)
        args["micro_batch"] = e.microBatch;
      if (e.flops > 0)
        args["flops"] = e.flops;
      os << llvm::json::Value(llvm::json::Object{
                {"name", llvm::json::fixUTF8(e.name)},
                {"cat", llvm::json::fixUTF8(e.kind)},
                {"ph", "X"},
                {"ts", static_cast<double>(e.start) / 1e3},
                {"dur", static_cast<double>(e.duration) / 1e3},
                {"pid", 0},
                {"tid", 1 + session.getNumber(rank)},
                {"args", std::move(args)}})
         << "\n";
    }
  }
  return text;
}

Error Trainer::writeTrace() {
  Expected<std::vector<std::string>> actions =
      session->gather(describeActions(*session));
  if (!actions)
    return actions.takeError();
  if (!session->isLeader())
    return Error::success();
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
        for (llvm::StringRef text : *actions) {
          llvm::SmallVector<llvm::StringRef> lines;
          text.split(lines, '\n', -1, /*KeepEmpty=*/false);
          for (llvm::StringRef line : lines)
            json.rawValue(line);
        }
        for (int rank = 0; rank < session->getLocalRanks(); ++rank)
          for (const TraceEvent &e : session->getTrace(rank)) {
            llvm::StringRef category = timeClassName(e.command->timeClass);
            event(e.command->label.empty() ? category : e.command->label,
                  category, e.start, e.duration, 1 + session->getNumber(rank),
                  e.action->microBatch);
          }
      });
    });
    os << "\n";
  });
}

int64_t cleave::run::residentBytes(llvm::StringRef field) {
  auto buffer = llvm::MemoryBuffer::getFileAsStream("/proc/self/status");
  if (!buffer)
    return 0;
  llvm::StringRef text = (*buffer)->getBuffer();
  size_t at = text.find(field);
  int64_t kilobytes = 0;
  if (at != llvm::StringRef::npos)
    text.substr(at + field.size() + 1).ltrim().consumeInteger(10, kilobytes);
  return kilobytes * 1024;
}

static llvm::format_object<double> mebibytes(int64_t bytes) {
  return llvm::format("%10.1f MiB  ", static_cast<double>(bytes) / (1 << 20));
}

Error Trainer::reportMemory() const {
  // Before the report takes memory.
  int64_t peak = residentBytes("VmHWM");
  MemoryReport memory = session->getMemory();
  auto line = [&](llvm::StringRef name, int64_t bytes) {
    out() << mebibytes(bytes) << name << "\n";
  };
  line(memory.ranks == 1
           ? "arena"
           : ("arena of each of " + Twine(memory.ranks) + " ranks").str(),
       memory.arena);
  for (const auto &[kind, bytes] : memory.byKind)
    line("  " + kind, bytes);
  if (memory.tier)
    line("second tier, a file of a rank", memory.tier);
  line("workspace of the library", memory.workspace);
  if (memory.messages)
    line("messages between processes", memory.messages);
  // Of each process.
  std::string own;
  llvm::raw_string_ostream os(own);
  std::string process =
      session->getLocalRanks() == session->getRanks()
          ? "the process"
          : "the process of rank " + std::to_string(session->getRank());
  os << mebibytes(session->getPlannedBytes()) << "planned for " << process
     << ": arenas, workspace at most, messages\n"
     << mebibytes(residentBefore) << "resident before it loaded the program\n"
     << mebibytes(peak) << "peak resident size of " << process << "\n";
  Expected<std::vector<std::string>> all = session->gather(own);
  if (!all)
    return all.takeError();
  for (const std::string &text : *all)
    out() << text;
  return Error::success();
}

/// The data sent by ranks of this process: by the first one of each pipeline
/// position, if there are several.
static std::string describeCommunication(const Session &session) {
  std::string text;
  llvm::raw_string_ostream os(text);
  bool pipeline = session.getProgram().pipelineAxis >= 0;
  for (int rank = 0; rank < session.getLocalRanks(); ++rank) {
    if (!session.leadsPosition(rank))
      continue;
    llvm::ArrayRef<cleave_sent> sums = session.getSent("train", rank);
    os << "communication of a rank";
    if (pipeline)
      os << " of position " << session.getPosition(rank);
    os << " in a step" << (sums.empty() ? ": none\n" : "\n");
    for (const cleave_sent &c : sums)
      os << llvm::format("%10.3f MiB  %14.1f elements  %6lld in %lld x ",
                         c.bytes / (1 << 20), c.elements,
                         static_cast<long long>(c.count),
                         static_cast<long long>(c.exchanges))
         << c.kind << " over " << c.axes
         << llvm::format("  %.2f ms\n",
                         static_cast<double>(c.nanoseconds) / 1e6);
  }
  return text;
}

Error Trainer::reportCommunication() const {
  Expected<std::vector<std::string>> texts =
      session->gather(describeCommunication(*session));
  if (!texts)
    return texts.takeError();
  for (const std::string &text : *texts)
    out() << text;
  return Error::success();
}
