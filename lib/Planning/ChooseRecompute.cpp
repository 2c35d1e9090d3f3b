//===- ChooseRecompute.cpp - What to recompute within a limit -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What a policy saves of each block, and the time that it adds, are known
/// after the parts are split. How much memory the whole needs is known only
/// after its buffers are packed: transients of recomputation, gradients and
/// scratch memory share the arena. A plan is therefore chosen by a budget for
/// saved bytes, packed, and the budget corrected by what the plan really needs;
/// a few rounds are enough.
///
//===----------------------------------------------------------------------===//

#include "cleave/Planning/ChooseRecompute.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "cleave/Dialect/Pipe/Transforms/PredictedSchedule.h"
#include "cleave/Dialect/Pipe/Transforms/RecomputePolicy.h"
#include "cleave/Machines/MachineModel.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Planning/PlanProgram.h"
#include "cleave/Support/ByteSize.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>
#include <map>
#include <tuple>

using namespace mlir;
using namespace cleave;
using pipe::RecomputeChoice;
using pipe::RecomputePolicy;

namespace {

/// A plan whose memory is known.
struct Planned {
  std::string policy;
  /// The bytes of a device at each position, what is outside of the arena
  /// included; empty if the plan is refused, or slower than another that
  /// fits.
  std::vector<double> bytes;
  /// The predicted time of a step.
  double seconds = 0;

  double most() const {
    return bytes.empty() ? INFINITY : *llvm::max_element(bytes);
  }
};

/// A block in a stage.
struct Block {
  int64_t number, stage;
  /// For each sampled choice.
  std::vector<RecomputeOption> options;
};

class Chooser {
public:
  Chooser(ModuleOp local, const CompileOptions &options, RunPhase run)
      : local(local), options(options), runPhase(run) {}

  FailureOr<RecomputePlan> choose(std::optional<RecomputeDecision> &decision);

private:
  LogicalResult splitParts();
  void sample(const RecomputeChoice &choice);
  const Planned &plan(const RecomputePolicy &policy);
  bool fits(const Planned &planned) const {
    return !planned.bytes.empty() && (limit <= 0 || planned.most() <= limit);
  }
  void take(const Planned &planned) {
    if (fits(planned) && (!best || planned.seconds < best->seconds)) {
      best = planned;
      found = {};
      foundSaid.clear();
      if (latest.policy == best->policy)
        std::tie(found, foundSaid) =
            std::tuple(std::move(latest), std::move(said));
    }
    if (!smallest || planned.most() < smallest->most())
      smallest = planned;
  }
  void tryPolicy(const RecomputePolicy &policy);
  void mix(bool outside);
  std::optional<RecomputePolicy> variant(const Planned &from, size_t first,
                                         size_t size,
                                         const RecomputeChoice &choice,
                                         bool outside) const;
  void shrink();
  void refine();
  bool hasManyBlocks() const;
  RecomputePolicy withFirstEqual(RecomputePolicy policy) const;
  bool mayBeBetter(const RecomputePolicy &policy) const;
  const RecomputeOption *optionOf(const RecomputePolicy &policy,
                                  const Block &block) const;
  double savedBytes(const RecomputePolicy &policy, size_t position) const;
  RecomputeDecision describe() const;

  ModuleOp local;
  const CompileOptions &options;
  RunPhase runPhase;
  double limit = 0;
  /// Parts without recomputation.
  OwningOpRef<ModuleOp> parts;
  std::vector<RecomputeChoice> choices;
  std::vector<Block> blocks;
  /// By stage: micro-batches whose saved values are held at a time; by
  /// position, its stages.
  std::vector<double> inFlight;
  std::vector<std::vector<int64_t>> stagesOf;
  std::map<std::string, Planned> known;
  std::optional<Planned> best, smallest;
  /// The modules of the plan that was made last, and of the best one.
  RecomputePlan latest, found;
  /// What passes say of these, errors apart.
  std::vector<Diagnostic> said, foundSaid;
};

} // namespace

/// Plans whose memory `Chooser::refine` finds at most, and those whose time.
static constexpr size_t kMostRefinements = 24, kMostTimed = 96;
/// Plans that `Chooser::shrink` makes at most where blocks are many.
static constexpr size_t kMostOfManyBlocks = 8;
/// The fixed policies, which are sampled first.
static constexpr size_t kFixed = 5;
/// Of so many blocks, all runs are tried, and what is tried is planned.
static constexpr int64_t kFewBlocks = 8;

/// `choice` for all blocks; outside of them, what is cheap or nothing.
static RecomputePolicy uniform(const RecomputeChoice &choice, bool outside) {
  RecomputePolicy policy;
  policy.blocks = {choice};
  policy.outside = {};
  policy.outside.free = outside;
  return policy;
}

/// The program that trains, or the only one: that which saves most.
static pipe::ProgramOp mainProgram(ModuleOp module) {
  pipe::ProgramOp main;
  size_t most = 0;
  for (auto program : module.getOps<pipe::ProgramOp>())
    if (auto saved = program->getAttrOfType<ArrayAttr>(pipe::kSavedAttr))
      if (saved.size() > most) {
        most = saved.size();
        main = program;
      }
  return main;
}

LogicalResult Chooser::splitParts() {
  parts = local.clone();
  PassManager passes(local.getContext());
  passes.enableVerifier(false);
  addParts(passes, options.phases);
  return passes.run(*parts);
}

/// Adds `choice` to those that blocks may have.
void Chooser::sample(const RecomputeChoice &choice) {
  OwningOpRef<ModuleOp> module = parts->clone();
  PhaseOptions own = options.phases;
  own.recompute = uniform(choice, choice.free).str();
  PassManager passes(local.getContext());
  passes.enableVerifier(false);
  addRecompute(passes, own);
  pipe::ProgramOp program;
  if (succeeded(passes.run(*module)))
    program = mainProgram(*module);
  if (!program)
    return;
  auto integer = [](DictionaryAttr item, StringRef name) {
    return cast<IntegerAttr>(item.get(name)).getInt();
  };
  std::map<std::pair<int64_t, int64_t>, RecomputeOption> found;
  auto saved = program->getAttrOfType<ArrayAttr>(pipe::kSavedAttr);
  for (auto item : saved.getAsRange<DictionaryAttr>())
    if (cast<StringAttr>(item.get("op")).getValue() != pipe::kMaskOp)
      found[{integer(item, "stage"), integer(item, "block")}].bytes +=
          integer(item, "bytes");
  std::string error;
  auto rates = machines::MachineModel::parse(own.machine, error);
  if (auto work = program->getAttrOfType<ArrayAttr>(pipe::kRecomputeWorkAttr))
    for (auto item : work.getAsRange<DictionaryAttr>()) {
      auto number = [&](StringRef name) {
        return cast<FloatAttr>(item.get(name)).getValueAsDouble();
      };
      machines::Work own{number("flops"),
                         number("bytes"),
                         number("sent"),
                         number("contraction"),
                         number("contraction_16bit"),
                         number("contraction_8bit"),
                         number("attention"),
                         number("streamed")};
      found[{integer(item, "stage"), integer(item, "block")}].seconds +=
          rates ? rates->secondsOf(own) : 0;
    }
  // The first choice is none, with which all blocks save something.
  if (choices.empty())
    for (const auto &[place, option] : found)
      if (place.second >= 0)
        blocks.push_back({place.second, place.first, {}});
  llvm::stable_sort(blocks, [](const Block &a, const Block &b) {
    return a.number < b.number;
  });
  for (Block &block : blocks)
    block.options.push_back(found[{block.stage, block.number}]);
  choices.push_back(choice);
}

const Planned &Chooser::plan(const RecomputePolicy &policy) {
  auto [it, fresh] = known.try_emplace(policy.str());
  Planned &planned = it->second;
  if (!fresh)
    return planned;
  planned.policy = it->first;
  said.clear();
  CompileOptions own = options;
  own.phases.recompute = planned.policy;
  // Most plans are dropped. The one that is kept is verified once.
  own.verify = Verify::Never;
  OwningOpRef<ModuleOp> module = local.clone();
  if (failed(runPhase(*module, Phase::Scheduled, own)))
    return planned;
  auto schedule = pipe::PredictedSchedule::of(*module, costSource(own.phases));
  if (failed(schedule) || !schedule->program)
    return planned;
  scheduling::ScheduleFacts facts = pipe::findScheduleFacts(*schedule);
  planned.seconds = facts.makespan;
  // Its memory does not matter.
  if (best && planned.seconds >= best->seconds)
    return planned;
  inFlight.clear();
  for (const scheduling::ScheduleFacts::Stage &stage : facts.stages)
    inFlight.push_back(static_cast<double>(stage.peakInFlight));
  stagesOf.clear();
  for (const scheduling::ScheduleFacts::Position &position : facts.positions)
    stagesOf.push_back(position.stages);
  OwningOpRef<ModuleOp> scheduled = module->clone();
  if (failed(runPhase(*module, Phase::Executable, own)))
    return planned;
  FailureOr<PlannedProgram> compiled = planProgram(*module, own);
  if (failed(compiled))
    return planned;
  for (const runtime::MemoryPlan::Position &position :
       compiled->memory.positions)
    planned.bytes.push_back(static_cast<double>(position.neededBytes()));
  latest = {planned.policy, std::move(scheduled), std::move(module)};
  return planned;
}

bool Chooser::hasManyBlocks() const {
  return !blocks.empty() && blocks.back().number >= kFewBlocks;
}

/// What a sampled choice is for a block; null if it was not sampled.
const RecomputeOption *Chooser::optionOf(const RecomputePolicy &policy,
                                         const Block &block) const {
  auto choice = llvm::find(choices, policy.of(block.number));
  return choice == choices.end() ? nullptr
                                 : &block.options[choice - choices.begin()];
}

/// `policy`, and of many blocks with the first of choices that save and add the
/// same, as `none` and `selective` where attention is one op.
RecomputePolicy Chooser::withFirstEqual(RecomputePolicy policy) const {
  if (!hasManyBlocks())
    return policy;
  std::vector<RecomputeChoice> own;
  for (int64_t i = 0; i <= blocks.back().number; ++i)
    own.push_back(policy.of(i));
  for (const Block &block : blocks)
    if (const RecomputeOption *option = optionOf(policy, block)) {
      auto first = llvm::find_if(block.options, [&](const auto &other) {
        return other.bytes == option->bytes && other.seconds == option->seconds;
      });
      own[block.number] = choices[first - block.options.begin()];
    }
  if (llvm::all_equal(own))
    own.resize(1);
  policy.blocks = std::move(own);
  return policy;
}

/// The bytes that the blocks at a position save at a time.
double Chooser::savedBytes(const RecomputePolicy &policy,
                           size_t position) const {
  double bytes = 0;
  for (const Block &block : blocks)
    if (llvm::is_contained(stagesOf[position], block.stage))
      if (const RecomputeOption *option = optionOf(policy, block))
        bytes += option->bytes * inFlight[block.stage];
  return bytes;
}

/// Whether it may pay to plan `policy`, by what its blocks save and add. Of a
/// few blocks it always may; with many, a plan is long, and blocks weigh more
/// than what is outside of them.
bool Chooser::mayBeBetter(const RecomputePolicy &policy) const {
  std::string error;
  auto known = best ? RecomputePolicy::parse(best->policy, error)
                    : std::optional<RecomputePolicy>();
  if (!hasManyBlocks() || !known || best->bytes.size() != stagesOf.size())
    return true;
  std::map<int64_t, double> gain;
  for (const Block &block : blocks) {
    const RecomputeOption *own = optionOf(policy, block);
    const RecomputeOption *other = optionOf(*known, block);
    if (!own || !other)
      return true;
    gain[block.stage] += other->seconds - own->seconds;
  }
  bool lessOutside = known->outside.free && !policy.outside.free;
  if (llvm::none_of(gain, [&](const auto &stage) {
        return stage.second > 0 || (lessOutside && stage.second == 0);
      }))
    return false;
  for (size_t p = 0; limit > 0 && p < stagesOf.size(); ++p)
    if (best->bytes[p] + savedBytes(policy, p) - savedBytes(*known, p) > limit)
      return false;
  return true;
}

/// Plans what may be better than the best plan, and takes it if it is.
void Chooser::tryPolicy(const RecomputePolicy &policy) {
  RecomputePolicy own = withFirstEqual(policy);
  if (mayBeBetter(own))
    take(plan(own));
}

/// Looks for a mixture of choices that is faster than the best plan.
void Chooser::mix(bool outside) {
  if (blocks.empty() || !smallest || smallest->bytes.empty())
    return;
  std::string error;
  // The budget of each position, by what a plan of known memory needs.
  std::vector<double> budget(stagesOf.size(), INFINITY);
  Planned from = best ? *best : *smallest;
  for (int round = 0; round < 6; ++round) {
    auto policy = RecomputePolicy::parse(from.policy, error);
    if (!policy || from.bytes.empty() || from.bytes.size() != stagesOf.size())
      return;
    RecomputePolicy next;
    next.outside = {};
    next.outside.free = outside;
    next.blocks.assign(blocks.back().number + 1, choices.front());
    for (size_t p = 0; p < stagesOf.size(); ++p) {
      double own = savedBytes(*policy, p) + limit - from.bytes[p];
      // Too much before: less than then in any case.
      budget[p] = from.bytes[p] > limit ? std::min(own, budget[p] * 0.97) : own;
      std::vector<std::vector<RecomputeOption>> rows;
      std::vector<const Block *> order;
      for (const Block &block : blocks)
        if (llvm::is_contained(stagesOf[p], block.stage)) {
          order.push_back(&block);
          rows.push_back(block.options);
          for (RecomputeOption &option : rows.back())
            option.bytes *= inFlight[block.stage];
        }
      auto chosen = chooseOptions(rows, budget[p]);
      if (!chosen)
        return;
      for (auto [block, option] : llvm::zip_equal(order, *chosen))
        next.blocks[block->number] = choices[option];
    }
    next = withFirstEqual(std::move(next));
    if (known.count(next.str()) || (fits(from) && !mayBeBetter(next)))
      return;
    from = plan(next);
    take(from);
  }
}

/// The policy of `from` with `choice` for `size` blocks from `first` on, and
/// outside of blocks what is cheap or nothing.
std::optional<RecomputePolicy> Chooser::variant(const Planned &from,
                                                size_t first, size_t size,
                                                const RecomputeChoice &choice,
                                                bool outside) const {
  std::string error;
  auto next = RecomputePolicy::parse(from.policy, error);
  if (!next)
    return std::nullopt;
  std::vector<RecomputeChoice> own;
  for (size_t i = 0; i <= size_t(blocks.back().number); ++i)
    own.push_back(i >= first && i < first + size
                      ? choice
                      : next->of(static_cast<int64_t>(i)));
  next->blocks = std::move(own);
  next->outside = {};
  next->outside.free = outside;
  return withFirstEqual(std::move(*next));
}

/// Looks for a plan that fits, if none has, from the smallest one: what a
/// recomputed block needs at a time may exceed what it would save. Single
/// blocks, late ones before early ones, try each fixed choice.
void Chooser::shrink() {
  if (best || blocks.empty() || !smallest || smallest->bytes.empty())
    return;
  size_t most =
      known.size() + (hasManyBlocks() ? kMostOfManyBlocks : kMostRefinements);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t first = blocks.back().number + 1; first-- > 0;)
      for (size_t i = 0; i < kFixed; ++i)
        for (bool outside : {false, true}) {
          auto next = variant(*smallest, first, 1, choices[i], outside);
          if (!next || known.size() >= most)
            return;
          if (known.count(next->str()))
            continue;
          double before = smallest->most();
          take(plan(*next));
          if (best)
            return;
          changed |= smallest->most() < before;
        }
  }
}

/// Improves the best plan. Bytes of blocks do not simply add up: what the last
/// blocks save is released before the peak, or lies where nothing else does, so
/// that they may recompute less than others. Runs of blocks, long ones before
/// short ones and late ones before early ones, try the choices of less time; of
/// many blocks, only the last and the first of each length.
void Chooser::refine() {
  if (!best || blocks.empty())
    return;
  size_t count = blocks.back().number + 1, timed = known.size(), planned = 0;
  ArrayRef<RecomputeChoice> fixed = ArrayRef(choices).take_front(kFixed);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t size = count; size > 0; size /= 2)
      for (size_t first = count - size + 1; first-- > 0;
           first = hasManyBlocks() && first > 0 ? 1 : first)
        for (const RecomputeChoice &choice : fixed)
          for (bool outside : {false, true}) {
            if (planned >= kMostRefinements ||
                known.size() >= timed + kMostTimed)
              return;
            auto next = variant(*best, first, size, choice, outside);
            if (!next)
              return;
            if (known.count(next->str()) || !mayBeBetter(*next))
              continue;
            double before = best->seconds;
            const Planned &tried = plan(*next);
            planned += !tried.bytes.empty();
            take(tried);
            changed |= best->seconds < before;
          }
  }
}

RecomputeDecision Chooser::describe() const {
  using Binds = RecomputeDecision::Binds;
  RecomputeDecision decision;
  decision.policy = best->policy;
  decision.fits = true;
  decision.bytes = best->most();
  decision.limit = limit;
  decision.seconds = best->seconds;
  bool free = best->policy == uniform({}, false).str();
  decision.binds = free        ? Binds::Nothing
                   : limit > 0 ? Binds::MemoryLimit
                               : Binds::SavedBytes;
  for (const auto &[policy, planned] : known)
    decision.tried.push_back(
        {policy,
         planned.bytes.empty() ? std::optional<double>() : planned.most(),
         planned.seconds});
  return decision;
}

FailureOr<RecomputePlan>
Chooser::choose(std::optional<RecomputeDecision> &decision) {
  limit = static_cast<double>(options.memoryLimit);
  // What fails here fails again, and is then said, where the plan is made.
  auto quietly = [&](auto &&action) {
    ScopedDiagnosticHandler handler(
        local.getContext(), [&](Diagnostic &diagnostic) {
          if (diagnostic.getSeverity() != DiagnosticSeverity::Error)
            said.push_back(std::move(diagnostic));
          return success();
        });
    return action();
  };
  std::vector<RecomputeChoice> fixed(kFixed);
  fixed[1].free = true;
  fixed[2].selective = true;
  fixed[3].free = fixed[3].selective = true;
  fixed[4].full = true;
  quietly([&] {
    if (failed(splitParts()))
      return;
    for (const RecomputeChoice &choice : fixed)
      sample(choice);
    take(plan(uniform(fixed.front(), false)));
    if (best)
      return;
    auto tryFixed = [&] {
      for (const RecomputeChoice &choice : llvm::drop_begin(fixed))
        tryPolicy(uniform(choice, choice.free));
      tryPolicy(uniform(fixed.back(), true));
    };
    auto tryMixtures = [&] {
      for (double price : {1e8, 1e9, 4e9, 1.6e10, 6.4e10, 2.5e11, 1e12}) {
        RecomputeChoice own;
        own.price = price;
        sample(own);
      }
      for (bool outside : {false, true})
        if (limit > 0)
          mix(outside);
    };
    // Of many blocks, some mixture uses nearly all of the limit, and says that
    // others need no plan.
    if (hasManyBlocks()) {
      tryMixtures();
      tryFixed();
    } else {
      tryFixed();
      tryMixtures();
    }
    if (limit > 0) {
      shrink();
      refine();
    }
  });
  if (!best) {
    if (limit > 0 && smallest && !smallest->bytes.empty()) {
      decision.emplace();
      decision->policy = smallest->policy;
      decision->bytes = smallest->most();
      decision->limit = limit;
      return emitError(local.getLoc())
             << llvm::formatv(
                    "no plan needs at most {0} on a device; the smallest "
                    "limit that a plan was found for is {1}, with "
                    "--recompute='{2}'",
                    formatLimit(options.memoryLimit),
                    formatLimit(static_cast<int64_t>(smallest->most())),
                    smallest->policy)
                    .str();
    }
    // Not because of memory.
    return RecomputePlan{uniform(fixed.front(), false).str(), {}, {}};
  }
  decision = describe();
  found.policy = best->policy;
  for (Diagnostic &diagnostic : foundSaid)
    local.getContext()->getDiagEngine().emit(std::move(diagnostic));
  return std::move(found);
}

FailureOr<RecomputePlan>
cleave::chooseRecompute(ModuleOp local, const CompileOptions &options,
                        RunPhase run,
                        std::optional<RecomputeDecision> &decision) {
  return Chooser(local, options, run).choose(decision);
}
