//===- Executor.cpp - Walking the command table ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Executor.h"
#include "LibraryMemory.h"
#include "cleave/Runtime/ProgramIO.h"
#include "llvm/ADT/StringExtras.h"

#include <ctime>

using namespace cleave::runtime;

static int64_t now() {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

//===----------------------------------------------------------------------===//
// Resolution
//===----------------------------------------------------------------------===//

llvm::Expected<Executor::Step>
Executor::resolve(const Artifact &artifact, const Arena &arena,
                  const Part &part, const Action &action,
                  const Command &command, ContractionTuner &tuner) {
  auto at = [&](const Ref &ref) -> char * {
    if (ref.buffer < 0)
      return nullptr;
    return arena.data() + action.offsets[static_cast<size_t>(ref.buffer)] +
           ref.offset;
  };
  auto floats = [&](const Ref &ref) {
    return reinterpret_cast<float *>(at(ref));
  };
  auto step = [&](auto &&what) {
    return Step{&command, action.microBatch, std::move(what)};
  };

  switch (command.kind) {
  case CommandKind::Kernel: {
    const KernelCommand &c = command.kernel;
    Kernel kernel;
    kernel.function =
        reinterpret_cast<KernelFunction>(artifact.lookup(c.symbol));
    kernel.finish =
        c.finish.empty()
            ? nullptr
            : reinterpret_cast<KernelFunction>(artifact.lookup(c.finish));
    for (const Ref &arg : c.args)
      kernel.args.push_back(at(arg));
    kernel.scratch = at(c.scratch);
    return step(std::move(kernel));
  }
  case CommandKind::Contract: {
    const ContractCommand &c = command.contract;
    ContractionMethod method =
        tuner.choose(c, at(c.a), at(c.b), at(c.c), *team);
    Contraction contraction(c, at(c.a), at(c.b), at(c.c), method);
    // A choice from a file may name what this library cannot do.
    if (!contraction.isValid())
      contraction =
          Contraction(c, at(c.a), at(c.b), at(c.c), ContractionMethod::Sgemm);
    return step(std::move(contraction));
  }
  case CommandKind::AttentionForward:
  case CommandKind::AttentionBackward: {
    const AttentionCommand &c = command.attention;
    Attention attention;
    attention.backward = command.kind == CommandKind::AttentionBackward;
    int64_t needed = attentionScratchBytes(c, attention.backward);
    if (c.scratchBytesPerThread < needed)
      return makeError("part '" + part.name + "' (" + command.label +
                       "): attention needs " + llvm::Twine(needed) +
                       " bytes of scratch for each thread, but the program "
                       "plans " +
                       llvm::Twine(c.scratchBytesPerThread));
    AttentionPointers &p = attention.pointers;
    p.q = floats(c.q.ref);
    p.k = floats(c.k.ref);
    p.v = floats(c.v.ref);
    p.o = floats(c.o.ref);
    p.lse = floats(c.lse);
    p.bias = floats(c.bias);
    p.mask = reinterpret_cast<const uint8_t *>(at(c.mask));
    p.querySegments = reinterpret_cast<const int64_t *>(at(c.querySegments));
    p.keySegments = reinterpret_cast<const int64_t *>(at(c.keySegments));
    p.rng = reinterpret_cast<const int64_t *>(at(c.rng));
    p.origin = reinterpret_cast<const int64_t *>(at(c.origin));
    p.scratch = at(c.scratch);
    if (attention.backward) {
      p.dO = floats(c.dO.ref);
      p.dQ = floats(c.dQ.ref);
      p.dK = floats(c.dK.ref);
      p.dV = floats(c.dV.ref);
      p.dBias = floats(c.dBias);
    }
    return step(std::move(attention));
  }
  case CommandKind::ScatterAdd: {
    const ScatterAddCommand &c = command.scatterAdd;
    return step(Scatter{floats(c.rows), at(c.ids), floats(c.out)});
  }
  case CommandKind::Copy:
    return step(Copy{StridedCopy(command.copy), at(command.copy.src),
                     at(command.copy.dst)});
  case CommandKind::Fill:
    return step(Fill{at(command.fill.dst)});
  case CommandKind::Check:
    return step(Check{at(command.check.flag)});
  }
  return makeError("unknown command");
}

llvm::Expected<Executor> Executor::create(const Artifact &artifact,
                                          const Arena &arena,
                                          const ThreadTeam &team,
                                          ContractionTuner &tuner) {
  const Program &program = artifact.getProgram();
  if (team.size() > program.threads)
    return makeError("the program's scratch memory is planned for " +
                     llvm::Twine(program.threads) + " threads, not " +
                     llvm::Twine(team.size()));
  // Without the cache, steps are slower but right.
  (void)cacheLibraryMemory();
  Executor executor(team);
  team.adopt();
  int64_t workspaceBytes = 0;
  for (const auto &[name, entry] : program.entries) {
    std::vector<Step> &steps = executor.entries[name];
    size_t count = 0;
    for (const Action &action : entry.actions)
      count += program.parts[static_cast<size_t>(action.part)].commands.size();
    steps.reserve(count);
    for (const Action &action : entry.actions) {
      const Part &part = program.parts[static_cast<size_t>(action.part)];
      for (const Command &command : part.commands) {
        llvm::Expected<Step> step =
            executor.resolve(artifact, arena, part, action, command, tuner);
        if (!step)
          return step.takeError();
        if (const auto *contraction = std::get_if<Contraction>(&step->what))
          workspaceBytes =
              std::max(workspaceBytes, contraction->workspaceBytes());
        steps.push_back(std::move(*step));
      }
    }
  }
  tuner.save();
  llvm::Expected<Arena> workspace = Arena::map(workspaceBytes);
  if (!workspace)
    return workspace.takeError();
  executor.workspace = std::move(*workspace);
  for (const Constant &constant : program.constants) {
    std::string bytes = llvm::fromHex(constant.hex);
    std::copy(bytes.begin(), bytes.end(), arena.data() + constant.offset);
  }
  return executor;
}

//===----------------------------------------------------------------------===//
// Execution
//===----------------------------------------------------------------------===//

bool Executor::execute(const Step &step) const {
  const Command &command = *step.command;
  switch (command.kind) {
  case CommandKind::Kernel: {
    const KernelCommand &c = command.kernel;
    const Kernel &kernel = *std::get_if<Kernel>(&step.what);
    team->parallelFor(c.items, c.grain, [&](int64_t begin, int64_t end) {
      kernel.function(kernel.args.data(), begin, end, kernel.scratch);
    });
    // Pieces of whole cache lines, so that no two threads write to one.
    if (kernel.finish)
      team->parallelFor(
          c.finishItems, 512,
          [&](int64_t begin, int64_t end) {
            kernel.finish(kernel.args.data(), begin, end, kernel.scratch);
          },
          64);
    return true;
  }
  case CommandKind::Contract:
    std::get_if<Contraction>(&step.what)->execute(*team, workspace.data());
    return true;
  case CommandKind::AttentionForward:
  case CommandKind::AttentionBackward: {
    const Attention &attention = *std::get_if<Attention>(&step.what);
    (attention.backward ? attentionBackward : attentionForward)(
        command.attention, attention.pointers, *team);
    return true;
  }
  case CommandKind::ScatterAdd: {
    const Scatter &scatter = *std::get_if<Scatter>(&step.what);
    scatterAdd(command.scatterAdd, scatter.rows, scatter.ids, scatter.out,
               *team);
    return true;
  }
  case CommandKind::Copy: {
    const Copy &copy = *std::get_if<Copy>(&step.what);
    copy.copy.execute(copy.src, copy.dst, *team);
    return true;
  }
  case CommandKind::Fill:
    fill(command.fill, std::get_if<Fill>(&step.what)->dst, *team);
    return true;
  case CommandKind::Check:
    return *std::get_if<Check>(&step.what)->flag != 0;
  }
  return true;
}

std::optional<llvm::StringRef> Executor::run(llvm::StringRef name) {
  auto it = entries.find(name.str());
  if (it == entries.end())
    return llvm::StringRef("the program has no such entry");
  team->adopt();
  breakdown = Breakdown();
  bool measure = timing || trace.size() < traceCapacity;
  int64_t last = measure ? now() : 0;
  for (const Step &step : it->second) {
    bool ok = execute(step);
    if (measure) {
      int64_t time = now();
      breakdown[step.command->timeClass] += time - last;
      if (trace.size() < traceCapacity)
        trace.push_back(
            {step.command, step.microBatch, last - traceStart, time - last});
      last = time;
    }
    if (!ok)
      return llvm::StringRef(step.command->check.message);
  }
  return std::nullopt;
}

void Executor::startTrace(size_t events) {
  trace.clear();
  trace.reserve(events);
  traceCapacity = events;
  traceStart = now();
}

int64_t Executor::workspaceBytes() const {
  return workspace.size() + libraryMemoryBytes();
}

int64_t Executor::traceClock() const { return now() - traceStart; }
