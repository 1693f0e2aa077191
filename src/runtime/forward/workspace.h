// The matrices of one step, of either kind of MLP.
#pragma once
#include <algorithm>

#include "runtime/model.h"

namespace fidelio {

// The matrices of one step, (rows, columns) of the largest batch.
template <Backend B>
struct Workspace {
  typename B::Matrix x;         // (n, d) the residual stream
  typename B::Matrix q, k, v;   // (n, h e), (n, hk e), (n, hk e)
  typename B::Matrix gate, up;  // (n, f), of experts (n k, f)
  typename B::Matrix branch;    // (n, d) what attention or the MLP adds, where it is normalised first; else rows 0
  typename B::Matrix logits;    // (logit rows, v)
  // Of a model with experts: their input, the router's logits, what they give.
  typename B::Matrix normed = {}, routing = {}, given = {};  // (n, d), (n, E), (n k, d)
};

template <Backend B>
Workspace<B> allocate_matrices(B& b, const ModelConfig& c, int64_t rows, int64_t logit_rows) {
  Workspace<B> w;
  w.x = b.allocate(rows, c.d);
  w.q = b.allocate(rows, int64_t{c.h} * c.e);
  w.k = b.allocate(rows, int64_t{c.hk} * c.e);
  w.v = b.allocate(rows, int64_t{c.hk} * c.e);
  const int64_t slots = rows * slots_per_row(c);
  w.gate = b.allocate(slots, c.f);
  w.up = b.allocate(slots, c.f);
  if (c.blocks.norm_after) w.branch = b.allocate(rows, c.d);
  w.logits = b.allocate(logit_rows, c.v);
  if (c.experts == 0) return w;
  w.normed = b.allocate(rows, c.d);
  w.routing = b.allocate(rows, c.experts);
  w.given = b.allocate(slots, c.d);
  return w;
}

}  // namespace fidelio
