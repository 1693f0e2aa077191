#!/usr/bin/env python3
"""Draws docs/pictures/size.svg, the picture of README.md, from the figures in docs/pictures/size.json:

    python3 tools/make_picture.py
"""
import html
import json
import math
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "pictures"
WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 74, 18, 20, 52
X = (2.5, 8.8)  # bits a parameter
Y = (1e-4, 1.0)  # KL, logarithmic
NAMED = {"Q2_K": (8, -6, "start"), "Q3_K_M": (8, -6, "start"), "Q4_K_M": (8, -6, "start"), "Q5_K_M": (8, -6, "start"),
         "Q6_K": (8, -6, "start"), "Q8_0": (0, -10, "middle"), "IQ3_XXS": (-8, 14, "end"), "IQ4_XS": (-8, 14, "end")}
STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#5d6779}
.ink{fill:#1d2433}.line{stroke:#dde2ea}.ours{stroke:#2f6fde;fill:#2f6fde}.theirs{stroke:#d9480f;fill:#d9480f}
.target{stroke:#2b8a3e;stroke-dasharray:5 5}.word{stroke:none}text.target,text.ours,text.theirs{stroke:none}text.target{fill:#2b8a3e}
.back{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#9aa5b8}.ink{fill:#e4e8f0}.line{stroke:#343c4b}.ours{stroke:#74a7ff;fill:#74a7ff}
.theirs{stroke:#ff9d6b;fill:#ff9d6b}.target{stroke:#69db7c}text.target{fill:#69db7c}.back{fill:#12161f}}
"""


def x(bits):
    return LEFT + (bits - X[0]) / (X[1] - X[0]) * (WIDTH - LEFT - RIGHT)


def y(kl):
    share = (math.log10(kl) - math.log10(Y[0])) / (math.log10(Y[1]) - math.log10(Y[0]))
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def text(at, what, kind="", anchor="start"):
    return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" class="{kind}" text-anchor="{anchor}">{html.escape(what)}</text>'


def main():
    data = json.loads((FOLDER / "size.json").read_text())
    ours, theirs = data["ours"], data["llama.cpp"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
           f'aria-label="KL against bits a parameter of {data["model"]}: our plans lie below llama.cpp\'s types at every size">',
           f"<style>{STYLE}</style>", f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>']
    for power in range(-4, 1):
        out += [f'<path class="line" d="M{LEFT} {y(10**power):.1f}H{WIDTH - RIGHT}"/>',
                text((LEFT - 8, y(10**power) + 4), f"{10**power:g}", anchor="end")]
    for bits in range(3, 9):
        out += [f'<path class="line" d="M{x(bits):.1f} {HEIGHT - BOTTOM}v5"/>', text((x(bits), HEIGHT - BOTTOM + 20), f"{bits}", anchor="middle")]
    out.append(text(((LEFT + WIDTH) / 2, HEIGHT - 10), f"bits a parameter of the whole file, {data['model']}", anchor="middle"))
    out.append(f'<g transform="translate(20 {(HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)">' + text((0, 0), "KL, nats a token (lower is nearer the original)", anchor="middle") + "</g>")
    for ear in (0.95, 0.98, 0.99):  # 1 - EAR = c sqrt(KL)
        at = y(((1 - ear) / data["ear_constant"]) ** 2)
        out += [f'<path class="target" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" fill="none"/>',
                text((WIDTH - RIGHT - 6, at - 5) if ear < 0.98 else (LEFT + 6, at - 5), f"an overlap of {100 * ear:.0f}% (--ear {ear})", "target",
                     "end" if ear < 0.98 else "start")]
    for name, bits, kl in theirs:
        out.append(f'<path class="theirs" d="M{x(bits) - 4:.1f} {y(kl) - 4:.1f}l8 8m0-8l-8 8" stroke-width="2" fill="none"/>')
        if name in NAMED:
            dx, dy, anchor = NAMED[name]
            out.append(text((x(bits) + dx, y(kl) + dy), name, "theirs", anchor))
    path = "M" + "L".join(f"{x(b):.1f} {y(k):.1f}" for b, k in ours)
    out.append(f'<path class="ours" d="{path}" stroke-width="2.5" fill="none" style="fill:none"/>')
    out += [f'<circle class="ours" cx="{x(b):.1f}" cy="{y(k):.1f}" r="4"/>' for b, k in ours]
    out += [f'<circle class="ours" cx="{WIDTH - 290}" cy="{TOP + 14}" r="4"/>', text((WIDTH - 278, TOP + 18), "fidelio, searched for the size", "ink"),
            f'<path class="theirs" d="M{WIDTH - 294} {TOP + 32}l8 8m0-8l-8 8" stroke-width="2" fill="none"/>',
            text((WIDTH - 278, TOP + 40), "llama.cpp's types, with importance matrix", "ink"), "</svg>\n"]
    (FOLDER / "size.svg").write_text("\n".join(out))


if __name__ == "__main__":
    main()
