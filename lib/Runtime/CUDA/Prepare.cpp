//===- Prepare.cpp - From commands to launches ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CudaDevice.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/Rows.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "llvm/ADT/StringExtras.h"

#include <cstdlib>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

/// Builds the steps of the program. All ranks of a group resolve its commands
/// in the same order, as communicators require.
class CudaDevice::Resolver {
public:
  explicit Resolver(CudaDevice &device)
      : device(device), gpu(*device.gpu), program(device.program) {}

  Error run();

private:
  using At = llvm::function_ref<CUdeviceptr(const Ref &)>;

  Error resolve(const Part &part, const Action &action,
                llvm::ArrayRef<int64_t> row, const Command &command);
  Expected<Launches> kernel(const KernelCommand &command, At at);
  Expected<Launches> find(std::vector<Launch> planned);
  Expected<std::optional<CudnnAttention>> fusedAttention(const Command &command,
                                                         At at);
  Expected<Exchange> collective(const CollectiveCommand &command,
                                const Part &part, llvm::ArrayRef<int64_t> row,
                                const std::string &label,
                                llvm::function_ref<int64_t(Ref)> offset);
  Error check(const Command &command, At at, Step step);
  Error exchange(const Part &part, const Action &action,
                 llvm::ArrayRef<int64_t> row, const Command &command,
                 llvm::function_ref<int64_t(Ref)> offset, Step step);
  Error writeConstants();
  /// What the host gives and takes: no command writes to what it gives.
  Error planHostTensors();

  CudaDevice &device;
  Gpu &gpu;
  const Program &program;
  /// Whether cuDNN could not be opened.
  bool noCudnn = false;
  /// The entry that is being resolved.
  EntrySteps *entry = nullptr;
  /// For the action that is being resolved, by token.
  std::map<int32_t, Exchange> underWay;
  std::map<int32_t, Move *> moving;
  /// For the entry, by token and micro-batch.
  std::map<std::pair<int32_t, int32_t>, Exchange> transfers;
};

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

Expected<CudaDevice::Launches>
CudaDevice::Resolver::find(std::vector<Launch> planned) {
  Launches launches;
  for (Launch &launch : planned) {
    Expected<CUfunction> function =
        gpu.find(launch.symbol, static_cast<int>(launch.sharedBytes));
    if (!function)
      return function.takeError();
    launches.list.push_back({*function, std::move(launch)});
  }
  return launches;
}

Expected<CudaDevice::Launches>
CudaDevice::Resolver::kernel(const KernelCommand &command, At at) {
  std::vector<Launch> launches;
  auto add = [&](const std::string &symbol, const LaunchShape &shape) {
    Launch &launch = launches.emplace_back();
    launch.symbol = symbol;
    launch.grid[0] = static_cast<uint32_t>(shape.grid);
    launch.block = static_cast<uint32_t>(shape.block);
    launch.sharedBytes = static_cast<uint32_t>(shape.sharedBytes);
    std::vector<CUdeviceptr> addresses;
    for (const Ref &arg : command.args)
      addresses.push_back(at(arg));
    if (command.uses > 1)
      launch.addAll<CUdeviceptr>(addresses);
    else
      for (CUdeviceptr address : addresses)
        launch.add(address);
    if (!command.finish.empty())
      launch.add(at(command.scratch));
  };
  add(command.symbol, command.launch);
  if (!command.finish.empty())
    add(command.finish, command.finishLaunch);
  return find(std::move(launches));
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// Of cuDNN; none where the generated kernels run the command.
Expected<std::optional<CudnnAttention>>
CudaDevice::Resolver::fusedAttention(const Command &command, At at) {
  if (command.attention.libraryBytes < 0 || Cudnn::isOff() || noCudnn)
    return std::nullopt;
  // Why cuDNN does not run it is of interest only where it must.
  auto give = [](Error error) -> Expected<std::optional<CudnnAttention>> {
    if (Cudnn::isRequired())
      return error;
    llvm::consumeError(std::move(error));
    return std::nullopt;
  };
  if (!device.cudnn) {
    auto opened = Cudnn::open(gpu.compute, gpu.getCapability());
    noCudnn = !opened;
    if (!opened)
      return give(opened.takeError());
    device.cudnn = std::move(*opened);
  }
  Expected<CudnnAttention> attention =
      device.cudnn->make(command, at, device.scratch);
  if (!attention)
    return give(attention.takeError());
  return std::move(*attention);
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

Expected<CudaDevice::Exchange>
CudaDevice::Resolver::collective(const CollectiveCommand &command,
                                 const Part &part, llvm::ArrayRef<int64_t> row,
                                 const std::string &label,
                                 llvm::function_ref<int64_t(Ref)> offset) {
  Exchange exchange;
  auto count = [&](const char *sendOffsets) {
    exchange.counter =
        entry->sent.add(program, static_cast<int>(device.rank), command,
                        part.unless.buffer >= 0, sendOffsets);
  };
  auto at = [&](Ref ref) {
    return device.arena + static_cast<uint64_t>(offset(ref));
  };
  if (device.shared && isPlannable(command)) {
    Expected<SharedTransport::Collective *> made =
        device.shared->make(command, at);
    if (!made)
      return made.takeError();
    exchange.shared = *made;
    count(nullptr);
    return exchange;
  }
  if (device.nccl && (isPlannable(command) || sendsRows(command))) {
    Expected<NcclTransport::Collective *> made = device.nccl->make(
        command, at, "part '" + part.name + "' (" + label + ")");
    if (!made)
      return made.takeError();
    exchange.collective = *made;
    count((*made)->sendOffsets());
    return exchange;
  }
  char *mirror = device.mirror.data();
  if (!mirror)
    return makeError("a rank alone has no collectives");
  count(sendsRows(command) ? mirror + offset(command.sendOffsets) : nullptr);
  Expected<cleave_request *> request =
      device.requests->prepare(command, [&](Ref ref) -> char * {
        return ref.buffer < 0 ? nullptr : mirror + offset(ref);
      });
  if (!request)
    return request.takeError();
  bool receives =
      command.collective != CollectiveKind::Reduce ||
      partIndex(program.mesh, command.axes, device.rank) == command.root;
  exchange.request = *request;
  if (receives)
    exchange.used.writes =
        MemoryUse::ofBlocks(part, row, command, &CollectiveBlock::dst);
  exchange.blocks = &device.exchanges.emplace_back(command, offset, receives);
  return exchange;
}

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

/// Adds a check as a step that begins as `step`.
Error CudaDevice::Resolver::check(const Command &command, At at, Step step) {
  auto index = static_cast<int32_t>(entry->checks.size());
  entry->checks.push_back(&command.check);
  Expected<std::vector<Launch>> planned =
      planLaunches(command, {at, device.scratch, device.status, index});
  if (!planned)
    return planned.takeError();
  Expected<Launches> launches = find(std::move(*planned));
  if (!launches)
    return launches.takeError();
  if (command.check.deferred) {
    step.what = std::move(*launches);
    entry->steps.push_back(std::move(step));
    return Error::success();
  }
  Check own;
  own.launches = std::move(*launches);
  Agreement &agreed = device.agreements.emplace_back();
  Expected<cleave_request *> request =
      device.requests->prepareAgreement(&agreed.own, &agreed.all);
  if (!request)
    return request.takeError();
  own.request = *request;
  step.finishes = true;
  own.own = &agreed.own;
  own.agreed = &agreed.all;
  step.what = std::move(own);
  entry->steps.push_back(std::move(step));
  return Error::success();
}

/// Adds a collective.
Error CudaDevice::Resolver::exchange(const Part &part, const Action &action,
                                     llvm::ArrayRef<int64_t> row,
                                     const Command &command,
                                     llvm::function_ref<int64_t(Ref)> offset,
                                     Step step) {
  const CollectiveCommand &c = command.collective;
  Expected<Exchange> made = collective(c, part, row, command.label, offset);
  if (!made)
    return made.takeError();
  if (NcclTransport::Collective *own = made->collective) {
    step.stream = device.streamIndex(own->stream, own->streamName());
    step.use.writes.push_back(own->staging);
    step.ended = own->ended;
  } else if (SharedTransport::Collective *own = made->shared) {
    step.stream = device.streamIndex(gpu.communication, "communication");
    step.use.writes.push_back(own->staging);
    // Other ranks may use it in between.
    for (const MemoryRange &range :
         MemoryUse::ofBlocks(part, row, c, &CollectiveBlock::src))
      step.use.reads.push_back(range);
    made->used = step.use;
  } else {
    step.finishes = true;
    step.use = {MemoryUse::ofBlocks(part, row, c, &CollectiveBlock::src), {}};
  }
  if (c.endsLater()) {
    transfers[{c.token, action.microBatch}] = *made;
  } else {
    underWay[c.token] = *made;
    moving.erase(c.token);
  }
  step.what = *made;
  entry->steps.push_back(std::move(step));
  return Error::success();
}

Error CudaDevice::Resolver::resolve(const Part &part, const Action &action,
                                    llvm::ArrayRef<int64_t> row,
                                    const Command &command) {
  auto offset = [&](const Ref &ref) {
    return row[static_cast<size_t>(ref.buffer)] + ref.offset;
  };
  auto at = [&](const Ref &ref) -> CUdeviceptr {
    return ref.buffer < 0
               ? 0
               : device.arena + static_cast<CUdeviceptr>(offset(ref));
  };
  Step step;
  step.command = &command;
  step.action = &action;
  step.unless = at(part.unless);
  step.whenStopped = part.whenStopped;
  step.use = MemoryUse::of(part, row, command);
  auto take = [&](auto what) -> Error {
    if (!what)
      return what.takeError();
    step.what = std::move(*what);
    entry->steps.push_back(std::move(step));
    return Error::success();
  };
  switch (command.kind) {
  case CommandKind::Kernel:
    return take(kernel(command.kernel, at));
  case CommandKind::Contract: {
    const ContractCommand &c = command.contract;
    Product product;
    product.result = at(c.c);
    if (c.m > 0 && c.n > 0 && c.k > 0 && c.batch > 0) {
      Expected<Contraction> made =
          device.contractions->make(c, Operands(c, at));
      if (!made)
        return made.takeError();
      product.contraction.emplace(std::move(*made));
    }
    step.what = std::move(product);
    entry->steps.push_back(std::move(step));
    return Error::success();
  }
  case CommandKind::AttentionForward:
  case CommandKind::AttentionBackward: {
    Expected<std::optional<CudnnAttention>> fused = fusedAttention(command, at);
    if (!fused)
      return fused.takeError();
    if (*fused) {
      step.what = std::move(**fused);
      entry->steps.push_back(std::move(step));
      return Error::success();
    }
  }
    [[fallthrough]];
  case CommandKind::ScatterAdd:
  case CommandKind::TopK:
  case CommandKind::Orthonormalize:
  case CommandKind::SortRows:
  case CommandKind::GroupedContract:
  case CommandKind::Copy:
  case CommandKind::Fill: {
    Expected<std::vector<Launch>> planned =
        planLaunches(command, {at, device.scratch});
    if (!planned)
      return planned.takeError();
    return take(find(std::move(*planned)));
  }
  case CommandKind::Check:
    return check(command, at, std::move(step));
  case CommandKind::Collective:
    return exchange(part, action, row, command, offset, std::move(step));
  case CommandKind::Wait: {
    const WaitCommand &wait = command.wait;
    if (auto it = moving.find(wait.token);
        !wait.transfer && it != moving.end()) {
      step.what = MoveStep{it->second, /*ends=*/true};
      step.stream = -1;
    } else {
      Exchange exchange = wait.transfer
                              ? transfers[{wait.token, action.microBatch}]
                              : underWay[wait.token];
      exchange.ends = true;
      step.finishes = !exchange.collective && !exchange.shared;
      step.stream = exchange.collective ? -1
                    : exchange.shared
                        ? device.streamIndex(gpu.communication, "communication")
                        : 0;
      step.use = exchange.used;
      if (exchange.shared)
        device.shared->release(*exchange.shared);
      step.what = exchange;
    }
    entry->steps.push_back(std::move(step));
    return Error::success();
  }
  case CommandKind::Fetch:
  case CommandKind::Evict: {
    const MoveCommand &c = command.move;
    Move &move = device.moves.emplace_back();
    move.memory = at(c.memory);
    move.tier = device.tier + offset(c.tier);
    move.bytes = c.bytes;
    move.evicts = command.kind == CommandKind::Evict;
    step.stream = device.streamIndex(gpu.copies, "copies");
    moving[c.token] = &move;
    step.what = MoveStep{&move, /*ends=*/false};
    entry->steps.push_back(std::move(step));
    return Error::success();
  }
  }
  return makeError("unknown command");
}

Error CudaDevice::Resolver::writeConstants() {
  for (const Constant &constant : program.constants) {
    std::string bytes = llvm::fromHex(constant.hex);
    if (Error error =
            gpu.write(device.arena + static_cast<CUdeviceptr>(constant.offset),
                      bytes.data(), static_cast<int64_t>(bytes.size())))
      return error;
  }
  for (const DeviceConstant &constant : program.deviceConstants) {
    std::vector<int64_t> values;
    for (const DeviceValue &value : constant.values)
      values.push_back(evaluate(program.mesh, value, device.rank));
    if (Error error =
            gpu.write(device.arena + static_cast<CUdeviceptr>(constant.offset),
                      values.data(),
                      static_cast<int64_t>(values.size() * sizeof(int64_t))))
      return error;
  }
  return Error::success();
}

Error CudaDevice::Resolver::planHostTensors() {
  std::vector<MemoryRange> written;
  for (const auto &[name, own] : device.entries)
    for (const Step &step : own.steps)
      llvm::append_range(written, step.use.writes);
  Expected<std::unique_ptr<HostTensors>> made = HostTensors::make(
      program, gpu, device.arena, written, device.record.get());
  if (!made)
    return made.takeError();
  device.host = std::move(*made);
  device.streamIndex(device.host->getStream(), HostTensors::kStreamName);
  for (const auto &[name, source] : program.entries) {
    EntrySteps &own = device.entries[name];
    own.results = device.host->plan(
        program, source, [&](const MemoryRange &range) -> int64_t {
          auto index = static_cast<int64_t>(own.steps.size()) - 1;
          for (; index >= 0; --index)
            if (const Step &step = own.steps[static_cast<size_t>(index)];
                overlaps(step.use.writes, range))
              return step.stream == 0 ? index : -1;
          return -1;
        });
    // The first check behind them that the host waits for copies them.
    MemoryRange status;
    auto steps = llvm::MutableArrayRef(own.steps).drop_front(
        static_cast<size_t>(own.results.last + 1));
    Step *check = llvm::find_if(steps, [](const Step &step) {
      return std::holds_alternative<Check>(step.what);
    });
    if (device.statusOffset >= 0 && check != steps.end())
      status = {Place::Arena, device.statusOffset, sizeof(CheckStatus)};
    device.host->place(own.results, status);
    if (own.results.status >= 0)
      std::get<Check>(check->what).results = &own.results;
  }
  return device.host->allocate();
}

Error CudaDevice::Resolver::run() {
  if (Error error = device.requests->makeGroups())
    return error;
  for (const auto &[name, source] : program.entries) {
    entry = &device.entries[name];
    transfers.clear();
    RowReader rows(source, program.parts.size());
    for (const Action &action : source.actions) {
      const Part &part = program.parts[static_cast<size_t>(action.part)];
      llvm::ArrayRef<int64_t> row = rows.next(action);
      for (const Command &command : part.commands)
        if (Error error = resolve(part, action, row, command))
          return makeError("part '" + part.name + "' (" + command.label +
                           "): " + llvm::toString(std::move(error)));
    }
  }
  if (Error error = planHostTensors())
    return error;
  for (auto &[name, own] : device.entries) {
    if (Error error = device.order(own))
      return error;
    device.findStretches(own);
  }
  return writeConstants();
}

Error CudaDevice::prepare(cleave_communicator *with) {
  if (with->size != deviceCount(program.mesh))
    return makeError("the program is for " +
                     llvm::Twine(deviceCount(program.mesh)) +
                     " devices, not for " + llvm::Twine(with->size));
  if (Error error = gpu->makeCurrent())
    return error;
  communicator = with;
  graphs = environment("CLEAVE_CUDA_GRAPHS") != "off";
  Expected<std::unique_ptr<WorkRecord>> opened =
      WorkRecord::open(std::getenv("CLEAVE_CUDA_RECORD"), rank);
  if (!opened)
    return opened.takeError();
  record = std::move(*opened);
  streams = {{gpu->compute, "compute"}, {gpu->copies, "copies"}};
  for (CUevent *event : {&forked, &joined}) {
    Expected<CUevent> made = gpu->makeEvent();
    if (!made)
      return made.takeError();
    *event = *made;
  }
  requests.emplace(program, communicator);
  if (with->size > 1) {
    Expected<Arena> mapped = Arena::map(program.arenaBytes);
    if (!mapped)
      return mapped.takeError();
    mirror = std::move(*mapped);
    Expected<std::unique_ptr<NcclTransport>> opened =
        NcclTransport::open(program, *gpu, *requests, communicator);
    if (!opened)
      return opened.takeError();
    nccl = std::move(*opened);
    if (nccl)
      gpu->watch = [this] { return nccl->watch(); };
    if (!nccl) {
      Expected<std::unique_ptr<SharedTransport>> sharing =
          SharedTransport::open(*gpu, *requests, communicator);
      if (!sharing)
        return sharing.takeError();
      shared = std::move(*sharing);
    }
  }
  return Resolver(*this).run();
}

/// Does nothing with CLEAVE_TUNING=off, as on the processor.
Error CudaDevice::tune() {
  if (environment("CLEAVE_TUNING") == "off")
    return Error::success();
  if (Error error = gpu->makeCurrent())
    return error;
  Error failure = Error::success();
  forEachCommand(
      program, [&](const Command &command, llvm::ArrayRef<int64_t> row) {
        const ContractCommand &c = command.contract;
        if (command.kind != CommandKind::Contract || c.m == 0 || c.n == 0 ||
            c.k == 0 || c.batch == 0)
          return;
        auto at = [&](const Ref &ref) {
          return arena + static_cast<CUdeviceptr>(
                             row[static_cast<size_t>(ref.buffer)] + ref.offset);
        };
        if (!failure)
          failure = contractions->tune(c, Operands(c, at), gpu->compute);
      });
  return failure;
}
