//===- cleave-run.cpp - Trains a compiled model ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Support/CommandLine.h"
#include "cleave/Support/Patience.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/WithColor.h"
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <unistd.h>

using namespace cleave::run;
namespace cl = llvm::cl;
using Kind = cleave::runtime::LearningRate::Kind;

static cl::OptionCategory modelCategory("Model"), dataCategory("Data"),
    trainingCategory("Training"), outputCategory("Output");

namespace {

/// The flags. Constructed in `main`: the flags that the support library
/// registers are removed first.
struct Flags {

  cl::opt<std::string> artifact{cl::Positional, cl::Required,
                                cl::desc("<model.so>"), cl::cat(modelCategory)};
  cl::list<std::string> weights{
      "weights",
      cl::desc("Weights to start from: a safetensors file, an index of several "
               "(.json), or a folder with either; a later file replaces what "
               "an earlier one gives"),
      cl::value_desc("path"), cl::cat(modelCategory)};
  cl::opt<bool> randomInit{
      "random-init",
      cl::desc("Start from random weights: matrices normal(0, 0.02), vectors "
               "that the model adds 0, other vectors 1"),
      cl::cat(modelCategory)};
  cl::opt<std::string> resume{
      "resume", cl::desc("Resume from a checkpoint, or the latest in a folder"),
      cl::value_desc("folder"), cl::cat(modelCategory)};

  cl::opt<bool> acceptChanges{
      "accept-changes",
      cl::desc("With --resume: continue with other data, another tokenizer or "
               "other sequences than the checkpoint's run had"),
      cl::cat(modelCategory)};

  cl::opt<std::string> data{
      "data", cl::desc("Training tokens: .bin, .npy, or text with --tokenizer"),
      cl::value_desc("file"), cl::cat(dataCategory)};
  cl::opt<std::string> dataCommand{
      "data-command",
      cl::desc("Instead of --data: a command for /bin/sh that writes rows to "
               "its standard output, each a line with the tokens of a document "
               "(integers, separated by spaces, tabs or commas, also within "
               "brackets), or with --tokenizer the document, as a JSON string. "
               "Rows are joined, in their order, and cut into sequences. At "
               "its end it is started again, with the number of the epoch in "
               "CLEAVE_EPOCH; a status other than 0 ends the run"),
      cl::value_desc("command"), cl::cat(dataCategory)};
  cl::opt<std::string> tokenizer{
      "tokenizer", cl::desc("Tokenizer for text (tokenizers JSON)"),
      cl::value_desc("file"), cl::cat(dataCategory)};
  cl::opt<std::string> tokenType{
      "token-dtype",
      cl::desc("Integers in .bin files: u8, u16 (default), u32, i32, "
               "i64"),
      cl::init("u16"), cl::value_desc("type"), cl::cat(dataCategory)};
  cl::opt<std::string> idsInput{
      "ids-input",
      cl::desc("Input that takes token ids (default: the first of integers)"),
      cl::value_desc("name"), cl::cat(dataCategory)};
  cl::opt<std::string> labelsInput{
      "labels-input",
      cl::desc("Input that takes labels (default: the second of integers)"),
      cl::value_desc("name"), cl::cat(dataCategory)};
  cl::list<std::string> onesInput{
      "ones-input",
      cl::desc("Input that is filled with ones, such as the mask of data "
               "without padding"),
      cl::value_desc("name"), cl::cat(dataCategory)};
  cl::opt<int64_t> labelShift{
      "label-shift",
      cl::desc("1: labels are the next tokens; 0: the tokens themselves, for "
               "a model that shifts them. 0 is the default for a loss that is "
               "seen to shift its labels; with another one the choice is "
               "needed: it would learn to copy"),
      cl::value_desc("0|1"), cl::cat(dataCategory)};

  cleave::NumberOption rate{"lr", cl::desc("Peak learning rate (default 3e-4)"),
                            cl::init(3e-4), cl::value_desc("rate"),
                            cl::cat(trainingCategory)};
  cl::opt<Kind> scheduleKind{
      "lr-schedule",
      cl::desc("Learning rate after warm-up; values as transformers' "
               "get_*_schedule_with_warmup"),
      cl::values(clEnumValN(Kind::Constant, "constant", "stays"),
                 clEnumValN(Kind::Linear, "linear", "falls to --min-lr"),
                 clEnumValN(Kind::Cosine, "cosine",
                            "falls to --min-lr along half a cosine")),
      cl::init(Kind::Constant), cl::cat(trainingCategory)};
  cl::opt<int64_t> warmup{
      "warmup", cl::desc("Steps of linear warm-up (default 0)"), cl::init(0),
      cl::value_desc("n"), cl::cat(trainingCategory)};
  cleave::NumberOption minimum{
      "min-lr", cl::desc("The final learning rate (default 0)"), cl::init(0),
      cl::value_desc("rate"), cl::cat(trainingCategory)};
  cl::opt<int64_t> steps{
      "steps", cl::desc("Steps of the whole training (default 1000)"),
      cl::init(1000), cl::value_desc("n"), cl::cat(trainingCategory)};
  cl::opt<int64_t> stopAt{
      "stop-at",
      cl::desc("End this run after that step (default --steps); schedules "
               "still span --steps"),
      cl::init(std::numeric_limits<int64_t>::max()), cl::value_desc("n"),
      cl::cat(trainingCategory)};
  cl::opt<int64_t> seed{
      "seed",
      cl::desc("Seed of data order, dropout and --random-init "
               "(default 0)"),
      cl::value_desc("n"), cl::cat(trainingCategory)};
  cl::opt<int> threads{
      "threads",
      cl::desc("Threads (default: OMP_NUM_THREADS or all cores); beside a GPU, "
               "they fill and convert what is on the host"),
      cl::init(0), cl::value_desc("n"), cl::cat(trainingCategory)};
  cl::opt<int> ranksPerDevice{
      "ranks-per-device",
      cl::desc("For a program for GPUs: the ranks of a machine that share one "
               "(default 1)"),
      cl::init(1), cl::value_desc("n"), cl::cat(trainingCategory)};
  cl::opt<std::string> offloadDir{
      "offload-dir",
      cl::desc("The folder for what the program offloads (cleave-compile "
               "--offload): a file of each rank, without a name, which ends "
               "with the run (default: the folder for temporary files)"),
      cl::value_desc("folder"), cl::cat(trainingCategory)};

  cl::opt<std::string> evalData{"eval-data", cl::desc("Tokens to evaluate on"),
                                cl::value_desc("file"), cl::cat(dataCategory)};
  cl::opt<int64_t> evalEvery{
      "eval-every", cl::desc("Steps between evaluations (default 100)"),
      cl::init(100), cl::value_desc("n"), cl::cat(trainingCategory)};
  cl::opt<int64_t> evalBatches{
      "eval-batches", cl::desc("Batches of an evaluation (default 0: all)"),
      cl::init(0), cl::value_desc("n"), cl::cat(trainingCategory)};
  cl::opt<int64_t> saveEvery{
      "save-every", cl::desc("Steps between checkpoints (default 0: none)"),
      cl::init(0), cl::value_desc("n"), cl::cat(outputCategory)};
  cl::opt<std::string> saveDirectory{
      "save-dir",
      cl::desc("Where --save-every puts checkpoints, each in a folder step-N "
               "(default: checkpoints)"),
      cl::init("checkpoints"), cl::value_desc("folder"),
      cl::cat(outputCategory)};
  cl::opt<int64_t> keep{
      "keep",
      cl::desc("Checkpoints to keep in --save-dir up to the "
               "current step, also of the runs from which this one "
               "is resumed (default 0: all)"),
      cl::init(0), cl::value_desc("n"), cl::cat(outputCategory)};
  cl::opt<bool> saveNonFinite{
      "save-non-finite",
      cl::desc("Save also if parameters or optimizer state hold NaN or "
               "infinity, which ends the run otherwise"),
      cl::cat(outputCategory)};
  cl::opt<ProgressForm> progress{
      "progress",
      cl::desc("How steps are shown (default: a bar on a terminal, nothing in "
               "a pipe or under a launcher)"),
      cl::values(
          clEnumValN(ProgressForm::Auto, "auto", "the default"),
          clEnumValN(ProgressForm::Bar, "bar", "a bar that fits the terminal"),
          clEnumValN(ProgressForm::Lines, "lines", "a line each"),
          clEnumValN(ProgressForm::None, "none", "not at all")),
      cl::init(ProgressForm::Auto), cl::cat(outputCategory)};
  cl::opt<std::string> logFile{
      "log", cl::desc("Metrics of each step, as lines of JSON"),
      cl::value_desc("file"), cl::cat(outputCategory)};
  cl::opt<std::string> traceFile{
      "trace", cl::desc("Time of each command, for Perfetto (Chrome's format)"),
      cl::value_desc("file"), cl::cat(outputCategory)};
  cl::opt<int64_t> traceSteps{
      "trace-steps", cl::desc("Steps to trace (default 5)"), cl::init(5),
      cl::value_desc("n"), cl::cat(outputCategory)};
  cl::opt<int> patience{
      "patience",
      cl::desc(
          "Seconds that ranks which are processes wait for each other, and "
          "that a data command writes no token, before the run ends and "
          "says what it has waited for (default 300, or "
          "$CLEAVE_PATIENCE); for a rank that reads or writes files, ten "
          "times as long"),
      cl::init(cleave::runtime::defaultPatience), cl::value_desc("seconds"),
      cl::cat(trainingCategory)};
  cl::opt<bool> reportMemory{"report-memory", cl::desc("Print memory by use"),
                             cl::cat(outputCategory)};
  cl::opt<bool> reportCommunication{
      "report-communication",
      cl::desc("Print the data that a rank sends in each step; in a pipeline, "
               "one rank of "
               "each position"),
      cl::cat(outputCategory)};

  /// An error on the command line, or nothing.
  std::string check() const;
};

} // namespace

std::string Flags::check() const {
  if (data.empty() && dataCommand.empty())
    return dataCommand.getNumOccurrences()
               ? "--data-command is empty"
               : "--data is missing, or --data-command";
  if (!data.empty() && dataCommand.getNumOccurrences())
    return "--data and --data-command exclude one another";
  if (llvm::is_contained(weights, ""))
    return "there are no weights to start from: --weights is empty";
  int starts = !weights.empty() + !resume.empty() + randomInit;
  if (starts == 0)
    return "there are no weights to start from: give --weights or --resume, "
           "or --random-init for random ones";
  if (starts > 1)
    return "--weights, --resume and --random-init exclude one another";
  std::vector<cleave::runtime::NamedFile> read{{"cleave-run", artifact},
                                               {"--data", data},
                                               {"--eval-data", evalData},
                                               {"--tokenizer", tokenizer}};
  for (const std::string &path : weights)
    read.push_back({"--weights", path});
  if (std::string mistake = cleave::runtime::findSharedFile(
          {{"--log", logFile}, {"--trace", traceFile}}, read);
      !mistake.empty())
    return mistake;
  struct {
    const char *name;
    int64_t value, low;
  } counts[] = {{"--steps", steps, 1},
                {"--stop-at", stopAt, 1},
                {"--warmup", warmup, 0},
                {"--eval-every", evalEvery, 0},
                {"--eval-batches", evalBatches, 0},
                {"--save-every", saveEvery, 0},
                {"--keep", keep, 0},
                {"--threads", threads, 0},
                {"--ranks-per-device", ranksPerDevice, 1},
                {"--patience", patience, 1},
                {"--trace-steps", traceSteps, 1}};
  for (const auto &count : counts)
    if (count.value < count.low)
      return (llvm::Twine(count.name) + " must be at least " +
              llvm::Twine(count.low))
          .str();
  if (!(rate >= 0) || !(minimum >= 0) || minimum > rate || std::isinf(rate))
    return "rates must be finite and satisfy 0 <= --min-lr <= --lr";
  if (!llvm::is_contained({"u8", "u16", "u32", "i32", "i64"}, tokenType))
    return "--token-dtype is u8, u16, u32, i32 or i64, not '" + tokenType + "'";
  // A flag without effect was probably meant with another flag.
  struct {
    const cl::Option &flag;
    bool used;
    const char *of;
  } own[] = {{evalEvery, !evalData.empty(), "--eval-data"},
             {evalBatches, !evalData.empty(), "--eval-data"},
             {keep, saveEvery > 0, "--save-every"},
             {saveDirectory, saveEvery > 0, "--save-every"},
             {saveNonFinite, saveEvery > 0, "--save-every"},
             {acceptChanges, !resume.empty(), "--resume"},
             {traceSteps, !traceFile.empty(), "--trace"}};
  for (const auto &[flag, used, of] : own)
    if (flag.getNumOccurrences() && !used)
      return ("--" + flag.ArgStr + " needs " + of + ", which is missing").str();
  auto isText = [](llvm::StringRef path) {
    return !path.empty() && !path.ends_with(".npy") && !path.ends_with(".bin");
  };
  if (!tokenizer.empty() && dataCommand.empty() && !isText(data) &&
      !isText(evalData))
    return "--tokenizer has no effect: data that ends in .bin or .npy is "
           "tokens already";
  if (!idsInput.empty() && idsInput == labelsInput)
    return "--ids-input and --labels-input name the same input";
  if (labelShift.getNumOccurrences() && labelShift != 0 && labelShift != 1)
    return "--label-shift must be 0 or 1";
  return "";
}

/// `--reference` runs the interpreter, a separate program in the same folder,
/// so that training loads no compiler. Returns only if it is not there.
static int runReference(int argc, char **argv) {
  std::string self = llvm::sys::fs::getMainExecutable(
      argv[0], reinterpret_cast<void *>(&runReference));
  llvm::SmallString<256> tool(llvm::sys::path::parent_path(self));
  llvm::sys::path::append(tool, "cleave-reference");
  std::vector<char *> arguments{tool.data()};
  tool.push_back('\0');
  arguments[0] = tool.data();
  for (char *argument : llvm::ArrayRef(argv + 1, argc - 1))
    if (llvm::StringRef(argument) != "--reference")
      arguments.push_back(argument);
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  llvm::errs() << "error: cannot run '" << arguments[0]
               << "': " << std::strerror(errno) << "\n";
  return 1;
}

/// Written at once: other processes may write to the same file.
static void printError(const llvm::Twine &message) {
  llvm::errs().SetBuffered();
  llvm::WithColor::error(llvm::errs(), "cleave-run") << message << "\n";
  llvm::errs().SetUnbuffered();
}

int main(int argc, char **argv) {
  // The support library handles this signal, also if nohup ignores it.
  struct sigaction hangUp = {};
  ::sigaction(SIGHUP, nullptr, &hangUp);
  llvm::InitLLVM init(argc, argv);
  cleave::failWithoutSignals();
  if (hangUp.sa_handler == SIG_IGN)
    ::sigaction(SIGHUP, &hangUp, nullptr);
  if (llvm::is_contained(llvm::ArrayRef(argv, argc),
                         llvm::StringRef("--reference")))
    return runReference(argc, argv);
  cleave::removeForeignOptions();
  Flags flags;
  cl::HideUnrelatedOptions(
      {&modelCategory, &dataCategory, &trainingCategory, &outputCategory});
  cleave::printVersionOf("cleave-run");
  auto usage = [](const llvm::Twine &mistake) {
    printError(mistake + "; see cleave-run --help");
    return 2;
  };
  if (std::string mistake = cleave::findUnknownOption(argc, argv);
      !mistake.empty())
    return usage(mistake);
  if (!cl::ParseCommandLineOptions(
          argc, argv,
          "cleave-run: trains a model that cleave-compile compiled\n\n"
          "  cleave-run model.so --weights model.safetensors --data train.txt "
          "--tokenizer tok.json --steps 100\n\n"
          "  cleave-run --reference model.mlir ... executes IR by the "
          "reference "
          "interpreter;\n  see cleave-run --reference --help\n\n"
          "  SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGUSR2 end the run after "
          "the "
          "step, with a\n  checkpoint if there is --save-every, and the status "
          "is 128 + the signal; a second\n  one ends it at once. SIGUSR1 saves "
          "and continues. To mpirun send SIGUSR2: it waits\n  and kills after "
          "the others.\n\n"
          "  Ranks are threads of this process. Under mpirun, torchrun "
          "(--no-python) or srun they\n  are processes, also where RANK, "
          "WORLD_SIZE and CLEAVE_PORT (a port of the machine\n  of rank 0, "
          "CLEAVE_ADDRESS, by default localhost) are set.\n",
          &llvm::errs()))
    return 2;
  // Other errors do not matter if the file name is mistyped.
  if (!llvm::sys::fs::exists(flags.artifact)) {
    printError(flags.artifact + ": no such file");
    return 1;
  }
  if (std::string mistake = flags.check(); !mistake.empty())
    return usage(mistake);

  Options options;
  options.artifact = flags.artifact;
  options.weights.assign(flags.weights.begin(), flags.weights.end());
  options.data = flags.data;
  options.dataCommand = flags.dataCommand;
  options.tokenizer = flags.tokenizer;
  options.tokenType = flags.tokenType;
  options.evalData = flags.evalData;
  options.saveDirectory = flags.saveDirectory;
  options.resume = flags.resume;
  options.log = flags.logFile;
  options.trace = flags.traceFile;
  options.idsInput = flags.idsInput;
  options.labelsInput = flags.labelsInput;
  options.onesInputs.assign(flags.onesInput.begin(), flags.onesInput.end());
  options.learningRate = {flags.scheduleKind, flags.rate,
                          static_cast<double>(flags.warmup), flags.steps,
                          flags.minimum};
  options.steps = flags.steps;
  options.stopAt = flags.stopAt;
  options.evalEvery = flags.evalEvery;
  options.evalBatches = flags.evalBatches;
  options.saveEvery = flags.saveEvery;
  options.keep = flags.keep;
  options.traceSteps = flags.traceSteps;
  if (flags.seed.getNumOccurrences())
    options.seed = flags.seed;
  if (flags.labelShift.getNumOccurrences())
    options.labelShift = flags.labelShift;
  options.threads = flags.threads;
  options.offloadDir = flags.offloadDir;
  options.ranksPerDevice = flags.ranksPerDevice;
  if (flags.patience.getNumOccurrences() > 0)
    cleave::runtime::setPatience(
        std::min<int>(flags.patience, cleave::runtime::mostPatience));
  if (std::string wrong = cleave::runtime::patienceProblem(); !wrong.empty()) {
    printError(wrong);
    return 1;
  }
  options.randomInit = flags.randomInit;
  options.saveNonFinite = flags.saveNonFinite;
  options.acceptChanges = flags.acceptChanges;
  options.progress = flags.progress;
  options.words.assign(argv, argv + argc);
  options.reportMemory = flags.reportMemory;
  options.reportCommunication = flags.reportCommunication;

  Trainer trainer(options);
  llvm::Expected<int> code = trainer.run();
  int status = code ? *code : 1;
  llvm::Error failure = code.takeError();
  llvm::Error unwritten = cleave::runtime::flushStandardOutput();
  if (!failure)
    failure = std::move(unwritten);
  llvm::consumeError(std::move(unwritten)); // the first one is said
  if (!failure)
    return status;
  std::string message = llvm::toString(std::move(failure));
  trainer.fail(message);
  printError(trainer.speaker(message) + message);
  return 1;
}
