//===- Processes.cpp - The processes of a launch --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session/Processes.h"
#include "Launch.h"

using namespace cleave::runtime;

llvm::Expected<std::unique_ptr<Processes>>
Processes::connect(const std::string &secret,
                   std::function<bool()> interrupted) {
  llvm::Expected<Connect> open = openProcesses(secret, std::move(interrupted));
  if (!open)
    return open.takeError();
  // What is exchanged here is small: the calling thread is the whole team.
  cleave_team alone{nullptr, 1,
                    [](void *, void (*body)(void *, int32_t, int32_t),
                       void *data) { body(data, 0, 1); }};
  llvm::Expected<cleave_communicator *> communicator = (*open)(alone);
  if (!communicator)
    return communicator.takeError();
  return std::unique_ptr<Processes>(new Processes(*communicator));
}

void Processes::fail(const std::string &message) {
  communicator->api->fail(communicator, message.c_str());
}

std::string Processes::error() const {
  return communicator->api->error(communicator);
}

void Processes::setBusy(bool on) { communicator->api->busy(communicator, on); }

bool Processes::isUnnoticed(int grace) const {
  return communicator->api->unnoticed(communicator, grace) != 0;
}
