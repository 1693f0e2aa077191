// This file decodes the rows of vector codes in any order. It counts once where the corrections of each row begin.
#pragma once
#include <vector>

#include "formats/vector_code.h"

namespace fidelio {

class VectorRows {
 public:
  // check_vectors() must have passed `w`, which must live as long as this object.
  explicit VectorRows(const SignedVectors& w);
  void decode(int64_t row, std::span<float> values) const;  // `values` has `in` places.

 private:
  const SignedVectors& w_;
  std::vector<int64_t> begin_;  // It has out + 1 entries.
};

}  // namespace fidelio
