#!/usr/bin/env python3
"""Draws docs/pictures/map.svg, the rooms of docs/design.md, from the include rule that lint checks (tools/lint.py):

    python3 tools/make_map.py

A room stands one row above the highest room that it may include; an arrow leads to each room it includes that no other of its rooms
leads to already.
"""
import html
import pathlib

import lint

OUT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "pictures" / "map.svg"
SAYS = {
    "core": "errors, tensors, threads, files", "ranks": "processes that share one job", "grammar": "what an answer may look like",
    "formats": "what a weight can be stored as", "text": "tokenizer, chat templates",
    "arch": "what a model is, as numbers", "step": "a step of a model as data", "io": "checkpoints, GGUF, exports", "kernels": "ref · cpu · cuda",
    "alloc": "exact allocation", "runtime": "the transformer, once", "engine": "scheduler, drafts, text", "train": "backward, tuning",
    "quant": "GPTQ, grids, vectors", "eval": "KL, EAR, tasks", "serve": "HTTP, OpenAI's JSON", "sensitivity": "what each group costs",
    "compress": "target to certificate", "app": "the command line", "library": "the C interface",
}
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 206, 46, 18, 44, 14
STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#5d6779}.name{font-weight:600;font-size:14px;fill:#1d2433}
.box{fill:#f4f6fa;stroke:#c8d0dd}.arrow{stroke:#9aa5b8;fill:none}.back{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#9aa5b8}.name{fill:#e4e8f0}.box{fill:#1b212d;stroke:#3a4456}.arrow{stroke:#5d6a80}.back{fill:#12161f}}
"""


def main():
    rooms = lint.ROOMS

    def level(room):
        return 1 + max((level(other) for other in rooms[room]), default=-1)

    def reached(room):
        return rooms[room] | {far for other in rooms[room] for far in reached(other)}

    arrows = [(room, other) for room in rooms for other in sorted(rooms[room]) if not any(other in reached(via) for via in rooms[room] - {other})]
    rows = {}
    for room in rooms:
        rows.setdefault(level(room), []).append(room)
    height = len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    width = max(len(row) for row in rows.values()) * (BOX_WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    place = {}
    for at, row in rows.items():
        left = (width - len(row) * (BOX_WIDTH + GAP_X) + GAP_X) / 2
        for i, room in enumerate(row):
            place[room] = (left + i * (BOX_WIDTH + GAP_X), height - MARGIN - BOX_HEIGHT - at * (BOX_HEIGHT + GAP_Y))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="The rooms and which includes which">',
           f"<style>{STYLE}</style>", f'<rect class="back" width="{width:.0f}" height="{height:.0f}"/>',
           '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8" class="arrow"/></marker></defs>']
    for room, other in arrows:
        (x, y), (to_x, to_y) = place[room], place[other]
        x, to_x, y = x + BOX_WIDTH / 2, to_x + BOX_WIDTH / 2, y + BOX_HEIGHT
        out.append(f'<path class="arrow" marker-end="url(#tip)" d="M{x:.0f} {y:.0f}C{x:.0f} {y + GAP_Y * .6:.0f} {to_x:.0f} {to_y - GAP_Y * .6:.0f} {to_x:.0f} {to_y:.0f}"/>')
    for room, (x, y) in place.items():
        out += [f'<rect class="box" x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>',
                f'<text class="name" x="{x + BOX_WIDTH / 2:.0f}" y="{y + 19:.0f}" text-anchor="middle">{room}</text>',
                f'<text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 36:.0f}" text-anchor="middle">{html.escape(SAYS[room])}</text>']
    OUT.write_text("\n".join([*out, "</svg>\n"]))


if __name__ == "__main__":
    main()
