// These kernels handle working order, scales, decoding, and conjugate gradients over the values that codes multiply
// (quant/vectors/vectors.cc and vector_descent.cc). Sums over many terms are in double and in a fixed order.
#include <cuda_fp16.h>

#include "kernels/cuda/device/cuda_error.cuh"
#include "quant/cuda/vector_search.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kWide = 1024;
constexpr unsigned kAll = 0xffffffffu;

unsigned blocks_for(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }
unsigned warps_for(int64_t n) { return static_cast<unsigned>((n + kWarps - 1) / kWarps); }
dim3 elements(const VectorState& s) {
  return {blocks_for(s.padded), static_cast<unsigned>(s.out < 4096 ? s.out : 4096)};
}

__device__ double warp_total(double value) {
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(kAll, value, by);
  return value;
}
__device__ int64_t my_warp() { return blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; }
__device__ float stored_half(double x) {
  return __half2float(__float2half_rn(static_cast<float>(fmin(fmax(x, 0x1p-20), 60000.0))));
}

// Calls f(row, column, row padded + column) for each element of a matrix.
template <typename F>
__device__ void for_elements(const VectorState& s, const F& f) {
  const int64_t c = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (c >= s.padded) return;
  for (int64_t row = blockIdx.y; row < s.out; row += gridDim.y) f(row, c, row * s.padded + c);
}

__global__ void gather(const float* values, const float* diagonal, const int32_t* order, int64_t in, VectorState s) {
  for_elements(s, [&](int64_t row, int64_t c, int64_t at) {
    const int32_t from = order[c];
    s.w[at] = from < 0 || diagonal[c] == 0 ? 0.0f : values[row * in + from];
  });
}

// Each thread has one entry of a vector and computes the squared length of row j of U_vv^-1.
__global__ void price_columns(const float* upper, const float* diagonal, int64_t padded, float* price) {
  const int64_t c = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (c >= padded) return;
  const int64_t first = c / 8 * 8;
  float e[8] = {}, sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    e[j] = j == c % 8 ? 1.0f : 0.0f;
#pragma unroll
    for (int i = 0; i < j; ++i) e[j] = __fsub_rn(e[j], __fmul_rn(e[i], upper[(first + i) * padded + first + j]));
    e[j] = __fdiv_rn(e[j], upper[(first + j) * padded + first + j]);
    sum = __fadd_rn(sum, __fmul_rn(e[j], e[j]));
  }
  price[c] = diagonal[c] == 0 ? 0.0f : sum;
}

__global__ void row_scales(VectorState s, int64_t in) {
  const int64_t row = my_warp();
  if (row >= s.out) return;
  double sum = 0;
  for (int64_t c = threadIdx.x % 32; c < s.padded; c += 32) {
    const double w = s.w[row * s.padded + c];
    sum += w * w;
  }
  sum = warp_total(sum);
  if (threadIdx.x % 32 == 0) s.row[row] = static_cast<float>(16 * sqrt(sum / static_cast<double>(in)));
}

// Thread blocks have 32 columns and 32 runs of rows. The threads of the first run get the sum of f(row, column, at)
// over all rows.
template <typename F>
__device__ double column_sum(const VectorState& s, const F& f) {
  __shared__ double sums[32][33];
  const int64_t c = blockIdx.x * int64_t{32} + threadIdx.x % 32;
  double sum = 0;
  if (c < s.padded)
    for (int64_t row = threadIdx.x / 32; row < s.out; row += 32) sum += f(row, c, row * s.padded + c);
  sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  for (int by = 16; by > 0; by /= 2) {
    if (static_cast<int>(threadIdx.x) / 32 < by)
      sums[threadIdx.x / 32][threadIdx.x % 32] += sums[threadIdx.x / 32 + by][threadIdx.x % 32];
    __syncthreads();
  }
  return sums[0][threadIdx.x % 32];
}

__global__ void __launch_bounds__(kWide) column_scales(VectorState s, const float* price) {
  const double squares = column_sum(s, [&](int64_t row, int64_t, int64_t at) {
    const double x = s.row[row] > 0 ? 16 * double{s.w[at]} / s.row[row] : 0;
    return x * x;
  });
  const int64_t c = blockIdx.x * int64_t{32} + threadIdx.x;
  if (threadIdx.x >= 32 || c >= s.padded) return;
  const float column = stored_half(fmax(0.05, sqrt(squares / static_cast<double>(s.out))) / 16);
  s.column[c] = column;
  s.metrics[c] = __fmul_rn(__fmul_rn(price[c], column), column);
}

__global__ void with_book_scale(VectorState s, const float* book_scale) {
  const int64_t row = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (row >= s.out || s.row[row] == 0) return;
  s.row[row] = stored_half(double{s.row[row]} * book_scale[s.block[row]]);
}

__global__ void set_metrics(VectorState s, const float* diagonal) {
  const int64_t c = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (c < s.padded) s.metrics[c] = __fmul_rn(__fmul_rn(diagonal[c], s.column[c]), s.column[c]);
}

// Inverts H_vv plus a small multiple of the identity by Gauss-Jordan elimination. Lanes 0 to 15 of a warp each have
// one column of [H_vv | 1].
__global__ void invert(const float* h, int64_t padded, int64_t vectors, double* inverse) {
  const int64_t v = my_warp();
  if (v >= vectors) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* here = h + v * 8 * padded + v * 8;
  double mean = 0, a[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) mean += double{here[i * padded + i]} / 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    a[i] = lane < 8 ? double{here[i * padded + lane]} : lane == i + 8 && here[i * padded + i] > 0 ? 1.0 : 0.0;
    if (i == lane) a[i] += 1e-6 * mean + 1e-30;
  }
#pragma unroll
  for (int p = 0; p < 8; ++p) {
    a[p] *= 1 / __shfl_sync(kAll, a[p], p);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const double f = __shfl_sync(kAll, a[i], p);
      if (i != p) a[i] -= f * a[p];
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (lane >= 8 && lane < 16) inverse[(v * 8 + i) * 8 + lane - 8] = a[i];
}

__device__ float entry_of(const VectorState& s, int64_t row, int64_t c) {
  const uint32_t code = s.code[row * s.vectors + c / 8];
  const int j = static_cast<int>(c % 8);
  const float b = s.book[(int64_t{s.block[row]} * s.entries + (code & 0xffff)) * 8 + j];
  return is_negative(s.signs, code, j) ? -b : b;
}

__global__ void decode(const __grid_constant__ VectorState s) {
  for_elements(s, [&](int64_t row, int64_t c, int64_t at) {
    const float level = entry_of(s, row, c);
    float value = __fmul_rn(__fmul_rn(s.row[row], s.column[c]), level);
    const int64_t vector = row * s.vectors + c / 8;
    if (s.corrected[vector])
      value = __fadd_rn(value, __fmul_rn(__half2float(__ushort_as_half(s.correction_scale[vector])),
                                         static_cast<float>(s.correction[at])));
    s.level[at] = static_cast<int8_t>(level);
    s.done[at] = value;
    s.error[at] = s.w[at] - value;
  });
}

__global__ void levels(const __grid_constant__ VectorState s, float* main) {
  for_elements(s, [&](int64_t row, int64_t c, int64_t at) {
    main[at] = __fmul_rn(__fmul_rn(s.row[row], s.column[c]), static_cast<float>(s.level[at]));
  });
}

// Takes the row scale that minimises the loss for the present codes, if it lowers the loss.
__global__ void rescale(const __grid_constant__ VectorState s, const float* main, const float* bent,
                        const float* gradient) {
  const int64_t row = my_warp();
  if (row >= s.out) return;
  double curve = 0, slope = 0;
  for (int64_t c = threadIdx.x % 32; c < s.padded; c += 32) {
    const int64_t at = row * s.padded + c;
    curve += double{bent[at]} * main[at];
    slope += double{gradient[at]} * main[at];
  }
  curve = warp_total(curve);
  slope = warp_total(slope);
  const float scale = s.row[row];
  if (threadIdx.x % 32 != 0 || scale == 0 || !(curve > 0) || slope <= -curve) return;
  const float wanted = stored_half(scale * (1 + slope / curve));
  const double by = double{wanted} / scale - 1;
  if (by * by * curve - 2 * by * slope < 0) s.row[row] = wanted;
}

__global__ void dots(const __grid_constant__ VectorState s, const float* a, const float* b, double* sums) {
  const int64_t row = my_warp();
  if (row >= s.out) return;
  double sum = 0;
  for (int64_t c = threadIdx.x % 32; c < s.padded; c += 32)
    sum += double{a[row * s.padded + c]} * b[row * s.padded + c];
  sum = warp_total(sum);
  if (threadIdx.x % 32 == 0) sums[row] = sum;
}

__global__ void __launch_bounds__(kWide)
    columns_sum(const __grid_constant__ VectorState s, const float* b, const float* diagonal, double* sums) {
  const double sum = column_sum(s, [&](int64_t row, int64_t c, int64_t at) {
    const double f = __fmul_rn(s.row[row], static_cast<float>(s.level[at]));
    return f * (b ? double{b[at]} : f * double{diagonal[c]});
  });
  const int64_t c = blockIdx.x * int64_t{32} + threadIdx.x;
  if (threadIdx.x < 32 && c < s.padded) sums[c] = sum;
}

__global__ void columns_spread(const __grid_constant__ VectorState s, const double* p, float* a) {
  for_elements(s, [&](int64_t row, int64_t c, int64_t at) {
    a[at] = __fmul_rn(s.row[row], static_cast<float>(s.level[at])) * static_cast<float>(p[c]);
  });
}

__device__ float entry_factor(const VectorState& s, int64_t row, int64_t c, uint32_t code) {
  const float f = __fmul_rn(s.row[row], s.column[c]);
  return is_negative(s.signs, code, static_cast<int>(c % 8)) ? -f : f;
}

// A warp sums for one centroid. It takes four of its vectors at a time, with one lane for each entry of a vector.
__global__ void entries_sum(const __grid_constant__ VectorState s, const __grid_constant__ VectorMembers members,
                            const float* b, const float* diagonal, double* sums) {
  const int64_t centroid = my_warp();
  if (centroid >= int64_t{s.blocks} * s.entries) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, j = lane % 8;
  const auto first_of = [&](int64_t key) {
    int64_t low = 0, high = members.n;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (members.key[middle] < key)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  const int64_t end = first_of(centroid + 1);
  double sum = 0;
  for (int64_t m = first_of(centroid) + lane / 8; m < end; m += 4) {
    const int64_t vector = members.member[m], row = vector / s.vectors, c = vector % s.vectors * 8 + j;
    const double f = entry_factor(s, row, c, s.code[vector]);
    sum += f * (b ? double{b[row * s.padded + c]} : f * double{diagonal[c]});
  }
  for (int by = 8; by < 32; by *= 2) sum += __shfl_xor_sync(kAll, sum, by);
  if (lane < 8) sums[centroid * 8 + j] = sum;
}

__global__ void entries_spread(const __grid_constant__ VectorState s, const double* p, float* a) {
  for_elements(s, [&](int64_t row, int64_t c, int64_t at) {
    const uint32_t code = s.code[row * s.vectors + c / 8];
    const int64_t entry = int64_t{s.block[row]} * s.entries + (code & 0xffff);
    a[at] = entry_factor(s, row, c, code) * static_cast<float>(p[entry * 8 + c % 8]);
  });
}

__device__ double block_total(double value) {
  __shared__ double shared[32];
  value = warp_total(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < static_cast<int>(blockDim.x) / 32; ++i) sum += shared[i];
  return sum;
}

__global__ void __launch_bounds__(kWide) direction(const __grid_constant__ Conjugate k, bool first) {
  const int64_t begin = int64_t{blockIdx.x} * k.values, end = begin + k.values;
  if (!first && !k.active[blockIdx.x]) return;
  const auto steepest = [&](int64_t i) { return k.curvature[i] > 0 ? k.left[i] / k.curvature[i] : 0.0; };
  double now = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWide) now += steepest(i) * k.left[i];
  now = block_total(now);
  const double by = first ? 0 : now / k.now[blockIdx.x];
  for (int64_t i = begin + threadIdx.x; i < end; i += kWide) {
    k.p[i] = now > 0 ? steepest(i) + (first ? 0 : by * k.p[i]) : 0;
    if (first) k.change[i] = 0;
  }
  __syncthreads();  // all threads have read the old value
  if (threadIdx.x == 0) k.now[blockIdx.x] = now, k.active[blockIdx.x] = now > 0;
}

__global__ void __launch_bounds__(kWide) advance(const __grid_constant__ Conjugate k) {
  const int64_t begin = int64_t{blockIdx.x} * k.values, end = begin + k.values;
  if (!k.active[blockIdx.x]) return;
  double along = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWide) along += k.p[i] * k.bent[i];
  along = block_total(along);
  if (!(along > 0)) {
    __syncthreads();
    if (threadIdx.x == 0) k.active[blockIdx.x] = 0;
    return;
  }
  const double by = k.now[blockIdx.x] / along;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWide) {
    k.change[i] += by * k.p[i];
    k.left[i] -= by * k.bent[i];
  }
}

__global__ void change_scales(VectorState s, const double* change) {
  const int64_t c = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (c >= s.padded) return;
  const double old = s.column[c];
  s.column[c] = stored_half(fmin(fmax(old + change[c], 0.5 * old), 2.0 * old));
}

// Rounds a codebook to whole numbers of which the largest is 127. The codebook's rows take the factor into their
// scales.
__global__ void __launch_bounds__(kWide) change_entries(const __grid_constant__ VectorState s, const double* change) {
  __shared__ double most[32];
  const int64_t begin = int64_t{blockIdx.x} * s.entries * 8, end = begin + int64_t{s.entries} * 8;
  double largest = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWide) largest = fmax(largest, fabs(s.book[i] + change[i]));
  for (int by = 16; by > 0; by /= 2) largest = fmax(largest, __shfl_xor_sync(kAll, largest, by));
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int i = 0; i < 32; ++i) largest = fmax(largest, most[i]);
  if (largest == 0) return;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWide)
    s.book[i] = static_cast<float>(rint((s.book[i] + change[i]) * 127 / largest));
  for (int64_t row = threadIdx.x; row < s.out; row += kWide)
    if (s.block[row] == static_cast<int32_t>(blockIdx.x) && s.row[row] > 0)
      s.row[row] = stored_half(s.row[row] * largest / 127);
}

__global__ void __launch_bounds__(kWide)
    restore(const __grid_constant__ VectorState s, const uint8_t* flagged, const float* book, const float* rows) {
  if (!flagged[blockIdx.x]) return;
  const int64_t begin = int64_t{blockIdx.x} * s.entries * 8, end = begin + int64_t{s.entries} * 8;
  for (int64_t i = begin + threadIdx.x; i < end; i += kWide) s.book[i] = book[i];
  for (int64_t row = threadIdx.x; row < s.out; row += kWide)
    if (s.block[row] == static_cast<int32_t>(blockIdx.x)) s.row[row] = rows[row];
}

}  // namespace

void gather_vectors(Stream stream, const float* values, const float* diagonal, const int32_t* order, int64_t in,
                    const VectorState& s) {
  gather<<<elements(s), kThreads, 0, stream>>>(values, diagonal, order, in, s);
  cuda_check(cudaGetLastError(), "ordering vectors");
}
void vector_prices(Stream stream, const float* upper, const float* diagonal, int64_t padded, float* price) {
  price_columns<<<blocks_for(padded), kThreads, 0, stream>>>(upper, diagonal, padded, price);
  cuda_check(cudaGetLastError(), "pricing columns");
}
void normalise_vectors(Stream stream, const float* price, int64_t in, const VectorState& s) {
  row_scales<<<warps_for(s.out), kThreads, 0, stream>>>(s, in);
  column_scales<<<static_cast<unsigned>((s.padded + 31) / 32), kWide, 0, stream>>>(s, price);
  cuda_check(cudaGetLastError(), "normalising a matrix");
}
void scale_rows(Stream stream, const float* book_scale, const VectorState& s) {
  with_book_scale<<<blocks_for(s.out), kThreads, 0, stream>>>(s, book_scale);
  cuda_check(cudaGetLastError(), "scaling rows");
}
void descent_metrics(Stream stream, const float* diagonal, const VectorState& s) {
  set_metrics<<<blocks_for(s.padded), kThreads, 0, stream>>>(s, diagonal);
  cuda_check(cudaGetLastError(), "setting metrics");
}
void invert_squares(Stream stream, const float* h, int64_t padded, double* inverse) {
  invert<<<warps_for(padded / 8), kThreads, 0, stream>>>(h, padded, padded / 8, inverse);
  cuda_check(cudaGetLastError(), "inverting a Hessian's squares");
}
void decode_vectors(Stream stream, const VectorState& s) {
  decode<<<elements(s), kThreads, 0, stream>>>(s);
  cuda_check(cudaGetLastError(), "decoding vectors");
}
void decoded_levels(Stream stream, const VectorState& s, float* main) {
  levels<<<elements(s), kThreads, 0, stream>>>(s, main);
  cuda_check(cudaGetLastError(), "decoding levels");
}
void refit_rows(Stream stream, const VectorState& s, const float* main, const float* bent, const float* gradient) {
  rescale<<<warps_for(s.out), kThreads, 0, stream>>>(s, main, bent, gradient);
  cuda_check(cudaGetLastError(), "fitting row scales");
}
void vector_dots(Stream stream, const VectorState& s, const float* a, const float* b, double* sums) {
  dots<<<warps_for(s.out), kThreads, 0, stream>>>(s, a, b, sums);
  cuda_check(cudaGetLastError(), "summing");
}
void sum_by_column(Stream stream, const VectorState& s, const float* b, const float* diagonal, double* sum) {
  columns_sum<<<static_cast<unsigned>((s.padded + 31) / 32), kWide, 0, stream>>>(s, b, diagonal, sum);
  cuda_check(cudaGetLastError(), "summing by column");
}
void spread_columns(Stream stream, const VectorState& s, const double* p, float* a) {
  columns_spread<<<elements(s), kThreads, 0, stream>>>(s, p, a);
  cuda_check(cudaGetLastError(), "spreading columns");
}
void sum_by_entry(Stream stream, const VectorState& s, const VectorMembers& members, const float* b,
                  const float* diagonal, double* sum) {
  entries_sum<<<warps_for(int64_t{s.blocks} * s.entries), kThreads, 0, stream>>>(s, members, b, diagonal, sum);
  cuda_check(cudaGetLastError(), "summing by entry");
}
void spread_entries(Stream stream, const VectorState& s, const double* p, float* a) {
  entries_spread<<<elements(s), kThreads, 0, stream>>>(s, p, a);
  cuda_check(cudaGetLastError(), "spreading entries");
}
void conjugate_direction(Stream stream, const Conjugate& c, bool first) {
  direction<<<static_cast<unsigned>(c.sets), kWide, 0, stream>>>(c, first);
  cuda_check(cudaGetLastError(), "finding a direction");
}
void conjugate_step(Stream stream, const Conjugate& c) {
  advance<<<static_cast<unsigned>(c.sets), kWide, 0, stream>>>(c);
  cuda_check(cudaGetLastError(), "going a step");
}
void change_columns(Stream stream, const VectorState& s, const double* change) {
  change_scales<<<blocks_for(s.padded), kThreads, 0, stream>>>(s, change);
  cuda_check(cudaGetLastError(), "changing column scales");
}
void change_books(Stream stream, const VectorState& s, const double* change) {
  change_entries<<<static_cast<unsigned>(s.blocks), kWide, 0, stream>>>(s, change);
  cuda_check(cudaGetLastError(), "changing codebooks");
}
void restore_books(Stream stream, const VectorState& s, const uint8_t* flagged, const float* book, const float* row) {
  restore<<<static_cast<unsigned>(s.blocks), kWide, 0, stream>>>(s, flagged, book, row);
  cuda_check(cudaGetLastError(), "restoring codebooks");
}

}  // namespace fidelio::cuda
