//===- MeasuredCosts.cpp - Costs of parts, measured in a run --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/Timeline/MeasuredCosts.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>

using namespace cleave::scheduling;
using llvm::StringRef;

/// A bound on stages, above that of any pipeline.
static constexpr int64_t kMostStages = 1 << 20;

/// The relative difference of work up to which two programs count as the same
/// model: costs measured with one then predict the other well enough.
static constexpr double kSameWork = 0.05;

/// Returns the median; of an even number of values, the mean of the middle two.
static double medianOf(std::vector<double> &values) {
  llvm::sort(values);
  size_t half = values.size() / 2;
  return values.size() % 2 ? values[half]
                           : (values[half - 1] + values[half]) / 2;
}

namespace {
/// Collects the events of steps by part.
class Collector {
public:
  explicit Collector(std::string &error) : error(error) {}
  bool add(const Timeline &step);
  MeasuredCosts costs();

private:
  using Part = MeasuredCosts::Part;
  std::string &error;
  std::map<Part, std::vector<double>> runs;
  std::map<Part, double> flops;
  /// By part and the stage that receives.
  std::map<std::pair<Part, int64_t>, std::vector<double>> transfers;
};
} // namespace

bool Collector::add(const Timeline &step) {
  /// The sends of the step, by their text.
  std::map<std::string, const TimelineEvent *> sends;
  std::vector<std::pair<Action, const TimelineEvent *>> receives;
  for (const Timeline::Row &row : step.rows)
    for (const TimelineEvent &event : row.events) {
      std::optional<Action> action = Action::parse(event.action);
      if (!action || action->stage >= kMostStages) {
        error = "the event '" + event.action +
                "' is not an action of a schedule, such as 1F0, F0>1 or U";
        return false;
      }
      if (action->kind == Action::Kind::Run) {
        runs[{action->stage, action->part}].push_back(event.end - event.start);
        if (event.flops > 0)
          flops[{action->stage, action->part}] = event.flops;
      } else if (action->kind == Action::Kind::Send)
        sends[action->str()] = &event;
      else
        receives.push_back({*action, &event});
    }
  for (const auto &[action, event] : receives)
    if (auto it = sends.find(action.run().send(action.to).str());
        it != sends.end())
      transfers[{{action.stage, action.part}, action.to}].push_back(std::max(
          0.0, event->end - std::max(event->start, it->second->start)));
  return true;
}

MeasuredCosts Collector::costs() {
  MeasuredCosts result;
  result.flops = std::move(flops);
  for (auto &[part, seconds] : runs)
    result.run[part] = medianOf(seconds);
  for (auto &[key, seconds] : transfers) {
    // The simulation has one cost for each part: that of its longest transfer.
    double &most = result.transfer[key.first];
    most = std::max(most, medianOf(seconds));
  }
  return result;
}

std::optional<MeasuredCosts> MeasuredCosts::of(llvm::ArrayRef<Timeline> steps,
                                               std::string &error) {
  if (steps.size() > 1)
    steps = steps.drop_front();
  Collector collector(error);
  for (const Timeline &step : steps)
    if (!collector.add(step))
      return std::nullopt;
  MeasuredCosts result = collector.costs();
  if (result.run.empty()) {
    error = "no event is a run of a part";
    return std::nullopt;
  }
  return result;
}

std::string MeasuredCosts::str() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  auto write = [&](const auto &costs, StringRef more) {
    for (const auto &[part, seconds] : costs)
      os << (text.empty() ? "" : ",")
         << Action{part.second, -1, part.first}.str() << more << '='
         << llvm::format("%.9g", seconds);
  };
  write(run, "");
  write(transfer, ">");
  write(flops, "#");
  return text;
}

std::optional<MeasuredCosts> MeasuredCosts::parse(StringRef text,
                                                  std::string &error) {
  MeasuredCosts result;
  llvm::SmallVector<StringRef> entries;
  text.split(entries, ',', -1, /*KeepEmpty=*/false);
  for (StringRef entry : entries) {
    auto [name, value] = entry.trim().split('=');
    bool isTransfer = name.consume_back(">"), isWork = name.consume_back("#");
    std::optional<Action> action = Action::parse(name);
    double seconds = 0;
    if (!action || action->kind != Action::Kind::Run ||
        action->microBatch >= 0 || action->stage >= kMostStages ||
        value.getAsDouble(seconds) || !std::isfinite(seconds) || seconds < 0) {
      error = "'" + entry.trim().str() +
              "' is not a cost; write a part and its seconds, as in "
              "F=0.012,1F=0.013,F>=0.0004";
      return std::nullopt;
    }
    (isTransfer ? result.transfer
     : isWork   ? result.flops
                : result.run)[{action->stage, action->part}] = seconds;
  }
  return result;
}

std::optional<Costs> MeasuredCosts::costsOf(llvm::ArrayRef<PartInfo> parts,
                                            std::string &error) const {
  int64_t measured = 0, wanted = 0;
  for (const auto &[part, seconds] : run)
    measured = std::max(measured, part.first + 1);
  for (const PartInfo &part : parts)
    wanted = std::max(wanted, part.stage + 1);
  if (measured != wanted) {
    error = "the measurement has " + std::to_string(measured) +
            " stages, and the program has " + std::to_string(wanted) +
            "; measure a run with the same mesh, chunks and stages";
    return std::nullopt;
  }
  Costs costs;
  std::string missing;
  for (const PartInfo &part : parts) {
    Part key{part.stage, part.name};
    auto ran = run.find(key);
    if (ran == run.end() && part.fuses.empty())
      missing += (missing.empty() ? "" : ", ") +
                 Action{part.name, -1, part.stage}.str();
    costs.run.push_back(ran == run.end() ? -1 : ran->second);
    auto moved = transfer.find(key);
    costs.transfer.push_back(moved == transfer.end() ? 0 : moved->second);
  }
  if (missing.empty())
    return costs;
  error = "the measurement lacks " + missing +
          "; measure a run with the same settings, whose schedule has the same "
          "parts (B if backward is whole, I and W if it is split)";
  return std::nullopt;
}

std::string MeasuredCosts::checkWork(llvm::ArrayRef<PartInfo> parts,
                                     llvm::ArrayRef<double> wanted) const {
  for (auto [part, expected] : llvm::zip_equal(parts, wanted)) {
    auto it = flops.find({part.stage, part.name});
    if (it == flops.end() || expected <= 0 ||
        std::abs(it->second - expected) <= kSameWork * expected)
      continue;
    return llvm::formatv("the measurement is of another model: a run of {0} "
                         "has {1:e3} floating-point operations in it, and "
                         "{2:e3} in this program; measure a run of this model "
                         "with the same mesh, stages and micro-batch size",
                         Action{part.name, -1, part.stage}.str(), it->second,
                         expected);
  }
  return "";
}
