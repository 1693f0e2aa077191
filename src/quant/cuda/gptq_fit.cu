// This is the range search of quant/fit.cc. One warp handles one group of a row, and each lane one candidate. Every
// lane walks the group's columns in order, so that each candidate's error equals the host's bit for bit.
#include <cuda_runtime.h>

#include "kernels/cuda/device/cuda_error.cuh"
#include "quant/cuda/gptq_level.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kWarps = 8;
constexpr unsigned kAll = 0xffffffffu;

struct Range {
  // The range includes zero. The peak is the element of largest magnitude, the first one among equals.
  float low, high, peak;
};

// A Place is a warp's share of the work: one group of one row.
struct Place {
  int64_t row, group, begin;
  int width;
  int64_t at;  // index of the group's scale and offset
};
__device__ bool find_place(const GptqShape& s, Place& p) {
  p.at = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (p.at >= s.out * s.groups) return false;
  p.row = p.at / s.groups;
  p.group = p.at % s.groups;
  p.begin = p.group * s.group;
  p.width = static_cast<int>(min(int64_t{s.group}, s.in - p.begin));
  return true;
}

__device__ Range range_of(const float* values, int width) {
  const int lane = threadIdx.x % 32;
  Range r{0, 0, 0};
  int where = 1 << 30;
  for (int c = lane; c < width; c += 32) {
    const float w = values[c];
    r.low = fminf(r.low, w);
    r.high = fmaxf(r.high, w);
    if (fabsf(w) > fabsf(r.peak)) r.peak = w, where = c;
  }
  for (int step = 16; step > 0; step /= 2) {
    r.low = fminf(r.low, __shfl_xor_sync(kAll, r.low, step));
    r.high = fmaxf(r.high, __shfl_xor_sync(kAll, r.high, step));
    const float peak = __shfl_xor_sync(kAll, r.peak, step);
    const int other = __shfl_xor_sync(kAll, where, step);
    if (fabsf(peak) > fabsf(r.peak) || (fabsf(peak) == fabsf(r.peak) && other < where)) r.peak = peak, where = other;
  }
  return r;
}

// Returns scale and offset for a range times `shrink`, with its zero point moved by `slant`.
__device__ void propose(const GptqRules& rules, bool nested, const Range& range, float shrink, float slant,
                        float& scale, float& offset) {
  const auto store = [&](float wanted) { return nested ? wanted : stored_scale(rules.form, wanted, 0); };
  const float top = rules.highest;
  offset = 0;
  if (rules.grid) {
    const float end = rules.highest >= -rules.lowest ? rules.highest : rules.lowest;
    scale = store(__fdiv_rn(__fmul_rn(slant == 0 ? shrink : -shrink, range.peak), end));
  } else if (rules.symmetric) {
    scale = store(__fdiv_rn(__fmul_rn(__fmul_rn(shrink, 2), fmaxf(range.high, -range.low)), top));
    offset = __fdiv_rn(__fmul_rn(-scale, __fadd_rn(top, 1)), 2);
  } else {
    scale = store(__fdiv_rn(__fmul_rn(shrink, __fsub_rn(range.high, range.low)), top));
    const float zero = scale == 0 ? 0.0f : __fadd_rn(rintf(__fdiv_rn(__fmul_rn(-range.low, shrink), scale)), slant);
    offset = __fmul_rn(-scale, fminf(fmaxf(zero, 0.0f), top));
  }
}

// Returns the error of one lane's candidate over the group. All lanes walk the columns together.
__device__ float error_of(const GptqRules& rules, const float* values, const float* weight, int width, float scale,
                          float offset) {
  const int lane = threadIdx.x % 32;
  float error = 0;
  for (int c0 = 0; c0 < width; c0 += 32) {
    const float mine = c0 + lane < width ? values[c0 + lane] : 0.0f, price = c0 + lane < width ? weight[c0 + lane] : 0;
    for (int c = 0; c < min(32, width - c0); ++c) {
      const float w = __shfl_sync(kAll, mine, c), importance = __shfl_sync(kAll, price, c);
      const float d = __fsub_rn(w, decoded(scale, quantised(rules, w, scale, offset).level, offset));
      error = __fadd_rn(error, __fmul_rn(__fmul_rn(importance, d), d));
    }
  }
  return error;
}

struct Best {
  float error, scale, offset;
  int number;
};
// Returns the least error of all lanes, and of equal ones the first candidate's.
__device__ Best best_of(Best b) {
  for (int step = 16; step > 0; step /= 2) {
    const Best o{__shfl_xor_sync(kAll, b.error, step), __shfl_xor_sync(kAll, b.scale, step),
                 __shfl_xor_sync(kAll, b.offset, step), __shfl_xor_sync(kAll, b.number, step)};
    if (o.error < b.error || (o.error == b.error && o.number < b.number)) b = o;
  }
  return b;
}

// Candidate 0 is the range as it is. Then follows every shrunken range with its one to three slants.
__global__ void __launch_bounds__(kWarps * 32)
    fit_free(GptqShape s, const __grid_constant__ GptqRules rules, bool nested, const float* weight,
             const float* values, GptqState state) {
  Place p;
  if (!find_place(s, p)) return;
  const float *w = values + p.row * s.in + p.begin, *price = weight + p.begin;
  const Range range = range_of(w, p.width);
  const int slants = rules.grid ? 2 : rules.symmetric ? 1 : 3, candidates = rules.search ? 1 + kShrinks * slants : 1;
  Best best{INFINITY, 0, 0, 1 << 30};
  for (int first = 0; first < candidates; first += 32) {
    const int number = first + static_cast<int>(threadIdx.x) % 32, k = max(number - 1, 0), which = k % slants;
    float scale, offset;
    propose(rules, nested, range, number == 0 ? 1.0f : rules.shrink[min(k / slants, kShrinks - 1)],
            number == 0 || which == 0 ? 0.0f
            : which == 1              ? 1.0f
                                      : -1.0f,
            scale, offset);
    const float error = error_of(rules, w, price, p.width, scale, offset);
    if (number < candidates && error < best.error) best = {error, scale, offset, number};
  }
  best = best_of(best);
  if (threadIdx.x % 32 > 0) return;
  state.scale[p.at] = best.scale;
  state.offset[p.at] = best.offset;
}

__global__ void __launch_bounds__(kWarps * 32) find_row_scales(GptqShape s, float largest, GptqState state) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= s.out) return;
  float peak = 0;
  for (int64_t g = threadIdx.x % 32; g < s.groups; g += 32) peak = fmaxf(peak, fabsf(state.scale[row * s.groups + g]));
  for (int step = 16; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(kAll, peak, step));
  if (threadIdx.x % 32 == 0) state.row_scale[row] = __fdiv_rn(peak, largest);
}

// Tries the stored neighbours of the free optimum.
__global__ void __launch_bounds__(kWarps * 32) fit_stored(GptqShape s, const __grid_constant__ GptqRules rules,
                                                          const float* weight, const float* values, GptqState state) {
  Place p;
  if (!find_place(s, p)) return;
  const float free_scale = state.scale[p.at], free_offset = state.offset[p.at], row_scale = state.row_scale[p.row];
  const int number = static_cast<int>(threadIdx.x) % 32, reach = rules.search ? 2 : 0;
  const float wanted = __fadd_rn(free_scale, __fmul_rn(static_cast<float>(number - reach), row_scale));
  const bool usable = free_scale != 0 && __fmul_rn(wanted, free_scale) > 0;
  const float scale = stored_scale(rules.form, usable ? wanted : free_scale, row_scale);
  const float zero = free_scale == 0 ? 0.0f : rintf(__fdiv_rn(-free_offset, free_scale));
  const float offset = rules.grid ? free_offset : __fmul_rn(-scale, zero);
  const float error = error_of(rules, values + p.row * s.in + p.begin, weight + p.begin, p.width, scale, offset);
  Best best{INFINITY, 0, 0, 1 << 30};
  if (number <= 2 * reach && error < best.error) best = {error, scale, offset, number};
  best = best_of(best);
  if (number > 0) return;
  state.scale[p.at] = best.scale;
  state.offset[p.at] = best.offset;
}

}  // namespace

void fit_groups(Stream stream, const GptqShape& shape, const GptqRules& rules, const float* weight, const float* values,
                const GptqState& state) {
  const auto blocks = [](int64_t warps) { return static_cast<unsigned>((warps + kWarps - 1) / kWarps); };
  const bool nested = rules.form != ScaleForm::half;
  fit_free<<<blocks(shape.out * shape.groups), kWarps * 32, 0, stream>>>(shape, rules, nested, weight, values, state);
  if (nested) {
    find_row_scales<<<blocks(shape.out), kWarps * 32, 0, stream>>>(shape, rules.grid ? 127.0f : 255.0f, state);
    fit_stored<<<blocks(shape.out * shape.groups), kWarps * 32, 0, stream>>>(shape, rules, weight, values, state);
  }
  cuda_check(cudaGetLastError(), "fitting scales");
}

}  // namespace fidelio::cuda
