//===- Session.cpp - A running program for Python -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Session.h"

#include <chrono>

using namespace cleave;
using namespace cleave::python;

void PySession::close() {
  requireIdle();
  if (!session)
    return;
  if (!processes)
    return session.reset();
  processes->retire(number, std::move(session));
  processes->close("close a program");
}

nb::list PySession::tensors() const {
  nb::list result;
  for (const runtime::Tensor &tensor : session->getProgram().tensors) {
    nb::dict facts;
    facts["name"] = tensor.name;
    facts["role"] = runtime::roleName(tensor.role).str();
    facts["dtype"] = runtime::dtypeName(tensor.dtype).str();
    facts["shape"] = nb::cast(tensor.shape);
    facts["framework_shape"] = nb::cast(tensor.frameworkShape);
    facts["aliases"] = nb::cast(tensor.aliases);
    facts["frozen"] = tensor.frozen;
    facts["of"] = tensor.of;
    facts["slot"] = tensor.slot;
    if (tensor.hasIgnoreIndex)
      facts["ignore_index"] = tensor.ignoreIndex;
    if (tensor.upperBound > 0)
      facts["bound"] = tensor.upperBound;
    result.append(facts);
  }
  return result;
}

std::vector<std::string> PySession::entries() const {
  std::vector<std::string> names;
  for (const auto &[name, entry] : session->getProgram().entries)
    names.push_back(name);
  return names;
}

std::string PySession::restore(const nb::list &tensors,
                               std::optional<std::vector<int64_t>> position,
                               std::optional<std::vector<double>> scale) {
  requireIdle();
  if (position && position->size() != 4)
    throw nb::value_error(
        "seed, step, data position and skipped steps expected");
  std::optional<runtime::LossScaleState> lossScale;
  if (scale) {
    if (scale->size() == 3)
      lossScale = {(*scale)[0], static_cast<int64_t>((*scale)[1]),
                   static_cast<int64_t>((*scale)[2])};
    if (!lossScale || !lossScale->isValid())
      throw nb::value_error("a loss scale is out of range");
  }
  Sources sources = sourcesOf(tensors);
  if (processes) {
    std::string at;
    for (int64_t one : position.value_or(std::vector<int64_t>()))
      at += (at.empty() ? " at seed, step, data position and skipped steps "
                        : ", ") +
            std::to_string(one);
    meet("write " + textOf(sources) + at);
  }
  std::string wrong = writeAll(sources);
  if (wrong.empty() && position) {
    counts->seed = (*position)[0];
    counts->step = (*position)[1];
    counts->dataPosition = (*position)[2];
    counts->skipped = (*position)[3];
    session->setLossScale(lossScale);
    counts->lossScale = session->getLossScale();
    counts->last = nb::none();
  }
  return wrong;
}

nb::object PySession::call(const std::string &entry, const nb::list &inputs,
                           const nb::dict &scalars,
                           const std::vector<std::string> &outputs,
                           nb::object note) {
  requireIdle();
  auto start = std::chrono::steady_clock::now();
  Sources sources = sourcesOf(inputs);
  for (const std::string &name : outputs)
    find(name);
  if (processes) {
    std::string given;
    for (auto [name, value] : scalars)
      given += " with " + nb::cast<std::string>(name) + " " +
               nb::cast<std::string>(nb::str(value));
    meet("'" + entry + "' after step " + std::to_string(counts->step) + " of " +
         textOf(sources) + given);
  }
  if (std::string wrong = writeAll(sources); !wrong.empty())
    return nb::cast(wrong);
  for (auto [name, value] : scalars)
    if (llvm::Error error = session->setScalar(nb::cast<std::string>(name),
                                               nb::cast<double>(value)))
      raise(std::move(error));
  bool training = entry == "train";
  std::string stopped =
      execute(entry, counts->seed, counts->step + (training ? 1 : 0));
  if (!stopped.empty())
    return nb::cast(stopped);
  if (training) {
    counts->step = session->getStep();
    counts->skipped = session->getSkipped();
    counts->lossScale = session->getLossScale();
  }
  double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  nb::dict values;
  for (const std::string &name : outputs)
    values[name.c_str()] = copy(name);
  nb::object result = nb::make_tuple(values, counts->step, seconds,
                                     last.updatedAgain, last.skipped, note);
  if (training)
    counts->last = result;
  if (training && processes)
    processes->settle();
  return result;
}

std::vector<std::string> PySession::takeState(PySession &other) {
  other.requireIdle();
  other.requireOpen();
  meet("move the state to another program");
  auto rest = session->takeState(*other.session);
  if (!rest)
    raise(rest.takeError());
  return *rest;
}

nb::list PySession::communication() const {
  nb::list result;
  for (const cleave_sent &c : last.communication) {
    nb::dict facts;
    facts["kind"] = c.kind;
    facts["axes"] = c.axes;
    facts["count"] = c.count;
    facts["exchanges"] = c.exchanges;
    facts["elements"] = c.elements;
    facts["bytes"] = c.bytes;
    facts["ms"] = c.nanoseconds * 1e-6;
    result.append(facts);
  }
  return result;
}

nb::object PySession::lossScale() const {
  std::optional<runtime::LossScaleState> state =
      counts->lossScale ? counts->lossScale : session->getLossScale();
  if (!state)
    return nb::none();
  return nb::make_tuple(state->scale, state->growth, state->hysteresis);
}

nb::dict PySession::timings() const {
  nb::dict result;
  result["total"] = last.seconds * 1e3;
  for (size_t i = 0; i < last.breakdown.nanoseconds.size(); ++i)
    if (i != static_cast<size_t>(runtime::TimeClass::Offload) ||
        session->getProgram().tierBytes > 0)
      result[runtime::timeClassName(static_cast<runtime::TimeClass>(i))
                 .str()
                 .c_str()] = last.breakdown.nanoseconds[i] * 1e-6;
  return result;
}

void PySession::loadWeights(const std::string &path) {
  meet("load weights");
  if (llvm::Error error = session->loadWeights(path))
    raise(std::move(error));
}

std::string PySession::checkFinite() const {
  meet("check whether the state is finite");
  llvm::Error error = session->checkFinite();
  return error ? llvm::toString(std::move(error)) : "";
}

std::string PySession::saveCheckpoint(const std::string &folder, bool nonFinite,
                                      const std::string &kept) {
  meet("save a checkpoint");
  session->setSeed(counts->seed);
  session->setStep(counts->step);
  session->setSkipped(counts->skipped);
  session->setLossScale(counts->lossScale);
  runtime::SaveOptions how;
  how.nonFinite = nonFinite;
  how.kept = kept;
  running = true;
  llvm::Error error = [&] {
    nb::gil_scoped_release released;
    return session->saveCheckpoint(folder, counts->dataPosition, how);
  }();
  running = false;
  return error ? llvm::toString(std::move(error)) : "";
}

nb::tuple PySession::loadCheckpoint(const std::string &folder) {
  meet("load a checkpoint");
  auto state = session->loadCheckpoint(folder);
  nb::list absent;
  if (!state)
    return nb::make_tuple(llvm::toString(state.takeError()), absent, "");
  for (const std::string &technique : state->absent)
    absent.append(technique);
  counts->seed = state->seed;
  counts->step = session->getStep();
  counts->dataPosition = state->dataPosition;
  counts->skipped = state->skipped;
  counts->lossScale = session->getLossScale();
  counts->last = nb::none();
  return nb::make_tuple("", absent, state->kept);
}

nb::dict PySession::memory() const {
  runtime::MemoryReport report = session->getMemory();
  nb::dict result;
  result["ranks"] = report.ranks;
  result["arena"] = report.arena;
  for (const auto &[kind, bytes] : report.byKind)
    result[kind.c_str()] = bytes;
  result["library_workspace"] = report.workspace;
  if (report.tier)
    result["tier"] = report.tier;
  return result;
}

std::string PySession::execute(const std::string &entry, int64_t seed,
                               int64_t number) {
  session->setSeed(seed);
  session->setStep(entry == "train" ? number - 1 : number);
  session->setSkipped(counts->skipped);
  session->setLossScale(counts->lossScale);
  running = true;
  auto result = [&] {
    nb::gil_scoped_release released;
    return session->run(entry);
  }();
  running = false;
  if (!result)
    return llvm::toString(result.takeError());
  last = *result;
  return "";
}

void PySession::meet(const std::string &what) const {
  requireIdle();
  if (processes)
    processes->meet(what);
}

const runtime::Tensor &PySession::find(const std::string &name) const {
  requireOpen();
  const runtime::Tensor *tensor = session->find(name);
  if (!tensor)
    throw nb::key_error(name.c_str());
  return *tensor;
}

void PySession::requireIdle() const {
  if (running)
    throw std::runtime_error("another thread runs this step: one call at a "
                             "time");
}
