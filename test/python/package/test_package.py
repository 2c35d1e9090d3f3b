# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`pip install .` into an environment of its own: the package, and its commands.

That wheel is built in build-wheel, beside the build, as a release. The one of `make wheel`, which
needs no LLVM where it runs, is tested if it was made.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

import cleave
import proofs
from cleave.testing.tools import build_dir

ROOT = pathlib.Path(__file__).resolve().parents[3]

#: What a user does first, without a checkout.
SCRIPT = """
import subprocess, sys, torch, cleave
from cleave.testing.tools import tool
assert cleave.__file__.startswith(sys.prefix), cleave.__file__
model = torch.nn.Linear(4, 3)
x, y = torch.randn(8, 4), torch.randint(3, (8,))
step = cleave.compile(model, (x, y), torch.nn.functional.cross_entropy, mesh={"dp": 2})
first = step(x, y)
assert step(x, y) < first
step.save("saved")
step.save_artifact("linear.so")
for name in ("cleave-compile", "cleave-run", "cleave-opt", "cleave-reference"):
    assert tool(name).startswith(sys.prefix), tool(name)
    said = subprocess.run([tool(name), "--version"], capture_output=True, text=True, check=True)
    assert cleave.__version__ in said.stdout, said.stdout
print("works", cleave.__version__)
"""


def environment(folder):
    """An environment that sees this one's packages after its own."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(*command, **settings):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          **settings)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_version_is_in_one_place():
    text = (ROOT / "pyproject.toml").read_text()
    assert 'input = "python/cleave/version.py"' in text and "\nversion =" not in text
    assert re.fullmatch(r"\d+\.\d+\.\d+", cleave.__version__)


def test_package_needs_what_the_tests_have():
    """The versions of pyproject.toml take those of requirements.txt."""
    from packaging.requirements import Requirement

    text = (ROOT / "pyproject.toml").read_text()
    wanted = [Requirement(one) for one in re.findall(r'"([^"]+)"', re.search(
        r"\ndependencies = \[(.*?)\]", text, re.S)[1])]
    assert {one.name for one in wanted} == {"torch", "numpy", "safetensors"}
    pinned = dict(line.split("==") for line in (ROOT / "requirements.txt").read_text().split("\n")
                  if "==" in line)
    for one in wanted:
        assert one.specifier.contains(pinned[one.name]), one
    assert f'"nanobind=={pinned["nanobind"]}"' in text


@pytest.mark.parametrize("use", [
    "from cleave import CompileError", "cleave.StepError, cleave.CompileError",
    "from cleave import _cleave", "from cleave import _runtime",
    "cleave.compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),), lambda y: y.sum())",
    "cleave.load('nothing', torch.nn.Linear(2, 2))"])
def test_a_package_that_is_not_built_says_so(tmp_path, use):
    """What needs no native module is there; what does says how it is built."""
    shutil.copytree(ROOT / "python" / "cleave", tmp_path / "cleave",
                    ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    code = f"import torch, cleave, cleave.feed, cleave.trace\n{use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    if "cleave.load" in use:
        assert "ImportError" in done.stderr or "FileNotFoundError" in done.stderr
        return
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: Cleave is not built for "), last
    assert "`make` in the repository builds it" in last and str(tmp_path) in last


def test_native_modules_are_imported_by_the_package():
    """Which says how they are built; an import of their names would not."""
    for path in (ROOT / "python" / "cleave").rglob("*.py"):
        found = re.search(r"(from|import) (\.+|cleave\.)_(cleave|runtime)\b", path.read_text())
        assert not found, f"{path}: {found[0]}"


#: A step for the CPU and, on the stand-in of a GPU, one by the plugin of the package.
STEPS = """
import os, sys, torch, cleave
assert cleave.__file__.startswith(os.getcwd()), cleave.__file__
model = torch.nn.Linear(4, 3)
x, y = torch.randn(8, 4), torch.randint(3, (8,))
for more in [{}, dict(target="cuda", arch="sm_90")][: 1 + ("CLEAVE_CUDA_LIBRARIES" in os.environ)]:
    step = cleave.compile(model, (x, y), torch.nn.functional.cross_entropy, **more)
    first = step(x, y)
    assert step(x, y) < first
print("trains")
"""


def test_what_a_wheel_has(tmp_path):
    """By CMake's list of what is installed, from what is built: the modules and plugins, and
    cleave-run; from these files alone a step trains, and each command is there."""
    said = subprocess.run(["cmake", "--install", build_dir(), "--component", "package", "--prefix",
                           tmp_path], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    plugins = [plugin for plugin in ("libcleave_cuda.so", "libcleave_mpi.so")
               if (build_dir() / "lib" / plugin).exists()]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {
        "cleave/bin/cleave-run", *(f"cleave/{name}{suffix}" for name in ("_cleave", "_runtime")),
        *(f"cleave/{plugin}" for plugin in plugins)}
    shutil.copytree(ROOT / "python" / "cleave", tmp_path / "cleave", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    clean = {name: value for name, value in os.environ.items()
             if name not in ("CLEAVE_BUILD_DIR", "CLEAVE_CUDA_LIBRARIES", "CLEAVE_CUDA_PLUGIN")}
    if "libcleave_cuda.so" in plugins and (build_dir() / "fake_cuda" / "libcuda.so.1").exists():
        clean |= {"CLEAVE_CUDA_LIBRARIES": str(build_dir() / "fake_cuda"), "CLEAVE_TUNING": "off"}
    assert run(sys.executable, "-c", STEPS, cwd=tmp_path,
               env={**clean, "PYTHONPATH": str(tmp_path)}).endswith("trains\n")
    for command in ("run", "compile", "opt", "reference"):
        said = run(sys.executable, "-c", f"import cleave.tools; cleave.tools.{command}()",
                   "--version", cwd=tmp_path, env={**clean, "PYTHONPATH": str(tmp_path)})
        assert cleave.__version__ in said, said


@pytest.mark.skipif(not proofs.ALL, reason="CLEAVE_TEST_ALL=1 builds a wheel")
def test_wheel(tmp_path):
    builder = environment(tmp_path / "builder")
    needs = re.search(r"\nrequires = \[(.*?)\]", (ROOT / "pyproject.toml").read_text())[1]
    found = subprocess.run([builder, "-m", "pip", "install", "--quiet",
                            "--disable-pip-version-check", *re.findall(r'"([^"]+)"', needs)],
                           capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"no package index: {found.stderr[-200:]}")
    cache = {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("C", "CXX")}
    variables = os.environ | (cache if shutil.which("ccache") else {}) | {
        "CCACHE_SLOPPINESS": "pch_defines,time_macros", "CCACHE_BASEDIR": str(ROOT),
        "CCACHE_NOHASHDIR": "1"}
    run(builder, "-m", "pip", "wheel", ROOT, "-w", tmp_path, "--no-build-isolation", "--no-deps",
        "--disable-pip-version-check", "--config-settings",
        f"build-dir={ROOT / 'build-wheel'}", env=variables)
    assert "\nCMAKE_BUILD_TYPE:STRING=Release\n" in (ROOT / "build-wheel" / "CMakeCache.txt").read_text()
    (wheel,) = tmp_path.glob("cleave-*.whl")
    assert cleave.__version__ in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    # For programs that check types.
    assert {"cleave/py.typed", "cleave/_cleave.pyi", "cleave/_runtime.pyi"} <= {*names}
    for plugin in ("libcleave_cuda.so", "libcleave_mpi.so"):
        if (build_dir() / "lib" / plugin).exists():
            assert f"cleave/{plugin}" in names, names
    user = environment(tmp_path / "user")
    run(user, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", wheel)
    (tmp_path / "elsewhere").mkdir()
    clean = {name: value for name, value in os.environ.items()
             if name not in ("PYTHONPATH", "CLEAVE_BUILD_DIR")}
    said = run(user, "-c", SCRIPT, cwd=tmp_path / "elsewhere", env=clean)
    assert said.split()[-2:] == ["works", cleave.__version__]


#: A step on a machine without LLVM; torch is the environment's.
WHEEL_SCRIPT = """
import sys, torch, cleave
model = torch.nn.Linear(4, 3)
x, y = torch.randn(8, 4), torch.randint(3, (8,))
step = cleave.compile(model, (x, y), torch.nn.functional.cross_entropy, mesh={"dp": 2})
step(x, y)
torch.randn(300, 300) @ torch.randn(300, 300)
maps = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(*sorted(maps), sep="\\n")
"""


def test_wheel_without_llvm(tmp_path):
    """The wheel that `make wheel` has left: its contents, and a step in an environment whose PATH has
    nothing else. Of OpenMP runtimes one is loaded, of the checkout and of LLVM nothing."""
    wheels = [*(build_dir() / "wheel").glob("cleave-*.whl")]
    if not wheels:
        pytest.skip("`make wheel` was not run")
    builder = build_dir() / "wheel" / "venv" / "bin" / "python"
    run(builder, ROOT / "scripts" / "check_wheel.py", wheels[0])
    user = environment(tmp_path / "user")
    run(user, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", wheels[0])
    clean = {"PATH": str(user.parent), "HOME": str(tmp_path), "CLEAVE_CACHE": "off"}
    loaded = run(user, "-c", WHEEL_SCRIPT, cwd=tmp_path, env=clean).split()
    assert len([path for path in loaded if "gomp" in path]) == 1, loaded
    assert not [path for path in loaded if "LLVM" in path or "MLIR" in path], loaded
    ours = [path for path in loaded if "cleave" in path or "dnnl" in path]
    assert ours and all(path.startswith(str(tmp_path)) for path in ours), ours
    said = run(user, "-m", "cleave.selftest", "--filter", "tools", cwd=tmp_path, env=clean)
    assert said.endswith("2 passed, 0 failed\n"), said
