//===- Phases.h - The phases of compilation ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// One function per phase. Each takes a module that is in the phase before it
/// and leaves one in its own; the last pass of each phase is its verifier.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_PHASES_H
#define CLEAVE_PIPELINES_PHASES_H

#include "cleave/Dialect/Graph/Transforms/Optimizer.h"
#include "cleave/Support/TargetTraits.h"
#include "llvm/ADT/StringRef.h"
#include <optional>
#include <string>

namespace mlir {
class OpPassManager;
} // namespace mlir

namespace cleave {

/// In the order in which they are reached.
enum class Phase : uint8_t {
  Model,      ///< one function per entry, as written or traced
  Step,       ///< forward, backward and update on whole tensors
  Placed,     ///< every value has a sharding
  Local,      ///< shapes per device; movements are explicit
  Scheduled,  ///< parts, and the order of their actions
  Executable, ///< kernels, library calls, and a place for every buffer
};

/// "model", "step", ...
llvm::StringRef phaseName(Phase phase);
std::optional<Phase> parsePhase(llvm::StringRef name);

/// What decides the program besides the model.
struct PhaseOptions {
  graph::OptimizerOptions optimizer;
  /// Where updates run: "none": apart, behind all gradients; "backward": each
  /// behind its gradient, which is an error where something stands between;
  /// "forward": in the next step, each before its parameter is read first;
  /// "auto": "backward" where it can be, else "none".
  std::string optimizerFusion = "auto";
  /// A step whose loss or gradients are not finite stops and changes nothing.
  /// Contradicts updates that run before all gradients are there, unless they
  /// are validated behind them.
  bool checkFinite = true;
  /// The stages of a pipeline update before all have said that the update is
  /// right, and take it back where it was not.
  bool postValidation = false;
  /// "f32", or the type that contractions and attention read, "bf16" or "fp16"
  /// (--graph-mixed-precision); or "fp8": as "bf16", but linear layers read 8
  /// bits (--graph-fp8).
  std::string precision = "f32";
  /// With "fp8", the steps whose maxima decide a scale, and the powers of two
  /// by which scales are smaller.
  int64_t fp8History = 1024, fp8Margin = 0;
  /// Whether gradients can underflow, so that the loss is scaled, and overflow,
  /// so that steps are skipped.
  bool scalesLoss() const { return precision == "fp16"; }
  /// The type of the residual stream in mixed precision: "16bit" or "f32".
  std::string residual = "16bit";
  /// The type of products that are activations or gradients of them: "f32", or
  /// "16bit", in which shards exchange their sums, too; or "products": 16 bits,
  /// but f32 where they are summed over shards; or "auto": "16bit" on a GPU,
  /// else "f32".
  std::string activationReduction = "auto";
  /// Whether products yield activations and their gradients in 16 bits.
  bool roundsSums() const {
    return activationReduction == "16bit" || widensSums() ||
           (activationReduction == "auto" && target.isGpu() &&
            precision != "f32" && precision != "fp8");
  }
  /// Whether sums of such products over shards are f32 (--spmd-widen-sums).
  bool widensSums() const { return activationReduction == "products"; }
  /// Whether products of one value by several weights are one
  /// (--spmd-merge-matmuls): "on", "off", or "auto": on a GPU.
  std::string mergeMatmuls = "auto";
  /// Whether that pass runs. Weights in f32 would be copied for it.
  bool mergesProducts() const {
    return precision != "f32" &&
           (mergeMatmuls == "on" || (mergeMatmuls == "auto" && target.isGpu()));
  }
  /// The type in which gradients of weights are summed over
  /// micro-batches and ranks: "f32", or that of `precision`, but not with
  /// "fp8".
  std::string gradientType = "f32";
  /// How gradients are compressed where they are summed over `compressOver`
  /// (--spmd-compress-gradients): "powersgd,rank=4"; empty: not at all.
  std::string compress, compressOver = "dp";
  /// Which weights are zero (--graph-prune): "2:4", "0.9,cubic,steps=1000"; and
  /// to which type those that contractions read are rounded (--graph-quantize):
  /// "int8". Empty: neither.
  std::string prune, quantize;
  /// Steps from gradients to the updates that they make
  /// (--graph-delay-updates): "1", "1,embed*=0"; empty: none.
  std::string updateDelay;
  /// Equal parts that the batch is computed in, one after another. With an
  /// asynchronous schedule, the batch of the model is one of them, and the
  /// program takes as many side by side.
  int64_t microBatches = 1;
  /// Where positive: the grains of the whole batch, in the place of
  /// `microBatches`. Each is computed alike on every mesh and summed up in one
  /// binary tree over all of them, so that results have the same bits.
  int64_t grains = 0;
  /// The devices as named axes, `dp=2,tp=4`; one device where empty.
  std::string mesh;
  /// What is split over them, `megatron-sp,zero1`.
  std::string recipes;
  /// The most chunks that a gather or a reduction and its contractions are cut
  /// into, so that they overlap (--spmd-chunk-collectives); 1: none is cut.
  int64_t collectiveChunks = 1;
  /// The least bytes of the operand of a chunk's collective on a device.
  int64_t collectiveChunkBytes = int64_t(1) << 20;
  /// The rows of experts that a rank has room for: "worst", those of all ranks;
  /// a number, so many even shares; where empty, one of them by their bytes
  /// (Planning/ChooseExpertBuffer.h).
  std::string expertBuffer;
  /// Even shares; 0: the rows of all ranks.
  double expertShares() const;
  /// What follows where that is too few: "abort" ends the step, "grow" compiles
  /// it again with more; "auto": "grow" where the step is of Python.
  std::string expertOverflow = "auto";
  /// How tokens go to experts over several axes: "flat", a row for each choice
  /// over all of them; "hierarchical", a row for each node that has a chosen
  /// expert, and a row for each choice inside nodes; "auto", hierarchical where
  /// the first of these axes is called "node" (--spmd-exchange-rows).
  std::string expertDispatch = "auto";
  /// Where stages of the axis "pp" begin, from the second on: the beginnings of
  /// names of parameters, with commas between. Of even cost where empty.
  std::string stages;
  /// Stages for each position of "pp"; 0: as many as the schedule needs.
  int64_t chunks = 0;
  /// Whether devices that have a value in common send it to other stages in
  /// slices: "auto" where fewer elements are sent in all, "on" or "off".
  std::string pipeSlices = "auto";
  /// The share of the elements of a row of an activation that stages send each
  /// other (--pipe-compress-stages); nothing: all.
  std::optional<double> stageDensity;
  /// What generates their order: a name of Scheduling/Generators/Generators.h,
  /// or "auto", a search for the fastest; "1f1b" where empty.
  std::string schedule;
  /// In its place: an order written by hand (its text, see
  /// Scheduling/Schedule.h), and what messages call the file that it comes
  /// from.
  std::string scheduleText, scheduleFile;
  /// Where not negative: the most bytes that a position of "pp" may have saved
  /// for backward at a time.
  int64_t maxSavedBytes = -1;
  /// Whether attention stays one op; otherwise it is products and a softmax.
  bool fusedAttention = true;
  /// What backward recomputes; see pipe/Transforms/RecomputePolicy.h. "auto" is
  /// replaced before the scheduled phase; see ChooseRecompute.h. "default" is,
  /// besides regions, what is free: nothing on a GPU, where a product that is
  /// kept with what is taken of it costs less than a kernel.
  std::string recompute = "default";
  llvm::StringRef recomputePolicy() const {
    if (recompute != "default")
      return recompute;
    return target.isGpu() ? "regions" : "free,regions";
  }
  /// The type in which forward saves floats for backward: "f32", or "bf16",
  /// "fp16" or "fp8" (--pipe-narrow-saves).
  std::string savePrecision = "f32";
  /// Of an asynchronous schedule, where not negative: the most updates that
  /// come between the parameters that a micro-batch reads and its own update.
  int64_t maxStaleness = -1;
  /// When parameters that lie in parts are gathered: for "each" micro-batch,
  /// "once" for a step, or as "auto" finds (see --pipe-split-stages). Where
  /// empty: each, unless the schedule written by hand has parts that do so
  /// once.
  std::string pipeGather;
  /// Rates by which costs are estimated (see pipe/Transforms/Costs.h).
  std::string machine;
  /// In the place of estimates of whole parts: what they took in a run (see
  /// Scheduling/Timeline/MeasuredCosts.h), and what messages call it.
  std::string measuredCosts, measuredFrom;
  /// Where not 0: heads behind modules, and the modules that a gradient
  /// passes (--graph-interlock). `modules` and `head` say where modules and the
  /// head begin; where `modules` is empty they are the stages of "pp".
  int64_t gradHorizon = 0;
  std::string modules, head;
  /// What is in a second tier while no command uses it, with commas between:
  /// "state", "masters", "saved" (--exec-offload).
  std::string offload;
  /// The least bytes of a saved value that is offloaded.
  int64_t offloadedBytes = 4096;
  /// Threads of a device that scratch memory is planned for.
  int64_t threads = 1;
  /// Largest piece of logits that is held at once, in bytes; 0: by the target.
  int64_t maxLogitsBytes = 0;
  /// That limit. Each piece reads and writes the gradient of the head's weight:
  /// a GPU would do little else in a small one.
  int64_t logitsBytes() const {
    return maxLogitsBytes   ? maxLogitsBytes
           : target.isGpu() ? int64_t(1) << 30
                            : int64_t(100) << 20;
  }
  /// Every action is written out, also where a schedule repeats itself.
  bool writeOutActions = false;
  /// What kernels are for; of a GPU, with its multiprocessors.
  TargetTraits target;
  /// For a GPU, of `--exec-merge-launches`: the most bytes that live longer
  /// because a launch is moved; negative: no launches are merged.
  int64_t movedBytes = int64_t(4) << 20;
  /// Whether that GPU multiplies 8-bit floats.
  bool products8 = false;
  /// Whether attention of 16-bit heads is computed on copies in f32, because
  /// the target has no kernels for it.
  bool wideAttention = true;
};

/// The axes of the mesh over which rows may be sent to the ranks of the weights
/// of their groups.
std::vector<std::string> rowAxes(const PhaseOptions &options);

/// Whether ranks sum delayed gradients in the step after their own.
bool reducesNext(const PhaseOptions &options);

/// Adds the passes with which the scheduled phase begins: those that split
/// parts, and the one that chooses what is recomputed.
void addParts(mlir::OpPassManager &passes, const PhaseOptions &options);
void addRecompute(mlir::OpPassManager &passes, const PhaseOptions &options);

/// Adds the passes that lead from the phase before `phase` to it.
void addPhase(mlir::OpPassManager &passes, Phase phase,
              const PhaseOptions &options);

} // namespace cleave

#endif // CLEAVE_PIPELINES_PHASES_H
