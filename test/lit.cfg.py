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
for name in ("CUDA_HOME", "HOME", "OMP_NUM_THREADS"):
    if name in os.environ:
        config.environment[name] = os.environ[name]

config.substitutions.append(("%python", sys.executable))

# Tests that compile the CUDA text need a toolkit, never a device.
cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
nvcc = shutil.which("nvcc") or os.path.join(cuda, "bin", "nvcc")
if os.path.exists(nvcc):
    config.available_features.add("nvcc")
    config.substitutions.append(("%nvcc", nvcc))
