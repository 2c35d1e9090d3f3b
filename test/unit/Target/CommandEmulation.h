//===- CommandEmulation.h - Commands in emulated blocks ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_UNIT_TARGET_COMMANDEMULATION_H
#define CLEAVE_TEST_UNIT_TARGET_COMMANDEMULATION_H

#include "../TestAll.h"
#include "CommandKernels.h"
#include "cleave/Executable/Cuda/KernelArguments.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "gtest/gtest.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

namespace cleave::testing {

using namespace cleave::runtime;

/// Configurations of a test: all, or a sample.
inline int count(int all, int sample) { return testAll() ? all : sample; }

/// The order in which threads of configuration `seed` take turns, unless one is
/// chosen for all.
class ThreadOrder {
public:
  explicit ThreadOrder(int seed) : own(!std::getenv(name)) {
    constexpr const char *orders[] = {"1", "down", "2", "up"};
    if (own)
      setenv(name, orders[seed % 4], 1);
  }
  ~ThreadOrder() {
    if (own)
      unsetenv(name);
  }

private:
  static constexpr const char *name = "CLEAVE_THREAD_ORDER";
  bool own;
};

/// The kernels that a test has run.
inline std::set<std::string> launched;

/// Buffers with guards around them. A copy has the same content elsewhere.
class Memory {
public:
  static constexpr size_t guard = 256;
  static constexpr char guardByte = 0x7b;

  /// A buffer of `bytes` bytes that begins `shift` bytes behind an address that
  /// is a multiple of 64. It is filled with the guard's byte.
  Ref add(int64_t bytes, int64_t shift = 0) {
    buffers.emplace_back(size_t(bytes + shift) + 2 * guard + 64, guardByte);
    starts.push_back(guard + size_t(shift));
    return {int32_t(buffers.size()) - 1, 0};
  }
  template <typename T>
  Ref add(const std::vector<T> &values, int64_t shift = 0) {
    Ref ref = add(int64_t(values.size() * sizeof(T)), shift);
    std::memcpy(at(ref), values.data(), values.size() * sizeof(T));
    return ref;
  }

  char *at(const Ref &ref) {
    std::vector<char> &buffer = buffers[size_t(ref.buffer)];
    auto address = reinterpret_cast<uintptr_t>(buffer.data());
    // Vectors begin anywhere: contents are relative to an aligned address.
    size_t shift = (64 - address % 64) % 64;
    if (shifts.size() < buffers.size())
      shifts.resize(buffers.size());
    size_t &have = shifts[size_t(ref.buffer)];
    if (have != shift) {
      size_t from = starts[size_t(ref.buffer)];
      std::vector<char> content(buffer.begin() + long(from - guard + have),
                                buffer.end() - long(64 - have));
      std::fill(buffer.begin(), buffer.end(), guardByte);
      std::copy(content.begin(), content.end(),
                buffer.begin() + long(from - guard + shift));
      have = shift;
    }
    return buffer.data() + shift + starts[size_t(ref.buffer)] + ref.offset;
  }
  template <typename T> T *as(const Ref &ref) {
    return ref.buffer < 0 ? nullptr : reinterpret_cast<T *>(at(ref));
  }

  size_t size() const { return buffers.size(); }
  /// How far behind a multiple of 64 a buffer begins.
  int64_t shift(int32_t buffer) const {
    return int64_t(starts[size_t(buffer)] - guard);
  }
  /// The content of a buffer with its guards.
  std::vector<char> content(int32_t buffer) {
    char *begin = at({buffer, 0}) - guard;
    size_t bytes =
        buffers[size_t(buffer)].size() - 64 - (starts[size_t(buffer)] - guard);
    return {begin, begin + bytes};
  }

private:
  std::vector<std::vector<char>> buffers;
  std::vector<size_t> starts, shifts;
};

inline Command commandOf(CommandKind kind) {
  Command command;
  command.kind = kind;
  return command;
}

/// Runs the launches of a command on `memory`. Its scratch memory has guards,
/// too.
inline void execute(const Command &command, Memory &memory,
                    CheckStatus *status = {}, int32_t index = 0) {
  int64_t bytes = cuda::launchScratchBytes(command);
  ASSERT_GE(bytes, 0);
  std::vector<char> scratch(size_t(bytes) + 1024, 0x7b);
  char *begin = scratch.data() + 256;
  begin += (256 - reinterpret_cast<uintptr_t>(begin) % 256) % 256;
  auto at = [&](const Ref &ref) {
    return reinterpret_cast<uint64_t>(memory.at(ref));
  };
  cuda::Addresses addresses{at, reinterpret_cast<uint64_t>(begin),
                            reinterpret_cast<uint64_t>(status), index};
  llvm::Expected<std::vector<cuda::Launch>> launches =
      cuda::planLaunches(command, addresses);
  ASSERT_TRUE(!!launches) << llvm::toString(launches.takeError());
  for (const cuda::Launch &launch : *launches) {
    ASSERT_EQ(emulateLaunch(launch), "");
    launched.insert(launch.symbol);
  }
  for (char *p = scratch.data(); p != scratch.data() + scratch.size(); ++p)
    ASSERT_TRUE((p >= begin && p < begin + bytes) || *p == 0x7b)
        << "wrote beside scratch memory";
}

inline void expectSame(Memory &a, Memory &b) {
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(a.content(int32_t(i)) == b.content(int32_t(i)))
        << "buffer " << i;
}

class Random {
public:
  explicit Random(unsigned seed) : gen(seed) {}
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(gen);
  }
  bool chance(int one) { return pick(1, one) == 1; }
  std::vector<float> floats(int64_t n, float spread = 1.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> values(static_cast<size_t>(n));
    for (float &value : values)
      value = normal(gen);
    return values;
  }
  std::vector<char> bytes(int64_t n) {
    std::vector<char> values(static_cast<size_t>(n));
    for (char &value : values)
      value = char(gen());
    return values;
  }
  std::mt19937 gen;
};

} // namespace cleave::testing

#endif // CLEAVE_TEST_UNIT_TARGET_COMMANDEMULATION_H
