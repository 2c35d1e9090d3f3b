"""Checks that a wheel needs no LLVM, and prints its size and what it has.

usage: python scripts/check_wheel.py WHEEL

Needs pyelftools, which `auditwheel` brings. A problem is printed, and the status is 1.
"""

import io
import pathlib
import re
import sys
import zipfile

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

#: Bytes of a wheel, at most.
LIMIT = 100 * 2**20
#: Libraries that each machine with PyTorch has, and those of the wheel and of MPI.
ALLOWED = re.compile(r"(libc|libm|libdl|librt|libpthread|ld-linux-x86-64|libgcc_s|libstdc\+\+|libz"
                     r"|libgomp|libOpenCL-[0-9a-f]+)\.so[.0-9]*")
NEEDED = ["cleave/_cleave.cpython-*.so", "cleave/_runtime.cpython-*.so", "cleave/bin/cleave-run",
          "cleave/libs/libdnnl.so.*", "cleave/libs/libgomp.so.1", "cleave/licenses/README.md",
          "cleave/demo.py", "cleave/selftest.py", "cleave-*.dist-info/entry_points.txt"]


def facts_of(content):
    """Libraries that a shared object or program needs, and symbols that it exports."""
    elf = ELFFile(io.BytesIO(content))
    needed = []
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            needed += [tag.needed for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
    table = elf.get_section_by_name(".dynsym")
    exported = [symbol.name for symbol in table.iter_symbols()
                if symbol.entry.st_shndx != "SHN_UNDEF"
                and symbol.entry.st_info.bind in ("STB_GLOBAL", "STB_WEAK")] if table else []
    return needed, exported


def problems_of(path):
    """The problems of a wheel; prints its large files."""
    found = []
    size = path.stat().st_size
    print(f"{path.name}: {size / 2**20:.1f} MiB")
    if size > LIMIT:
        found.append(f"it has {size} bytes, more than {LIMIT}")
    if "manylinux_2_36_x86_64" not in path.name:
        found.append("its name does not say manylinux_2_36_x86_64")
    with zipfile.ZipFile(path) as wheel:
        infos = {info.filename: info for info in wheel.infolist()}
        for pattern in NEEDED:
            if not any(pathlib.PurePath(name).match(pattern) for name in infos):
                found.append(f"{pattern} is not in it")
        for name, info in infos.items():
            if info.file_size < 4:
                continue
            content = wheel.read(name)
            if content[:4] != b"\x7fELF":
                continue
            needed, exported = facts_of(content)
            print(f"  {info.compress_size / 2**20:5.1f} MiB ({info.file_size / 2**20:5.1f})  {name}")
            for library in needed:
                mpi = library.startswith("libmpi.so") and name.endswith("libcleave_mpi.so")
                if not ALLOWED.fullmatch(library) and not mpi:
                    found.append(f"{name} needs {library}")
            if pathlib.PurePath(name).match("cleave/_*.so"):
                others = [one for one in exported if not one.startswith("PyInit_")]
                if others:
                    found.append(f"{name} exports {len(others)} symbols, as {others[0]}")
            if name.endswith("bin/cleave-run") and not info.external_attr >> 16 & 0o111:
                found.append(f"{name} cannot be executed")
    return found


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = problems_of(pathlib.Path(sys.argv[1]))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
