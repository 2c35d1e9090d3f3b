//===- FindGenerator.cpp - Known schedules --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "GeneratorList.h"
#include "cleave/Scheduling/Generators/Generators.h"

using namespace cleave::scheduling;
using Shape = StageMap::Kind;

static constexpr Generator kGenerators[] = {
    {"gpipe", "all forwards, then all backwards; saves m micro-batches", 1,
     Shape::Modular, false, false, makeGPipe},
    {"1f1b",
     "one forward and one backward in turn; as fast as gpipe, and saves at "
     "most p micro-batches",
     1, Shape::Modular, false, false, makeOneForwardOneBackward},
    {"interleaved",
     "1f1b of v chunks at each position, with 1/v of the bubble and v times "
     "the transfers; m must be divisible by p",
     0, Shape::Modular, false, false, makeInterleaved},
    {"zb-h1",
     "1f1b whose weight gradients fill the bubble; saves as much as 1f1b", 1,
     Shape::Modular, true, false, makeZeroBubbleH1},
    {"zb-h2",
     "twice as many forwards ahead as zb-h1, never idle where F = I = W; "
     "saves at most 2p-1 micro-batches",
     1, Shape::Modular, true, false, makeZeroBubbleH2},
    {"zb-v",
     "two chunks at each position, in the shape of a V; never idle where "
     "F = I = W; saves as much as 1f1b",
     2, Shape::V, true, false, makeZeroBubbleV},
    {"v-half", "the chunks of zb-v; saves about half as much as 1f1b", 2,
     Shape::V, true, false, makeVHalf},
    {"v-min", "the chunks of zb-v; saves about a third as much as 1f1b", 2,
     Shape::V, true, false, makeVMin},
    {"dualpipe-v",
     "the chunks of zb-v, a forward of one next to a backward of the other; "
     "saves at most p + 1/2 micro-batches; m must be at least 2p",
     2, Shape::V, true, false, makeDualPipeV},
    {"pipedream",
     "1f1b with an update after each backward and no flush; stage s keeps up "
     "to p-s versions of its parameters, and its staleness is p-s-1 updates",
     1, Shape::Modular, false, true, makePipeDream},
};

llvm::ArrayRef<Generator> cleave::scheduling::generators() {
  return kGenerators;
}

const Generator *cleave::scheduling::findGenerator(llvm::StringRef name,
                                                   std::string &error) {
  std::string names;
  for (const Generator &generator : kGenerators) {
    if (generator.name == name)
      return &generator;
    names += (names.empty() ? "" : ", ") + generator.name.str();
  }
  error = "unknown schedule '" + name.str() + "'; write one of " + names +
          ", or auto, which searches for the fastest";
  return nullptr;
}

std::optional<Schedule> cleave::scheduling::generateSchedule(
    llvm::StringRef name, const PipelineSize &size, std::string &error) {
  const Generator *generator = findGenerator(name, error);
  if (!generator)
    return std::nullopt;
  if (size.devices < 1 || size.chunks < 1 || size.microBatches < 1) {
    error = name.str() + ": the numbers of pipeline positions, chunks and "
                         "micro-batches must be positive";
    return std::nullopt;
  }
  // An `int` must be able to number the tasks.
  if (size.devices > 4096 || size.chunks > 64 || size.microBatches > 65536 ||
      size.devices * size.chunks * size.microBatches > 1 << 24) {
    error = name.str() + ": a schedule of more than 2^24 forwards; give fewer "
                         "pipeline positions, chunks or micro-batches";
    return std::nullopt;
  }
  if (!generator->takesChunks(size.chunks)) {
    error = name.str() + " needs " +
            (generator->chunks ? std::to_string(generator->chunks)
                               : std::string("at least 2")) +
            (generator->chunks == 1 ? " stage" : " stages") +
            " at each pipeline position, got " + std::to_string(size.chunks) +
            "; change the number of chunks, or choose another schedule";
    return std::nullopt;
  }
  return generator->generate(size, error);
}
