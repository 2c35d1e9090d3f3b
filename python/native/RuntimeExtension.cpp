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
#include "cleave/Runtime/Data/TokenData.h"
#include <nanobind/stl/unique_ptr.h>

using namespace cleave;
using namespace cleave::python;

/// The tokens `at` to `at + count` as i64.
static nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>
readTokens(const runtime::TokenData &tokens, int64_t at, int64_t count) {
  if (at < 0 || count < 0 || at > tokens.size() - count)
    throw nb::index_error("there are not so many tokens");
  auto *copy = new int64_t[static_cast<size_t>(count)];
  nb::capsule owner(
      copy, [](void *p) noexcept { delete[] static_cast<int64_t *>(p); });
  if (llvm::Error error = tokens.read(at, count, copy))
    raise(std::move(error));
  return {copy, {static_cast<size_t>(count)}, owner};
}

NB_MODULE(_runtime, m) {
  m.doc() = "The runtime, without the compiler.";
  bindSession(m);
  nb::class_<runtime::TokenData>(m, "TokenData")
      .def("__len__", &runtime::TokenData::size)
      .def("read", &readTokens, nb::arg("at"), nb::arg("count"));
  m.def(
      "open_tokens",
      [](const std::string &path, const std::string &tokenizer,
         const std::string &type) {
        auto tokens = runtime::TokenData::open(path, tokenizer, type);
        if (!tokens)
          raise(tokens.takeError());
        return std::make_unique<runtime::TokenData>(std::move(*tokens));
      },
      nb::arg("path"), nb::arg("tokenizer"), nb::arg("type"));
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
