//===- TimelineText.cpp - Timelines as rows of letters --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "TimeAxis.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Format.h"

using namespace cleave::scheduling;

/// The letter of a kind. Idle columns are `.`, or `-` during a transfer.
static char letterOf(EventKind kind) {
  switch (kind) {
  case EventKind::Forward:
    return 'F';
  case EventKind::Backward:
    return 'B';
  case EventKind::InputGradient:
    return 'I';
  case EventKind::WeightGradient:
    return 'W';
  case EventKind::Update:
    return 'U';
  case EventKind::Gather:
    return 'G';
  case EventKind::Reduction:
    return 'R';
  case EventKind::Other:
    return 'p';
  case EventKind::Communication:
    return '-';
  }
  return '?';
}

/// Draws the row of a position. Each column shows the event that takes most of
/// its time; a run shows the number of its micro-batch if there is room.
static std::string drawRow(const Timeline::Row &row, double end,
                           unsigned columns) {
  std::string line(columns, '.');
  std::vector<double> share(columns, 0);
  std::vector<const TimelineEvent *> owner(columns, nullptr);
  for (const TimelineEvent &event : row.events) {
    double first = event.start / end * columns,
           last = event.end / end * columns;
    auto from = static_cast<unsigned>(std::clamp<double>(first, 0, columns));
    for (unsigned c = from; c < columns && c < last; ++c) {
      double overlap =
          std::min<double>(last, c + 1) - std::max<double>(first, c);
      if (event.kind == EventKind::Communication) {
        if (!owner[c])
          line[c] = '-';
      } else if (overlap > share[c]) {
        share[c] = overlap;
        owner[c] = &event;
      }
    }
  }
  for (unsigned c = 0; c < columns;) {
    const TimelineEvent *event = owner[c];
    unsigned to = c + 1;
    while (to < columns && owner[to] == event)
      ++to;
    if (event) {
      std::fill(line.begin() + c, line.begin() + to, letterOf(event->kind));
      std::string number =
          event->microBatch < 0 ? "" : std::to_string(event->microBatch);
      if (number.size() < to - c)
        llvm::copy(number, line.begin() + c + 1);
    }
    c = to;
  }
  return line;
}

void cleave::scheduling::writeTimelineText(llvm::raw_ostream &os,
                                           llvm::ArrayRef<Timeline> timelines,
                                           unsigned columns) {
  columns = std::max(columns, 20u);
  TimeAxis axis(timelines, columns / 12);
  size_t wide = 0;
  for (const Timeline &timeline : timelines)
    for (const Timeline::Row &row : timeline.rows)
      wide = std::max(wide, row.name.size());
  for (const Timeline &timeline : timelines) {
    os << timeline.name << ", " << formatSeconds(timeline.end()) << "\n";
    for (const Timeline::Row &row : timeline.rows) {
      os << llvm::left_justify(row.name, wide) << " |"
         << drawRow(row, axis.end, columns) << "|\n";
    }
  }
  // A tick stands at the first letter of its label.
  std::string ticks(wide + 2, ' ');
  for (const TimeAxis::Tick &tick : axis.ticks) {
    size_t at = wide + 2 + tick.seconds / axis.end * columns;
    if (at < ticks.size())
      continue;
    ticks.resize(at, ' ');
    ticks += tick.label + ' ';
  }
  os << ticks << axis.unit << "\n";
  os << "F forward, B backward, I input gradient, W weight gradient, U update, "
        "G gather, R reduction, p other, - idle during a transfer, . idle\n";
}
