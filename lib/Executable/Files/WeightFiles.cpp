//===- WeightFiles.cpp - Tensors in one file or several -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Files/WeightFiles.h"
#include "cleave/Executable/Files/CheckpointFolder.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

using namespace cleave::runtime;
using llvm::Expected;
using llvm::Twine;

namespace path = llvm::sys::path;
namespace fs = llvm::sys::fs;

/// Longer indices are refused before they are read.
static constexpr uint64_t maxIndexBytes = 100'000'000;

Expected<WeightFiles> WeightFiles::open(llvm::StringRef where) {
  llvm::SmallString<128> file(where);
  if (fs::is_directory(where)) {
    static constexpr llvm::StringLiteral names[] = {
        "model.safetensors", "model.safetensors.index.json"};
    auto is = [&](llvm::StringRef name) {
      file = where;
      path::append(file, name);
      return fs::exists(file);
    };
    if (llvm::none_of(names, is))
      return makeError(where + ": the folder holds neither " + names[0] +
                       " nor " + names[1]);
  }
  if (path::extension(file) == ".json")
    return openIndex(file);
  Expected<std::string> own = findWeightFile(file);
  if (!own)
    return own.takeError();
  Expected<SafetensorsFile> opened = SafetensorsFile::open(*own);
  if (!opened)
    return opened.takeError();
  WeightFiles all;
  all.files.push_back(std::move(*opened));
  return all;
}

Expected<WeightFiles> WeightFiles::openIndex(llvm::StringRef index) {
  auto fail = [&](const Twine &message) {
    return makeError(index + ": " + message);
  };
  uint64_t size = 0;
  if (std::error_code error = fs::file_size(index, size))
    return fail("cannot read: " + error.message());
  if (size > maxIndexBytes)
    return fail("an index of " + Twine(size) + " bytes is above the limit of " +
                Twine(maxIndexBytes));
  auto buffer = readFile(index);
  if (!buffer)
    return buffer.takeError();
  Expected<llvm::json::Value> value = parseJson((*buffer)->getBuffer());
  if (!value)
    return fail("not valid JSON: " + llvm::toString(value.takeError()));
  const llvm::json::Object *object = value->getAsObject();
  const llvm::json::Object *map =
      object ? object->getObject("weight_map") : nullptr;
  if (!map)
    return fail("not an index of weights: it has no object 'weight_map'");
  // The tensors of each file.
  std::map<std::string, llvm::StringMap<bool>> wanted;
  for (const auto &[key, item] : *map) {
    auto name = item.getAsString();
    if (!name || name->empty() || *name != path::filename(*name) ||
        *name == "." || *name == "..")
      return fail("the file of tensor '" + llvm::StringRef(key) +
                  "' is not the name of a file beside the index");
    wanted[name->str()][llvm::StringRef(key)] = true;
  }
  WeightFiles all;
  std::vector<std::string> problems;
  for (const auto &[name, tensors] : wanted) {
    llvm::SmallString<128> file(path::parent_path(index));
    path::append(file, name);
    Expected<SafetensorsFile> opened = SafetensorsFile::open(file);
    if (!opened)
      return fail(llvm::toString(opened.takeError()));
    for (const auto &tensor : tensors)
      if (!opened->find(tensor.first()))
        problems.push_back("'" + tensor.first().str() + "' is not in " + name);
    for (const SafetensorsFile::Entry &entry : opened->getEntries())
      if (!tensors.contains(entry.name))
        problems.push_back("'" + entry.name + "' of " + name +
                           " is not in the index");
    all.files.push_back(std::move(*opened));
  }
  llvm::sort(problems);
  if (!problems.empty())
    return fail("the index and its files differ: " +
                llvm::join(problems, "; "));
  return all;
}

WeightFiles::Found WeightFiles::find(llvm::StringRef name) const {
  for (const SafetensorsFile &file : files)
    if (const SafetensorsFile::Entry *entry = file.find(name))
      return {&file, entry};
  return {};
}

std::vector<std::string> WeightFiles::getNames() const {
  std::vector<std::string> names;
  for (const SafetensorsFile &file : files)
    for (const SafetensorsFile::Entry &entry : file.getEntries())
      names.push_back(entry.name);
  llvm::sort(names);
  return names;
}
