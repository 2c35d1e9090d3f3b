# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Training without backpropagation, a process for each layer: pdADMM-G and -G-Q (arXiv 2105.09837).

    python examples/pdadmm.py --nodes processes --quantize 8

Each layer has an input p, weights W and b, a product z = W p + b and an output q = relu(z), all of them
variables; the output of a layer and the input of the next are tied by a dual u:

    minimise  loss(z_L) + sum over layers of  rho/2 |z - W p - b|^2 + mu/2 |W|^2
              + (but for the last)  rho/2 |q - relu(z)|^2 + <u, p' - q> + rho/2 |p' - q|^2

with p' the next layer's p. In an iteration each layer updates its p, W, b and z, sends p to the layer
before it, updates q and u, and sends them to the one after it. No layer waits for a pass through
the others. With `--quantize` q takes values of a grid, and is sent in 8 or 16 bits (-G-Q). The
features are those of a graph, averaged over neighbours 0 to 4 times, as the paper has them.
"""

import argparse
import math
import pathlib
import pickle
import threading

import numpy as np

from launch import Program
from picture import chart

#: Trials of a step of p and W, and steps of FISTA.
DOUBLINGS, FISTA_STEPS, TOLERANCE, STEP = 10, 50, 1e-3, 2.0


def relu(z):
    return np.maximum(z, 0)


def square(x):
    return float(np.sum(x * x))


def cross_entropy(z, classes):
    """Summed over samples (columns)."""
    shifted = z - z.max(0)
    picked = shifted[classes, np.arange(z.shape[1])]
    return float(np.sum(np.log(np.exp(shifted).sum(0)) - picked))


def descend(x, value, slope):
    """`x - slope/t` for the least t = 20, 40, ... whose quadratic bound holds; `x` if none does."""
    t, here = 20.0, value(x)
    for _ in range(DOUBLINGS + 1):
        new = x - slope / t
        if value(new) <= here + float(np.sum(slope * (new - x))) + t / 2 * square(new - x):
            return new
        t *= 2
    return x


class Grid:
    """Numbers that q can take: `count` of them from -1 to 2, at equal distances."""

    def __init__(self, bits):
        self.count, self.dtype = (1000, np.uint16) if bits == 16 else (256, np.uint8)
        self.values = np.linspace(-1, 2, self.count)

    def encode(self, q):
        return np.clip(np.rint((q + 1) * ((self.count - 1) / 3)), 0, self.count - 1).astype(self.dtype)

    def decode(self, codes, like):
        return self.values[codes].astype(like)


class Layer:
    """One layer and its variables. Samples are columns.

    Args:
        p: the layer's input [in, samples].
        classes: of samples, if this is the last layer; else None.
        grid: that of q, or None.
    """

    def __init__(self, p, outputs, classes, rho, mu, generator, grid=None):
        self.p, self.classes, self.rho, self.mu, self.grid = p, classes, rho, mu, grid
        self.W = generator.normal(0, 0.1, (outputs, len(p))).astype(p.dtype)
        self.b = generator.normal(0, 0.1, (outputs, 1)).astype(p.dtype)
        self.z = self.W @ p + self.b if classes is None else np.zeros((outputs, p.shape[1]), p.dtype)
        self.q, self.u = self.snap(relu(self.z)), np.zeros_like(self.z)

    def snap(self, q):
        return self.grid.decode(self.grid.encode(q), q.dtype) if self.grid else q

    def residual(self):
        return self.z - self.W @ self.p - self.b

    def update_own(self, below=None):
        """p, W, b and z. `below` are q and u of the layer before; the first layer's p is data."""
        rho = self.rho
        if below:
            q, u = below

            def of_p(p):
                return (rho / 2 * square(self.z - self.W @ p - self.b)
                        + float(np.sum(u * (p - q))) + rho / 2 * square(p - q))

            self.p = descend(self.p, of_p, -rho * self.W.T @ self.residual() + u + rho * (self.p - q))

        def of_W(W):
            return rho / 2 * square(self.z - W @ self.p - self.b) + self.mu / 2 * square(W)

        self.W = descend(self.W, of_W, -rho * self.residual() @ self.p.T + self.mu * self.W)
        self.b = self.b + self.residual().mean(1, keepdims=True)
        c = self.W @ self.p + self.b
        self.z = self.last(c) if self.classes is not None else self.hidden(c)

    def hidden(self, c):
        """z between c, its old value, and q where it is positive: of both signs the better one.
        The old value is not compared, as in the authors' code: it would keep many signs."""
        def value(z):
            return (z - c) ** 2 + (self.q - relu(z)) ** 2

        negative, positive = np.minimum(0, (c + self.z) / 2), np.maximum(0, (c + self.z + self.q) / 3)
        return np.where(value(negative) <= value(positive), negative, positive)

    def last(self, c):
        """z of least `cross entropy + rho/2 |z - c|^2`, by FISTA; the old one if that is better."""
        def value(z):
            return cross_entropy(z, self.classes) + self.rho / 2 * square(z - c)

        z = before = self.z
        momentum = 1.0
        for _ in range(FISTA_STEPS):
            power = np.exp(z - z.max(0))
            slope = power / power.sum(0)
            slope[self.classes, np.arange(z.shape[1])] -= 1
            new = (self.rho * c + z / STEP - slope) / (self.rho + 1 / STEP)
            following = (1 + math.sqrt(1 + 4 * momentum ** 2)) / 2
            z, change = new + (momentum - 1) / following * (new - before), square(new - before)
            before, momentum = new, following
            if change <= TOLERANCE ** 2:
                break
        return before if value(before) <= value(self.z) else self.z

    def update_link(self, above):
        """q and u, by p of the layer after."""
        self.q = self.snap((above + self.u / self.rho + relu(self.z)) / 2)
        self.u = self.u + self.rho * (above - self.q)

    def lagrangian(self, above=None):
        """This layer's part of it, and of the sum of |p' - q|^2."""
        part = self.rho / 2 * square(self.residual()) + self.mu / 2 * square(self.W)
        if above is None:
            return part + cross_entropy(self.z, self.classes), 0.0
        apart = square(above - self.q)
        return (part + self.rho / 2 * square(self.q - relu(self.z))
                + float(np.sum(self.u * (above - self.q))) + self.rho / 2 * apart), apart

    def predict(self, x):
        product = self.W @ x + self.b
        return product if self.classes is not None else relu(product)


def build(x, classes, widths, rho, mu, seed, grid=None):
    """Layers of `widths` outputs for features [features, samples], one after another."""
    generator, layers = np.random.default_rng(seed), []
    for i, width in enumerate(widths):
        end = i + 1 == len(widths)
        layers.append(Layer(x, width, classes if end else None, rho, mu, generator, grid))
        x = layers[-1].q
    return layers


def iterate(layers, order=None):
    """One iteration, with the layers of each half in any order; returns the Lagrangian and
    the sum of |p' - q|^2."""
    order = range(len(layers)) if order is None else order
    links = [(layer.q, layer.u) for layer in layers]
    for i in order:
        layers[i].update_own(links[i - 1] if i else None)
    for i in order:
        if i + 1 < len(layers):
            layers[i].update_link(layers[i + 1].p)
    parts = [layer.lagrangian(after.p if after else None)
             for layer, after in zip(layers, [*layers[1:], None])]
    return sum(part for part, _ in parts), sum(apart for _, apart in parts)


def predict(layers, x):
    """The class of each column."""
    for layer in layers:
        x = layer.predict(x)
    return x.argmax(0)


# ---------------------------------------------------------------------------------------------
# A node for each layer
# ---------------------------------------------------------------------------------------------


class LayerNode:
    """A layer that sends p to the layer before it, and q and u to the one after it."""

    def __init__(self, index, layer, before, after, iterations, monitor):
        self.index, self.layer, self.before, self.after = index, layer, before, after
        self.iterations, self.monitor = iterations, monitor
        self.come, self.changed = {}, threading.Condition()

    def take(self, iteration, value):
        """The message of another layer for an iteration, `(kind, iteration)`."""
        with self.changed:
            self.come[iteration] = value
            self.changed.notify_all()

    def given(self, iteration):
        with self.changed:
            self.changed.wait_for(lambda: iteration in self.come)
            return self.come.pop(iteration)

    def send(self, iteration):
        """q, in the codes of its grid, and u; returns how many bytes they have."""
        layer = self.layer
        q = layer.grid.encode(layer.q) if layer.grid else layer.q
        self.after.take(("q, u", iteration), (q, layer.u))
        return q.nbytes + layer.u.nbytes

    def run(self):
        layer, sent = self.layer, 0
        if self.after:
            self.send(0)
        for k in range(self.iterations):
            below = above = None
            if self.before:
                q, u = self.given(("q, u", k))
                below = (layer.grid.decode(q, u.dtype) if layer.grid else q), u
            layer.update_own(below)
            if self.before:
                sent += layer.p.nbytes
                self.before.take(("p", k), layer.p)
            if self.after:
                above = self.given(("p", k))
                layer.update_link(above)
                sent += self.send(k + 1)
            self.monitor.report(self.index, k, layer.lagrangian(above))
        self.monitor.finish(self.index, layer, sent)


class Monitor:
    """Collects what layers report, and ends the program with the last of them."""

    def __init__(self, count, path, launcher):
        self.count, self.path, self.launcher = count, path, launcher
        self.parts, self.layers, self.sent = {}, {}, 0
        self.lock = threading.Lock()

    def report(self, index, iteration, part):
        with self.lock:
            self.parts.setdefault(iteration, {})[index] = part

    def finish(self, index, layer, sent):
        with self.lock:
            self.layers[index], self.sent = layer, self.sent + sent
            if len(self.layers) < self.count:
                return
            rows = [[own[i] for i in range(self.count)] for _, own in sorted(self.parts.items())]
            history = [[sum(part for part, _ in row), sum(apart for _, apart in row)] for row in rows]
            with open(self.path, "wb") as file:
                pickle.dump(([self.layers[i] for i in range(self.count)], history, self.sent), file)
            self.launcher.stop()


def train_apart(nodes, layers, iterations, path):
    """Iterates with a node for each layer; returns the layers, what `iterate` returns of each
    iteration, and the bytes that were sent between layers."""
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    program, names = Program(), [f"layer {i}" for i in range(len(layers))]
    monitor = program.add("monitor", Monitor, len(layers), path, program.launcher)
    handles = [None, *map(program.handle, names), None]
    for i, layer in enumerate(layers):
        program.add(names[i], LayerNode, i, layer, handles[i], handles[i + 2], iterations, monitor)
    program.launch(nodes).wait(timeout=900)
    with open(path, "rb") as file:
        return pickle.load(file)


# ---------------------------------------------------------------------------------------------
# A graph
# ---------------------------------------------------------------------------------------------


def graph(number, communities, seed):
    """Features [5 * 16, number] of a graph's nodes, `[A^4 H, A^3 H, A^2 H, A H, H]`, and their classes.

    A = D^-1/2 (edges + I) D^-1/2. Nodes of one community are connected more often; features
    H alone are too noisy to tell communities apart.
    """
    generator = np.random.default_rng(seed)
    classes = generator.integers(communities, size=number)
    close = np.where(classes[:, None] == classes, 0.08, 0.01)
    edges = np.triu(generator.random((number, number)) < close, 1)
    edges = (edges | edges.T) + np.eye(number)
    scale = edges.sum(1) ** -0.5
    average = scale[:, None] * edges * scale
    blocks = [generator.normal(size=(communities, 16))[classes] * 0.5 + generator.normal(size=(number, 16))]
    for _ in range(4):
        blocks.insert(0, average @ blocks[0])
    return np.concatenate(blocks, 1).T.astype(np.float32), classes


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", choices=["threads", "processes", "ray"], default="processes")
    parser.add_argument("--samples", type=int, default=400, help="nodes of the graph")
    parser.add_argument("--width", type=int, default=64, help="neurons of the layers within")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--rho", type=float, default=1.0)
    parser.add_argument("--mu", type=float, default=0.01)
    parser.add_argument("--quantize", type=int, choices=[0, 8, 16], default=0, help="bits of q; 0: those of p")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/pdadmm"))
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args(arguments)[0].smoke:
        parser.set_defaults(samples=60, width=12, layers=3, iterations=10)
    options = parser.parse_args(arguments)
    x, classes = graph(options.samples, 4, 0)
    half = options.samples // 2
    widths = [options.width] * (options.layers - 1) + [4]
    series = {}
    for bits in sorted({0, 8, 16} if options.quantize == 0 else {0, options.quantize}):
        grid = Grid(bits) if bits else None
        layers = build(x[:, :half], classes[:half], widths, options.rho, options.mu, 1, grid)
        same = build(x[:, :half], classes[:half], widths, options.rho, options.mu, 1, grid)
        layers, history, sent = train_apart(options.nodes, layers, options.iterations, options.work / "layers")
        alone = [list(iterate(same)) for _ in range(options.iterations)]
        elements = half * options.width * (options.layers - 1) * options.iterations
        good = np.mean(predict(layers, x[:, half:]) == classes[half:])
        name = f"q in {bits} bits" if bits else "q in 32 bits"
        print(f"{name}: Lagrangian {history[0][0]:.2f} -> {history[-1][0]:.2f}, |p - q|^2 {history[-1][1]:.1e}, "
              f"{sent / elements:.2f} bytes sent for each element of a boundary; {good:.1%} of the other "
              f"nodes are classified correctly; equal to layers in turn, bit for bit: {history == alone}")
        series[name] = [(k + 1, part) for k, (part, _) in enumerate(history)]
    chart(options.work / "pdadmm.svg", f"pdADMM-G(-Q): {options.layers} layers, each a process of its own",
          "iteration", "Lagrangian", series, log="y")
    return series


if __name__ == "__main__":
    main()
