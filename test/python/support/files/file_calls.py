# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What a process does to files, recorded call by call (file_calls.c), and what of it is left on a
disk when the power is cut at any moment."""

import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

#: A C compiler; None where there is none.
COMPILER = next((found for name in ("cc", "clang-22", "gcc") if (found := shutil.which(name))), None)


@functools.cache
def library():
    out = os.path.join(tempfile.mkdtemp(prefix="cleave-calls-"), "calls.so")
    source = pathlib.Path(__file__).with_suffix(".c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", out, str(source), "-ldl"], check=True)
    return out


def environment(root, log, at=None, do="kill", count=1):
    """For a process whose calls below `root` are recorded in `log`. The call number `at` ends it
    (`do="kill"`), or it and `count - 1` further ones fail with the number of an error."""
    env = {**os.environ, "LD_PRELOAD": library(), "FILE_CALLS_ROOT": os.path.abspath(root),
           "FILE_CALLS_LOG": os.path.abspath(log)}
    if at is not None:
        env.update(FILE_CALLS_AT=str(at), FILE_CALLS_DO=str(do), FILE_CALLS_FOR=str(count))
    return env


def calls(log):
    """(kind, path, other path, place, data) of each call."""
    found, data, at = [], pathlib.Path(log).read_bytes() if os.path.exists(log) else b"", 0
    while at < len(data):
        end = data.index(b"\n", at)
        kind, one, other, place, size = data[at:end].decode().split("\t")
        found.append((kind, one, other, int(place), data[end + 1 : end + 1 + int(size)]))
        at = end + 1 + int(size)
    return found


class File:
    """A file: what it holds, and what of that is on the disk."""

    def __init__(self, data=b"", disk=b""):
        self.data, self.disk = bytearray(data), bytes(disk)


class Folder:
    """A folder: its names, those on the disk, and the states between."""

    def __init__(self, names=None):
        self.names = dict(names or {})
        self.states = [dict(self.names)]  # From the last that is on the disk to now.

    def changed(self):
        self.states.append(dict(self.names))


def read_tree(path):
    """The synchronised content of a disk."""
    path = pathlib.Path(path)
    if path.is_symlink():
        return os.readlink(path)
    if path.is_dir():
        return Folder({p.name: read_tree(p) for p in path.iterdir()})
    data = path.read_bytes()
    return File(data, data)


def copy_tree(node):
    """The same tree again, to be changed on its own."""
    if isinstance(node, Folder):
        return Folder({name: copy_tree(own) for name, own in node.names.items()})
    return File(bytes(node.data), node.disk) if isinstance(node, File) else node


class Disk:
    """Files below `root` as calls change them: in memory, and on the disk."""

    def __init__(self, root, tree):
        self.root, self.top = pathlib.PurePath(os.path.abspath(root)), tree

    def _parts(self, path):
        return pathlib.PurePath(os.path.normpath(path)).relative_to(self.root).parts

    def _at(self, path):
        node = self.top
        for part in self._parts(path):
            node = node.names[part]
        return node

    def _place(self, path):
        *parents, name = self._parts(path)
        return self._at(self.root.joinpath(*parents)), name

    def apply(self, kind, one, other, place, data):
        if kind in ("create", "mkdir"):
            folder, name = self._place(one)
            folder.names[name] = File() if kind == "create" else Folder()
            folder.changed()
        elif kind == "write":
            own = self._at(one).data
            own.extend(bytes(max(0, place - len(own))))
            own[place : place + len(data)] = data
        elif kind in ("truncate", "resize"):
            own = self._at(one).data
            del own[place:]
            own.extend(bytes(place - len(own)))
        elif kind == "sync":
            node = self._at(one)
            if isinstance(node, Folder):
                node.states = [dict(node.names)]
            else:
                node.disk = bytes(node.data)
        elif kind in ("rename", "exchange"):
            (source, a), (target, b) = self._place(one), self._place(other)
            gone = source.names.pop(a)
            if kind == "exchange":
                source.names[a] = target.names[b]
            target.names[b] = gone
            source.changed()
            if target is not source:
                target.changed()
        elif kind == "remove":
            folder, name = self._place(one)
            del folder.names[name]
            folder.changed()

    def state(self, names, contents, node=None):
        """What is left: nested dicts of bytes, and of links as text. `names(folder)` chooses one
        of its states, `contents(file)` its bytes."""
        node = self.top if node is None else node
        if isinstance(node, Folder):
            return {name: self.state(names, contents, own) for name, own in names(node).items()}
        return contents(node) if isinstance(node, File) else node


def cuts(disk, random, draws=4):
    """States that a cut of the power can leave now: (what they are, nested dicts)."""
    def last(folder):
        return folder.states[-1]

    def first(folder):
        return folder.states[0]

    def on_disk(file):
        return file.disk

    def written(file):
        return bytes(file.data)

    yield "what was not synchronised is lost", disk.state(first, on_disk)
    yield "names are kept, contents are lost", disk.state(last, on_disk)
    yield "contents are kept, names are lost", disk.state(first, written)
    yield "all is kept", disk.state(last, written)
    for _ in range(draws):
        yield "drawn", disk.state(lambda folder: random.choice(folder.states),
                                  lambda file: random.choice([file.disk, bytes(file.data)]))


def write_tree(tree, path):
    """Makes files of nested dicts."""
    path = pathlib.Path(path)
    if isinstance(tree, dict):
        path.mkdir()
        for name, own in tree.items():
            write_tree(own, path / name)
    elif isinstance(tree, str):
        path.symlink_to(tree)
    else:
        path.write_bytes(tree)
