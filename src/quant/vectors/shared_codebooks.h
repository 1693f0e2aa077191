// This file makes codebooks that all linears of a model share (formats vq..m). Rows and columns of every matrix are
// normalised before it is coded. This makes the vectors of all matrices so similar that k-means over vectors of the
// whole model serves each of them nearly as well as a codebook of its own (docs/results.md), and a file holds it only
// once.
#pragma once
#include "io/checkpoint.h"
#include "quant/quantize.h"

namespace fidelio {

// Returns the codebooks that these formats need. A source's own codebook is taken if linears of the source have one.
// Otherwise it is made from vectors of the source's linears, embedding and head included, each by its share of the
// parameters. A codebook depends on the source and the format alone, so a process that quantises a part of a model
// has the codebook of the whole.
SharedCodebooks shared_codebooks(const Checkpoint& source, const std::vector<FormatSpec>& formats, ThreadPool& pool);

}  // namespace fidelio
