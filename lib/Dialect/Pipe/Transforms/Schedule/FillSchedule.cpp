//===- FillSchedule.cpp - Chooses the order of the actions ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Order.h"
#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
#include "cleave/Scheduling/Generators/Generators.h"
#include "cleave/Scheduling/InsertTransfers.h"
#include "cleave/Scheduling/Search/Search.h"
#include "cleave/Support/TreeOrder.h"
#include <map>

namespace cleave::pipe {
#define GEN_PASS_DEF_FILLSCHEDULE
#include "cleave/Dialect/Pipe/Transforms/Passes.h.inc"
} // namespace cleave::pipe

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

namespace {
struct FillSchedulePass
    : cleave::pipe::impl::FillScheduleBase<FillSchedulePass> {
  using FillScheduleBase::FillScheduleBase;

  /// The number of pipeline positions.
  int64_t countDevices() {
    spmd::MeshOp mesh = spmd::findMesh(getOperation());
    return mesh ? mesh.getMesh().size(spmd::AxisRef{spmd::kPipelineAxis}) : 1;
  }

  /// The number of stages of `program`.
  int64_t countStages(ProgramOp program) {
    auto known = program->getAttrOfType<IntegerAttr>(kStagesAttr);
    return known ? known.getInt() : devices;
  }

  VerifyOptions verifyOptions(bool generated = false) {
    VerifyOptions options;
    options.savedInBytes = true;
    options.generated = generated;
    if (savedBytes >= 0)
      options.savedLimit = savedBytes;
    if (maxStaleness >= 0)
      options.staleness = maxStaleness;
    return options;
  }

  /// The advice for a generated order that exceeds the limit on saved bytes.
  std::string savingLess() {
    if (savedBytes < 0)
      return "";
    std::string names;
    for (StringRef other : {"v-half", "v-min", "auto"})
      if (schedule.empty() && other != kind &&
          !(kind == "v-min" && other == "v-half"))
        names += (names.empty()     ? ""
                  : other == "auto" ? " or "
                                    : ", ") +
                 other.str();
    return "; raise the limit" +
           (names.empty()
                ? names
                : ", or choose a schedule that saves less, such as " + names);
  }

  /// Fits an order without transfers to `program`: removes actions whose parts
  /// do not exist, replaces B by I and W if backward is split, and inserts
  /// missing parts and transfers.
  LogicalResult fit(ProgramOp program, Order order) {
    std::vector<PartInfo> parts = describeParts(program);
    int64_t count = program.getMicroBatches();
    auto has = [&](StringRef name, int64_t stage) {
      return llvm::any_of(parts, [&](const PartInfo &part) {
        return part.name == name && part.stage == stage && !part.once;
      });
    };
    for (std::vector<Action> &actions : order.schedule.devices) {
      std::vector<Action> own;
      for (const Action &action : actions)
        for (StringRef name :
             {StringRef(action.part), StringRef(action.part == "B" ? "I" : ""),
              StringRef(action.part == "B" ? "W" : "")})
          if (action.kind == Action::Kind::Run && has(name, action.stage))
            own.push_back({name.str(), action.microBatch, action.stage});
      actions = std::move(own);
    }
    std::string error;
    auto sent = insertTransfers(
        insertMissingParts(order.schedule, parts, count, order.map), parts,
        count, order.map, error);
    if (!sent)
      return program.emitOpError("schedule: ") << error;
    if (auto why = findViolation(*sent, parts, count, order.map,
                                 verifyOptions(schedule.empty())))
      return program.emitOpError("schedule: ") << why->text << savingLess();
    if (program.getTreeSums() && failed(orderForTree(program, *sent)))
      return failure();
    set(program, {*sent, order.map});
    return success();
  }

  /// Renumbers micro-batches in the order in which a tree adds them up, as on
  /// one device. Each part of a stage must run in the order of micro-batches.
  static LogicalResult orderForTree(ProgramOp program, Schedule &schedule) {
    std::map<std::pair<std::string, int64_t>, int64_t> last;
    for (std::vector<Action> &actions : schedule.devices)
      for (Action &action : actions) {
        if (action.microBatch < 0)
          continue;
        if (action.kind == Action::Kind::Run) {
          auto [it, fresh] = last.try_emplace({action.part, action.stage}, -1);
          if (action.microBatch < it->second)
            return program.emitOpError("schedule: ")
                   << action.str() << " runs after " << action.part
                   << " of micro-batch " << it->second
                   << ", so that the order of sums would differ from that on "
                      "one device: choose another schedule";
          it->second = action.microBatch;
        }
        action.microBatch =
            treeOrder(action.microBatch, program.getMicroBatches());
      }
    return success();
  }

  void set(ProgramOp program, const Order &order) {
    if (devices == 1) {
      program.setSchedule(order.schedule.str());
      return;
    }
    program.setSchedule(order.schedule.compact());
    program.setStageMap(order.map.name());
    program->setAttr(kScheduleNameAttr,
                     StringAttr::get(program.getContext(), name));
  }

  /// Checks that the schedule updates after each micro-batch exactly if the
  /// parts of the program do.
  LogicalResult checkUpdates(ProgramOp program, bool asynchronous) {
    std::vector<PartInfo> parts = describeParts(program);
    bool each =
        llvm::any_of(parts, [](const PartInfo &part) { return part.updates; });
    bool once = llvm::any_of(parts, [](const PartInfo &part) {
      return part.once && part.name == "U";
    });
    if (asynchronous ? !once || each || mainProgram() != program : !each)
      return success();
    return program.emitOpError("schedule: '")
           << name << "' updates "
           << (asynchronous
                   ? "after each micro-batch, and the parts of this program "
                     "after all of them; run --pipe-update-each first"
                   : "after all micro-batches, and the parts of this program "
                     "after each of them");
  }

  /// Generates the schedule `kind` for the parts of `program`.
  LogicalResult generate(ProgramOp program) {
    int64_t count = program.getMicroBatches(), stages = countStages(program);
    std::string error;
    const Generator *generator = findGenerator(kind, error);
    if (!generator)
      return program.emitOpError("schedule: ") << error;
    if (failed(checkUpdates(program, generator->asynchronous)))
      return failure();
    int64_t chunks = (stages + devices - 1) / devices;
    auto made =
        generateSchedule(kind, {devices, chunks, count, maxStaleness}, error);
    if (!made)
      return program.emitOpError("schedule: ") << error;
    return fit(program, {*made, {generator->map, devices}});
  }

  /// The costs of parts: measured ones if given, otherwise estimates.
  FailureOr<Costs> findCosts(ProgramOp program) {
    if (!measuredCosts.empty())
      return measuredCostsOf(program, measuredCosts, measuredFrom);
    std::string error;
    std::optional<MachineModel> known = MachineModel::parse(machine, error);
    if (!known)
      return program.emitOpError("machine: ") << error;
    spmd::MeshOp mesh = spmd::findMesh(getOperation());
    return costsOf(program, mesh ? mesh.getMesh() : spmd::Mesh(), *known);
  }

  /// Searches for the fastest order by these costs.
  FailureOr<Order> search(ProgramOp program) {
    std::string error;
    FailureOr<Costs> known = findCosts(program);
    if (failed(known))
      return failure();
    Costs &costs = *known;
    std::vector<PartInfo> parts = describeParts(program);
    // A stage without parts gets empty ones, so that the chain is complete.
    bool split = llvm::any_of(parts, [](const PartInfo &part) {
      return part.name == "I" || part.name == "W";
    });
    SmallVector<StringRef> forms = {"F"};
    if (split)
      forms.append({"I", "W"});
    else
      forms.push_back("B");
    for (int64_t stage = 0; stage < countStages(program); ++stage)
      for (StringRef name : forms) {
        if (llvm::any_of(parts, [&](const PartInfo &part) {
              return part.name == name && part.stage == stage;
            }))
          continue;
        PartInfo &part = parts.emplace_back();
        part.name = name.str();
        part.stage = stage;
        costs.run.push_back(0);
        costs.transfer.push_back(0);
      }
    SearchOptions options;
    if (savedBytes >= 0)
      options.savedLimit = savedBytes;
    std::optional<SearchResult> found = searchSchedule(
        parts, program.getMicroBatches(), devices, costs, options, error);
    if (!found)
      return program.emitOpError("schedule: ") << error;
    program.emitRemark("schedule: search started from ")
        << found->start
        << (found->optimal ? "; no order of these stages is faster" : "");
    return Order{found->schedule, found->map};
  }

  /// An order of forward alone, stage after stage, for an entry that the order
  /// of the main entry does not fit.
  static Order stageByStage(ProgramOp program, const StageMap &map,
                            int64_t stages) {
    Order order{{}, map};
    order.schedule.devices.assign(map.devices, {});
    for (int64_t stage = 0; stage < stages; ++stage)
      for (int64_t i = 0, e = program.getMicroBatches(); i < e; ++i)
        order.schedule.devices[map.device(stage, i)].push_back({"F", i, stage});
    return order;
  }

  /// The entry with most parts: the training entry, if there is one.
  ProgramOp mainProgram() {
    ProgramOp main;
    int64_t most = -1;
    for (auto program : getOperation().getOps<ProgramOp>()) {
      int64_t count =
          llvm::count_if(describeParts(program), [](const PartInfo &part) {
            return isForwardOrBackward(part.name);
          });
      if (count > most) {
        most = count;
        main = program;
      }
    }
    return main;
  }

  /// The order of a pipeline of one position: micro-batch by micro-batch.
  static void fillSingle(ProgramOp program) {
    program.setSchedule(Schedule::singleStage(describeParts(program),
                                              program.getMicroBatches(),
                                              program.getTreeSums())
                            .str());
  }

  /// Gives all entries the order of `main`, as far as it fits them.
  LogicalResult followMain(ProgramOp main, const Order &order) {
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (program == main)
        continue;
      bool alike = program.getMicroBatches() == main.getMicroBatches();
      if (failed(fit(program, alike ? order
                                    : stageByStage(program, order.map,
                                                   countStages(program)))))
        return failure();
    }
    return success();
  }

  LogicalResult fillAll() {
    ProgramOp main = mainProgram();
    if (!main)
      return success();
    devices = countDevices();
    // Options are checked even if no program needs them.
    if (!measuredCosts.empty() && failed(findCosts(main)))
      return failure();
    if (!schedule.empty()) {
      name = file;
      FailureOr<Order> order =
          readHandWritten(main, schedule, file, map, devices, verifyOptions());
      if (failed(order))
        return failure();
      set(main, *order);
      return followMain(main, *order);
    }
    name = kind;
    if (devices > 1 && kind == "auto") {
      if (failed(checkUpdates(main, /*asynchronous=*/false)))
        return failure();
      FailureOr<Order> order = search(main);
      if (failed(order) || failed(fit(main, *order)))
        return failure();
      return followMain(main, *order);
    }
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (devices == 1)
        fillSingle(program);
      else if (failed(generate(program)))
        return failure();
    }
    return success();
  }

  void runOnOperation() override {
    if (failed(fillAll()))
      signalPassFailure();
  }

  int64_t devices = 1;
  /// The name of the schedules.
  std::string name;
};
} // namespace
