# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A program as a graph of nodes and handles (Launchpad, arXiv 2106.04516).

    program = Program()
    feed = program.add("feed", Feed, rows)              # a handle; nothing is constructed yet
    program.add("trainer", Trainer, feed, program.launcher)
    program.launch("processes").wait()                  # or "threads", or "ray"

A node is an object that is constructed where it runs, once the program is launched. A handle
among the arguments of its constructor becomes a client there, whose methods are those of the
other node: `feed.batch(3)` is a call, `feed.later("batch", 3)` a future of its result. Calls of a
node run at the same time, each in a thread; arguments and results are copies. A node with a
method `run` is active; the program ends when all active nodes have returned, when one raised an
exception, or when somebody calls `stop()` of `program.launcher`.

Processes listen on the loopback address, and take calls from holders of the program's key alone.
"""

import concurrent.futures
import dataclasses
import importlib
import importlib.util
import pickle
import socket
import threading
import time
import traceback

#: Seconds in which nodes end by themselves once the program is stopped.
GRACE = 10.0
#: The name of the launcher among nodes.
LAUNCHER = "launcher"


class Stopped(Exception):
    """Raised by calls of a program that has been stopped; ends `run` without an error."""


class NodeError(RuntimeError):
    """A node raised an exception, or its process ended early."""


@dataclasses.dataclass(frozen=True)
class Handle:
    """Stands for the node of a name in the arguments of others."""
    name: str


@dataclasses.dataclass(frozen=True)
class _Node:
    name: str
    constructor: type
    args: tuple
    kwargs: dict
    environment: dict = dataclasses.field(default_factory=dict)
    #: The node stands for all ranks where these are no processes; else only for one of them.
    first: bool = True


class Client:
    """Calls the methods of a node through `channel(method, args, kwargs)`, until `stopped` is set."""

    def __init__(self, channel, stopped):
        self._channel, self._stopped = channel, stopped

    def __getattr__(self, method):
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self._call(method, args, kwargs)

    def _call(self, method, args, kwargs):
        if self._stopped.is_set():
            raise Stopped
        return self._channel(method, args, kwargs)

    def later(self, method, *args, **kwargs):
        """A `concurrent.futures.Future` of the call's result."""
        future = concurrent.futures.Future()

        def call():
            try:
                future.set_result(self._call(method, args, kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        return future


def _resolve(value, clients):
    """`value` with clients in the place of handles, also inside lists, tuples and dicts."""
    if isinstance(value, Handle):
        return clients[value.name]
    if isinstance(value, (list, tuple)):
        return type(value)(_resolve(one, clients) for one in value)
    if isinstance(value, dict):
        return {key: _resolve(one, clients) for key, one in value.items()}
    return value


class Host:
    """Where a node is: constructs and runs it, and answers calls."""

    def __init__(self, node):
        self.node = node
        self.ready, self.stopped = threading.Event(), threading.Event()

    def live(self, channels):
        """Constructs the node and runs it to its end, which the launcher is told."""
        error = None
        clients = {name: Client(channel, self.stopped) for name, channel in channels.items()}
        try:
            args, kwargs = _resolve((self.node.args, self.node.kwargs), clients)
            self.object = self.node.constructor(*args, **kwargs)
            self.ready.set()
            if hasattr(self.object, "run"):
                self.object.run()
        except Stopped:
            pass
        except BaseException:
            error = f"the node '{self.node.name}' failed:\n{traceback.format_exc()}"
        channels[LAUNCHER]("ended", (self.node.name, error), {})

    def call(self, method, args, kwargs):
        while not self.ready.wait(0.02):
            if self.stopped.is_set():
                raise Stopped
        return getattr(self.object, method)(*args, **kwargs)

    def stop(self):
        self.stopped.set()


class Launcher:
    """Knows which nodes have ended. Its method for nodes is `stop`; hosts call the others."""

    def __init__(self, nodes):
        self.nodes, self.addresses, self.done = nodes, {}, set()
        self.error, self.over = None, False
        self.changed = threading.Condition()

    def stop(self):
        """Ends the program: the next calls that nodes make raise `Stopped`."""
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def ended(self, name, error):
        with self.changed:
            self.done.add(name)
            if error and not self.over:
                self.error = error
            self.over |= bool(error) or len(self.done) == self.nodes
            self.changed.notify_all()

    def meet(self, name, address):
        """Tells where a node listens; returns the addresses of all of them once these are known."""
        with self.changed:
            self.addresses[name] = address
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.over or len(self.addresses) == self.nodes)
            if self.over:
                raise Stopped
            return self.addresses

    def call(self, method, args, kwargs):
        return getattr(self, method)(*args, **kwargs)

    def wait(self, timeout=None):
        """Whether the program is over, and the error that ended it."""
        with self.changed:
            self.changed.wait_for(lambda: self.over, timeout)
            return self.over, self.error


class Program:
    """Nodes, in the order in which they were added."""

    def __init__(self):
        self.nodes = []
        self.launcher = Handle(LAUNCHER)

    def add(self, name, constructor, *args, **kwargs):
        """Adds a node, `constructor(*args, **kwargs)`; returns its handle."""
        self._add(_Node(name, constructor, args, kwargs))
        return Handle(name)

    def _add(self, node):
        if node.name in (LAUNCHER, *(other.name for other in self.nodes)):
            raise ValueError(f"two nodes have the name '{node.name}'")
        self.nodes.append(node)

    def handle(self, name):
        """The handle of a node that is added later, so that two nodes may call each other."""
        return Handle(name)

    def add_ranks(self, count, name, constructor, *args, **kwargs):
        """Adds a node for the ranks of a step that `cleave.compile` makes; returns its handle, or
        that of rank 0. They are `count` processes with the variables of a launcher, or the
        threads of one node, where the nodes are threads or actors of Ray."""
        port = str(free_port()) if count > 1 else None
        for rank in range(count):
            own = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank),
                   "LOCAL_WORLD_SIZE": str(count), "CLEAVE_ADDRESS": "localhost", "CLEAVE_PORT": port}
            self._add(_Node(f"{name} {rank}" if count > 1 else name, constructor, args, kwargs,
                            own if count > 1 else {}, rank == 0))
        return Handle(f"{name} 0" if count > 1 else name)

    def launch(self, how="threads"):
        """Starts all nodes as "threads", "processes" or actors of "ray"; returns what waits for
        their end. Ray must have been installed."""
        if how not in RUNNING:
            raise ValueError(f"nodes cannot be '{how}'; they are {', '.join(map(repr, RUNNING))}")
        if not self.nodes:
            raise ValueError("the program has no nodes; add one")
        if how == "ray" and not importlib.util.find_spec("ray"):
            raise ValueError("nodes cannot be 'ray': Ray is not installed")
        known = {name: None for name in (LAUNCHER, *(node.name for node in self.nodes))}
        for node in self.nodes:
            try:
                _resolve((node.args, node.kwargs), known)
            except KeyError as error:
                raise ValueError(f"the node '{node.name}' has a handle of {error}, which is no node") from None
        return RUNNING[how](self.nodes)


def free_port():
    """A port of the loopback address that nobody listens at."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


class Threads:
    """Nodes as threads of this process. What passes between them is pickled as between
    processes, so that nodes share nothing."""

    def __init__(self, nodes):
        self.hosts = {node.name: Host(node) for node in nodes if node.first}
        self.launcher = Launcher(len(self.hosts))
        channels = {name: self.channel(host.call) for name, host in self.hosts.items()}
        channels[LAUNCHER] = self.launcher.call
        self.threads = [threading.Thread(target=host.live, args=(channels,), daemon=True)
                        for host in self.hosts.values()]
        for thread in self.threads:
            thread.start()

    def channel(self, call):
        return lambda method, args, kwargs: _copy(call(method, *_copy((args, kwargs))))

    def end(self):
        for host in self.hosts.values():
            host.stop()
        until = time.monotonic() + GRACE
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))

    def watch(self):
        """The objects to look at from time to time: none."""

    def stop(self):
        """Ends the program."""
        self.launcher.stop()

    def wait(self, timeout=None):
        """Waits for the end of the program; raises `NodeError` if a node failed, and
        `TimeoutError` after `timeout` seconds, which ends it too."""
        until = None if timeout is None else time.monotonic() + timeout
        over = False
        while not over:
            over, error = self.launcher.wait(0.1)
            self.watch()
            if not over and until is not None and time.monotonic() > until:
                self.stop()
                self.end()
                raise TimeoutError(f"the program has not ended within {timeout:g} s")
        self.end()
        if error:
            raise NodeError(error)


def _copy(value):
    return pickle.loads(pickle.dumps(value))


def _elsewhere(module, made):
    """Makes what runs nodes, of a module that is imported once it is asked for."""
    return lambda nodes: getattr(importlib.import_module(module), made)(nodes)


#: The kinds of nodes.
RUNNING = {"threads": Threads, "processes": _elsewhere("launch_processes", "Processes"),
           "ray": _elsewhere("launch_ray", "Actors")}
