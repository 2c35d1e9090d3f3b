//===- Handover.cpp - State from one program to another -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Programs of one model for several shapes usually place parameters and state
/// alike: each rank then copies its own shards.
///
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Runtime/Session/Session.h"
#include "llvm/ADT/STLExtras.h"

#include <cstring>

using namespace cleave::runtime;

static const Tensor *findIn(const Program &program, const std::string &name) {
  auto found = llvm::find_if(
      program.tensors, [&](const Tensor &one) { return one.name == name; });
  return found == program.tensors.end() ? nullptr : &*found;
}

/// Whether all ranks hold the same shards of a tensor of either program.
static bool heldAlike(const Artifact &one, const Artifact &other,
                      const Tensor &tensor) {
  int64_t ranks = deviceCount(one.getProgram().mesh);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Program &a = one.programOf(rank), &b = other.programOf(rank);
    const Tensor *here = findIn(a, tensor.name),
                 *there = findIn(b, tensor.name);
    if (!here != !there)
      return false;
    if (here && (a.mesh != b.mesh || here->dtype != there->dtype ||
                 here->shape != there->shape || here->padded != there->padded ||
                 here->sharding != there->sharding))
      return false;
  }
  return true;
}

llvm::Expected<std::vector<std::string>> Session::takeState(Session &other) {
  std::vector<std::string> rest;
  for (Session *session : {this, &other})
    if (llvm::Error error = session->finishUpdate())
      return error;
  bool sameRanks =
      ranks.size() == other.ranks.size() &&
      deviceCount(getProgram().mesh) == deviceCount(other.getProgram().mesh);
  for (const Tensor &tensor : getProgram().tensors) {
    if (tensor.role != Role::Parameter && tensor.role != Role::Buffer &&
        tensor.role != Role::State)
      continue;
    if (!sameRanks || !heldAlike(artifact, other.artifact, tensor)) {
      rest.push_back(tensor.name);
      continue;
    }
    if (tensor.role == Role::Buffer && other.valued.count(tensor.name))
      valued.insert(tensor.name);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const Rank &to = *ranks[rank], &from = *other.ranks[rank];
      if (!to.holds(tensor) || !from.holds(tensor))
        continue;
      llvm::Error wrong = llvm::Error::success();
      if (llvm::Error error = to.change(tensor, [&](char *own) {
            if (!wrong)
              wrong = from.read(tensor, own);
          }))
        return llvm::joinErrors(std::move(error), std::move(wrong));
      if (wrong)
        return wrong;
    }
  }
  return rest;
}
