//===- RowTrial.cpp - Drawn rows to all members ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommunicatorTrial.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

using Random = std::mt19937_64;
using Bytes = std::vector<uint8_t>;
/// The rows that member i has for member j.
using Counts = std::vector<std::vector<int64_t>>;

static int64_t draw(Random &random, int64_t low, int64_t high) {
  return low +
         static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

namespace {

/// Where one member sends rows from, and where it receives them.
struct Offsets {
  std::vector<int64_t> sends{0}, receives{0};

  Offsets(const Counts &counts, size_t member) {
    for (size_t i = 0; i < counts.size(); ++i) {
      sends.push_back(sends.back() + counts[member][i]);
      receives.push_back(receives.back() + counts[i][member]);
    }
  }
};

/// A drawn collective of all ranks, the same at each.
struct Drawn {
  std::vector<int32_t> members;
  int32_t dtype = CLEAVE_F32;
  std::vector<int64_t> row;
  size_t rowBytes = 1;
  /// Rows held, and room.
  int64_t held = 0, bound = 0;

  Drawn(Random &random, int32_t ranks) {
    members.resize(static_cast<size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    std::shuffle(members.begin(), members.end(), random);
    constexpr int32_t types[] = {CLEAVE_F64, CLEAVE_F32, CLEAVE_BF16,
                                 CLEAVE_I64, CLEAVE_I8};
    constexpr size_t bytes[] = {8, 4, 2, 8, 1};
    int64_t type = draw(random, 0, 4);
    dtype = types[type];
    rowBytes = bytes[type];
    for (int64_t dims = draw(random, 0, 2); dims > 0; --dims) {
      row.push_back(draw(random, 1, 9));
      rowBytes *= static_cast<size_t>(row.back());
    }
    held = draw(random, 0, 40);
    // At least those of all to one.
    bound = held * ranks + draw(random, 0, 5);
  }

  /// Uneven, none, all to one, all of each to itself, or as many as there is
  /// room for.
  Counts drawCounts(Random &random) const {
    size_t n = members.size();
    Counts counts(n, std::vector<int64_t>(n, 0));
    int64_t how = draw(random, 0, 4), one = draw(random, 0, int64_t(n) - 1);
    for (size_t i = 0; i < n; ++i)
      for (int64_t r = 0; how != 1 && r < held; ++r) {
        int64_t to = how == 2   ? one
                     : how == 3 ? static_cast<int64_t>(i)
                                : draw(random, 0, int64_t(n));
        if (to < static_cast<int64_t>(n))
          ++counts[i][static_cast<size_t>(to)];
      }
    return counts;
  }

  cleave_collective collective(bool back) const {
    cleave_collective what{};
    what.kind = CLEAVE_ALL_TO_ALL_ROWS;
    what.dtype = dtype;
    what.dims = static_cast<int32_t>(row.size()) + 1;
    what.sizes[0] = back ? bound : held;
    what.bound = back ? held : bound;
    std::copy(row.begin(), row.end(), what.sizes + 1);
    int64_t stride = 1;
    for (int i = what.dims; i-- > 0; stride *= what.sizes[i])
      what.src_strides[i] = what.dst_strides[i] = stride;
    return what;
  }

  Bytes rowsOf(uint64_t seed, size_t member) const {
    Random random(seed * 64 + member);
    Bytes bytes(static_cast<size_t>(held) * rowBytes);
    for (uint8_t &byte : bytes)
      byte = static_cast<uint8_t>(random());
    return bytes;
  }
};

} // namespace

/// The rows that member `me` receives, one by one.
static Bytes expectedRows(const Drawn &drawn, const Counts &counts,
                          uint64_t seed, size_t me) {
  Bytes result(static_cast<size_t>(drawn.bound) * drawn.rowBytes, 0);
  size_t to = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    Bytes rows = drawn.rowsOf(seed, i);
    auto from = static_cast<size_t>(Offsets(counts, i).sends[me]);
    for (int64_t r = 0; r < counts[i][me]; ++r, ++from, ++to)
      std::copy_n(rows.begin() + static_cast<long>(from * drawn.rowBytes),
                  drawn.rowBytes,
                  result.begin() + static_cast<long>(to * drawn.rowBytes));
  }
  return result;
}

std::string cleave::test::runRowTrial(cleave_communicator *communicator,
                                      uint64_t seed) {
  const cleave_communicator_api &api = *communicator->api;
  Random random(seed);
  Drawn drawn(random, communicator->size);
  auto wrong = [&](const std::string &what) {
    return "rank " + std::to_string(communicator->rank) + ", seed " +
           std::to_string(seed) + ": " + what + ": " + api.error(communicator);
  };
  size_t me =
      static_cast<size_t>(std::find(drawn.members.begin(), drawn.members.end(),
                                    communicator->rank) -
                          drawn.members.begin());
  cleave_group *group = api.group(communicator, drawn.members.data(),
                                  static_cast<int32_t>(drawn.members.size()));
  if (!group)
    return wrong("the group cannot be made");
  Bytes rows(static_cast<size_t>(drawn.held) * drawn.rowBytes),
      received(static_cast<size_t>(drawn.bound) * drawn.rowBytes),
      returned(rows.size());
  Offsets offsets(Counts(drawn.members.size(),
                         std::vector<int64_t>(drawn.members.size(), 0)),
                  me);
  cleave_collective there = drawn.collective(false),
                    back = drawn.collective(true);
  there.src = rows.data();
  there.dst = received.data();
  there.send_offsets = back.receive_offsets = offsets.sends.data();
  there.receive_offsets = back.send_offsets = offsets.receives.data();
  back.src = received.data();
  back.dst = returned.data();
  cleave_request *go = api.prepare(group, &there, 1),
                 *come = go ? api.prepare(group, &back, 1) : nullptr;
  if (!go || !come || api.barrier(group))
    return wrong("the request cannot be made");
  // The numbers are others each time.
  for (uint64_t time = 0; time < 4; ++time) {
    Counts counts = drawn.drawCounts(random);
    Offsets now(counts, me);
    std::copy(now.sends.begin(), now.sends.end(), offsets.sends.begin());
    std::copy(now.receives.begin(), now.receives.end(),
              offsets.receives.begin());
    Bytes mine = drawn.rowsOf(seed + time, me);
    std::copy(mine.begin(), mine.end(), rows.begin());
    std::fill(received.begin(), received.end(), 0xa5);
    std::fill(returned.begin(), returned.end(), 0x5a);
    if (api.start(go) || api.wait(go))
      return wrong("rows cannot be sent");
    if (received != expectedRows(drawn, counts, seed + time, me))
      return wrong("other rows were received");
    if (api.start(come) || api.wait(come))
      return wrong("rows cannot be sent back");
    // Rows that were not sent come back as 0.
    Bytes expected = rows;
    std::fill(expected.begin() +
                  offsets.sends.back() * static_cast<long>(drawn.rowBytes),
              expected.end(), 0);
    if (returned != expected)
      return wrong("other rows came back");
  }
  api.release(go);
  api.release(come);
  return "";
}

std::string cleave::test::runRowFault(cleave_communicator *communicator,
                                      const std::string &fault) {
  const cleave_communicator_api &api = *communicator->api;
  size_t n = static_cast<size_t>(communicator->size),
         me = static_cast<size_t>(communicator->rank);
  std::vector<int32_t> members(n);
  std::iota(members.begin(), members.end(), 0);
  // Each has two rows for each.
  Offsets offsets(Counts(n, std::vector<int64_t>(n, 2)), me);
  std::vector<float> rows(2 * n, 1.0f), received(2 * n, 7.0f);
  cleave_collective what{};
  what.kind = CLEAVE_ALL_TO_ALL_ROWS;
  what.dtype = CLEAVE_F32;
  what.dims = 1;
  what.sizes[0] = what.bound = static_cast<int64_t>(2 * n);
  what.src_strides[0] = what.dst_strides[0] = 1;
  what.src = rows.data();
  what.dst = received.data();
  what.send_offsets = offsets.sends.data();
  what.receive_offsets = offsets.receives.data();
  if (fault == "room")
    --what.bound;
  bool mine = me == 1;
  if (fault == "other" && mine)
    --offsets.sends[n];
  if (fault == "held" && mine)
    offsets.sends[n] += 3;
  if (fault == "negative" && mine)
    offsets.receives[1] = -1;
  if (fault == "huge" && mine)
    offsets.receives[1] = INT64_MIN;
  if (fault == "begin" && mine)
    offsets.sends[0] = 1;
  cleave_group *group =
      api.group(communicator, members.data(), static_cast<int32_t>(n));
  cleave_request *request = group ? api.prepare(group, &what, 1) : nullptr;
  if (!request)
    return std::string("no request: ") + api.error(communicator);
  bool ended = !api.start(request) && !api.wait(request);
  std::string text = ended ? "rows were sent" : api.error(communicator);
  // Who failed first is up to chance: all find the same.
  if (size_t at = text.find(": "); at != std::string::npos)
    text = text.substr(at + 2);
  for (float value : received)
    if (value != 7.0f)
      text += ", and a row was written";
  api.release(request);
  return text;
}
