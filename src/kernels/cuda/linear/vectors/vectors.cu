// A thread block has a multiprocessor and a run of sixteens of rows, of which it takes those that have two codebooks at
// a time (a stage):
//
//     shared memory:  [codebook][codebook][inputs of up to 4 rows of x][partial sums]      one codebook if two are too much
//     warps:          sets of two; a set takes four rows of W at a time, and warp s of it groups s, s + 2, ... of
//                     those rows, and of rows 2 s (half the lanes) and 2 s + 1 the corrections and what comes out
//
// Within a stage sets wait for nobody. What is read next is asked for while what is there is multiplied: words a group
// ahead, corrections four rows ahead; the first words and codebooks before the kernel ahead has ended.
#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/vectors/vector_inputs.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kSplit = 2, kSets = kWarps / kSplit, kFew = 4;  // rows of W that a set takes at a time
constexpr int kBooks = 2;
constexpr int book_bytes(bool high) { return kVectorPlaces * 8 * (high ? 2 : 1); }
constexpr int kMostRows = 4;  // rows of x that share one decoding

struct Product {
  VectorWeight weight[kMaxTogether];
  float* y[kMaxTogether];
  int first_unit[kMaxTogether + 1];
  int count;
  const float* x;
  int rows;
  int books;  // in shared memory at a time
  bool add;
};

template <int kPlanes>
int shared_bytes(bool high, int books, int groups, int rows) {
  return books * book_bytes(high) + rows * (vector_input_bytes<kPlanes>(groups) + 2 * kWarps * kFew * 4) +
         2 * kWarps * 4;
}

__device__ __forceinline__ int dot_unsigned(uint32_t levels, uint32_t x, int sum) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(levels), "r"(x));
  return sum;
}
template <bool kBiased>
__device__ __forceinline__ int dot(uint32_t levels, uint32_t x, int sum) {
  if constexpr (kBiased) return dot_unsigned(levels, x, sum);
  return __dp4a(static_cast<int>(levels), static_cast<int>(x), sum);
}

// Entries lie in shared memory as they are multiplied: with one sign also negated; with more, plus 128, where negating
// u is 256 - u = ~u + 1 without a carry; where there are few, 16 times each, a copy for each pair of banks, else twice.
template <int kSigns, bool kHigh>
__device__ void fill_book(const VectorWeight& w, int block, uint2* book) {
  const auto* from = reinterpret_cast<const uint2*>(w.codebook) + int64_t{block} * w.entries;
  const int count = w.entries * (kHigh ? 1 : 16);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const uint2 e = __ldg(from + (kHigh ? i : i / 16));
    const uint2 plus = kSigns == 1 ? e : uint2{e.x ^ 0x80808080u, e.y ^ 0x80808080u};
    book[i] = plus;
    if constexpr (kHigh) book[second_place(i)] = plus;
    if constexpr (kSigns == 1) book[i + count] = book[second_place(i + count)] = {__vneg4(e.x), __vneg4(e.y)};
  }
}

// Half h of a vector as it is multiplied.
template <int kSigns>
__device__ __forceinline__ uint32_t with_signs(uint32_t levels, const VectorWords& words, int which, int h) {
  if constexpr (kSigns == 1) return levels;
  const uint32_t minus = negated(words, which, h);
  return (levels ^ minus * 255) + minus;
}

// Sums of kRows rows of W and kCount rows of x in one group.
template <int kSigns, bool kHigh, int kRows, int kCount, int kPlanes>
__device__ __forceinline__ void add_group(const VectorWords (&words)[kRows], const std::byte* book, uint32_t copy,
                                          const VectorInputs<kPlanes>& inputs, int group, float (&sum)[kRows][kCount]) {
  constexpr bool kBiased = kSigns != 1;
  constexpr int kCopies = kHigh ? 0 : 4;  // of a centroid, as a power of two
  const int lane = threadIdx.x % 32;
  int whole[kRows][kCount][kPlanes] = {}, bias[kCount][kPlanes] = {};
  uint2 entry[4][kRows];  // all asked for at once: a multiprocessor's warps are few
#pragma unroll
  for (int which = 0; which < 4; ++which)
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      entry[which][r] = *reinterpret_cast<const uint2*>(book + (centroid_at<kHigh, kCopies>(words[r], which) | copy));
#pragma unroll
  for (int which = 0; which < 4; ++which) {
    const int at = (group * 4 + which) * kVectorLanes + lane;
    uint32_t level[kRows][2];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      level[r][0] = with_signs<kSigns>(entry[which][r].x, words[r], which, 0);
      level[r][1] = with_signs<kSigns>(entry[which][r].y, words[r], which, 1);
    }
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
      const uint4 two = inputs.planes(m)[at];
      uint32_t x[kPlanes][2] = {{two.x, two.y}, {two.z, two.w}};
      if constexpr (kPlanes == 3) {
        const uint2 third = inputs.third(m)[at];
        x[2][0] = third.x, x[2][1] = third.y;
      }
#pragma unroll
      for (int p = 0; p < kPlanes; ++p)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if constexpr (kBiased) bias[m][p] = dot_unsigned(0x80808080u, x[p][h], bias[m][p]);
#pragma unroll
          for (int r = 0; r < kRows; ++r) whole[r][m][p] = dot<kBiased>(level[r][h], x[p][h], whole[r][m][p]);
        }
    }
  }
#pragma unroll
  for (int m = 0; m < kCount; ++m) {
    const float scale = inputs.scale(m)[group];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float total = static_cast<float>((whole[r][m][0] - bias[m][0]) * 256 + (whole[r][m][1] - bias[m][1]));
      if constexpr (kPlanes == 3) total = fmaf(total, 256.0f, static_cast<float>(whole[r][m][2] - bias[m][2]));
      sum[r][m] = fmaf(scale, total, sum[r][m]);
    }
  }
}

// Sums over lanes of kCount values, a power of two: lane l's is that of value l / (32 / kCount). Each is added up as a
// tree, halves of the warp first, however many there are.
template <int kCount, int kBy = 16>
__device__ __forceinline__ float sum_of_lanes(float (&v)[kCount], int lane) {
  if constexpr (kBy == 0) {
    return v[0];
  } else if constexpr (kCount == 1) {
    v[0] += __shfl_xor_sync(~0u, v[0], kBy);
    return sum_of_lanes<1, kBy / 2>(v, lane);
  } else {
    const bool upper = (lane & kBy) != 0;
    float kept[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i)
      kept[i] = (upper ? v[kCount / 2 + i] : v[i]) + __shfl_xor_sync(~0u, upper ? v[i] : v[kCount / 2 + i], kBy);
    return sum_of_lanes<kCount / 2, kBy / 2>(kept, lane);
  }
}

// A lane's correction.
struct Correction {
  uint2 levels = {0, 0};
  float scale = 0;
  int first = 0;  // column
};
__device__ __forceinline__ Correction correction(const VectorWeight& w, int i) {
  return {__ldg(reinterpret_cast<const uint2*>(w.value) + i), __half2float(__ushort_as_half(__ldg(w.scale + i))),
          __ldg(w.place + i) * 8};
}
// What it adds: 8 bytes times 8 columns, of which the last may be beyond the matrix. A signed byte b becomes the float
// 2^23 + 128 + b, less 2^23 + 128.
__device__ __forceinline__ float corrected(const Correction& c, const float* x, int in) {
  const uint32_t biased[2] = {c.levels.x ^ 0x80808080u, c.levels.y ^ 0x80808080u};
  float inputs[8];
  if (in % 4 == 0 && c.first + 8 <= in) {
    const auto* four = reinterpret_cast<const float4*>(x + c.first);
    const float4 low = four[0], high = four[1];
    inputs[0] = low.x, inputs[1] = low.y, inputs[2] = low.z, inputs[3] = low.w;
    inputs[4] = high.x, inputs[5] = high.y, inputs[6] = high.z, inputs[7] = high.w;
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) inputs[j] = c.first + j < in ? x[c.first + j] : 0.0f;
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    sum = fmaf(__uint_as_float(__byte_perm(biased[j / 4], 0x4B000000u, 0x7440 + j % 4)) - 8388736.0f, inputs[j], sum);
  return sum * c.scale;
}

// What a thread block does with its rows.
template <int kSigns, bool kHigh, int kCount, int kPlanes>
struct Worker {
  static constexpr int kAtOnce = kCount * kPlanes == 2 ? 4 : 2;  // rows of W whose sums a lane has registers for
  const Product& p;
  std::byte* books;
  VectorInputs<kPlanes> inputs;
  float* partial;  // [parity][set][row of its four][split][row of x]
  float* largest;
  const int lane = threadIdx.x % 32, split = threadIdx.x / 32 % kSplit, set = threadIdx.x / 32 / kSplit;
  const int own = split * 2 + lane / 16;  // the row of its four whose corrections and sums a lane has
  static_assert(kSplit * 2 == kFew);

  __device__ static bool has_corrections(const VectorWeight& w, int row, int end) {
    return w.begin && row < end && row < w.out;
  }

  __device__ Worker(const Product& product, std::byte* shared)
      : p(product),
        books(shared),
        inputs{shared + product.books * book_bytes(kHigh), static_cast<int>(product.weight[0].groups)} {
    partial = reinterpret_cast<float*>(inputs.row(kCount));
    largest = partial + 2 * kWarps * kFew * kCount;
  }

  // Rows [first, first + kAtOnce) in a group.
  __device__ void load(const VectorWeight& w, int first, int group, VectorWords (&words)[kAtOnce]) const {
    constexpr int kRecord = kVectorLanes * ((kHigh ? 8 : 4) + (kSigns == 8 ? 4 : kSigns == 4 ? 2 : 0));
    const uint8_t* at = w.codes + (int64_t{first} * inputs.groups + group) * kRecord;
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) words[r] = vector_words<kSigns, kHigh>(at + r * inputs.groups * kRecord, lane);
  }

  // The units of a stage, from `unit` of weight `which` on, that have the books of `block` and the next one.
  __device__ void stage(int which, int unit, int count, int block, bool first, bool fresh) {
    const VectorWeight& w = p.weight[which];
    const int end = (unit + count) * kVectorUnit, second = w.first_unit(block + 1) * kVectorUnit;
    int row = unit * kVectorUnit + set * kFew;
    VectorWords words[kAtOnce] = {};
    if (row < end && split < inputs.groups) load(w, row, split, words);
    Correction fix;
    int at = 0, last = 0;
    if (has_corrections(w, row + own, end)) {
      at = w.begin[row + own] + lane % 16, last = w.begin[row + own + 1];
      if (at < last) fix = correction(w, at);
    }
    if (!first) __syncthreads();  // everybody is done with books and inputs
    fill_book<kSigns, kHigh>(w, block, reinterpret_cast<uint2*>(books));
    if (second < end) fill_book<kSigns, kHigh>(w, block + 1, reinterpret_cast<uint2*>(books + book_bytes(kHigh)));
    if (first) ptx::dependency_wait();
    if (fresh)
      for (int m = 0; m < kCount; ++m) make_inputs<kPlanes>(w, p.x + min(m, p.rows - 1) * w.in, inputs, m, largest);
    __syncthreads();
    for (int parity = 0; row < end; row += kSets * kFew, parity ^= 1) {
      const int next = row + kSets * kFew, after = next < end ? next : -1;
      const bool more = has_corrections(w, next + own, end);
      const int next_at = more ? w.begin[next + own] + lane % 16 : 0, next_last = more ? w.begin[next + own + 1] : 0;
      float* mine = partial + (parity * kSets + set) * kFew * kSplit * kCount;
      const int slot = row < second ? 0 : 1;
      float scale[kFew], fixed[kCount] = {};
#pragma unroll
      for (int r = 0; r < kFew; ++r) scale[r] = __ldg(w.row + row + r);
      for (; at < last; at += 16) {
#pragma unroll
        for (int m = 0; m < kCount; ++m)
          fixed[m] += corrected(fix, p.x + min(m, p.rows - 1) * static_cast<int>(w.in), static_cast<int>(w.in));
        if (at + 16 < last) fix = correction(w, at + 16);
      }
#pragma unroll
      for (int part = 0; part < kFew; part += kAtOnce)
        sums(w, row + part, part + kAtOnce < kFew ? row + part + kAtOnce : after, words, slot,
             mine + part * kSplit * kCount, scale + part, own - part, fixed);
      at = next_at, last = next_last;
      if (at < last) fix = correction(w, at);
      asm volatile("bar.sync %0, %1;" ::"r"(set + 1), "n"(32 * kSplit) : "memory");
      if (row + own < w.out && lane % 16 < p.rows) write(w, row + own, which, mine + own * kSplit * kCount);
    }
  }

  // Sums of rows [row, row + kAtOnce); `words` are those of this warp's first group, and then those of `next`'s. Row
  // `fix`, if it is one of these, gets `fixed`.
  __device__ void sums(const VectorWeight& w, int row, int next, VectorWords (&words)[kAtOnce], int slot, float* parts,
                       const float* scale, int fix, const float (&fixed)[kCount]) {
    const uint32_t copy = static_cast<uint32_t>(slot * book_bytes(kHigh) + (kHigh ? 0 : lane % 16 * 8));
    float sum[kAtOnce][kCount] = {};
    for (int g = split; g < inputs.groups; g += kSplit) {
      VectorWords coming[kAtOnce] = {};
      if (g + kSplit < inputs.groups)
        load(w, row, g + kSplit, coming);
      else if (next >= 0)
        load(w, next, split, coming);
      add_group<kSigns, kHigh, kAtOnce, kCount, kPlanes>(words, books, copy, inputs, g, sum);
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) words[r] = coming[r];
    }
    float all[kAtOnce * kCount];
#pragma unroll
    for (int i = 0; i < kAtOnce * kCount; ++i)
      all[i] = fmaf(scale[i / kCount], sum[i / kCount][i % kCount], i / kCount == fix ? fixed[i % kCount] : 0.0f);
    const float total = sum_of_lanes(all, lane);
    constexpr int kLanesEach = 32 / (kAtOnce * kCount);
    const int value = lane / kLanesEach;
    if (lane % kLanesEach == 0) parts[(value / kCount * kSplit + split) * kCount + value % kCount] = total;
  }

  // Of row `lane % 16` of x.
  __device__ void write(const VectorWeight& w, int row, int which, const float* parts) const {
    float value = w.bias ? w.bias[row] : 0.0f;
#pragma unroll
    for (int s = 0; s < kSplit; ++s) value += parts[s * kCount + lane % 16];
    float& to = p.y[which][lane % 16 * w.out + row];
    to = p.add ? to + value : value;
  }
};

template <int kSigns, bool kHigh, int kCount, int kPlanes>
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ Product p) {
  extern __shared__ uint4 shared[];
  ptx::allow_dependents();
  Worker<kSigns, kHigh, kCount, kPlanes> worker(p, reinterpret_cast<std::byte*>(shared));
  const int units = p.first_unit[p.count];
  int unit = static_cast<int>(int64_t{units} * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(int64_t{units} * (blockIdx.x + 1) / gridDim.x);
  bool first = true;
  for (int which = 0; unit < end; ++which) {
    const VectorWeight& w = p.weight[which];
    bool fresh = true;  // a weight of its own column scales
    while (unit < min(end, p.first_unit[which + 1])) {
      const int from = unit - p.first_unit[which], last = min(end, p.first_unit[which + 1]) - p.first_unit[which];
      const int block = w.block_of(from);
      const int count = min(last, w.first_unit(block + p.books)) - from;
      worker.stage(which, from, count, block, first, fresh);
      first = fresh = false;
      unit += count;
    }
  }
}

__global__ void dequantise_rows(VectorWeight w, float inverse, __half* halves) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = blockIdx.y;
  if (c < w.in) halves[row * w.in + c] = __float2half_rn(vector_value(w, row, c) * inverse);
}

int most_shared() {
  static const int bytes = [] {
    int device = 0, value = 0;
    cuda_check(cudaGetDevice(&device), "asking for the device");
    cuda_check(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "asking for memory");
    return value;
  }();
  return bytes;
}

template <int kSigns, bool kHigh, int kCount, int kPlanes>
void launch_product(Stream stream, Product p) {
  const auto kernel = multiply<kSigns, kHigh, kCount, kPlanes>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared());
  cuda_check(allowed, "asking for shared memory");
  const auto groups = static_cast<int>(p.weight[0].groups);
  p.books = shared_bytes<kPlanes>(kHigh, kBooks, groups, kCount) <= most_shared() ? kBooks : 1;
  const auto bytes = static_cast<size_t>(shared_bytes<kPlanes>(kHigh, p.books, groups, kCount));
  const auto grid = static_cast<unsigned>(std::min(multiprocessors(), p.first_unit[p.count]));
  launch("a product of vector codes", stream, dim3(grid), kThreads, bytes, kernel, p);
}

template <int kCount, int kPlanes>
void launch_format(Stream stream, const Product& p) {
  const VectorWeight& w = p.weight[0];
  if (w.signs == 1) return launch_product<1, true, kCount, kPlanes>(stream, p);
  if (w.signs == 4 && w.high) return launch_product<4, true, kCount, kPlanes>(stream, p);
  if (w.signs == 4) return launch_product<4, false, kCount, kPlanes>(stream, p);
  if (w.high) return launch_product<8, true, kCount, kPlanes>(stream, p);
  launch_product<8, false, kCount, kPlanes>(stream, p);
}

}  // namespace

int64_t most_vector_columns() {
  const int room = most_shared() - shared_bytes<3>(true, 1, 0, 1);
  return int64_t{room / vector_input_bytes<3>(1)} * kVectorGroup * 8;
}

void vector_linear(Stream stream, std::span<const VectorOutput> outputs, const float* x, int64_t rows, bool exact,
                   bool add) {
  Product p = {};
  p.count = static_cast<int>(outputs.size());
  p.add = add;
  const VectorWeight& w = *outputs[0].weight;
  for (size_t i = 0; i < outputs.size(); ++i) {
    p.weight[i] = *outputs[i].weight;
    p.first_unit[i + 1] = p.first_unit[i] + static_cast<int>((p.weight[i].out + kVectorUnit - 1) / kVectorUnit);
  }
  for (int64_t m = 0; m < rows; m += p.rows) {
    p.rows = exact ? 1 : static_cast<int>(std::min<int64_t>(kMostRows, rows - m));
    while (p.rows > 1 &&
           shared_bytes<2>(w.high, 1, static_cast<int>(w.groups), p.rows == 3 ? 4 : p.rows) > most_shared())
      --p.rows;
    p.x = x + m * w.in;
    for (size_t i = 0; i < outputs.size(); ++i) p.y[i] = outputs[i].y + m * p.weight[i].out;
    if (exact)
      launch_format<1, 3>(stream, p);
    else if (p.rows == 1)
      launch_format<1, 2>(stream, p);
    else if (p.rows == 2)
      launch_format<2, 2>(stream, p);
    else
      launch_format<4, 2>(stream, p);
  }
}

void dequantise_vectors(Stream stream, const VectorWeight& w, float factor, uint16_t* halves) {
  const dim3 grid(static_cast<unsigned>((w.in + 255) / 256), static_cast<unsigned>(w.out));
  dequantise_rows<<<grid, 256, 0, stream>>>(w, 1 / factor, reinterpret_cast<__half*>(halves));
  cuda_check(cudaGetLastError(), "decoding vector codes");
}

}  // namespace fidelio::cuda
