# The lit suite: every .mlir file below test/ is a test of its own.

import os
import shutil
import sys

import lit.formats

config.name = "cleave"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs", "python", "unit"]
config.test_source_root = os.path.join(config.cleave_source_dir, "test")
config.test_exec_root = os.path.join(config.cleave_build_dir, "test")

tools = os.path.join(config.cleave_build_dir, "bin")
config.environment["PATH"] = os.pathsep.join(
    [tools, config.llvm_tools_dir, os.environ.get("PATH", "")]
)
config.environment["FILECHECK_OPTS"] = "-enable-var-scope --dump-input=fail"
config.environment["CLEAVE_CACHE"] = "off"
for name in ("CUDA_HOME", "HOME", "OMP_NUM_THREADS"):
    if name in os.environ:
        config.environment[name] = os.environ[name]

config.substitutions.append(("%python", sys.executable))

# Tests of processes need the MPI plugin and a launcher. All of them run on this
# machine, however many cores it has.
plugin = os.path.join(config.cleave_build_dir, "lib", "libcleave_mpi.so")
mpirun = shutil.which("mpirun")
if mpirun and os.path.exists(plugin):
    config.available_features.add("mpi")
    config.environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
    config.environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    config.substitutions.append(("%mpirun", f"{mpirun} --oversubscribe"))
    config.substitutions.append(("%mpi_plugin", plugin))
    config.substitutions.append(
        ("%single_thread_mpi", os.path.join(os.path.dirname(plugin), "libcleave_single_thread_mpi.so")))

# An error of a pass has its name, in all tests.
config.environment["CLEAVE_VERIFY"] = "passes"

# Long proofs, and those that need much memory.
if os.environ.get("CLEAVE_TEST_ALL"):
    config.available_features.add("all")

# Tests that compile the CUDA text need a toolkit, never a device.
cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
nvcc = shutil.which("nvcc") or os.path.join(cuda, "bin", "nvcc")
if os.path.exists(nvcc):
    config.available_features.add("nvcc")
    config.substitutions.append(("%nvcc", nvcc))
