//===- HandWritten.cpp - A schedule written by hand -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Order.h"
#include "cleave/Scheduling/InsertTransfers.h"
#include "cleave/Scheduling/Search/Search.h"
#include "llvm/ADT/StringExtras.h"
#include <set>

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
class HandWritten {
public:
  HandWritten(ProgramOp program, StringRef file)
      : program(program), file(file), parts(describeParts(program)) {}

  FailureOr<Order> read(StringRef text, StringRef mapName, int64_t devices,
                        const VerifyOptions &options);

private:
  Location at(const TextPlace &place) {
    return FileLineColLoc::get(program.getContext(), file,
                               std::max<int64_t>(place.line, 1),
                               std::max<int64_t>(place.column, 1));
  }
  TextPlace placeOf(const ActionRef &action) const {
    const std::vector<int64_t> &from = origins[action.device];
    int64_t index = action.index;
    if (!from.empty())
      index = action.index < from.size() ? from[action.index] : -1;
    const std::vector<TextPlace> &own = places.actions[action.device];
    return index >= 0 && index < static_cast<int64_t>(own.size())
               ? own[index]
               : places.devices[action.device];
  }
  void removeEmptyActions(int64_t stages);
  LogicalResult report(const Schedule &schedule, const Violation &violation);
  FailureOr<StageMap> chooseMap(StringRef name, int64_t devices);
  Schedule withOtherParts(const StageMap &map);

  ProgramOp program;
  StringRef file;
  std::vector<PartInfo> parts;
  Schedule written;
  SchedulePlaces places;
  /// For each position to which actions were added: for each action of its
  /// list, the index of the written action, or -1.
  std::vector<std::vector<int64_t>> origins;
};
} // namespace

/// Removes actions of parts that a stage does not have (the first stage may
/// have no I, because it has no input gradient), so that all stages can be
/// written alike.
void HandWritten::removeEmptyActions(int64_t stages) {
  bool split = llvm::any_of(parts, [](const PartInfo &part) {
    return part.name == "I" || part.name == "W";
  });
  auto isEmpty = [&](const Action &action) {
    bool form =
        action.part == "F" ||
        (split ? action.part == "I" || action.part == "W" : action.part == "B");
    return form && action.kind == Action::Kind::Run && action.stage < stages &&
           action.microBatch >= 0 &&
           llvm::none_of(
               parts,
               [&](const PartInfo &part) {
                 return part.stage == action.stage && part.name == action.part;
               });
  };
  for (auto [actions, own] : llvm::zip_equal(written.devices, places.actions)) {
    std::vector<Action> kept;
    std::vector<TextPlace> keptPlaces;
    for (auto [action, place] : llvm::zip_equal(actions, own))
      if (!isEmpty(action)) {
        kept.push_back(action);
        keptPlaces.push_back(place);
      }
    actions = std::move(kept);
    own = std::move(keptPlaces);
  }
}

LogicalResult HandWritten::report(const Schedule &schedule,
                                  const Violation &violation) {
  if (violation.actions.empty())
    return emitError(at({1, 1})) << "schedule: " << violation.text;
  TextPlace first = placeOf(violation.actions.front());
  InFlightDiagnostic diagnostic = emitError(at(first))
                                  << "schedule: " << violation.text;
  for (const ActionRef &other : llvm::drop_begin(violation.actions))
    if (placeOf(other) != first)
      diagnostic.attachNote(at(placeOf(other)))
          << (other.index < schedule.devices[other.device].size()
                  ? schedule.devices[other.device][other.index].str()
                  : "the list")
          << " at pipeline position " << other.device << " is here";
  return diagnostic;
}

/// Returns the map of this name; if it is empty, the map by which each run is
/// at the position of its stage.
FailureOr<StageMap> HandWritten::chooseMap(StringRef name, int64_t devices) {
  std::string error;
  if (!name.empty()) {
    std::optional<StageMap> map = StageMap::parse(name, devices, error);
    if (!map)
      return program.emitOpError("stage_map: ") << error;
    return *map;
  }
  for (StageMap::Kind kind : {StageMap::Kind::Modular, StageMap::Kind::V}) {
    StageMap map{kind, devices};
    bool fits = true;
    for (auto [d, actions] : llvm::enumerate(written.devices))
      for (const Action &action : actions)
        fits &= action.kind != Action::Kind::Run ||
                map.device(action.stage, action.microBatch) ==
                    static_cast<int64_t>(d);
    if (fits)
      return map;
  }
  return StageMap{StageMap::Kind::Modular, devices};
}

/// Inserts the parts that are not named, except forward and backward.
Schedule HandWritten::withOtherParts(const StageMap &map) {
  std::set<std::pair<int64_t, std::string>> named;
  for (const std::vector<Action> &actions : written.devices)
    for (const Action &action : actions)
      named.insert({action.stage, action.part});
  Schedule result =
      insertMissingParts(written, parts, program.getMicroBatches(), map);
  for (auto [d, actions] : llvm::enumerate(result.devices)) {
    auto isAdded = [&](const Action &action) {
      return !named.count({action.stage, action.part});
    };
    llvm::erase_if(actions, [&](const Action &action) {
      return isAdded(action) && isForwardOrBackward(action.part);
    });
    int64_t next = 0;
    for (const Action &action : actions)
      origins[d].push_back(isAdded(action) ? -1 : next++);
  }
  return result;
}

FailureOr<Order> HandWritten::read(StringRef text, StringRef mapName,
                                   int64_t devices,
                                   const VerifyOptions &options) {
  std::string error;
  std::optional<Schedule> parsed = Schedule::parse(text, error, &places);
  if (!parsed)
    return emitError(at(places.error)) << "schedule: " << error;
  written = std::move(*parsed);
  if (auto stages = program->getAttrOfType<IntegerAttr>(kStagesAttr))
    removeEmptyActions(stages.getInt());
  origins.resize(written.devices.size());
  if (static_cast<int64_t>(written.devices.size()) == devices) {
    FailureOr<StageMap> map = chooseMap(mapName, devices);
    if (failed(map))
      return failure();
    bool hasTransfers = llvm::any_of(written.devices, [](const auto &actions) {
      return llvm::any_of(actions, [](const Action &action) {
        return action.kind != Action::Kind::Run;
      });
    });
    Order order{hasTransfers ? written : withOtherParts(*map), *map};
    if (auto why = findViolation(order.schedule, parts,
                                 program.getMicroBatches(), *map, options))
      return report(order.schedule, *why);
    if (!hasTransfers && devices > 1) {
      auto sent = insertTransfers(order.schedule, parts,
                                  program.getMicroBatches(), *map, error);
      if (!sent)
        return program.emitOpError("schedule: ") << error;
      order.schedule = std::move(*sent);
    }
    return order;
  }
  Violation violation{"expected " + std::to_string(devices) +
                      " lists of actions, one for each position of the axis "
                      "\"pp\", got " +
                      std::to_string(written.devices.size())};
  int64_t device = std::min<int64_t>(devices, written.devices.size() - 1);
  violation.actions.push_back({device, written.devices[device].size()});
  return report(written, violation);
}

FailureOr<Order> cleave::pipe::readHandWritten(ProgramOp program,
                                               StringRef text, StringRef file,
                                               StringRef map, int64_t devices,
                                               const VerifyOptions &options) {
  return HandWritten(program, file).read(text, map, devices, options);
}
