# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pictures: points are where their values are, at scales of both kinds."""

import math
import xml.etree.ElementTree as xml

import pytest

import picture

SVG = "{http://www.w3.org/2000/svg}"


def drawn(path):
    """The polylines, circles and texts of a picture."""
    root = xml.parse(path).getroot()
    lines = [[tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
             for line in root.iter(f"{SVG}polyline")]
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(f"{SVG}circle")]
    return lines, circles, [text.text for text in root.iter(f"{SVG}text")]


def test_points_are_placed(tmp_path):
    path = tmp_path / "new" / "a.svg"
    picture.chart(path, "losses <1>", "step", "loss", {"a & b": [(0, 1), (10, 3)], "c": [(5, 2), (7, math.inf)]},
                  points=("c",))
    lines, circles, texts = drawn(path)
    left, right, top, bottom = 64, 64 + 420, 40, 40 + 240
    assert lines == [[(left, bottom), (right, top)]]
    assert circles == [((left + right) / 2, (top + bottom) / 2)]
    assert {"losses <1>", "step", "loss", "a & b", "c", "0", "10", "1", "3"} <= set(texts)


def test_logarithmic_scales(tmp_path):
    path = tmp_path / "b.svg"
    picture.chart(path, "t", "x", "y", {"a": [(1, 1), (10, 0.01), (100, 0.0001), (3, 0)]}, log="xy")
    lines, _, texts = drawn(path)
    assert lines == [[(64, 40), (64 + 210, 160), (64 + 420, 280)]], "0 is left out"
    assert {"1", "10", "100", "0.01", "0.0001"} <= set(texts)


@pytest.mark.parametrize("low, high, log, expected", [
    (0, 10, False, [0, 2, 4, 6, 8, 10]), (-1.5, 1.5, False, [-1.5, -1, -0.5, 0, 0.5, 1, 1.5]),
    (1e-7, 3e-7, False, [1e-7, 1.5e-7, 2e-7, 2.5e-7, 3e-7]), (-3, 1, True, [-3, -2, -1, 0, 1]),
    (-1, 0, True, [-1, math.log10(0.2), math.log10(0.5), 0]),
    (math.log10(4.1), math.log10(7), True, [math.log10(5), math.log10(6), math.log10(7)]),
])
def test_ticks(low, high, log, expected):
    assert picture.ticks(low, high, log) == pytest.approx(expected)


def test_one_value_and_none(tmp_path):
    picture.chart(tmp_path / "c.svg", "t", "x", "y", {"a": [(1, 5)]})
    assert drawn(tmp_path / "c.svg")[0] == [[(64 + 210, 160)]]
    with pytest.raises(ValueError, match="nothing to draw in none.svg"):
        picture.chart("none.svg", "t", "x", "y", {"a": [(1, math.nan)], "b": []})
