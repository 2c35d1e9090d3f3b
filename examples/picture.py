# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pictures of what the examples measure, as SVG."""

import math
import pathlib

from cleave.reports.svg import open_svg, text

HUES = (210, 10, 130, 40, 280, 180, 330, 90)
LEFT, TOP, WIDE, HIGH = 64, 40, 420, 240


def ticks(low, high, log):
    """Round values within [low, high], about five of them: multiples of 1, 2 or 5 times a power of
    ten. With `log` these are logarithms, and their values powers of ten, or 1, 2 and 5 times these."""
    if log:
        factors = (1,) if high - low > 2 else (1, 2, 5) if high - low > 0.5 else range(1, 10)
        powers = range(math.floor(low), math.ceil(high) + 1)
        found = [power + math.log10(factor) for power in powers for factor in factors]
    else:
        power = 10.0 ** math.floor(math.log10((high - low) / 4))
        unit = next(power * n for n in (1, 2, 5, 10) if (high - low) / (power * n) <= 6)
        found = [unit * i for i in range(math.floor(low / unit), math.ceil(high / unit) + 1)]
    return [value for value in found if low - 1e-9 <= value <= high + 1e-9]


class Axis:
    """Places values of one axis between two pixels."""

    def __init__(self, values, begin, end, log=False):
        values = [math.log10(v) if log else float(v) for v in values]
        self.low, self.high = min(values), max(values)
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self.begin, self.end, self.log = begin, end, log

    def place(self, value):
        """The pixel of `value`, or of its logarithm's value where `log` is set."""
        value = math.log10(value) if self.log else value
        return self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low)

    def ticks(self):
        """Pairs of a pixel and the number that stands there."""
        for value in ticks(self.low, self.high, self.log):
            number = 10.0 ** value if self.log else value
            yield self.place(number), f"{number:.6g}"


def chart(path, title, x, y, series, points=(), log=""):
    """Writes the SVG of lines to `path`, whose folder is made.

    Args:
        title: what the picture shows; `x`, `y`: what the axes are, with units.
        series: by name, lists of (x, y); values that are not finite are left out.
        points: names of the series that are drawn as points.
        log: the axes with logarithmic scales, such as "y" or "xy"; their values that are
            not positive are left out.
    """
    def shown(a, b):
        return (math.isfinite(a) and math.isfinite(b) and (a > 0 or "x" not in log)
                and (b > 0 or "y" not in log))

    series = {name: [(a, b) for a, b in pairs if shown(a, b)] for name, pairs in series.items()}
    everything = [pair for pairs in series.values() for pair in pairs]
    if not everything:
        raise ValueError(f"nothing to draw in {path}: no series has a finite point")
    across = Axis([a for a, _ in everything], LEFT, LEFT + WIDE, "x" in log)
    up = Axis([b for _, b in everything], TOP + HIGH, TOP, "y" in log)
    out = [open_svg(LEFT + WIDE + 230, TOP + HIGH + 52),
           '<rect width="100%" height="100%" fill="#fff"/>', text(LEFT, 20, title, size=14)]
    for at, number in across.ticks():
        out.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{TOP + HIGH}" stroke="#ddd"/>')
        out.append(text(at - 3 * len(number), TOP + HIGH + 16, number, size=11))
    for at, number in up.ticks():
        out.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{LEFT + WIDE}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(text(LEFT - 7 * len(number) - 4, at + 4, number, size=11))
    out.append(f'<rect x="{LEFT}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#555"/>')
    out += [text(LEFT + WIDE / 2 - 3 * len(x), TOP + HIGH + 38, x), text(4, TOP - 8, y)]
    for i, (name, pairs) in enumerate(series.items()):
        color = f"hsl({HUES[i % len(HUES)]},65%,42%)"
        places = [(across.place(a), up.place(b)) for a, b in pairs]
        if name in points:
            out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{color}"/>' for a, b in places]
        else:
            line = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
            out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        legend = TOP + 10 + 18 * i
        out.append(f'<rect x="{LEFT + WIDE + 10}" y="{legend - 8}" width="10" height="10" fill="{color}"/>')
        out.append(text(LEFT + WIDE + 26, legend + 1, name))
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_text("\n".join([*out, "</svg>\n"]))
