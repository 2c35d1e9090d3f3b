"""Runs the three suites (lit, unit, Python) and sums their counts.

The last line is `N passed, N failed, N skipped`; the exit status is 0 only when
nothing failed and every suite ran. Of the largest files of Python tests a sample runs,
which the hash of the tree draws; the first line names it.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test" / "python" / "support"))

import proofs  # noqa: E402
import sample  # noqa: E402


class Count:
    """Results of one suite."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def lit(build, scratch, jobs, filters):
    """Runs the lit suite; returns its Count."""
    out = scratch / "lit.json"
    tools = subprocess.check_output(
        ["llvm-config-22", "--bindir"], text=True
    ).strip()
    # The packaged runner is a Python script: run it by this interpreter.
    command = [sys.executable, os.path.join(tools, "lit"), "-sv", f"-j{jobs}"]
    command += [f"--filter={f}" for f in filters] + ["--output", str(out)]
    subprocess.run(command + [str(build / "test")], cwd=ROOT)
    count = Count()
    if not out.exists():
        count.failed = 1
        return count
    for test in json.loads(out.read_text())["tests"]:
        code = test["code"]
        if code in ("PASS", "FLAKYPASS", "XFAIL"):
            count.passed += 1
        elif code in ("UNSUPPORTED", "SKIPPED", "EXCLUDED"):
            count.skipped += 1
        else:
            count.failed += 1
    return count


# How lines of tests that pass begin.
QUIET = ("[ RUN      ]", "[       OK ]", "[----------]")


def unit(build, scratch, jobs, filters):
    """Runs every test program of <build>/unit, `jobs` at once; returns their Count."""
    programs = [
        path
        for path in sorted((build / "unit").glob("*"))
        if path.is_file() and os.access(path, os.X_OK)
        and (not filters or any(f in path.name for f in filters))
    ]

    def run(program):
        out = scratch / f"{program.name}.json"
        folder = scratch / program.name
        folder.mkdir()
        result = subprocess.run(
            [str(program), f"--gtest_output=json:{out}"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return out, result

    count = Count()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # In order, as they end.
        for program, (out, result) in zip(programs, pool.map(run, programs)):
            ended = out.exists()
            for line in result.stdout.decode(errors="replace").splitlines():
                # Of a program that was killed, the last test is the one.
                if not ended or (line and not line.startswith(QUIET)):
                    print(line, flush=True)
            if not ended:
                print(f"FAIL: {program.name} ended with status {result.returncode}")
                count.failed += 1
                continue
            for suite in json.loads(out.read_text())["testsuites"]:
                for test in suite["testsuite"]:
                    if test.get("failures"):
                        count.failed += 1
                    elif test["result"] == "SKIPPED" or test["status"] != "RUN":
                        count.skipped += 1
                    else:
                        count.passed += 1
    return count


def print_slowest_files(report, shown=20):
    """Prints the files of Python tests that took longest, from a JUnit report."""
    seconds = collections.Counter()
    for case in xml.parse(report).getroot().iter("testcase"):
        seconds[case.get("classname").rpartition("test.python.")[2]] += float(case.get("time"))
    print(f"slowest files of {sum(seconds.values()):.0f} s of Python tests:")
    for name, taken in seconds.most_common(shown):
        print(f"{taken:8.1f} s  {name}")


def python(scratch, jobs, filters):
    """Runs the Python tests in `jobs` processes; returns their Count."""
    out = scratch / "pytest.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--durations=15", f"--junitxml={out}", str(ROOT / "test" / "python")]
    environment = dict(os.environ)
    if jobs > 1:
        command += ["-n", str(jobs), "--dist", "worksteal"]
        # The processes share the cores, which PyTorch would take for itself.
        environment.setdefault("OMP_NUM_THREADS", "1")
    for f in filters:
        command += ["-k", f]
    run = subprocess.run(command, cwd=ROOT, env=environment)
    count = Count()
    if not out.exists():
        count.failed = 1
        return count
    for suite in xml.parse(out).getroot().iter("testsuite"):
        total = int(suite.get("tests", 0))
        count.failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        count.skipped = int(suite.get("skipped", 0))
        count.passed = total - count.failed - count.skipped
    print_slowest_files(out)
    # Also what all tests of a module together show.
    if run.returncode not in (0, 5) and not count.failed:
        count.failed = 1
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build", help="the build folder")
    parser.add_argument(
        "--suite",
        action="append",
        choices=["lit", "unit", "python"],
        help="run this suite only (may be repeated)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        help="processes of the lit and Python suites (all cores)",
    )
    parser.add_argument(
        "--filter", action="append", default=[], help="run the tests that match"
    )
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve()
    os.environ["CLEAVE_BUILD_DIR"] = str(build)
    suites = options.suite or ["lit", "unit", "python"]
    total = Count()
    seconds = {}
    sampled = "python" in suites and not options.filter and not proofs.ALL
    if sampled:
        os.environ[sample.NAME] = sample.of_tree(ROOT)
        print(f"sample {os.environ[sample.NAME]}; {sample.NAME}={os.environ[sample.NAME]} repeats it", flush=True)
    with tempfile.TemporaryDirectory(prefix="cleave-test-") as folder:
        scratch = pathlib.Path(folder)
        left_out = scratch / "left-out"
        os.environ[sample.COUNT] = str(left_out)
        for suite in suites:
            start = time.monotonic()
            if suite == "lit":
                count = lit(build, scratch, options.jobs, options.filter)
            elif suite == "unit":
                count = unit(build, scratch, options.jobs, options.filter)
            else:
                count = python(scratch, options.jobs, options.filter)
            if not options.filter and count.passed + count.failed == 0:
                print(f"FAIL: the {suite} suite ran no test")
                count.failed = 1
            seconds[suite] = time.monotonic() - start
            print(f"{suite}: {count} in {seconds[suite]:.0f} s", flush=True)
            total.add(count)
        if left_out.exists():
            print(f"left out by sample {os.environ[sample.NAME]}: {left_out.read_text()} Python cases; "
                  "CLEAVE_TEST_ALL=1 runs them")
    parts = ", ".join(f"{suite} {taken:.0f} s" for suite, taken in seconds.items())
    print(f"{sum(seconds.values()):.0f} s in all: {parts}")
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
