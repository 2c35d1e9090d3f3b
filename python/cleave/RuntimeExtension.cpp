//===- RuntimeExtension.cpp - The runtime alone for Python ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A process that only runs artifacts loads no compiler.
///
//===----------------------------------------------------------------------===//

#include "Bindings.h"

using namespace cleave;
using namespace cleave::python;

NB_MODULE(_runtime, m) {
  m.doc() = "The runtime, without the compiler.";
  bindSession(m);
  m.def(
      "open",
      [](const std::string &path, int threads, bool timing,
         int ranksPerDevice) {
        runtime::SessionOptions options;
        options.threads = threads;
        options.ranksPerDevice = ranksPerDevice;
        options.timing = timing;
        auto session = runtime::Session::open(path, options);
        if (!session)
          raise(session.takeError());
        return std::make_shared<PySession>(std::move(*session));
      },
      nb::arg("path"), nb::arg("threads") = 0, nb::arg("timing") = false,
      nb::arg("ranks_per_device") = 1);
}
