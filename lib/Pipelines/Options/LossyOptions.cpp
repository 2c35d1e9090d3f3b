//===- LossyOptions.cpp - Options that change the mathematics -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"
#include "OptionRules.h"
#include "cleave/Dialect/Graph/Transforms/Pruning.h"
#include "cleave/Dialect/Graph/Transforms/UpdateDelay.h"
#include "cleave/Dialect/Spmd/Transforms/Compression.h"

using namespace cleave;
using llvm::StringRef;

void cleave::declareLossy(OptionTable &table) {
  table.text("compress", &PhaseOptions::compress)
      .fact()
      .form("compressor[,setting=x]")
      .drawn({"powersgd,rank=4", "topk,density=0.1", "int8", "zip"})
      .says("Sum gradients over ranks with less data, which changes the "
            "mathematics: powersgd,rank=4 (factors of low rank, arXiv "
            "1905.13727), topk,density=0.01 (the largest elements), "
            "threshold,keep=0.005, int8 or 1bit (codes). The rest is added in "
            "the next step (error feedback), and is state of the optimizer")
      .valid(spmd::compressionProblem)
      .refused(cleave::compressionProblem);
  table.text("compress-over", &PhaseOptions::compressOver)
      .form("axis")
      .drawn({"node", "tp"})
      .says("With {compress}: the axis of the mesh over which compressed "
            "gradients are summed, dp by default; over others they are summed "
            "in full")
      .needs(
          [](const CompileOptions &options) {
            return !options.phases.compress.empty();
          },
          " needs {compress}");
  table.number("compress-stages", &PhaseOptions::stageDensity)
      .fact()
      .form("density")
      .above(0)
      .most(1)
      .drawn({"0.1", "1", "0", "2"})
      .says("Of each row (last dimension) of an activation, send this share of "
            "its elements, those of largest magnitude, to other stages of the "
            "pipeline, and the gradient at the same places back; others are 0, "
            "which changes the mathematics (DCT-MP, arXiv 2010.08899). At "
            "0.0333 stages send 20 times fewer bytes in f32")
      .refused(cleave::stageCompressionProblem);
  table.text("prune", &PhaseOptions::prune)
      .fact()
      .form("2:4|share[,setting]")
      .drawn({"2:4", "0.5", "0.9,cubic,steps=10", "3:4"})
      .says("Keep weights of contractions zero after each update: 2:4 (two of "
            "each four along the inputs), or the share of each tensor, as 0.5 "
            "or 0.9,cubic,steps=1000 (the share grows over these steps). Those "
            "of least magnitude are chosen, until the step that steps= says (1 "
            "without cubic), and fixed then")
      .valid(graph::pruningProblem);
  table.text("quantize", &PhaseOptions::quantize)
      .fact()
      .form("int8")
      .drawn({"int8", "int3"})
      .says("Train for weights of 8 bits: contractions read weights rounded to "
            "int8 with a scale for each output channel, and gradients are "
            "those of the rounded weights")
      .valid(graph::quantizationProblem)
      .refused([](const CompileOptions &options) -> std::string {
        return options.phases.precision == "fp8"
                   ? ": quantized weights are read in f32 or 16 bits, and "
                     "{precision} fp8 rounds them to 8 bits of its own"
                   : "";
      });
  table.text("update-delay", &PhaseOptions::updateDelay)
      .fact()
      .form("steps[,pattern=steps...][,reduce=next]")
      .drawn({"1", "1,embed*=0", "1,reduce=next", "-1"})
      .says("Update parameters by the gradients of so many steps before, which "
            "changes the mathematics: 1, or, by names of parameters, "
            "1,embed*=0. Gradients that wait are state. With reduce=next ranks "
            "add them up in the step after their own, whose computation hides "
            "the time of it")
      .valid(graph::updateDelayProblem)
      .refused(cleave::updateDelayProblem);
}
