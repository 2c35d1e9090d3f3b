//===- CommandData.h - Tokens that a command writes -------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_DATA_COMMANDDATA_H
#define CLEAVE_RUNTIME_DATA_COMMANDDATA_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <sched.h>
#include <string>
#include <sys/types.h>
#include <vector>

namespace cleave::runtime {

/// Where a reader of a command's rows is: what a checkpoint needs to continue.
struct CommandPosition {
  /// The run of the command, from 0; each is an epoch.
  int64_t epoch = 0;
  /// The sequences read in this epoch, and a hash of them.
  int64_t sequence = 0;
  uint64_t digest = 0;
};

/// Sequences of the tokens that a command writes, in its order. At its end it
/// is started again, for the next epoch; it may end only with status 0.
///
/// It writes lines, each a row: the tokens of a document, as decimal integers
/// separated by spaces, tabs or commas, also within brackets. With a tokenizer
/// it writes documents, each a line with a JSON string. The tokens of the rows
/// of an epoch are joined, and cut into sequences.
class CommandData {
public:
  /// `command` is run by /bin/sh, when sequences are first read, on the cores
  /// that this thread may use now; `tokenizer` is a JSON file, or empty.
  CommandData(std::string command, std::string tokenizer);
  CommandData(const CommandData &) = delete;
  CommandData &operator=(const CommandData &) = delete;
  /// Ends the command.
  ~CommandData();

  /// Sequences have `length` tokens, of which `overlap` are shared with the
  /// next one.
  void setSequences(int64_t length, int64_t overlap);

  /// Reads `count` sequences, one after another into `to`, across the ends of
  /// epochs. False if `interrupted`, which is asked while the command writes
  /// no tokens, says so.
  llvm::Expected<bool> read(int64_t count, int64_t *to,
                            llvm::function_ref<bool()> interrupted);

  /// Starts the command for the epoch of `position`, and reads as many
  /// sequences as were read before. With `compare`, returns how they differ
  /// from those, or that the epoch has fewer, if so; else "".
  llvm::Expected<std::string> seek(const CommandPosition &position,
                                   bool compare);

  const CommandPosition &getPosition() const { return position; }

  /// What an epoch had, once after the end of the first one; else "".
  std::string takeNote();

private:
  llvm::Error start();
  llvm::Error startProcess(std::vector<std::string> words, int input,
                           int output);
  void stop();
  void forgetProcesses();
  /// A wait for the command begins; it fails when it has lasted for as long as
  /// ranks wait for each other (Patience.h), and says what it waits for before.
  void beginWait();
  llvm::Error judgeWait(llvm::StringRef what);
  /// What a read of the pipe gave.
  enum class Filled : uint8_t { Tokens, End, Interrupted };
  llvm::Expected<Filled> fill(llvm::function_ref<bool()> interrupted);
  llvm::Error parse(llvm::StringRef bytes);
  llvm::Error endNumber();
  llvm::Expected<Filled> endCommand(llvm::function_ref<bool()> interrupted);
  llvm::Error endEpoch();
  void beginEpoch(int64_t epoch);
  llvm::Error fail(const llvm::Twine &message) const;

  std::string command, tokenizer;
  int64_t length = 0, overlap = 0;
  CommandPosition position;
  std::string note;
  /// The cores for the command.
  cpu_set_t cores;

  /// The command, and what encodes its documents; the first leads the group.
  std::vector<pid_t> processes;
  /// How many of them have ended, and how the first of those did that failed.
  size_t endedProcesses = 0;
  std::string ends;
  /// Seconds for which no token has come, when that was last looked at, and
  /// whether it was said.
  double waited = 0, lastLook = 0;
  bool saidWait = false;
  /// The pipe from the last process, or -1.
  int pipe = -1;

  /// Tokens of this epoch that are in no sequence yet, from `first` on.
  std::vector<int64_t> tokens;
  size_t first = 0;
  /// Rows and tokens of this epoch.
  int64_t rows = 0, total = 0;
  /// The number that is being read, and a message of the encoder.
  std::string number, message;
  bool inRow = false, inMessage = false;
  /// Whether the command has ended, and the epoch has not yet.
  bool ended = false;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_DATA_COMMANDDATA_H
