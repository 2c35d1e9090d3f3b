//===- Rank.cpp - One rank of a program -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Rank.h"

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
  for (const Tensor &tensor : program.tensors)
    rank->offsets[tensor.name] = tensor.offset;
  return rank;
}

llvm::Error Rank::prepare(ContractionTuner &tuner) {
  llvm::Expected<Executor> created =
      Executor::create(artifact, arena, team, tuner, communicator);
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
