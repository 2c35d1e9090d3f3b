//===- CommunicationOptions.cpp - Options of collectives ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"

using namespace cleave;

void cleave::declareCommunication(OptionTable &table) {
  table.size("bucket-bytes", &CompileOptions::bucketBytes)
      .formerly("bucket-kib", 1024)
      .least(0)
      .drawn({"0", "4MiB", "-1", "4 parsecs"})
      .says("Merge reductions and gathers of one kind among the same ranks "
            "into buckets of up to this size; 0: do not merge. By default of "
            "the size with which they end soonest: the root of the bytes of "
            "all that a part of the step reduces or gathers so, times the "
            "latency and the rate of a link of {machine}");
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
  table.number("expert-buffer", &PhaseOptions::expertBuffer)
      .form("factor")
      .least(1)
      .drawn({"1.25", "0.5"})
      .says(
          "Of experts that drop no token, sharded by the recipe `expert`: the "
          "rows that a rank can receive, in shares that all ranks would "
          "receive if experts were chosen evenly. A step whose tokens choose "
          "otherwise ends with an error that says by how many rows, and "
          "changes nothing. By default there is room for the rows of all ranks")
      .needs(
          [](const CompileOptions &options) {
            return !rowAxes(options.phases).empty();
          },
          " needs the recipe `expert` in {plan}");
}
