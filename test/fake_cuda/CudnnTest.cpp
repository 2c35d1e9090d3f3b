//===- CudnnTest.cpp - Attention as cuDNN plans it ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// What cuDNN itself says about the attention that is planned for it, and what
// the graphs that it was given compute (FakeCudnn.cpp), against sums written
// out here. CLEAVE_FAKE_CUDNN is the library and CLEAVE_FAKE_CUDNN_DEVICE the
// device; without them nothing is tested.
//
//===----------------------------------------------------------------------===//

#include "Libraries/Cudnn.h"
#include "cleave/Executable/Cuda/PlanCudnnAttention.h"
#include "gtest/gtest.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

namespace {

/// The capability of the device, of the name of its file.
int capability() {
  std::string file = std::getenv("CLEAVE_FAKE_CUDNN_DEVICE");
  return file.find("a100") != std::string::npos   ? 80
         : file.find("b200") != std::string::npos ? 100
                                                  : 90;
}
std::string architecture() { return "sm_" + std::to_string(capability()); }

struct CudnnTest : testing::Test {
  void SetUp() override {
    if (!std::getenv("CLEAVE_FAKE_CUDNN") ||
        !std::getenv("CLEAVE_FAKE_CUDNN_DEVICE"))
      GTEST_SKIP() << "CLEAVE_FAKE_CUDNN names no cuDNN";
    ::setenv("CLEAVE_CUDA_LIBRARIES", CLEAVE_FAKE_CUDA_FOLDER, 1);
    driver = *llvm::cantFail(Driver::get());
    CUcontext context;
    ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    auto opened = Cudnn::open(stream, capability());
    ASSERT_TRUE(bool(opened)) << llvm::toString(opened.takeError());
    cudnn = std::move(*opened);
  }

  Driver driver;
  CUstream stream = nullptr;
  std::unique_ptr<Cudnn> cudnn;
};

/// Buffers of a command, by their numbers in it.
enum {
  BufferQ,
  BufferK,
  BufferV,
  BufferO,
  BufferLse,
  BufferDO,
  BufferDQ,
  BufferDK,
  BufferDV,
  BufferCount
};

struct Shape {
  int64_t batch, heads, kvHeads, queries, keys, headSize, valueSize;
  bool causal = true;
  int64_t window = 0;
  DType type = DType::BF16;
  /// Whether heads of a position are neighbours, or positions of a head.
  bool interleaved = true;
};

Command commandOf(const Shape &s, bool backward, bool fixedOrder = true) {
  Command command;
  command.kind =
      backward ? CommandKind::AttentionBackward : CommandKind::AttentionForward;
  AttentionCommand &a = command.attention;
  a.type = a.resultType = s.type;
  a.batch = s.batch;
  a.heads = a.globalHeads = s.heads;
  a.kvHeads = s.kvHeads;
  a.queries = a.globalQueries = s.queries;
  a.keys = a.globalKeys = s.keys;
  a.headSize = s.headSize;
  a.valueSize = s.valueSize;
  a.scale = 1.0f / std::sqrt(static_cast<float>(s.headSize));
  a.causal = s.causal;
  a.window = s.window;
  a.fixedOrder = fixedOrder;
  auto view = [&](int buffer, int64_t heads, int64_t positions,
                  int64_t channels) {
    HeadView result;
    result.ref.buffer = buffer;
    result.strideBatch = heads * positions * channels;
    result.strideHead = s.interleaved ? channels : positions * channels;
    result.stridePosition = s.interleaved ? heads * channels : channels;
    return result;
  };
  a.q = view(BufferQ, s.heads, s.queries, s.headSize);
  a.k = view(BufferK, s.kvHeads, s.keys, s.headSize);
  a.v = view(BufferV, s.kvHeads, s.keys, s.valueSize);
  a.o = view(BufferO, s.heads, s.queries, s.valueSize);
  a.lse.buffer = BufferLse;
  if (backward) {
    a.dO = view(BufferDO, s.heads, s.queries, s.valueSize);
    a.dQ = view(BufferDQ, s.heads, s.queries, s.headSize);
    a.dK = view(BufferDK, s.kvHeads, s.keys, s.headSize);
    a.dV = view(BufferDV, s.kvHeads, s.keys, s.valueSize);
  }
  a.libraryBytes = planCudnnBytes(command, architecture());
  return command;
}

const Shape shapes[] = {
    {2, 4, 4, 128, 128, 64, 64},
    {2, 4, 4, 128, 128, 64, 64, /*causal=*/false},
    // Heads that share keys, of all sizes.
    {1, 8, 2, 64, 64, 128, 128},
    {2, 4, 1, 100, 100, 32, 32, true, 0, DType::F16},
    // Odd numbers of positions, more keys than queries, and windows.
    {3, 2, 2, 65, 65, 96, 96, true, 0, DType::F16, false},
    {1, 2, 1, 77, 130, 40, 40},
    {2, 2, 2, 33, 150, 64, 64, false, 0, DType::BF16, false},
    {1, 2, 2, 130, 130, 16, 16, true, 19},
    {1, 2, 2, 2, 2, 8, 8},
    // Values of another size.
    {1, 2, 2, 70, 70, 64, 32},
};

/// A few of them, since each plan is compiled; all with CLEAVE_TEST_ALL.
std::vector<Shape> tested() {
  if (std::getenv("CLEAVE_TEST_ALL"))
    return {std::begin(shapes), std::end(shapes)};
  return {shapes[0], shapes[2], shapes[5], shapes[7]};
}

//===----------------------------------------------------------------------===//
// Plans
//===----------------------------------------------------------------------===//

uint64_t nowhere(const Ref &ref) { return 0x10000000 * (ref.buffer + 1); }

/// What is planned is what cuDNN needs, or little more: tiles of other sizes
/// are rounded up to less.
TEST_F(CudnnTest, NeedsWhatIsPlanned) {
  std::vector<Shape> all = tested();
  // Of models: GPT-2, LLaMA.
  all.push_back({16, 12, 12, 1024, 1024, 64, 64});
  if (std::getenv("CLEAVE_TEST_ALL")) {
    all.push_back({1, 32, 8, 2048, 2048, 128, 128});
    all.push_back({64, 12, 12, 1024, 1024, 64, 64});
    all.push_back({4, 16, 16, 4096, 4096, 128, 128, true, 1024});
  }
  for (const Shape &shape : all)
    for (auto [backward, fixedOrder] :
         {std::pair(false, true), std::pair(true, true),
          std::pair(true, false)}) {
      SCOPED_TRACE(testing::Message()
                   << architecture() << " b" << shape.batch << " h"
                   << shape.heads << '/' << shape.kvHeads << " t"
                   << shape.queries << '/' << shape.keys << " c"
                   << shape.headSize << '/' << shape.valueSize
                   << (backward ? " backward" : " forward")
                   << (fixedOrder ? " in order" : ""));
      Command command = commandOf(shape, backward, fixedOrder);
      ASSERT_EQ(cudnnRefusal(command, architecture()), "");
      ASSERT_GE(command.attention.libraryBytes, 0);
      ASSERT_LE(command.attention.libraryBytes, kLargestCudnnBytes);
      auto made = cudnn->make(command, nowhere, 0x4000000000);
      ASSERT_TRUE(bool(made)) << llvm::toString(made.takeError());
      EXPECT_LE(made->bytes(), command.attention.libraryBytes);
      EXPECT_GE(made->bytes() * (fixedOrder ? 3 : 4) / 2 + 512,
                command.attention.libraryBytes);
      std::printf("%s %s b%-2d h%d/%d t%d/%d c%d: %lld bytes, planned %lld\n",
                  architecture().c_str(),
                  !backward    ? "forward"
                  : fixedOrder ? "backward in order"
                               : "backward",
                  int(shape.batch), int(shape.heads), int(shape.kvHeads),
                  int(shape.queries), int(shape.keys), int(shape.headSize),
                  (long long)made->bytes(),
                  (long long)command.attention.libraryBytes);
    }
}

TEST_F(CudnnTest, RefusesLessThanItNeeds) {
  Command command = commandOf(shapes[0], true);
  int64_t one = cudnnBytes(command, architecture(), 1);
  command.attention.libraryBytes = one - 257;
  auto made = cudnn->make(command, nowhere, 0x4000000000);
  ASSERT_FALSE(bool(made));
  EXPECT_NE(llvm::toString(made.takeError()).find("bytes of workspace, and "),
            std::string::npos);
  // One sample after the other.
  command.attention.libraryBytes = one;
  auto smaller = cudnn->make(command, nowhere, 0x4000000000);
  ASSERT_TRUE(bool(smaller)) << llvm::toString(smaller.takeError());
  EXPECT_LE(smaller->bytes(), one);
}

TEST_F(CudnnTest, RefusesAddresses) {
  Command command = commandOf(shapes[0], false);
  auto odd = [](const Ref &ref) { return nowhere(ref) + 8; };
  auto made = cudnn->make(command, odd, 0x4000000000);
  ASSERT_FALSE(bool(made));
  EXPECT_EQ(llvm::toString(made.takeError()),
            "operands are not aligned to 16 bytes");
}

/// Each changes a command that cuDNN computes.
TEST(CudnnRefusalTest, NamesTheReason) {
  ::setenv("CLEAVE_FAKE_CUDNN_DEVICE", "h200", /*overwrite=*/0);
  struct Case {
    const char *reason;
    void (*change)(AttentionCommand &);
  } cases[] = {
      {"it computes on 16 bits",
       [](AttentionCommand &a) { a.type = a.resultType = DType::F32; }},
      {"its results have the type of its operands",
       [](AttentionCommand &a) { a.resultType = DType::F32; }},
      {"its dropout draws other bits",
       [](AttentionCommand &a) { a.dropout = 0.1f; }},
      {"a bias", [](AttentionCommand &a) { a.bias.buffer = 1; }},
      {"a mask", [](AttentionCommand &a) { a.mask.buffer = 1; }},
      {"segments",
       [](AttentionCommand &a) {
         a.querySegments.buffer = a.keySegments.buffer = 1;
       }},
      {"blocks", [](AttentionCommand &a) { a.blocks = 2; }},
      {"a result that is added onto another",
       [](AttentionCommand &a) { a.onto = true; }},
      {"a part of the scores",
       [](AttentionCommand &a) { a.keyStarts.buffer = 1; }},
      {"a part of the scores",
       [](AttentionCommand &a) { a.globalKeys = 2 * a.keys; }},
      {"too few positions",
       [](AttentionCommand &a) {
         a.queries = a.keys = a.globalQueries = a.globalKeys = 1;
       }},
      {"queries that see no key",
       [](AttentionCommand &a) { a.keys = a.globalKeys = 64; }},
      {"a window that is not causal, or of more keys than queries",
       [](AttentionCommand &a) {
         a.window = 8;
         a.causal = false;
       }},
      {"heads of 12 channels",
       [](AttentionCommand &a) { a.headSize = a.valueSize = 12; }},
      {"heads of 136 channels",
       [](AttentionCommand &a) { a.headSize = a.valueSize = 136; }},
      {"operands that are not aligned to 16 bytes",
       [](AttentionCommand &a) { a.k.ref.offset = 8; }},
      {"operands that are not aligned to 16 bytes",
       [](AttentionCommand &a) { a.v.strideHead += 4; }},
  };
  for (const Case &c : cases) {
    Command command = commandOf(shapes[0], true);
    EXPECT_EQ(cudnnRefusal(command, "sm_90"), "");
    c.change(command.attention);
    EXPECT_EQ(cudnnRefusal(command, "sm_90"), c.reason);
    EXPECT_EQ(planCudnnBytes(command, "sm_90"), -1);
  }
  Command command = commandOf(shapes[0], false);
  EXPECT_EQ(cudnnRefusal(command, "sm_120"), "no memory is stated for sm_120");
  // One sample alone needs too much.
  Command large = commandOf({1, 64, 64, 4096, 4096, 64, 64}, true);
  EXPECT_EQ(cudnnRefusal(large, "sm_90"), "");
  EXPECT_EQ(planCudnnBytes(large, "sm_90"), -1);
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

double widen(uint16_t bits, DType type) {
  if (type == DType::F16) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return static_cast<double>(value);
  }
  uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t narrow(float value, DType type) {
  uint16_t bits;
  if (type == DType::F16) {
    auto half = static_cast<_Float16>(value);
    std::memcpy(&bits, &half, 2);
    return bits;
  }
  uint32_t wide;
  std::memcpy(&wide, &value, 4);
  return static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

/// All elements of a view, in the order batch, head, position, channel.
template <typename F>
void forEach(const HeadView &view, int64_t batch, int64_t heads,
             int64_t positions, int64_t channels, F f) {
  int64_t i = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t p = 0; p < positions; ++p)
        for (int64_t c = 0; c < channels; ++c)
          f(i++, b * view.strideBatch + h * view.strideHead +
                     p * view.stridePosition + c);
}

using Values = std::vector<double>;

/// Results are within what rounding probabilities and results to 16 bits costs.
void expectClose(const Values &found, const Values &expected, DType type,
                 const char *name) {
  double most = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    most = std::max(most, std::abs(expected[i]));
    error = std::max(error, std::abs(found[i] - expected[i]));
    ASSERT_FALSE(std::isnan(found[i])) << name;
  }
  EXPECT_LE(error, most * (type == DType::F16 ? 0.0025 : 0.02)) << name;
}

/// Attention by its definition, and its gradients.
struct Expected {
  Values o, dQ, dK, dV, lse;
};

Expected computeAttention(const AttentionCommand &a, const Values &q,
                          const Values &k, const Values &v, const Values &g) {
  int64_t rows = a.batch * a.heads * a.queries;
  Expected result{Values(g.size()), Values(q.size()), Values(k.size()),
                  Values(v.size()), Values(rows)};
  for (int64_t row = 0; row < rows; ++row) {
    int64_t head = row / a.queries, i = row % a.queries;
    int64_t shared =
        head / a.heads * a.kvHeads + head % a.heads / (a.heads / a.kvHeads);
    const double *ownQ = &q[row * a.headSize], *ownG = &g[row * a.valueSize];
    Values p(a.keys), slope(a.keys);
    double sum = 0, dot = 0;
    for (int64_t j = 0; j < a.keys; ++j) {
      int64_t last = i + a.keys - a.queries;
      if ((a.causal && j > last) || (a.window && j <= last - a.window))
        continue;
      double score = 0;
      for (int64_t c = 0; c < a.headSize; ++c)
        score += ownQ[c] * k[(shared * a.keys + j) * a.headSize + c];
      sum += p[j] = std::exp(score * a.scale);
    }
    result.lse[row] = std::log(sum);
    for (int64_t j = 0; j < a.keys; ++j) {
      p[j] /= sum;
      for (int64_t c = 0; c < a.valueSize; ++c) {
        double value = v[(shared * a.keys + j) * a.valueSize + c];
        result.o[row * a.valueSize + c] += p[j] * value;
        slope[j] += ownG[c] * value;
        result.dV[(shared * a.keys + j) * a.valueSize + c] += p[j] * ownG[c];
      }
      dot += p[j] * slope[j];
    }
    for (int64_t j = 0; j < a.keys; ++j)
      for (int64_t c = 0; c < a.headSize; ++c) {
        double dS = a.scale * p[j] * (slope[j] - dot);
        int64_t at = (shared * a.keys + j) * a.headSize + c;
        result.dQ[row * a.headSize + c] += dS * k[at];
        result.dK[at] += dS * ownQ[c];
      }
  }
  return result;
}

TEST_F(CudnnTest, ComputesAttention) {
  for (const Shape &shape : tested()) {
    SCOPED_TRACE(testing::Message()
                 << "t" << shape.queries << '/' << shape.keys << " c"
                 << shape.headSize << " causal " << shape.causal << " window "
                 << shape.window);
    Command forward = commandOf(shape, false),
            backward = commandOf(shape, true);
    // The last sample is a call of its own.
    backward.attention.libraryBytes = cudnnBytes(
        backward, architecture(), shape.batch % 2 ? 1 : shape.batch / 2);
    const AttentionCommand &a = backward.attention;
    struct Buffer {
      const HeadView *view;
      int64_t heads, positions, channels;
      bool given;
      CUdeviceptr at = 0;
      std::vector<uint16_t> bits;
      Values values;
    };
    std::map<int, Buffer> buffers = {
        {BufferQ, {&a.q, a.heads, a.queries, a.headSize, true}},
        {BufferK, {&a.k, a.kvHeads, a.keys, a.headSize, true}},
        {BufferV, {&a.v, a.kvHeads, a.keys, a.valueSize, true}},
        {BufferO, {&a.o, a.heads, a.queries, a.valueSize, false}},
        {BufferDO, {&a.dO, a.heads, a.queries, a.valueSize, true}},
        {BufferDQ, {&a.dQ, a.heads, a.queries, a.headSize, false}},
        {BufferDK, {&a.dK, a.kvHeads, a.keys, a.headSize, false}},
        {BufferDV, {&a.dV, a.kvHeads, a.keys, a.valueSize, false}}};
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (auto &[number, buffer] : buffers) {
      int64_t count =
          a.batch * buffer.heads * buffer.positions * buffer.channels;
      buffer.bits.resize(count);
      buffer.values.resize(count);
      ASSERT_EQ(driver.cuMemAlloc(&buffer.at, 2 * count), CUDA_SUCCESS);
      if (!buffer.given)
        continue;
      forEach(*buffer.view, a.batch, buffer.heads, buffer.positions,
              buffer.channels, [&, &buffer = buffer](int64_t i, int64_t at) {
                buffer.bits[at] = narrow(normal(random), a.type);
                buffer.values[i] = widen(buffer.bits[at], a.type);
              });
      ASSERT_EQ(driver.cuMemcpyHtoDAsync(buffer.at, buffer.bits.data(),
                                         2 * count, stream),
                CUDA_SUCCESS);
    }
    int64_t rows = a.batch * a.heads * a.queries;
    CUdeviceptr lse = 0, workspace = 0;
    ASSERT_EQ(driver.cuMemAlloc(&lse, 4 * rows), CUDA_SUCCESS);
    ASSERT_EQ(
        driver.cuMemAlloc(&workspace, std::max(a.libraryBytes,
                                               forward.attention.libraryBytes)),
        CUDA_SUCCESS);
    auto at = [&](const Ref &ref) -> uint64_t {
      return ref.buffer == BufferLse ? lse : buffers.at(ref.buffer).at;
    };
    for (const Command *command : {&forward, &backward}) {
      auto made = cudnn->make(*command, at, workspace);
      ASSERT_TRUE(bool(made)) << llvm::toString(made.takeError());
      llvm::Error error = made->run();
      ASSERT_FALSE(bool(error)) << llvm::toString(std::move(error));
    }
    for (auto &[number, buffer] : buffers)
      if (!buffer.given) {
        ASSERT_EQ(driver.cuMemcpyDtoHAsync(buffer.bits.data(), buffer.at,
                                           2 * buffer.bits.size(), stream),
                  CUDA_SUCCESS);
        ASSERT_EQ(driver.cuStreamSynchronize(stream), CUDA_SUCCESS);
        forEach(*buffer.view, a.batch, buffer.heads, buffer.positions,
                buffer.channels, [&, &buffer = buffer](int64_t i, int64_t at) {
                  buffer.values[i] = widen(buffer.bits[at], a.type);
                });
      }
    std::vector<float> foundLse(rows);
    ASSERT_EQ(driver.cuMemcpyDtoHAsync(foundLse.data(), lse, 4 * rows, stream),
              CUDA_SUCCESS);
    ASSERT_EQ(driver.cuStreamSynchronize(stream), CUDA_SUCCESS);

    Expected expected =
        computeAttention(a, buffers[BufferQ].values, buffers[BufferK].values,
                         buffers[BufferV].values, buffers[BufferDO].values);
    for (int64_t row = 0; row < rows; ++row)
      ASSERT_NEAR(foundLse[row], expected.lse[row], 1e-4);
    expectClose(buffers[BufferO].values, expected.o, a.type, "O");
    expectClose(buffers[BufferDQ].values, expected.dQ, a.type, "dQ");
    expectClose(buffers[BufferDK].values, expected.dK, a.type, "dK");
    expectClose(buffers[BufferDV].values, expected.dV, a.type, "dV");
    for (auto &[number, buffer] : buffers)
      ASSERT_EQ(driver.cuMemFree(buffer.at), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuMemFree(lse), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuMemFree(workspace), CUDA_SUCCESS);
  }
}

} // namespace
