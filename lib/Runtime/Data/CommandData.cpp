//===- CommandData.cpp - Tokens that a command writes ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Data/CommandData.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Support/Patience.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/xxhash.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <utility>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;
using llvm::Twine;

/// Encodes documents, each a line with a JSON string, as lines of tokens. A
/// line that begins with "!" is its last one, a message.
static constexpr llvm::StringLiteral lineEncoder = R"py(
import json, sys

def end(message):
    print("!" + message, flush=True)
    sys.exit(1)

try:
    from tokenizers import Tokenizer
except ImportError:
    end("the package 'tokenizers' is missing (pip install tokenizers; "
        "CLEAVE_PYTHON names another interpreter)")
try:
    tokenizer = Tokenizer.from_file(sys.argv[1])
except Exception as error:
    end("cannot read the tokenizer %s: %s" % (sys.argv[1], error))
for line in sys.stdin.buffer:
    try:
        text = json.loads(line)
    except ValueError:
        text = None
    if not isinstance(text, str):
        end("with --tokenizer a row is a document as a JSON string, as "
            "json_quote(text) of SQLite and to_json(text) of PostgreSQL print it")
    print(*tokenizer.encode(text, add_special_tokens=False).ids)
)py";

CommandData::CommandData(std::string command, std::string tokenizer)
    : command(std::move(command)), tokenizer(std::move(tokenizer)) {
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof cores, &cores);
}

CommandData::~CommandData() { stop(); }

void CommandData::setSequences(int64_t wanted, int64_t shared) {
  length = wanted;
  overlap = shared;
}

Error CommandData::fail(const Twine &text) const {
  return makeError("the data command, row " + Twine(rows + 1) + " of epoch " +
                   Twine(position.epoch) + ": " + text);
}

//===----------------------------------------------------------------------===//
// Processes
//===----------------------------------------------------------------------===//

Error CommandData::startProcess(std::vector<std::string> words, int input,
                                int output) {
  std::vector<char *> arguments;
  for (std::string &word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::string epoch = "CLEAVE_EPOCH=" + std::to_string(position.epoch);
  std::vector<char *> environment{epoch.data()};
  for (char **entry = environ; *entry; ++entry)
    if (!StringRef(*entry).starts_with("CLEAVE_EPOCH="))
      environment.push_back(*entry);
  environment.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  if (input < 0)
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  else
    posix_spawn_file_actions_adddup2(&files, input, 0);
  posix_spawn_file_actions_adddup2(&files, output, 1);
  // A group of its own: Ctrl-C ends the run after a step, which needs no rows
  // that were not read yet; what the command has started ends with it.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP |
                                            POSIX_SPAWN_SETSIGMASK |
                                            POSIX_SPAWN_SETSIGDEF);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  // By which it ends when no more rows are read; and what this process ignores.
  for (int number : {SIGPIPE, SIGXFSZ, SIGCHLD})
    sigaddset(&signals, number);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setpgroup(&attributes,
                            processes.empty() ? 0 : processes.front());
  // This thread may be bound to a core that a rank computes on.
  cpu_set_t own;
  bool bound = ::sched_getaffinity(0, sizeof own, &own) == 0 &&
               ::sched_setaffinity(0, sizeof cores, &cores) == 0;
  pid_t process = 0;
  int error = ::posix_spawn(&process, words.front().c_str(), &files,
                            &attributes, arguments.data(), environment.data());
  if (bound)
    ::sched_setaffinity(0, sizeof own, &own);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error)
    return makeError("the data command: cannot run '" + words.front() +
                     "': " + std::strerror(error));
  processes.push_back(process);
  return Error::success();
}

Error CommandData::start() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC))
    return makeError(Twine("the data command: ") + std::strerror(errno));
  Error error = startProcess({"/bin/sh", "-c", command}, -1, ends[1]);
  ::close(ends[1]);
  pipe = ends[0];
  if (error || tokenizer.empty())
    return error;
  const char *wanted = std::getenv("CLEAVE_PYTHON");
  auto python = llvm::sys::findProgramByName(wanted ? wanted : "python3");
  if (!python)
    return makeError("the data command: encoding documents needs python3 with "
                     "the package 'tokenizers' (CLEAVE_PYTHON names another "
                     "interpreter); rows of tokens do not");
  int input = pipe;
  pipe = -1;
  if (::pipe2(ends, O_CLOEXEC)) {
    ::close(input);
    return makeError(Twine("the data command: ") + std::strerror(errno));
  }
  Error encoding = startProcess({*python, "-c", lineEncoder.str(), tokenizer},
                                input, ends[1]);
  ::close(input);
  ::close(ends[1]);
  pipe = ends[0];
  return encoding;
}

void CommandData::stop() {
  if (pipe >= 0)
    ::close(pipe);
  pipe = -1;
  if (processes.empty())
    return;
  ::kill(-processes.front(), SIGTERM);
  for (pid_t process : llvm::drop_begin(processes, endedProcesses)) {
    // Most end at once; one that does not is given a second. Nobody may know
    // any more how it ended, which does not matter here.
    for (int i = 0; ::waitpid(process, nullptr, WNOHANG) == 0; ++i) {
      if (i == 100)
        ::kill(-processes.front(), SIGKILL);
      ::usleep(10000);
    }
  }
  forgetProcesses();
}

void CommandData::forgetProcesses() {
  processes.clear();
  endedProcesses = 0;
  ends.clear();
}

//===----------------------------------------------------------------------===//
// Waiting
//===----------------------------------------------------------------------===//

static double nowSeconds() {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

void CommandData::beginWait() {
  waited = 0;
  lastLook = nowSeconds();
  saidWait = false;
}

Error CommandData::judgeWait(StringRef what) {
  // Time in which this process did not run is none.
  double now = nowSeconds(), most = patienceSeconds();
  waited += std::min(now - lastLook, 1.0);
  lastLook = now;
  if (waited >= most)
    return fail(what + " for " + Twine(patienceSeconds()) + " s; " +
                patienceHint());
  if (!saidWait && waited >= std::max(most / 10, 5.0)) {
    saidWait = true;
    std::fprintf(stderr, "the data command %s (for %.0f s, at most %.0f s)\n",
                 what.str().c_str(), waited, most);
  }
  return Error::success();
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

Error CommandData::endNumber() {
  if (number.empty())
    return Error::success();
  int64_t token;
  if (StringRef(number).getAsInteger(10, token))
    return fail("'" + number + "' is no token id");
  number.clear();
  tokens.push_back(token);
  ++total;
  return Error::success();
}

Error CommandData::parse(StringRef bytes) {
  for (char c : bytes) {
    if (inMessage && c != '\n') {
      message += c;
    } else if (inMessage) {
      return fail(message);
    } else if (llvm::isDigit(c) || (c == '-' && number.empty())) {
      number += c;
      inRow = true;
    } else if (c == '\n') {
      if (Error error = endNumber())
        return error;
      ++rows;
      inRow = false;
    } else if (StringRef(" \t\r,[]{}()").contains(c)) {
      if (Error error = endNumber())
        return error;
      inRow = true;
    } else if (c == '!' && !inRow && !tokenizer.empty()) {
      inMessage = true;
    } else {
      return fail("'" + number + (llvm::isPrint(c) ? c : '?') +
                  "' is no token id; a row is a line of integers, separated by "
                  "spaces, tabs or commas");
    }
    if (number.size() > 20)
      return fail("'" + number + "' is no token id");
  }
  return Error::success();
}

/// How a process ended, or "" if with status 0.
static std::string endOf(int status) {
  if (WIFSIGNALED(status))
    return "was ended by signal " + std::to_string(WTERMSIG(status));
  if (int code = WEXITSTATUS(status))
    return "ended with status " + std::to_string(code);
  return "";
}

Expected<CommandData::Filled>
CommandData::endCommand(llvm::function_ref<bool()> interrupted) {
  for (useconds_t pause = 50; endedProcesses < processes.size();) {
    int status = 0;
    pid_t found = ::waitpid(processes[endedProcesses], &status, WNOHANG);
    if (found == 0 || (found < 0 && errno == EINTR)) {
      if (interrupted())
        return Filled::Interrupted;
      if (Error error = judgeWait("has closed its output and has not ended"))
        return std::move(error);
      ::usleep(pause);
      pause = std::min<useconds_t>(2 * pause, 50000);
      continue;
    }
    // Where SIGCHLD is ignored, the system has forgotten it.
    if (ends.empty())
      ends = found < 0 ? std::string("ended in a way that is not known (") +
                             std::strerror(errno) + ")"
                       : endOf(status);
    ++endedProcesses;
  }
  ::close(pipe);
  pipe = -1;
  std::string how = ends;
  forgetProcesses();
  if (inMessage)
    return fail(message);
  if (!how.empty())
    return makeError("the data command " + how + " after " + Twine(rows) +
                     (rows == 1 ? " row" : " rows") + " of epoch " +
                     Twine(position.epoch) +
                     ": that is not the end of the data");
  if (Error error = endNumber())
    return std::move(error);
  rows += inRow;
  inRow = false;
  return Filled::End;
}

Expected<CommandData::Filled>
CommandData::fill(llvm::function_ref<bool()> interrupted) {
  char bytes[1 << 16];
  while (true) {
    // Rows without tokens are nothing to train on either.
    if (interrupted())
      return Filled::Interrupted;
    if (Error error = judgeWait("has written no token"))
      return std::move(error);
    struct pollfd ready = {pipe, POLLIN, 0};
    int found = ::poll(&ready, 1, /*milliseconds=*/100);
    if (found == 0 || (found < 0 && errno == EINTR))
      continue;
    ssize_t count = found < 0 ? -1 : ::read(pipe, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      return fail(Twine("cannot read: ") + std::strerror(errno));
    if (count == 0)
      return endCommand(interrupted);
    int64_t before = total;
    if (Error error = parse(StringRef(bytes, static_cast<size_t>(count))))
      return std::move(error);
    if (total == before)
      continue;
    beginWait();
    return Filled::Tokens;
  }
}

Error CommandData::endEpoch() {
  std::string has = (Twine(rows) + (rows == 1 ? " row" : " rows") + " with " +
                     Twine(total) + " tokens")
                        .str();
  if (position.sequence == 0)
    return makeError("the data command wrote " + has +
                     ", which do not fill one sequence of " + Twine(length));
  if (position.epoch == 0)
    note = "data command: an epoch has " + has + ", " +
           std::to_string(position.sequence) + " sequences" +
           (tokens.size() > static_cast<size_t>(overlap)
                ? "; the last " +
                      std::to_string(tokens.size() -
                                     static_cast<size_t>(overlap)) +
                      " tokens do not fill a sequence and are not used"
                : "");
  beginEpoch(position.epoch + 1);
  return Error::success();
}

void CommandData::beginEpoch(int64_t epoch) {
  position = {epoch, 0, 0};
  tokens.clear();
  first = 0;
  rows = total = 0;
  number.clear();
  inRow = inMessage = ended = false;
}

std::string CommandData::takeNote() { return std::exchange(note, ""); }

//===----------------------------------------------------------------------===//
// Sequences
//===----------------------------------------------------------------------===//

Expected<bool> CommandData::read(int64_t count, int64_t *to,
                                 llvm::function_ref<bool()> interrupted) {
  size_t size = static_cast<size_t>(length);
  beginWait();
  while (count > 0) {
    if (tokens.size() - first >= size) {
      llvm::ArrayRef<int64_t> sequence(tokens.data() + first, size);
      to = std::copy(sequence.begin(), sequence.end(), to);
      position.digest = position.digest * 0x9e3779b97f4a7c15u +
                        llvm::xxh3_64bits(llvm::ArrayRef(
                            reinterpret_cast<const uint8_t *>(sequence.data()),
                            size * sizeof(int64_t)));
      ++position.sequence;
      first += static_cast<size_t>(length - overlap);
      --count;
      continue;
    }
    tokens.erase(tokens.begin(),
                 tokens.begin() + static_cast<ptrdiff_t>(first));
    first = 0;
    if (ended)
      if (Error error = endEpoch())
        return std::move(error);
    if (pipe < 0)
      if (Error error = start())
        return std::move(error);
    Expected<Filled> filled = fill(interrupted);
    if (!filled)
      return filled.takeError();
    if (*filled == Filled::Interrupted)
      return false;
    // The last number may complete a sequence.
    ended = *filled == Filled::End;
  }
  return true;
}

Expected<std::string> CommandData::seek(const CommandPosition &wanted,
                                        bool compare) {
  stop();
  beginEpoch(wanted.epoch);
  std::vector<int64_t> sequence(static_cast<size_t>(length));
  for (int64_t i = 0; i < wanted.sequence; ++i) {
    Expected<bool> found = read(1, sequence.data(), [] { return false; });
    if (!found)
      return found.takeError();
    if (compare && position.epoch != wanted.epoch)
      return ("the data command wrote " + Twine(i) + " sequences in epoch " +
              Twine(wanted.epoch) + ", of which " + Twine(wanted.sequence) +
              " were used before")
          .str();
  }
  if (compare && position.digest != wanted.digest)
    return ("the first " + Twine(wanted.sequence) + " sequences of epoch " +
            Twine(wanted.epoch) +
            " that the data command writes are not those that were used before")
        .str();
  return "";
}
