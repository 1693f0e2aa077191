#!/usr/bin/env python3
"""The grids of GGUF's IQ types, which are tables that its format defines: src/io/gguf/grids.cc. Needs gguf and numpy.
  python tools/make_gguf_grids.py | clang-format --style=file --assume-filename=src/io/gguf/grids.cc > src/io/gguf/grids.cc"""
import gguf.quants as quants
import numpy as np

print("""// Made by tools/make_gguf_grids.py.
#include "io/gguf/grids.h"

namespace fidelio::gguf {
""")
for kind, name in [(quants.IQ2_XXS, "kGrid2xxs"), (quants.IQ2_XS, "kGrid2xs"), (quants.IQ2_S, "kGrid2s"),
                   (quants.IQ3_XXS, "kGrid3xxs"), (quants.IQ3_S, "kGrid3s"), (quants.IQ1_S, "kGrid1")]:
    kind.init_grid()
    points, dimensions = kind.grid_shape
    grid = kind.grid.reshape(points, dimensions)
    places = np.array(kind.grid_map, dtype=grid.dtype)
    index = (grid[..., None] == places).argmax(-1)
    assert (places[index] == grid).all()
    bits = 3 if len(places) == 8 else 2
    words = (index << (bits * np.arange(dimensions))).sum(-1)
    print(f"const std::array<uint16_t, {points}> {name} = {{" + ", ".join(f"{w:#06x}" for w in words) + "};")
print("\n}  // namespace fidelio::gguf")
