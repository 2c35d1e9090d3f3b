//===- TimelineSvg.cpp - Timelines as a picture ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "TimeAxis.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/JSON.h"

using namespace cleave::scheduling;
using llvm::StringRef;

namespace {
/// Writes one picture; all lengths are in pixels.
class SvgWriter {
public:
  SvgWriter(llvm::raw_ostream &os, llvm::ArrayRef<Timeline> timelines);
  void write(StringRef title);

private:
  static constexpr int kTop = 62, kRow = 30, kBox = 20, kStrip = 4, kGap = 34,
                       kMargin = 12, kLetter = 6;

  double at(double seconds) const { return left + seconds / axis.end * wide; }
  void writeText(double x, double y, StringRef text, StringRef more = "");
  void writeLegend();
  void writeAxis(double y);
  void writeRow(const Timeline::Row &row, double y);

  llvm::raw_ostream &os;
  llvm::ArrayRef<Timeline> timelines;
  TimeAxis axis;
  double left = 0, wide = 0;
};
} // namespace

/// The color of a kind. The colors differ in lightness too, for readers who
/// cannot tell the hues apart.
static StringRef colorOf(EventKind kind) {
  switch (kind) {
  case EventKind::Forward:
    return "#9ecae9";
  case EventKind::Backward:
    return "#f2a65a";
  case EventKind::InputGradient:
    return "#f6d28b";
  case EventKind::WeightGradient:
    return "#7fb069";
  case EventKind::Update:
    return "#b279a2";
  case EventKind::Gather:
    return "#4c78a8";
  case EventKind::Reduction:
    return "#8c6d31";
  case EventKind::Other:
    return "#bab0ac";
  case EventKind::Communication:
    return "#d62728";
  }
  return "#ffffff";
}

/// Escapes text for XML, and replaces characters that XML does not allow.
static std::string escape(StringRef text) {
  std::string result;
  for (char c : llvm::json::fixUTF8(text)) {
    switch (c) {
    case '<':
      result += "&lt;";
      break;
    case '>':
      result += "&gt;";
      break;
    case '&':
      result += "&amp;";
      break;
    case '"':
      result += "&quot;";
      break;
    default:
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

static auto pixels(double value) { return llvm::format("%.2f", value); }

SvgWriter::SvgWriter(llvm::raw_ostream &os, llvm::ArrayRef<Timeline> timelines)
    : os(os), timelines(timelines), axis(timelines, 12) {
  size_t longest = 0, most = 0;
  for (const Timeline &timeline : timelines) {
    longest = std::max(longest, timeline.name.size());
    for (const Timeline::Row &row : timeline.rows) {
      longest = std::max(longest, row.name.size());
      most = std::max<size_t>(
          most, llvm::count_if(row.events, [](const TimelineEvent &event) {
            return event.kind != EventKind::Communication;
          }));
    }
  }
  left = 2.0 * kMargin + kLetter * std::min<size_t>(longest, 60);
  // Wide enough for the micro-batch numbers of most runs.
  wide = std::clamp<double>(18.0 * most, 900, 12000);
}

void SvgWriter::writeText(double x, double y, StringRef text, StringRef more) {
  os << "<text x=\"" << pixels(x) << "\" y=\"" << pixels(y) << "\"" << more
     << ">" << escape(text) << "</text>\n";
}

void SvgWriter::writeLegend() {
  double x = kMargin;
  auto entry = [&](StringRef color, StringRef name, int height) {
    os << "<rect x=\"" << pixels(x) << "\" y=\"" << pixels(43 - height)
       << "\" width=\"12\" height=\"" << height << "\" fill=\"" << color
       << "\" stroke=\"#555\"/>\n";
    writeText(x + 17, 42, name);
    x += 17 + kLetter * name.size() + 18;
  };
  for (EventKind kind : kEventKinds)
    if (hasKind(timelines, kind))
      entry(colorOf(kind), eventKindName(kind),
            kind == EventKind::Communication ? int(kStrip) : 12);
  entry("#eeeeee", "idle", 12);
}

void SvgWriter::writeAxis(double y) {
  for (const TimeAxis::Tick &tick : axis.ticks) {
    os << "<line x1=\"" << pixels(at(tick.seconds)) << "\" x2=\""
       << pixels(at(tick.seconds)) << "\" y1=\"" << kTop << "\" y2=\""
       << pixels(y + 4) << "\" stroke=\"#ccc\"/>\n";
    writeText(at(tick.seconds), y + 16, tick.label, " text-anchor=\"middle\"");
  }
  writeText(left + wide / 2, y + 32, ("time in " + axis.unit).str(),
            " text-anchor=\"middle\"");
}

void SvgWriter::writeRow(const Timeline::Row &row, double y) {
  writeText(kMargin, y + 14, row.name);
  os << "<rect x=\"" << pixels(left) << "\" y=\"" << pixels(y) << "\" width=\""
     << pixels(wide) << "\" height=\"" << kBox << "\" fill=\"#eeeeee\"/>\n";
  for (const TimelineEvent &event : row.events) {
    bool sent = event.kind == EventKind::Communication;
    double width = std::max(at(event.end) - at(event.start), 0.0);
    os << "<rect x=\"" << pixels(at(event.start)) << "\" y=\""
       << pixels(sent ? y + kBox + 1 : y) << "\" width=\"" << pixels(width)
       << "\" height=\"" << (sent ? int(kStrip) : int(kBox)) << "\" fill=\""
       << colorOf(event.kind) << (sent ? "" : "\" stroke=\"#555")
       << "\"><title>" << escape(event.action) << ", "
       << eventKindName(event.kind) << ", " << formatSeconds(event.start)
       << " to " << formatSeconds(event.end) << "</title></rect>\n";
    std::string number = std::to_string(event.microBatch);
    if (!sent && event.microBatch >= 0 && width > kLetter * number.size() + 2)
      writeText(at(event.start) + width / 2, y + 14, number,
                " text-anchor=\"middle\" font-size=\"10\" "
                "pointer-events=\"none\"");
  }
}

void SvgWriter::write(StringRef title) {
  double height = kTop;
  for (const Timeline &timeline : timelines)
    height += kRow * timeline.rows.size() + kGap;
  os << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\""
     << pixels(left + wide + 2 * kMargin) << "\" height=\""
     << pixels(height + 42) << "\" font-family=\"sans-serif\" "
     << "font-size=\"11\">\n"
     << "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  writeText(kMargin, 20, title, " font-size=\"14\"");
  writeLegend();
  writeAxis(height);
  double y = kTop;
  for (const Timeline &timeline : timelines) {
    writeText(kMargin, y + 14,
              timeline.name + ", " + formatSeconds(timeline.end()),
              " font-weight=\"bold\"");
    y += kGap - 10;
    for (const Timeline::Row &row : timeline.rows) {
      writeRow(row, y);
      y += kRow;
    }
    y += 10;
  }
  os << "</svg>\n";
}

void cleave::scheduling::writeTimelineSvg(llvm::raw_ostream &os,
                                          llvm::ArrayRef<Timeline> timelines,
                                          StringRef title) {
  SvgWriter(os, timelines).write(title);
}
