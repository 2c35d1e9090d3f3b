//===- UnrollTransfers.cpp - Begin and end of transfers -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Unroller.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// Begins a transfer. A send is awaited before any later transfer is. A receive
/// begins before the latest part so far and is awaited before its reader, so
/// that it overlaps with the parts in between.
///
/// If some order of the transfers, with both ends of each at one point, does
/// not deadlock, this order does not either: a rank waits for a transfer only
/// after it has received all earlier ones. Among the incomplete transfers, let
/// T be the first in an order of the whole pipeline. Before its sender begins
/// T, it waits only for earlier transfers, so T has begun; its receiver waits
/// for T or for a later one, and so receives it.
void Unroller::transfer(const scheduling::Action &action) {
  int64_t to = map.device(action.to);
  SmallVector<OpResult> results(transfers.values(action, to));
  if (results.empty())
    return;
  int64_t microBatch = std::max<int64_t>(action.microBatch, 0);
  if (action.kind == scheduling::Action::Kind::Send) {
    finishSends();
    sent = {action, results, {}, here};
    receivingBeforeSent = receiving.size();
    for (OpResult result : results)
      sent->values.push_back(valueOf(result, /*dim=*/-1, microBatch));
    transfers.send(builder, action, results, sent->values);
    return;
  }
  ValueRange received;
  {
    OpBuilder::InsertionGuard guard(builder);
    if (latest)
      builder.setInsertionPoint(latest);
    received = transfers.receive(builder, action, results);
  }
  receiving.push_back({action, results, llvm::to_vector(received), here});
  for (auto [result, value] : llvm::zip_equal(results, received)) {
    auto invoke = cast<pipe::InvokeOp>(result.getOwner());
    SmallVector<Value> &known = values[result];
    bool saved = invoke.isSaved(result.getResultNumber()) && !invoke.getOnce();
    known.resize(saved ? count : 1);
    known[saved ? microBatch : 0] = value;
  }
}

void Unroller::finishSends() {
  if (!sent)
    return;
  finishReceives(receivingBeforeSent);
  noteRuns(here);
  transfers.await(builder, sent->action, sent->results, sent->values);
  noteRuns(sent->place);
  sent.reset();
}

/// Waits for the given number of transfers that are in flight, the oldest
/// first.
void Unroller::finishReceives(size_t number) {
  // Erasing an empty range would move elements onto themselves.
  if (number == 0)
    return;
  noteRuns(here);
  for (const UnderWay &one : ArrayRef(receiving).take_front(number)) {
    transfers.await(builder, one.action, one.results, one.values);
    noteRuns(one.place);
  }
  receiving.erase(receiving.begin(), receiving.begin() + number);
  receivingBeforeSent -= std::min(receivingBeforeSent, number);
}

/// Waits for the values that `invoke` reads, and for all earlier transfers.
void Unroller::finishReceivesOf(pipe::InvokeOp invoke, int64_t microBatch) {
  size_t number = 0;
  for (auto [i, one] : llvm::enumerate(receiving))
    for (OpResult result : one.results) {
      auto giver = cast<pipe::InvokeOp>(result.getOwner());
      bool ofEach = giver.isSaved(result.getResultNumber()) && !giver.getOnce();
      bool isRead = llvm::is_contained(invoke.getInputs(), Value(result)) &&
                    (!ofEach || invoke.getOnce() ||
                     std::max<int64_t>(one.action.microBatch, 0) == microBatch);
      if (isRead)
        number = i + 1;
    }
  finishReceives(number);
}
