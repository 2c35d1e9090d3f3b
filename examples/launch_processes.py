# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Nodes of `launch` as processes of this machine. Each listens on the loopback address, and answers
who has the key of the program alone: what comes in is unpickled."""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import secrets
import sys
import threading
import time

from launch import GRACE, LAUNCHER, Host, Launcher, NodeError, Stopped, Threads


def serve(listener, call):
    """Answers calls that come to `listener`, one thread for each connection."""
    def answer(connection):
        try:
            while True:
                method, args, kwargs = connection.recv()
                try:
                    reply = (True, call(method, args, kwargs))
                except Exception as error:
                    reply = (False, error)
                try:
                    connection.send(reply)
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    connection.send((False, NodeError(f"'{method}' gives what cannot be sent: {error}")))
        except (EOFError, OSError):
            pass

    def accept():
        while True:
            try:
                connection = listener.accept()
            except multiprocessing.AuthenticationError:
                continue
            except (OSError, EOFError):
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _channel(address, key, stopped):
    """Calls what listens at `address`, with a connection for each thread."""
    own = threading.local()

    def ask(method, args, kwargs):
        try:
            if not hasattr(own, "connection"):
                own.connection = multiprocessing.connection.Client(address, authkey=key)
            own.connection.send((method, args, kwargs))
            good, result = own.connection.recv()
        except (EOFError, OSError):
            # The other process has ended, and so will the program.
            stopped.wait(GRACE)
            raise Stopped from None
        if not good:
            raise result
        return result

    return ask


def _process(node, launcher, key):
    """The life of a process that holds one node."""
    os.environ.update(node.environment)
    host = Host(node)
    listener = multiprocessing.connection.Listener(("127.0.0.1", 0), backlog=64, authkey=key)

    def call(method, args, kwargs):
        return host.stop() if method == "__stop__" else host.call(method, args, kwargs)

    serve(listener, call)
    channels = {LAUNCHER: _channel(launcher, key, host.stopped)}
    try:
        addresses = channels[LAUNCHER]("meet", (node.name, listener.address), {})
        channels |= {name: _channel(at, key, host.stopped) for name, at in addresses.items()}
        host.live(channels)
        host.stopped.wait()
    except Stopped:
        pass
    # Threads still wait at connections; what they hold could not be cleaned up in order.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Processes(Threads):
    """Nodes as processes of this machine."""

    def __init__(self, nodes):
        self.launcher, self.key = Launcher(len(nodes)), secrets.token_bytes(32)
        self.listener = multiprocessing.connection.Listener(("127.0.0.1", 0), backlog=64,
                                                            authkey=self.key)
        serve(self.listener, self.launcher.call)
        context = multiprocessing.get_context("spawn")
        self.nodes = nodes
        self.processes = [
            context.Process(target=_process, args=(node, self.listener.address, self.key), daemon=True)
            for node in nodes]
        for process in self.processes:
            process.start()

    def watch(self):
        for node, process in zip(self.nodes, self.processes):
            if process.exitcode is not None and node.name not in self.launcher.done:
                self.launcher.ended(node.name, f"the process of the node '{node.name}' has ended "
                                               f"early, with status {process.exitcode}")

    def end(self):
        for address in self.launcher.addresses.values():
            try:
                with multiprocessing.connection.Client(address, authkey=self.key) as connection:
                    connection.send(("__stop__", (), {}))
                    connection.recv()
            except (EOFError, OSError):
                pass  # It has ended.
        until = time.monotonic() + GRACE
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.exitcode is None:
                process.terminate()
                process.join()
        self.listener.close()
