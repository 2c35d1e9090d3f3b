//===- Session.cpp - A program with its memory and state ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session/Session.h"
#include "Launch.h"
#include "RankThreads.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Runtime/CPU/Workspace.h"
#include "cleave/Runtime/Communicator/ThreadWorld.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/xxhash.h"

#include <chrono>
#include <cstdlib>
#include <malloc.h>
#include <set>
#include <sys/resource.h>
#include <unistd.h>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

//===----------------------------------------------------------------------===//
// Creation
//===----------------------------------------------------------------------===//

Session::Session(Artifact artifactIn, const SessionOptions &options)
    : artifact(std::move(artifactIn)), choices(options.contractions),
      seed(options.seed) {
  for (const Tensor &tensor : getProgram().tensors) {
    names[tensor.name] = &tensor;
    for (const std::string &alias : tensor.aliases)
      names[alias] = &tensor;
  }
}

Session::~Session() {
  // A team belongs to the thread of its rank.
  if (threads)
    threads->run([&](size_t rank) { ranks[rank].reset(); });
}

Error Session::onRanks(llvm::function_ref<Error(size_t)> body) {
  std::vector<std::string> messages(ranks.size());
  threads->run([&](size_t rank) {
    if (Error error = body(rank))
      messages[rank] = llvm::toString(std::move(error));
  });
  // Ranks usually fail for the same reason.
  std::vector<std::string> distinct;
  for (std::string &message : messages)
    if (!message.empty() && !llvm::is_contained(distinct, message))
      distinct.push_back(std::move(message));
  if (distinct.empty())
    return Error::success();
  return makeError(llvm::join(distinct, "; "));
}

/// "key<tab>name" lines.
static std::string textOf(const std::map<std::string, std::string> &choices) {
  std::string text;
  for (const auto &[key, name] : choices)
    text += key + '\t' + name + '\n';
  return text;
}

/// An option that has no effect on this kind of device was meant for another.
static Error checkOptions(const Program &program,
                          const SessionOptions &options) {
  if (!program.isForGpu() && !options.openDevice && options.ranksPerDevice != 1)
    return makeError("--ranks-per-device (ranks_per_device) is of programs for "
                     "GPUs, and this one is for the processor: leave it out");
  if (program.isForGpu() && !options.offloadFolder.empty())
    return makeError("--offload-dir (offload_dir) is of programs for the "
                     "processor: for a GPU, what is offloaded is in memory of "
                     "the host; leave it out");
  return Error::success();
}

Error Session::startRanks(const SessionOptions &options) {
  const Program &program = getProgram();
  if (Error error = checkOptions(program, options))
    return error;
  int64_t devices = deviceCount(program.mesh);
  bool processes = options.launch == Launch::Processes ||
                   (options.launch == Launch::Detect && startedAsRank());
  Connect connectProcess;
  if (processes) {
    Expected<Connect> opened = openProcesses();
    if (!opened)
      return opened.takeError();
    connectProcess = std::move(*opened);
  }
  // 1. The ranks of this process, and the resources of each.
  size_t count = processes ? 1 : static_cast<size_t>(devices);
  int sharing = processes ? processesHere() : 1, cores = ThreadTeam::cores();
  // OMP_NUM_THREADS is already that of one process.
  int wanted = options.threads > 0              ? options.threads
               : std::getenv("OMP_NUM_THREADS") ? ThreadTeam::defaultThreads()
                                                : cores / sharing;
  // Beside a GPU they fill and convert what is on the host.
  int most = program.isForGpu() ? Program::kMaxThreads : program.threads;
  int each = std::clamp(wanted / static_cast<int>(count), 1, most);
  int64_t all = int64_t(each) * static_cast<int64_t>(count) * sharing;
  bool pin = all == cores && all > 1 && sharing == 1;
  if (!processes)
    world = std::make_unique<ThreadWorld>(static_cast<int>(count), cores);

  // 2. Communicators and devices.
  ranks.resize(count);
  stopped.resize(count);
  threads = std::make_unique<RankThreads>(count);
  Error error = onRanks([&](size_t rank) -> Error {
    RankOptions rankOptions;
    rankOptions.threads = each;
    rankOptions.firstCore = pin ? static_cast<int>(rank) * each : -1;
    rankOptions.pinCaller = rank > 0 || options.pinCaller;
    rankOptions.offloadFolder = options.offloadFolder;
    rankOptions.ordinal = (processes ? numberHere() : static_cast<int>(rank)) /
                          std::max(1, options.ranksPerDevice);
    rankOptions.openDevice = options.openDevice;
    Connect connect = connectProcess;
    if (!processes)
      connect = [&](const cleave_team &team) {
        return world->connect(static_cast<int>(rank), team);
      };
    Expected<std::unique_ptr<Rank>> created =
        Rank::create(artifact, rankOptions, connect);
    if (!created)
      return created.takeError();
    ranks[rank] = std::move(*created);
    return Error::success();
  });
  if (error)
    return error;
  auto facts = options.facts;
  facts.insert(
      facts.end(),
      {{"the program (hash)", artifact.getProgramHash()},
       {"the artifact (hash)", artifact.getFileHash()},
       {"the seed", std::to_string(seed)},
       {"--ranks-per-device", std::to_string(options.ranksPerDevice)},
       {"choices of contractions (hash)",
        llvm::utohexstr(llvm::xxh3_64bits(textOf(options.contractions)),
                        /*LowerCase=*/true)}});
  if (Error error = agree(facts))
    return error;
  if (getRanks() != devices)
    return makeError("the program is for " + Twine(devices) +
                     (devices == 1 ? " device" : " devices") +
                     ", but this launch has " + Twine(getRanks()) +
                     " processes; start it with mpirun -n " + Twine(devices) +
                     " or torchrun --nproc-per-node " + Twine(devices));

  // 3. Memory. No rank has allocated any before all have asked what is free.
  if (Error error = checkMemory(processes && options.ranksPerDevice > 1))
    return error;
  if (Error error =
          onRanks([&](size_t rank) { return ranks[rank]->allocate(); }))
    return error;

  // 4. Entries. Replicas must round alike, so all ranks use the methods that
  //    the first one has found to be fastest for contractions.
  if (Error error = chooseImplementations())
    return error;
  std::string known = textOf(choices);
  Error unready = onRanks(
      [&](size_t rank) { return ranks[rank]->prepare(known, options.timing); });
  // Processes with different collectives would deadlock, or receive wrong data.
  // Threads compare when they prepare.
  if (!unready && !world)
    unready = ranks.front()->compare();
#ifdef __GLIBC__
  // Returns to the system the memory that reading the program and tuning took.
  malloc_trim(0);
#endif
  return unready;
}

/// What ranks need of the device that they share must be free there.
Error Session::checkMemory(bool shared) const {
  struct Need {
    int64_t ranks = 0, arena = 0, outside = 0;
  };
  // 1. By device: of all ranks where processes share some, else of those here.
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  auto nameOf = [&](const Rank &rank) {
    return std::string(host) + " " + std::to_string(rank.getOrdinal());
  };
  std::map<std::string, Need> needs;
  auto add = [&](llvm::StringRef name, int64_t arena, int64_t outside) {
    Need &need = needs[name.str()];
    ++need.ranks;
    need.arena += arena;
    need.outside += outside;
  };
  std::string own;
  for (const std::unique_ptr<Rank> &rank : ranks) {
    int64_t arena = rank->getProgram().arenaBytes,
            outside = rank->getCapability().outside;
    if (!shared)
      add(nameOf(*rank), arena, outside);
    own += nameOf(*rank) + '\t' + std::to_string(arena) + '\t' +
           std::to_string(outside);
  }
  if (shared) {
    Expected<std::vector<std::string>> all = gather(own);
    if (!all)
      return all.takeError();
    for (const std::string &text : *all) {
      llvm::SmallVector<llvm::StringRef, 3> parts;
      llvm::SplitString(text, parts, "\t");
      int64_t arena = 0, outside = 0;
      if (parts.size() != 3 || parts[1].getAsInteger(10, arena) ||
          parts[2].getAsInteger(10, outside))
        return makeError("ranks do not tell each other what memory they need");
      add(parts[0], arena, outside);
    }
  }
  // 2. What is free, as the first rank there has found it.
  std::set<std::string> seen;
  for (const std::unique_ptr<Rank> &rank : ranks) {
    const cleave_capability &device = rank->getCapability();
    std::string name = nameOf(*rank);
    const Need &need = needs[name];
    int64_t all = need.arena + need.outside;
    if (!seen.insert(name).second || device.memory < 0 || all <= device.memory)
      continue;
    std::string who = need.ranks > 1 ? std::to_string(need.ranks) +
                                           " ranks that share it need "
                                     : "the program needs ";
    return makeError(Twine(device.name) + " has " + Twine(device.memory) +
                     " bytes of memory free, and " + who + Twine(all) + ": " +
                     Twine(need.arena) + " for " +
                     (need.ranks > 1 ? "arenas" : "its arena") + ", " +
                     Twine(need.outside) + " for libraries and scratch memory");
  }
  return Error::success();
}

Expected<std::unique_ptr<Session>>
Session::start(Artifact artifact, const SessionOptions &options) {
  std::unique_ptr<Session> session(new Session(std::move(artifact), options));
  if (Error error = session->startRanks(options)) {
    std::string message = llvm::toString(std::move(error));
    session->fail(message);
    return makeError(message);
  }
  session->setLossScale(std::nullopt);
  session->writeValues();
  return session;
}

Expected<std::unique_ptr<Session>>
Session::open(llvm::StringRef path, const SessionOptions &options) {
  Expected<Artifact> artifact = Artifact::open(path);
  if (!artifact)
    return artifact.takeError();
  auto session = start(std::move(*artifact), options);
  if (!session)
    return makeError(path + ": " + llvm::toString(session.takeError()));
  return session;
}

Expected<std::unique_ptr<Session>>
Session::create(std::vector<Program> positions, SymbolResolver resolver,
                const SessionOptions &options) {
  Expected<Artifact> artifact =
      Artifact::create(std::move(positions), std::move(resolver));
  if (!artifact)
    return artifact.takeError();
  return start(std::move(*artifact), options);
}

void Session::fail(llvm::StringRef message) {
  if (ranks.empty() || !ranks.front())
    return;
  cleave_communicator *communicator = ranks.front()->getCommunicator();
  communicator->api->fail(communicator, message.str().c_str());
}

int Session::getThreads() const {
  return first().getTeam().size() * getRanks();
}

/// The first rank of each pipeline position, one after another, with the
/// choices of those before it; the others take them over.
Error Session::chooseImplementations() {
  std::set<int64_t> seen;
  std::map<std::string, std::string> used;
  for (int64_t number = 0; number < getRanks(); ++number) {
    if (!seen.insert(positionOf(getProgram(), number)).second)
      continue;
    std::string own;
    Error failed = onRanks([&](size_t rank) -> Error {
      if (ranks[rank]->number() != number)
        return Error::success();
      Expected<std::string> made = ranks[rank]->tune(textOf(choices));
      if (!made)
        return made.takeError();
      own = std::move(*made);
      return Error::success();
    });
    if (failed)
      return failed;
    if (!alone()) {
      Expected<std::string> received =
          all().share(static_cast<int>(number), own);
      if (!received)
        return received.takeError();
      own = std::move(*received);
    }
    llvm::SmallVector<llvm::StringRef> lines;
    llvm::SplitString(own, lines, "\n");
    for (llvm::StringRef line : lines) {
      auto [key, name] = line.rsplit('\t');
      choices[key.str()] = used[key.str()] = name.str();
    }
  }
  // Those of another program are not kept.
  choices = std::move(used);
  return Error::success();
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

/// Page faults of this process so far.
static int64_t countPageFaults() {
  rusage usage;
  return ::getrusage(RUSAGE_SELF, &usage) == 0
             ? int64_t(usage.ru_minflt) + usage.ru_majflt
             : 0;
}

Expected<std::optional<Session::Outcome>>
Session::execute(llvm::StringRef entry) const {
  std::string name = entry.str();
  threads->run([&](size_t rank) { stopped[rank] = ranks[rank]->run(name); });
  // Of checks that have failed here, the first of the largest severity.
  auto weight = [](const Stop &stop) {
    return !stop.own ? 0 : stop.room ? 3 : stop.skips ? 1 : 2;
  };
  const Stop *why = nullptr;
  for (const std::optional<Stop> &stop : stopped) {
    if (stop && stop->broken)
      return makeError(stop->message);
    if (stop && (!why || weight(*stop) > weight(*why)))
      why = &*stop;
  }
  if (!why)
    return std::nullopt;
  return explain(*why);
}

Expected<Session::Outcome> Session::explain(const Stop &stop) const {
  if (alone())
    return Outcome{stop.message, stop.skips, stop.room};
  // All have stopped at the same point. The first rank speaks whose check is
  // the most severe: buffers, what ends the run, what skips the step.
  int64_t count = getRanks(), kinds = 3;
  int64_t kind = !stop.own ? kinds : stop.room ? 0 : stop.skips ? 2 : 1;
  int64_t own = kind * count + first().number(), known = 0;
  if (Error error = all().allReduce(CLEAVE_MIN, CLEAVE_I64, &own, &known))
    return error;
  int64_t speaker = known < kinds * count ? known % count : count - 1;
  Expected<std::string> message =
      all().share(static_cast<int>(speaker), stop.message);
  if (!message)
    return message.takeError();
  return Outcome{*message, known / count == 2, known / count == 0};
}

Error Session::finishUpdate() const {
  if (!pending)
    return Error::success();
  if (Error error = setPending(true))
    return error;
  pending = false;
  Expected<std::optional<Outcome>> stop = execute("update");
  if (!stop)
    return stop.takeError();
  return *stop ? makeError((*stop)->message) : Error::success();
}

void Session::setLossScale(const std::optional<LossScaleState> &state) {
  const LossScaling &settings = getProgram().lossScaling;
  lossScale = !settings.used ? std::nullopt
              : state        ? state
                             : LossScaleState::initial(settings);
}

Error Session::settle(const std::optional<Outcome> &stop) {
  const LossScaling &settings = getProgram().lossScaling;
  if (stop && !(stop->skips && lossScale))
    return makeError(stop->message);
  if (stop && !lossScale->canFall(settings)) {
    std::string scale =
        llvm::formatv("{0:f0}", static_cast<double>(lossScale->scale)).str();
    return makeError(
        stop->message +
        (settings.dynamic ? ": the loss scale is at its minimum of "
                          : ": the loss scale is constant, ") +
        scale +
        ". No lower scale helps if the loss itself or activations overflow: "
        "look at its inputs, lower the learning rate, or use bf16");
  }
  ++step;
  skipped += stop.has_value();
  if (lossScale)
    lossScale->update(settings, !stop);
  return Error::success();
}

Expected<StepResult> Session::run(llvm::StringRef entry) {
  if (!hasEntry(entry)) {
    std::string known;
    for (const auto &[name, own] : getProgram().entries)
      known += (known.empty() ? "'" : ", '") + name + "'";
    return makeError("the program has no entry '" + entry + "'; it has " +
                     known);
  }
  bool training = entry == "train";
  bool defers = training && hasEntry("update");
  if (Error error = defers ? setPending(pending) : finishUpdate())
    return error;
  if (Error error = setCounters(training ? step + 1 : step,
                                training ? step - skipped + 1 : step - skipped))
    return error;
  int64_t faults = countPageFaults();
  auto start = std::chrono::steady_clock::now();
  // A step that its checks stop has run the deferred updates too: checks take
  // effect after all updates.
  pending = noRoom = false;
  Expected<std::optional<Outcome>> stop = execute(entry);
  if (!stop)
    return stop.takeError();
  noRoom = *stop && (*stop)->room;
  if (training) {
    if (Error error = settle(*stop))
      return error;
  } else if (*stop) {
    return makeError((*stop)->message);
  }
  noteOutputs(entry);
  StepResult result;
  // Of runs that follow each other without a pause, the times add up.
  if (first().getFacts().followed)
    start = returned;
  returned = std::chrono::steady_clock::now();
  result.seconds = std::chrono::duration<double>(returned - start).count();
  result.pageFaults = countPageFaults() - faults;
  if (*stop)
    result.skipped = (*stop)->message;
  for (const auto &rank : ranks) {
    cleave_run_facts facts = rank->getFacts();
    result.updatedAgain += facts.updated_again;
    result.offloaded.fetched += facts.fetched;
    result.offloaded.evicted += facts.evicted;
    if (rank == ranks.front())
      llvm::copy(facts.nanoseconds, result.breakdown.nanoseconds.begin());
  }
  result.communication = first().getSent(entry.str());
  if (defers && !*stop) {
    if (Error error = keepScalars())
      return error;
    pending = true;
  }
  return result;
}

int64_t Session::getPlannedBytes() const {
  int64_t arenas = 0, workspace = 0, messages = 0;
  for (const std::unique_ptr<Rank> &rank : ranks) {
    arenas += rank->getProgram().arenaBytes;
    // Ranks of a process share it.
    workspace = std::max(workspace, workspaceBytes(rank->getProgram()));
    cleave_communicator *communicator = rank->getCommunicator();
    messages += communicator->api->held(communicator);
  }
  return arenas + workspace + messages;
}

MemoryReport Session::getMemory() const {
  MemoryReport report;
  report.ranks = getLocalRanks();
  // Of the rank with the most memory.
  const Rank *largest = &first();
  for (const std::unique_ptr<Rank> &rank : ranks)
    if (rank->getProgram().arenaBytes > largest->getProgram().arenaBytes)
      largest = rank.get();
  report.arena = largest->getProgram().arenaBytes;
  report.tier = largest->getProgram().tierBytes;
  // Memory that the ranks of a process share is counted by each of them.
  report.workspace = largest->libraryBytes();
  cleave_communicator *communicator = largest->getCommunicator();
  report.messages = communicator->api->held(communicator);
  int64_t rest = report.arena;
  for (const Tensor &tensor : largest->getProgram().tensors) {
    if (tensor.tier)
      continue;
    int64_t size = localBytes(getProgram().mesh, tensor);
    report.byKind[roleName(tensor.role).str()] += size;
    rest -= size;
  }
  report.byKind["activations and scratch"] = rest;
  return report;
}
