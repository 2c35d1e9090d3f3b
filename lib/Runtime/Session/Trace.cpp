//===- Trace.cpp - Recorded times of ranks --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Launch.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Runtime/Session/Session.h"

using namespace cleave::runtime;

llvm::Error Session::startTrace(llvm::StringRef entry, int64_t runs) {
  // Clocks of machines have no common start. A rank receives the result of a
  // collective only after all others have called it, which gives a common time.
  if (llvm::Expected<bool> asked = any(false); !asked)
    return asked.takeError();
  traceStart = monotonicNanoseconds();
  // One machine has one clock.
  if (!world && processesHere() == getRanks()) {
    llvm::Expected<std::string> first =
        all().share(0, llvm::Twine(traceStart).str());
    if (!first)
      return first.takeError();
    llvm::StringRef(*first).getAsInteger(10, traceStart);
  }
  for (const std::unique_ptr<Rank> &rank : ranks)
    rank->startTrace(entry.str(), runs, traceStart);
  return llvm::Error::success();
}

std::vector<ActionEvent> Session::getActions(llvm::StringRef entry,
                                             int localRank) const {
  const Rank &rank = *ranks[static_cast<size_t>(localRank)];
  return actionsOf(rank.getProgram(), entry, rank.getTrace());
}

int64_t Session::getPosition(int localRank) const {
  return positionOf(getProgram(), getNumber(localRank));
}

bool Session::leadsPosition(int localRank) const {
  for (int number = 0; number < getNumber(localRank); ++number)
    if (positionOf(getProgram(), number) == getPosition(localRank))
      return false;
  return true;
}
