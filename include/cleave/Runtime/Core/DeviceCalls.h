//===- DeviceCalls.h - Calls that all devices answer alike ------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CORE_DEVICECALLS_H
#define CLEAVE_RUNTIME_CORE_DEVICECALLS_H

#include "cleave/Runtime/Core/Device.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include <vector>

namespace cleave::runtime {

/// What ranks send in an entry, as `cleave_device_api::sent` gives it.
class SentLists {
public:
  /// Notes `communications` of an entry, whose texts must live on.
  template <typename Range>
  void note(llvm::StringRef entry, const Range &communications) {
    std::vector<cleave_sent> &list = lists[entry];
    list.clear();
    for (const auto &c : communications)
      list.push_back({c.kind.c_str(), c.axes.c_str(), c.count, c.exchanges,
                      c.elements, c.bytes, c.nanoseconds});
  }
  int64_t get(const char *entry, const cleave_sent **list) const {
    auto it = lists.find(entry);
    if (it == lists.end())
      return 0;
    *list = it->second.data();
    return static_cast<int64_t>(it->second.size());
  }

private:
  llvm::StringMap<std::vector<cleave_sent>> lists;
};

/// The functions of a table of calls that are the same for each class of
/// devices. `Device` has `of`, which gives the object of a call, `end`, which
/// keeps an error, and methods of the names of the calls.
template <typename Device> struct DeviceCalls {
  static int allocate(cleave_device *device, int64_t arena, int64_t tier) {
    Device &own = Device::of(device);
    return own.end(own.allocate(arena, tier));
  }
  static int read(cleave_device *device, int32_t place, int64_t offset,
                  void *to, int64_t bytes) {
    Device &own = Device::of(device);
    return own.end(own.read(place, offset, static_cast<char *>(to), bytes));
  }
  static int write(cleave_device *device, int32_t place, int64_t offset,
                   const void *from, int64_t bytes) {
    Device &own = Device::of(device);
    return own.end(
        own.write(place, offset, static_cast<const char *>(from), bytes));
  }
  static int zero(cleave_device *device, int32_t place, int64_t offset,
                  int64_t bytes) {
    Device &own = Device::of(device);
    return own.end(own.zero(place, offset, bytes));
  }
  static int run(cleave_device *device, const char *entry, cleave_stop *stop) {
    return Device::of(device).run(entry, *stop);
  }
  static int64_t sent(cleave_device *device, const char *entry,
                      const cleave_sent **list) {
    return Device::of(device).sent.get(entry, list);
  }
  static const char *error(cleave_device *device) {
    return Device::of(device).failure.c_str();
  }
  static void close(cleave_device *device) { delete &Device::of(device); }
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CORE_DEVICECALLS_H
