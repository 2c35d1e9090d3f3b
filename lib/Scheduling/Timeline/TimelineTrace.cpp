//===- TimelineTrace.cpp - Timelines as traces for viewers ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Timeline/Timeline.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/JSON.h"

using namespace cleave::scheduling;
using llvm::StringRef;
namespace json = llvm::json;

/// Writes the name of a process or of one of its threads.
static void writeName(json::OStream &out, StringRef kind, StringRef name,
                      int64_t process, int64_t thread) {
  out.object([&] {
    out.attribute("name", kind);
    out.attribute("ph", "M");
    out.attribute("pid", process);
    out.attribute("tid", thread);
    out.attributeObject("args",
                        [&] { out.attribute("name", json::fixUTF8(name)); });
  });
}

static void writeEvent(json::OStream &out, const TimelineEvent &event,
                       int64_t device, int64_t process, int64_t thread) {
  out.object([&] {
    out.attribute("name", json::fixUTF8(event.action));
    out.attribute("cat", eventKindName(event.kind));
    out.attribute("ph", "X");
    out.attribute("ts", event.start * 1e6);
    out.attribute("dur", std::max(event.end - event.start, 0.0) * 1e6);
    out.attribute("pid", process);
    out.attribute("tid", thread);
    out.attributeObject("args", [&] {
      out.attribute("device", device);
      if (event.microBatch >= 0)
        out.attribute("micro_batch", event.microBatch);
    });
  });
}

void cleave::scheduling::writeTimelineTrace(
    llvm::raw_ostream &os, llvm::ArrayRef<Timeline> timelines) {
  json::OStream out(os);
  out.object([&] {
    out.attribute("displayTimeUnit", "ms");
    out.attributeArray("traceEvents", [&] {
      for (auto [process, timeline] : llvm::enumerate(timelines)) {
        writeName(out, "process_name", timeline.name, process, 0);
        int64_t thread = 0;
        for (auto [device, row] : llvm::enumerate(timeline.rows)) {
          int64_t runs = thread++;
          writeName(out, "thread_name", row.name, process, runs);
          // The events of a thread must not overlap: a transfer goes to the
          // first transfer thread of the position that is free.
          std::vector<double> busy;
          int64_t first = thread;
          for (const TimelineEvent &event : row.events) {
            if (event.kind != EventKind::Communication) {
              writeEvent(out, event, device, process, runs);
              continue;
            }
            size_t lane = 0;
            while (lane < busy.size() && busy[lane] > event.start)
              ++lane;
            if (lane == busy.size()) {
              busy.push_back(0);
              writeName(out, "thread_name", row.name + " transfers", process,
                        first + lane);
            }
            busy[lane] = event.end;
            writeEvent(out, event, device, process, first + lane);
          }
          thread = first + busy.size();
        }
      }
    });
  });
  os << "\n";
}
