//===- Resume.cpp - Resuming a run ----------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A checkpoint records the facts of its run. Resuming prints what differs, and
/// is refused if counts or tokens would get another meaning.
///
//===----------------------------------------------------------------------===//

#include "Trainer.h"
#include "cleave/Runtime/Core/FileIO.h"
#include "cleave/Runtime/Core/ProgramIO.h"
#include "cleave/Runtime/Session/Launcher.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/xxhash.h"

#include <charconv>

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

static std::string hex(uint64_t value) {
  return llvm::utohexstr(value, /*LowerCase=*/true);
}

/// A hash of a limited number of tokens, evenly spread: a file may be larger
/// than memory.
static std::string digest(const TokenData &tokens) {
  constexpr int64_t most = 1 << 16;
  int64_t size = tokens.size(), stride = std::max<int64_t>(1, size / most);
  std::vector<int64_t> sample;
  for (int64_t i = 0; i < size; i += stride)
    sample.push_back(tokens[i]);
  return hex(llvm::xxh3_64bits(
      llvm::ArrayRef(reinterpret_cast<const uint8_t *>(sample.data()),
                     sample.size() * sizeof(int64_t))));
}

static llvm::StringRef kindName(LearningRate::Kind kind) {
  return kind == LearningRate::Kind::Constant ? "constant"
         : kind == LearningRate::Kind::Linear ? "linear"
                                              : "cosine";
}

std::string Trainer::describeRun() const {
  llvm::json::Object facts{{"sequence_length", length},
                           {"label_shift", shift},
                           {"lr", options.learningRate.rate},
                           {"lr_schedule", kindName(options.learningRate.kind)},
                           {"warmup", options.learningRate.warmup},
                           {"steps", options.learningRate.steps},
                           {"min_lr", options.learningRate.minimum},
                           {"batch", batch}};
  if (command) {
    facts["data_command"] = llvm::json::fixUTF8(options.dataCommand);
    facts["data_epoch"] = commandUsed.epoch;
    facts["data_sequence"] = commandUsed.sequence;
    facts["data_digest"] = hex(commandUsed.digest);
  } else {
    facts["data"] = llvm::json::fixUTF8(options.data);
    facts["data_tokens"] = data->size();
    facts["data_digest"] = digest(*data);
  }
  if (!options.tokenizer.empty())
    if (auto file = llvm::MemoryBuffer::getFile(options.tokenizer))
      facts["tokenizer"] = hex(
          llvm::xxh3_64bits(llvm::arrayRefFromStringRef((*file)->getBuffer())));
  if (Expected<llvm::json::Value> own =
          parseJson(session->getProgram().metadata)) {
    if (const llvm::json::Object *object = own->getAsObject()) {
      if (const llvm::json::Value *precision = object->get("precision"))
        facts["precision"] = *precision;
      if (const llvm::json::Object *optimizer = object->getObject("optimizer"))
        for (const auto &[name, value] : *optimizer)
          facts[("optimizer " + llvm::StringRef(name)).str()] = value;
    }
  } else {
    llvm::consumeError(own.takeError());
  }
  std::string text;
  llvm::raw_string_ostream(text) << llvm::json::Value(std::move(facts));
  return text;
}

Error Trainer::compareRun(const TrainingState &state) const {
  // A checkpoint of an earlier version of this program, or of another one.
  if (state.run.empty())
    return Error::success();
  Expected<llvm::json::Value> before = parseJson(state.run),
                              now = parseJson(describeRun());
  if (!before || !now) {
    llvm::consumeError(before.takeError());
    llvm::consumeError(now.takeError());
    return Error::success();
  }
  const llvm::json::Object &old = *before->getAsObject(),
                           &own = *now->getAsObject();
  auto text = [](const llvm::json::Value *value) -> std::string {
    if (!value)
      return "none";
    // In as few digits as tell it apart: 0.2, not 0.20000000000000001.
    if (std::optional<double> number = value->getAsNumber()) {
      char digits[32];
      return std::string(digits,
                         std::to_chars(digits, digits + 32, *number).ptr);
    }
    return llvm::formatv("{0}", *value).str();
  };
  auto differs = [&](llvm::StringRef name) {
    const llvm::json::Value *a = old.get(name), *b = own.get(name);
    return a && b ? *a != *b : bool(a) != bool(b);
  };
  // The position in the data counts sequences of one length; the tokenizer
  // defines the tokens of a text; labels define what is learnt.
  struct {
    const char *name, *why;
  } fixed[] = {
      {"sequence_length", "the data would continue at another position"},
      {"label_shift", "the model would learn another task"},
      {"tokenizer", "tokens would mean other text"},
      {"optimizer kind",
       "its state would be read as that of another optimizer"}};
  for (const auto &[name, why] : fixed)
    if (differs(name) && !options.acceptChanges)
      return makeError(resumeFrom + ": the run had " + name + " " +
                       text(old.get(name)) + ", and this one has " +
                       text(own.get(name)) + ": " + why +
                       "; --accept-changes resumes nevertheless");
  std::string changes;
  auto add = [&](llvm::StringRef name) {
    changes += "  " + name.str() + ": " + text(own.get(name)) + ", was " +
               text(old.get(name)) + "\n";
  };
  auto isOfData = [](llvm::StringRef name) {
    return llvm::is_contained(
        {"data", "data_tokens", "data_digest", "data_epoch", "data_sequence"},
        name);
  };
  for (const auto &[name, value] : own)
    if (differs(name) && !isOfData(name))
      add(name);
  for (const auto &[name, value] : old)
    if (!own.get(name) && !isOfData(name))
      add(name);
  // The same tokens may be in another file. What a command writes is compared
  // when it is read.
  bool both = old.get("data_command") && command;
  if (!both && (differs("data_digest") || differs("data_tokens"))) {
    if (!options.acceptChanges)
      return makeError(
          resumeFrom + ": the run had other data (" +
          (old.get("data_command")
               ? "of the command " + text(old.get("data_command"))
               : text(old.get("data")) + ", " + text(old.get("data_tokens")) +
                     " tokens") +
          "), and " + Twine(state.dataPosition) +
          " sequences of it were used; --accept-changes continues with " +
          (command ? "the data command" : options.data) +
          " from that number on");
    if (!command)
      add("data");
  }
  if (!changes.empty())
    out() << "changed since the checkpoint:\n" << changes;
  return Error::success();
}

/// Quoted as a shell reads it.
static std::string quoted(llvm::StringRef word) {
  if (!word.empty() && word.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                           "XYZ0123456789_-+=./,:@%") == llvm::StringRef::npos)
    return word.str();
  std::string text = "'";
  for (char c : word)
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string Trainer::resumeCommand(llvm::StringRef checkpoint) const {
  std::string command;
  std::string count = std::to_string(session->getRanks());
  if (session->getLocalRanks() != session->getRanks() && startedByMpi())
    command = "mpirun -n " + count + " ";
  else if (session->getLocalRanks() != session->getRanks() &&
           processesHere() == session->getRanks())
    command = "torchrun --nproc-per-node " + count + " --no-python -- ";
  const std::vector<std::string> &words = options.words;
  for (size_t i = 0; i < words.size(); ++i) {
    llvm::StringRef name = words[i];
    bool flag = i > 0 && name.consume_front("-");
    name.consume_front("-");
    llvm::StringRef own = name.split('=').first;
    if (flag && (own == "weights" || own == "resume")) {
      i += !name.contains('=');
      continue;
    }
    if (flag && (own == "random-init" || own == "accept-changes"))
      continue;
    command += quoted(words[i]) + " ";
  }
  return command + "--resume " + quoted(checkpoint);
}
