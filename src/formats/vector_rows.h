// Vector codes decoded row by row in any order: where each row's corrections begin is counted once.
#pragma once
#include <vector>

#include "formats/vector_code.h"

namespace fidelio {

class VectorRows {
 public:
  explicit VectorRows(const SignedVectors& w);  // which check_vectors() has passed, and which must live as long
  void decode(int64_t row, std::span<float> values) const;  // (in)

 private:
  const SignedVectors& w_;
  std::vector<int64_t> begin_;  // (out + 1)
};

}  // namespace fidelio
