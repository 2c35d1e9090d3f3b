//===- SmokeTest.cpp - The fake CUDA device -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "gtest/gtest.h"
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

std::string folder() {
  const char *text = std::getenv("CLEAVE_CUDA_LIBRARIES");
  return text ? text : CLEAVE_FAKE_CUDA_FOLDER;
}

void *library(const char *name) {
  std::string path = folder() + "/" + name;
  void *result = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(result, nullptr) << dlerror();
  return result;
}

void *function(const char *name) {
  static void *driver = library("libcuda.so.1");
  static void *compiler = library("libnvrtc.so.13");
  static void *blas = library("libcublasLt.so.13");
  static void *nccl = library("libnccl.so.2");
  for (void *from : {driver, compiler, blas, nccl})
    if (void *found = dlsym(from, name))
      return found;
  ADD_FAILURE() << name;
  return nullptr;
}

#define NAME_OF(F) #F
// The header's macros give the names that the driver's library has.
#define CU(F) reinterpret_cast<decltype(&::F)>(function(NAME_OF(F)))
#define OK(CALL) ASSERT_EQ(CALL, CUDA_SUCCESS)

/// A call of a library without a header.
template <class... A> int call(const char *name, A... args) {
  return reinterpret_cast<int (*)(A...)>(function(name))(args...);
}

const char *const source = R"(
#include <cuda_bf16.h>
struct Both {
  float *values;
  int count;
};
extern "C" __global__ void __launch_bounds__(256)
reverse(Both both, const float *__restrict__ add,
        float scale) {
  extern __shared__ __align__(16) char shared[];
  float *sums = reinterpret_cast<float *>(shared);
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  sums[threadIdx.x] = i < both.count ? both.values[i] : 0;
  __syncthreads();
  float x = sums[blockDim.x - 1 - threadIdx.x];
  for (int step = 16; step; step /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, step);
  __syncthreads();
  if (i < both.count)
    both.values[i] = x * scale + add[i];
}
extern "C" __global__ void __launch_bounds__(32, 2) increase(float *x, int n) {
  int i = (blockIdx.y * gridDim.x + blockIdx.x) * 32 + threadIdx.x;
  if (i < n)
    x[i] += 1;
}
extern "C" __global__ void twice(const float *from, float *to, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    to[i] = from[i] * 2;
}
extern "C" __global__ void outside(float *x, int at) { x[at] = 1; }
extern "C" __global__ void overShared(int at) {
  extern __shared__ __align__(16) char shared[];
  shared[at] = 1;
}
template <class T> static __device__ T leftOver() {
  __shared__ __align__(16) T last[2];
  T result = last[0];
  __syncthreads();
  last[0] = 1;
  return result;
}
extern "C" __global__ void leftOvers(float *out) {
  out[blockIdx.x] = leftOver<float>();
  if (__syncthreads_count(threadIdx.x < 3) != 3 || __syncthreads_or(0))
    out[blockIdx.x] = 0;
}
extern "C" __global__ void ballots(unsigned *out) {
  __shared__ unsigned count;
  if (threadIdx.x == 0)
    count = 0;
  __syncthreads();
  unsigned votes = __ballot_sync(0xffffffffu, threadIdx.x % 3 == 0);
  unsigned below = __shfl_up_sync(0xffffffffu, threadIdx.x, 1);
  unsigned above = __shfl_down_sync(0xffffffffu, threadIdx.x, 2);
  atomicAdd(&count, below + above);
  __syncthreads();
  __syncwarp();
  out[threadIdx.x] = threadIdx.x ? count : votes;
}
)";

/// The library of the kernels above, compiled once.
const std::vector<char> &image() {
  static const std::vector<char> image = [] {
    void *program = nullptr;
    std::vector<char> result;
    EXPECT_EQ(call("nvrtcCreateProgram", &program, source, "smoke.cu", 0,
                   nullptr, nullptr),
              0);
    const char *options[] = {"--gpu-architecture=sm_90"};
    int status = call("nvrtcCompileProgram", program, 1,
                      static_cast<const char *const *>(options));
    size_t size = 0;
    EXPECT_EQ(call("nvrtcGetProgramLogSize", program, &size), 0);
    std::string log(size, ' ');
    EXPECT_EQ(call("nvrtcGetProgramLog", program, log.data()), 0);
    EXPECT_EQ(status, 0) << log;
    EXPECT_EQ(call("nvrtcGetCUBINSize", program, &size), 0);
    result.resize(size);
    EXPECT_EQ(call("nvrtcGetCUBIN", program, result.data()), 0);
    EXPECT_EQ(call("nvrtcDestroyProgram", &program), 0);
    return result;
  }();
  return image;
}

class FakeCuda : public ::testing::Test {
protected:
  void SetUp() override {
    for (const char *name :
         {"CLEAVE_FAKE_ORDER", "CLEAVE_FAKE_MEMORY", "CLEAVE_FAKE_FAULT",
          "CLEAVE_FAKE_RECORD", "CLEAVE_FAKE_CAPABILITY", "CLEAVE_FAKE_SUMS",
          "CLEAVE_THREAD_ORDER"})
      unsetenv(name);
    OK(CU(cuInit)(0));
    OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
    OK(CU(cuCtxSetCurrent)(context));
    OK(CU(cuModuleLoadData)(&module, image().data()));
    for (CUstream &stream : streams)
      OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  }
  void TearDown() override {
    OK(CU(cuCtxSynchronize)());
    for (CUstream stream : streams)
      OK(CU(cuStreamDestroy)(stream));
    OK(CU(cuModuleUnload)(module));
    OK(CU(cuDevicePrimaryCtxRelease)(0));
  }

  CUfunction kernel(const char *name) {
    CUfunction result = nullptr;
    EXPECT_EQ(CU(cuModuleGetFunction)(&result, module, name), CUDA_SUCCESS);
    return result;
  }
  template <class... A>
  CUresult launch(CUfunction kernel, unsigned grid, unsigned block,
                  unsigned shared, CUstream stream, A... args) {
    void *parameters[] = {&args..., nullptr};
    return CU(cuLaunchKernel)(kernel, grid, 1, 1, block, 1, 1, shared, stream,
                              parameters, nullptr);
  }
  CUdeviceptr buffer(const std::vector<float> &values) {
    CUdeviceptr result = 0;
    EXPECT_EQ(CU(cuMemAlloc)(&result, values.size() * 4), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemcpyHtoD)(result, values.data(), values.size() * 4),
              CUDA_SUCCESS);
    return result;
  }
  std::vector<float> read(CUdeviceptr from, size_t count) {
    std::vector<float> result(count);
    EXPECT_EQ(CU(cuMemcpyDtoH)(result.data(), from, count * 4), CUDA_SUCCESS);
    return result;
  }

  CUcontext context;
  CUmodule module;
  CUstream streams[3];
};

TEST_F(FakeCuda, KernelWithBarriers) {
  struct {
    CUdeviceptr values;
    int count;
  } both;
  std::vector<float> values(500);
  for (int i = 0; i < 500; ++i)
    values[i] = float(i % 17);
  for (const char *order : {"up", "down", "3"}) {
    setenv("CLEAVE_THREAD_ORDER", order, 1);
    CUdeviceptr a = buffer(values), b = buffer(values);
    both = {a, 500};
    OK(launch(kernel("reverse"), 4, 128, 512, streams[0], both, b, 2.0f));
    OK(CU(cuStreamSynchronize)(streams[0]));
    std::vector<float> actual = read(a, 500);
    for (int i = 0; i < 500; ++i) {
      int start = i / 128 * 128, from = 127 - i % 128;
      float sum = 0;
      for (int j = from / 32 * 32; j < from / 32 * 32 + 32; ++j)
        sum += start + j < 500 ? values[start + j] : 0;
      ASSERT_EQ(actual[i], sum * 2 + values[i]) << i;
    }
    OK(CU(cuMemFree)(a));
    OK(CU(cuMemFree)(b));
  }
}

TEST_F(FakeCuda, WarpFunctions) {
  CUdeviceptr out = buffer(std::vector<float>(32));
  OK(launch(kernel("ballots"), 1, 32, 0, streams[0], out));
  OK(CU(cuStreamSynchronize)(streams[0]));
  std::vector<float> raw = read(out, 32);
  std::vector<unsigned> words(32);
  std::memcpy(words.data(), raw.data(), 128);
  EXPECT_EQ(words[0], 0x49249249u);
  unsigned sum = 0;
  for (unsigned i = 0; i < 32; ++i)
    sum += (i ? i - 1 : 0) + (i + 2 < 32 ? i + 2 : i);
  EXPECT_EQ(words[1], sum);
  OK(CU(cuMemFree)(out));
}

TEST_F(FakeCuda, SharedMemoryIsFresh) {
  CUdeviceptr out = buffer(std::vector<float>(4));
  OK(launch(kernel("leftOvers"), 4, 64, 0, streams[0], out));
  OK(CU(cuStreamSynchronize)(streams[0]));
  for (float x : read(out, 4))
    EXPECT_TRUE(std::isnan(x));
  OK(CU(cuMemFree)(out));
}

TEST_F(FakeCuda, RefusesLaunches) {
  CUdeviceptr a = buffer({1, 2, 3});
  CUfunction increase = kernel("increase"), over = kernel("overShared");
  EXPECT_EQ(launch(increase, 1, 33, 0, streams[0], a, 3),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(over, 1, 1025, 0, streams[0], 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(over, 0, 1, 0, streams[0], 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(over, 1, 1, 60000, streams[0], 3), CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuFuncSetAttribute)(
      over, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000));
  OK(launch(over, 1, 1, 60000, streams[0], 3));
  EXPECT_EQ(CU(cuFuncSetAttribute)(
                over, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 240000),
            CUDA_ERROR_INVALID_VALUE);
  // Past the end, and of the host.
  EXPECT_EQ(launch(increase, 1, 32, 0, streams[0], a + 12, 3),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  float local = 0;
  EXPECT_EQ(launch(increase, 1, 32, 0, streams[0], &local, 3),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(CU(cuMemcpyHtoD)(a, &local, 16), CUDA_ERROR_INVALID_VALUE);
  CUfunction none;
  EXPECT_EQ(CU(cuModuleGetFunction)(&none, module, "none"),
            CUDA_ERROR_NOT_FOUND);
  CUmodule other;
  EXPECT_EQ(CU(cuModuleLoadData)(&other, "// not a library of kernels"),
            CUDA_ERROR_INVALID_IMAGE);
  setenv("CLEAVE_FAKE_CAPABILITY", "8.0", 1);
  EXPECT_EQ(CU(cuModuleLoadData)(&other, image().data()),
            CUDA_ERROR_NO_BINARY_FOR_GPU);
  OK(CU(cuMemFree)(a));
}

TEST_F(FakeCuda, RefusesText) {
  void *program = nullptr;
  ASSERT_EQ(call("nvrtcCreateProgram", &program,
                 "extern \"C\" __global__ void f(int *x) { *x = y; }", "bad.cu",
                 0, nullptr, nullptr),
            0);
  const char *options[] = {"--gpu-architecture=sm_90"};
  EXPECT_EQ(call("nvrtcCompileProgram", program, 1,
                 static_cast<const char *const *>(options)),
            6);
  size_t size = 0;
  call("nvrtcGetProgramLogSize", program, &size);
  std::string log(size, ' ');
  call("nvrtcGetProgramLog", program, log.data());
  EXPECT_NE(log.find("bad.cu:1"), std::string::npos) << log;
  call("nvrtcDestroyProgram", &program);
}

TEST_F(FakeCuda, Guards) {
  GTEST_FLAG_SET(death_test_style, "fast");
  CUdeviceptr a = buffer(std::vector<float>(64));
  auto run = [&](int at) {
    launch(kernel("outside"), 1, 1, 0, streams[0], a, at);
    CU(cuStreamSynchronize)(streams[0]);
  };
  EXPECT_DEATH(run(64), "outside: touches memory outside of any buffer");
  EXPECT_DEATH(run(-1), "outside: wrote before a buffer");
  CUdeviceptr small = buffer(std::vector<float>(3));
  std::swap(a, small);
  EXPECT_DEATH(run(3), "outside: wrote behind a buffer");
  auto shared = [&] {
    launch(kernel("overShared"), 1, 1, 64, streams[0], 64);
    CU(cuStreamSynchronize)(streams[0]);
  };
  EXPECT_DEATH(shared(), "writes behind its dynamic shared memory");
  OK(CU(cuMemFree)(a));
  OK(CU(cuMemFree)(small));
}

TEST_F(FakeCuda, MemoryLimit) {
  setenv("CLEAVE_FAKE_MEMORY", "1048576", 1);
  size_t before = 0, total = 0;
  OK(CU(cuMemGetInfo)(&before, &total));
  EXPECT_EQ(total, 1048576u);
  CUdeviceptr a, b;
  OK(CU(cuMemAlloc)(&a, 600000));
  EXPECT_EQ(CU(cuMemAlloc)(&b, 600000), CUDA_ERROR_OUT_OF_MEMORY);
  OK(CU(cuMemFree)(a));
  OK(CU(cuMemAlloc)(&b, 600000));
  EXPECT_NE(a, b);
  for (float x : read(b, 100))
    EXPECT_TRUE(std::isnan(x));
  OK(CU(cuMemFree)(b));
  EXPECT_EQ(CU(cuMemFree)(b), CUDA_ERROR_INVALID_VALUE);
}

/// Whether `twice` on one stream saw what `increase` did on another.
void produceAndConsume(CUfunction increase, CUfunction twice, CUstream *streams,
                       CUdeviceptr a, CUdeviceptr b, bool waits) {
  CUevent event;
  OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
  int n = 4;
  void *first[] = {&a, &n}, *second[] = {&a, &b, &n};
  OK(CU(cuLaunchKernel)(increase, 1, 1, 1, 32, 1, 1, 0, streams[0], first,
                        nullptr));
  OK(CU(cuEventRecord)(event, streams[0]));
  if (waits)
    OK(CU(cuStreamWaitEvent)(streams[1], event, 0));
  OK(CU(cuLaunchKernel)(twice, 1, 1, 1, 32, 1, 1, 0, streams[1], second,
                        nullptr));
  OK(CU(cuStreamSynchronize)(streams[1]));
  OK(CU(cuEventDestroy)(event));
}

TEST_F(FakeCuda, Orders) {
  auto result = [&](const char *order, bool waits) {
    setenv("CLEAVE_FAKE_ORDER", order, 1);
    CUdeviceptr a = buffer({1, 2, 3, 4}), b = buffer({0, 0, 0, 0});
    produceAndConsume(kernel("increase"), kernel("twice"), streams, a, b,
                      waits);
    float x = read(b, 4)[0];
    CU(cuMemFree)(a);
    CU(cuMemFree)(b);
    return x;
  };
  EXPECT_EQ(result("earliest", true), 4);
  EXPECT_EQ(result("earliest", false), 4);
  EXPECT_EQ(result("latest", true), 4);
  EXPECT_EQ(result("latest", false), 2);
  int wrong = 0;
  for (int seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(result(std::to_string(seed).c_str(), true), 4);
    wrong += result(std::to_string(seed).c_str(), false) == 2;
  }
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 20);
  setenv("CLEAVE_FAKE_FAULT", "drop-wait:1", 1);
  EXPECT_EQ(result("latest", true), 2);
}

TEST_F(FakeCuda, CopiesOfPinnedMemoryAreLate) {
  setenv("CLEAVE_FAKE_ORDER", "latest", 1);
  float *pinned;
  OK(CU(cuMemAllocHost)(reinterpret_cast<void **>(&pinned), 16));
  CUdeviceptr a = buffer({0, 0, 0, 0});
  float plain[] = {1, 1, 1, 1};
  pinned[0] = 1;
  OK(CU(cuMemcpyHtoDAsync)(a, pinned, 4, streams[0]));
  OK(CU(cuMemcpyHtoDAsync)(a + 4, plain, 4, streams[0]));
  pinned[0] = plain[0] = 2;
  EXPECT_EQ(CU(cuStreamQuery)(streams[0]), CUDA_ERROR_NOT_READY);
  while (CU(cuStreamQuery)(streams[0]) != CUDA_SUCCESS) {
  }
  std::vector<float> values = read(a, 2);
  EXPECT_EQ(values[0], 2);
  EXPECT_EQ(values[1], 1);
  OK(CU(cuMemFreeHost)(pinned));
  OK(CU(cuMemFree)(a));
}

TEST_F(FakeCuda, Faults) {
  auto result = [&](const char *fault) {
    setenv("CLEAVE_FAKE_FAULT", fault, 1);
    setenv("CLEAVE_FAKE_ORDER", "latest", 1);
    std::vector<float> zeros(70);
    CUdeviceptr a = buffer(zeros);
    EXPECT_EQ(launch(kernel("increase"), 1, 32, 0, streams[0], a, 1),
              CUDA_SUCCESS);
    EXPECT_EQ(launch(kernel("increase"), 3, 32, 0, streams[0], a, 60),
              CUDA_SUCCESS);
    CU(cuStreamSynchronize)(streams[0]);
    std::vector<float> values = read(a, 70);
    CU(cuMemFree)(a);
    return values;
  };
  EXPECT_EQ(result("")[40], 1);
  EXPECT_EQ(result("skip:2")[40], 0);
  EXPECT_EQ(result("skip:1")[0], 1);
  std::vector<float> values = result("offset:2");
  EXPECT_EQ(values[2], 0);
  EXPECT_EQ(values[63], 1);
  EXPECT_EQ(result("swap-stream:2")[40], 0);
  values = result("grid:2");
  EXPECT_EQ(values[40], 1);
  EXPECT_EQ(result("grid:1")[0], 1);
}

TEST_F(FakeCuda, Graphs) {
  std::string path = "/tmp/fake-cuda-" + std::to_string(getpid());
  for (const char *order : {"earliest", "latest", "1", "2", "3"}) {
    setenv("CLEAVE_FAKE_ORDER", order, 1);
    CUdeviceptr a = buffer({1, 2, 3, 4}), b = buffer({0, 0, 0, 0});
    float *pinned;
    OK(CU(cuMemAllocHost)(reinterpret_cast<void **>(&pinned), 16));
    CUevent fork, join;
    OK(CU(cuEventCreate)(&fork, CU_EVENT_DISABLE_TIMING));
    OK(CU(cuEventCreate)(&join, CU_EVENT_DISABLE_TIMING));
    OK(CU(cuStreamBeginCapture)(streams[0],
                                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(launch(kernel("increase"), 1, 32, 0, streams[0], a, 4));
    OK(CU(cuEventRecord)(fork, streams[0]));
    OK(CU(cuStreamWaitEvent)(streams[1], fork, 0));
    OK(launch(kernel("twice"), 1, 32, 0, streams[1], a, b, 4));
    CUstreamCaptureStatus status;
    OK(CU(cuStreamIsCapturing)(streams[1], &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(CU(cuEventRecord)(join, streams[1]));
    OK(CU(cuStreamWaitEvent)(streams[0], join, 0));
    OK(CU(cuMemcpyDtoHAsync)(pinned, b, 16, streams[0]));
    CUgraph graph;
    OK(CU(cuStreamEndCapture)(streams[0], &graph));
    size_t count = 0;
    OK(CU(cuGraphGetNodes)(graph, nullptr, &count));
    EXPECT_EQ(count, 3u);
    CUgraphExec exec;
    OK(CU(cuGraphInstantiate)(&exec, graph, 0));
    OK(CU(cuGraphDestroy)(graph));
    // Nothing has run yet.
    EXPECT_EQ(read(a, 1)[0], 1);
    setenv("CLEAVE_FAKE_RECORD", path.c_str(), 1);
    for (int i = 0; i < 3; ++i) {
      OK(CU(cuGraphLaunch)(exec, streams[2]));
      if (i == 1)
        OK(CU(cuStreamSynchronize)(streams[2]));
    }
    OK(CU(cuStreamSynchronize)(streams[2]));
    unsetenv("CLEAVE_FAKE_RECORD");
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(pinned[i], 2 * (i + 1 + 3));
    OK(CU(cuGraphExecDestroy)(exec));
    OK(CU(cuEventDestroy)(fork));
    OK(CU(cuEventDestroy)(join));
    OK(CU(cuMemFreeHost)(pinned));
    OK(CU(cuMemFree)(a));
    OK(CU(cuMemFree)(b));
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    unlink(path.c_str());
    EXPECT_NE(text.str().find("graph=1 kind=launch name=twice grid=1,1,1 "
                              "block=32 shared=0"),
              std::string::npos)
        << text.str();
    EXPECT_NE(text.str().find("kind=copy-dtoh bytes=16 to="),
              std::string::npos);
  }
}

TEST_F(FakeCuda, CaptureErrors) {
  CUdeviceptr a = buffer({1, 2, 3, 4}), other;
  CUevent fork;
  CUgraph graph;
  OK(CU(cuEventCreate)(&fork, 0));
  // A stream that is not joined.
  OK(CU(cuStreamBeginCapture)(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(CU(cuEventRecord)(fork, streams[0]));
  OK(CU(cuStreamWaitEvent)(streams[1], fork, 0));
  OK(launch(kernel("increase"), 1, 32, 0, streams[1], a, 4));
  EXPECT_EQ(CU(cuStreamEndCapture)(streams[0], &graph),
            CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  // What may not be done meanwhile.
  OK(CU(cuStreamBeginCapture)(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(CU(cuMemAlloc)(&other, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(CU(cuStreamEndCapture)(streams[0], &graph),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // An event from before.
  OK(CU(cuEventRecord)(fork, streams[1]));
  OK(CU(cuStreamBeginCapture)(streams[0], CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(CU(cuStreamWaitEvent)(streams[0], fork, 0),
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(CU(cuStreamEndCapture)(streams[0], &graph),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(CU(cuEventDestroy)(fork));
  OK(CU(cuMemFree)(a));
}

TEST_F(FakeCuda, ThreadsOfRanks) {
  for (const char *order : {"earliest", "latest", "5"}) {
    setenv("CLEAVE_FAKE_ORDER", order, 1);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank)
      ranks.emplace_back([&] {
        OK(CU(cuCtxSetCurrent)(context));
        CUstream stream;
        OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
        CUdeviceptr a = buffer({1, 2, 3, 4});
        for (int i = 0; i < 50; ++i) {
          OK(launch(kernel("increase"), 1, 32, 0, stream, a, 4));
          OK(CU(cuLaunchHostFunc)(stream, [](void *) {}, nullptr));
          if (i % 10 == 0)
            OK(CU(cuStreamSynchronize)(stream));
        }
        OK(CU(cuStreamSynchronize)(stream));
        EXPECT_EQ(read(a, 1)[0], 51);
        OK(CU(cuStreamDestroy)(stream));
        OK(CU(cuMemFree)(a));
      });
    for (std::thread &rank : ranks)
      rank.join();
  }
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

enum { F32 = 0, F16 = 2, BF16 = 14, E4M3 = 28 };

size_t bytesOf(int type) { return type == F32 ? 4 : type == E4M3 ? 1 : 2; }
/// Small integers and halves of them are exact in every type.
void encode(char *to, int type, float x) {
  if (type == F32) {
    std::memcpy(to, &x, 4);
  } else if (type == BF16) {
    unsigned word;
    std::memcpy(&word, &x, 4);
    unsigned short half = word >> 16;
    std::memcpy(to, &half, 2);
  } else {
    int e;
    float fraction = std::frexp(std::fabs(x), &e) * 2;
    --e;
    unsigned bits = 0;
    if (x != 0 && type == F16)
      bits = (e + 15) << 10 | unsigned((fraction - 1) * 1024);
    else if (x != 0)
      bits = (e + 7) << 3 | unsigned((fraction - 1) * 8);
    if (x < 0)
      bits |= type == F16 ? 0x8000 : 0x80;
    std::memcpy(to, &bits, bytesOf(type));
  }
}
float decode(const char *from, int type) {
  if (type == F32) {
    float x;
    std::memcpy(&x, from, 4);
    return x;
  }
  unsigned short half;
  std::memcpy(&half, from, 2);
  if (type == BF16) {
    unsigned word = unsigned(half) << 16;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
  }
  int e = half >> 10 & 31, m = half & 1023;
  float x = e ? std::ldexp(1 + m / 1024.0f, e - 15) : std::ldexp(m, -24);
  return half & 0x8000 ? -x : x;
}

struct Case {
  int in, out, m, n, k, batches, pad;
  bool transposeA, transposeB;
  float alpha, beta;
  int epilogue;
};

class FakeProducts : public FakeCuda {
protected:
  struct Operand {
    CUdeviceptr device = 0;
    void *layout = nullptr;
    std::vector<float> values;
    int rows = 0, ld = 0, type = 0;
    int64_t stride = 0;

    float at(int batch, int row, int col) const {
      return values[batch * stride + int64_t(col) * ld + row];
    }
  };
  std::mt19937 random{3};

  Operand make(int type, int rows, int cols, int pad, int batches) {
    Operand o;
    o.type = type;
    o.rows = rows;
    o.ld = rows + pad;
    o.stride = int64_t(o.ld) * cols + pad;
    size_t count = (batches - 1) * o.stride + int64_t(o.ld) * (cols - 1) + rows;
    std::vector<char> bytes(count * bytesOf(type));
    for (size_t i = 0; i < count; ++i) {
      o.values.push_back(float(int(random() % 9) - 4) / 2);
      encode(bytes.data() + i * bytesOf(type), type, o.values[i]);
    }
    EXPECT_EQ(CU(cuMemAlloc)(&o.device, bytes.size()), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemcpyHtoD)(o.device, bytes.data(), bytes.size()),
              CUDA_SUCCESS);
    EXPECT_EQ(call("cublasLtMatrixLayoutCreate", &o.layout, type,
                   uint64_t(rows), uint64_t(cols), int64_t(o.ld)),
              0);
    set("cublasLtMatrixLayoutSetAttribute", o.layout, 5, int32_t(batches));
    set("cublasLtMatrixLayoutSetAttribute", o.layout, 6, int64_t(o.stride));
    return o;
  }
  template <class T>
  void set(const char *name, void *handle, int attribute, T value) {
    EXPECT_EQ(call(name, handle, attribute, static_cast<const void *>(&value),
                   sizeof value),
              0)
        << name << " " << attribute;
  }
  void drop(Operand &o) {
    EXPECT_EQ(CU(cuMemFree)(o.device), CUDA_SUCCESS);
    EXPECT_EQ(call("cublasLtMatrixLayoutDestroy", o.layout), 0);
  }
};

struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

TEST_F(FakeProducts, EqualNaiveOnes) {
  const Case cases[] = {
      {F32, F32, 7, 5, 9, 1, 0, false, false, 1, 0, 1},
      {F32, F32, 33, 18, 20, 3, 3, true, false, 0.5f, 1, 1},
      {BF16, BF16, 16, 24, 8, 2, 8, false, true, 1, 0, 1},
      {BF16, F32, 9, 10, 11, 1, 1, true, true, 2, 1, 1},
      {F16, F16, 8, 8, 40, 1, 0, true, false, 1, 0, 4},
      {F16, F32, 17, 3, 1, 4, 2, false, false, 1, -1, 4},
      {E4M3, BF16, 32, 8, 16, 1, 16, true, false, 1, 0, 1},
      {F32, F32, 16, 6, 5, 1, 0, false, false, 1, 0, 32 | 128 | 4},
  };
  void *handle = nullptr, *preference = nullptr;
  ASSERT_EQ(call("cublasLtCreate", &handle), 0);
  ASSERT_EQ(call("cublasLtMatmulPreferenceCreate", &preference), 0);
  set("cublasLtMatmulPreferenceSetAttribute", preference, 1, uint64_t(4 << 20));
  CUdeviceptr workspace;
  OK(CU(cuMemAlloc)(&workspace, 4 << 20));
  // As they are, and as sums of f32 in a drawn order.
  constexpr int number = std::size(cases);
  for (int run = 0; run < 2 * number; ++run) {
    const Case &c = cases[run % number];
    SCOPED_TRACE(run);
    bool drawn = run >= number;
    if (drawn)
      setenv("CLEAVE_FAKE_SUMS", "3", 1);
    Operand a = make(c.in, c.transposeA ? c.k : c.m, c.transposeA ? c.m : c.k,
                     c.pad, c.batches);
    Operand b = make(c.in, c.transposeB ? c.n : c.k, c.transposeB ? c.k : c.n,
                     c.pad, c.batches);
    Operand d = make(c.out, c.m, c.n, c.pad, c.batches);
    Operand bias = make(c.out, c.m, 1, 0, 1);
    Operand aux = make(c.out, (c.m + 7) / 8 * 8, c.n, 0, 1);
    void *desc = nullptr;
    ASSERT_EQ(call("cublasLtMatmulDescCreate", &desc, 68, int(F32)), 0);
    const char *setDesc = "cublasLtMatmulDescSetAttribute";
    set(setDesc, desc, 3, int32_t(c.transposeA));
    set(setDesc, desc, 4, int32_t(c.transposeB));
    set(setDesc, desc, 7, int32_t(c.epilogue));
    set(setDesc, desc, 8, uint64_t(bias.device));
    set(setDesc, desc, 11, uint64_t(aux.device));
    set(setDesc, desc, 12, int64_t(aux.ld));
    Heuristic found[4];
    int count = 0;
    ASSERT_EQ(call("cublasLtMatmulAlgoGetHeuristic", handle, desc, a.layout,
                   b.layout, d.layout, d.layout, preference, 4,
                   static_cast<Heuristic *>(found), &count),
              0);
    ASSERT_EQ(count, 3);
    const Heuristic &chosen = found[random() % 3];
    // The scalars are read at the call.
    float alpha = c.alpha, beta = c.beta;
    ASSERT_EQ(call("cublasLtMatmul", handle, desc,
                   static_cast<const void *>(&alpha), a.device, a.layout,
                   b.device, b.layout, static_cast<const void *>(&beta),
                   d.device, d.layout, d.device, d.layout, &chosen, workspace,
                   chosen.workspace, streams[0]),
              0);
    alpha = beta = 100;
    OK(CU(cuStreamSynchronize)(streams[0]));
    std::vector<char> bytes(d.values.size() * bytesOf(c.out));
    OK(CU(cuMemcpyDtoH)(bytes.data(), d.device, bytes.size()));
    double tolerance = c.out == F32   ? drawn ? 1e-5 : 1e-6
                       : c.out == F16 ? 1e-3
                                      : 8e-3;
    for (int batch = 0; batch < c.batches; ++batch)
      for (int j = 0; j < c.n; ++j)
        for (int i = 0; i < c.m; ++i) {
          double sum = 0;
          for (int p = 0; p < c.k; ++p)
            sum +=
                double(c.transposeA ? a.at(batch, p, i) : a.at(batch, i, p)) *
                (c.transposeB ? b.at(batch, j, p) : b.at(batch, p, j));
          sum = c.alpha * sum + c.beta * d.at(batch, i, j);
          if (c.epilogue & 4)
            sum += bias.at(0, i, 0);
          if (c.epilogue & 32)
            sum = 0.5 * sum *
                  (1 + std::tanh(0.7978845608028654 *
                                 (sum + 0.044715 * sum * sum * sum)));
          size_t at = batch * d.stride + int64_t(j) * d.ld + i;
          ASSERT_NEAR(decode(bytes.data() + at * bytesOf(c.out), c.out), sum,
                      tolerance * (1 + std::fabs(sum)))
              << batch << " " << i << " " << j;
        }
    for (Operand *o : {&a, &b, &d, &bias, &aux})
      drop(*o);
    ASSERT_EQ(call("cublasLtMatmulDescDestroy", desc), 0);
  }
  std::vector<float> scribbled = read(workspace, 1);
  EXPECT_FALSE(std::isnan(scribbled[0]));
  OK(CU(cuMemFree)(workspace));
  ASSERT_EQ(call("cublasLtMatmulPreferenceDestroy", preference), 0);
  ASSERT_EQ(call("cublasLtDestroy", handle), 0);
}

TEST_F(FakeProducts, Refusals) {
  void *handle = nullptr, *preference = nullptr, *desc = nullptr;
  ASSERT_EQ(call("cublasLtCreate", &handle), 0);
  ASSERT_EQ(call("cublasLtMatmulPreferenceCreate", &preference), 0);
  ASSERT_EQ(call("cublasLtMatmulDescCreate", &desc, 68, int(F32)), 0);
  Heuristic found[3];
  int count = 0;
  auto ask = [&](Operand &a, Operand &b, Operand &d) {
    return call("cublasLtMatmulAlgoGetHeuristic", handle, desc, a.layout,
                b.layout, d.layout, d.layout, preference, 3,
                static_cast<Heuristic *>(found), &count);
  };
  // Of eight bits, A is to be transposed.
  Operand a = make(E4M3, 16, 16, 0, 1), d = make(BF16, 16, 16, 0, 1);
  EXPECT_EQ(ask(a, a, d), 15);
  set("cublasLtMatmulDescSetAttribute", desc, 3, int32_t(1));
  EXPECT_EQ(ask(a, a, d), 0);
  // Without a workspace there is one algorithm.
  EXPECT_EQ(count, 1);
  Operand odd = make(E4M3, 16, 16, 8, 1);
  EXPECT_EQ(ask(odd, a, d), 15);
  setenv("CLEAVE_FAKE_CAPABILITY", "8.0", 1);
  EXPECT_EQ(ask(a, a, d), 15);
  unsetenv("CLEAVE_FAKE_CAPABILITY");
  // A product that leaves its buffer.
  float alpha = 1, beta = 0;
  EXPECT_EQ(call("cublasLtMatmul", handle, desc,
                 static_cast<const void *>(&alpha), a.device, a.layout,
                 a.device + 16, a.layout, static_cast<const void *>(&beta),
                 d.device, d.layout, d.device, d.layout,
                 static_cast<Heuristic *>(nullptr), CUdeviceptr(0), size_t(0),
                 streams[0]),
            13);
  for (Operand *o : {&a, &d, &odd})
    drop(*o);
  call("cublasLtMatmulDescDestroy", desc);
  call("cublasLtMatmulPreferenceDestroy", preference);
  call("cublasLtDestroy", handle);
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

struct NcclId {
  char bytes[128];
};
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
};

/// Two ranks, one of which is a thread.
TEST(FakeCollectives, SumAndMessages) {
  setenv("CLEAVE_FAKE_DEVICES", "2", 1);
  OK(CU(cuInit)(0));
  NcclId id;
  ASSERT_EQ(call("ncclGetUniqueId", &id), 0);
  auto rank = [&](int member) {
    CUcontext context;
    CUstream stream;
    CUdeviceptr at;
    OK(CU(cuDevicePrimaryCtxRetain)(&context, member));
    OK(CU(cuCtxSetCurrent)(context));
    OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    OK(CU(cuMemAlloc)(&at, 64));
    float values[4] = {1.0f + static_cast<float>(member), 2, 0, 0};
    OK(CU(cuMemcpyHtoD)(at, values, sizeof values));
    void *own = nullptr;
    NcclConfig config;
    ASSERT_EQ(call("ncclCommInitRankConfig", &own, 2, id, member, &config), 7);
    int status = 7;
    while (status == 7)
      ASSERT_EQ(call("ncclCommGetAsyncError", own, &status), 0);
    ASSERT_EQ(status, 0);
    ASSERT_EQ(call("ncclAllReduce", at, at, size_t(2), 7, 0, own, stream), 0);
    ASSERT_EQ(call("ncclGroupStart"), 0);
    ASSERT_EQ(call("ncclSend", at + 4 * static_cast<CUdeviceptr>(member),
                   size_t(1), 7, 1 - member, own, stream),
              0);
    ASSERT_EQ(call("ncclRecv", at + 8, size_t(1), 7, 1 - member, own, stream),
              0);
    ASSERT_EQ(call("ncclGroupEnd"), 0);
    OK(CU(cuStreamSynchronize)(stream));
    OK(CU(cuMemcpyDtoH)(values, at, sizeof values));
    EXPECT_EQ(values[0], 3);
    EXPECT_EQ(values[1], 4);
    EXPECT_EQ(values[2], member == 0 ? 4 : 3);
    ASSERT_EQ(call("ncclCommAbort", own), 0);
    OK(CU(cuMemFree)(at));
    OK(CU(cuStreamDestroy)(stream));
    OK(CU(cuDevicePrimaryCtxRelease)(member));
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

} // namespace
