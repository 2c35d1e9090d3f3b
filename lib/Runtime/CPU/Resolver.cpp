//===- Resolver.cpp - From commands to addresses --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "LibraryMemory.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/Rows.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Runtime/CPU/Executor.h"
#include "llvm/ADT/StringExtras.h"

using namespace cleave::runtime;

/// Builds the steps of a program for one rank.
class Executor::Resolver {
public:
  Resolver(Executor &executor, const Artifact &artifact, const Arena &arena,
           const ThreadTeam &team, ContractionTuner &tuner)
      : executor(executor), artifact(artifact), arena(arena), team(team),
        tuner(tuner), program(artifact.programOf(executor.communicator->rank)),
        communicator(executor.communicator) {}

  llvm::Error run();

private:
  using At = llvm::function_ref<char *(const Ref &)>;
  llvm::Expected<Step> resolve(const Part &part, const Action &action,
                               llvm::ArrayRef<int64_t> row,
                               const Command &command);
  llvm::Expected<Attention> attention(const Part &part, const Command &command,
                                      At at);
  Move beginMove(const Command &command, llvm::ArrayRef<int64_t> row, At at);
  Executor &executor;
  const Artifact &artifact;
  const Arena &arena;
  const ThreadTeam &team;
  ContractionTuner &tuner;
  const Program &program;
  cleave_communicator *communicator;
  /// For the entry that is being resolved.
  EntrySteps *entry = nullptr;
  /// For the action that is being resolved, by token.
  std::map<int32_t, Exchange> underWay;
  std::map<int32_t, FileTier::Move *> moving;
  /// For the entry, by token and micro-batch.
  std::map<std::pair<int32_t, int32_t>, Exchange> transfers;
};

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

/// The call of an attention of `part`.
llvm::Expected<Executor::Attention>
Executor::Resolver::attention(const Part &part, const Command &command, At at) {
  auto floats = [&](const Ref &ref) {
    return reinterpret_cast<float *>(at(ref));
  };
  const AttentionCommand &c = command.attention;
  Attention attention;
  attention.backward = command.kind == CommandKind::AttentionBackward;
  if (c.type != DType::F32 || c.resultType != DType::F32)
    return makeError("part '" + part.name + "' (" + command.label +
                     "): the processor has no attention of " +
                     dtypeName(c.type != DType::F32 ? c.type : c.resultType));
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
  p.queryStarts = reinterpret_cast<const int64_t *>(at(c.queryStarts));
  p.keyStarts = reinterpret_cast<const int64_t *>(at(c.keyStarts));
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
  return attention;
}

/// The beginning of a fetch or an eviction.
Executor::Move Executor::Resolver::beginMove(const Command &command,
                                             llvm::ArrayRef<int64_t> row,
                                             At at) {
  const MoveCommand &c = command.move;
  FileTier::Move &move = executor.moves.emplace_back();
  move.memory = at(c.memory);
  move.offset = row[static_cast<size_t>(c.tier.buffer)] + c.tier.offset;
  move.bytes = c.bytes;
  move.evicts = command.kind == CommandKind::Evict;
  moving[c.token] = &move;
  return {&move, /*ends=*/false};
}

static int64_t *wide(char *memory) {
  return reinterpret_cast<int64_t *>(memory);
}

/// The call of a sort of rows.
static SortRowsPointers sortOf(const SortRowsCommand &c,
                               llvm::function_ref<char *(const Ref &)> at) {
  return {at(c.groups), wide(at(c.origin)), wide(at(c.order)),
          wide(at(c.inverse)), wide(at(c.offsets))};
}

/// The call of products of sorted rows.
static GroupedPointers productsOf(const GroupedContractCommand &c,
                                  llvm::function_ref<char *(const Ref &)> at) {
  return {at(c.a), at(c.b), wide(at(c.offsets)), at(c.out),
          wide(at(c.scratch))};
}

llvm::Expected<Executor::Step>
Executor::Resolver::resolve(const Part &part, const Action &action,
                            llvm::ArrayRef<int64_t> row,
                            const Command &command) {
  auto at = [&](const Ref &ref) -> char * {
    if (ref.buffer < 0)
      return nullptr;
    return arena.data() + row[static_cast<size_t>(ref.buffer)] + ref.offset;
  };
  auto floats = [&](const Ref &ref) {
    return reinterpret_cast<float *>(at(ref));
  };
  auto step = [&](auto &&what) {
    return Step{&command, &action, at(part.unless), part.whenStopped,
                std::move(what)};
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
    ContractionMethod method = tuner.choose(c, at(c.a), at(c.b), at(c.c), team);
    Contraction contraction(c, at(c.a), at(c.b), at(c.c), method);
    // A choice from a file may name a method that this library does not have.
    if (!contraction.isValid())
      contraction =
          Contraction(c, at(c.a), at(c.b), at(c.c), ContractionMethod::Sgemm);
    return step(std::move(contraction));
  }
  case CommandKind::AttentionForward:
  case CommandKind::AttentionBackward: {
    llvm::Expected<Attention> call = attention(part, command, at);
    if (!call)
      return call.takeError();
    return step(std::move(*call));
  }
  case CommandKind::ScatterAdd: {
    const ScatterAddCommand &c = command.scatterAdd;
    return step(Scatter{floats(c.rows), at(c.ids), floats(c.out)});
  }
  case CommandKind::TopK: {
    const TopKCommand &c = command.topK;
    return step(Largest{floats(c.in), floats(c.values),
                        reinterpret_cast<int64_t *>(at(c.indices)),
                        at(c.scratch)});
  }
  case CommandKind::Orthonormalize: {
    const OrthonormalizeCommand &c = command.orthonormalize;
    return step(Columns{floats(c.in), floats(c.out),
                        reinterpret_cast<double *>(at(c.scratch))});
  }
  case CommandKind::SortRows:
    return step(sortOf(command.sortRows, at));
  case CommandKind::GroupedContract:
    return step(productsOf(command.groupedContract, at));
  case CommandKind::Copy:
    return step(Copy{StridedCopy(command.copy), at(command.copy.src),
                     at(command.copy.dst)});
  case CommandKind::Fill:
    return step(Fill{at(command.fill.dst)});
  case CommandKind::Check: {
    const char *flag = at(command.check.flag);
    const auto *values =
        reinterpret_cast<const int64_t *>(at(command.check.values));
    if (command.check.deferred)
      return step(Check{nullptr, flag, values, nullptr, nullptr});
    Agreement &agreed = executor.agreements.emplace_back();
    llvm::Expected<cleave_request *> request =
        executor.requests->prepareAgreement(&agreed.own, &agreed.all);
    if (!request)
      return request.takeError();
    return step(Check{*request, flag, values, &agreed.own, &agreed.all});
  }
  case CommandKind::Collective: {
    const CollectiveCommand &c = command.collective;
    llvm::Expected<cleave_request *> request =
        executor.requests->prepare(c, at);
    if (!request)
      return request.takeError();
    Exchange exchange{*request,
                      entry->sent.add(program, communicator->rank, c,
                                      part.unless.buffer >= 0,
                                      at(c.sendOffsets)),
                      /*ends=*/false};
    if (c.endsLater())
      transfers[{c.token, action.microBatch}] = exchange;
    else
      underWay[c.token] = exchange;
    if (!c.endsLater())
      moving.erase(c.token);
    return step(exchange);
  }
  case CommandKind::Wait: {
    const WaitCommand &wait = command.wait;
    if (auto it = moving.find(wait.token); !wait.transfer && it != moving.end())
      return step(Move{it->second, /*ends=*/true});
    Exchange exchange = wait.transfer
                            ? transfers[{wait.token, action.microBatch}]
                            : underWay[wait.token];
    exchange.ends = true;
    return step(exchange);
  }
  case CommandKind::Fetch:
  case CommandKind::Evict:
    return step(beginMove(command, row, at));
  }
  return makeError("unknown command");
}

llvm::Error Executor::Resolver::run() {
  if (llvm::Error error = executor.requests->makeGroups())
    return error;
  int64_t workspaceBytes = 0;
  for (const auto &[name, source] : program.entries) {
    entry = &executor.entries[name];
    transfers.clear();
    size_t commands = 0;
    for (const Action &action : source.actions)
      commands +=
          program.parts[static_cast<size_t>(action.part)].commands.size();
    entry->steps.reserve(commands);
    RowReader rows(source, program.parts.size());
    for (const Action &action : source.actions) {
      const Part &part = program.parts[static_cast<size_t>(action.part)];
      llvm::ArrayRef<int64_t> row = rows.next(action);
      for (const Command &command : part.commands) {
        llvm::Expected<Step> step = resolve(part, action, row, command);
        if (!step)
          return step.takeError();
        if (const auto *contraction = std::get_if<Contraction>(&step->what))
          workspaceBytes =
              std::max(workspaceBytes, contraction->workspaceBytes());
        entry->steps.push_back(std::move(*step));
      }
    }
  }
  llvm::Expected<Arena> workspace = Arena::map(workspaceBytes);
  if (!workspace)
    return workspace.takeError();
  executor.workspace = std::move(*workspace);
  for (const Constant &constant : program.constants) {
    std::string bytes = llvm::fromHex(constant.hex);
    std::copy(bytes.begin(), bytes.end(), arena.data() + constant.offset);
  }
  for (const DeviceConstant &constant : program.deviceConstants) {
    auto *at = reinterpret_cast<int64_t *>(arena.data() + constant.offset);
    for (const DeviceValue &value : constant.values)
      *at++ = evaluate(program.mesh, value, communicator->rank);
  }
  return llvm::Error::success();
}

void Executor::tune(const Program &program, const Arena &arena,
                    const ThreadTeam &team, ContractionTuner &tuner) {
  (void)cacheLibraryMemory();
  ThreadTeam::Adopted adopted = team.adopt();
  forEachCommand(program, [&](const Command &command,
                              llvm::ArrayRef<int64_t> row) {
    if (command.kind != CommandKind::Contract)
      return;
    const ContractCommand &c = command.contract;
    auto at = [&](const Ref &ref) {
      return arena.data() + row[static_cast<size_t>(ref.buffer)] + ref.offset;
    };
    tuner.choose(c, at(c.a), at(c.b), at(c.c), team);
  });
}

llvm::Expected<Executor> Executor::create(const Artifact &artifact,
                                          const Arena &arena, FileTier *tier,
                                          const ThreadTeam &team,
                                          ContractionTuner &tuner,
                                          cleave_communicator *communicator) {
  const Program &program = artifact.getProgram();
  if (team.size() > program.threads)
    return makeError("the program's scratch memory is planned for " +
                     llvm::Twine(program.threads) + " threads, not " +
                     llvm::Twine(team.size()));
  if (communicator->size != deviceCount(program.mesh))
    return makeError("the program is for " +
                     llvm::Twine(deviceCount(program.mesh)) +
                     " devices, not for " + llvm::Twine(communicator->size));
  // Without the cache, steps are slower but correct.
  (void)cacheLibraryMemory();
  Executor executor(team);
  executor.communicator = communicator;
  executor.requests.emplace(artifact.programOf(communicator->rank),
                            communicator);
  executor.tier = tier;
  ThreadTeam::Adopted adopted = team.adopt();
  Resolver resolver(executor, artifact, arena, team, tuner);
  if (llvm::Error error = resolver.run())
    return error;
  return executor;
}
