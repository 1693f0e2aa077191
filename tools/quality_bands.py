#!/usr/bin/env python3
"""Bands in which the quantisers' quality lies: makes tests/golden/quality_bands.json, which tests/quality_test.cc holds a build against.

    tools/quality_bands.py [--fidelio build/fidelio] [--slices 12]

quill-1m is quantised in each format on so many slices of the calibration text, 8,192 tokens each, and measured on 8 windows of the
held-out text. What another slice does to a figure is how much it may differ without anything being wrong: logarithms of a figure have a
deviation s, pooled over formats, and the band is exp(mean -+ t s sqrt(1 + 1/slices)) with t = 4.5, which one of some 50,000 figures
misses if nothing changed. A change of a quantiser that moves a figure out of its band is meant, and this script is run again, or is a
defect. Figures: KL by format; KL of a width against the next; symmetric against asymmetric; (1 - EAR) / sqrt(KL)."""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--fidelio", default="build/fidelio")
parser.add_argument("--slices", type=int, default=12)
args = parser.parse_args()

WIDTHS = [2, 3, 4, 5, 6, 7, 8]
FORMATS = [f"int{b}g64zs8" for b in WIDTHS] + ["int4g64", "int4g64z", "lut3g64"]


def measure(work, name, text):
    out = work / "q"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    subprocess.run([args.fidelio, "quantize", "models/quill-1m", "--format", name, "--calibration", str(text),
                    "--calibration-tokens", "8192", "-o", str(out)], check=True, capture_output=True)
    report = json.loads(subprocess.run(
        [args.fidelio, "eval", str(out), "--reference", "models/quill-1m", "--text", "models/data/docs-heldout.txt", "--context", "512",
         "--windows", "8", "--activations", "f32", "--json", "-"], check=True, capture_output=True).stdout)
    return report["kl"]["value"], report["ear"]["value"]


def figures(measured):
    found = {f"kl {name}": kl for name, (kl, _) in measured.items()}
    for b in WIDTHS[:-1]:
        found[f"kl ratio int{b}g64zs8 int{b + 1}g64zs8"] = measured[f"int{b}g64zs8"][0] / measured[f"int{b + 1}g64zs8"][0]
    found["kl ratio int4g64 int4g64z"] = measured["int4g64"][0] / measured["int4g64z"][0]
    for name, (kl, ear) in measured.items():
        found[f"constant {name}"] = (1 - ear) / math.sqrt(kl)
    return found


values = {}
text = pathlib.Path("models/data/docs-calibration.txt").read_text()
with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    for i in range(args.slices):
        part = work / "slice.txt"
        size = len(text) // args.slices
        part.write_text(text[i * size:(i + 1) * size])
        for key, value in figures({name: measure(work, name, part) for name in FORMATS}).items():
            values.setdefault(key, []).append(math.log(value))
        print(f"slice {i + 1} of {args.slices}", flush=True)

bands = {}
for kind in ("kl int", "kl lut", "kl ratio", "constant"):
    keys = [key for key in values if key.startswith(kind)]
    s = math.sqrt(statistics.mean(statistics.variance(values[key]) for key in keys))
    reach = 4.5 * s * math.sqrt(1 + 1 / args.slices)
    print(f"{kind}: deviation {100 * s:.2f}%, bands {100 * (math.exp(reach) - 1):.1f}% wide either way")
    for key in keys:
        middle = statistics.mean(values[key])
        bands[key] = [float(f"{math.exp(middle - reach):.4g}"), float(f"{math.exp(middle + reach):.4g}")]
path = pathlib.Path("tests/golden/quality_bands.json")
path.write_text(json.dumps({"made_by": f"tools/quality_bands.py --slices {args.slices}", "formats": FORMATS, "bands": bands}, indent=1) + "\n")
