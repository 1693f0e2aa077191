// This file declares the functions that launch the kernels behind gpu.h. Pointers are into device memory, values are
// FP32, and all sums have a fixed order.
#pragma once
#include <cstdint>

#include "kernels/cuda/device/device.h"
#include "train/codes.h"
#include "train/vectors.h"

namespace fidelio::train::gpu {

using cuda::Stream;

constexpr int kSumParts = 1024;  // parts of sums over whole tensors: doubles that the host adds up

// Pairs describes sequences of one length, and the pair of a sequence and a key head (a "unit", with key heads
// fastest) at which a launch begins. The score matrices (length, length) of a launch lie one after the other, and
// each unit has one for each of its `each` query heads.
struct Pairs {
  const int32_t* begins;  // first row of each sequence
  int64_t length, start;  // rows of a sequence; the first unit
  int64_t shared, each;   // number of key heads; query heads of each
  int64_t e;
};
// Pointed says which pointers a batch of products needs: to matrices of rows (n, heads, e), to score matrices, or to
// rows (length, e) that every query head of a launch has for itself.
struct Pointed {
  enum Kind { queries, keys, scores, own };
  struct One {
    void* base;
    Kind kind;
    int64_t size;   // bytes of a value
    int64_t shift;  // values from the matrix's first one to the one that is pointed at
  };
  static constexpr int kMost = 48;
  int count = 0;
  One of[kMost];
};
struct Heads {
  int32_t h, hk, e, window;
  float scale;
};

// The next functions are in rows.cu.
void add(Stream s, const float* from, float* to, int64_t n, bool absolute);
void add_bias(Stream s, const float* bias, int64_t rows, int64_t columns, float* y);
// Adds to sums (columns) the sum over rows of x, or of dy x inverse (with one inverse per row) if dy is given.
// `parts` is scratch memory of row_parts(rows) x columns.
int64_t row_parts(int64_t rows);
void sum_rows(Stream s, const float* x, const float* dy, const float* inverse, int64_t rows, int64_t columns,
              float* parts, float* sums);
void gather(Stream s, const int32_t* ids, int64_t rows, const float* table, int64_t d, float* x);
// `order` lists the rows by their id, and `begin` (distinct + 1) says where the rows of each id begin in it.
void scatter(Stream s, const int32_t* order, const int32_t* begin, const int32_t* distinct_ids, int64_t distinct,
             const float* x, int64_t d, float* table);
void norm(Stream s, const float* x, const float* weight, float eps, int64_t rows, int64_t columns, float* y);
void norm_bf16(Stream s, const float* x, const float* weight, float eps, int64_t rows, int64_t columns, uint16_t* y);
void norm_backward(Stream s, const float* x, const float* weight, float eps, int64_t rows, int64_t columns,
                   const float* dy, float* dx, bool add, float* inverse);
void rope(Stream s, const int32_t* positions, const float* cosine, const float* sine, int64_t rows, int64_t heads,
          int64_t e, bool back, float* x);
void swiglu(Stream s, const float* gate, const float* up, int64_t n, float* y);
void swiglu_bf16(Stream s, const float* gate, const float* up, int64_t n, uint16_t* y);
void swiglu_backward(Stream s, float* gate, float* up, int64_t n, const float* dy);
void swiglu_backward_bf16(Stream s, const float* gate, const float* up, int64_t n, const float* dy, uint16_t* dgate,
                          uint16_t* dup);
// Parts is (kSumParts).
void difference(Stream s, const float* target, float scale, int64_t n, float* x, double* parts);
void sum_of_squares(Stream s, const float* x, const float* unit, int64_t n, double* parts);
// Adds to `to` the sum of the parts, in their order, times `factor`.
void add_sum(Stream s, const double* parts, double factor, double* to);

// The next functions are in attention.cu. Queries are taken in blocks of `block`, and a block's scores end with its
// last key; what lies behind is neither computed nor read.
//
// softmax() turns rows of scores into probabilities, which may overwrite them. lse is (n, h).
void softmax(Stream s, const Pairs& pairs, int64_t units, const Heads& a, int64_t block, const float* scores, void* p,
             bool bf16, float* lse);
// Computes p and ds, the gradient of the scores before their scale, from the scores and dp = dout v^T.
void softmax_backward(Stream s, const Pairs& pairs, int64_t units, const Heads& a, int64_t block, const float* scores,
                      const float* dp, const float* lse, const float* along, void* p, void* ds, bool bf16);
// Computes along (rows), the sum over e of dout out.
void sum_along(Stream s, const float* dout, const float* out, int64_t rows, int64_t e, float* along);
// Writes pointers (what.count, units * each), for every query head of every unit.
void point_at(Stream s, const Pairs& pairs, const Pointed& what, int64_t units, void** pointers);
// Sets keys (n, hk, e) of these units to the sum over their query heads of rows (units * each, length, e).
void sum_of_heads(Stream s, const Pairs& pairs, int64_t units, const float* rows, float* keys);
void to_bf16(Stream s, const float* from, int64_t n, uint16_t* to);

// The next function is in loss.cu.
struct Mix {
  float forward, reverse, label;
};
void divergence(Stream s, const float* teacher, float* student, const int32_t* labels, int64_t rows, int64_t v,
                const Mix& mix, float gradient_scale, float* losses);

// The next functions are in codes.cu.
struct Adam {
  float rate, beta1, beta2, eps, first_correction, second_correction, clip, low, high;
};
void adam(Stream s, const float* gradient, const float* unit, int64_t n, const Adam& how, float* value, float* m,
          float* v);
void round(Stream s, const float* x, int64_t n, Kind kind, float* rounded);
// Turns levels that a step has moved into a codebook that may be stored (train/codes.h).
void keep_ascending(Stream s, const float* grid, int levels, float* level);
void resolve(Stream s, const ScaleView<float>& view, const ScaleValues<float>& values);
void resolve_backward(Stream s, const ScaleView<float>& view, const ScaleGradient<float>& gradient);
void decode(Stream s, const CodeSizes& sizes, const CodeView<float>& view, float* values);
// Returns the floats of scratch memory that decode_backward() needs as `parts` if to.level is not null.
int64_t level_parts(const CodeSizes& sizes);
void decode_backward(Stream s, const CodeSizes& sizes, const CodeView<float>& view, const CodeGradient<float>& to,
                     float* parts);

// The next functions are in vectors.cu.
void decode(Stream s, const VectorSizes& sizes, const VectorView<float>& view, float* values);
void decode_backward(Stream s, const VectorSizes& sizes, const VectorView<float>& view,
                     const VectorGradient<float>& to);

}  // namespace fidelio::train::gpu
