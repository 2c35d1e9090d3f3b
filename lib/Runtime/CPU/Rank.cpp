//===- Rank.cpp - One rank of a program -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Rank.h"
#include "cleave/Runtime/Core/Placement.h"

#include <cstring>

using namespace cleave::runtime;

Rank::Rank(const Artifact &artifact, const RankOptions &options)
    : artifact(artifact),
      team(options.threads, options.firstCore, options.pinCaller) {}

/// The team in the interface of communicators.
static cleave_team viewOf(const ThreadTeam &team) {
  return {
      const_cast<ThreadTeam *>(&team), team.size(),
      [](void *context, void (*body)(void *, int32_t, int32_t), void *data) {
        static_cast<const ThreadTeam *>(context)->run(
            [&](int thread, int count) { body(data, thread, count); });
      }};
}

llvm::Expected<std::unique_ptr<Rank>> Rank::create(const Artifact &artifact,
                                                   const RankOptions &options,
                                                   const Connect &connect) {
  std::unique_ptr<Rank> rank(new Rank(artifact, options));
  llvm::Expected<cleave_communicator *> communicator =
      connect(viewOf(rank->team));
  if (!communicator)
    return communicator.takeError();
  rank->communicator = *communicator;
  const Program &program = rank->getProgram();
  llvm::Expected<Arena> mapped = Arena::map(program.arenaBytes);
  if (!mapped) {
    std::string message = llvm::toString(mapped.takeError());
    rank->communicator->api->fail(rank->communicator, message.c_str());
    return llvm::createStringError(message);
  }
  rank->arena = std::move(*mapped);
  rank->team.run(
      [&](int thread, int count) { rank->arena.touch(thread, count); });
  if (program.tierBytes > 0) {
    auto created = FileTier::create(options.offloadFolder, program.tierBytes);
    if (!created) {
      std::string message = llvm::toString(created.takeError());
      rank->communicator->api->fail(rank->communicator, message.c_str());
      return llvm::createStringError(message);
    }
    rank->tier = std::move(*created);
  }
  for (const Tensor &tensor : program.tensors)
    rank->tensors[tensor.name] = &tensor;
  return rank;
}

llvm::Error Rank::read(const Tensor &tensor, char *to) const {
  const Tensor &own = *find(tensor);
  int64_t bytes = localBytes(getProgram().mesh, own);
  if (own.tier)
    return tier->read(own.offset, to, bytes);
  std::memcpy(to, arena.data() + own.offset, static_cast<size_t>(bytes));
  return llvm::Error::success();
}

llvm::Error Rank::write(const Tensor &tensor, const char *from) const {
  const Tensor &own = *find(tensor);
  int64_t bytes = localBytes(getProgram().mesh, own);
  if (own.tier)
    return tier->write(own.offset, from, bytes);
  std::memcpy(arena.data() + own.offset, from, static_cast<size_t>(bytes));
  return llvm::Error::success();
}

llvm::Error Rank::change(const Tensor &tensor,
                         llvm::function_ref<void(char *)> body) const {
  if (char *own = data(tensor)) {
    body(own);
    return llvm::Error::success();
  }
  std::vector<char> copy(
      static_cast<size_t>(localBytes(getProgram().mesh, tensor)));
  body(copy.data());
  return write(tensor, copy.data());
}

llvm::Error Rank::prepare(ContractionTuner &tuner) {
  llvm::Expected<Executor> created =
      Executor::create(artifact, arena, tier.get(), team, tuner, communicator);
  if (!created)
    return created.takeError();
  executor.emplace(std::move(*created));
  return llvm::Error::success();
}

Rank::~Rank() {
  // Requests belong to the communicator.
  executor.reset();
  if (communicator)
    communicator->api->close(communicator);
}
