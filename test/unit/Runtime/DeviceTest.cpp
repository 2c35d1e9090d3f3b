//===- DeviceTest.cpp - Sessions over the interface of devices ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A session gives and takes tensors by copies alone: on a device whose memory
/// the host cannot address, everything is as on the processor, bit for bit. The
/// device of these tests is the processor behind such a wall, which also
/// watches the order of calls and the bounds of copies.
///
//===----------------------------------------------------------------------===//

#include "BigramSession.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/CPU/CpuDevice.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Support/FileSystem.h"
#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <thread>

using namespace cleave;
using namespace cleave::runtime;

namespace {

constexpr int64_t batch = 8, length = 32, vocabulary = 50, hidden = 16;

/// What the devices of a session saw.
struct Watch {
  std::atomic<int64_t> bytesIn{0}, bytesOut{0}, allocated{0}, open{0};
  /// Whether each run begins while the device is still at work.
  std::atomic<bool> followed{false};
  std::string breach;
};

struct ApartDevice : cleave_device {
  ApartDevice(cleave_device *inner, Watch &watch, int64_t memory)
      : cleave_device{&kApi}, inner(inner), watch(&watch), memory(memory) {
    ++watch.open;
  }

  static ApartDevice &of(cleave_device *device) {
    return *static_cast<ApartDevice *>(device);
  }
  const cleave_device_api *operator->() const { return inner->api; }
  void expect(bool holds, const char *what) const {
    if (!holds)
      watch->breach = what;
  }
  void within(int32_t place, int64_t offset, int64_t bytes) const {
    expect(offset >= 0 && bytes >= 0 &&
               offset + bytes <= (place == CLEAVE_TIER ? tier : arena),
           "a copy leaves its place");
    expect(!running, "a copy during a run");
  }

  static const cleave_device_api kApi;
  cleave_device *inner;
  Watch *watch;
  int64_t memory, arena = -1, tier = -1;
  bool prepared = false, running = false;
};

const cleave_device_api ApartDevice::kApi = {
    .capability =
        [](cleave_device *device, cleave_capability *what) {
          *what = {"apart", "test", of(device).memory, 100};
        },
    .allocate =
        [](cleave_device *device, int64_t arena, int64_t tier) {
          ApartDevice &own = of(device);
          own.expect(own.arena < 0, "memory is allocated twice");
          own.arena = arena;
          own.tier = tier;
          own.watch->allocated += arena;
          return own->allocate(own.inner, arena, tier);
        },
    .address = [](cleave_device *) -> char * { return nullptr; },
    .read =
        [](cleave_device *device, int32_t place, int64_t offset, void *to,
           int64_t bytes) {
          ApartDevice &own = of(device);
          own.within(place, offset, bytes);
          own.watch->bytesOut += bytes;
          return own->read(own.inner, place, offset, to, bytes);
        },
    .write =
        [](cleave_device *device, int32_t place, int64_t offset,
           const void *from, int64_t bytes) {
          ApartDevice &own = of(device);
          own.within(place, offset, bytes);
          own.watch->bytesIn += bytes;
          return own->write(own.inner, place, offset, from, bytes);
        },
    .zero =
        [](cleave_device *device, int32_t place, int64_t offset,
           int64_t bytes) {
          ApartDevice &own = of(device);
          own.within(place, offset, bytes);
          return own->zero(own.inner, place, offset, bytes);
        },
    .tune =
        [](cleave_device *device, const char *choices) {
          ApartDevice &own = of(device);
          own.expect(own.arena >= 0 && !own.prepared, "tuned out of turn");
          return own->tune(own.inner, choices);
        },
    .choices =
        [](cleave_device *device) {
          return of(device)->choices(of(device).inner);
        },
    .prepare =
        [](cleave_device *device, cleave_communicator *communicator,
           const char *choices) {
          ApartDevice &own = of(device);
          own.expect(own.arena >= 0 && !own.prepared, "prepared out of turn");
          own.prepared = true;
          return own->prepare(own.inner, communicator, choices);
        },
    .compare =
        [](cleave_device *device) {
          return of(device)->compare(of(device).inner);
        },
    .run =
        [](cleave_device *device, const char *entry, cleave_stop *stop) {
          ApartDevice &own = of(device);
          own.expect(own.prepared, "run before it is prepared");
          own.running = true;
          int stopped = own->run(own.inner, entry, stop);
          own.running = false;
          return stopped;
        },
    .facts =
        [](cleave_device *device, cleave_run_facts *facts) {
          of(device)->facts(of(device).inner, facts);
          facts->followed = of(device).watch->followed;
        },
    .sent =
        [](cleave_device *device, const char *entry, const cleave_sent **list) {
          return of(device)->sent(of(device).inner, entry, list);
        },
    .set_timing =
        [](cleave_device *device, int32_t on) {
          of(device)->set_timing(of(device).inner, on);
        },
    .start_trace =
        [](cleave_device *device, const char *entry, int64_t runs,
           int64_t origin) {
          of(device)->start_trace(of(device).inner, entry, runs, origin);
        },
    .trace =
        [](cleave_device *device, const cleave_event **list) {
          return of(device)->trace(of(device).inner, list);
        },
    .library_bytes =
        [](cleave_device *device) {
          return of(device)->library_bytes(of(device).inner);
        },
    .tier_failure =
        [](cleave_device *device) {
          return of(device)->tier_failure(of(device).inner);
        },
    .error =
        [](cleave_device *device) {
          return of(device)->error(of(device).inner);
        },
    .close =
        [](cleave_device *device) {
          ApartDevice &own = of(device);
          --own.watch->open;
          own->close(own.inner);
          delete &own;
        },
};

class DeviceTest : public testing::Test {
protected:
  void SetUp() override {
    ::setenv("CLEAVE_TUNING", "off", 1);
    ASSERT_FALSE(llvm::sys::fs::createUniqueDirectory("device", folder));
  }
  void TearDown() override {
    llvm::sys::fs::remove_directories(folder);
    EXPECT_EQ(watch.breach, "");
    EXPECT_EQ(watch.open, 0);
  }

  llvm::Expected<std::unique_ptr<Session>>
  tryMake(int64_t devices, bool apart, int64_t memory = -1, int sharing = 1) {
    SessionOptions options;
    options.ranksPerDevice = sharing;
    options.threads = 2;
    options.seed = 1;
    options.timing = true;
    if (apart)
      options.openDevice =
          [this, memory](
              const Artifact &artifact, int64_t rank, const ThreadTeam &team,
              const std::string &tier) -> llvm::Expected<cleave_device *> {
        auto opened = openCpuDevice(artifact, rank, team, tier);
        if (!opened)
          return opened.takeError();
        return new ApartDevice(*opened, watch, memory);
      };
    return Session::create(
        {test::makeBigram({batch, length, vocabulary, hidden, devices})},
        test::resolveBigram, options);
  }
  std::unique_ptr<Session> make(int64_t devices, bool apart) {
    auto session = tryMake(devices, apart);
    EXPECT_TRUE(bool(session)) << llvm::toString(session.takeError());
    return std::move(*session);
  }

  static double train(Session &session, int64_t index) {
    std::vector<int64_t> ids(batch * length), labels(batch * length);
    for (int64_t i = 0; i < batch * length; ++i) {
      ids[size_t(i)] = (i * 7 + i / 11 + index * 5) % vocabulary;
      labels[size_t(i)] = (ids[size_t(i)] * 3 + 1) % vocabulary;
    }
    std::vector<int64_t> shape = {batch, length};
    llvm::cantFail(session.setInput("ids", ids.data(), DType::I64, shape));
    llvm::cantFail(
        session.setInput("labels", labels.data(), DType::I64, shape));
    llvm::cantFail(session.setScalar("lr", 2.0));
    auto result = session.run("train");
    EXPECT_TRUE(bool(result)) << llvm::toString(result.takeError());
    return llvm::cantFail(session.getScalar("loss"));
  }

  /// The bytes of all parameters and state.
  static std::string state(Session &session) {
    std::string all;
    for (const Tensor &tensor : session.getProgram().tensors)
      if (tensor.role == Role::Parameter || tensor.role == Role::State) {
        std::string one(static_cast<size_t>(session.bytes(tensor)), '\0');
        llvm::cantFail(session.read(tensor, one.data()));
        all += one;
      }
    return all;
  }

  Watch watch;
  llvm::SmallString<128> folder;
};

TEST_F(DeviceTest, TrainsByCopiesAlone) {
  for (int64_t devices : {0, 1, 4}) {
    SCOPED_TRACE(devices);
    auto here = make(devices, false), apart = make(devices, true);
    for (Session *session : {here.get(), apart.get()})
      ASSERT_OK(session->initialiseRandomly(3));
    EXPECT_EQ(state(*here), state(*apart));
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(train(*here, i), train(*apart, i));
    EXPECT_EQ(state(*here), state(*apart));
    EXPECT_EQ(apart->data(*apart->find("embedding.weight")), nullptr);
    EXPECT_GT(watch.bytesIn, 0);
    EXPECT_GT(watch.bytesOut, 0);
    // Each rank has what it is told to hold.
    EXPECT_EQ(apart->getMemory().arena, here->getMemory().arena);
    EXPECT_EQ(apart->getSent("train").size(), here->getSent("train").size());
  }
}

TEST_F(DeviceTest, TimesOfRunsThatFollowEachOtherAddUp) {
  auto session = make(0, true);
  ASSERT_OK(session->initialiseRandomly(3));
  train(*session, 0);
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds pause(50);
  // The seconds of a run after a pause, and those of the call.
  auto run = [&] {
    std::this_thread::sleep_for(pause);
    Clock::time_point begin = Clock::now();
    auto result = session->run("train");
    EXPECT_TRUE(bool(result)) << llvm::toString(result.takeError());
    return std::pair(
        result->seconds,
        std::chrono::duration<double>(Clock::now() - begin).count());
  };
  auto [seconds, call] = run();
  EXPECT_LE(seconds, call);
  watch.followed = true;
  std::tie(seconds, call) = run();
  EXPECT_GE(seconds, std::chrono::duration<double>(pause).count());
}

TEST_F(DeviceTest, ChecksAndCheckpointsByCopiesAlone) {
  auto first = make(2, true);
  ASSERT_OK(first->initialiseRandomly(5));
  train(*first, 0);
  ASSERT_OK(first->checkFinite());
  llvm::SmallString<128> saved = folder;
  saved += "/checkpoint";
  ASSERT_OK(first->saveCheckpoint(saved, 4));
  double next = train(*first, 1);

  // On the same kind of device, on the processor, and handed over.
  for (bool apart : {true, false}) {
    auto other = make(2, apart);
    auto loaded = other->loadCheckpoint(saved);
    ASSERT_TRUE(bool(loaded)) << llvm::toString(loaded.takeError());
    EXPECT_EQ(train(*other, 1), next);
    EXPECT_EQ(state(*other), state(*first));
    auto third = make(2, !apart);
    auto rest = third->takeState(*other);
    ASSERT_TRUE(bool(rest)) << llvm::toString(rest.takeError());
    EXPECT_TRUE(rest->empty());
    EXPECT_EQ(state(*third), state(*first));
  }

  const Tensor &weight = *first->find("embedding.weight");
  std::vector<float> values(static_cast<size_t>(weight.numElements()), 1);
  values[3] = std::numeric_limits<float>::infinity();
  first->write(weight, values.data());
  EXPECT_EQ(llvm::toString(first->checkFinite()),
            "not finite: parameter 'embedding.weight' (1 of " +
                std::to_string(values.size()) + " elements)");
}

TEST_F(DeviceTest, StateIsReset) {
  auto session = make(2, true);
  ASSERT_OK(session->initialiseRandomly(5));
  for (const Tensor &tensor : session->getProgram().tensors)
    if (tensor.role == Role::State)
      session->write(
          tensor,
          std::string(static_cast<size_t>(session->bytes(tensor)), 1).data());
  session->resetTraining();
  for (const Tensor &tensor : session->getProgram().tensors)
    if (tensor.role == Role::State) {
      std::string bytes(static_cast<size_t>(session->bytes(tensor)), 1);
      ASSERT_OK(session->read(tensor, bytes.data()));
      EXPECT_EQ(bytes.find_first_not_of('\0'), std::string::npos);
    }
}

TEST_F(DeviceTest, CommandsAreTraced) {
  auto here = make(2, false), apart = make(2, true);
  std::vector<std::string> labels[2];
  for (Session *session : {here.get(), apart.get()}) {
    ASSERT_OK(session->initialiseRandomly(3));
    ASSERT_OK(session->startTrace("train", 2));
    for (int i = 0; i < 3; ++i)
      train(*session, i);
    for (const TraceEvent &event : session->getTrace(1))
      labels[session == apart.get()].push_back(std::to_string(event.run) +
                                               event.command->label);
  }
  EXPECT_FALSE(labels[0].empty());
  EXPECT_EQ(labels[0], labels[1]);
}

TEST_F(DeviceTest, TooLittleMemoryIsSaidBeforeAnyIsAllocated) {
  int64_t arena = make(2, true)->getProgram().arenaBytes;
  watch.allocated = 0;
  auto refusal = [&](int64_t memory, int sharing) {
    auto session = tryMake(2, true, memory, sharing);
    if (session)
      return std::string();
    EXPECT_EQ(watch.allocated, 0);
    return llvm::toString(session.takeError());
  };
  auto text = [](int64_t bytes) { return std::to_string(bytes); };
  EXPECT_EQ(refusal(arena + 99, 1),
            "apart has " + text(arena + 99) +
                " bytes of memory free, and the program needs " +
                text(arena + 100) + ": " + text(arena) +
                " for its arena, 100 for libraries and scratch memory");
  EXPECT_EQ(refusal(2 * arena + 199, 2),
            "apart has " + text(2 * arena + 199) +
                " bytes of memory free, and 2 ranks that share it need " +
                text(2 * arena + 200) + ": " + text(2 * arena) +
                " for arenas, 200 for libraries and scratch memory");
  EXPECT_EQ(refusal(arena + 100, 1), "");
  EXPECT_EQ(refusal(2 * arena + 200, 2), "");
}

TEST_F(DeviceTest, ADeviceThatDoesNotOpenEndsAllRanks) {
  SessionOptions options;
  options.openDevice = [](const Artifact &, int64_t rank, const ThreadTeam &,
                          const std::string &) {
    return llvm::Expected<cleave_device *>(
        makeError("no device for rank " + llvm::Twine(rank)));
  };
  auto session = Session::create(
      {test::makeBigram({batch, length, vocabulary, hidden, 2})},
      test::resolveBigram, options);
  ASSERT_FALSE(bool(session));
  EXPECT_TRUE(llvm::StringRef(llvm::toString(session.takeError()))
                  .contains("no device for rank"));
}

} // namespace
