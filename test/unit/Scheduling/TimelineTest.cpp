//===- TimelineTest.cpp - Timelines as text, pictures and traces ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Timeline/Timeline.h"
#include "Schedules.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include <array>
#include <chrono>

using namespace cleave::scheduling;
namespace json = llvm::json;

namespace {

Timeline predict(llvm::StringRef name, int64_t p, int64_t v, int64_t m) {
  Made made(name, p, v, m);
  return makeTimeline("predicted", made.schedule, made.simulate(1, 1, 1));
}

std::string text(llvm::ArrayRef<Timeline> timelines, unsigned columns) {
  std::string result;
  llvm::raw_string_ostream os(result);
  writeTimelineText(os, timelines, columns);
  return result;
}

std::string svg(llvm::ArrayRef<Timeline> timelines, llvm::StringRef title) {
  std::string result;
  llvm::raw_string_ostream os(result);
  writeTimelineSvg(os, timelines, title);
  return result;
}

std::string trace(llvm::ArrayRef<Timeline> timelines) {
  std::string result;
  llvm::raw_string_ostream os(result);
  writeTimelineTrace(os, timelines);
  return result;
}

/// Whether every element is closed in order, and every `&` is an entity.
bool isWellFormed(llvm::StringRef xml) {
  std::vector<std::string> open;
  bool root = false;
  while (!xml.empty()) {
    char c = xml.front();
    xml = xml.drop_front();
    if (c == '&') {
      size_t end = xml.find(';');
      llvm::StringRef name = xml.take_front(end);
      if (name != "lt" && name != "gt" && name != "amp" && name != "quot")
        return false;
    }
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n')
      return false;
    if (c != '<')
      continue;
    size_t end = xml.find('>');
    if (end == llvm::StringRef::npos)
      return false;
    llvm::StringRef tag = xml.take_front(end);
    xml = xml.drop_front(end + 1);
    if (tag.count('"') % 2 || tag.contains('<'))
      return false;
    if (tag.consume_front("/")) {
      if (open.empty() || open.back() != tag)
        return false;
      open.pop_back();
      continue;
    }
    if (open.empty() && std::exchange(root, true))
      return false;
    if (!tag.ends_with("/"))
      open.push_back(tag.split(' ').first.str());
  }
  return root && open.empty();
}

size_t count(llvm::StringRef text, llvm::StringRef part) {
  return text.count(part);
}

TEST(Timeline, Text) {
  // Three columns for a unit of time.
  Made made("1f1b", 2, 1, 2);
  std::string error;
  auto full = simulate(
      made.schedule, made.parts, 2, made.map,
      Costs::uniform(made.parts, {{"F", 1}, {"I", 1}, {"W", 1}}), error);
  ASSERT_TRUE(full) << error;
  // F 1, B 2: 9 units.
  EXPECT_EQ(full->makespan, 9);
  std::string drawn = text(makeTimeline("predicted", made.schedule, *full), 27);
  EXPECT_EQ(drawn.substr(0, drawn.find("F forward")),
            "predicted, 9 s\n"
            "position 0 |F0FF1F......B0BBBB...B1BBBB|\n"
            "position 1 |...F0FB0BBBBF1FB1BBBB......|\n"
            "            0              5 s\n");
}

TEST(Timeline, TextShowsTransfersAndLongSteps) {
  Timeline timeline{"x", {{"a", {}}, {"longer", {}}}};
  timeline.rows[0].events = {{"F7", EventKind::Forward, 7, 0, 1},
                             {"F7>1", EventKind::Communication, 7, 1, 2},
                             {"U", EventKind::Update, -1, 3, 4},
                             {"P", EventKind::Other, -1, 2, 3}};
  std::string drawn = text(timeline, 20);
  EXPECT_TRUE(llvm::StringRef(drawn).contains("a      |F7FFF-----pppppUUUUU|"))
      << drawn;
  EXPECT_TRUE(llvm::StringRef(drawn).contains("longer |....................|"));
  // More runs than columns: what takes most of a column is seen.
  std::string many = text(predict("1f1b", 16, 1, 64), 60);
  EXPECT_EQ(count(many, "position "), 16u);
}

TEST(Timeline, SvgIsWellFormed) {
  Timeline timeline = predict("zb-h1", 4, 1, 8);
  std::string drawn = svg(timeline, "zb-h1");
  EXPECT_TRUE(isWellFormed(drawn)) << drawn;
  // A box for each run and each entry of the legend, one idle row for each
  // position, and the paper.
  size_t runs = 0;
  for (const Timeline::Row &row : timeline.rows)
    runs += row.events.size();
  EXPECT_EQ(count(drawn, "<rect"), runs + 5 + 4 + 1);
  EXPECT_EQ(count(drawn, "<title>"), runs);
  for (llvm::StringRef kind :
       {"forward", "input gradient", "weight gradient", "update", "idle"})
    EXPECT_EQ(count(drawn, (">" + kind + "</text>").str()), 1u) << kind.str();
  EXPECT_EQ(count(drawn, ">backward</text>"), 0u);
  EXPECT_EQ(count(drawn, ">position 3</text>"), 1u);
  EXPECT_EQ(count(drawn, ">time in s</text>"), 1u);
  // Each number of a micro-batch stands in F, I and W of each of 4 positions;
  // 7 is no tick of 0, 2, 4, ....
  EXPECT_EQ(count(drawn, ">7</text>"), 12u);
  std::string both = svg({timeline, timeline}, "twice");
  EXPECT_TRUE(isWellFormed(both));
  EXPECT_EQ(count(both, ">position 3</text>"), 2u);
  EXPECT_EQ(count(both, ">time in s</text>"), 1u);
}

TEST(Timeline, SvgEscapes) {
  Timeline timeline{"a<b>&\"c\"\x01\xff", {{"</text><svg>", {}}}};
  timeline.rows[0].events.push_back({"F0>1 & <x>", EventKind::Other, 0, 0, 1});
  std::string drawn = svg(timeline, "1 < 2 && \"3\"");
  EXPECT_TRUE(isWellFormed(drawn)) << drawn;
  EXPECT_EQ(count(drawn, "<svg"), 1u);
  EXPECT_TRUE(json::isUTF8(drawn));
  EXPECT_EQ(count(drawn, "&lt;/text&gt;&lt;svg&gt;"), 1u);
  EXPECT_EQ(count(drawn, "F0&gt;1 &amp; &lt;x&gt;"), 1u);
}

TEST(Timeline, Empty) {
  for (const std::vector<Timeline> &timelines :
       {std::vector<Timeline>(), std::vector<Timeline>(1),
        std::vector<Timeline>{{"x", {{"position 0", {}}}}}}) {
    EXPECT_TRUE(isWellFormed(svg(timelines, "")));
    EXPECT_FALSE(text(timelines, 0).empty());
    auto read = json::parse(trace(timelines));
    EXPECT_TRUE(static_cast<bool>(read)) << llvm::toString(read.takeError());
  }
  // No time at all passes.
  Timeline still{"x", {{"position 0", {{"F0", EventKind::Forward, 0, 0, 0}}}}};
  EXPECT_TRUE(isWellFormed(svg(still, "")));
  EXPECT_TRUE(llvm::StringRef(text(still, 20)).contains("position 0 |"));
}

TEST(Timeline, TraceIsReadBack) {
  Timeline timeline = predict("1f1b", 3, 1, 4);
  timeline.rows[1].events.push_back(
      {"1<F0", EventKind::Communication, 0, 0.5, 1.75});
  timeline.rows[1].events.push_back(
      {"1<F1", EventKind::Communication, 1, 1.5, 2});
  for (Timeline::Row &row : timeline.rows)
    llvm::sort(row.events, [](const auto &a, const auto &b) {
      return std::tie(a.start, a.end, a.action) <
             std::tie(b.start, b.end, b.action);
    });
  std::string written = trace(timeline);
  auto value = json::parse(written);
  ASSERT_TRUE(static_cast<bool>(value)) << llvm::toString(value.takeError());
  // Of each thread, events do not overlap.
  std::map<int64_t, double> ends;
  for (const json::Value &entry :
       *value->getAsObject()->getArray("traceEvents")) {
    const json::Object &event = *entry.getAsObject();
    if (event.getString("ph") != llvm::StringRef("X"))
      continue;
    double start = *event.getNumber("ts");
    int64_t thread = *event.getInteger("tid");
    EXPECT_GE(start, ends[thread] - 1e-3);
    ends[thread] = start + *event.getNumber("dur");
  }
  std::string error;
  auto read = readTimelineTrace(written, "again", error);
  ASSERT_TRUE(read) << error;
  EXPECT_EQ(read->name, "again");
  ASSERT_EQ(read->rows.size(), 3u);
  for (auto [mine, theirs] : llvm::zip(timeline.rows, read->rows)) {
    ASSERT_EQ(mine.events.size(), theirs.events.size());
    for (auto [a, b] : llvm::zip(mine.events, theirs.events)) {
      EXPECT_EQ(a.action, b.action);
      EXPECT_EQ(a.kind, b.kind);
      EXPECT_EQ(a.microBatch, b.microBatch);
      EXPECT_NEAR(a.start, b.start, 1e-9);
      EXPECT_NEAR(a.end, b.end, 1e-9);
    }
  }
}

/// An event as runs write it, times in microseconds.
std::string ran(llvm::StringRef name, llvm::StringRef kind, int start,
                int duration, llvm::StringRef args) {
  return llvm::formatv("{{\"ph\": \"X\", \"name\": \"{0}\", \"cat\": \"{1}\", "
                       "\"ts\": {2}, \"dur\": {3}, \"args\": {{{4}}}",
                       name, kind, start, duration, args);
}

TEST(Timeline, BadTraces) {
  auto errorOf = [](llvm::StringRef text) {
    std::string error = "none";
    EXPECT_FALSE(readTimelineTrace(text, "x", error)) << text.str();
    return error;
  };
  errorOf("");
  errorOf("{");
  EXPECT_EQ(errorOf("{}"), "the trace has no \"traceEvents\"");
  EXPECT_EQ(errorOf("3"), "the trace has no \"traceEvents\"");
  EXPECT_TRUE(
      llvm::StringRef(errorOf("[]")).starts_with("no event of the trace"));
  EXPECT_TRUE(llvm::StringRef(errorOf("[3, {\"ph\": \"X\"}]"))
                  .starts_with("no event of the trace"));
  for (llvm::StringRef device : {"-1", "1000000000"})
    EXPECT_TRUE(llvm::StringRef(
                    errorOf(("[{\"ph\": \"X\", \"name\": \"F0\", \"cat\": "
                             "\"forward\", \"ts\": 0, \"dur\": 1, \"args\": "
                             "{\"device\": " +
                             device + "}}]")
                                .str()))
                    .starts_with("the event 'F0' is invalid"));
  auto forward = [](int duration, const char *args) {
    return "[" + ran("F0", "forward", 0, duration, args) + "]";
  };
  EXPECT_TRUE(llvm::StringRef(errorOf(forward(-1, "\"device\": 0")))
                  .starts_with("the event 'F0' is invalid"));
  EXPECT_TRUE(
      llvm::StringRef(errorOf(forward(1, "\"device\": 0, \"waited\": -1")))
          .starts_with("the event 'F0' is invalid"));
  // The parser itself would end the process.
  // Of which sums and microseconds would be no numbers.
  for (llvm::StringRef time :
       {"\"ts\": 0, \"dur\": 9e307", "\"ts\": -2e18, \"dur\": 1"})
    EXPECT_TRUE(
        llvm::StringRef(errorOf(("[{\"ph\": \"X\", \"name\": \"F0\", \"cat\": "
                                 "\"forward\", " +
                                 time + ", \"args\": {\"device\": 0}}]")
                                    .str()))
            .starts_with("the event 'F0' is invalid"));
  std::string many = "[";
  for (int step = 0; step < 300; ++step)
    many += ran("F0", "forward", 0, 1,
                "\"device\": 4095, \"step\": " + std::to_string(step)) +
            (step < 299 ? "," : "]");
  EXPECT_EQ(errorOf(many),
            "the trace has 257 steps and more, of 4096 pipeline positions, "
            "which is too much to compare; trace fewer steps");
  EXPECT_EQ(errorOf(std::string(1 << 20, '[')),
            "the JSON text is nested more than 64 deep");
}

TEST(Timeline, StepsAreToldApart) {
  std::string text = "[", error;
  // Of steps 1, 2 and 3, of 9, 4 and 5 microseconds, in any order.
  for (auto [step, start, duration] :
       {std::tuple(2, 20, 4), std::tuple(1, 5, 9), std::tuple(3, 30, 5)})
    text += ran("F0", "forward", start, duration,
                llvm::formatv("\"device\": 1, \"step\": {0}", step).str()) +
            ",";
  // A command of the same trace.
  text += ran("contract", "contraction", 0, 3, "\"micro_batch\": 0") + "]";
  auto steps = readTimelineSteps(text, "x", error);
  ASSERT_TRUE(steps) << error;
  ASSERT_EQ(steps->size(), 3u);
  for (auto [timeline, micro] : llvm::zip(*steps, std::array{9, 4, 5})) {
    ASSERT_EQ(timeline.rows.size(), 2u);
    ASSERT_EQ(timeline.rows[1].events.size(), 1u);
    EXPECT_EQ(timeline.rows[1].events[0].start, 0);
    EXPECT_NEAR(timeline.end(), micro * 1e-6, 1e-12);
  }
  auto shown = readTimelineTrace(text, "x", error);
  ASSERT_TRUE(shown) << error;
  EXPECT_NEAR(shown->end(), 5e-6, 1e-12);
}

TEST(Timeline, WhatARunWaitedIsIdle) {
  std::string error;
  std::string text =
      "[" + ran("F0", "forward", 0, 4, "\"device\": 0, \"micro_batch\": 0") +
      "," + ran("U", "update", 4, 6, "\"device\": 0, \"waited\": 5") + "," +
      ran("1<F0", "communication", 0, 5, "\"device\": 1") + "," +
      ran("U", "update", 5, 5, "\"device\": 1, \"waited\": 50") + "]";
  auto read = readTimelineTrace(text, "x", error);
  ASSERT_TRUE(read) << error;
  EXPECT_NEAR(read->rows[0].events[1].start, 9e-6, 1e-12);
  EXPECT_NEAR(read->rows[0].events[1].end, 10e-6, 1e-12);
  std::vector<double> idle = idleShares(*read);
  ASSERT_EQ(idle.size(), 2u);
  EXPECT_NEAR(idle[0], 0.5, 1e-9);
  EXPECT_NEAR(idle[1], 1, 1e-9);
  EXPECT_TRUE(idleShares(Timeline()).empty());
  EXPECT_EQ(idleShares(Timeline{"x", {{"a", {}}}}), std::vector<double>{0});
}

TEST(Timeline, LargeOnesTakeNoTime) {
  Timeline timeline = predict("zb-v", 16, 2, 64);
  auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(isWellFormed(svg({timeline, timeline}, "large")));
  EXPECT_FALSE(text(timeline, 200).empty());
  EXPECT_FALSE(trace(timeline).empty());
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), timeLimit(1));
}

TEST(Timeline, Seconds) {
  EXPECT_EQ(formatSeconds(0), "0 s");
  EXPECT_EQ(formatSeconds(1.5), "1.5 s");
  EXPECT_EQ(formatSeconds(0.0125), "12.5 ms");
  EXPECT_EQ(formatSeconds(3.14159e-5), "31.4 us");
  EXPECT_EQ(formatSeconds(2e-12), "0.002 ns");
}

} // namespace
