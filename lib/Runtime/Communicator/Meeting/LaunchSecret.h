//===- LaunchSecret.h - The secret of a launch in a file --------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_LAUNCHSECRET_H
#define CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_LAUNCHSECRET_H

#include <string>

namespace cleave::runtime {

/// Writes a new secret to a file that its owner alone may read; creates its
/// folder. Returns the error, or "".
std::string writeSecret(const std::string &path, std::string &secret);
/// Reads it; returns why not, or "". One that others could have written or read
/// is none.
std::string readSecret(const std::string &path, std::string &secret);

} // namespace cleave::runtime

#endif // CLEAVE_LIB_RUNTIME_COMMUNICATOR_MEETING_LAUNCHSECRET_H
