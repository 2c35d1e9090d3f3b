//===- NcclBoard.h - Where members in several processes meet ----*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What stands for NCCL's network: a folder in the machine's memory for each
/// identity. Members put notes there, which all may read, and parcels, of which
/// the last reader takes the file away. A folder ends with its last member, or
/// when one aborts; those of processes that are gone are removed when another
/// identity is made.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TEST_FAKE_CUDA_NCCLBOARD_H
#define CLEAVE_TEST_FAKE_CUDA_NCCLBOARD_H

#include <cstddef>
#include <string>
#include <vector>

namespace fake {

class Board {
public:
  /// The path of a new folder, of the `number`-th identity of this process.
  static std::string make(size_t number);

  explicit Board(std::string path) : path(std::move(path)) {}

  /// What `member` says under a name; that of each of `members`, in order, and
  /// nothing until all have.
  void note(const char *name, int member, const std::string &text) const;
  std::vector<std::string> notes(const char *name, int members) const;

  /// For `readers` others.
  void send(const std::string &name, int member, int readers,
            const std::string &head, const void *data, size_t bytes) const;
  bool has(const std::string &name, int member) const;
  /// What was sent, once for each reader; both are empty if it is not there.
  void receive(const std::string &name, int member, size_t headBytes,
               std::string &head, std::vector<char> &data) const;

  void remove() const;

private:
  std::string file(const std::string &name, int member) const;

  std::string path;
};

} // namespace fake

#endif // CLEAVE_TEST_FAKE_CUDA_NCCLBOARD_H
