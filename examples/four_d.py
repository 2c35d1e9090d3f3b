"""Trains one small model on sixteen ranks, split in four ways at once, and explains it.

The mesh has two ranks along each of four axes. Each axis splits something else of a step:

  pp  the layers: a rank computes those of its stage, and sends what they return to the next
  dp  the samples: ranks train on other samples, and sum their gradients
  cp  the sequence: a rank has some positions, and attention gets the keys of the others
  tp  the heads and the features: a rank multiplies with its part of each weight

A rank is one place along all four: it holds the layers of its stage, of these the heads and
features of its place along tp, and computes its samples at its positions. The ranks are threads
of this process. The program prints who holds what and what is sent along each axis in a step,
compares the losses with those of one device, and draws both as SVG.
"""

import argparse
import collections
import html
import itertools
import math
import pathlib
import re
import sys

MESH = {"pp": 2, "dp": 2, "cp": 2, "tp": 2}
PLANS = {
    "ring": ["megatron-sp", "ring", "zero1"],
    "ulysses": ["megatron", "ulysses", "zero3"],
}
#: What each axis splits, and why ranks along it exchange values, by recipe.
AXES = {
    "pp": ("layers", {"": "a stage's results to the next, their gradients back"}),
    "dp": ("samples", {
        "zero1": "sums of gradients to the part of the optimizer's state that a rank holds; "
                 "updated weights back",
        "zero3": "weights before each use, of which a rank holds a part; sums of gradients"}),
    "cp": ("positions", {
        "ring": "keys and values from rank to rank, until each query has met all of them",
        "ulysses": "positions for heads before attention, and back behind it"}),
    "tp": ("heads and features", {
        "megatron-sp": "positions before a pair of products, the sums of their results behind it",
        "megatron": "the sums of what each pair of products returns"}),
}
MICRO_BATCHES = 4


def model_for(options):
    import torch

    import cleave

    torch.manual_seed(0)
    return cleave.models.llama(hidden=options.hidden, heads=options.heads, layers=options.layers,
                               seq=options.sequence, vocab=256)


def batches(options):
    """Bytes of this file, a batch for each step."""
    import torch

    text = torch.tensor(list(pathlib.Path(__file__).read_bytes()))
    generator = torch.Generator().manual_seed(0)
    for _ in range(options.steps):
        starts = torch.randint(0, len(text) - options.sequence, (options.batch,),
                               generator=generator)
        yield torch.stack([text[start:start + options.sequence] for start in starts])


def train(options, **settings):
    """The step, and its losses."""
    import cleave

    data = list(batches(options))
    try:
        step = cleave.compile(model_for(options), {"input_ids": data[0], "labels": data[0]},
                              optimizer=cleave.AdamW(lr=1e-3), target=cleave.Target(threads=1),
                              **settings)
    except (cleave.CompileError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    return step, [float(step(ids, ids)) for ids in data]


def places():
    """The place of each rank along each axis; the last axis has neighbouring ranks."""
    for place in itertools.product(*map(range, MESH.values())):
        yield dict(zip(MESH, place))


def layers_of(tensors, position):
    """The blocks whose parameters are at a position of the pipeline."""
    return sorted({int(found[1]) for name, tensor in tensors.items()
                   if position in tensor.get("positions", MESH)
                   and (found := re.match(r"blocks\.(\d+)\.", name))})


def part(size, axis, place):
    """The range that a rank has of `size` elements split over one axis."""
    share = size // MESH[axis]
    first, last = place[axis] * share, (place[axis] + 1) * share - 1
    return f"{first}-{last}" if first < last else str(first)


def positions_of(options, place):
    """The positions of a rank. A ring gives it an early and a late chunk, so that all ranks have
    as much work under a causal mask."""
    if options.plan != "ring":
        return part(options.sequence, "cp", place)
    chunks, own = 2 * MESH["cp"], place["cp"]
    length = options.sequence // chunks
    return ", ".join(f"{chunk * length}-{(chunk + 1) * length - 1}"
                     for chunk in (own, chunks - 1 - own))


def holdings(step, options):
    """For each rank what it computes with and on."""
    tensors = step.report()["placement"]["tensors"]
    for rank, place in enumerate(places()):
        blocks = layers_of(tensors, place["pp"])
        yield {
            "rank": rank, "place": place, "layers": ", ".join(map(str, blocks)),
            "samples": part(options.batch // MICRO_BATCHES, "dp", place),
            "positions": positions_of(options, place),
            "heads": part(options.heads, "tp", place),
        }


def shard(step, name):
    """The shape of a tensor on a rank that holds it."""
    tensor = step.report()["placement"]["tensors"][name]
    return [math.ceil(size / math.prod(axis["size"] for axis in axes))
            for size, axes in zip(tensor["shape"], tensor["dims"])]


def traffic(step):
    """Bytes that a rank sends in a step, by axes and kind, as counted in the last one."""
    sent = collections.Counter()
    for entry in step.communication():
        sent[entry["axes"].replace(" ", ""), entry["kind"]] += entry["bytes"]
    return {key: size for key, size in sent.items() if size}


def reason(axis, plan):
    """The elements sent along an axis under a plan."""
    return next(why for recipe, why in AXES[axis][1].items() if recipe in ("", *plan))


def explain(step, options):
    plan = PLANS[options.plan]
    print(f"{math.prod(MESH.values())} ranks, "
          + " x ".join(f"{axis}={size}" for axis, size in MESH.items())
          + f"; plan {', '.join(plan)}; {options.schedule}, {MICRO_BATCHES} micro-batches\n")
    for axis, (what, _) in AXES.items():
        print(f"{axis}: splits {what}; ranks exchange {reason(axis, plan)}")
    print("\nwhat a rank holds")
    weight = "blocks.0.attention.query.weight"
    tensors = step.report()["placement"]["tensors"]
    for name in ("input_ids", weight, f"{weight}.exp_avg"):
        axes = [axis["axis"] for dim in tensors[name]["dims"] for axis in dim]
        print(f"  {name}: {shard(step, name)} of {tensors[name]['shape']}, split over "
              f"{', '.join(axes) or 'nothing'}")
    print("  residual stream in a micro-batch: "
          f"{[options.batch // MICRO_BATCHES // 2, options.sequence // 2, options.hidden]} of "
          f"{[options.batch // MICRO_BATCHES, options.sequence, options.hidden]}, split over dp, cp"
          + (", between products also over tp" if options.plan == "ring" else ""))
    print("\nsamples are those of a micro-batch; a layer of two stages is cut in between")
    print(f"{'rank':>4}  {'pp dp cp tp':11}  {'layers':6}  {'samples':7}  {'positions':13}  heads")
    for row in holdings(step, options):
        place = "  ".join(str(value) for value in row["place"].values())
        print(f"{row['rank']:4}  {place:11}  {row['layers']:6}  {row['samples']:7}  "
              f"{row['positions']:13}  {row['heads']}")
    print("\nbytes that rank 0 sends in a step")
    for (axes, kind), size in sorted(traffic(step).items()):
        print(f"  along {axes:9} {kind:15} {size:10,.0f}")


def words(x, y, text, size=12, color="#111"):
    return (f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}">'
            f'{html.escape(str(text))}</text>')


def draw(step, options, path):
    """A box for each rank: stages beside each other, samples below each other, and in a row
    positions and heads."""
    wide, high, gap, top = 148, 96, 34, 74
    columns = MESH["cp"] * MESH["tp"]
    stage_width = columns * wide + gap
    width = MESH["pp"] * stage_width + 10
    sent = sorted(traffic(step).items())
    foot = top + MESH["dp"] * (high + gap)
    height = foot + 24 + 18 * len(sent)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           'font-family="sans-serif">', f'<rect width="{width}" height="{height}" fill="#fff"/>',
           words(10, 24, "Who holds what: " + ", ".join(PLANS[options.plan]), 16)]
    for row in holdings(step, options):
        place = row["place"]
        column = place["cp"] * MESH["tp"] + place["tp"]
        x = 10 + place["pp"] * stage_width + column * wide
        y = top + place["dp"] * (high + gap)
        # Positions have a hue, heads a lightness.
        color = f"hsl({40 + 160 * place['cp']},65%,{90 - 12 * place['tp']}%)"
        out.append(f'<rect x="{x}" y="{y}" width="{wide - 8}" height="{high}" fill="{color}" '
                   'stroke="#444" rx="4"/>')
        out.append(words(x + 8, y + 18, f"rank {row['rank']}", 13))
        for line, (name, value) in enumerate(
                (name, row[name]) for name in ("layers", "samples", "positions", "heads")):
            out.append(words(x + 8, y + 36 + 16 * line, f"{name} {value}", 11))
        if column == 0 and place["dp"] == 0:
            out.append(words(x, top - 26, f"stage {place['pp']} (pp)", 14))
            out.append(words(x, top - 8, "cp: hue, tp: shade", 11, "#666"))
        if column == 0 and place["dp"]:
            out.append(words(x, y - 10, "dp: the same weights, other samples", 11, "#666"))
    out.append(words(10, foot + 4, "What rank 0 sends in a step", 14))
    for line, ((axes, kind), size) in enumerate(sent):
        out.append(words(20, foot + 24 + 18 * line, f"{axes}: {kind}, {size:,.0f} bytes"))
    path.write_text("\n".join([*out, "</svg>"]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="unused; for make")
    parser.add_argument("--work", default="out/four_d", help="folder of the pictures")
    parser.add_argument("--plan", choices=PLANS, default="ring")
    parser.add_argument("--schedule", default="1f1b", help="any that is synchronous; those with "
                        "two stages at a position need --layers 4 or more")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args()[0].smoke:
        parser.set_defaults(steps=2, batch=8, sequence=16, hidden=32, heads=4)
    options = parser.parse_args()
    folder = pathlib.Path(options.work)
    folder.mkdir(parents=True, exist_ok=True)
    step, losses = train(options, mesh=MESH, plan=PLANS[options.plan],
                         micro_batches=MICRO_BATCHES, pipeline=options.schedule)
    _, alone = train(options)
    explain(step, options)
    draw(step, options, folder / "ranks.svg")
    step.schedule(svg=folder / "schedule.svg")
    print(f"\n{'step':>4} {'one device':>12} {'16 ranks':>12} {'difference':>12}")
    for number, (one, many) in enumerate(zip(alone, losses), 1):
        print(f"{number:4} {one:12.6f} {many:12.6f} {abs(one - many) / one:12.1e}")
    print(f"\n{folder / 'ranks.svg'}: who holds what; {folder / 'schedule.svg'}: when")
    return 0


if __name__ == "__main__":
    sys.exit(main())
