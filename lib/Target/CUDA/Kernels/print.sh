#!/bin/sh
# Prints the kernels of commands as one text for a CUDA compiler, behind the
# functions that generated kernels begin with.
set -e
cd "$(dirname "$0")"
sed -n '/R"(\/\/ Compile/,/^)";/{s/^.*R"(//;/^)";/d;p}' \
  ../DeviceFunctions.cpp
cat ../../../../include/cleave/Executable/Cuda/KernelArguments.h \
  Copy.cu Fill.cu Check.cu Reduce.cu ScatterAdd.cu TopK.cu Orthonormalize.cu \
  Grouped.cu   Attention.cu Attention16.cu
