/*===- Device.h - What runs the program of a rank -----------------*- C -*-===*\
|*                                                                            *|
|* Part of the Cleave project, under the Apache License v2.0 with LLVM        *|
|* Exceptions. See LICENSE for license information.                           *|
|*                                                                            *|
\*===----------------------------------------------------------------------===*/
/**
 * \file
 * The interface between a session and the device of one of its ranks: memory,
 * and a program that runs there. The CPU is built in (CPU/CpuDevice.h); other
 * devices are plugins, which a session opens where a program's target is
 * theirs.
 *
 * A device has two places for data: its arena, and the second tier of what is
 * offloaded. Offsets and sizes are bytes. A session gives tensors to a device,
 * and takes them from it, by `write` and `read` only, unless the host can
 * address the arena.
 *
 * Calls are made in this order: `allocate`, any number of `tune`, `prepare`
 * with all other ranks, then the others in any order, `close` last. All are
 * made by the thread that has opened the device, except `read`, `write` and
 * `zero`, which any one thread may make while no other call is under way. A
 * call that returns `int` returns 0, or else it has failed and `error` has the
 * reason. A device may still compute when a call returns: later calls behave as
 * if it had ended, and find its errors. Pointers that a call returns are valid
 * until the next call of `run` or `start_trace`, if nothing else is said.
 */

#ifndef CLEAVE_RUNTIME_CORE_DEVICE_H
#define CLEAVE_RUNTIME_CORE_DEVICE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The number of categories of commands: `TimeClass` of Program.h. */
#define CLEAVE_TIME_CLASSES 6

/** The places of data on a device. */
enum { CLEAVE_ARENA, CLEAVE_TIER };

/** What a device is. */
struct cleave_capability {
  /** As its maker calls it; lives as long as the device. */
  const char *name;
  /** What its code is compiled for, such as "x86_64"; likewise. */
  const char *architecture;
  /** Bytes of its memory that are free now; -1: unknown. */
  int64_t memory;
  /** Bytes of it that the program needs besides the arena. */
  int64_t outside;
};

/** Why a run has ended early. */
struct cleave_stop {
  const char *message;
  /** Whether a check of this rank has failed, not one of another rank. */
  int32_t own;
  /** Whether all checks of this rank that have failed skip the step. */
  int32_t skips;
  /** Whether no other run is possible: ranks cannot communicate any more, or
      the second tier has failed. */
  int32_t broken;
  /** Whether a check of this rank has failed since a buffer had too few
      rows. */
  int32_t room;
};

/** What the last run has done. */
struct cleave_run_facts {
  /** Bytes moved from the second tier, and to it. */
  int64_t fetched, evicted;
  /** The number of updates that it repeated. */
  int64_t updated_again;
  /** Nanoseconds by category of commands; zeros if they are not timed. Of the
      last run that was measured, if a device measures not all of them. */
  int64_t nanoseconds[CLEAVE_TIME_CLASSES];
  /** Whether the device was still at work for the run before when this one
      began. */
  int32_t followed;
};

/**
 * What a rank sends in a run of an entry, of one kind of collective over the
 * same axes, counted as in a ring: an all-reduce of n elements by N ranks sends
 * 2 (N - 1) n / N of them (possibly a fraction), for every communicator.
 */
struct cleave_sent {
  const char *kind;
  const char *axes;
  /** The number of tensors, and of exchanges: small tensors share one. */
  int64_t count, exchanges;
  double elements, bytes;
  /** Of the last run, if commands are timed. */
  int64_t nanoseconds;
};

/** One command of a traced run: indices into the actions of the entry, and into
    the commands of the action's part. */
struct cleave_event {
  /** The index of its run among the traced runs. */
  int32_t run;
  int32_t action;
  int32_t command;
  /** The start in nanoseconds since the origin of the trace, and the duration.
   */
  int64_t start, duration;
};

struct cleave_communicator;
typedef struct cleave_device cleave_device;

struct cleave_device_api {
  void (*capability)(cleave_device *, struct cleave_capability *);
  /** Makes both places, of these sizes, filled with zeros. */
  int (*allocate)(cleave_device *, int64_t arena, int64_t tier);
  /** The address of the arena for the host, as long as the device lives; null
      if the host cannot address it. */
  char *(*address)(cleave_device *);
  int (*read)(cleave_device *, int32_t place, int64_t offset, void *to,
              int64_t bytes);
  int (*write)(cleave_device *, int32_t place, int64_t offset, const void *from,
               int64_t bytes);
  int (*zero)(cleave_device *, int32_t place, int64_t offset, int64_t bytes);

  /**
   * Chooses among implementations of the library by measurement; the arena
   * holds zeros before and after. `choices` are those that are known:
   * "key<tab>name" lines.
   */
  int (*tune)(cleave_device *, const char *choices);
  /** The choices that this device has made or taken over, likewise. */
  const char *(*choices)(cleave_device *);
  /** Prepares all entries with those choices, together with the other ranks of
      the communicator, which must outlive the device. */
  int (*prepare)(cleave_device *, struct cleave_communicator *,
                 const char *choices);
  /** Finds members of a group that have prepared different collectives.
      Collective: all ranks call it. */
  int (*compare)(cleave_device *);

  /**
   * Runs an entry; all ranks call it. Returns 0, or else `stop` says why it has
   * ended early: with the message of a check of this rank that has failed, or,
   * where none has, of the next check that all ranks reach; then nothing after
   * that has run on any rank.
   */
  int (*run)(cleave_device *, const char *entry, struct cleave_stop *stop);
  void (*facts)(cleave_device *, struct cleave_run_facts *);
  /** What this rank has sent in the last run of an entry; before the first run,
      what every run sends. Returns how many there are. */
  int64_t (*sent)(cleave_device *, const char *entry,
                  const struct cleave_sent **list);
  /** Turns the measurement of commands on or off; off at first. */
  void (*set_timing)(cleave_device *, int32_t on);
  /** Records the commands of the next `runs` runs of an entry. Times count from
      `origin`, in nanoseconds of the machine's monotonic clock. */
  void (*start_trace)(cleave_device *, const char *entry, int64_t runs,
                      int64_t origin);
  /** The recorded commands, in order. Returns how many there are. */
  int64_t (*trace)(cleave_device *, const struct cleave_event **list);

  /** Bytes of the library outside of the arena. */
  int64_t (*library_bytes)(cleave_device *);
  /** Why the second tier can no longer be used; "" if it can. */
  const char *(*tier_failure)(cleave_device *);
  /** Why the last call that failed has failed; valid until the next one. */
  const char *(*error)(cleave_device *);
  void (*close)(cleave_device *);
};

/** Implementations begin with this. */
struct cleave_device {
  const struct cleave_device_api *api;
};

/**
 * A plugin exports CLEAVE_DEVICE_OPEN, a cleave_device_open_function. Its file
 * is libcleave_<target>.so.
 */
#define CLEAVE_DEVICE_ABI 4
#define CLEAVE_DEVICE_OPEN "cleave_device_open"

/** What a device shall run. What `lookup` finds is valid until the device is
    closed, the rest during the call. */
struct cleave_device_request {
  /** The program of the rank's position, as JSON. */
  const char *program;
  uint64_t program_bytes;
  /** The rank that runs it. */
  int64_t rank;
  /** Which of the devices that the process can see. */
  int32_t ordinal;
  /** The address of what the artifact exports; null if it exports none. */
  void *(*lookup)(void *data, const char *symbol);
  void *data;
};

/** Opens a device of the given version of this interface. Returns null, and
    writes the reason to `error`, if there is none that can run the program. */
typedef cleave_device *(*cleave_device_open_function)(
    uint32_t abi, const struct cleave_device_request *request, char *error,
    uint64_t error_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CLEAVE_RUNTIME_CORE_DEVICE_H */
