//===- AllRanks.cpp - Collectives of all processes ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session/AllRanks.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Communicator/ThreadWorld.h"
#include "cleave/Runtime/Session/Session.h"

#include <numeric>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;

Error AllRanks::exchange(const cleave_collective &what) {
  const cleave_communicator_api &api = *communicator->api;
  auto failed = [&] { return makeError(api.error(communicator)); };
  if (!everyone) {
    std::vector<int32_t> all(static_cast<size_t>(communicator->size));
    std::iota(all.begin(), all.end(), 0);
    everyone = api.group(communicator, all.data(), communicator->size);
    if (!everyone)
      return failed();
  }
  cleave_request *request = api.prepare(everyone, &what, 1);
  if (!request)
    return failed();
  bool ok = api.start(request) == 0 && api.wait(request) == 0;
  api.release(request);
  return ok ? Error::success() : failed();
}

Error AllRanks::allReduce(int32_t reduction, int32_t dtype, const void *src,
                          void *dst) {
  cleave_collective what{};
  what.kind = CLEAVE_ALL_REDUCE;
  what.reduction = reduction;
  what.dtype = dtype;
  what.src = src;
  what.dst = dst;
  return exchange(what);
}

Error AllRanks::broadcast(int root, const void *src, void *dst, int64_t size) {
  // Communicators may keep a message outside of the arena: that memory is
  // bounded.
  constexpr int64_t piece = int64_t(1) << 28;
  for (; size > piece; size -= piece) {
    if (Error error = broadcast(root, src, dst, piece))
      return error;
    src = static_cast<const char *>(src) + piece;
    dst = static_cast<char *>(dst) + piece;
  }
  cleave_collective what{};
  what.kind = CLEAVE_BROADCAST;
  what.dtype = CLEAVE_I8;
  what.dims = 1;
  what.sizes[0] = size;
  what.src_strides[0] = what.dst_strides[0] = 1;
  what.src = src;
  what.dst = dst;
  what.root = root;
  return exchange(what);
}

Expected<std::string> AllRanks::share(int root, llvm::StringRef text) {
  int64_t size = static_cast<int64_t>(text.size()), told = 0;
  if (Error error = broadcast(root, &size, &told, sizeof(size)))
    return error;
  // A rank that gives none does not read the source.
  std::string own = text.str(), received(static_cast<size_t>(told), 0);
  own.resize(std::max(own.size(), received.size()));
  if (told > 0)
    if (Error error = broadcast(root, own.data(), received.data(), told))
      return error;
  return received;
}

Expected<std::vector<std::string>> AllRanks::gather(llvm::StringRef text) {
  std::vector<std::string> all;
  for (int root = 0; root < communicator->size; ++root) {
    Expected<std::string> own = share(root, text);
    if (!own)
      return own.takeError();
    all.push_back(std::move(*own));
  }
  return all;
}

Expected<std::pair<int64_t, int64_t>> AllRanks::bounds(int64_t value) {
  int64_t low = 0, high = 0;
  if (Error error = allReduce(CLEAVE_MIN, CLEAVE_I64, &value, &low))
    return error;
  if (Error error = allReduce(CLEAVE_MAX, CLEAVE_I64, &value, &high))
    return error;
  return std::pair(low, high);
}

//===----------------------------------------------------------------------===//
// Those of a session
//===----------------------------------------------------------------------===//

AllRanks &Session::all() const {
  if (!everyone)
    everyone.emplace(first().getCommunicator());
  return *everyone;
}

Error Session::agree(
    llvm::ArrayRef<std::pair<std::string, std::string>> facts) const {
  return alone() ? Error::success() : all().agree(facts);
}

Expected<std::vector<std::string>> Session::gather(llvm::StringRef text) const {
  if (alone())
    return std::vector<std::string>{text.str()};
  return all().gather(text);
}

Expected<bool> Session::any(bool flag) const {
  Expected<int64_t> most = largest(flag);
  if (!most)
    return most.takeError();
  return *most != 0;
}

Expected<int64_t> Session::largest(int64_t value) const {
  int64_t most = value;
  if (!alone())
    if (Error error = all().allReduce(CLEAVE_MAX, CLEAVE_I64, &value, &most))
      return error;
  return most;
}

Error Session::ofLeader(Error own) const {
  if (alone())
    return own;
  std::string text = own ? llvm::toString(std::move(own)) : "";
  Expected<std::string> told = all().share(0, text);
  if (!told) {
    if (text.empty())
      return told.takeError();
    llvm::consumeError(told.takeError());
    return makeError(text);
  }
  if (!told->empty() && !isLeader())
    return makeError("rank 0: " + *told);
  return text.empty() ? Error::success() : makeError(text);
}
