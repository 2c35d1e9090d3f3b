//===- CheckpointFiles.cpp - Names and files of checkpoints ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Files/CheckpointFiles.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Path.h"

#include <cerrno>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;
namespace fs = llvm::sys::fs;
namespace sys_path = llvm::sys::path;

std::string checkpoint::inside(StringRef folder, StringRef name) {
  llvm::SmallString<128> path(folder);
  sys_path::append(path, name);
  return path.str().str();
}

Error checkpoint::cannotWrite(StringRef path, int error) {
  return makeError(path + ": cannot write: " + std::strerror(error));
}

Error checkpoint::cannotRemove(StringRef path, int error) {
  return makeError(path + ": cannot remove: " + std::strerror(error));
}

bool checkpoint::isOurs(StringRef name) {
  StringRef stem = name;
  if (size_t at = name.rfind(".tmp-"); at != StringRef::npos)
    if (StringRef end = name.drop_front(at + 5);
        end.size() == 8 && llvm::all_of(end, llvm::isHexDigit))
      stem = name.take_front(at);
  if (stem == kTrainingFile)
    return true;
  stem.consume_back(kNext);
  return llvm::is_contained(kWeightFiles, stem);
}

Expected<std::vector<std::string>> checkpoint::list(StringRef folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error, /*follow_symlinks=*/false), end;
       !error && it != end; it.increment(error))
    names.push_back(sys_path::filename(it->path()).str());
  if (error)
    return makeError(folder + ": cannot read: " + error.message());
  llvm::sort(names);
  return names;
}

bool checkpoint::isItself(StringRef path, fs::file_type type) {
  fs::file_status status;
  (void)fs::status(path, status, /*follow=*/false); // sets the type, too
  return status.type() == type;
}

Error checkpoint::removeName(StringRef path) {
  if (::unlink(path.str().c_str()) != 0 && errno != ENOENT)
    return cannotRemove(path, errno);
  return Error::success();
}

Error checkpoint::removeOurs(StringRef folder) {
  Expected<std::vector<std::string>> names = list(folder);
  if (!names)
    return names.takeError();
  for (const std::string &name : *names)
    if (isOurs(name))
      if (Error error = removeName(inside(folder, name)))
        return error;
  return Error::success();
}

Error checkpoint::removeFolder(StringRef folder) {
  if (Error error = removeOurs(folder))
    return error;
  if (::rmdir(folder.str().c_str()) != 0 && errno != ENOENT &&
      errno != ENOTEMPTY && errno != EEXIST)
    return cannotRemove(folder, errno);
  return Error::success();
}

std::string checkpoint::nameBeside(StringRef target, StringRef what) {
  llvm::SmallString<128> model(target), name;
  model += ".";
  model += what;
  model += ".%%%%%%%%";
  do
    fs::createUniquePath(model, name, /*MakeAbsolute=*/false);
  while (fs::exists(name));
  return name.str().str();
}

std::string checkpoint::hashOfFacts(const llvm::json::Object &facts) {
  llvm::json::Object others = facts;
  others.erase("hash");
  std::string text;
  llvm::raw_string_ostream(text) << llvm::json::Value(std::move(others));
  return hashOf(text);
}

std::optional<FileFacts> checkpoint::factsOf(StringRef name,
                                             const llvm::json::Object &facts) {
  const llvm::json::Object *files = facts.getObject("files"),
                           *own = files ? files->getObject(name) : nullptr;
  if (!own)
    return std::nullopt;
  return FileFacts{static_cast<uint64_t>(own->getInteger("bytes").value_or(-1)),
                   own->getString("xxh3_128_of_mib").value_or("").str()};
}

bool checkpoint::isFile(const std::string &path, const FileFacts &facts) {
  uint64_t bytes = 0;
  if (fs::file_size(path, bytes) || bytes != facts.bytes)
    return false;
  Expected<FileFacts> own = hashFile(path);
  if (own)
    return own->hash == facts.hash;
  llvm::consumeError(own.takeError()); // as one that is not there
  return false;
}
