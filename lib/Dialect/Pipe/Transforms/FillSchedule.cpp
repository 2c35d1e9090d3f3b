//===- FillSchedule.cpp - Chooses the order of the actions ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Order.h"
#include "cleave/Dialect/Pipe/IR/Generators.h"
#include "cleave/Dialect/Pipe/IR/Search.h"
#include "cleave/Dialect/Pipe/IR/Transfers.h"
#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "cleave/Dialect/Pipe/Transforms/Passes.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
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

  /// The positions of the pipeline.
  int64_t countDevices() {
    spmd::MeshOp mesh = spmd::findMesh(getOperation());
    if (!mesh)
      return 1;
    spmd::Mesh known = mesh.getMesh();
    const spmd::MeshAxis *axis = known.find(spmd::kPipelineAxis);
    return axis ? axis->size : 1;
  }

  /// How many stages `program` is cut into.
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

  /// What to do where a generated order saves more than the limit.
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

  /// Gives `program` what there is of an order without transfers, a whole
  /// backward as its two parts, and adds the rest; what runs once comes in the
  /// order of the program.
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
    auto sent =
        insertTransfers(addOtherParts(order.schedule, parts, count, order.map),
                        parts, count, order.map, error);
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

  /// Lets micro-batches come in the order in which a tree sums them up, as on
  /// one device: parts of each stage must run in the order of their numbers.
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
                   << action.str() << " runs behind " << action.part
                   << " of micro-batch " << it->second
                   << ", so that sums would be made in another order than on "
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

  /// Updates are behind each micro-batch, or behind them all, as the parts are.
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
                   ? "behind each micro-batch, and the parts of this program "
                     "behind all of them; run --pipe-update-each first"
                   : "behind all micro-batches, and the parts of this program "
                     "behind each of them");
  }

  /// What `kind` makes for the parts that there are.
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

  /// What parts took in a run, or what they take on the machine.
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

  /// The order that is fastest by these costs.
  FailureOr<Order> search(ProgramOp program) {
    std::string error;
    FailureOr<Costs> known = findCosts(program);
    if (failed(known))
      return failure();
    Costs &costs = *known;
    std::vector<PartInfo> parts = describeParts(program);
    // A stage that has nothing to do has a place in the chain all the same.
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
    program.emitRemark("schedule: begun from ")
        << found->start
        << (found->optimal ? "; no order of these stages is faster" : "");
    return Order{found->schedule, found->map};
  }

  /// Forward of what the order of another entry does not fit: a stage after the
  /// other.
  static Order stageByStage(ProgramOp program, const StageMap &map,
                            int64_t stages) {
    Order order{{}, map};
    order.schedule.devices.assign(map.devices, {});
    for (int64_t stage = 0; stage < stages; ++stage)
      for (int64_t i = 0, e = program.getMicroBatches(); i < e; ++i)
        order.schedule.devices[map.device(stage, i)].push_back({"F", i, stage});
    return order;
  }

  /// The entry that has most to order: that which trains, where there is one.
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

  /// One device: in the order of micro-batches.
  static void fillSingle(ProgramOp program) {
    program.setSchedule(Schedule::singleStage(describeParts(program),
                                              program.getMicroBatches(),
                                              program.getTreeSums())
                            .str());
  }

  /// All entries have the order of `main`, as far as it fits them.
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
    // What does not fit is said whether anything asks for it or not.
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
  /// What the schedules are named by.
  std::string name;
};
} // namespace
