//===- CpuDevice.cpp - The processor as a device --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/CpuDevice.h"
#include "OneDnn.h"
#include "cleave/Runtime/CPU/Executor.h"
#include "cleave/Runtime/Core/DeviceCalls.h"
#include "llvm/ADT/StringExtras.h"

#include <cstring>

using namespace cleave::runtime;

static_assert(CLEAVE_TIME_CLASSES ==
              std::tuple_size_v<decltype(Breakdown::nanoseconds)>);

namespace {

class CpuDevice : public cleave_device {
public:
  CpuDevice(const Artifact &artifact, int64_t rank, const ThreadTeam &team,
            std::string tierFolder)
      : cleave_device{&kApi}, artifact(artifact),
        program(artifact.programOf(rank)), team(team),
        tierFolder(std::move(tierFolder)),
        tuner(ContractionTuner::fromEnvironment()) {}

private:
  using Calls = DeviceCalls<CpuDevice>;
  friend Calls;
  static const cleave_device_api kApi;

  static CpuDevice &of(cleave_device *device) {
    return *static_cast<CpuDevice *>(device);
  }
  /// Keeps the message of an error; returns what the call returns.
  int end(llvm::Error error) {
    if (!error)
      return 0;
    failure = llvm::toString(std::move(error));
    return 1;
  }

  llvm::Error allocate(int64_t arenaBytes, int64_t tierBytes);
  llvm::Error read(int32_t place, int64_t offset, char *to,
                   int64_t bytes) const;
  llvm::Error write(int32_t place, int64_t offset, const char *from,
                    int64_t bytes) const;
  llvm::Error zero(int32_t place, int64_t offset, int64_t bytes) const;
  void take(llvm::StringRef choices);
  void note(llvm::StringRef entry);
  int run(llvm::StringRef entry, cleave_stop &stop);
  llvm::ArrayRef<cleave_event> listTrace();

  const Artifact &artifact;
  const Program &program;
  const ThreadTeam &team;
  std::string tierFolder;
  Arena arena;
  std::unique_ptr<FileTier> tier;
  ContractionTuner tuner;
  std::optional<Executor> executor;
  /// What the device shows to its caller.
  std::string failure, choiceText, tierText;
  std::optional<Stop> stopped;
  SentLists sent;
  std::string traced;
  std::vector<cleave_event> events;
};

} // namespace

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

llvm::Error CpuDevice::allocate(int64_t arenaBytes, int64_t tierBytes) {
  llvm::Expected<Arena> mapped = Arena::map(arenaBytes);
  if (!mapped)
    return mapped.takeError();
  arena = std::move(*mapped);
  team.run([&](int thread, int count) { arena.touch(thread, count); });
  if (tierBytes == 0)
    return llvm::Error::success();
  auto created = FileTier::create(tierFolder, tierBytes);
  if (!created)
    return created.takeError();
  tier = std::move(*created);
  return llvm::Error::success();
}

llvm::Error CpuDevice::read(int32_t place, int64_t offset, char *to,
                            int64_t bytes) const {
  if (place == CLEAVE_TIER)
    return tier->read(offset, to, bytes);
  std::memcpy(to, arena.data() + offset, static_cast<size_t>(bytes));
  return llvm::Error::success();
}

llvm::Error CpuDevice::write(int32_t place, int64_t offset, const char *from,
                             int64_t bytes) const {
  if (place == CLEAVE_TIER)
    return tier->write(offset, from, bytes);
  std::memcpy(arena.data() + offset, from, static_cast<size_t>(bytes));
  return llvm::Error::success();
}

llvm::Error CpuDevice::zero(int32_t place, int64_t offset,
                            int64_t bytes) const {
  if (place == CLEAVE_TIER) {
    std::vector<char> zeros(static_cast<size_t>(bytes));
    return tier->write(offset, zeros.data(), bytes);
  }
  std::memset(arena.data() + offset, 0, static_cast<size_t>(bytes));
  return llvm::Error::success();
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

/// A choice of a method that this version does not have is left out.
void CpuDevice::take(llvm::StringRef choices) {
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::SplitString(choices, lines, "\n");
  for (llvm::StringRef line : lines) {
    auto [key, name] = line.rsplit('\t');
    if (auto method = measuredMethod(name))
      tuner.preset(key.str(), *method);
  }
}

int CpuDevice::run(llvm::StringRef entry, cleave_stop &stop) {
  stopped = executor->run(entry);
  note(entry);
  if (!stopped)
    return 0;
  stop = {stopped->message.c_str(), stopped->own, stopped->skips,
          stopped->broken, stopped->room};
  return 1;
}

/// The texts of `list` live as long as the executor.
void CpuDevice::note(llvm::StringRef entry) {
  sent.note(entry, executor->getCommunication(entry));
}

llvm::ArrayRef<cleave_event> CpuDevice::listTrace() {
  events.clear();
  auto it = program.entries.find(traced);
  if (it == program.entries.end())
    return events;
  const Action *first = it->second.actions.data();
  for (const TraceEvent &event : executor->getTrace()) {
    const Part &part = program.parts[static_cast<size_t>(event.action->part)];
    events.push_back(
        {event.run, static_cast<int32_t>(event.action - first),
         static_cast<int32_t>(event.command - part.commands.data()),
         event.start, event.duration});
  }
  return events;
}

const cleave_device_api CpuDevice::kApi = {
    .capability =
        [](cleave_device *, cleave_capability *what) {
#if defined(__x86_64__)
          *what = {"CPU", "x86_64", -1, 0};
#elif defined(__aarch64__)
          *what = {"CPU", "aarch64", -1, 0};
#else
          *what = {"CPU", "", -1, 0};
#endif
        },
    .allocate = Calls::allocate,
    .address = [](cleave_device *device) { return of(device).arena.data(); },
    .read = Calls::read,
    .write = Calls::write,
    .zero = Calls::zero,
    .tune =
        [](cleave_device *device, const char *choices) {
          CpuDevice &own = of(device);
          own.take(choices);
          Executor::tune(own.program, own.arena, own.team, own.tuner);
          own.tuner.save();
          return 0;
        },
    .choices =
        [](cleave_device *device) {
          CpuDevice &own = of(device);
          own.choiceText.clear();
          for (const auto &[key, method] : own.tuner.getChoices())
            own.choiceText += key + '\t' + methodName(method).str() + '\n';
          return own.choiceText.c_str();
        },
    .prepare =
        [](cleave_device *device, cleave_communicator *communicator,
           const char *choices) {
          CpuDevice &own = of(device);
          own.take(choices);
          llvm::Expected<Executor> created =
              Executor::create(own.artifact, own.arena, own.tier.get(),
                               own.team, own.tuner, communicator);
          if (!created)
            return own.end(created.takeError());
          own.executor.emplace(std::move(*created));
          for (const auto &[name, entry] : own.program.entries)
            own.note(name);
          return 0;
        },
    .compare =
        [](cleave_device *device) {
          return of(device).end(of(device).executor->compareRequests());
        },
    .run = Calls::run,
    .facts =
        [](cleave_device *device, cleave_run_facts *facts) {
          const Executor &executor = *of(device).executor;
          const Offloaded &moved = executor.getOffloaded();
          *facts = {moved.fetched,
                    moved.evicted,
                    executor.countUpdatedAgain(),
                    {},
                    0};
          llvm::copy(executor.getBreakdown().nanoseconds, facts->nanoseconds);
        },
    .sent = Calls::sent,
    .set_timing = [](cleave_device *device,
                     int32_t on) { of(device).executor->setTiming(on != 0); },
    .start_trace =
        [](cleave_device *device, const char *entry, int64_t runs,
           int64_t origin) {
          of(device).traced = entry;
          of(device).executor->startTrace(entry, runs, origin);
        },
    .trace = [](cleave_device *device, const cleave_event **list) -> int64_t {
      llvm::ArrayRef<cleave_event> events = of(device).listTrace();
      *list = events.data();
      return static_cast<int64_t>(events.size());
    },
    .library_bytes =
        [](cleave_device *device) {
          return of(device).executor->workspaceBytes();
        },
    .tier_failure =
        [](cleave_device *device) {
          CpuDevice &own = of(device);
          own.tierText = own.tier ? own.tier->failure() : "";
          return own.tierText.c_str();
        },
    .error = Calls::error,
    .close = Calls::close,
};

llvm::Expected<cleave_device *>
cleave::runtime::openCpuDevice(const Artifact &artifact, int64_t rank,
                               const ThreadTeam &team, std::string tierFolder) {
  if (llvm::Error error = openOneDnn())
    return error;
  return new CpuDevice(artifact, rank, team, std::move(tierFolder));
}
