//===- Signals.cpp - Signals noted; Trainer.cpp acts on them --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"

#include <csignal>

using namespace cleave::run;

static volatile std::sig_atomic_t stopSeen = 0, saveSeen = 0;

int cleave::run::stopSignal() { return stopSeen; }

bool cleave::run::takeSaveSignal() {
  bool seen = saveSeen;
  // A signal during the save asks for the checkpoint that is about to be
  // written.
  saveSeen = 0;
  return seen;
}

static void stop(int number) {
  if (stopSeen) {
    std::signal(number, SIG_DFL);
    std::raise(number);
    return;
  }
  stopSeen = number;
}

void cleave::run::watchSignals(bool begun) {
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR2, SIGUSR1}) {
    if (begun != (number != SIGUSR1))
      continue;
    struct sigaction action = {}, before = {};
    // The settings of nohup are kept.
    if (number == SIGHUP && ::sigaction(number, nullptr, &before) == 0 &&
        before.sa_handler == SIG_IGN)
      continue;
    action.sa_handler = stop;
    if (number == SIGUSR1)
      action.sa_handler = [](int) { saveSeen = 1; };
    action.sa_flags = SA_RESTART;
    ::sigaction(number, &action, nullptr);
  }
}

const char *cleave::run::signalName(int number) {
  return number == SIGINT    ? "SIGINT"
         : number == SIGTERM ? "SIGTERM"
         : number == SIGHUP  ? "SIGHUP"
         : number == SIGUSR2 ? "SIGUSR2"
                             : "a signal";
}
