// These kernels compute error feedback and coordinate descent, 128 columns at a time (gptq.h has a drawing).
#include <cuda_runtime.h>

#include "kernels/cuda/device/cuda_error.cuh"
#include "quant/cuda/gptq_level.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kWarps = 16;  // warps of a thread block, each with one row
constexpr int kMine = kGptqBlock / 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr size_t kSquare = size_t{kGptqBlock} * kGptqBlock * sizeof(float);

// Loads the block's square of a matrix (in, in) into shared memory, with zeros beyond its width.
__device__ void load_square(const float* matrix, int64_t in, int64_t begin, int width, float* square) {
  for (int i = threadIdx.x; i < kGptqBlock * kGptqBlock; i += kWarps * 32) {
    const int r = i / kGptqBlock, c = i % kGptqBlock;
    square[i] = r < width && c < width ? matrix[(begin + r) * in + begin + c] : 0.0f;
  }
  __syncthreads();
}

__device__ int64_t my_row() { return blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; }
__device__ int my_width(const GptqShape& s, int64_t begin) {
  return static_cast<int>(min(int64_t{kGptqBlock}, s.in - begin));
}

__global__ void __launch_bounds__(kWarps * 32)
    feed_back(GptqShape s, const __grid_constant__ GptqRules rules, int64_t begin, const float* upper,
              const int32_t* order, const float* work, GptqState state, float* error) {
  extern __shared__ float square[];
  const int width = my_width(s, begin), lane = threadIdx.x % 32;
  load_square(upper, s.in, begin, width, square);
  const int64_t row = my_row();
  if (row >= s.out) return;
  float w[kMine], scale[kMine], offset[kMine], mistake[kMine] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int c = 32 * i + lane;
    w[i] = scale[i] = offset[i] = 0;
    if (c >= width) continue;
    const int64_t at = row * s.groups + order[begin + c] / s.group;
    w[i] = work[row * s.in + begin + c];
    scale[i] = state.scale[at];
    offset[i] = state.offset[at];
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i)
    for (int turn = 0; turn < 32 && 32 * i + turn < width; ++turn) {
      const float* u = square + (32 * i + turn) * kGptqBlock;
      const Chosen q = quantised(rules, w[i], scale[i], offset[i]);
      float e = (w[i] - decoded(scale[i], q.level, offset[i])) / u[32 * i + turn];
      e = __shfl_sync(kAll, e, turn);
      if (lane == turn) {
        mistake[i] = e;
        state.codes[row * s.in + order[begin + 32 * i + turn]] = static_cast<uint8_t>(q.code);
      }
#pragma unroll
      for (int k = i; k < kMine; ++k)
        if (k > i || lane > turn) w[k] -= u[32 * k + lane] * e;
    }
#pragma unroll
  for (int i = 0; i < kMine; ++i) error[row * kGptqBlock + 32 * i + lane] = mistake[i];
}

// A Part holds one row's part of the block: its gradient, codes, and the scales that the codes are read with.
struct Part {
  float gradient[kMine], scale[kMine], offset[kMine], level[kMine];
  int code[kMine];
};
__device__ Part load_part(const GptqShape& s, const GptqRules& rules, int64_t begin, int width, int64_t row,
                          const float* gradient, const GptqState& state) {
  Part p;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int c = 32 * i + static_cast<int>(threadIdx.x) % 32;
    p.gradient[i] = p.scale[i] = p.offset[i] = p.level[i] = 0;
    p.code[i] = 0;
    if (c >= width) continue;
    const int64_t at = row * s.groups + (begin + c) / s.group;
    p.gradient[i] = gradient[row * s.in + begin + c];
    p.scale[i] = state.scale[at];
    p.offset[i] = state.offset[at];
    p.code[i] = state.codes[row * s.in + begin + c];
    p.level[i] = level_of(rules, p.code[i]);
  }
  return p;
}

__global__ void __launch_bounds__(kWarps * 32)
    descend(GptqShape s, const __grid_constant__ GptqRules rules, int64_t begin, const float* hessian,
            const float* gradient, GptqState state, float* change) {
  extern __shared__ float square[];
  const int width = my_width(s, begin), lane = threadIdx.x % 32;
  load_square(hessian, s.in, begin, width, square);
  const int64_t row = my_row();
  if (row >= s.out) return;
  Part p = load_part(s, rules, begin, width, row, gradient, state);
  float moved[kMine] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i)
    for (int turn = 0; turn < 32 && 32 * i + turn < width; ++turn) {
      const float* h = square + (32 * i + turn) * kGptqBlock;
      const float curvature = h[32 * i + turn];
      if (curvature == 0) continue;
      const float value = decoded(p.scale[i], p.level[i], p.offset[i]);
      const Chosen q = quantised(rules, value + p.gradient[i] / curvature, p.scale[i], p.offset[i]);
      const float step = __shfl_sync(kAll, decoded(p.scale[i], q.level, p.offset[i]) - value, turn);
      if (lane == turn) {
        moved[i] = step;
        p.code[i] = q.code;
        p.level[i] = q.level;
      }
      if (step == 0) continue;
#pragma unroll
      for (int k = 0; k < kMine; ++k) p.gradient[k] -= h[32 * k + lane] * step;
    }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int c = 32 * i + lane;
    change[row * kGptqBlock + c] = moved[i];
    if (c < width) state.codes[row * s.in + begin + c] = static_cast<uint8_t>(p.code[i]);
  }
}

// Takes the stored neighbour of the optimum scale t = d.g / d H d if that lowers the loss (see refit in
// quant/descent/descent.cc).
__device__ bool refit(const GptqRules& rules, float slope, float curvature, float row_scale, float& scale,
                      float& offset) {
  if (scale == 0 || !(curvature > 0)) return false;
  const float wanted = scale + slope / curvature;
  if (wanted * scale <= 0) return false;
  const float stored = stored_scale(rules.form, wanted, row_scale), t = stored - scale;
  if (t == 0 || !(t * (2 * slope - t * curvature) > 0)) return false;
  if (!rules.grid) offset = __fmul_rn(rintf(__fdiv_rn(offset, scale)), stored);
  scale = stored;
  return true;
}

__global__ void __launch_bounds__(kWarps * 32)
    rescale(GptqShape s, const __grid_constant__ GptqRules rules, int64_t begin, const float* hessian,
            const float* gradient, GptqState state, float* change) {
  extern __shared__ float square[];
  const int width = my_width(s, begin), lane = threadIdx.x % 32;
  load_square(hessian, s.in, begin, width, square);
  const int64_t row = my_row();
  if (row >= s.out) return;
  Part p = load_part(s, rules, begin, width, row, gradient, state);
  float moved[kMine] = {};
  for (int first = 0; first < width; first += s.group) {
    const int last = min(first + s.group, width);
    float along[kMine], curved[kMine] = {}, slope = 0, curvature = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int c = 32 * i + lane;
      const float zero = p.scale[i] == 0 || rules.grid ? 0.0f : __fdiv_rn(p.offset[i], p.scale[i]);
      along[i] = c >= first && c < last ? p.level[i] + zero : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      for (int turn = 0; turn < 32; ++turn) {
        const int j = 32 * i + turn;
        if (j < first || j >= last) continue;
        const float d = __shfl_sync(kAll, along[i], turn);
#pragma unroll
        for (int k = 0; k < kMine; ++k) curved[k] += square[j * kGptqBlock + 32 * k + lane] * d;
      }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      slope += along[i] * p.gradient[i];
      curvature += along[i] * curved[i];
    }
    slope = warp_sum(slope);
    curvature = warp_sum(curvature);
    const int64_t at = row * s.groups + (begin + first) / s.group;
    float scale = state.scale[at], offset = state.offset[at];
    // The whole warp takes the same branch.
    if (!refit(rules, slope, curvature, state.row_scale[row], scale, offset)) continue;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int c = 32 * i + lane;
      if (c >= first && c < last)
        moved[i] = decoded(scale, p.level[i], offset) - decoded(p.scale[i], p.level[i], p.offset[i]);
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      for (int turn = 0; turn < 32; ++turn) {
        const int j = 32 * i + turn;
        if (j < first || j >= last) continue;
        const float d = __shfl_sync(kAll, moved[i], turn);
#pragma unroll
        for (int k = 0; k < kMine; ++k) p.gradient[k] -= square[j * kGptqBlock + 32 * k + lane] * d;
      }
    __syncwarp();
    if (lane == 0) state.scale[at] = scale, state.offset[at] = offset;
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) change[row * kGptqBlock + 32 * i + lane] = moved[i];
}

__global__ void clear_columns(GptqShape s, const float* diagonal, float* values) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= s.in || diagonal[c] != 0) return;
  for (int64_t row = blockIdx.y; row < s.out; row += gridDim.y) values[row * s.in + c] = 0;
}

__global__ void gather_columns(GptqShape s, const int32_t* order, const float* values, float* to) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= s.in) return;
  const int64_t from = order[c];
  for (int64_t row = blockIdx.y; row < s.out; row += gridDim.y) to[row * s.in + c] = values[row * s.in + from];
}

__global__ void subtract(GptqShape s, const __grid_constant__ GptqRules rules, const float* values, GptqState state,
                         float* rest) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= s.in) return;
  for (int64_t row = blockIdx.y; row < s.out; row += gridDim.y) {
    const int64_t at = row * s.groups + c / s.group, i = row * s.in + c;
    rest[i] = values[i] - decoded(state.scale[at], level_of(rules, state.codes[i]), state.offset[at]);
  }
}

__global__ void __launch_bounds__(256) dots(GptqShape s, const float* a, const float* b, double* sums) {
  const int64_t row = blockIdx.x * int64_t{8} + threadIdx.x / 32;
  if (row >= s.out) return;
  double sum = 0;
  for (int64_t c = threadIdx.x % 32; c < s.in; c += 32) sum += double{a[row * s.in + c]} * b[row * s.in + c];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[row] = sum;
}

dim3 element_grid(const GptqShape& s) {
  return {static_cast<unsigned>((s.in + 255) / 256), static_cast<unsigned>(s.out < 4096 ? s.out : 4096)};
}

// Launches a kernel that has a square of the block in shared memory and one warp for each row.
template <typename Kernel, typename... Arguments>
void launch_block(const char* doing, Stream stream, const GptqShape& s, Kernel kernel, Arguments... arguments) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSquare)),
             doing);
  kernel<<<static_cast<unsigned>((s.out + kWarps - 1) / kWarps), kWarps * 32, kSquare, stream>>>(s, arguments...);
  cuda_check(cudaGetLastError(), doing);
}

}  // namespace

void clear_dead(Stream stream, const GptqShape& shape, const float* diagonal, float* values) {
  clear_columns<<<element_grid(shape), 256, 0, stream>>>(shape, diagonal, values);
  cuda_check(cudaGetLastError(), "clearing columns");
}
void order_columns(Stream stream, const GptqShape& shape, const int32_t* order, const float* values, float* to) {
  gather_columns<<<element_grid(shape), 256, 0, stream>>>(shape, order, values, to);
  cuda_check(cudaGetLastError(), "ordering columns");
}
void feed_back_block(Stream stream, const GptqShape& shape, const GptqRules& rules, int64_t begin, const float* upper,
                     const int32_t* order, const float* work, const GptqState& state, float* error) {
  launch_block("feeding errors back", stream, shape, feed_back, rules, begin, upper, order, work, state, error);
}
void subtract_decoded(Stream stream, const GptqShape& shape, const GptqRules& rules, const float* values,
                      const GptqState& state, float* rest) {
  subtract<<<element_grid(shape), 256, 0, stream>>>(shape, rules, values, state, rest);
  cuda_check(cudaGetLastError(), "decoding");
}
void descend_block(Stream stream, const GptqShape& shape, const GptqRules& rules, int64_t begin, const float* hessian,
                   const float* gradient, const GptqState& state, float* change) {
  launch_block("descending", stream, shape, descend, rules, begin, hessian, gradient, state, change);
}
void rescale_block(Stream stream, const GptqShape& shape, const GptqRules& rules, int64_t begin, const float* hessian,
                   const float* gradient, const GptqState& state, float* change) {
  launch_block("fitting scales again", stream, shape, rescale, rules, begin, hessian, gradient, state, change);
}
void row_dots(Stream stream, const GptqShape& shape, const float* a, const float* b, double* sums) {
  dots<<<static_cast<unsigned>((shape.out + 7) / 8), 256, 0, stream>>>(shape, a, b, sums);
  cuda_check(cudaGetLastError(), "summing");
}

}  // namespace fidelio::cuda
