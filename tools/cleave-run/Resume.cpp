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
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Session/Launcher.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/SHA256.h"

#include <charconv>
#include <random>

using namespace cleave::run;
using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

static std::string hex(uint64_t value) {
  return llvm::utohexstr(value, /*LowerCase=*/true);
}

std::string cleave::run::redacted(llvm::StringRef command) {
  // Assignments before it may have spaces in quotes.
  llvm::StringRef rest = command.ltrim();
  while (true) {
    size_t name =
        rest.find_if_not([](char c) { return llvm::isAlnum(c) || c == '_'; });
    if (name == 0 || name == llvm::StringRef::npos || rest[name] != '=')
      break;
    char quote = 0;
    size_t i = name + 1;
    for (; i < rest.size() && (quote || !llvm::isSpace(rest[i])); ++i) {
      char c = rest[i];
      if (c == '\\' || c == '$' || c == '`')
        return "...";
      if (quote ? c == quote : c == '\'' || c == '"')
        quote = quote ? 0 : c;
    }
    if (quote)
      return "...";
    rest = rest.drop_front(i).ltrim();
  }
  llvm::StringRef word = rest.take_while([](char c) {
    return llvm::isAlnum(c) || llvm::StringRef("_./+-").contains(c);
  });
  bool whole = word.size() == rest.size() || llvm::isSpace(rest[word.size()]) ||
               llvm::StringRef(";|&").contains(rest[word.size()]);
  llvm::StringRef program = word.rsplit('/').second;
  program = program.empty() ? word : program;
  return whole && !program.empty() ? program.str() + " ..." : "...";
}

std::string cleave::run::saltedHash(llvm::StringRef text,
                                    llvm::StringRef salt) {
  std::string own = salt.str();
  if (own.empty()) {
    std::random_device random;
    own = hex(uint64_t(random()) << 32 | random());
  }
  auto digest = [&](llvm::StringRef bytes) {
    return llvm::SHA256::hash(llvm::arrayRefFromStringRef(bytes));
  };
  auto hash = digest(own + text.str());
  for (int i = 0; i < 100000; ++i) {
    llvm::SHA256 next;
    next.update(llvm::ArrayRef<uint8_t>(hash));
    next.update(own);
    hash = next.final();
  }
  return own + ":" + llvm::toHex(hash, /*LowerCase=*/true);
}

static llvm::StringRef kindName(LearningRate::Kind kind) {
  return kind == LearningRate::Kind::Constant ? "constant"
         : kind == LearningRate::Kind::Linear ? "linear"
                                              : "cosine";
}

std::string Trainer::describeRun() const {
  llvm::json::Object facts{
      {"sequence_length", length},
      {"label_shift", shift},
      {"lr", options.learningRate.rate},
      {"lr_schedule", kindName(options.learningRate.kind)},
      {"warmup", static_cast<int64_t>(options.learningRate.warmup)},
      {"steps", options.learningRate.steps},
      {"min_lr", options.learningRate.minimum},
      {"batch", batch}};
  if (command) {
    // The command may have passwords.
    facts["data_command"] = redacted(options.dataCommand);
    facts["data_command_hash"] = commandHash;
    facts["data_epoch"] = commandUsed.epoch;
    facts["data_sequence"] = commandUsed.sequence;
    facts["data_digest"] = hex(commandUsed.digest);
  } else {
    facts["data"] = llvm::json::fixUTF8(options.data);
    facts["data_tokens"] = data->size();
    facts["data_digest"] = dataDigest;
  }
  if (!options.tokenizer.empty())
    facts["tokenizer"] = tokenizerHash;
  if (Expected<llvm::json::Value> own =
          parseJson(session->getProgram().metadata)) {
    if (const llvm::json::Object *object = own->getAsObject()) {
      // What this run was told goes before what the program says of itself.
      for (const auto &[name, value] : *object)
        if (name != "optimizer")
          facts.try_emplace(name, value);
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
  Expected<llvm::json::Value> before = parseJson(state.run);
  if (!before)
    return makeError(resumeFrom + ": " + llvm::toString(before.takeError()));
  if (!before->getAsObject())
    return makeError(resumeFrom + ": 'run' of training.json is no JSON object");
  llvm::json::Object &old = *before->getAsObject();
  Expected<llvm::json::Value> now = parseJson(describeRun());
  if (!now)
    return now.takeError();
  llvm::json::Object &own = *now->getAsObject();
  // Hashes of commands are compared with one salt. Earlier versions have
  // written the command itself.
  auto saltOf = [](llvm::StringRef hash) { return hash.split(':').first; };
  if (std::optional<llvm::StringRef> hash =
          old.getString("data_command_hash")) {
    if (command)
      own["data_command_hash"] = saltedHash(options.dataCommand, saltOf(*hash));
  } else if (auto words = old.getString("data_command")) {
    std::string whole = words->str();
    old["data_command_hash"] = saltedHash(whole, saltOf(commandHash));
    old["data_command"] = redacted(whole);
  }
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
    if (name == "data_command_hash") {
      // Its text is not printed, and a program of another name is said anyway.
      if (command && !differs("data_command"))
        changes += "  data_command: other arguments\n";
      return;
    }
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
    if (flag && own == "data-command") {
      // Not as it is: it may have passwords, and this is printed.
      command += "--data-command '" + redacted(options.dataCommand) + "' ";
      i += !name.contains('=');
      continue;
    }
    command += quoted(words[i]) + " ";
  }
  return command + "--resume " + quoted(checkpoint);
}
