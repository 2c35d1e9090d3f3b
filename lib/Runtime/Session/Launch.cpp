//===- Launch.cpp - How ranks find each other -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Launch.h"
#include "cleave/Runtime/Core/ProgramIO.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <cstdlib>
#include <dlfcn.h>

using namespace cleave::runtime;

bool cleave::runtime::startedByMpi() {
  // Set for each process, not for the surrounding job.
  for (const char *name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(name))
      return true;
  return false;
}

int cleave::runtime::processesInAll() {
  for (const char *name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char *text = std::getenv(name))
      return std::max(0, std::atoi(text));
  return 0;
}

int cleave::runtime::processesHere() {
  // The last one is "2" or "2(x3)".
  for (const char *name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                           "SLURM_TASKS_PER_NODE"})
    if (const char *text = std::getenv(name))
      return std::max(1, std::atoi(text));
  return 1;
}

int cleave::runtime::numberHere() {
  for (const char *name :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (const char *text = std::getenv(name))
      return std::max(0, std::atoi(text));
  return 0;
}

std::string cleave::runtime::findPlugin(llvm::StringRef name) {
  Dl_info self;
  if (::dladdr(reinterpret_cast<void *>(&startedByMpi), &self) &&
      self.dli_fname) {
    llvm::SmallString<256> here(self.dli_fname);
    // A program's path is the one it was called by.
    if (!llvm::sys::path::has_parent_path(here))
      here = llvm::sys::fs::getMainExecutable(
          nullptr, reinterpret_cast<void *>(&startedByMpi));
    llvm::StringRef folder = llvm::sys::path::parent_path(here);
    for (llvm::StringRef way : {"", "../lib", "../../build/lib"}) {
      llvm::SmallString<256> path(folder);
      llvm::sys::path::append(path, way, name);
      if (llvm::sys::fs::exists(path))
        return std::string(path);
    }
  }
  return name.str();
}

llvm::Expected<Connect> cleave::runtime::openMpi() {
  const char *chosen = std::getenv("CLEAVE_MPI_PLUGIN");
  std::string path = chosen ? chosen : findPlugin("libcleave_mpi.so");
  // MPI loads its own plugins, which need its symbols. Never closed: MPI cannot
  // be started twice.
  void *handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!handle)
    return makeError(llvm::Twine("this process was started by MPI, but ") +
                     "Cleave's MPI plugin cannot be opened: " + ::dlerror() +
                     "; it is built where Open MPI is found");
  auto open = reinterpret_cast<cleave_communicator_open_function>(
      ::dlsym(handle, CLEAVE_COMMUNICATOR_OPEN));
  if (!open)
    return makeError(path + ": exports no " + CLEAVE_COMMUNICATOR_OPEN);
  return
      [open](const cleave_team &team) -> llvm::Expected<cleave_communicator *> {
        char error[512] = "";
        cleave_communicator *communicator =
            open(CLEAVE_COMMUNICATOR_ABI, &team, error, sizeof(error));
        if (!communicator)
          return makeError(error);
        return communicator;
      };
}
