/*===- SingleThreadMpi.c - An MPI library without threads ---------*- C -*-===*\
|*                                                                            *|
|* Part of the Cleave project, under the Apache License v2.0 with LLVM        *|
|* Exceptions. See LICENSE for license information.                           *|
|*                                                                            *|
\*===----------------------------------------------------------------------===*/
/* Loaded before MPI: starts it, and says that it gives no threads. */

#include <mpi.h>

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
  int result = PMPI_Init_thread(argc, argv, required, provided);
  *provided = MPI_THREAD_SINGLE;
  return result;
}
