// This file holds the memory of a program's values, which runners of the same shapes share.
#pragma once
#include <map>
#include <string>
#include <tuple>

#include "kernels/backend.h"
#include "step/program.h"

namespace fidelio {

// ValueMemory holds the matrices of a program's values. Programs of the same shapes share it: a draft's values are
// its verifier's.
template <Backend B>
struct ValueMemory {
  using Key = std::tuple<std::string, Rows, int64_t>;  // a value's name, rows and columns
  std::map<Key, typename B::Matrix> matrices;
};

// Allocates the values of `program` that are not there yet, for batches of up to `rows` rows and `logit_rows` logits.
template <Backend B>
void allocate_values(B& b, const Program& program, int64_t rows, int64_t logit_rows, ValueMemory<B>& memory) {
  for (const Value& v : program.values) {
    if (v.prepared || v.columns == 0) continue;
    const auto [at, is_new] = memory.matrices.try_emplace({v.name, v.rows, v.columns});
    if (!is_new) continue;
    const int64_t slots = v.rows == Rows::slots ? program.routing.per_row : 1;
    at->second = b.allocate(v.rows == Rows::logits ? logit_rows : rows * slots, v.columns);
  }
}

}  // namespace fidelio
