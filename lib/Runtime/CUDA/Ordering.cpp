//===- Ordering.cpp - The order of a program's streams --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CudaDevice.h"
#include "WorkOrder.h"

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

int32_t CudaDevice::streamIndex(CUstream stream, llvm::StringRef name) {
  for (auto [index, own] : llvm::enumerate(streams))
    if (own.stream == stream)
      return static_cast<int32_t>(index);
  streams.push_back({stream, name.str()});
  return static_cast<int32_t>(streams.size() - 1);
}

/// Steps of actions that run only when a check has stopped the entry take no
/// part: then the host waits for everything after each of them. Events are
/// recorded and awaited also where an action is skipped, so that they order the
/// others.
Error CudaDevice::order(EntrySteps &entry) {
  // 1. The works, those of flags before those of their steps.
  std::vector<Work> list;
  std::vector<size_t> stepOf;
  std::deque<MemoryUse> flags;
  std::map<const void *, int32_t> begun;
  const Action *action = nullptr;
  auto add = [&](size_t index, Work work) {
    list.push_back(work);
    stepOf.push_back(index);
  };
  // What the host has given is there when the stream of computation begins.
  add(0, {0, /*finishes=*/false, -1, &host->getGiven()});
  for (auto [index, step] : llvm::enumerate(entry.steps)) {
    bool first = step.action != action;
    action = step.action;
    if (step.whenStopped)
      continue;
    if (first && step.unless) {
      flags.push_back(
          {{{Place::Arena, static_cast<int64_t>(step.unless - arena), 1}}, {}});
      add(index, {0, /*finishes=*/true, -1, &flags.back()});
    }
    Work work{step.stream, step.finishes && !step.unless, -1, &step.use};
    const auto *move = std::get_if<MoveStep>(&step.what);
    const auto *exchange = std::get_if<Exchange>(&step.what);
    const void *key = move       ? static_cast<const void *>(move->move)
                      : exchange ? exchange->collective
                                 : nullptr;
    if (key && (move ? move->ends : exchange->ends))
      work.ends = begun.at(key);
    else if (key)
      begun[key] = static_cast<int32_t>(list.size());
    add(index, work);
  }
  // 2. Their events.
  for (auto [index, waits] :
       llvm::enumerate(orderWork(list, static_cast<int32_t>(streams.size()))))
    for (const WorkWait &wait : waits) {
      Awaited awaited{wait.stream, nullptr, wait.work < 0};
      CUevent *event = &awaited.event;
      if (wait.work >= 0)
        event = &entry.steps[stepOf[static_cast<size_t>(wait.work)]].ended;
      if (!*event) {
        Expected<CUevent> made = gpu->makeEvent();
        if (!made)
          return made.takeError();
        *event = *made;
      }
      awaited.event = *event;
      entry.steps[stepOf[index]].waits.push_back(awaited);
    }
  for (auto [index, step] : llvm::enumerate(entry.steps)) {
    entry.apart |= step.stream > 0;
    if (host->readsInput(step.use.reads))
      entry.lastRead = static_cast<int64_t>(index);
    if (!record)
      step.use = {};
  }
  return Error::success();
}

Error CudaDevice::await(const Step &step) {
  for (const Awaited &wait : step.waits) {
    // What was recorded before a graph has ended when it begins.
    if (captured && !wait.compute && !captured->count(wait.event))
      continue;
    const Stream &stream = streams[static_cast<size_t>(wait.stream)];
    if (wait.compute) {
      if (record)
        record->event(streams[0].name, wait.event);
      if (Error error = gpu->check(
              gpu->driver.cuEventRecord(wait.event, gpu->compute), "an event"))
        return error;
    }
    if (record)
      record->wait(stream.name, wait.event);
    if (Error error = gpu->check(
            gpu->driver.cuStreamWaitEvent(stream.stream, wait.event, 0),
            "an event"))
      return error;
  }
  return Error::success();
}

Error CudaDevice::noteEnd(const Step &step) {
  if (!step.ended)
    return Error::success();
  const Stream &stream = streams[static_cast<size_t>(step.stream)];
  if (captured)
    captured->insert(step.ended);
  if (record)
    record->event(stream.name, step.ended);
  return gpu->check(gpu->driver.cuEventRecord(step.ended, stream.stream),
                    "an event");
}

Error CudaDevice::finishStreams() {
  Error error = Error::success();
  for (const Stream &stream : streams) {
    if (record)
      record->finish(stream.name);
    if (!error)
      error = gpu->finish(stream.stream);
  }
  if (!error)
    noteFinished();
  return error;
}

Error CudaDevice::settle() {
  if (!underWay)
    return Error::success();
  underWay = false;
  if (Error error = gpu->makeCurrent())
    return error;
  return finishStreams();
}

Error CudaDevice::settleFor(int32_t place) {
  if (Error error = settle())
    return error;
  return host && place == CLEAVE_ARENA ? host->finishInputs()
                                       : Error::success();
}

void CudaDevice::noteFinished() {
  if (host)
    host->finished();
}

/// Records what the host does: with the arena by the stream, and it waits for
/// that; with the second tier itself.
void CudaDevice::note(llvm::StringRef what, int32_t place, MemoryUse use) {
  if (!record)
    return;
  if (place == CLEAVE_ARENA) {
    record->work(streams[0].name, what, use);
    return record->finish(streams[0].name);
  }
  record->host(what, {rangesAt(Place::Tier, std::move(use.reads)),
                      rangesAt(Place::Tier, std::move(use.writes))});
}
