//===- Flags.h - The command line of cleave-compile -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TOOLS_CLEAVE_COMPILE_FLAGS_H
#define CLEAVE_TOOLS_CLEAVE_COMPILE_FLAGS_H

#include "cleave/Pipelines/Options.h"
#include "cleave/Support/CommandLine.h"
#include "llvm/Support/CommandLine.h"

namespace cleave {

namespace cl = llvm::cl;

extern cl::OptionCategory general, training;
/// Of the options of a group.
cl::OptionCategory &categoryOf(OptionGroup group);

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

/// Flags of the table of options.
class OptionFlags {
public:
  OptionFlags();
  /// Sets what the command line gives. Warns of former names. Returns why it
  /// is wrong, else "".
  std::string read(CompileOptions &out) const;
  /// Whether the command line has the flag of an option.
  bool given(llvm::StringRef name) const;

private:
  struct Flag {
    const Option *option;
    /// Of a flag that is a former name.
    const FormerName *former = nullptr;
    std::string text;
    std::unique_ptr<cl::opt<std::string>> value;
  };
  std::vector<Flag> flags;
};

struct Flags;
/// Why the flags of the optimizer are invalid; empty if they are valid.
std::string checkOptimizerFlags(const Flags &flags);
/// Why the flags of --fit and --measure-machine are invalid; empty if they are
/// valid.
std::string checkFitFlags(const Flags &flags, const CompileOptions &options);

/// The command line. Not global: the flags that libraries register are removed
/// first, since some have the same names.
struct Flags {
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
  cl::opt<std::string> reportFile{
      "report", cl::desc("Write memory, commands and decisions as JSON"),
      cl::value_desc("file"), cl::cat(general)};

  cl::opt<std::string> savePlan{
      "save-plan", cl::value_desc("file"), cl::cat(general),
      cl::desc("Write the mesh and the plan to a file, whose name ends with "
               ".plan, for --plan")};
  cl::opt<std::string> explain{
      "explain",
      cl::desc(
          "Print what was decided: summary (ten lines), layers (each "
          "kind of decision, with its sums), full, memory (the peak of a "
          "device by kind, when it is, and which tensors are in use), or cost "
          "(what is sent, computed and held, beside its closed form)"),
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
  cl::opt<std::string> precisionPolicy{
      "precision-policy", cl::cat(training), cl::value_desc("file|text"),
      cl::desc("With --precision bf16, fp16 or fp8, ops that are computed "
               "otherwise: pattern=f32 or pattern=16bit, with commas between, "
               "or a file with such lines. A pattern is of names of ops "
               "(softmax), of "
               "parameters that an op reads and their modules "
               "(layers.*.gate), or of places in the source (model.py:12); of "
               "several that match, the last one counts")};
  cl::opt<std::string> recomputeFile{
      "recompute-file", cl::cat(training), cl::value_desc("file"),
      cl::desc("Instead of --recompute, a file with a policy for each block; "
               "items are separated by ; or new lines, comments begin with #")};
  cl::opt<std::string> measureMachine{
      "measure-machine", cl::cat(general), cl::value_desc("file"),
      cl::desc("Train a few steps of the model on this machine, with random "
               "weights, and write the rates of contractions (of f32 and "
               "bf16), attention, other ops and collectives, for --machine")};

  cl::opt<bool> remarks{
      "remarks", cl::cat(general),
      cl::desc("Print conflicts between annotations and their resolution")};
  /// Flags of the options of a step.
  OptionFlags options;
};

/// Reads the options of the flags, but those that depend on the module.
/// Returns why they are invalid; empty if they are valid.
std::string readOptions(const Flags &flags, CompileOptions &options);

/// Why the options contradict each other; empty if they do not.
std::string findMistake(const Flags &flags, CompileOptions options);

/// Why the flags of the tool are invalid with `options`; empty if they are
/// valid.
std::string checkFlags(const Flags &flags, const CompileOptions &options);

/// The tables of `--plan=help` and `--schedule=help`.
void listRecipes(llvm::raw_ostream &os);
void listSchedules(llvm::raw_ostream &os);

} // namespace cleave

#endif // CLEAVE_TOOLS_CLEAVE_COMPILE_FLAGS_H
