//===- TokenData.h - Token data ---------------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_DATA_TOKENDATA_H
#define CLEAVE_RUNTIME_DATA_TOKENDATA_H

#include "cleave/Executable/Format/InputFile.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <string>
#include <vector>

namespace cleave::runtime {

/// A sequence of token ids in a file. It is read and not mapped: a file that
/// others shorten during a run is an error, and not the end of the process.
class TokenData {
public:
  /// Opens `.npy` (a C-ordered array of integers), `.bin` (raw little-endian
  /// integers of `binType`: "u8", "u16", "u32", "i32" or "i64"), or else text,
  /// which is encoded with the `tokenizers` JSON file `tokenizer`; encoded text
  /// is kept in the user's cache folder.
  static llvm::Expected<TokenData> open(llvm::StringRef path,
                                        llvm::StringRef tokenizer,
                                        llvm::StringRef binType);

  /// The file that was opened.
  const std::string &getPath() const { return path; }
  int64_t size() const { return count; }
  /// Reads `count` tokens from `first` on.
  llvm::Error read(int64_t first, int64_t count, int64_t *to) const;
  /// A hash of the tokens; above 64 MB, of their number and of samples spread
  /// over them.
  llvm::Expected<std::string> hash() const;

private:
  enum class Type : uint8_t { U8, U16, U32, I32, I64 };
  llvm::Error openNpy(llvm::StringRef path);
  /// Reads bytes of the tokens.
  llvm::Error readBytes(int64_t from, int64_t bytes, char *to) const;
  static llvm::Expected<std::string> encode(llvm::StringRef path,
                                            llvm::StringRef tokenizer);

  std::string path;
  InputFile file;
  /// Where tokens begin, and how many there are.
  int64_t start = 0, count = 0;
  Type type = Type::U16;
};

/// Divides tokens into windows and returns them in an order that is shuffled
/// anew in each epoch. A position is the number of windows returned since the
/// start of training, so that a checkpoint only needs this number.
class WindowOrder {
public:
  /// A window has `length` tokens, of which `overlap` are shared with the next
  /// one.
  WindowOrder(int64_t tokens, int64_t length, int64_t overlap, bool shuffle,
              uint64_t seed);

  /// The number of windows of an epoch.
  int64_t size() const { return windows; }
  /// The number of tokens at the end that do not fill a window.
  int64_t leftOver() const { return rest; }
  /// The first token of the window at a position.
  int64_t start(int64_t position);

private:
  void shuffleEpoch(int64_t epoch);

  int64_t length, overlap, windows = 0, rest = 0;
  bool shuffle;
  uint64_t seed;
  int64_t epoch = -1;
  std::vector<uint32_t> order;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_DATA_TOKENDATA_H
