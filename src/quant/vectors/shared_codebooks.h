// Codebooks that the linears of a model share (formats vq..m). Rows and columns of every matrix are normalised before it
// is coded, which makes the vectors of all of them so alike that k-means over vectors of the whole model serves each of
// them nearly as well as its own would (docs/results.md), and a file holds it once.
#pragma once
#include "io/checkpoint.h"
#include "quant/quantize.h"

namespace fidelio {

// Those that these formats need: a source's own, where linears of it have them already; else made of its linears,
// embedding and head among them, each by its share of the parameters. They depend on the source and the format alone:
// who quantises a part of a model has the codebook of the whole.
SharedCodebooks shared_codebooks(const Checkpoint& source, const std::vector<FormatSpec>& formats, ThreadPool& pool);

}  // namespace fidelio
