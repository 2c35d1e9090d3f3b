//===- Launch.cpp - How ranks find each other -----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Launch.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Communicator/SocketWorld.h"
#include "cleave/Runtime/Core/FindLibrary.h"
#include "cleave/Support/Patience.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/xxhash.h"

#include <cstdlib>
#include <dlfcn.h>
#include <optional>

using namespace cleave::runtime;

/// With MASTER_PORT, the first rank listens at the first free port of so many
/// behind it.
static constexpr int masterPorts = 16;

bool cleave::runtime::startedByMpi() {
  // Set for each process, not for the surrounding job.
  for (const char *name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(name))
      return true;
  return false;
}

/// The rank and the number of processes by variables, if both are set.
static std::optional<std::pair<const char *, const char *>> rankAndSize() {
  // A batch script of Slurm has a rank too, but no number of a step's tasks.
  constexpr std::pair<const char *, const char *> names[] = {
      {"RANK", "WORLD_SIZE"}, {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (auto [rank, size] : names)
    if (const char *own = std::getenv(rank), *all = std::getenv(size);
        own && all)
      return std::pair(own, all);
  // Started one by one, in a job whose steps are not those of srun.
  if (const char *own = std::getenv("SLURM_PROCID"),
      *all = std::getenv("SLURM_NTASKS");
      own && all && std::getenv("CLEAVE_PORT"))
    return std::pair(own, all);
  return std::nullopt;
}

bool cleave::runtime::startedByVariables() {
  if (startedByMpi())
    return false;
  auto found = rankAndSize();
  // What is no number is refused when ranks connect.
  int64_t size = 0;
  return found ? llvm::StringRef(found->second).getAsInteger(10, size) ||
                     size != 1
               : std::getenv("CLEAVE_PORT") != nullptr;
}

static int numberOf(std::initializer_list<const char *> names, int least,
                    int otherwise) {
  for (const char *name : names)
    if (const char *text = std::getenv(name))
      return std::max(least, std::atoi(text));
  return otherwise;
}

int cleave::runtime::processesInAll() {
  if (startedByMpi())
    return numberOf(
        {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 0, 0);
  auto found = rankAndSize();
  return found ? std::max(0, std::atoi(found->second)) : 0;
}

/// Where the first rank is: the address that was given.
static std::string firstHost() {
  for (const char *name : {"CLEAVE_ADDRESS", "MASTER_ADDR"})
    if (const char *text = std::getenv(name); text && *text)
      return text;
  return "localhost";
}

static bool isHere(llvm::StringRef host) {
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         host.starts_with("127.");
}

int cleave::runtime::processesHere() {
  if (startedByMpi())
    // The last one is "2" or "2(x3)".
    return numberOf({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                     "SLURM_TASKS_PER_NODE"},
                    1, 1);
  if (!startedByVariables())
    return 1;
  return numberOf({"LOCAL_WORLD_SIZE", "SLURM_TASKS_PER_NODE"}, 1,
                  isHere(firstHost()) ? std::max(1, processesInAll()) : 1);
}

int cleave::runtime::numberHere() {
  if (startedByMpi())
    return numberOf(
        {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}, 0,
        0);
  auto found = rankAndSize();
  int rank = found ? std::max(0, std::atoi(found->first)) : 0;
  return numberOf({"LOCAL_RANK", "SLURM_LOCALID"}, 0,
                  isHere(firstHost()) ? rank : 0);
}

//===----------------------------------------------------------------------===//
// Connections
//===----------------------------------------------------------------------===//

static llvm::Expected<Connect> openMpi() {
  const char *chosen = std::getenv("CLEAVE_MPI_PLUGIN");
  std::string path = chosen ? chosen : findLibrary("libcleave_mpi.so");
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

/// Reads a variable as an integer from `low` to `high`.
static llvm::Error readInteger(llvm::StringRef name, llvm::StringRef text,
                               int low, int high, int &value) {
  if (!text.getAsInteger(10, value) && value >= low && value <= high)
    return llvm::Error::success();
  return makeError(name + " is '" + text + "'; it must be an integer from " +
                   llvm::Twine(low) + " to " + llvm::Twine(high));
}

/// What the processes of this launch know and no others do: from the
/// environment, else from the launcher, else, if they are on several machines,
/// in a file of a folder that these share.
static llvm::Error findSecret(SocketLaunch &launch, llvm::StringRef name,
                              llvm::StringRef given) {
  constexpr size_t shortest = 16;
  launch.secret = given.str();
  if (const char *secret = std::getenv("CLEAVE_SECRET")) {
    launch.secret = secret;
    if (launch.secret.size() < shortest)
      return makeError("CLEAVE_SECRET is too short to be one: it must have at "
                       "least " +
                       llvm::Twine(shortest) + " characters");
  }
  if (!launch.secret.empty() || launch.local)
    return llvm::Error::success();
  llvm::SmallString<256> path;
  if (const char *folder = std::getenv("CLEAVE_SECRET_FOLDER")) {
    path = folder;
  } else if (const char *home = std::getenv("HOME"); home && *home) {
    path = home;
    llvm::sys::path::append(path, ".cache", "cleave");
  } else {
    return makeError("ranks on several machines need a secret: set "
                     "CLEAVE_SECRET to the same text in all processes, or "
                     "CLEAVE_SECRET_FOLDER to a folder that all machines "
                     "share");
  }
  uint64_t own = llvm::xxh3_64bits(
      (name + launch.host + ":" + llvm::Twine(launch.port)).str());
  llvm::sys::path::append(path, "launch-" + llvm::utohexstr(own, true));
  launch.secretFile = std::string(path);
  return llvm::Error::success();
}

/// What the environment says of the launch.
static llvm::Expected<SocketLaunch> launchByVariables(llvm::StringRef secret) {
  SocketLaunch launch;
  auto found = rankAndSize();
  if (!found)
    return makeError("CLEAVE_PORT is set, but not the number of this process "
                     "and of all: set RANK and WORLD_SIZE, or start it with "
                     "torchrun");
  bool torch = std::getenv("RANK") && std::getenv("WORLD_SIZE");
  if (llvm::Error error =
          readInteger(torch ? "WORLD_SIZE" : "the number of Slurm's tasks",
                      found->second, 1, 1 << 16, launch.size))
    return error;
  if (llvm::Error error =
          readInteger(torch ? "RANK" : "SLURM_PROCID", found->first, 0,
                      launch.size - 1, launch.rank))
    return error;
  launch.patienceSeconds = patienceSeconds();
  launch.host = firstHost();
  launch.processesHere = processesHere();
  launch.local = launch.processesHere == launch.size || isHere(launch.host);
  if (const char *port = std::getenv("CLEAVE_PORT")) {
    if (llvm::Error error =
            readInteger("CLEAVE_PORT", port, 1, 65535, launch.port))
      return error;
  } else if (const char *master = std::getenv("MASTER_PORT")) {
    // The launcher has that port itself.
    if (llvm::Error error = readInteger("MASTER_PORT", master, 1,
                                        65535 - masterPorts, launch.port))
      return error;
    ++launch.port;
    launch.ports = masterPorts;
  } else {
    return makeError(
        "this process is rank " + llvm::Twine(launch.rank) + " of " +
        llvm::Twine(launch.size) +
        (torch ? " (RANK, WORLD_SIZE)" : " (variables of Slurm)") +
        ", but nothing says where the ranks meet: set CLEAVE_PORT to a free "
        "port of the machine of rank 0, and CLEAVE_ADDRESS to its address if "
        "it is another machine; or start it with torchrun or mpirun; or set "
        "WORLD_SIZE=1 if it is no rank of several");
  }
  // Launches whose ports are neighbours, or that a launcher starts again.
  std::string name;
  for (const char *variable :
       {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
        "SLURM_JOB_ID", "SLURM_STEP_ID"})
    if (const char *text = std::getenv(variable))
      name += (llvm::Twine(variable) + "=" + text + ";").str();
  launch.key = llvm::xxh3_64bits(name);
  if (llvm::Error error = findSecret(launch, name, secret))
    return error;
  return launch;
}

/// The connections of this process, for all its sessions; they end with it.
static std::unique_ptr<SocketWorld> world;

static llvm::Expected<Connect> openSockets(llvm::StringRef secret,
                                           std::function<bool()> interrupted) {
  if (!world) {
    llvm::Expected<SocketLaunch> launch = launchByVariables(secret);
    if (!launch)
      return launch.takeError();
    launch->interrupted = std::move(interrupted);
    std::string error;
    world = SocketWorld::connect(*launch, error);
    if (!world)
      return makeError(error);
    std::atexit([] { world.reset(); });
  }
  return [](const cleave_team &team) -> llvm::Expected<cleave_communicator *> {
    std::string error;
    cleave_communicator *communicator = world->open(team, error);
    if (!communicator)
      return makeError(error);
    return communicator;
  };
}

llvm::Expected<Connect>
cleave::runtime::openProcesses(llvm::StringRef secret,
                               std::function<bool()> interrupted) {
  if (std::string wrong = patienceProblem(); !wrong.empty())
    return makeError(wrong);
  return startedByMpi() ? openMpi()
                        : openSockets(secret, std::move(interrupted));
}
