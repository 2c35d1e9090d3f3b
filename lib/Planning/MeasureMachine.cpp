//===- MeasureMachine.cpp - The rates of this machine ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/MeasureMachine.h"
#include "cleave/Dialect/Pipe/Transforms/PredictedSchedule.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Machines/MachineModel.h"
#include "cleave/Pipelines/ScheduleOptions.h"
#include "cleave/Planning/GenerateCode.h"
#include "cleave/Planning/PlanPhases.h"
#include "cleave/Support/OpenText.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using machines::Work;
using runtime::TimeClass;

/// The first step warms up; of each class, the least time of the others counts.
static constexpr int kSteps = 8;

namespace {
/// The work of a step, and the seconds of each class.
struct Measured {
  Work work;
  double contraction = INFINITY, attention = INFINITY, rowWise = INFINITY,
         communication = INFINITY, sentBytes = 0;
};
} // namespace

/// The work of all stages, without what runs once in a step: updates.
static Work workOf(const pipe::PredictedSchedule &schedule) {
  Work work;
  if (schedule.program)
    for (const scheduling::ScheduleFacts::Stage &stage :
         pipe::findScheduleFacts(schedule).stages)
      work += stage.work;
  return work;
}

static llvm::Expected<Measured> runSteps(runtime::Session &session) {
  if (llvm::Error error = session.initialiseRandomly(0))
    return error;
  for (StringRef scalar : {"lr", "loss_scale"})
    if (session.find(scalar))
      if (llvm::Error error = session.setScalar(scalar, scalar == "lr" ? 0 : 1))
        return error;
  Measured measured;
  for (int step = 0; step < kSteps; ++step) {
    auto result = session.run("train");
    if (!result)
      return result.takeError();
    if (step == 0)
      continue;
    auto keepLeast = [](double &least, int64_t nanoseconds) {
      least = std::min(least, static_cast<double>(nanoseconds) / 1e9);
    };
    keepLeast(measured.contraction, result->breakdown[TimeClass::Contraction]);
    keepLeast(measured.attention, result->breakdown[TimeClass::Attention]);
    keepLeast(measured.rowWise, result->breakdown[TimeClass::RowWise]);
    int64_t nanoseconds = 0;
    measured.sentBytes = 0;
    for (const cleave_sent &sent : result->communication) {
      nanoseconds += sent.nanoseconds;
      measured.sentBytes += sent.bytes;
    }
    keepLeast(measured.communication, nanoseconds);
  }
  return measured;
}

/// Compiles `model` and runs it.
static llvm::Expected<Measured>
measure(ModuleOp model, const CompileOptions &options, int threads) {
  std::string why;
  ScopedDiagnosticHandler handler(model.getContext(), [&](Diagnostic &said) {
    if (why.empty() && said.getSeverity() == DiagnosticSeverity::Error)
      why = said.str();
    return success();
  });
  OwningOpRef<ModuleOp> module = model.clone();
  FailureOr<Work> work = failure();
  auto after = [&](Phase phase, ModuleOp reached) {
    if (phase != Phase::Scheduled)
      return;
    auto schedule =
        pipe::PredictedSchedule::of(reached, costSource(options.phases));
    if (succeeded(schedule))
      work = workOf(*schedule);
  };
  if (failed(runPhases(*module, Phase::Executable, options, after)) ||
      failed(work))
    return runtime::makeError(why);
  auto compiled = generateCode(*module, options);
  if (failed(compiled))
    return runtime::makeError(why);
  runtime::SessionOptions how;
  how.threads = threads;
  how.timing = true;
  how.launch = runtime::Launch::Threads;
  auto session = openSession(*compiled, how);
  if (!session)
    return session.takeError();
  auto measured = runSteps(**session);
  if (measured)
    measured->work = *work;
  return measured;
}

/// The seconds of `work` at a rate; 0 if no rate is known.
static double secondsAt(double rate, double work) {
  return rate > 0 ? work / rate : 0;
}

llvm::Expected<std::string>
cleave::measureMachine(ModuleOp model, const CompileOptions &options) {
  CompileOptions own = options;
  own.phases.precision = "f32";
  own.phases.mesh = own.phases.recipes = "";
  // Inputs of zeros may mask all there is.
  own.phases.checkFinite = false;
  auto threads = static_cast<int>(own.phases.threads);
  auto wide = measure(model, own, threads);
  if (!wide)
    return wide.takeError();
  std::string text = llvm::formatv("# Rates of this machine with {0} "
                                   "thread{1}, for --machine: operations or "
                                   "bytes per second.\n",
                                   threads, threads == 1 ? "" : "s");
  auto write = [&](StringRef name, double work, double seconds) {
    if (!(work > 0) || !(seconds > 0) || !std::isfinite(seconds))
      return 0.0;
    text += llvm::formatv("{0}={1:e3}\n", name, work / seconds);
    return work / seconds;
  };
  double contraction =
      write("contraction", wide->work.contraction, wide->contraction);
  write("attention", wide->work.attention, wide->attention);
  write("streamed", wide->work.streamed, wide->rowWise);
  // A step in fewer bits has contractions of more: their times are known.
  double half = 0;
  own.phases.precision = "bf16";
  if (auto narrow = measure(model, own, threads)) {
    half = write("contraction-16bit", narrow->work.contraction16,
                 narrow->contraction -
                     secondsAt(contraction, narrow->work.contraction));
  } else {
    llvm::consumeError(narrow.takeError());
  }
  own.phases.precision = "fp8";
  if (auto narrow = measure(model, own, threads)) {
    write("contraction-8bit", narrow->work.contraction8,
          narrow->contraction -
              secondsAt(contraction, narrow->work.contraction) -
              secondsAt(half, narrow->work.contraction16));
  } else {
    llvm::consumeError(narrow.takeError());
  }
  own.phases.precision = "f32";
  own.phases.mesh = "dp=2";
  own.phases.threads = std::max(1, threads / 2);
  if (auto ranks = measure(model, own, threads))
    write("link", ranks->sentBytes, ranks->communication);
  else
    llvm::consumeError(ranks.takeError());
  return text;
}
