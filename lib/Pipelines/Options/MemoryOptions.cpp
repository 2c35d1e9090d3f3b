//===- MemoryOptions.cpp - Options of memory ------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "DeclareOptions.h"
#include "OptionRules.h"
#include "cleave/Dialect/Pipe/Transforms/RecomputePolicy.h"
#include "llvm/ADT/SmallVector.h"

using namespace cleave;
using llvm::StringRef;

static std::string policyProblem(StringRef text) {
  std::string error;
  if (text != "auto" && text != "default" &&
      !pipe::RecomputePolicy::parse(text.str(), error))
    return error;
  return "";
}

static std::string offloadProblem(StringRef kinds) {
  llvm::SmallVector<StringRef> names;
  kinds.split(names, ',');
  for (StringRef name : names)
    if (!kinds.empty() &&
        !llvm::is_contained({"state", "masters", "saved"}, name))
      return ("unknown kind '" + name +
              "'; what can be offloaded is state, masters and saved")
          .str();
  return "";
}

void cleave::declareMemory(OptionTable &table) {
  table
      .choice("optimizer-fusion", &PhaseOptions::optimizerFusion,
              {"auto", "none", "backward", "forward"})
      .says("Where updates run (arXiv 2104.00237). none: after all gradients; "
            "backward: each after its gradient, which is then released, an "
            "error where that is not possible; forward: in the next step, each "
            "before the first reader of its parameter; auto, the default: "
            "backward if possible, else none. The bits are the same")
      .refused(fusionProblem);
  table.text("recompute", &PhaseOptions::recompute)
      .form("policy")
      .drawn(
          {"none", "free", "full", "selective", "2 full; none", "auto", "some"})
      .says("What backward computes again instead of saving it. none; free: "
            "element-wise and row-wise ops; selective: the core of an "
            "attention that is not one op (arXiv 2205.05198); full: all of "
            "each block, from its input; regions: all of what the model runs "
            "in torch.utils.checkpoint; several with commas, by default "
            "free,regions, and regions on a GPU; a policy for each block, as "
            "'3 full; 5 free; none'; or auto: by blocks, the least time within "
            "{memory-limit}. Results have the same bits, on a GPU but for gelu "
            "that is computed again")
      .valid(policyProblem);
  table.size("memory-limit", &CompileOptions::memoryLimit)
      .unit(1 << 20)
      .plain()
      .least(1)
      .drawn({"80GB", "24GiB", "0", "-1"})
      .says("The most memory that a device may need, as 80GB (10^9 bytes each) "
            "or 24GiB (2^30): its arena, and what the report lists outside of "
            "it. What is recomputed is then chosen for it ({recompute} auto), "
            "and if no plan fits, the error says the smallest limit found");
  table.flag("fused-attention", &PhaseOptions::fusedAttention)
      .says("on, the default: attention is one op, which holds no scores; off: "
            "it is matmuls and a softmax, whose results are tensors");
  table.size("max-logits-bytes", &PhaseOptions::maxLogitsBytes)
      .formerly("max-logits-mib", 1 << 20)
      .least(1)
      .drawn({"1MiB", "0"})
      .says("The largest chunk of the logits in memory at once: 100 MiB by "
            "default, and 1 GiB on a GPU, which does little in a small one");
  table.text("offload", &PhaseOptions::offload)
      .form("kinds")
      .drawn({"state", "state,saved", "masters", "all"})
      .says("What is in a file of each rank while no command uses it, and "
            "fetched into memory before: state (the optimizer's), masters "
            "(parameters of which forward and backward read 16-bit copies), "
            "saved (by forward for backward), with commas between. Results "
            "have the same bits")
      .valid(offloadProblem);
  table.integer("moved-bytes", &PhaseOptions::movedBytes)
      .withoutFlag()
      .inPython("")
      .says("For a GPU, the most bytes that live longer because a launch is "
            "moved to be merged with another; negative: none are merged");
}
