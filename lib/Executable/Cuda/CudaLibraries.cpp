//===- CudaLibraries.cpp - Where NVIDIA's libraries are -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Cuda/CudaLibraries.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <link.h>

using namespace cleave::runtime;
namespace fs = llvm::sys::fs;
namespace path = llvm::sys::path;

static std::vector<std::string> chosenFolders() {
  std::vector<std::string> folders;
  llvm::SmallVector<llvm::StringRef> parts;
  const char *chosen = std::getenv("CLEAVE_CUDA_LIBRARIES");
  llvm::SplitString(chosen ? chosen : "", parts, ":");
  for (llvm::StringRef part : parts)
    folders.push_back(part.str());
  return folders;
}

/// Adds `folder` and all of `steps`, each a name or a prefix and "*".
static void addMatches(const llvm::Twine &folder,
                       llvm::ArrayRef<llvm::StringRef> steps,
                       std::vector<std::string> &found) {
  std::string here = folder.str();
  if (!fs::is_directory(here))
    return;
  if (steps.empty()) {
    found.push_back(here);
    return;
  }
  llvm::StringRef step = steps.front();
  if (!step.consume_back("*"))
    return addMatches(here + "/" + step, steps.drop_front(), found);
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(here, error), end; it != end && !error;
       it.increment(error))
    if (path::filename(it->path()).starts_with(step))
      names.push_back(it->path());
  std::sort(names.begin(), names.end());
  for (const std::string &name : names)
    addMatches(name, steps.drop_front(), found);
}

/// The file that has this code: a tool, or a module of Python.
static std::string ownFile() {
  Dl_info info;
  struct link_map *map = nullptr;
  if (!::dladdr1(reinterpret_cast<void *>(&ownFile), &info,
                 reinterpret_cast<void **>(&map), RTLD_DL_LINKMAP) ||
      !map)
    return "";
  llvm::SmallString<256> file;
  // The program itself has no name here.
  if (fs::real_path(*map->l_name ? map->l_name : "/proc/self/exe", file))
    return "";
  return std::string(file);
}

/// Adds the packages of the Python environment that this code is part of: a
/// tool in its "bin", a module in its "site-packages", or either in a build
/// folder beside the ".venv" of `make dependencies`.
static void addOwnEnvironment(std::vector<std::string> &folders) {
  std::string file = ownFile();
  llvm::StringRef folder = path::parent_path(file);
  for (int level = 0; level < 4 && folder.size() > 1; ++level) {
    for (llvm::StringRef part : {"", "/.venv"})
      addMatches(folder + part,
                 {"lib", "python3*", "site-packages", "nvidia", "*", "lib"},
                 folders);
    if (path::filename(folder) == "site-packages")
      addMatches(folder, {"nvidia", "*", "lib"}, folders);
    folder = path::parent_path(folder);
  }
}

static std::vector<std::string> installedFolders() {
  std::vector<std::string> folders;
  const char *home = std::getenv("CUDA_HOME");
  addMatches(home ? home : "/usr/local/cuda", {"lib64"}, folders);
  if (const char *python = std::getenv("VIRTUAL_ENV"))
    addMatches(python,
               {"lib", "python3*", "site-packages", "nvidia", "*", "lib"},
               folders);
  addOwnEnvironment(folders);
  return folders;
}

std::vector<std::string> cleave::runtime::cudaLibraryFolders() {
  std::vector<std::string> folders = chosenFolders();
  for (std::string &folder : installedFolders())
    folders.push_back(std::move(folder));
  return folders;
}

std::vector<std::string> cleave::runtime::cudaHeaderFolders() {
  std::vector<std::string> headers;
  for (llvm::StringRef folder : cudaLibraryFolders()) {
    llvm::SmallString<256> own(path::parent_path(folder));
    path::append(own, "include");
    if (fs::is_directory(own))
      headers.push_back(std::string(own));
  }
  return headers;
}

llvm::Expected<void *>
cleave::runtime::openCudaLibrary(llvm::StringRef name,
                                 llvm::StringRef purpose) {
  std::string why;
  auto open = [&](llvm::StringRef file) {
    void *handle = ::dlopen(file.str().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle && why.empty())
      why = ::dlerror();
    return handle;
  };
  auto openIn = [&](const std::string &folder) -> void * {
    llvm::SmallString<256> file(folder);
    path::append(file, name);
    return fs::exists(file) ? open(file) : nullptr;
  };
  // What is chosen is not replaced.
  for (const std::string &folder : chosenFolders()) {
    if (void *handle = openIn(folder))
      return handle;
    if (!why.empty())
      return makeError(purpose + " needs " + name +
                       ", which cannot be opened where $CLEAVE_CUDA_LIBRARIES "
                       "has it: " +
                       why);
  }
  for (const std::string &folder : installedFolders())
    if (void *handle = openIn(folder))
      return handle;
  if (void *handle = open(name))
    return handle;
  return makeError(purpose + " needs " + name +
                   ", which cannot be opened: " + why +
                   "; $CLEAVE_CUDA_LIBRARIES names the folders of "
                   "NVIDIA's libraries");
}

void *cleave::runtime::findFunction(void *library, const char *name) {
  return ::dlsym(library, name);
}

llvm::Error CudaFunctions::check(llvm::StringRef name) const {
  if (!missing)
    return llvm::Error::success();
  return makeError(name + " has no " + missing);
}
