// This file brings the rows of a linear together, wherever a file of dense weights keeps them.
#pragma once
#include <span>
#include <vector>

#include "arch/weight_names.h"
#include "core/tensor.h"

namespace fidelio {

// StoredRows says where the rows of a dense linear are: runs of rows of a tensor of the files.
struct StoredRows {
  OwnedTensor matrix;
  std::vector<RowRun> runs;
  int64_t each = 0;  // If it is not 0, the file has so many rows a part, by columns (FusedName::by_columns).
};

// Returns the rows as a matrix of this shape. It is a view into the file where one run has all rows, side by side.
OwnedTensor rows_of(const StoredRows& stored, const Shape& shape);
// Returns `count` numbers of a tensor, a run of them after the other.
OwnedTensor numbers_of(const OwnedTensor& all, std::span<const RowRun> runs, int64_t count);

}  // namespace fidelio
