//===- SessionTest.cpp - Tests of sessions --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "BigramSession.h"
#include "cleave/Executable/Files/Safetensors.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/Support/FileSystem.h"
#include "gtest/gtest.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <random>
#include <thread>
#include <unistd.h>

using namespace cleave::runtime;
using cleave::test::resolveBigram;

namespace {

class SessionTest : public testing::Test {
protected:
  void SetUp() override {
    ::setenv("CLEAVE_TUNING", "off", 1);
    ASSERT_FALSE(llvm::sys::fs::createUniqueDirectory("session", folder));
  }
  void TearDown() override { llvm::sys::fs::remove_directories(folder); }

  std::unique_ptr<Session> make(int threads = 2, int64_t seed = 1) {
    SessionOptions options;
    options.threads = threads;
    options.seed = seed;
    options.timing = true;
    auto session =
        Session::create({cleave::test::makeBigram({})}, resolveBigram, options);
    EXPECT_TRUE(bool(session)) << llvm::toString(session.takeError());
    return std::move(*session);
  }

  /// Batch `index` of data in which each token follows from the last.
  static void setBatch(Session &session, int index) {
    std::vector<int64_t> ids(4 * 32), labels(4 * 32);
    for (int64_t i = 0; i < 4 * 32; ++i) {
      ids[i] = (i * 7 + index * 5) % 64;
      labels[i] = i % 9 == 0 ? -100 : (ids[i] * 3 + 1) % 64;
    }
    ASSERT_OK(session.setInput("ids", ids.data(), DType::I64, {4, 32}));
    ASSERT_OK(session.setInput("labels", labels.data(), DType::I64, {4, 32}));
    ASSERT_OK(session.setScalar("lr", 2.0));
  }

  static double trainOne(Session &session, int index) {
    setBatch(session, index);
    auto result = session.run("train");
    EXPECT_TRUE(bool(result)) << llvm::toString(result.takeError());
    auto loss = session.getScalar("loss");
    EXPECT_TRUE(bool(loss));
    return *loss;
  }

  static std::vector<char> contents(Session &session, Role role) {
    std::vector<char> all;
    for (const Tensor &tensor : session.getProgram().tensors)
      if (tensor.role == role)
        all.insert(all.end(), session.data(tensor),
                   session.data(tensor) + session.bytes(tensor));
    return all;
  }

  llvm::SmallString<128> folder;
};

TEST_F(SessionTest, LearnsAndIsReproducible) {
  auto first = make(2), second = make(2);
  ASSERT_OK(first->initialiseRandomly(3));
  ASSERT_OK(second->initialiseRandomly(3));
  double start = 0, end = 0;
  for (int i = 0; i < 60; ++i) {
    double loss = trainOne(*first, i);
    EXPECT_EQ(loss, trainOne(*second, i));
    (i == 0 ? start : end) = loss;
  }
  EXPECT_NEAR(start, std::log(64.0), 0.1);
  EXPECT_LT(end, 0.7 * start);
  EXPECT_EQ(first->getStep(), 60);
  EXPECT_EQ(contents(*first, Role::Parameter),
            contents(*second, Role::Parameter));
  // Another seed drops other elements.
  auto third = make(2, 99);
  ASSERT_OK(third->initialiseRandomly(3));
  trainOne(*third, 0);
  auto fourth = make(2, 1);
  ASSERT_OK(fourth->initialiseRandomly(3));
  trainOne(*fourth, 0);
  EXPECT_NE(contents(*third, Role::Parameter),
            contents(*fourth, Role::Parameter));
}

TEST_F(SessionTest, EvaluationChangesNothing) {
  auto session = make();
  ASSERT_OK(session->initialiseRandomly(3));
  trainOne(*session, 0);
  auto weights = contents(*session, Role::Parameter);
  auto state = contents(*session, Role::State);
  setBatch(*session, 1);
  ASSERT_TRUE(bool(session->run("evaluate")));
  double loss = *session->getScalar("loss");
  ASSERT_TRUE(bool(session->run("evaluate")));
  EXPECT_EQ(loss, *session->getScalar("loss"));
  EXPECT_EQ(weights, contents(*session, Role::Parameter));
  EXPECT_EQ(state, contents(*session, Role::State));
  EXPECT_EQ(session->getStep(), 1);
}

TEST_F(SessionTest, ResumedRunsHaveTheSameBits) {
  auto whole = make();
  ASSERT_OK(whole->initialiseRandomly(3));
  for (int i = 0; i < 20; ++i)
    trainOne(*whole, i);
  auto part = make();
  ASSERT_OK(part->initialiseRandomly(3));
  for (int i = 0; i < 10; ++i)
    trainOne(*part, i);
  std::string path = (folder + "/step-10").str();
  ASSERT_OK(part->saveCheckpoint(path, 40));
  // A second time replaces the first.
  ASSERT_OK(part->saveCheckpoint(path + "/", 40));
  auto resumed = make(2, 555);
  auto state = resumed->loadCheckpoint(path);
  ASSERT_TRUE(bool(state)) << llvm::toString(state.takeError());
  EXPECT_EQ(state->step, 10);
  EXPECT_EQ(state->dataPosition, 40);
  EXPECT_EQ(resumed->getSeed(), 1);
  for (int i = 10; i < 20; ++i)
    trainOne(*resumed, i);
  EXPECT_EQ(contents(*whole, Role::Parameter),
            contents(*resumed, Role::Parameter));
  EXPECT_EQ(contents(*whole, Role::State), contents(*resumed, Role::State));
  std::error_code error;
  int entries = 0;
  for (llvm::sys::fs::directory_iterator it(folder, error), end; it != end;
       it.increment(error))
    ++entries;
  EXPECT_EQ(entries, 1) << "temporary folders were left";
}

TEST_F(SessionTest, ChecksStopTheStep) {
  auto session = make();
  ASSERT_OK(session->initialiseRandomly(3));
  trainOne(*session, 0);
  auto weights = contents(*session, Role::Parameter);
  auto state = contents(*session, Role::State);
  setBatch(*session, 1);
  std::vector<int64_t> ignored(128, -100);
  ASSERT_OK(session->setInput("labels", ignored.data(), DType::I64, {4, 32}));
  auto result = session->run("train");
  ASSERT_FALSE(bool(result));
  EXPECT_EQ(llvm::toString(result.takeError()), "all labels are ignored");

  setBatch(*session, 1);
  auto *weight = reinterpret_cast<float *>(
      session->data(*session->find("embedding.weight")));
  // A whole row, since dropout may hide one element.
  std::vector<float> kept(weight, weight + 16);
  std::fill_n(weight, 16, NAN);
  auto second = session->run("train");
  ASSERT_FALSE(bool(second));
  EXPECT_EQ(llvm::toString(second.takeError()),
            "the gradient norm is not a number");
  std::copy(kept.begin(), kept.end(), weight);
  EXPECT_EQ(weights, contents(*session, Role::Parameter));
  EXPECT_EQ(state, contents(*session, Role::State));
  EXPECT_EQ(session->getStep(), 1);
}

TEST_F(SessionTest, InputsAreChecked) {
  auto session = make();
  std::vector<int64_t> ids(128, 1);
  auto message = [&](llvm::Error error) {
    return llvm::toString(std::move(error));
  };
  ids[2 * 32 + 17] = 70;
  EXPECT_EQ(
      message(session->setInput("ids", ids.data(), DType::I64, {4, 32})),
      "input 'ids' has 70 at [2, 17], where the model takes an index from "
      "0 to 63");
  ids[2 * 32 + 17] = -100;
  EXPECT_NE(message(session->setInput("ids", ids.data(), DType::I64, {4, 32})),
            "");
  EXPECT_EQ(
      message(session->setInput("labels", ids.data(), DType::I64, {4, 32})),
      "");
  EXPECT_EQ(message(session->setInput("ids", ids.data(), DType::I64, {4, 31})),
            "input 'ids' has shape [4, 31], but the program takes [4, 32]");
  EXPECT_EQ(message(session->setInput("ids", ids.data(), DType::I32, {4, 32})),
            "input 'ids' is i32, but the program takes i64");
  EXPECT_EQ(message(session->setInput("x", ids.data(), DType::I32, {4, 32})),
            "the program has no input 'x'; it has 'ids', 'labels'");
  EXPECT_EQ(message(session->setScalar("ids", 1)),
            "the program has no scalar 'ids'; it has 'lr', 'rng'");
  auto entry = session->run("logits");
  ASSERT_FALSE(bool(entry));
  EXPECT_EQ(llvm::toString(entry.takeError()),
            "the program has no entry 'logits'; it has 'evaluate', 'train'");
}

TEST_F(SessionTest, WeightsAreChecked) {
  auto session = make();
  ASSERT_OK(session->initialiseRandomly(3));
  auto before = contents(*session, Role::Parameter);
  std::string path = (folder + "/w.safetensors").str();
  std::vector<float> values(64 * 16, 2.0f);
  ASSERT_OK(writeSafetensors(
      path, {{"embedding.weight", DType::F32, {16, 64}, values.data()},
             {"surplus", DType::F32, {2}, values.data()}}));
  std::string text = llvm::toString(session->loadWeights(path));
  for (const char *part :
       {"'embedding.weight' is F32 [16, 64] in the file, but F32 [64, 16]",
        "missing in the file: 'out.weight'",
        "unknown to the program: 'surplus'"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(before, contents(*session, Role::Parameter));
  // A tied weight under its other name.
  ASSERT_OK(writeSafetensors(
      path, {{"embedding.weight", DType::F32, {64, 16}, values.data()},
             {"head.weight", DType::F32, {64, 16}, values.data()}}));
  ASSERT_OK(session->loadWeights(path));
  EXPECT_NE(before, contents(*session, Role::Parameter));
  // Under both, which must agree.
  std::vector<float> others(64 * 16, 3.0f);
  ASSERT_OK(writeSafetensors(
      path, {{"embedding.weight", DType::F32, {64, 16}, values.data()},
             {"head.weight", DType::F32, {64, 16}, values.data()},
             {"out.weight", DType::F32, {64, 16}, others.data()}}));
  text = llvm::toString(session->loadWeights(path));
  EXPECT_NE(text.find("tied"), std::string::npos) << text;
  // What is saved can be loaded.
  ASSERT_OK(session->saveWeights(path));
  ASSERT_OK(session->loadWeights(path));
}

TEST_F(SessionTest, BrokenCheckpoints) {
  auto session = make();
  auto missing = session->loadCheckpoint((folder + "/none").str());
  ASSERT_FALSE(bool(missing));
  llvm::consumeError(missing.takeError());
  std::string path = (folder + "/c").str();
  ASSERT_OK(session->saveCheckpoint(path, 0));
  for (const char *text : {"", "{", "[]", "{\"version\": 7}",
                           "{\"version\": 1, \"seed\": 1, \"step\": -1, "
                           "\"data_position\": 0}",
                           "{\"version\": 1, \"seed\": 1, \"step\": 1, "
                           "\"data_position\": 9223372036854775807}"}) {
    ASSERT_OK(writeFileAtomically(path + "/training.json",
                                  [&](llvm::raw_ostream &os) { os << text; }));
    auto state = session->loadCheckpoint(path);
    ASSERT_FALSE(bool(state)) << text;
    EXPECT_NE(llvm::toString(state.takeError()).find("training.json"),
              std::string::npos);
  }
}

TEST_F(SessionTest, WhatIsNotFiniteIsNotSaved) {
  auto session = make();
  ASSERT_OK(session->initialiseRandomly(3));
  trainOne(*session, 0);
  std::string path = (folder + "/c").str();
  SaveOptions all;
  all.nonFinite = true;
  for (Role role : {Role::Parameter, Role::State})
    for (float value : {std::numeric_limits<float>::quiet_NaN(),
                        std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity()}) {
      const Tensor *tensor = nullptr;
      for (const Tensor &own : session->getProgram().tensors)
        if (own.role == role)
          tensor = &own;
      ASSERT_TRUE(tensor);
      std::vector<float> values(static_cast<size_t>(tensor->numElements())),
          changed;
      ASSERT_OK(session->read(*tensor, values.data()));
      changed = values;
      changed.back() = value;
      session->write(*tensor, changed.data());
      std::string text = llvm::toString(session->saveCheckpoint(path, 0));
      EXPECT_NE(text.find("'" + tensor->name + "' (1 of "), std::string::npos)
          << text;
      EXPECT_FALSE(llvm::sys::fs::exists(path));
      ASSERT_OK(session->saveCheckpoint(path, 0, all));
      llvm::sys::fs::remove_directories(path);
      // The largest number is one.
      changed.back() = std::numeric_limits<float>::max();
      session->write(*tensor, changed.data());
      ASSERT_OK(session->saveCheckpoint(path, 0));
      llvm::sys::fs::remove_directories(path);
      session->write(*tensor, values.data());
    }
}

TEST_F(SessionTest, AFolderHasOneRun) {
  auto one = make(), other = make();
  std::string place = (folder + "/runs").str(), path = place + "/c";
  ASSERT_OK(one->lockFolder(place));
  ASSERT_OK(one->saveCheckpoint(path, 0));
  std::string text = llvm::toString(other->saveCheckpoint(path, 0));
  EXPECT_NE(text.find("another run"), std::string::npos) << text;
  text = llvm::toString(other->lockFolder(place));
  EXPECT_NE(text.find("process " + std::to_string(::getpid())),
            std::string::npos)
      << text;
  one.reset();
  ASSERT_OK(other->saveCheckpoint(path, 0));
  ASSERT_OK(other->lockFolder(place));
}

TEST_F(SessionTest, ACheckpointIsLoadedWholeOrNotAtAll) {
  auto session = make();
  ASSERT_OK(session->initialiseRandomly(3));
  trainOne(*session, 0);
  std::string path = (folder + "/c").str();
  ASSERT_OK(session->saveCheckpoint(path, 0));
  trainOne(*session, 1);
  auto weights = contents(*session, Role::Parameter);
  llvm::sys::fs::remove(path + "/optimizer.safetensors");
  auto state = session->loadCheckpoint(path);
  ASSERT_FALSE(bool(state));
  llvm::consumeError(state.takeError());
  EXPECT_EQ(weights, contents(*session, Role::Parameter));
  EXPECT_EQ(session->getStep(), 2);
}

/// Whether files of this folder can change places.
static bool canSendCollectives(const llvm::Twine &folder) {
#ifdef RENAME_EXCHANGE
  std::string one = (folder + "/one").str(), other = (folder + "/other").str();
  return !llvm::sys::fs::create_directory(one) &&
         !llvm::sys::fs::create_directory(other) &&
         ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(),
                     RENAME_EXCHANGE) == 0;
#else
  return false;
#endif
}

TEST_F(SessionTest, ReplacingACheckpointLeavesNoMomentWithoutOne) {
  if (!canSendCollectives(folder))
    GTEST_SKIP() << "this file system exchanges no names";
  auto session = make();
  std::string path = (folder + "/c").str();
  ASSERT_OK(session->saveCheckpoint(path, 0));
  std::atomic<bool> done{false};
  std::atomic<int> looks{0}, missing{0};
  std::thread watcher([&] {
    for (; !done; ++looks)
      missing += ::access((path + "/training.json").c_str(), R_OK) != 0;
  });
  for (int i = 1; i <= 200; ++i)
    EXPECT_FALSE(bool(session->saveCheckpoint(path, i)));
  done = true;
  watcher.join();
  EXPECT_GT(looks, 200);
  EXPECT_EQ(missing, 0);
  auto state = session->loadCheckpoint(path);
  ASSERT_TRUE(bool(state)) << llvm::toString(state.takeError());
  EXPECT_EQ(state->dataPosition, 200);
}

TEST_F(SessionTest, TimeAndTrace) {
  auto session = make();
  ASSERT_OK(session->initialiseRandomly(3));
  ASSERT_OK(session->startTrace("train", 1));
  setBatch(*session, 0);
  auto result = session->run("train");
  ASSERT_TRUE(bool(result));
  int64_t total = 0;
  for (int64_t ns : result->breakdown.nanoseconds)
    total += ns;
  EXPECT_GT(result->breakdown[TimeClass::Contraction], 0);
  EXPECT_GT(result->breakdown[TimeClass::Optimizer], 0);
  EXPECT_LE(static_cast<double>(total), result->seconds * 1e9);
  const auto trace = session->getTrace();
  ASSERT_EQ(trace.size(), 8u + 2 * 6 + 5);
  for (size_t i = 1; i < trace.size(); ++i)
    EXPECT_GE(trace[i].start, trace[i - 1].start + trace[i - 1].duration);
  MemoryReport memory = session->getMemory();
  EXPECT_EQ(memory.arena, session->getProgram().arenaBytes);
  EXPECT_EQ(memory.byKind["parameter"], 2 * 64 * 16 * 4);
}

TEST_F(SessionTest, ActionsAreTraced) {
  Program program = cleave::test::makeBigram({});
  program.parts[0].scheduled = {"3P", "other", 3};
  program.parts[1].scheduled = {"3F*>4", "forward", 3};
  // A part without commands takes no time.
  program.parts.push_back({"empty", {"N", "update", 0}, {}, {}});
  Entry &train = program.entries["train"];
  train.actions.insert(train.actions.begin(), {5, 0});
  train.rows.push_back({5, {}});
  auto created = Session::create({program}, resolveBigram);
  ASSERT_TRUE(bool(created)) << llvm::toString(created.takeError());
  Session &session = **created;
  ASSERT_OK(session.initialiseRandomly(3));
  EXPECT_TRUE(session.leadsPosition(0));
  EXPECT_EQ(session.getPosition(0), 0);
  EXPECT_TRUE(session.getActions("train").empty());
  ASSERT_OK(session.startTrace("train", 2));
  for (const char *entry : {"train", "evaluate", "train", "train"}) {
    setBatch(session, 0);
    ASSERT_TRUE(bool(session.run(entry)));
  }
  std::vector<ActionEvent> events = session.getActions("train");
  ASSERT_EQ(events.size(), 8u);
  const char *names[] = {"N", "3P", "3F0>4", "3F1>4"};
  for (size_t i = 0; i < events.size(); ++i) {
    const ActionEvent &event = events[i];
    EXPECT_EQ(event.name, names[i % 4]);
    EXPECT_EQ(event.kind, i % 4 == 0   ? "update"
                          : i % 4 == 1 ? "other"
                                       : "forward");
    EXPECT_EQ(event.stage, i % 4 ? 3 : 0);
    EXPECT_EQ(event.microBatch, i % 4 < 2 ? -1 : static_cast<int>(i % 4) - 2);
    EXPECT_EQ(event.run, static_cast<int>(i / 4));
    EXPECT_EQ(event.duration > 0, i % 4 > 0);
    EXPECT_LE(event.waited, event.duration);
    if (i > 0)
      EXPECT_GE(event.start, events[i - 1].start + events[i - 1].duration);
  }
  EXPECT_LE(events.back().start + events.back().duration, session.traceClock());
  // What is traced again begins anew.
  ASSERT_OK(session.startTrace("train", 1));
  EXPECT_TRUE(session.getActions("train").empty());
}

TEST_F(SessionTest, CreationErrors) {
  auto fails = [](Program program, SymbolResolver resolver, const char *part) {
    auto session = Session::create({std::move(program)}, std::move(resolver));
    ASSERT_FALSE(bool(session));
    std::string text = llvm::toString(session.takeError());
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  fails(
      cleave::test::makeBigram({}), [](llvm::StringRef) { return nullptr; },
      "kernel 'bigram_count' of part 'prologue'");
  Program broken = cleave::test::makeBigram({});
  broken.parts[1].buffers[3].bytes = 64;
  fails(broken, resolveBigram, "'b' needs 4096 bytes");
  // Attention of 16 bits is for devices.
  Program narrow = cleave::test::makeBigram({});
  Command &attention = narrow.parts[1].commands.emplace_back();
  attention.kind = CommandKind::AttentionForward;
  attention.attention.type = attention.attention.resultType = DType::BF16;
  for (HeadView *view : {&attention.attention.q, &attention.attention.k,
                         &attention.attention.v, &attention.attention.o})
    view->ref = {0, 0};
  attention.attention.lse = {0, 0};
  fails(narrow, resolveBigram, "the processor has no attention of bf16");
  auto missing = Session::open((folder + "/none.so").str());
  ASSERT_FALSE(bool(missing));
  EXPECT_NE(llvm::toString(missing.takeError()).find("no such file"),
            std::string::npos);
  std::string text = (folder + "/text.so").str();
  ASSERT_OK(writeFileAtomically(
      text, [](llvm::raw_ostream &os) { os << "no shared object"; }));
  auto notObject = Session::open(text);
  ASSERT_FALSE(bool(notObject));
  EXPECT_NE(llvm::toString(notObject.takeError()).find("not an artifact"),
            std::string::npos);
}

TEST_F(SessionTest, OpensAnArtifact) {
  auto session = Session::open(CLEAVE_TEST_ARTIFACT);
  ASSERT_TRUE(bool(session)) << llvm::toString(session.takeError());
  ASSERT_OK((*session)->initialiseRandomly(3));
  auto inProcess = make((*session)->getThreads(), 0);
  ASSERT_OK(inProcess->initialiseRandomly(3));
  EXPECT_EQ(trainOne(**session, 0), trainOne(*inProcess, 0));
}

} // namespace
