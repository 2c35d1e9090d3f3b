//===- RanksTest.cpp - Sessions of several ranks --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "BigramSession.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "gtest/gtest.h"

#include <cmath>
#include <numeric>
#include <thread>

using namespace cleave;
using namespace cleave::runtime;

namespace {

constexpr int64_t batch = 8, length = 32, vocabulary = 64, hidden = 16;

class RanksTest : public testing::Test {
protected:
  void SetUp() override {
    ::setenv("CLEAVE_TUNING", "off", 1);
    ASSERT_FALSE(llvm::sys::fs::createUniqueDirectory("ranks", folder));
  }
  void TearDown() override { llvm::sys::fs::remove_directories(folder); }

  static std::unique_ptr<Session> make(int64_t devices, int threads = 4) {
    SessionOptions options;
    options.threads = threads;
    options.seed = 1;
    options.timing = true;
    auto session = Session::create(
        {test::makeBigram({batch, length, vocabulary, hidden, devices})},
        test::resolveBigram, options);
    EXPECT_TRUE(bool(session)) << llvm::toString(session.takeError());
    return std::move(*session);
  }

  static void setBatch(Session &session, int64_t index) {
    std::vector<int64_t> ids(batch * length), labels(batch * length);
    for (int64_t i = 0; i < batch * length; ++i) {
      ids[size_t(i)] = (i * 7 + i / 11 + index * 5) % vocabulary;
      labels[size_t(i)] =
          i % 9 == 0 ? -100 : (ids[size_t(i)] * 3 + 1) % vocabulary;
    }
    ASSERT_OK(session.setInput("ids", ids.data(), DType::I64, {batch, length}));
    ASSERT_OK(
        session.setInput("labels", labels.data(), DType::I64, {batch, length}));
    ASSERT_OK(session.setScalar("lr", 2.0));
  }

  static double trainOne(Session &session, int64_t index) {
    setBatch(session, index);
    auto result = session.run("train");
    EXPECT_TRUE(bool(result)) << llvm::toString(result.takeError());
    return llvm::cantFail(session.getScalar("loss"));
  }

  template <typename T>
  static std::vector<T> whole(Session &session, llvm::StringRef name) {
    const Tensor *tensor = session.find(name);
    std::vector<T> values(static_cast<size_t>(session.bytes(*tensor)) /
                          sizeof(T));
    llvm::cantFail(session.read(*tensor, values.data()));
    return values;
  }

  /// All parameters and state, one after the other.
  static std::vector<float> state(Session &session) {
    std::vector<float> all;
    for (const Tensor &tensor : session.getProgram().tensors)
      if (tensor.role == Role::Parameter || tensor.role == Role::State) {
        std::vector<float> one = whole<float>(session, tensor.name);
        all.insert(all.end(), one.begin(), one.end());
      }
    return all;
  }

  static std::string bytesOf(const llvm::Twine &path) {
    auto buffer = llvm::MemoryBuffer::getFile(path);
    return buffer ? (*buffer)->getBuffer().str() : "";
  }

  llvm::SmallString<128> folder;
};

/// The largest difference of two lists, beside the largest value.
double distance(const std::vector<float> &a, const std::vector<float> &b) {
  double difference = 0, scale = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference = std::max(difference, std::abs(double(a[i]) - double(b[i])));
    scale = std::max(scale, std::abs(double(a[i])));
  }
  return difference / scale;
}

TEST_F(RanksTest, TrainAsOneDevice) {
  std::vector<double> expected;
  auto one = make(0);
  ASSERT_OK(one->initialiseRandomly(3));
  for (int i = 0; i < 20; ++i)
    expected.push_back(trainOne(*one, i));
  EXPECT_LT(expected.back(), expected.front() - 0.1);
  double norm = llvm::cantFail(one->getScalar("grad_norm"));
  ASSERT_TRUE(bool(one->run("evaluate")));
  double evaluated = llvm::cantFail(one->getScalar("loss"));
  for (int64_t devices : {1, 2, 4}) {
    SCOPED_TRACE(devices);
    auto session = make(devices);
    EXPECT_EQ(session->getRanks(), devices);
    EXPECT_EQ(session->getLocalRanks(), devices);
    EXPECT_EQ(session->getThreads(), 4);
    ASSERT_OK(session->initialiseRandomly(3));
    for (int i = 0; i < 20; ++i)
      EXPECT_NEAR(trainOne(*session, i), expected[size_t(i)], 2e-5);
    EXPECT_NEAR(llvm::cantFail(session->getScalar("grad_norm")), norm,
                1e-4 * norm);
    EXPECT_LT(distance(state(*one), state(*session)), 1e-4);
    ASSERT_TRUE(bool(session->run("evaluate")));
    EXPECT_NEAR(llvm::cantFail(session->getScalar("loss")), evaluated, 2e-5);
    // Replicas are the same to the last bit.
    const Tensor &tensor = *session->find("embedding.weight");
    for (int rank = 1; rank < devices; ++rank)
      EXPECT_EQ(std::memcmp(session->data(tensor), session->data(tensor, rank),
                            size_t(session->bytes(tensor))),
                0);
  }
}

TEST_F(RanksTest, RunsRepeatBitForBit) {
  std::vector<std::vector<float>> results;
  // Threads of a rank and its neighbours' speed must not matter.
  for (int threads : {4, 4, 8, 1}) {
    auto session = make(4, threads);
    EXPECT_EQ(session->getThreads(), std::max(threads, 4));
    ASSERT_OK(session->initialiseRandomly(3));
    for (int i = 0; i < 5; ++i)
      trainOne(*session, i);
    results.push_back(state(*session));
  }
  for (const std::vector<float> &result : results)
    EXPECT_EQ(result, results.front());
}

TEST_F(RanksTest, InputsAreCutAndJoined) {
  auto session = make(4);
  const Tensor &ids = *session->find("ids");
  std::vector<int64_t> values(batch * length);
  std::iota(values.begin(), values.end(), 0);
  session->write(ids, values.data());
  EXPECT_EQ(whole<int64_t>(*session, "ids"), values);
  // Device 2 has the third sample of each of the two micro-batches.
  auto *part = reinterpret_cast<int64_t *>(session->data(ids, 2));
  EXPECT_EQ(part[0], 2 * length);
  EXPECT_EQ(part[length], 6 * length);
  // Columns 4 to 7 of each row.
  const Tensor &weight = *session->find("out.weight");
  std::vector<float> floats(vocabulary * hidden);
  std::iota(floats.begin(), floats.end(), 0.0f);
  session->write(weight, floats.data());
  EXPECT_EQ(whole<float>(*session, "head.weight"), floats);
  auto *columns = reinterpret_cast<float *>(session->data(weight, 1));
  EXPECT_EQ(columns[0], 4);
  EXPECT_EQ(columns[3], 7);
  EXPECT_EQ(columns[4], hidden + 4);
}

TEST_F(RanksTest, CheckpointsDoNotDependOnTheMesh) {
  auto four = make(4);
  ASSERT_OK(four->initialiseRandomly(3));
  for (int i = 0; i < 5; ++i)
    trainOne(*four, i);
  std::string path = (folder + "/four").str();
  ASSERT_OK(four->saveCheckpoint(path, 40));
  for (int64_t devices : {0, 1, 2, 4}) {
    auto other = make(devices);
    auto training = other->loadCheckpoint(path);
    ASSERT_TRUE(bool(training)) << llvm::toString(training.takeError());
    EXPECT_EQ(training->step, 5);
    EXPECT_EQ(state(*other), state(*four));
    std::string again = (folder + "/again").str();
    ASSERT_OK(other->saveCheckpoint(again, 40));
    for (const char *file : {"/model.safetensors", "/optimizer.safetensors"})
      EXPECT_EQ(bytesOf(path + file), bytesOf(again + file));
  }
  // And a run of four goes on as if it had not stopped.
  auto resumed = make(4);
  ASSERT_TRUE(bool(resumed->loadCheckpoint(path)));
  for (int i = 5; i < 10; ++i)
    EXPECT_EQ(trainOne(*four, i), trainOne(*resumed, i));
  EXPECT_EQ(state(*four), state(*resumed));
}

/// One rank's check fails, while all is well with the others.
TEST_F(RanksTest, OneCheckStopsAllRanks) {
  auto session = make(4);
  ASSERT_OK(session->initialiseRandomly(3));
  trainOne(*session, 0);
  std::vector<float> before = state(*session);
  setBatch(*session, 1);
  const Tensor &labels = *session->find("labels");
  std::fill_n(reinterpret_cast<int64_t *>(session->data(labels, 2)),
              batch / 4 * length, -100);
  auto result = session->run("train");
  ASSERT_FALSE(bool(result));
  EXPECT_EQ(llvm::toString(result.takeError()), "all labels are ignored");
  EXPECT_EQ(before, state(*session));
  EXPECT_EQ(session->getStep(), 1);
  // Nothing is left half done.
  trainOne(*session, 1);
  EXPECT_EQ(session->getStep(), 2);
}

TEST_F(RanksTest, FailureEndsTheRun) {
  auto session = make(4);
  ASSERT_OK(session->initialiseRandomly(3));
  std::thread fault([&] { session->fail("the lights went out"); });
  fault.join();
  setBatch(*session, 0);
  auto result = session->run("train");
  ASSERT_FALSE(bool(result));
  EXPECT_EQ(llvm::toString(result.takeError()), "rank 0: the lights went out");
}

TEST_F(RanksTest, CommunicationIsCounted) {
  auto session = make(4);
  ASSERT_OK(session->initialiseRandomly(3));
  setBatch(*session, 0);
  auto result = session->run("train");
  ASSERT_TRUE(bool(result)) << llvm::toString(result.takeError());
  ASSERT_EQ(result->communication.size(), 3u);
  double weights = vocabulary * hidden;
  const cleave_sent &gather = result->communication[0],
                    &reduce = result->communication[1],
                    &scatter = result->communication[2];
  EXPECT_STREQ(gather.kind, "all-gather");
  EXPECT_STREQ(gather.axes, "dp");
  EXPECT_EQ(gather.count, 1);
  EXPECT_EQ(gather.elements, weights * 3 / 4);
  EXPECT_EQ(gather.bytes, weights * 3);
  EXPECT_STREQ(reduce.kind, "all-reduce");
  EXPECT_EQ(reduce.count, 4);
  EXPECT_EQ(reduce.elements, 2 * weights * 1.5 + 2 * 1.5);
  EXPECT_EQ(reduce.bytes, 2 * weights * 6 + 2 * 12);
  EXPECT_STREQ(scatter.kind, "reduce-scatter");
  EXPECT_EQ(scatter.elements, weights * 3 / 4);
  EXPECT_GT(reduce.nanoseconds, 0);
  EXPECT_GE(result->breakdown[TimeClass::Communication],
            gather.nanoseconds + reduce.nanoseconds + scatter.nanoseconds);
}

//===----------------------------------------------------------------------===//
// Placement
//===----------------------------------------------------------------------===//

TEST(PlacementTest, GroupsAndParts) {
  // Devices 0..23: "a" major, then "b", then "c"; "mb" takes none.
  std::vector<MeshAxis> mesh{
      {"a", 2, false}, {"mb", 5, true}, {"b", 4, false}, {"c", 3, false}};
  EXPECT_EQ(deviceCount(mesh), 24);
  Digit a{0, 1, 2}, high{2, 1, 2}, low{2, 2, 2}, c{3, 1, 3};
  EXPECT_EQ(groupOf(mesh, {a}, 13), (std::vector<int32_t>{1, 13}));
  EXPECT_EQ(groupOf(mesh, {high}, 4), (std::vector<int32_t>{4, 10}));
  EXPECT_EQ(groupOf(mesh, {low, a}, 13), (std::vector<int32_t>{1, 13, 4, 16}));
  EXPECT_EQ(groupOf(mesh, {}, 13), (std::vector<int32_t>{13}));
  // 22 = a 1, b 3 (digits 1, 1), c 1.
  EXPECT_EQ(partIndex(mesh, {a, low, c}, 22), 3 * 3 + 1);
  EXPECT_EQ(evaluate(mesh, {100, {{{a, c}, 10}, {{low}, 1}}}, 22), 141);
  EXPECT_EQ(axesText(mesh, {a, low}), "a,b:(2)2");
}

/// Parts of a tensor that is split in a mixed way, cut and joined again.
TEST(PlacementTest, PartsAreTheTensor) {
  std::vector<MeshAxis> mesh{{"x", 2, false}, {"mb", 3, true}, {"y", 4, false}};
  Tensor tensor;
  tensor.name = "t";
  tensor.dtype = DType::I32;
  tensor.shape = {12, 5, 8};
  tensor.sharding = {{{0, 1, 2}, {1, 1, 3}, {2, 2, 2}}, {}, {{2, 1, 2}}};
  EXPECT_EQ(localShape(mesh, tensor), (std::vector<int64_t>{3, 5, 4}));
  std::vector<int32_t> whole(12 * 5 * 8), joined(whole.size(), -1);
  std::iota(whole.begin(), whole.end(), 0);
  for (int64_t rank = 0; rank < 8; ++rank) {
    std::vector<int32_t> part(3 * 5 * 4, -1);
    cutPart(mesh, tensor, rank, whole.data(), part.data());
    // The digits of "y", major and minor, and that of "x".
    int64_t x = rank / 4, high = rank / 2 % 2, low = rank % 2;
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 5; ++j)
        for (int64_t k = 0; k < 4; ++k)
          ASSERT_EQ(part[size_t((i * 5 + j) * 4 + k)],
                    ((x * 6 + i * 2 + low) * 5 + j) * 8 + high * 4 + k);
    joinPart(mesh, tensor, rank, part.data(), joined.data());
  }
  EXPECT_EQ(joined, whole);
}

/// Padding is zero in parts, and nowhere else.
TEST(PlacementTest, PartsArePadded) {
  std::vector<MeshAxis> mesh{{"x", 2, false}, {"mb", 2, true}, {"y", 3, false}};
  for (int64_t last : {1, 4, 5}) {
    Tensor tensor;
    tensor.name = "t";
    tensor.dtype = DType::I32;
    tensor.shape = {5, 3, last};
    tensor.padded = {8, 3, last == 1 ? 1 : 6};
    tensor.sharding = {{{1, 1, 2}, {0, 1, 2}}, {}, {}};
    if (last > 1)
      tensor.sharding[2] = {{2, 1, 3}};
    int64_t width = last == 1 ? 1 : 2;
    EXPECT_FALSE(isWhole(mesh, tensor));
    ASSERT_EQ(localShape(mesh, tensor), (std::vector<int64_t>{4, 3, width}));
    std::vector<int32_t> whole(size_t(15 * last)), joined(whole.size(), -1);
    std::iota(whole.begin(), whole.end(), 1);
    for (int64_t rank = 0; rank < 6; ++rank) {
      std::vector<int32_t> part(size_t(12 * width), -1);
      cutPart(mesh, tensor, rank, whole.data(), part.data());
      int64_t x = rank / 3, y = last == 1 ? 0 : rank % 3;
      for (int64_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < 3; ++j)
          for (int64_t k = 0; k < width; ++k) {
            int64_t a = i / 2 * 4 + x * 2 + i % 2, c = y * width + k;
            ASSERT_EQ(part[size_t((i * 3 + j) * width + k)],
                      a < 5 && c < last ? (a * 3 + j) * last + c + 1 : 0);
          }
      joinPart(mesh, tensor, rank, part.data(), joined.data());
    }
    EXPECT_EQ(joined, whole);
  }
  Tensor small;
  small.dtype = DType::F32;
  small.shape = {2};
  small.padded = {4};
  small.sharding = {{{0, 1, 2}}};
  // As many elements as the whole, but not those.
  EXPECT_EQ(localBytes(mesh, small), 8);
  EXPECT_FALSE(isWhole(mesh, small));
}

} // namespace
