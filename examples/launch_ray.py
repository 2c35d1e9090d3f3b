# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Nodes of `launch` as actors of Ray: of the cluster that `ray.init` has connected to, or of this
machine."""

import os
import sys

import ray

from launch import GRACE, LAUNCHER, Host, Launcher, Stopped, Threads


class Channel:
    """Calls an actor from another one."""

    def __init__(self, actor):
        self.actor = actor

    def __call__(self, method, args, kwargs):
        try:
            return ray.get(self.actor.call.remote(method, args, kwargs))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayActorError:
            raise Stopped from None


class Remote:
    """The launcher of a program, as the process that started it sees it."""

    def __init__(self, actor):
        self.actor = actor

    def wait(self, timeout):
        return ray.get(self.actor.wait.remote(timeout))

    def stop(self):
        ray.get(self.actor.stop.remote())


class Actors(Threads):
    """One actor for each node, and one for the launcher."""

    def __init__(self, nodes):
        if not ray.is_initialized():
            # Workers import the nodes' modules from where this process does.
            paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            ray.init(include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": paths})
        nodes = {node.name: node for node in nodes if node.first}
        make = ray.remote(max_concurrency=64, num_cpus=0)
        self.actors = {name: make(Host).remote(node) for name, node in nodes.items()}
        self.actors[LAUNCHER] = make(Launcher).remote(len(nodes))
        self.launcher = Remote(self.actors[LAUNCHER])
        channels = {name: Channel(actor) for name, actor in self.actors.items()}
        self.lives = [self.actors[name].live.remote(channels) for name in nodes]

    def end(self):
        for name, actor in self.actors.items():
            if name != LAUNCHER:
                actor.stop.remote()
        ray.wait(self.lives, num_returns=len(self.lives), timeout=GRACE)
        for actor in self.actors.values():
            ray.kill(actor)
