/*===- Communicator.h - Communication between ranks ---------------*- C -*-===*\
|*                                                                            *|
|* Part of the Cleave project, under the Apache License v2.0 with LLVM        *|
|* Exceptions. See LICENSE for license information.                           *|
|*                                                                            *|
\*===----------------------------------------------------------------------===*/
/**
 * \file
 * The interface between the executor and the communication of ranks. Threads of
 * one process are built in (ThreadWorld.h); a plugin is a shared object that
 * exports `cleave_communicator_open`.
 *
 * A communicator belongs to one rank, and one thread of that rank calls it. All
 * members of a group make the same calls in the same order: groups, requests,
 * starts and waits match by that order, never by a number. Creating a group
 * waits for all its members: ranks create the groups that they share in one
 * order. A request is created once and runs any number of times; only its
 * creation allocates memory.
 *
 * Every call that returns `int` returns 0, or else the communicator has failed:
 * `error` gives the reason and the rank that failed, and every later call fails
 * too, on all ranks. No call waits for a rank that has failed.
 */

#ifndef CLEAVE_RUNTIME_COMMUNICATOR_COMMUNICATOR_H
#define CLEAVE_RUNTIME_COMMUNICATOR_COMMUNICATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Incremented with every change of this interface. */
#define CLEAVE_COMMUNICATOR_ABI 8u

/** The largest number of dimensions of a block. */
#define CLEAVE_BLOCK_DIMS 8

/** Element types, in the order of `DType` of Program.h. */
enum {
  CLEAVE_F64,
  CLEAVE_F32,
  CLEAVE_F16,
  CLEAVE_BF16,
  CLEAVE_I64,
  CLEAVE_I32,
  CLEAVE_I8,
  CLEAVE_I1,
  CLEAVE_F8E4M3,
  CLEAVE_F8E5M2
};

/**
 * How blocks combine: in a binary tree over the members (Support/TreeOrder.h),
 * each result rounded to the element type. A maximum or minimum with a NaN is
 * NaN. Sums are for floats, those of 16 and 8 bits combined in f32, and for i64
 * and i32 (wrapping); maxima and minima also for i8 and i1.
 */
enum { CLEAVE_SUM, CLEAVE_MAX, CLEAVE_MIN };

/** The kind of a collective. "Its block" is `sizes` elements of `src` or `dst`.
 */
enum {
  /** Every member receives all members' blocks, combined. */
  CLEAVE_ALL_REDUCE,
  /** Member i's block goes to `dst_offsets[i]` at every member. */
  CLEAVE_ALL_GATHER,
  /** Member j receives the blocks at `src_offsets[j]`, combined. */
  CLEAVE_REDUCE_SCATTER,
  /** Member i's block at `src_offsets[j]` goes to `dst_offsets[i]` of j. */
  CLEAVE_ALL_TO_ALL,
  /** Member j receives the block of member `sources[j]`. */
  CLEAVE_PERMUTE,
  /** Every member receives the block of member `root`. */
  CLEAVE_BROADCAST,
  /** Member `root` receives all members' blocks, combined; nothing is written
      to the `dst` of the others. */
  CLEAVE_REDUCE,
  /** The second of two members receives the block of the first one. Each
      gives only its own address and strides: `src` or `dst`. */
  CLEAVE_SEND,
  /** Rows of `src`, which has `sizes[0]`, go to `dst`, which has `bound`: rows
      `send_offsets[j]` to `send_offsets[j + 1]` of member i become rows
      `receive_offsets[i]` to `receive_offsets[i + 1]` of member j, and all
      other rows of `dst` are 0. Where members do not agree on the sizes, or
      exceed the rows of `src` or `dst`, all of them fail before any row is
      sent or written. Both are dense; there is one block. */
  CLEAVE_ALL_TO_ALL_ROWS
};

/**
 * One block of a collective. Strides and offsets count elements and are not
 * negative; all fields except the addresses are the same at every member. `src`
 * and `dst` do not overlap, except that an all-reduce may have one address and
 * the same strides for both. Between `start` and the end of `wait` the memory
 * belongs to the communicator.
 */
struct cleave_collective {
  int32_t kind;
  int32_t reduction;
  int32_t dtype;
  /** Dimensions of the block, outermost first. */
  int32_t dims;
  int64_t sizes[CLEAVE_BLOCK_DIMS];
  int64_t src_strides[CLEAVE_BLOCK_DIMS];
  int64_t dst_strides[CLEAVE_BLOCK_DIMS];
  const void *src;
  void *dst;
  /** One for each member, or null for zeros; read by `prepare` only. */
  const int64_t *src_offsets;
  const int64_t *dst_offsets;
  /** Permute: one for each member. */
  const int32_t *sources;
  /** Broadcast, reduce: a member. */
  int32_t root;
  /** Rows to all: one more than members, the first of which is 0. They are
      read between `start` and the end of `wait`. */
  const int64_t *send_offsets;
  const int64_t *receive_offsets;
  int64_t bound;
};

/** The threads of a rank: `run` calls `body` on each of `threads` threads. */
struct cleave_team {
  void *context;
  int32_t threads;
  void (*run)(void *context,
              void (*body)(void *data, int32_t thread, int32_t count),
              void *data);
};

typedef struct cleave_communicator cleave_communicator;
typedef struct cleave_group cleave_group;
typedef struct cleave_request cleave_request;

struct cleave_communicator_api {
  /**
   * The group of `ranks` (each once, this rank among them, in the order that
   * numbers the members), or null. It lives as long as the communicator.
   */
  cleave_group *(*group)(cleave_communicator *, const int32_t *ranks,
                         int32_t count);
  /**
   * Creates a request of `count` blocks that are exchanged together, or null.
   * All have the same kind, reduction, element type, sources and root.
   */
  cleave_request *(*prepare)(cleave_group *, const struct cleave_collective *,
                             int32_t count);
  /** Starts the exchange of this member's blocks. Does not wait for others. */
  int (*start)(cleave_request *);
  /** Returns when this member's result is complete and its memory is free. */
  int (*wait)(cleave_request *);
  /** Frees a request that is not in flight; each member frees its own. */
  void (*release)(cleave_request *);
  /** Returns when all members have arrived. Fails and names the difference if
      they have prepared different requests; compares those since the last
      barrier, up to the first that was started, unless `prepare` does so. */
  int (*barrier)(cleave_group *);
  /**
   * This rank cannot continue: all calls of all ranks fail with
   * "rank R: message", which names the first rank to fail. May be called by
   * any thread.
   */
  void (*fail)(cleave_communicator *, const char *message);
  /** Why the communicator failed; "" while it has not. */
  const char *(*error)(cleave_communicator *);
  /**
   * Whether this rank writes what others wait for, which may take long: they
   * wait ten times as long as otherwise.
   */
  void (*busy)(cleave_communicator *, int32_t on);
  /**
   * Whether there is a failure that this rank's working thread does not notice,
   * because it does something else. May be called by any thread. The process
   * ends `grace` seconds after this is first so: 0 if it is never called.
   */
  int (*unnoticed)(cleave_communicator *, int32_t grace);
  /** Bytes of this rank's message buffers: of each size, the largest number
      that was ever in flight at once. */
  int64_t (*held)(cleave_communicator *);
  /** Ends this rank's part. Without a failure, all ranks should close. */
  void (*close)(cleave_communicator *);
};

/** Implementations begin with these. */
struct cleave_communicator {
  const struct cleave_communicator_api *api;
  int32_t rank;
  int32_t size;
};

/**
 * What a plugin exports: connects this process as one rank of its launch. The
 * team stays valid until `close`. Null, with a text in `error`, on failure.
 */
#define CLEAVE_COMMUNICATOR_OPEN "cleave_communicator_open"
typedef cleave_communicator *(*cleave_communicator_open_function)(
    uint32_t abi, const struct cleave_team *team, char *error,
    size_t error_size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CLEAVE_RUNTIME_COMMUNICATOR_COMMUNICATOR_H */
