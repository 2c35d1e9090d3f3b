//===- Flags.h - The command line of cleave-compile -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_COMPILE_FLAGS_H
#define CLEAVE_TOOLS_CLEAVE_COMPILE_FLAGS_H

#include "cleave/Pipelines/Compile.h"
#include "cleave/Support/ByteSize.h"
#include "cleave/Support/CommandLine.h"
#include "llvm/Support/CommandLine.h"

namespace cleave {
template <int64_t bare> struct Size;
}

template <int64_t bare>
class llvm::cl::parser<cleave::Size<bare>>
    : public llvm::cl::basic_parser<cleave::Size<bare>> {
public:
  parser(llvm::cl::Option &option)
      : llvm::cl::basic_parser<cleave::Size<bare>>(option) {}
  bool parse(llvm::cl::Option &option, llvm::StringRef, llvm::StringRef text,
             cleave::Size<bare> &size) {
    std::optional<int64_t> bytes = cleave::parseByteSize(text, bare);
    if (!bytes)
      return option.error("a size is a number of " +
                          llvm::Twine(bare == 1024 ? "KiB" : "MiB") +
                          ", or has a unit, as 80GB (10^9 bytes each) or 24GiB "
                          "(2^30); not '" +
                          text + "'");
    size.bytes = *bytes;
    return false;
  }
  llvm::StringRef getValueName() const override { return "size"; }
  void printOptionDiff(const llvm::cl::Option &, const cleave::Size<bare> &,
                       const llvm::cl::OptionValue<cleave::Size<bare>> &,
                       size_t) const {}
};

namespace cleave {

namespace cl = llvm::cl;

/// The names of schedules, for the help text.
std::string describeSchedules();

extern cl::OptionCategory general, training, target;

/// The update rules, for the help text.
std::string describeOptimizers();

/// Flags of the settings of update rules, from their declarations.
class SettingFlags {
public:
  SettingFlags();
  /// Sets what the command line gives. Returns why it is wrong, else "".
  std::string read(graph::OptimizerSettings &out) const;

private:
  struct Setting {
    std::string name, flag, text;
    std::unique_ptr<cl::opt<std::string>> option;
  };
  std::vector<Setting> settings;
};

/// A size in bytes, of which a number alone counts so many.
template <int64_t bare> struct Size {
  int64_t bytes = 0;
  operator int64_t() const { return bytes; }
};
using MibFlag = cl::opt<Size<1048576>>;
using KibFlag = cl::opt<Size<1024>>;

struct Flags;
/// Why the flags of the optimizer are invalid; empty if they are valid.
std::string checkOptimizerFlags(const Flags &flags);
/// Why the flags of --fit and --measure-machine are invalid; empty if they are
/// valid.
std::string checkFitFlags(const Flags &flags);

/// The command line. Not global: the flags that libraries register are removed
/// first, since some have the same names.
struct Flags {
  /// The description of --schedule: all names, from their table.
  std::string scheduleHelp = describeSchedules();

  cl::opt<std::string> input{cl::Positional, cl::Required,
                             cl::desc("<model.mlir>"), cl::cat(general)};
  cl::opt<std::string> output{
      "o", cl::desc("Where to write; `-` is standard output"),
      cl::value_desc("file"), cl::cat(general)};
  cl::opt<std::string> emit{
      "emit",
      cl::desc(
          "What to write instead of an artifact: the IR after a phase "
          "(model, step, placed, local, scheduled, executable), the "
          "kernels as LLVM IR (llvm) or as CUDA C++ (cuda), the predicted "
          "timeline of each pipeline position (schedule), or the memory in use "
          "over a step as counters for ui.perfetto.dev (memory)"),
      cl::value_desc("phase|llvm|cuda|schedule|memory"), cl::cat(general)};
  cl::opt<std::string> scheduleFormat{
      "schedule-format", cl::value_desc("form"), cl::cat(general),
      cl::desc("With --emit=schedule: text, svg or perfetto (a trace for "
               "ui.perfetto.dev); by default from the extension of -o: .svg, "
               ".json, or text, "
               "which --schedule-file reads")};
  cl::opt<std::string> measured{
      "measured-timeline", cl::value_desc("file"), cl::cat(general),
      cl::desc(
          "With --emit=schedule: draw this timeline too, below the predicted "
          "one: a trace written by cleave-run --trace, of which the step "
          "of median length is shown, or a timeline in the perfetto format")};
  cl::opt<std::string> measuredCosts{
      "measured-costs", cl::value_desc("file"), cl::cat(training),
      cl::desc(
          "A trace written by cleave-run --trace: schedules are "
          "predicted, and searched for, by the times of the pipeline's parts "
          "in it, instead of by --machine")};
  cl::opt<std::string> reportFile{
      "report", cl::desc("Write memory, commands and decisions as JSON"),
      cl::value_desc("file"), cl::cat(general)};

  cl::opt<std::string> explain{
      "explain",
      cl::desc(
          "Print what was decided: summary (ten lines), layers (each "
          "kind of decision, with its sums), full, or memory (the peak of a "
          "device by kind, when it is, and which tensors are in use)"),
      cl::value_desc("detail"), cl::cat(general)};
  cl::opt<bool> planOnly{
      "plan-only", cl::cat(general),
      cl::desc("Plan the step and report (--report, --explain; by default "
               "--explain=memory), but generate no code. Needs no weights")};
  cl::opt<std::string> predict{
      "predict", cl::cat(general), cl::value_desc("h200|h100|a100"),
      cl::desc("With --target cuda: print an estimate of a step on one such "
               "GPU, of its commands and of stated rates; nothing is run. "
               "--report has the same as JSON")};
  cl::opt<std::string> fit{
      "fit", cl::cat(general), cl::value_desc("micro-batch|devices"),
      cl::desc(
          "Find by planning alone what fits --memory-limit. micro-batch: the "
          "largest micro-batch, by the fewest --micro-batches; devices: the "
          "fewest devices, from those of --mesh on, where one axis grows, "
          "devices:<axis>, or by default the one over which a recipe shards "
          "parameters or state. Prints what was tried and the flag to pass; "
          "--report has the same as JSON")};

  std::string optimizerHelp = describeOptimizers();
  cl::opt<std::string> optimizer{"optimizer", cl::init("adamw"),
                                 cl::desc(optimizerHelp),
                                 cl::value_desc("name"), cl::cat(training)};
  /// A flag for each setting that an update rule declares: --beta1, ...
  SettingFlags settings;
  cl::opt<std::string> noDecay{
      "no-decay", cl::cat(training), cl::value_desc("terms"),
      cl::desc(
          "Parameters without weight decay: `ndim<2`, or globs over names, "
          "separated by commas")};
  cl::list<std::string> groups{
      "group", cl::cat(training), cl::value_desc("terms:settings"),
      cl::desc(
          "Settings of the parameters that terms match, as of --no-decay: "
          "'*wte*,ndim<2: optimizer=adamw lr-scale=0.1 beta2=0.95'. The "
          "first group that matches a parameter applies; may be repeated")};
  NumberOption clip{"clip", cl::init(0.0), cl::cat(training),
                    cl::desc("Clip the gradients' global 2-norm")};
  cl::opt<int64_t> microBatches{
      "micro-batches", cl::init(1), cl::cat(training),
      cl::desc("Equal parts in which the batch is computed, one "
               "after another")};
  cl::opt<int64_t> deterministic{
      "deterministic", cl::init(0), cl::cat(training), cl::value_desc("grains"),
      cl::desc(
          "Compute the batch in this many equal grains, each by one thread, "
          "and sum them in one tree: losses and weights then have the "
          "same bits for every \"dp\" that divides the grains, a power of "
          "2")};
  cl::opt<std::string> optimizerFusion{
      "optimizer-fusion", cl::init("auto"), cl::cat(training),
      cl::value_desc("where"),
      cl::desc(
          "Where updates run (arXiv 2104.00237). none: after all "
          "gradients; backward: each after its gradient, which is then "
          "released, an "
          "error where that is not possible; forward: in the next step, each "
          "before "
          "the first reader of its parameter; auto, the default: backward if "
          "possible, else none")};
  cl::opt<std::string> checkFinite{
      "check-finite", cl::init("on"), cl::cat(training),
      cl::value_desc("on|off"),
      cl::desc("on, the default: a step whose loss or gradients are not finite "
               "stops and changes nothing, so that no update runs before all "
               "gradients are known; off: it updates nevertheless")};
  cl::opt<std::string> precision{
      "precision", cl::init("f32"), cl::cat(training),
      cl::value_desc("f32|bf16|fp16|fp8"),
      cl::desc(
          "bf16, fp16: contractions and attention read 16-bit copies of "
          "weights and activations, and sum in f32; parameters, optimizer "
          "state, gradients of parameters, losses and statistics stay f32. "
          "With fp16 the loss is scaled, and a step that overflows is "
          "skipped. fp8: as bf16, but linear layers read 8 bits: e4m3 of "
          "weights and activations, e5m2 of gradients, each tensor with a "
          "scale that the largest numbers of the steps before decide")};
  cl::opt<int64_t> fp8History{
      "fp8-history", cl::init(1024), cl::cat(training), cl::value_desc("steps"),
      cl::desc("With --precision fp8, the steps whose largest numbers decide "
               "the scale of a tensor (default 1024)")};
  cl::opt<int64_t> fp8Margin{
      "fp8-margin", cl::init(0), cl::cat(training), cl::value_desc("bits"),
      cl::desc("With --precision fp8, the powers of two by which scales are "
               "smaller than the largest numbers allow (default 0)")};
  cl::opt<std::string> precisionPolicy{
      "precision-policy", cl::cat(training), cl::value_desc("file|text"),
      cl::desc("With --precision bf16, fp16 or fp8, ops that are computed "
               "otherwise: pattern=f32 or pattern=16bit, with commas between, "
               "or a file with such lines. A pattern is of names of ops "
               "(softmax), of "
               "parameters that an op reads and their modules "
               "(layers.*.gate), or of places in the source (model.py:12); of "
               "several that match, the last one counts")};
  cl::opt<std::string> savePrecision{
      "save-precision", cl::init("f32"), cl::cat(training),
      cl::value_desc("f32|bf16|fp16|fp8"),
      cl::desc("The type in which forward saves values for backward: bf16 and "
               "fp16 take half of what f32 takes and fp8 (e4m3) a quarter, and "
               "gradients are computed from rounded values; forward is "
               "unchanged (Gist, ISCA 2018)")};
  cl::opt<std::string> lossScale{
      "loss-scale", cl::init("dynamic"), cl::cat(training),
      cl::value_desc("dynamic|number"),
      cl::desc("With --precision fp16, the factor of the loss (arXiv "
               "1710.03740): dynamic, the default: it falls when a step "
               "overflows, and rises while steps do not; a number: constant")};
  NumberOption lossScaleInit{"loss-scale-init", cl::init(65536),
                             cl::cat(training), cl::value_desc("number"),
                             cl::desc("The first loss scale (default 65536)")};
  NumberOption lossScaleMin{
      "loss-scale-min", cl::init(1), cl::cat(training),
      cl::value_desc("number"),
      cl::desc("The least loss scale (default 1): a step that overflows there "
               "ends the run")};
  cl::opt<int64_t> lossScaleWindow{
      "loss-scale-window", cl::init(1000), cl::cat(training),
      cl::value_desc("steps"),
      cl::desc("Steps without an overflow after which the loss scale doubles "
               "(default 1000)")};
  cl::opt<int64_t> lossScaleHysteresis{
      "loss-scale-hysteresis", cl::init(2), cl::cat(training),
      cl::value_desc("steps"),
      cl::desc("Steps with an overflow after which the loss scale is halved by "
               "each (default 2)")};
  cl::opt<std::string> residual{
      "residual", cl::init("16bit"), cl::cat(training),
      cl::value_desc("16bit|f32"),
      cl::desc(
          "With 16-bit precision, the type of the residual stream, the sum "
          "of embeddings and blocks: 16bit, the default, or f32, which is "
          "nearer to f32 and saves twice as many bytes of it")};
  cl::opt<std::string> activationReduction{
      "activation-reduction", cl::init("auto"), cl::cat(training),
      cl::value_desc("auto|f32|products|16bit"),
      cl::desc(
          "With 16-bit precision, the type of products that are activations or "
          "gradients of them: f32, the default on a processor; products: 16 "
          "bits, but f32 where ranks exchange their sums over shards, the "
          "default on a GPU; or 16bit: ranks exchange half the bytes, each "
          "rank's part rounded")};
  cl::opt<std::string> mergeProducts{
      "merge-products", cl::init("auto"), cl::cat(training),
      cl::value_desc("auto|on|off"),
      cl::desc(
          "With 16-bit precision, whether products of one value by several "
          "weights are one product, as those of query, key and value: auto, "
          "the default, on a GPU; on; off")};
  cl::opt<std::string> compress{
      "compress", cl::cat(training), cl::value_desc("compressor[,setting=x]"),
      cl::desc(
          "Sum gradients over ranks with less data, which changes the "
          "mathematics: powersgd,rank=4 (factors of low rank), "
          "topk,density=0.01 (the largest elements), threshold,keep=0.005, "
          "int8 or 1bit (codes). What is not sent is added in the next step "
          "(error feedback)")};
  cl::opt<std::string> compressOver{
      "compress-over", cl::init("dp"), cl::cat(training),
      cl::value_desc("axis"),
      cl::desc("With --compress: the axis of the mesh over which compressed "
               "gradients are summed, dp by default; over others they are "
               "summed in full")};
  NumberOption compressStages{
      "compress-stages", cl::cat(training), cl::value_desc("density"),
      cl::desc(
          "Of each row (last dimension) of an activation, send this share "
          "of its elements, those of largest magnitude, to other stages of "
          "the pipeline, and the gradient at the same places back; others "
          "are 0, which changes the mathematics (DCT-MP). At 0.0333 stages "
          "send 20 times fewer bytes in f32")};
  cl::opt<std::string> prune{
      "prune", cl::cat(training), cl::value_desc("2:4|share[,setting]"),
      cl::desc(
          "Keep weights of contractions zero behind each update: 2:4 (two of "
          "each four along the inputs), or the share of each tensor, as 0.5 or "
          "0.9,cubic,steps=1000 (the share grows over these steps). Those of "
          "least magnitude are chosen, until the step that steps= says (1 "
          "without cubic), and fixed then")};
  cl::opt<std::string> quantize{
      "quantize", cl::cat(training), cl::value_desc("int8"),
      cl::desc("Train for weights of 8 bits: contractions read weights rounded "
               "to int8 with a scale for each output channel, and gradients "
               "are those of the rounded weights")};
  cl::opt<std::string> updateDelay{
      "update-delay", cl::cat(training),
      cl::value_desc("steps[,pattern=steps...][,reduce=next]"),
      cl::desc("Update parameters by the gradients of so many steps before, "
               "which changes the mathematics: 1, or, by names of parameters, "
               "1,embed*=0. Gradients that wait are state. With reduce=next "
               "ranks add them up in the step behind their own, whose "
               "computation hides the time that takes")};
  cl::opt<std::string> gradientType{
      "gradient-dtype", cl::init("f32"), cl::cat(training),
      cl::value_desc("f32|bf16|fp16"),
      cl::desc(
          "With 16-bit precision, the type in which gradients of weights are "
          "summed over micro-batches and exchanged by ranks: f32, the default, "
          "or that of --precision, bf16 or fp16, half the bytes, each addition "
          "rounded; those of embeddings, norms and biases stay f32")};
  cl::opt<std::string> offload{
      "offload", cl::cat(training), cl::value_desc("kinds"),
      cl::desc(
          "What is in a file of each rank while no command uses it, and "
          "fetched into memory before: state (the optimizer's), masters "
          "(parameters of which forward and backward read 16-bit copies), "
          "saved (by forward for backward), with commas between. Results "
          "have the same bits; cleave-run --offload-dir names the folder")};
  cl::opt<bool> postValidation{
      "post-validation", cl::cat(training),
      cl::desc(
          "In a pipeline, each stage updates when its own gradients are "
          "complete; if the scalars computed from all stages, as for a clip, "
          "differ from those it assumed, it updates again from a copy of "
          "the old values (arXiv 2401.10241, section 4). The bits are the "
          "same; "
          "the copy takes as much memory as parameters and state")};
  cl::opt<std::string> mesh{
      "mesh", cl::cat(training), cl::value_desc("axes"),
      cl::desc(
          "The devices as named axes, major to minor: dp=2,tp=4. Positions "
          "of an axis pp are stages of a pipeline")};
  cl::opt<std::string> schedule{"schedule", cl::cat(training),
                                cl::value_desc("name"), cl::desc(scheduleHelp)};
  cl::opt<std::string> scheduleFile{
      "schedule-file", cl::cat(training), cl::value_desc("file"),
      cl::desc("Instead of --schedule, an order written by hand: a line for "
               "each position "
               "of the pipeline, as F0 F1 B0 B1 U, with or without transfers; "
               "docs/Parallelism.md describes the format")};
  MibFlag maxSavedBytes{
      "max-saved-mib", cl::init(Size<1048576>{-1}), cl::cat(training),
      cl::value_desc("size"),
      cl::desc(
          "The limit of the memory, in MiB or with a unit as 2GiB, that a "
          "pipeline position may have saved for "
          "backward at a time; --schedule=auto respects it, any other order "
          "that exceeds it is an error")};
  cl::opt<std::string> fusedAttention{
      "fused-attention", cl::init("on"), cl::cat(training),
      cl::value_desc("on|off"),
      cl::desc("on, the default: attention is one op, which holds no scores; "
               "off: it is products and a softmax, whose results are tensors")};
  cl::opt<std::string> recompute{
      "recompute", cl::init("default"), cl::cat(training),
      cl::value_desc("policy"),
      cl::desc(
          "What backward computes again instead of saving it. none; free: "
          "element-wise and row-wise ops; selective: the core of an attention "
          "that is not one op (arXiv 2205.05198); full: all of each block, "
          "from "
          "its input; regions: all of what the model runs in "
          "torch.utils.checkpoint; several with commas, by default "
          "free,regions, and regions with --target cuda; a policy for each "
          "block, as '3 full; 5 free; none'; or auto: by blocks, the least "
          "time "
          "within --memory-limit. Results have the same bits, on a GPU but "
          "for gelu that is computed again")};
  cl::opt<std::string> recomputeFile{
      "recompute-file", cl::cat(training), cl::value_desc("file"),
      cl::desc("Instead of --recompute, a file with a policy for each block; "
               "items are separated by ; or new lines, comments begin with #")};
  MibFlag memoryLimit{
      "memory-limit", cl::cat(training), cl::value_desc("size"),
      cl::desc(
          "The most memory that a device may need, in MiB or with a unit, as "
          "80GB (10^9 bytes each) or 24GiB (2^30): its arena, and what the "
          "report lists outside of it. What is recomputed is then chosen for "
          "it "
          "(--recompute=auto), and if no plan fits, the error says the "
          "smallest "
          "limit found")};
  cl::opt<int64_t> maxStaleness{
      "max-staleness", cl::init(-1), cl::cat(training),
      cl::value_desc("updates"),
      cl::desc(
          "For an asynchronous schedule: the largest number of updates of "
          "other "
          "micro-batches between the read of the parameters by one micro-batch "
          "and its own update; 0 means one after another")};
  cl::opt<std::string> pipeGather{
      "pipe-gather", cl::cat(training), cl::value_desc("when"),
      cl::desc(
          "When sharded parameters (zero3) are gathered. "
          "each, the default: in forward and in backward of each micro-batch, "
          "and released after the last use; once: before the first "
          "forward of a step, and held until the last backward; auto: once "
          "if the gathered parameters have no more bytes than the parameters "
          "and "
          "the optimizer's state of a device, else each")};
  cl::opt<std::string> machine{
      "machine", cl::cat(training), cl::value_desc("rates"),
      cl::desc(
          "The rates of a device per second, by which stages are balanced, "
          "schedules predicted and recomputation chosen: "
          "flops=1e11,memory=2e10,link=5e9 (bytes of its memory, and sent to "
          "another device) by default; or the file of --measure-machine")};
  cl::opt<std::string> measureMachine{
      "measure-machine", cl::cat(general), cl::value_desc("file"),
      cl::desc("Train a few steps of the model on this machine, with random "
               "weights, and write the rates of contractions (of f32 and "
               "bf16), attention, other ops and collectives, for --machine")};
  cl::opt<int64_t> chunks{
      "chunks", cl::cat(training), cl::init(0), cl::value_desc("number"),
      cl::desc("Stages for each position of the pipeline; by default as the "
               "schedule requires")};
  cl::opt<std::string> stages{
      "stages", cl::cat(training), cl::value_desc("names"),
      cl::desc(
          "Where stages begin, from the second on: at the first reader of a "
          "parameter whose name has this prefix (transformer.h.6.,"
          "transformer.h.12.). By default, stages have even cost")};
  cl::opt<std::string> pipeSlices{
      "pipe-slices", cl::cat(training), cl::init("auto"),
      cl::value_desc("auto|on|off"),
      cl::desc(
          "Whether devices that hold replicas of a value send it to other "
          "stages in slices, gathered there: auto: if fewer elements are sent "
          "in total; on: wherever it is divisible (links between stages may be "
          "slower "
          "than those within one); off: never")};
  cl::opt<std::string> recipe{
      "recipe", cl::cat(training), cl::value_desc("recipes"),
      cl::desc("What is sharded over them, such as megatron-sp,zero1; a recipe "
               "is bound to its own axis, or to another: zero3(fsdp). An axis "
               "\"dp\" shards the samples. --recipe=help lists all")};
  cl::opt<int64_t> gradHorizon{
      "grad-horizon", cl::cat(training), cl::value_desc("modules"),
      cl::desc(
          "Interlocking backpropagation (arXiv 2010.04116): each module of "
          "--modules but the last gets a head and a loss of its own, and "
          "the gradient of a head passes this many modules, of which it "
          "trains the first; 1: modules learn locally")};
  cl::opt<std::string> modules{
      "modules", cl::cat(training), cl::value_desc("number or names"),
      cl::desc(
          "With --grad-horizon: the number of modules, of even cost, or where "
          "they begin, as in --stages. The stages of the pipeline by "
          "default")};
  cl::opt<std::string> head{
      "head", cl::cat(training), cl::value_desc("name"),
      cl::desc(
          "With --grad-horizon: where the head begins of which auxiliary heads "
          "are copies: at the first reader of a parameter whose name "
          "has this prefix. After the last layer by default")};
  MibFlag maxLogitsBytes{
      "max-logits-mib", cl::init(Size<1048576>{int64_t(100) << 20}),
      cl::cat(training), cl::value_desc("size"),
      cl::desc("The largest chunk of the logits in memory at once, in MiB (100 "
               "by default) or with a unit; "
               "1024 by default with --target cuda")};
  KibFlag bucketBytes{
      "bucket-kib", cl::init(Size<1024>{1 << 20}), cl::cat(training),
      cl::value_desc("size"),
      cl::desc(
          "Merge reductions and gathers of one kind into exchanges of up to "
          "this many KiB (1024 by default), or with a unit; 0: do not merge")};
  cl::opt<int64_t> collectiveChunks{
      "collective-chunks", cl::init(1), cl::cat(training),
      cl::desc(
          "Cut gathers and reductions of activations and their gradients, with "
          "the contractions beside them, into up to this many chunks of "
          "samples "
          "(or of positions), so that one chunk is communicated while another "
          "one is computed; 1: do not cut")};
  KibFlag collectiveChunkBytes{
      "collective-chunk-kib", cl::init(Size<1024>{1 << 20}), cl::cat(training),
      cl::value_desc("size"),
      cl::desc("With --collective-chunks: the least KiB (1024 by default), or "
               "with a unit, that a rank puts into the exchange of one chunk; "
               "always more than --bucket-kib")};

  cl::opt<bool> remarks{
      "remarks", cl::cat(general),
      cl::desc("Print conflicts between annotations and their resolution")};
  cl::opt<std::string> targetName{
      "target", cl::init("cpu"), cl::cat(target), cl::value_desc("cpu|cuda"),
      cl::desc("What runs the program: the processor, the default, or a GPU")};
  cl::opt<std::string> architecture{
      "arch", cl::init("sm_90"), cl::cat(target), cl::value_desc("sm_NN"),
      cl::desc("With --target cuda: the GPU's architecture, such as sm_80, "
               "sm_90 (the default) or sm_100. Its code is compiled by NVRTC, "
               "without a GPU")};
  cl::opt<std::string> cpu{"cpu", cl::cat(target),
                           cl::desc("Processor, as clang names it; "
                                    "default: this one")};
  cl::opt<int> vectorBits{"vector-bits", cl::init(0), cl::cat(target),
                          cl::desc("Width of vectors: 128, 256 or 512; "
                                   "default: what the processor has")};
  cl::opt<int64_t> threads{
      "threads", cl::init(0), cl::cat(target),
      cl::desc("Threads for which memory is planned; default: the cores "
               "of this machine")};
};

/// Why the flags are invalid; empty if they are valid.
std::string checkFlags(const Flags &flags);

/// The flags that are given but have no effect, one sentence for each.
std::vector<std::string> flagsOutOfPlace(const Flags &flags);

/// The flags as options, except those that depend on the module. `scheduleText`
/// is the content of --schedule-file.
CompileOptions collectOptions(const Flags &flags,
                              const std::string &scheduleText);

/// The tables of `--recipe=help` and `--schedule=help`.
void listRecipes(llvm::raw_ostream &os);
void listSchedules(llvm::raw_ostream &os);

} // namespace cleave

#endif // CLEAVE_TOOLS_CLEAVE_COMPILE_FLAGS_H
