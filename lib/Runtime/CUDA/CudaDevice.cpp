//===- CudaDevice.cpp - A GPU as a device ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CudaDevice.h"
#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Support/Patience.h"
#include "llvm/ADT/StringExtras.h"

#include <cstring>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

static_assert(CLEAVE_TIME_CLASSES ==
              std::tuple_size_v<decltype(Breakdown::nanoseconds)>);

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

CudaDevice::CudaDevice(const cleave_device_request &request, Program program,
                       std::unique_ptr<Gpu> gpu)
    : cleave_device{&kApi}, program(std::move(program)), rank(request.rank),
      lookup(request.lookup), lookupData(request.data), gpu(std::move(gpu)) {}

CudaDevice::~CudaDevice() {
  if (Error error = gpu->makeCurrent()) {
    // A device that is gone has nothing to free.
    llvm::consumeError(std::move(error));
    return;
  }
  llvm::consumeError(settle());
  for (auto &[name, entry] : entries)
    for (Stretch &stretch : entry.stretches)
      if (stretch.graph)
        (void)gpu->driver.cuGraphExecDestroy(stretch.graph);
}

/// The symbol of the code for `compiled`, such as "sm_90", that a device of
/// this capability runs: the binary if its major number is the same and its
/// minor one not less, PTX if its major number is greater. Code with a letter
/// at its end is for one device. Null if there is none.
static const char *codeFor(llvm::StringRef compiled, int capability) {
  int number = 0;
  if (!compiled.consume_front("sm_"))
    return nullptr;
  bool exact = !compiled.empty() && !llvm::isDigit(compiled.back());
  if (exact)
    compiled = compiled.drop_back();
  if (compiled.getAsInteger(10, number) ||
      (exact ? number != capability : number > capability))
    return nullptr;
  return number / 10 == capability / 10 ? kImageSymbol : kPtxSymbol;
}

/// A variable with a value that means nothing was probably meant to change
/// something.
static Error checkEnvironment() {
  const struct {
    const char *name;
    std::vector<llvm::StringRef> values;
  } choices[] = {{"CLEAVE_CUDA_GRAPHS", {"on", "off"}},
                 {"CLEAVE_CUDNN", {"on", "off", "required"}},
                 {"CLEAVE_NCCL", {"on", "off"}},
                 {"CLEAVE_SHARED_GPU", {"on", "off"}}};
  for (const auto &[name, values] : choices) {
    llvm::StringRef text = environment(name);
    if (!text.empty() && !llvm::is_contained(values, text))
      return makeError(llvm::Twine(name) + " is '" + text + "'; it must be " +
                       llvm::join(llvm::ArrayRef(values).drop_back(), ", ") +
                       " or " + values.back());
  }
  if (std::string wrong = patienceProblem(); !wrong.empty())
    return makeError(wrong);
  return Error::success();
}

Expected<std::unique_ptr<CudaDevice>>
CudaDevice::open(const cleave_device_request &request) {
  if (Error error = checkEnvironment())
    return error;
  Expected<Program> program =
      parseProgram({request.program, request.program_bytes});
  if (!program)
    return program.takeError();
  Expected<std::unique_ptr<Gpu>> gpu = Gpu::open(request.ordinal);
  if (!gpu)
    return gpu.takeError();
  int capability = (*gpu)->getCapability();
  const char *code = codeFor(program->architecture, capability);
  if (!code)
    return makeError("compiled for " + program->architecture + ", and " +
                     (*gpu)->getName() + " is " + llvm::Twine(capability / 10) +
                     "." + llvm::Twine(capability % 10) +
                     "; compile the model again for it (--arch sm_" +
                     llvm::Twine(capability) + ", arch=\"sm_" +
                     llvm::Twine(capability) + "\")");
  std::unique_ptr<CudaDevice> device(
      new CudaDevice(request, std::move(*program), std::move(*gpu)));
  device->architecture = "sm_" + std::to_string(capability);
  device->codeSymbol = code;
  return device;
}

int CudaDevice::end(Error error) {
  if (!error)
    return 0;
  failure = llvm::toString(std::move(error));
  return 1;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// Tensors begin at multiples of 64 bytes. Behind a small result there is room
/// for the status of checks, so that one copy takes both to the host; -1 if
/// there is no such result.
static int64_t findStatusOffset(const Program &program) {
  constexpr int64_t slot = 64, size = sizeof(CheckStatus),
                    alignment = alignof(CheckStatus);
  int64_t found = -1;
  for (const Tensor &tensor : program.tensors) {
    int64_t bytes = localBytes(program.mesh, tensor);
    if (tensor.role != Role::Output || tensor.tier ||
        tensor.offset % slot != 0 || bytes == 0 || bytes > slot - size)
      continue;
    int64_t at =
        tensor.offset + (bytes + alignment - 1) / alignment * alignment;
    if (at + size <= tensor.offset + slot)
      found = std::max(found, at);
  }
  return found;
}

Error CudaDevice::allocate(int64_t arenaBytes, int64_t tierBytes) {
  scratchBytes = launchScratchBytes(program);
  statusOffset = findStatusOffset(program);
  for (auto [at, bytes] :
       {std::pair(&arena, arenaBytes),
        std::pair(&workspace, kContractionWorkspaceBytes),
        std::pair(&scratch, scratchBytes),
        std::pair(&status, statusOffset < 0
                               ? static_cast<int64_t>(sizeof(CheckStatus))
                               : 0)}) {
    Expected<CUdeviceptr> made = gpu->allocate(bytes);
    if (!made)
      return made.takeError();
    *at = *made;
  }
  if (statusOffset >= 0)
    status = arena + static_cast<CUdeviceptr>(statusOffset);
  Expected<char *> read = gpu->allocateHost(sizeof(CheckStatus));
  if (!read)
    return read.takeError();
  statusRead = reinterpret_cast<CheckStatus *>(*read);
  Expected<char *> pinned = gpu->allocateHost(tierBytes);
  if (!pinned)
    return pinned.takeError();
  tier = *pinned;
  contractions.emplace(gpu->driver, gpu->getName(), workspace);
  void *image = lookup(lookupData, codeSymbol);
  if (!image)
    return makeError("the artifact has no code for a GPU");
  return gpu->load(image);
}

Error CudaDevice::read(int32_t place, int64_t offset, char *to, int64_t bytes) {
  if (host && place == CLEAVE_ARENA) {
    Expected<bool> given = host->read(offset, to, bytes);
    if (!given)
      return given.takeError();
    if (*given)
      return Error::success();
  }
  if (Error error = settleFor(place))
    return error;
  note("a read", place, {{{Place::Arena, offset, bytes}}, {}});
  if (place == CLEAVE_ARENA) {
    if (Error error =
            gpu->read(arena + static_cast<CUdeviceptr>(offset), to, bytes))
      return error;
    noteFinished();
    return Error::success();
  }
  std::memcpy(to, tier + offset, static_cast<size_t>(bytes));
  return Error::success();
}

Error CudaDevice::write(int32_t place, int64_t offset, const char *from,
                        int64_t bytes) {
  if (host && place == CLEAVE_ARENA) {
    Expected<bool> taken = host->write(offset, from, bytes);
    if (!taken)
      return taken.takeError();
    if (*taken)
      return Error::success();
  }
  if (Error error = settleFor(place))
    return error;
  note("a write", place, {{}, {{Place::Arena, offset, bytes}}});
  if (place == CLEAVE_ARENA) {
    if (Error error =
            gpu->write(arena + static_cast<CUdeviceptr>(offset), from, bytes))
      return error;
    noteFinished();
    return Error::success();
  }
  std::memcpy(tier + offset, from, static_cast<size_t>(bytes));
  return Error::success();
}

Error CudaDevice::zero(int32_t place, int64_t offset, int64_t bytes) {
  if (host && place == CLEAVE_ARENA && host->takes(offset, bytes))
    return host
        ->write(offset, std::vector<char>(static_cast<size_t>(bytes)).data(),
                bytes)
        .takeError();
  if (Error error = settleFor(place))
    return error;
  note("a clearing", place, {{}, {{Place::Arena, offset, bytes}}});
  if (place == CLEAVE_ARENA) {
    if (Error error =
            gpu->zero(arena + static_cast<CUdeviceptr>(offset), bytes))
      return error;
    noteFinished();
    return Error::success();
  }
  std::memset(tier + offset, 0, static_cast<size_t>(bytes));
  return Error::success();
}

//===----------------------------------------------------------------------===//
// The interface
//===----------------------------------------------------------------------===//

/// The texts of `list` live as long as the entry.
void CudaDevice::note(llvm::StringRef entry) {
  auto it = entries.find(entry);
  if (it == entries.end())
    return;
  sent.note(entry, it->second.sent.list());
}

const cleave_device_api CudaDevice::kApi = {
    .capability =
        [](cleave_device *device, cleave_capability *what) {
          CudaDevice &own = of(device);
          *what = {own.gpu->getName().c_str(), own.architecture.c_str(), -1,
                   outsideBytes(own.program)};
          if (Expected<int64_t> bytes = own.gpu->freeBytes())
            what->memory = *bytes;
          else
            llvm::consumeError(bytes.takeError());
        },
    .allocate = Calls::allocate,
    .address = [](cleave_device *) -> char * { return nullptr; },
    .read = Calls::read,
    .write = Calls::write,
    .zero = Calls::zero,
    .tune =
        [](cleave_device *device, const char *choices) {
          of(device).contractions->take(choices);
          return of(device).end(of(device).tune());
        },
    .choices =
        [](cleave_device *device) {
          CudaDevice &own = of(device);
          own.choiceText = own.contractions->text();
          return own.choiceText.c_str();
        },
    .prepare =
        [](cleave_device *device, cleave_communicator *communicator,
           const char *choices) {
          CudaDevice &own = of(device);
          own.contractions->take(choices);
          int failed = own.end(own.prepare(communicator));
          for (const auto &[name, entry] : own.entries)
            own.note(name);
          return failed;
        },
    .compare =
        [](cleave_device *device) {
          return of(device).end(of(device).requests->compare());
        },
    .run = Calls::run,
    .facts =
        [](cleave_device *device, cleave_run_facts *facts) {
          const CudaDevice &own = of(device);
          *facts = {own.offloaded.fetched,
                    own.offloaded.evicted,
                    own.updatedAgain,
                    {},
                    own.followed};
          llvm::copy(own.breakdown.nanoseconds, facts->nanoseconds);
        },
    .sent = Calls::sent,
    .set_timing = [](cleave_device *device,
                     int32_t on) { of(device).timing = on != 0; },
    .start_trace =
        [](cleave_device *device, const char *entry, int64_t runs,
           int64_t origin) {
          CudaDevice &own = of(device);
          own.events.clear();
          own.tracedEntry = entry;
          own.tracedRuns = 0;
          own.runsToTrace = runs;
          own.origin = origin;
        },
    .trace = [](cleave_device *device, const cleave_event **list) -> int64_t {
      const std::vector<cleave_event> &events = of(device).events;
      *list = events.data();
      return static_cast<int64_t>(events.size());
    },
    .library_bytes =
        [](cleave_device *device) { return outsideBytes(of(device).program); },
    .tier_failure = [](cleave_device *) { return ""; },
    .error = Calls::error,
    .close = Calls::close,
};

extern "C" __attribute__((visibility("default"))) cleave_device *
cleave_device_open(uint32_t abi, const cleave_device_request *request,
                   char *error, uint64_t errorBytes) {
  auto fail = [&](const std::string &message) -> cleave_device * {
    std::snprintf(error, errorBytes, "%s", message.c_str());
    return nullptr;
  };
  if (abi != CLEAVE_DEVICE_ABI)
    return fail("the plugin of CUDA is of another version of Cleave");
  Expected<std::unique_ptr<CudaDevice>> device = CudaDevice::open(*request);
  if (!device)
    return fail(llvm::toString(device.takeError()));
  return device->release();
}
