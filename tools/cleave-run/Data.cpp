//===- Data.cpp - The sequences of a run ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/xxhash.h"

#include <algorithm>

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

/// A hash of a limited number of tokens, evenly spread: a file may be larger
/// than memory.
static Expected<std::string> digestOf(const TokenData &tokens) {
  constexpr int64_t most = 1 << 16;
  int64_t size = tokens.size(), stride = std::max<int64_t>(1, size / most);
  std::vector<int64_t> sample(
      static_cast<size_t>((size + stride - 1) / stride));
  if (stride == 1) {
    if (Error error = tokens.read(0, size, sample.data()))
      return std::move(error);
  } else {
    for (int64_t i = 0; i < size; i += stride)
      if (Error error =
              tokens.read(i, 1, &sample[static_cast<size_t>(i / stride)]))
        return std::move(error);
  }
  return llvm::utohexstr(llvm::xxh3_64bits(llvm::ArrayRef(
                             reinterpret_cast<const uint8_t *>(sample.data()),
                             sample.size() * sizeof(int64_t))),
                         /*LowerCase=*/true);
}

Error Trainer::openData() {
  auto open = [&](const std::string &path, std::optional<TokenData> &tokens,
                  std::optional<WindowOrder> &windows, bool shuffle) -> Error {
    Expected<TokenData> opened =
        TokenData::open(path, options.tokenizer, options.tokenType);
    if (!opened)
      return opened.takeError();
    tokens.emplace(std::move(*opened));
    windows.emplace(tokens->size(), length + shift, shift, shuffle,
                    static_cast<uint64_t>(seed));
    if (windows->size() == 0)
      return makeError(path + ": " + Twine(tokens->size()) +
                       " tokens do not fill one sequence of " +
                       Twine(length + shift));
    out() << path << ": " << tokens->size() << " tokens, " << windows->size()
          << " sequences of " << length;
    if (windows->leftOver())
      out() << "; the last " << windows->leftOver()
            << " tokens do not fill a sequence and are not used";
    out() << "\n";
    return Error::success();
  };
  if (command) {
    command->setSequences(length + shift, shift);
    commandRows.resize(static_cast<size_t>(batch * (length + shift)));
    out() << "data command: sequences of " << length
          << " tokens, in the order in which it writes them\n";
  } else {
    if (Error error = open(options.data, data, order, /*shuffle=*/true))
      return error;
    Expected<std::string> digest = digestOf(*data);
    if (!digest)
      return digest.takeError();
    dataDigest = *digest;
  }
  if (options.evalData.empty())
    return Error::success();
  if (!session->hasEntry("evaluate"))
    return makeError(options.artifact +
                     ": the program cannot evaluate; compile it with an "
                     "'evaluate' entry or leave out --eval-data");
  return open(options.evalData, evalTokens, evalOrder, /*shuffle=*/false);
}

//===----------------------------------------------------------------------===//
// Batches
//===----------------------------------------------------------------------===//

Error Trainer::fillBatch(const Sequences &sequences, int64_t rows) {
  auto take = [&](const Tensor *tensor, int64_t b, int64_t i,
                  int64_t &to) -> Error {
    to = sequences.token(b, i);
    if (!tensor || acceptsId(*tensor, to))
      return Error::success();
    std::string range = tensor->upperBound > 0
                            ? "0 to " + std::to_string(tensor->upperBound - 1)
                            : "integers of 32 bits";
    return makeError(sequences.place(b, i) + " is " + Twine(to) +
                     ", but input '" + tensor->name + "' takes " + range +
                     ": are the tokens those of this model's tokenizer?");
  };
  for (int64_t b = 0; b < batch; ++b) {
    int64_t row = std::min(b, rows - 1);
    for (int64_t i = 0; i < length; ++i) {
      size_t to = static_cast<size_t>(b * length + i);
      if (Error error = take(ids, row, i, idsBuffer[to]))
        return error;
      if (b >= rows && labels)
        labelsBuffer[to] = labels->ignoreIndex;
      else if (Error error = take(labels, row, i + shift, labelsBuffer[to]))
        return error;
    }
  }
  return setTokens();
}

Error Trainer::setTokens() {
  auto set = [&](const Tensor *tensor,
                 const std::vector<int64_t> &values) -> Error {
    if (!tensor)
      return Error::success();
    if (tensor->dtype == DType::I64)
      return session->setInput(tensor->name, values.data(), DType::I64,
                               tensor->shape);
    std::vector<int32_t> narrow(values.begin(), values.end());
    return session->setInput(tensor->name, narrow.data(), DType::I32,
                             tensor->shape);
  };
  if (Error error = set(ids, idsBuffer))
    return error;
  return set(labels, labelsBuffer);
}

Error Trainer::fillBatch(const TokenData &tokens, WindowOrder &windows,
                         int64_t at, int64_t rows) {
  int64_t size = length + shift;
  std::vector<int64_t> starts;
  windowTokens.resize(static_cast<size_t>(rows * size));
  for (int64_t b = 0; b < rows; ++b) {
    starts.push_back(windows.start(at + b));
    if (Error error = tokens.read(starts.back(), size,
                                  &windowTokens[static_cast<size_t>(b * size)]))
      return error;
  }
  return fillBatch({[&](int64_t b, int64_t i) {
                      return windowTokens[static_cast<size_t>(b * size + i)];
                    },
                    [&](int64_t b, int64_t i) {
                      return (tokens.getPath() + ": token " +
                              Twine(starts[static_cast<size_t>(b)] + i))
                          .str();
                    }},
                   rows);
}

//===----------------------------------------------------------------------===//
// A command's rows
//===----------------------------------------------------------------------===//

Expected<bool> Trainer::readCommand() {
  // Of several processes, others may wait for this one in the step.
  bool alone = session->getLocalRanks() == session->getRanks();
  Expected<bool> read = [&] {
    Busy busy = session->busy();
    return command->read(batch, commandRows.data(),
                         [&] { return alone && stopSignal() != 0; });
  }();
  if (std::string note = command->takeNote(); !note.empty())
    progress->note(note);
  if (!read || !*read || alone)
    return read;
  if (Error error =
          session->agree({{"the rows that the data command wrote (hash)",
                           llvm::utohexstr(command->getPosition().digest)}}))
    return std::move(error);
  return true;
}

Error Trainer::fillFromCommand() {
  int64_t size = length + shift;
  return fillBatch(
      {[&](int64_t b, int64_t i) {
         return commandRows[static_cast<size_t>(b * size + i)];
       },
       [&](int64_t b, int64_t i) {
         const CommandPosition &at = command->getPosition();
         return ("the data command: a token of epoch " + Twine(at.epoch)).str();
       }},
      batch);
}

Error Trainer::seekCommand(const TrainingState &state) {
  CommandPosition before;
  bool known = false;
  if (Expected<llvm::json::Value> run = parseJson(state.run)) {
    const llvm::json::Object *facts = run->getAsObject();
    std::optional<int64_t> epoch, sequence;
    if (facts) {
      epoch = facts->getInteger("data_epoch");
      sequence = facts->getInteger("data_sequence");
    }
    if (epoch && sequence && *epoch >= 0 && *sequence >= 0) {
      std::optional<llvm::StringRef> digest = facts->getString("data_digest");
      known = digest && !digest->getAsInteger(16, before.digest);
      before.epoch = *epoch;
      before.sequence = *sequence;
    }
  } else {
    llvm::consumeError(run.takeError());
  }
  // Another run's data are continued from the number of sequences used.
  if (!known)
    before = {0, state.dataPosition, 0};
  if (before.sequence)
    out() << "data command: reading the " << before.sequence
          << " sequences of epoch " << before.epoch
          << " that were used before\n";
  Busy busy = session->busy();
  Expected<std::string> difference =
      command->seek(before, known && !options.acceptChanges);
  if (!difference)
    return difference.takeError();
  if (!difference->empty())
    return makeError(resumeFrom + ": " + *difference +
                     "; --accept-changes goes on with what it writes");
  commandUsed = command->getPosition();
  return Error::success();
}
