//===- CudaDevice.h - A GPU as a device -------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_CUDADEVICE_H
#define CLEAVE_LIB_RUNTIME_CUDA_CUDADEVICE_H

#include "Gpu.h"
#include "HostTensors.h"
#include "HostTransport.h"
#include "Libraries/CublasLtMatmul.h"
#include "Libraries/Cudnn.h"
#include "NcclTransport.h"
#include "SharedTransport.h"
#include "WorkRecord.h"
#include "cleave/Executable/Cuda/CommandLaunches.h"
#include "cleave/Executable/Cuda/KernelArguments.h"
#include "cleave/Runtime/Communicator/Requests.h"
#include "cleave/Runtime/Core/DeviceCalls.h"
#include "cleave/Runtime/Core/RunRecord.h"
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <variant>

namespace cleave::runtime::cuda {

/// The program of one rank on a GPU. Commands are enqueued in the order of the
/// table, those that need nothing of the host as graphs; the host waits where
/// it has to know a flag: at checks and at actions that may be skipped. What
/// comes after the last of these may be under way when a run returns. Runs that
/// are measured enqueue each command by itself.
class CudaDevice : public cleave_device {
public:
  static llvm::Expected<std::unique_ptr<CudaDevice>>
  open(const cleave_device_request &request);
  ~CudaDevice();

private:
  using Calls = DeviceCalls<CudaDevice>;
  friend Calls;
  static const cleave_device_api kApi;

  struct Launches {
    std::vector<std::pair<CUfunction, Launch>> list;
  };
  struct Product {
    /// None: it has no products.
    std::optional<Contraction> contraction;
    CUdeviceptr result = 0;
  };
  /// A copy between the arena and the second tier.
  struct Move {
    CUdeviceptr memory = 0;
    char *tier = nullptr;
    int64_t bytes = 0;
    bool evicts = false;
  };
  struct MoveStep {
    Move *move = nullptr;
    bool ends = false;
  };
  /// A check that all ranks reach. A deferred one is a launch.
  struct Check {
    Launches launches;
    /// Agrees with the other ranks.
    cleave_request *request = nullptr;
    char *own = nullptr;
    const char *agreed = nullptr;
    /// What is copied to the host with the status; or null.
    const HostTensors::Results *results = nullptr;
  };
  struct Exchange {
    cleave_request *request = nullptr;
    const HostTransport *blocks = nullptr;
    /// By NCCL, or among ranks that share the device, else null; then neither
    /// of the others is there.
    NcclTransport::Collective *collective = nullptr;
    SharedTransport::Collective *shared = nullptr;
    /// What its end uses, unless it is by NCCL.
    MemoryUse used;
    SentSums::Counter counter;
    bool ends = false;
  };
  struct Stream {
    CUstream stream = nullptr;
    /// Of the record.
    std::string name;
  };
  /// A stream waits for an event.
  struct Awaited {
    int32_t stream = 0;
    CUevent event = nullptr;
    /// Whether it is recorded at the same time, on the stream of computation.
    bool compute = false;
  };
  struct Step {
    const Command *command = nullptr;
    const Action *action = nullptr;
    /// The flag that skips the action; 0: none.
    CUdeviceptr unless = 0;
    bool whenStopped = false;
    /// The index of the stream that it runs on; -1: it does nothing.
    int32_t stream = 0;
    /// Whether the host waits for the stream of computation in it.
    bool finishes = false;
    /// Kept for the record, if there is one.
    MemoryUse use;
    /// What is awaited before it, and recorded behind it, if it is not null.
    std::vector<Awaited> waits;
    CUevent ended = nullptr;
    std::variant<Launches, Product, CudnnAttention, MoveStep, Check, Exchange>
        what;
    /// Whether the host need not come between it and its neighbours.
    bool isWork() const { return what.index() < 3; }
  };
  /// Neighbouring steps that the host need not come between, which are launched
  /// as one graph of CUDA. Other streams than that of computation begin and end
  /// with it.
  struct Stretch {
    size_t begin = 0, end = 0;
    /// Null before it has run.
    CUgraphExec graph = nullptr;
    /// What it copies from and to the second tier.
    Offloaded moved;
  };
  struct EntrySteps {
    std::vector<Step> steps;
    std::vector<Stretch> stretches;
    /// By the numbers by which the device records them.
    std::vector<const CheckCommand *> checks;
    SentSums sent;
    /// Whether it has work on other streams than that of computation, and
    /// whether stretches have it too.
    bool apart = false, forks = false;
    /// The last step that reads an input, or -1.
    int64_t lastRead = -1;
    HostTensors::Results results;
    /// The runs so far.
    int64_t runs = 0;
    /// Of the last run that was measured.
    Breakdown breakdown;
  };
  struct Agreement {
    char own = 0, all = 0;
  };
  class Resolver;

  CudaDevice(const cleave_device_request &request, Program program,
             std::unique_ptr<Gpu> gpu);
  static CudaDevice &of(cleave_device *device) {
    return *static_cast<CudaDevice *>(device);
  }
  /// Keeps the message of an error; returns what the call returns.
  int end(llvm::Error error);

  llvm::Error allocate(int64_t arenaBytes, int64_t tierBytes);
  llvm::Error read(int32_t place, int64_t offset, char *to, int64_t bytes);
  llvm::Error write(int32_t place, int64_t offset, const char *from,
                    int64_t bytes);
  llvm::Error zero(int32_t place, int64_t offset, int64_t bytes);
  llvm::Error tune();
  llvm::Error prepare(cleave_communicator *communicator);

  int run(llvm::StringRef entry, cleave_stop &stop);
  std::optional<Stop> runSteps(EntrySteps &entry);
  /// Launches the graph of a stretch, which is made first if it has not run.
  llvm::Error launch(EntrySteps &entry, Stretch &stretch);
  /// Captures what a stretch does.
  llvm::Error capture(EntrySteps &entry, Stretch &stretch);
  void findStretches(EntrySteps &entry) const;
  int32_t streamIndex(CUstream stream, llvm::StringRef name);
  /// Gives the steps of an entry their events.
  llvm::Error order(EntrySteps &entry);
  llvm::Error await(const Step &step);
  llvm::Error noteEnd(const Step &step);
  /// Waits for all streams.
  llvm::Error finishStreams();
  /// Waits for what the last run has left under way.
  llvm::Error settle();
  /// The same, and for the arena also the copies of inputs.
  llvm::Error settleFor(int32_t place);
  /// The host has waited for the stream of computation.
  void noteFinished();
  /// Enqueues a command. Sets `passed` if it is a check that all ranks reach.
  llvm::Error execute(const Step &step, bool &passed);
  llvm::Error launch(CUfunction function, const Launch &launch) const;
  llvm::Error start(const Move &move);
  llvm::Error exchange(const Step &step, const Exchange &exchange);
  llvm::Error agree(const Step &step, const Check &check, bool &passed);
  llvm::Error launchAll(const Launches &launches) const;
  llvm::Expected<bool> readFlag(CUdeviceptr at);
  /// Ends the exchanges and moves in flight when `last` stopped the step, on
  /// all ranks alike.
  void finishCollectives(const EntrySteps &entry, const Step *last);
  /// The error of the communicator.
  llvm::Error communicatorError() const;
  llvm::Error mark();
  void sumTimes(EntrySteps &entry, bool traced);
  void note(llvm::StringRef entry);
  void note(llvm::StringRef what, int32_t place, MemoryUse use);

  Program program;
  int64_t rank;
  void *(*lookup)(void *, const char *);
  void *lookupData;
  std::unique_ptr<Gpu> gpu;
  CUdeviceptr arena = 0;
  /// Memory outside of the arena: for contractions, and for the commands that
  /// are several launches.
  CUdeviceptr workspace = 0, scratch = 0;
  /// A CheckStatus, its offset in the arena or -1, and where the host reads it
  /// if it is not copied with results.
  CUdeviceptr status = 0;
  int64_t statusOffset = -1;
  CheckStatus *statusRead = nullptr;
  int64_t scratchBytes = 0;
  /// The second tier.
  char *tier = nullptr;
  std::optional<CublasLtMatmuls> contractions;
  /// Opened for the first attention command that is planned for it.
  std::unique_ptr<Cudnn> cudnn;
  /// That of computation first, then that of the second tier.
  std::vector<Stream> streams;
  /// In $CLEAVE_CUDA_RECORD, for tests; then nothing is launched as a graph.
  std::unique_ptr<WorkRecord> record;
  cleave_communicator *communicator = nullptr;
  /// What is exchanged, on the host; empty for one rank.
  HostMirror mirror;
  std::map<std::string, EntrySteps, std::less<>> entries;
  /// From when the entries are prepared on.
  std::unique_ptr<HostTensors> host;
  std::deque<Move> moves;
  std::deque<HostTransport> exchanges;
  std::deque<Agreement> agreements;
  /// Released before the communicator is closed.
  std::optional<Requests> requests;
  /// At most one of them; none if collectives go through the host.
  std::unique_ptr<NcclTransport> nccl;
  std::unique_ptr<SharedTransport> shared;
  /// Of the run, as the host has last read it.
  CheckStatus checks{};

  /// While steps are captured: the events that were recorded since it began.
  std::optional<std::set<CUevent>> captured;
  /// Where other streams begin, and where one ends, in a graph.
  CUevent forked = nullptr, joined = nullptr;
  /// Whether the last run has left work under way, and whether that was so when
  /// the last one began.
  bool underWay = false, followed = false;

  // What the last run has done.
  Offloaded offloaded;
  int64_t updatedAgain = 0;
  bool timing = false, measuring = false, graphs = true, asGraphs = false;
  Breakdown breakdown;
  /// One event before the first step and one after each, and those steps.
  std::vector<CUevent> marks;
  std::vector<const Step *> marked;
  size_t used = 0;
  std::string tracedEntry;
  int32_t tracedRuns = 0;
  int64_t runsToTrace = 0, origin = 0, began = 0;
  std::vector<cleave_event> events;

  // What the device shows to its caller.
  std::string failure, choiceText, architecture;
  /// Of the code in the artifact that is loaded.
  const char *codeSymbol = nullptr;
  std::optional<Stop> stopped;
  SentLists sent;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_CUDADEVICE_H
