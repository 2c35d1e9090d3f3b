//===- Rank.cpp - One rank of a program -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session/Rank.h"
#include "DevicePlugin.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Runtime/CPU/CpuDevice.h"

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;

//===----------------------------------------------------------------------===//
// Creation
//===----------------------------------------------------------------------===//

Rank::Rank(const Artifact &artifact, const RankOptions &options)
    : artifact(artifact),
      team(options.threads, options.firstCore, options.pinCaller),
      ordinal(options.ordinal) {}

/// The team in the interface of communicators.
static cleave_team viewOf(const ThreadTeam &team) {
  return {
      const_cast<ThreadTeam *>(&team), team.size(),
      [](void *context, void (*body)(void *, int32_t, int32_t), void *data) {
        static_cast<const ThreadTeam *>(context)->run(
            [&](int thread, int count) { body(data, thread, count); });
      }};
}

Error Rank::check(int failed) const {
  return failed ? makeError(api().error(device)) : Error::success();
}

Error Rank::open(const RankOptions &options) {
  Expected<cleave_device *> opened =
      options.openDevice
          ? options.openDevice(artifact, number(), team, options.offloadFolder)
      : getProgram().isForGpu()
          ? openDevicePlugin(artifact, number(), options.ordinal)
          : openCpuDevice(artifact, number(), team, options.offloadFolder);
  if (!opened)
    return opened.takeError();
  device = *opened;
  api().capability(device, &capability);
  return Error::success();
}

Error Rank::allocate() {
  const Program &program = getProgram();
  if (Error error =
          check(api().allocate(device, program.arenaBytes, program.tierBytes)))
    return error;
  memory = api().address(device);
  return Error::success();
}

Expected<std::unique_ptr<Rank>> Rank::create(const Artifact &artifact,
                                             const RankOptions &options,
                                             const Connect &connect) {
  std::unique_ptr<Rank> rank(new Rank(artifact, options));
  Expected<cleave_communicator *> communicator = connect(viewOf(rank->team));
  if (!communicator)
    return communicator.takeError();
  rank->communicator = *communicator;
  if (Error error = rank->open(options)) {
    std::string message = llvm::toString(std::move(error));
    rank->communicator->api->fail(rank->communicator, message.c_str());
    return makeError(message);
  }
  for (const Tensor &tensor : rank->getProgram().tensors)
    rank->tensors[tensor.name] = &tensor;
  return rank;
}

Rank::~Rank() {
  // What a device has prepared belongs to the communicator.
  if (device)
    api().close(device);
  if (communicator)
    communicator->api->close(communicator);
}

Expected<std::string> Rank::tune(const std::string &choices) const {
  if (Error error = check(api().tune(device, choices.c_str())))
    return error;
  return std::string(api().choices(device));
}

Error Rank::prepare(const std::string &choices, bool timing) {
  if (Error error = check(api().prepare(device, communicator, choices.c_str())))
    return error;
  api().set_timing(device, timing);
  return Error::success();
}

Error Rank::compare() const { return check(api().compare(device)); }

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

static int32_t placeOf(const Tensor &tensor) {
  return tensor.tier ? CLEAVE_TIER : CLEAVE_ARENA;
}

Error Rank::read(const Tensor &tensor, char *to) const {
  const Tensor &own = *find(tensor);
  return check(api().read(device, placeOf(own), own.offset, to,
                          localBytes(getProgram().mesh, own)));
}

Error Rank::write(const Tensor &tensor, const char *from) const {
  const Tensor &own = *find(tensor);
  return check(api().write(device, placeOf(own), own.offset, from,
                           localBytes(getProgram().mesh, own)));
}

Error Rank::zero(const Tensor &tensor) const {
  const Tensor &own = *find(tensor);
  return check(api().zero(device, placeOf(own), own.offset,
                          localBytes(getProgram().mesh, own)));
}

Expected<const char *> Rank::view(const Tensor &tensor,
                                  std::vector<char> &copy) const {
  if (const char *own = data(tensor))
    return own;
  copy.resize(static_cast<size_t>(localBytes(getProgram().mesh, tensor)));
  if (Error error = read(tensor, copy.data()))
    return error;
  return copy.data();
}

Error Rank::put(const Tensor &tensor, bool keep,
                llvm::function_ref<void(char *)> body) const {
  if (char *own = data(tensor)) {
    body(own);
    return Error::success();
  }
  std::vector<char> copy(
      static_cast<size_t>(localBytes(getProgram().mesh, tensor)));
  if (keep)
    if (Error error = read(tensor, copy.data()))
      return error;
  body(copy.data());
  return write(tensor, copy.data());
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

std::optional<Stop> Rank::run(const std::string &entry) const {
  cleave_stop stop{};
  if (api().run(device, entry.c_str(), &stop) == 0)
    return std::nullopt;
  return Stop{stop.message, stop.own != 0, stop.skips != 0, stop.broken != 0,
              stop.room != 0};
}

llvm::ArrayRef<cleave_sent> Rank::getSent(const std::string &entry) const {
  const cleave_sent *list = nullptr;
  int64_t count = api().sent(device, entry.c_str(), &list);
  return {list, static_cast<size_t>(count)};
}

void Rank::startTrace(const std::string &entry, int64_t runs, int64_t origin) {
  traced = entry;
  api().start_trace(device, entry.c_str(), runs, origin);
}

std::vector<TraceEvent> Rank::getTrace() const {
  std::vector<TraceEvent> events;
  const Program &program = getProgram();
  auto entry = program.entries.find(traced);
  const cleave_event *list = nullptr;
  int64_t count = api().trace(device, &list);
  if (entry == program.entries.end())
    return events;
  for (const cleave_event &event :
       llvm::ArrayRef(list, static_cast<size_t>(count))) {
    const Action &action =
        entry->second.actions[static_cast<size_t>(event.action)];
    const Part &part = program.parts[static_cast<size_t>(action.part)];
    events.push_back({&part.commands[static_cast<size_t>(event.command)],
                      &action, event.run, event.start, event.duration});
  }
  return events;
}
