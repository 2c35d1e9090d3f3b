//===- Session.cpp - A program with its memory and state ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session/Session.h"
#include "Launch.h"
#include "RankThreads.h"
#include "cleave/Runtime/CPU/Workspace.h"
#include "cleave/Runtime/Communicator/ThreadWorld.h"
#include "cleave/Runtime/Core/Placement.h"
#include "cleave/Runtime/Core/ProgramIO.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/xxhash.h"

#include <chrono>
#include <cstdlib>
#include <malloc.h>
#include <set>
#include <sys/resource.h>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

//===----------------------------------------------------------------------===//
// Creation
//===----------------------------------------------------------------------===//

Session::Session(Artifact artifactIn, const SessionOptions &options)
    : artifact(std::move(artifactIn)),
      tuner(ContractionTuner::fromEnvironment()), seed(options.seed) {
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

Error Session::startRanks(const SessionOptions &options) {
  const Program &program = getProgram();
  int64_t devices = deviceCount(program.mesh);
  bool mpi = options.launch == Launch::Mpi ||
             (options.launch == Launch::Detect && startedByMpi());
  Connect mpiConnect;
  if (mpi) {
    Expected<Connect> opened = openMpi();
    if (!opened)
      return opened.takeError();
    mpiConnect = std::move(*opened);
  }
  // 1. The ranks of this process, and the resources of each.
  size_t count = mpi ? 1 : static_cast<size_t>(devices);
  int sharing = mpi ? processesHere() : 1, cores = ThreadTeam::cores();
  // OMP_NUM_THREADS is already that of one process.
  int wanted = options.threads > 0              ? options.threads
               : std::getenv("OMP_NUM_THREADS") ? ThreadTeam::defaultThreads()
                                                : cores / sharing;
  int each = std::clamp(wanted / static_cast<int>(count), 1, program.threads);
  int64_t all = int64_t(each) * static_cast<int64_t>(count) * sharing;
  bool pin = all == cores && all > 1 && sharing == 1;
  if (!mpi)
    world = std::make_unique<ThreadWorld>(static_cast<int>(count), cores);

  // 2. Memory and communicators.
  ranks.resize(count);
  stopped.resize(count);
  threads = std::make_unique<RankThreads>(count);
  Error error = onRanks([&](size_t rank) -> Error {
    RankOptions rankOptions;
    rankOptions.threads = each;
    rankOptions.firstCore = pin ? static_cast<int>(rank) * each : -1;
    rankOptions.pinCaller = rank > 0 || options.pinCaller;
    rankOptions.offloadFolder = options.offloadFolder;
    Connect connect = mpiConnect;
    if (!mpi)
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
  std::string choices;
  for (const auto &[key, name] : options.contractions)
    choices += key + '\t' + name + '\n';
  auto facts = options.facts;
  facts.insert(facts.end(), {{"the program (hash)", artifact.getProgramHash()},
                             {"the artifact (hash)", artifact.getFileHash()},
                             {"the seed", std::to_string(seed)},
                             {"choices of contractions (hash)",
                              llvm::utohexstr(llvm::xxh3_64bits(choices),
                                              /*LowerCase=*/true)}});
  if (Error error = agree(facts))
    return error;
  if (getRanks() != devices)
    return makeError("the program is for " + Twine(devices) +
                     (devices == 1 ? " device" : " devices") +
                     ", but this launch has " + Twine(getRanks()) +
                     " processes; start it with mpirun -n " + Twine(devices));

  // 3. Entries. Replicas must round alike, so all ranks use the methods that
  //    the first one has found to be fastest for contractions.
  for (const auto &[key, name] : options.contractions)
    if (auto method = measuredMethod(name))
      tuner.preset(key, *method);
  if (Error error = tuneContractions())
    return error;
  tuner.save();
  error = onRanks([&](size_t rank) -> Error {
    if (Error error = ranks[rank]->prepare(tuner))
      return error;
    ranks[rank]->getExecutor().setTiming(options.timing);
    return Error::success();
  });
  // Processes with different collectives would deadlock, or receive wrong data.
  // Threads compare when they prepare.
  if (!error && !world)
    error = ranks.front()->getExecutor().compareRequests();
#ifdef __GLIBC__
  // Returns to the system the memory that reading the program and tuning took.
  malloc_trim(0);
#endif
  return error;
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
/// measurements of those before it.
Error Session::tuneContractions() {
  std::set<int64_t> seen;
  for (int64_t number = 0; number < getRanks(); ++number) {
    if (!seen.insert(positionOf(getProgram(), number)).second)
      continue;
    threads->run([&](size_t rank) {
      if (ranks[rank]->number() == number)
        ranks[rank]->tune(tuner);
    });
    if (Error error = shareChoices(static_cast<int>(number)))
      return error;
  }
  return Error::success();
}

/// "key<tab>method" lines from one rank to the others.
Error Session::shareChoices(int root) {
  if (alone())
    return Error::success();
  std::string text;
  for (const auto &[key, method] : tuner.getChoices())
    text += key + '\t' + methodName(method).str() + '\n';
  Expected<std::string> received = all().share(root, text);
  if (!received)
    return received.takeError();
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::SplitString(*received, lines, "\n");
  for (llvm::StringRef line : lines) {
    auto [key, name] = line.rsplit('\t');
    if (auto method = measuredMethod(name))
      tuner.preset(key.str(), *method);
  }
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
  threads->run([&](size_t rank) {
    stopped[rank] = ranks[rank]->getExecutor().run(entry);
  });
  // Of checks that have failed here, one that ends the run, or else the first.
  auto weight = [](const Stop &stop) {
    return !stop.own ? 0 : stop.skips ? 1 : 2;
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
    return Outcome{stop.message, stop.skips};
  // All have stopped at the same point. The first rank speaks whose check ends
  // the run, or else the first whose check skips the step.
  int64_t count = getRanks();
  int64_t own = !stop.own    ? 2 * count
                : stop.skips ? count + first().number()
                             : first().number();
  int64_t known = 0;
  if (Error error = all().allReduce(CLEAVE_MIN, CLEAVE_I64, &own, &known))
    return error;
  int64_t speaker = known < 2 * count ? known % count : count - 1;
  Expected<std::string> message =
      all().share(static_cast<int>(speaker), stop.message);
  if (!message)
    return message.takeError();
  return Outcome{*message, known >= count && known < 2 * count};
}

Error Session::finishUpdate() const {
  if (!pending)
    return Error::success();
  setPending(true);
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
  if (!hasEntry(entry))
    return makeError("the program has no entry '" + entry + "'");
  bool training = entry == "train";
  bool defers = training && hasEntry("update");
  if (defers)
    setPending(pending);
  else if (Error error = finishUpdate())
    return error;
  setCounters(training ? step + 1 : step,
              training ? step - skipped + 1 : step - skipped);
  int64_t faults = countPageFaults();
  auto start = std::chrono::steady_clock::now();
  // A step that its checks stop has run the deferred updates too: checks take
  // effect after all updates.
  pending = false;
  Expected<std::optional<Outcome>> stop = execute(entry);
  if (!stop)
    return stop.takeError();
  if (training) {
    if (Error error = settle(*stop))
      return error;
  } else if (*stop) {
    return makeError((*stop)->message);
  }
  noteOutputs(entry);
  StepResult result;
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  result.pageFaults = countPageFaults() - faults;
  if (*stop)
    result.skipped = (*stop)->message;
  for (const auto &rank : ranks) {
    result.updatedAgain += rank->getExecutor().countUpdatedAgain();
    const Offloaded &moved = rank->getExecutor().getOffloaded();
    result.offloaded.fetched += moved.fetched;
    result.offloaded.evicted += moved.evicted;
  }
  const Executor &executor = first().getExecutor();
  result.breakdown = executor.getBreakdown();
  result.communication = executor.getCommunication(entry);
  if (defers && !*stop) {
    keepScalars();
    pending = true;
  }
  return result;
}

int64_t Session::getPlannedBytes() const {
  int64_t arenas = 0, workspace = 0, messages = 0;
  for (const std::unique_ptr<Rank> &rank : ranks) {
    arenas += rank->getArena().size();
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
    if (rank->getArena().size() > largest->getArena().size())
      largest = rank.get();
  report.arena = largest->getArena().size();
  report.tier = largest->getProgram().tierBytes;
  // Memory that the ranks of a process share is counted by each of them.
  report.workspace = largest->getExecutor().workspaceBytes();
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
