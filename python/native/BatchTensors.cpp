//===- BatchTensors.cpp - Tensors of Python in and out of a program -------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Session.h"

using namespace cleave;
using namespace cleave::python;

PySession::Bytes PySession::read(const std::string &name) const {
  meet("read '" + name + "'");
  return copy(name);
}

std::string PySession::write(const std::string &name, const Source &bytes) {
  requireIdle();
  const runtime::Tensor &tensor = find(name);
  meet("write '" + name + "' (hash " + digest(bytes.data(), bytes.size()) +
       ")");
  std::string wrong = check(name, tensor, bytes);
  if (wrong.empty())
    session->write(tensor, bytes.data());
  return wrong;
}

PySession::Sources PySession::sourcesOf(const nb::list &tensors) const {
  Sources sources;
  for (nb::handle item : tensors) {
    auto pair = nb::cast<nb::tuple>(item);
    sources.push_back(
        {&find(nb::cast<std::string>(pair[0])), nb::cast<Source>(pair[1])});
  }
  return sources;
}

std::string PySession::textOf(const Sources &sources) {
  std::string text;
  for (const auto &[tensor, bytes] : sources)
    text += (text.empty() ? "'" : ", '") + tensor->name + "' (hash " +
            digest(bytes.data(), bytes.size()) + ")";
  return text;
}

std::string PySession::writeAll(const Sources &sources) {
  for (const auto &[tensor, bytes] : sources)
    if (std::string wrong = check(tensor->name, *tensor, bytes); !wrong.empty())
      return wrong;
  for (const auto &[tensor, bytes] : sources)
    session->write(*tensor, bytes.data());
  return "";
}

PySession::Bytes PySession::copy(const std::string &name) const {
  requireIdle();
  const runtime::Tensor &tensor = find(name);
  size_t size = static_cast<size_t>(session->bytes(tensor));
  auto *copy = new uint8_t[size];
  nb::capsule owner(
      copy, [](void *p) noexcept { delete[] static_cast<uint8_t *>(p); });
  if (llvm::Error error = session->read(tensor, copy))
    raise(std::move(error));
  return Bytes(copy, {size}, owner);
}

std::string PySession::check(const std::string &name,
                             const runtime::Tensor &tensor,
                             const Source &bytes) const {
  if (static_cast<int64_t>(bytes.size()) != session->bytes(tensor))
    throw nb::value_error((name + ": " + std::to_string(bytes.size()) +
                           " bytes given, " +
                           std::to_string(session->bytes(tensor)) + " expected")
                              .c_str());
  if (tensor.role == runtime::Role::Input ||
      tensor.role == runtime::Role::Buffer)
    if (llvm::Error error = runtime::checkIndexRange(tensor, bytes.data()))
      return llvm::toString(std::move(error));
  return "";
}
