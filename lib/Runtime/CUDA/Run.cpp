//===- Run.cpp - Runs of a program on a GPU -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CudaDevice.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Support/CheckMessage.h"

#include <algorithm>
#include <cstring>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define CLEAVE_NVTX
#endif

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

namespace {
/// A named range of host time that profilers show; nothing where NVIDIA's
/// headers of it are missing.
class NamedRange {
public:
  void begin(const std::string &name) {
    end();
#ifdef CLEAVE_NVTX
    nvtxRangePushA(name.c_str());
    open = true;
#endif
  }
  void end() {
#ifdef CLEAVE_NVTX
    if (open)
      nvtxRangePop();
#endif
    open = false;
  }
  ~NamedRange() { end(); }

private:
  bool open = false;
};
} // namespace

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

Error CudaDevice::launch(CUfunction function, const Launch &launch) const {
  return gpu->launch(function, launch, gpu->compute);
}

/// Where a contraction has no products, its result is zero or stays.
static Error clear(const Gpu &gpu, const ContractCommand &c, CUdeviceptr at) {
  if (c.beta != 0 || c.m == 0 || c.n == 0)
    return Error::success();
  int64_t bytes = byteSize(c.resultType);
  for (int64_t i = 0; i < c.batch; ++i)
    for (int64_t row = 0; row < c.m; ++row)
      if (Error error = gpu.check(
              gpu.driver.cuMemsetD8Async(
                  at + static_cast<CUdeviceptr>(
                           bytes * (i * c.batchStrideC + row * c.ldc)),
                  0, static_cast<size_t>(bytes * c.n), gpu.compute),
              "clearing a result"))
        return error;
  return Error::success();
}

Error CudaDevice::start(const Move &move) {
  const Driver &driver = gpu->driver;
  (move.evicts ? offloaded.evicted : offloaded.fetched) += move.bytes;
  auto bytes = static_cast<size_t>(move.bytes);
  if (bytes == 0)
    return Error::success();
  return gpu->check(
      move.evicts
          ? driver.cuMemcpyDtoHAsync(move.tier, move.memory, bytes, gpu->copies)
          : driver.cuMemcpyHtoDAsync(move.memory, move.tier, bytes,
                                     gpu->copies),
      "a copy of the second tier");
}

Error CudaDevice::communicatorError() const {
  return makeError(communicator->api->error(communicator));
}

Error CudaDevice::exchange(const Step &step, const Exchange &exchange) {
  if (NcclTransport::Collective *own = exchange.collective)
    return exchange.ends ? Error::success() : nccl->start(*own);
  if (SharedTransport::Collective *own = exchange.shared)
    return exchange.ends ? shared->finish(*own) : shared->start(*own);
  // The host waits for both copies; in between, other ranks read and write
  // what is on the host.
  if (record) {
    std::string between =
        "exchange " +
        std::to_string(reinterpret_cast<uintptr_t>(exchange.request));
    std::vector<MemoryRange> received =
        rangesAt(Place::Mirror, exchange.used.writes);
    if (exchange.ends) {
      record->finish(between);
      record->work("compute", "what was received",
                   {received, exchange.used.writes});
      record->finish("compute");
    } else {
      std::vector<MemoryRange> sent = rangesAt(Place::Mirror, step.use.reads);
      record->work("compute", "what is sent", {step.use.reads, sent});
      record->finish("compute");
      record->work(between, step.command->label, {sent, received});
    }
  }
  if (!exchange.ends) {
    if (Error error = exchange.blocks->fetch(*gpu, arena, mirror.data()))
      return error;
    noteFinished();
    return communicator->api->start(exchange.request) ? communicatorError()
                                                      : Error::success();
  }
  if (communicator->api->wait(exchange.request))
    return communicatorError();
  if (Error error = exchange.blocks->store(*gpu, arena, mirror.data()))
    return error;
  noteFinished();
  return Error::success();
}

Expected<bool> CudaDevice::readFlag(CUdeviceptr at) {
  char flag = 0;
  if (record) {
    record->work("compute", "a flag",
                 {{{Place::Arena, static_cast<int64_t>(at - arena), 1}}, {}});
    record->finish("compute");
  }
  if (Error error = gpu->read(at, &flag, 1))
    return error;
  noteFinished();
  return flag != 0;
}

/// The device has noted which of the checks so far has failed.
Error CudaDevice::agree(const Step &step, const Check &check, bool &passed) {
  if (Error error = launchAll(check.launches))
    return error;
  Error copied =
      check.results
          ? host->copyResults(*check.results)
          : gpu->check(gpu->driver.cuMemcpyDtoHAsync(
                           statusRead, status, sizeof checks, gpu->compute),
                       "copying the status of checks");
  if (copied)
    return copied;
  if (record)
    record->finish("compute");
  if (Error error = gpu->finish())
    return error;
  checks = *statusRead;
  if (check.results)
    std::memcpy(&checks, host->statusOf(*check.results), sizeof checks);
  noteFinished();
  *check.own = checks.failed == 0;
  const cleave_communicator_api &api = *communicator->api;
  if (api.start(check.request) || api.wait(check.request))
    return communicatorError();
  passed = *check.agreed != 0;
  return Error::success();
}

Error CudaDevice::launchAll(const Launches &launches) const {
  for (const auto &[function, own] : launches.list)
    if (Error error = launch(function, own))
      return error;
  return Error::success();
}

Error CudaDevice::execute(const Step &step, bool &passed) {
  const auto *through = std::get_if<Exchange>(&step.what);
  if (record && step.stream >= 0 && !(through && through->blocks))
    record->work(streams[static_cast<size_t>(step.stream)].name,
                 step.command->label, step.use);
  if (auto *launches = std::get_if<Launches>(&step.what))
    return launchAll(*launches);
  if (auto *product = std::get_if<Product>(&step.what))
    return product->contraction
               ? product->contraction->run(gpu->compute)
               : clear(*gpu, step.command->contract, product->result);
  if (auto *attention = std::get_if<CudnnAttention>(&step.what))
    return attention->run();
  if (auto *move = std::get_if<MoveStep>(&step.what))
    return move->ends ? Error::success() : start(*move->move);
  if (auto *check = std::get_if<Check>(&step.what))
    return agree(step, *check, passed);
  return exchange(step, std::get<Exchange>(step.what));
}

//===----------------------------------------------------------------------===//
// Times
//===----------------------------------------------------------------------===//

/// Marks the end of a command, or the begin of the first.
Error CudaDevice::mark() {
  if (used == marks.size()) {
    Expected<CUevent> event = gpu->makeEvent();
    if (!event)
      return event.takeError();
    marks.push_back(*event);
  }
  return gpu->check(gpu->driver.cuEventRecord(marks[used++], gpu->compute),
                    "an event");
}

void CudaDevice::sumTimes(EntrySteps &entry, bool traced) {
  const Action *first = nullptr;
  if (auto it = program.entries.find(tracedEntry); it != program.entries.end())
    first = it->second.actions.data();
  for (size_t i = 0; i < marked.size() && i + 1 < used; ++i) {
    float milliseconds = 0, since = 0;
    if (gpu->driver.cuEventElapsedTime(&milliseconds, marks[i], marks[i + 1]))
      continue;
    auto time = static_cast<int64_t>(1e6 * static_cast<double>(milliseconds));
    const Step &step = *marked[i];
    breakdown[step.command->timeClass] += time;
    if (const auto *e = std::get_if<Exchange>(&step.what))
      entry.sent.took(e->counter, time);
    if (!traced || gpu->driver.cuEventElapsedTime(&since, marks[0], marks[i]))
      continue;
    const Part &part = program.parts[static_cast<size_t>(step.action->part)];
    events.push_back(
        {tracedRuns, static_cast<int32_t>(step.action - first),
         static_cast<int32_t>(step.command - part.commands.data()),
         began - origin +
             static_cast<int64_t>(1e6 * static_cast<double>(since)),
         time});
  }
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

void CudaDevice::finishCollectives(const EntrySteps &entry, const Step *last) {
  std::vector<const Exchange *> open;
  for (const Step &step : entry.steps) {
    if (&step == last)
      break;
    if (const auto *e = std::get_if<Exchange>(&step.what)) {
      if (e->ends)
        llvm::erase_if(open, [&](const Exchange *other) {
          return other->request == e->request;
        });
      else if (e->request)
        open.push_back(e);
    }
  }
  for (const Exchange *exchange : open)
    (void)communicator->api->wait(exchange->request);
  llvm::consumeError(finishStreams());
}

/// Copies of the second tier are parts of graphs where only streams of this
/// device wait for them, whatever the flags are. Else a stretch has the stream
/// of computation alone, and several commands: a graph of one saves nothing.
void CudaDevice::findStretches(EntrySteps &entry) const {
  entry.forks =
      entry.apart && llvm::none_of(entry.steps, [](const Step &step) {
        return step.unless || std::holds_alternative<Exchange>(step.what);
      });
  auto isFree = [&](const Step &step) {
    if (step.unless || step.whenStopped)
      return false;
    return entry.forks
               ? step.isWork() || std::holds_alternative<MoveStep>(step.what)
               : step.isWork() && step.waits.empty();
  };
  for (size_t begin = 0; begin < entry.steps.size();) {
    size_t end = begin;
    while (end < entry.steps.size() && isFree(entry.steps[end]))
      ++end;
    if (end - begin > (entry.forks ? 0 : 1))
      entry.stretches.push_back({begin, end, nullptr, {}});
    begin = end + 1;
  }
}

/// Streams besides that of computation take part from the beginning, so that
/// copies begin when their memory is free, and are waited for at the end.
Error CudaDevice::capture(EntrySteps &entry, Stretch &stretch) {
  const Driver &driver = gpu->driver;
  auto steps = llvm::ArrayRef(entry.steps)
                   .slice(stretch.begin, stretch.end - stretch.begin);
  std::set<int32_t> others;
  for (const Step &step : steps)
    if (step.stream > 0)
      others.insert(step.stream);
  auto order = [&](CUevent event, CUstream first, CUstream second) {
    if (Error error =
            gpu->check(driver.cuEventRecord(event, first), "an event"))
      return error;
    return gpu->check(driver.cuStreamWaitEvent(second, event, 0), "an event");
  };
  for (int32_t other : others)
    if (Error error = order(forked, gpu->compute,
                            streams[static_cast<size_t>(other)].stream))
      return error;
  for (const Step &step : steps) {
    bool ignored = true;
    if (Error error = await(step))
      return error;
    if (Error error = execute(step, ignored))
      return error;
    if (Error error = noteEnd(step))
      return error;
  }
  for (int32_t other : others)
    if (Error error = order(joined, streams[static_cast<size_t>(other)].stream,
                            gpu->compute))
      return error;
  return Error::success();
}

Error CudaDevice::launch(EntrySteps &entry, Stretch &stretch) {
  const Driver &driver = gpu->driver;
  if (!stretch.graph) {
    if (Error error =
            gpu->check(driver.cuStreamBeginCapture(
                           gpu->compute, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                       "beginning a graph"))
      return error;
    Offloaded before = offloaded;
    captured.emplace();
    Error error = capture(entry, stretch);
    captured.reset();
    stretch.moved = {offloaded.fetched - before.fetched,
                     offloaded.evicted - before.evicted};
    offloaded = before;
    CUgraph graph = nullptr;
    Error ended =
        gpu->check(driver.cuStreamEndCapture(gpu->compute, &graph), "a graph");
    if (!error && !ended)
      error = gpu->check(driver.cuGraphInstantiate(&stretch.graph, graph, 0),
                         "making a graph ready");
    if (graph)
      (void)driver.cuGraphDestroy(graph);
    if (error || ended)
      return llvm::joinErrors(std::move(error), std::move(ended));
  }
  offloaded.fetched += stretch.moved.fetched;
  offloaded.evicted += stretch.moved.evicted;
  return gpu->check(driver.cuGraphLaunch(stretch.graph, gpu->compute),
                    "launching a graph");
}

std::optional<Stop> CudaDevice::runSteps(EntrySteps &entry) {
  auto broken = [&](Error error) {
    std::string why = llvm::toString(std::move(error));
    communicator->api->fail(communicator, why.c_str());
    // Of several ranks that which has failed first, by its number.
    if (communicator->size > 1)
      why = communicator->api->error(communicator);
    return Stop{std::move(why), false, false, true};
  };
  const Action *action = nullptr;
  bool skipped = false;
  NamedRange actionRange;
  auto stretch = entry.stretches.begin();
  // A check copies the results with its status.
  bool read = entry.lastRead < 0,
       copied = entry.results.last < 0 || entry.results.status >= 0;
  // All steps before `next` are enqueued.
  auto reached = [&](size_t next) -> Error {
    if (!read && static_cast<int64_t>(next) > entry.lastRead) {
      read = true;
      if (Error error = host->noteRead())
        return error;
    }
    if (copied || static_cast<int64_t>(next) <= entry.results.last)
      return Error::success();
    copied = true;
    return host->copyResults(entry.results);
  };
  for (size_t i = 0; i < entry.steps.size(); ++i) {
    if (Error error = reached(i))
      return broken(std::move(error));
    const Step &step = entry.steps[i];
    if (stretch != entry.stretches.end() && stretch->begin == i) {
      size_t end = stretch->end;
      if (asGraphs) {
        if (Error error = launch(entry, *stretch))
          return broken(std::move(error));
        if (nccl)
          if (Error error = nccl->follow(1))
            return broken(std::move(error));
        i = end - 1;
        action = nullptr;
        ++stretch;
        continue;
      }
      ++stretch;
    }
    // What graphs do on other streams has ended with them.
    if (!asGraphs || !entry.forks)
      if (Error error = await(step))
        return broken(std::move(error));
    // An action may overwrite its flag.
    if (step.action != action) {
      action = step.action;
      const Part &part = program.parts[static_cast<size_t>(action->part)];
      actionRange.begin(part.scheduled.name.empty() ? part.name
                                                    : part.scheduled.name);
      skipped = step.whenStopped;
      if (step.unless && !skipped) {
        Expected<bool> flag = readFlag(step.unless);
        if (!flag)
          return broken(flag.takeError());
        skipped = *flag;
        updatedAgain += !skipped;
      }
    }
    if (skipped) {
      if (Error error = noteEnd(step))
        return broken(std::move(error));
      continue;
    }
    // Launches, and events before and after.
    const auto *launches = std::get_if<Launches>(&step.what);
    if (nccl)
      if (Error error = nccl->follow(
              4 + static_cast<int64_t>(launches ? launches->list.size() : 0)))
        return broken(std::move(error));
    bool passed = true;
    NamedRange commandRange;
    commandRange.begin(step.command->label);
    if (Error error = execute(step, passed))
      return broken(std::move(error));
    if (Error error = noteEnd(step))
      return broken(std::move(error));
    if (const auto *e = std::get_if<Exchange>(&step.what); e && !e->ends)
      entry.sent.ran(e->counter);
    if (measuring) {
      marked.push_back(&step);
      if (Error error = mark())
        return broken(std::move(error));
    }
    if (passed)
      continue;
    finishCollectives(entry, &step);
    for (const Step &later : llvm::ArrayRef(entry.steps).drop_front(i)) {
      bool ignored = true;
      if (!later.whenStopped)
        continue;
      if (Error error = execute(later, ignored))
        return broken(std::move(error));
      if (Error error = finishStreams())
        return broken(std::move(error));
    }
    const CheckCommand &why =
        checks.failed ? *entry.checks[static_cast<size_t>(checks.index)]
                      : step.command->check;
    std::array<int64_t, kCheckValues> values{};
    llvm::copy(checks.values, values.begin());
    return Stop{checks.failed ? checkMessage(why.message, values.data(),
                                             why.count, communicator->rank)
                              : why.message,
                checks.failed != 0, why.skips, false,
                checks.failed != 0 && why.room};
  }
  if (Error error = reached(entry.steps.size()))
    return broken(std::move(error));
  return std::nullopt;
}

int CudaDevice::run(llvm::StringRef name, cleave_stop &stop) {
  // Commands are measured in the first runs and now and then: events between
  // them cost time, and stand in the way of graphs.
  constexpr int64_t first = 2, every = 50;
  checks = {};
  offloaded = {};
  updatedAgain = 0;
  breakdown = Breakdown();
  stopped.reset();
  auto it = entries.find(name);
  if (it == entries.end()) {
    stopped = Stop{"the program has no such entry", true, false, true};
    stop = {stopped->message.c_str(), stopped->own, stopped->skips,
            stopped->broken, stopped->room};
    return 1;
  }
  EntrySteps &entry = it->second;
  bool traced = tracedRuns < runsToTrace && name == tracedEntry;
  // Libraries load code in the first runs, which a graph that is made does not
  // allow.
  measuring =
      traced ||
      (timing && (!graphs || entry.runs < first || entry.runs % every == 0));
  asGraphs = graphs && !record && !measuring && entry.runs >= first;
  ++entry.runs;
  used = 0;
  marked.clear();
  entry.sent.begin();
  Error error = gpu->makeCurrent();
  followed = !error && underWay &&
             gpu->driver.cuStreamQuery(gpu->compute) == CUDA_ERROR_NOT_READY;
  // What is on other streams, but for graphs, is not ordered behind another
  // run; and that would be measured with this one.
  bool ordered = !measuring && (!entry.apart || (asGraphs && entry.forks));
  if (!error && !ordered)
    error = settle();
  if (!error)
    error = host->begin();
  began = measuring ? monotonicNanoseconds() : began;
  if (!error && measuring)
    error = mark();
  if (!error)
    error = gpu->check(
        gpu->driver.cuMemsetD8Async(status, 0, sizeof checks, gpu->compute),
        "clearing the status of checks");
  if (!error)
    stopped = runSteps(entry);
  underWay = !error && !stopped && ordered;
  // What has failed can fail again; the first message is the cause.
  if (underWay) {
    // The host finds the end where it needs it.
  } else if (Error late = finishStreams()) {
    if (stopped && stopped->broken)
      llvm::consumeError(std::move(late));
    else
      error = llvm::joinErrors(std::move(error), std::move(late));
  }
  if (error)
    stopped = Stop{llvm::toString(std::move(error)), false, false, true};
  if (stopped)
    host->forgetResults();
  if (measuring) {
    sumTimes(entry, traced);
    entry.breakdown = breakdown;
  }
  breakdown = entry.breakdown;
  tracedRuns += traced && !stopped;
  note(name);
  if (!stopped)
    return 0;
  stop = {stopped->message.c_str(), stopped->own, stopped->skips,
          stopped->broken, stopped->room};
  return 1;
}
