// These kernels decode integer and grid codes, compute the gradients of their scales and levels, and apply Adam. They
// are the twin of host_codes.cc.
#include <algorithm>

#include "kernels/cuda/device/cuda_error.cuh"
#include "train/cuda/kernels.h"
#include "train/cuda/packs.cuh"
#include "train/host/rounding.h"

namespace fidelio::train::gpu {
namespace {

using cuda::cuda_check;

constexpr int kThreads = 256, kBlocks = 1056;
constexpr int kLevelThreads = 128;  // threads of a block that adds up gradients of levels
constexpr int kMostLevels = 64;     // levels of a grid of 6 bits
constexpr int64_t kLevelRows = 16;  // rows of such a block

__device__ __forceinline__ int64_t thread_index() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }
__device__ __forceinline__ int64_t thread_count() { return int64_t{gridDim.x} * blockDim.x; }
// Sums over this many neighbouring lanes; each lane gets the sum.
template <int kLanes>
__device__ __forceinline__ float sum_of_lanes(float x) {
  for (int by = kLanes / 2; by > 0; by /= 2) x += __shfl_xor_sync(~0u, x, by);
  return x;
}

template <int kWide>
__global__ void adam_all(const float* gradient, const float* unit, int64_t n, Adam how, float* value, float* m,
                         float* v) {
  for (int64_t i = thread_index() * kWide; i < n; i += thread_count() * kWide) {
    const Pack<kWide> by_value = read<kWide>(gradient + i);
    Pack<kWide> one, first = read<kWide>(m + i), second = read<kWide>(v + i), x = read<kWide>(value + i);
    if (unit != nullptr) one = read<kWide>(unit + i);
    for (int k = 0; k < kWide; ++k) {
      if (unit == nullptr) one.x[k] = 1.0f;
      const float g = how.clip * by_value.x[k] * one.x[k];
      first.x[k] = how.beta1 * first.x[k] + (1.0f - how.beta1) * g;
      second.x[k] = how.beta2 * second.x[k] + (1.0f - how.beta2) * g * g;
      const float by = how.rate * one.x[k] * (first.x[k] * how.first_correction) /
                       (sqrtf(second.x[k] * how.second_correction) + how.eps);
      x.x[k] = fminf(how.high, fmaxf(how.low, x.x[k] - by));
    }
    write(first, m + i), write(second, v + i), write(x, value + i);
  }
}

__global__ void round_all(const float* x, int64_t n, Kind kind, float* rounded) {
  for (int64_t i = thread_index(); i < n; i += thread_count())
    rounded[i] = kind == Kind::f32 ? x[i] : kind == Kind::f16 ? round_f16(x[i]) : round_bf16(x[i]);
}

__global__ void keep_levels_ascending(const float* grid, int levels, float* level) {
  train::keep_ascending(grid, levels, level);
}

__global__ void resolve_all(ScaleView<float> view, ScaleValues<float> values) {
  for (int64_t at = thread_index(); at < view.out * view.groups; at += thread_count()) {
    const float r = view.row_scale == nullptr ? 1.0f : view.row_scale[at / view.groups];
    values.scale[at] = view.group_scale == nullptr ? r : r * stored_multiple(view.rule, view.group_scale[at]);
    if (view.zero != nullptr) values.shift[at] = nearest(within(view.zero[at], 0, static_cast<float>(view.zeros - 1)));
    if (view.group_offset != nullptr) values.offset[at] = r * stored_multiple(view.rule, view.group_offset[at]);
  }
}

// Each thread has one row.
__global__ void resolve_rows_backward(ScaleView<float> view, ScaleGradient<float> g) {
  const int64_t row = thread_index();
  if (row >= view.out) return;
  const float r = view.row_scale == nullptr ? 1.0f : view.row_scale[row];
  float along = 0;
  for (int64_t at = row * view.groups; at < (row + 1) * view.groups; ++at) {
    along += g.scale[at] * (view.group_scale == nullptr ? 1.0f : stored_multiple(view.rule, view.group_scale[at]));
    if (g.group_scale != nullptr) g.group_scale[at] = r * g.scale[at];
    if (view.group_offset == nullptr) continue;
    along += g.offset[at] * stored_multiple(view.rule, view.group_offset[at]);
    if (g.group_offset != nullptr) g.group_offset[at] = r * g.offset[at];
  }
  if (g.row_scale != nullptr) g.row_scale[row] = along;
}

// Each thread block has one row; a group consists of whole packs.
template <int kWide>
__global__ void decode_rows(CodeSizes s, CodeView<float> view, float* values) {
  const int in = static_cast<int>(s.in), group = static_cast<int>(s.group);
  for (int64_t row = blockIdx.x; row < s.out; row += gridDim.x)
    for (int c = static_cast<int>(threadIdx.x) * kWide; c < in; c += kThreads * kWide) {
      const int64_t at = row * s.groups + c / group;
      const float scale = view.scale[at], shift = view.shift == nullptr ? 0.0f : view.shift[at],
                  offset = view.offset == nullptr ? 0.0f : view.offset[at];
      Pack<kWide> x = read<kWide>(view.position + row * s.in + c);
      for (int k = 0; k < kWide; ++k) x.x[k] = scale * (view.level[code_of(x.x[k], shift, s.levels)] - shift) + offset;
      write(x, values + row * s.in + c);
    }
}

// Sums dL/dvalue over the codes of a level, times their scales. A thread adds up its own columns of some rows, and
// the threads of a block and then the blocks are added in order. This must run before the gradients are overwritten.
__global__ void level_sums(CodeSizes s, CodeView<float> view, const float* gradient, float* parts) {
  __shared__ float sums[kMostLevels][kLevelThreads];
  for (int k = 0; k < s.levels; ++k) sums[k][threadIdx.x] = 0;
  const int64_t first = blockIdx.x * kLevelRows, last = first + kLevelRows < s.out ? first + kLevelRows : s.out;
  for (int64_t row = first; row < last; ++row)
    for (int64_t c = threadIdx.x; c < s.in; c += kLevelThreads) {
      const int64_t at = row * s.groups + c / s.group, i = row * s.in + c;
      const float shift = view.shift == nullptr ? 0.0f : view.shift[at];
      sums[code_of(view.position[i], shift, s.levels)][threadIdx.x] += gradient[i] * view.scale[at];
    }
  __syncthreads();
  if (threadIdx.x >= s.levels) return;
  float sum = 0;
  for (int t = 0; t < kLevelThreads; ++t) sum += sums[threadIdx.x][t];
  parts[blockIdx.x * s.levels + threadIdx.x] = sum;
}
__global__ void add_level_sums(const float* parts, int64_t count, int levels, float* to) {
  if (threadIdx.x >= levels) return;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += parts[i * levels + threadIdx.x];
  to[threadIdx.x] += sum;
}

// kLanes neighbouring threads share one group.
template <int kLanes, int kWide>
__global__ void decode_groups_backward(CodeSizes s, CodeView<float> view, CodeGradient<float> to) {
  const int64_t at = thread_index() / kLanes;
  const int lane = threadIdx.x % kLanes;
  if (at >= s.out * s.groups) return;
  const int64_t row = at / s.groups, g = at % s.groups, end = (g + 1) * s.group < s.in ? (g + 1) * s.group : s.in;
  const float scale = view.scale[at], shift = view.shift == nullptr ? 0.0f : view.shift[at];
  float of_scale = 0, of_offset = 0, of_shift = 0;
  for (int64_t c = row * s.in + g * s.group + lane * kWide; c < row * s.in + end; c += kLanes * kWide) {
    const Pack<kWide> u = read<kWide>(view.position + c);
    Pack<kWide> by = read<kWide>(to.codes + c);
    for (int k = 0; k < kWide; ++k) {
      const int q = code_of(u.x[k], shift, s.levels);
      of_scale += by.x[k] * (view.level[q] - shift);
      of_offset += by.x[k];
      float along = by.x[k] * scale * slope_of(view.level, q, s.levels);
      if (is_clamped(u.x[k], shift, s.levels)) {
        of_shift -= by.x[k] * scale;
        if ((u.x[k] + shift < 0) == (along > 0)) along = 0;
      }
      by.x[k] = along;
    }
    write(by, to.codes + c);
  }
  of_scale = sum_of_lanes<kLanes>(of_scale), of_offset = sum_of_lanes<kLanes>(of_offset);
  of_shift = sum_of_lanes<kLanes>(of_shift);
  if (lane != 0) return;
  if (to.scale != nullptr) to.scale[at] = of_scale;
  if (to.offset != nullptr) to.offset[at] = of_offset;
  if (to.shift != nullptr) to.shift[at] = of_shift;
}

// Returns the width of packs that rows and groups are multiples of: 4 or 1.
int64_t whole_packs(const CodeSizes& s) { return s.in % 4 == 0 && s.group % 4 == 0 ? 4 : 1; }

unsigned blocks_for(int64_t n, int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

}  // namespace

void adam(Stream s, const float* gradient, const float* unit, int64_t n, const Adam& how, float* value, float* m,
          float* v) {
  in_packs(
      n,
      [&](auto wide) {
        adam_all<decltype(wide)::value><<<kBlocks, kThreads, 0, s>>>(gradient, unit, n, how, value, m, v);
      },
      gradient, unit, value, m, v);
  cuda_check(cudaGetLastError(), "a step of AdamW");
}

void round(Stream s, const float* x, int64_t n, Kind kind, float* rounded) {
  round_all<<<kBlocks, kThreads, 0, s>>>(x, n, kind, rounded);
  cuda_check(cudaGetLastError(), "rounding");
}

void keep_ascending(Stream s, const float* grid, int levels, float* level) {
  keep_levels_ascending<<<1, 1, 0, s>>>(grid, levels, level);
  cuda_check(cudaGetLastError(), "a codebook");
}

void resolve(Stream s, const ScaleView<float>& view, const ScaleValues<float>& values) {
  resolve_all<<<kBlocks, kThreads, 0, s>>>(view, values);
  cuda_check(cudaGetLastError(), "scales of codes");
}

void resolve_backward(Stream s, const ScaleView<float>& view, const ScaleGradient<float>& gradient) {
  resolve_rows_backward<<<blocks_for(view.out, kThreads), kThreads, 0, s>>>(view, gradient);
  cuda_check(cudaGetLastError(), "gradients of scales");
}

void decode(Stream s, const CodeSizes& sizes, const CodeView<float>& view, float* values) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(sizes.out, 8 * kBlocks));
  in_packs(
      whole_packs(sizes),
      [&](auto wide) { decode_rows<decltype(wide)::value><<<blocks, kThreads, 0, s>>>(sizes, view, values); },
      view.position, values);
  cuda_check(cudaGetLastError(), "decoding codes");
}

int64_t level_parts(const CodeSizes& sizes) { return (sizes.out + kLevelRows - 1) / kLevelRows * sizes.levels; }

void decode_backward(Stream s, const CodeSizes& sizes, const CodeView<float>& view, const CodeGradient<float>& to,
                     float* parts) {
  if (to.level != nullptr) {
    const unsigned blocks = blocks_for(sizes.out, kLevelRows);
    level_sums<<<blocks, kLevelThreads, 0, s>>>(sizes, view, to.codes, parts);
    add_level_sums<<<1, kLevelThreads, 0, s>>>(parts, blocks, sizes.levels, to.level);
  }
  const auto run = [&](auto lanes, auto wide) {
    decode_groups_backward<decltype(lanes)::value, decltype(wide)::value>
        <<<blocks_for(sizes.out * sizes.groups * decltype(lanes)::value, kThreads), kThreads, 0, s>>>(sizes, view, to);
  };
  in_packs(
      whole_packs(sizes),
      [&](auto wide) {
        if (sizes.group > 16 * decltype(wide)::value)
          run(Wide<32>{}, wide);
        else if (sizes.group > 8 * decltype(wide)::value)
          run(Wide<16>{}, wide);
        else
          run(Wide<8>{}, wide);
      },
      view.position, to.codes);
  cuda_check(cudaGetLastError(), "gradients of codes");
}

}  // namespace fidelio::train::gpu
