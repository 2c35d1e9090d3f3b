//===- CommunicationOptions.cpp - Options of collectives ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"

#include <cmath>

using namespace cleave;

/// Why a text does not say how many rows of experts a rank has room for.
static std::string expertBufferProblem(llvm::StringRef text) {
  double shares = 0;
  if (text == "worst")
    return "";
  if (text.getAsDouble(shares) || !std::isfinite(shares))
    return "expected worst or a number, not '" + text.str() + "'";
  return shares >= 1 ? ""
                     : "must be at least 1, not " + text.str() +
                           ": ranks have no room for even shares";
}

void cleave::declareCommunication(OptionTable &table) {
  table.size("bucket-bytes", &CompileOptions::bucketBytes)
      .formerly("bucket-kib", 1024)
      .least(0)
      .drawn({"0", "4MiB", "-1", "4 parsecs"})
      .says("Merge reductions and gathers of one kind among the same ranks "
            "into buckets of up to this size; 0: do not merge. By default of "
            "the size with which they end soonest: the root of the bytes of "
            "all that a part of the step reduces or gathers so, times the "
            "latency and the rate of a link of {machine}; 1 MiB where "
            "activations are cut into chunks ({collective-chunks})");
  table.integer("collective-chunks", &PhaseOptions::collectiveChunks)
      .least(1)
      .drawn({"2", "0"})
      .says("Cut gathers and reductions of activations and their gradients, "
            "with the contractions beside them, into up to this many chunks of "
            "samples (or of positions), so that one chunk is sent while "
            "another one is computed; 1: do not cut");
  table.size("collective-chunk-bytes", &PhaseOptions::collectiveChunkBytes)
      .formerly("collective-chunk-kib", 1024)
      .least(0)
      .drawn({"1KiB", "-1"})
      .says("With {collective-chunks}: the least bytes that a rank puts into "
            "the collective of one chunk (1 MiB by default); always more than "
            "a bucket has")
      .needs(
          [](const CompileOptions &options) {
            return options.phases.collectiveChunks > 1 ||
                   options.given.count("collective-chunks");
          },
          " needs {collective-chunks}");
  auto hasExperts = [](const CompileOptions &options) {
    return !rowAxes(options.phases).empty();
  };
  table.text("expert-buffer", &PhaseOptions::expertBuffer)
      .form("worst|factor")
      .drawn({"worst", "1.25", "0.5", "none"})
      .valid(expertBufferProblem)
      .says(
          "Of experts that drop no token, sharded by the recipe `expert`: the "
          "rows that a rank can receive. worst: those of all ranks, so that "
          "no choice of experts exceeds them; a factor: so many times those "
          "that a rank receives where experts are chosen evenly. By default "
          "worst where its buffers take at most a tenth of the arena, else 2, "
          "as the report says. {expert-overflow} says what follows where "
          "tokens choose otherwise")
      .needs(hasExperts, " needs the recipe `expert` in {plan}");
  table
      .choice("expert-overflow", &PhaseOptions::expertOverflow,
              {"auto", "abort", "grow"})
      .says(
          "A step whose tokens choose experts so that a rank has no room for "
          "its rows ({expert-buffer}) changes nothing. abort: it ends with an "
          "error that says the layer, the rank, the rows and the factor that "
          "has room. grow: the step of `cleave.compile` is compiled with twice "
          "the room, or more, and made again. auto: grow where the step is of "
          "`cleave.compile`, else abort")
      .needs(hasExperts, " needs the recipe `expert` in {plan}");
  table
      .choice("expert-dispatch", &PhaseOptions::expertDispatch,
              {"auto", "flat", "hierarchical"})
      .says(
          "How tokens go to experts that drop no token, where these are "
          "sharded "
          "over several axes. flat: a row for each choice, over all axes at "
          "once. hierarchical: over the axis `node` a row for each node that "
          "has a chosen expert of the token, then over the others a row for "
          "each choice; outputs are added on the node, and a row for each "
          "token "
          "and node returns. auto: hierarchical where the first of the axes is "
          "called `node`, another one follows, and a token chooses several "
          "experts")
      .needs(hasExperts, " needs the recipe `expert` in {plan}");
}
