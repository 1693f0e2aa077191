// These kernels find the nearest centroids of samples and choose the codes of a matrix, vector by vector (vectors.h
// has a drawing).
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/device/cuda_error.cuh"
#include "quant/cuda/vector_search.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kOwners = kVectorTile * 8;  // the number of threads that each have one entry of a vector
constexpr int kTilesEach = 16;            // tiles for each thread block that assigns samples
constexpr int kUpdateRows = kVectorTile * kVectorBlock / kSearchThreads;

size_t walk_bytes(int entries) { return SearchRoom::bytes(entries) + size_t{kVectorTile} * kVectorBlock * 4; }

// Returns the squared distance of a sample to +-b, for the whole vector, as quant/vectors/vector_book.cc computes it.
// Each thread has entry j.
template <int kSigns>
__device__ double sample_distance(double x, double metric, double b) {
  double plus = metric * (x - b) * (x - b), minus = metric * (x + b) * (x + b);
#pragma unroll
  for (int by = 1; by < 8 / kSigns; by *= 2) {
    plus += __shfl_xor_sync(~0u, plus, by);
    minus += __shfl_xor_sync(~0u, minus, by);
  }
  double sum = fmin(plus, minus);
#pragma unroll
  for (int by = 8 / kSigns; by < 8; by *= 2) sum += __shfl_xor_sync(~0u, sum, by);
  return sum;
}

template <int kSigns>
__device__ void assign_tile(const VectorSampleSet& s, const VectorTile& tile, const SearchRoom& room) {
  const int r = static_cast<int>(threadIdx.x) / 8, j = static_cast<int>(threadIdx.x) % 8;
  const float* metric = s.metrics + int64_t{tile.place} * 8;
  const int64_t sample = tile.first + r;
  const bool owner = threadIdx.x < kOwners, mine = owner && r < tile.count;
  set_norms(room, metric, s.entries);
  const float x = mine ? s.x[sample * 8 + j] : 0.0f, t = metric[j] * x;
  if (owner) room.wanted[threadIdx.x] = kSigns == 8 ? fabsf(t) : t;
  __syncthreads();
  search<kSigns>(room, s.entries);
  __syncthreads();
  if (!owner) return;
  const int index = found_index(room, r);
  const float b = s.book[(int64_t{tile.block} * s.entries + index) * 8 + j];
  const FoundEntry entry = found_entry<kSigns>(t, b, index);
  const double distance = sample_distance<kSigns>(x, metric[j], b);
  if (!mine || j != 0) return;
  s.code[sample] = entry.code;
  s.key[sample] = static_cast<uint32_t>(tile.block * s.entries + index);
  s.distance[sample] = distance * s.weight[sample];
}

template <int kSigns>
__global__ void __launch_bounds__(kSearchThreads, 1) assign(const __grid_constant__ VectorSampleSet s) {
  extern __shared__ float4 shared[];
  const SearchRoom room(shared, s.entries);
  int loaded = -1;
  const int64_t first = int64_t{blockIdx.x} * kTilesEach;
  for (int64_t i = first; i < min(s.tile_count, first + kTilesEach); ++i) {
    const VectorTile tile = s.tiles[i];
    if (!s.active[tile.block]) continue;
    __syncthreads();  // all threads have read the last tile's result
    if (tile.block != loaded) load_book<kSigns>(room, s.book + int64_t{tile.block} * s.entries * 8, s.entries);
    loaded = tile.block;
    __syncthreads();
    assign_tile<kSigns>(s, tile, room);
  }
}

struct Walk {
  VectorState s;
  int begin, width;       // in vectors
  const float* square;    // U or H, (padded, padded)
  const double* inverse;  // (vectors, 8, 8), for the descent
  const float* from;      // (out, padded): the targets or the gradient
  float* change;          // (out, kVectorBlock): the errors or the steps
};

// An Entry is one entry of one vector of one row, held by one thread. Eight neighbouring lanes share the vector.
struct Entry {
  int64_t row, place, at, vector;  // at = row padded + column; vector = row vectors + place
  int j;
  float scale, column;  // the row's scale, and its product with the column's
  bool corrected;
};

__device__ __forceinline__ float of_lane(float value, int j) {
  return __shfl_sync(~0u, value, static_cast<int>(threadIdx.x & 24) + j);
}

struct FoundCorrection {
  int8_t value;
  __half scale;
};
// Returns the correction nearest to eight errors (quant/vectors/vectors.cc).
__device__ __forceinline__ FoundCorrection correction_of(float error) {
  float largest = fabsf(error);
#pragma unroll
  for (int by = 1; by < 8; by *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, by));
  const __half half = __float2half_rn(fminf(__fdiv_rn(largest, 127.0f), 60000.0f));
  const float scale = __half2float(half);
  const float value = scale == 0 ? 0.0f : fminf(fmaxf(rintf(__fdiv_rn(error, scale)), -127.0f), 127.0f);
  return {static_cast<int8_t>(value), half};
}
__device__ __forceinline__ float corrected_by(const FoundCorrection& c) {
  return __fmul_rn(__half2float(c.scale), static_cast<float>(c.value));
}

__device__ __forceinline__ void store(const Walk& p, const Entry& e, uint32_t code, float value,
                                      const FoundCorrection& correction) {
  p.s.done[e.at] = value;
  if (e.j == 0) p.s.code[e.vector] = code;
  if (!e.corrected) return;
  p.s.correction[e.at] = correction.value;
  if (e.j == 0) p.s.correction_scale[e.vector] = __half_as_ushort(correction.scale);
}

// Returns the error of a vector that has been chosen, times U_vv^-1.
__device__ __forceinline__ float feed_back(const Walk& p, const Entry& e, bool mine, float want, float value,
                                           uint32_t code) {
  value *= __fmul_rn(e.scale, e.column);
  float error = want - value;
  const FoundCorrection correction = correction_of(error);
  if (e.corrected) {
    value = __fadd_rn(value, corrected_by(correction));
    error = want - value;
  }
  if (mine) store(p, e, code, value, correction);
  const float* u = p.square + e.place * 8 * p.s.padded + e.place * 8 + e.j;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float below = u[i * p.s.padded];  // the entry U_ij
    if (e.j == i) error = __fdiv_rn(error, below);
    const float above = of_lane(error, i);
    if (e.j > i) error = __fsub_rn(error, __fmul_rn(above, below));
  }
  return error;
}

// Returns the step by which the vector moves. It is zero if the move would not lower the loss.
__device__ __forceinline__ float descend(const Walk& p, const Entry& e, bool mine, float want, float gradient,
                                         float value, uint32_t code) {
  value *= __fmul_rn(e.scale, e.column);
  const FoundCorrection correction = correction_of(want - value);
  if (e.corrected) value = __fadd_rn(value, corrected_by(correction));
  const float step = mine ? value - p.s.done[e.at] : 0.0f;
  const float* h = p.square + (e.place * 8 + e.j) * p.s.padded + e.place * 8;
  double bent = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) bent += double{h[i]} * double{of_lane(step, i)};
  const double changed = sum_of_eight(double{step} * (bent - 2 * double{gradient}));
  const bool moves = mine && e.scale > 0 && changed < 0 && (e.corrected || p.s.code[e.vector] != code);
  __syncwarp();  // lane 0 of the eight overwrites the code that all have read
  if (moves) store(p, e, code, value, correction);
  return moves ? step : 0.0f;
}

template <bool kDescend>
__device__ __forceinline__ float wanted_value(const Walk& p, const Entry& e, bool mine, float from) {
  if constexpr (!kDescend) return from;
  double by = 0;
  const double* inverse = p.inverse + (e.place * 8 + e.j) * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) by += inverse[i] * double{of_lane(from, i)};
  return static_cast<float>((mine ? p.s.done[e.at] : 0.0f) + by);
}

// Handles vector v of the block in all rows of the tile.
template <int kSigns, bool kDescend>
__device__ __forceinline__ void walk_vector(const Walk& p, const VectorTile& tile, const SearchRoom& room, float* rows,
                                            int v) {
  const VectorState& s = p.s;
  const int r = static_cast<int>(threadIdx.x) / 8, j = static_cast<int>(threadIdx.x) % 8;
  const bool owner = threadIdx.x < kOwners, mine = owner && r < tile.count;
  Entry e = {};
  e.row = tile.first + (mine ? r : 0), e.place = p.begin + v, e.j = j;
  e.at = e.row * s.padded + e.place * 8 + j, e.vector = e.row * s.vectors + e.place;
  const float* metric = s.metrics + e.place * 8;
  float from = 0, want = 0, t = 0;
  set_norms(room, metric, s.entries);
  if (owner) {
    from = rows[r * kVectorBlock + v * 8 + j];
    e.scale = s.row[e.row], e.column = s.column[e.place * 8 + j];
    e.corrected = s.corrected[e.vector] != 0;
    want = wanted_value<kDescend>(p, e, mine, from);
    const float x = e.scale > 0 ? __fdiv_rn(want, __fmul_rn(e.scale, e.column)) : 0.0f;
    t = metric[j] * x;
    room.wanted[threadIdx.x] = kSigns == 8 ? fabsf(t) : t;
  }
  __syncthreads();
  search<kSigns>(room, s.entries);
  __syncthreads();
  if (owner) {
    const int index = found_index(room, r);
    const float b = s.book[(int64_t{tile.block} * s.entries + index) * 8 + j];
    const FoundEntry entry = found_entry<kSigns>(t, b, index);
    float out = 0;
    if constexpr (kDescend)
      out = descend(p, e, mine, want, from, entry.value, entry.code);
    else
      out = feed_back(p, e, mine, want, entry.value, entry.code);
    room.wanted[threadIdx.x] = out;  // the search's input has been read
    if (mine) p.change[e.row * kVectorBlock + v * 8 + j] = out;
  }
  __syncthreads();
}

// Subtracts from the block's later columns what vector v has left in `wanted`, times its rows of U or H.
__device__ __forceinline__ void take_out(const Walk& p, const SearchRoom& room, float* rows, int v) {
  const int column = static_cast<int>(threadIdx.x) % kVectorBlock;
  const int first = static_cast<int>(threadIdx.x) / kVectorBlock * kUpdateRows;
  if (column >= (v + 1) * 8 && column < p.width * 8) {
    const float* from = p.square + (int64_t{p.begin} + v) * 8 * p.s.padded + int64_t{p.begin} * 8 + column;
    float u[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) u[i] = from[i * p.s.padded];
#pragma unroll
    for (int r = 0; r < kUpdateRows; ++r) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(room.wanted[(first + r) * 8 + i], u[i], sum);
      rows[(first + r) * kVectorBlock + column] -= sum;
    }
  }
  __syncthreads();
}

template <int kSigns, bool kDescend>
__global__ void __launch_bounds__(kSearchThreads, 1) walk(const __grid_constant__ Walk p) {
  extern __shared__ float4 shared[];
  const SearchRoom room(shared, p.s.entries);
  float* rows = room.behind();  // (kVectorTile, kVectorBlock)
  const VectorTile tile = p.s.tiles[blockIdx.x];
  load_book<kSigns>(room, p.s.book + int64_t{tile.block} * p.s.entries * 8, p.s.entries);
  for (int i = threadIdx.x; i < kVectorTile * kVectorBlock; i += kSearchThreads) {
    const int r = i / kVectorBlock, c = i % kVectorBlock;
    const bool there = r < tile.count && c < p.width * 8;
    const int64_t row = tile.first + r;
    rows[i] = there ? p.from[row * p.s.padded + int64_t{p.begin} * 8 + c] : 0.0f;
    if (r < tile.count && c >= p.width * 8) p.change[row * kVectorBlock + c] = 0;
  }
  __syncthreads();
  for (int v = 0; v < p.width; ++v) {
    walk_vector<kSigns, kDescend>(p, tile, room, rows, v);
    take_out(p, room, rows, v);
  }
}

template <typename Kernel, typename Argument>
void launch_search(const char* doing, Stream stream, Kernel kernel, int64_t blocks, size_t bytes, const Argument& p) {
  if (blocks == 0) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), doing);
  kernel<<<static_cast<unsigned>(blocks), kSearchThreads, bytes, stream>>>(p);
  cuda_check(cudaGetLastError(), doing);
}

template <bool kDescend>
void launch_walk(const char* doing, Stream stream, const Walk& p) {
  const size_t bytes = walk_bytes(p.s.entries);
  const auto kernel = p.s.signs == 8 ? walk<8, kDescend> : p.s.signs == 4 ? walk<4, kDescend> : walk<1, kDescend>;
  launch_search(doing, stream, kernel, p.s.tile_count, bytes, p);
}

Walk walk_of(const VectorState& s, int64_t begin, const float* square, const double* inverse, const float* from,
             float* change) {
  return {s,
          static_cast<int>(begin),
          static_cast<int>(std::min<int64_t>(kVectorsBetween, s.vectors - begin)),
          square,
          inverse,
          from,
          change};
}

}  // namespace

bool vector_search_fits(int entries) {
  int device = 0, most = 0;
  cuda_check(cudaGetDevice(&device), "asking for the device");
  cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "asking for its memory");
  return walk_bytes(entries) <= static_cast<size_t>(most);
}

void assign_samples(Stream stream, const VectorSampleSet& s) {
  const auto kernel = s.signs == 8 ? assign<8> : s.signs == 4 ? assign<4> : assign<1>;
  launch_search("looking for centroids", stream, kernel, (s.tile_count + kTilesEach - 1) / kTilesEach,
                SearchRoom::bytes(s.entries), s);
}

void feed_back_vectors(Stream stream, const VectorState& s, int64_t begin, const float* upper, const float* target,
                       float* error) {
  launch_walk<false>("feeding errors of vectors back", stream, walk_of(s, begin, upper, nullptr, target, error));
}

void descend_vectors(Stream stream, const VectorState& s, int64_t begin, const float* h, const double* inverse,
                     const float* gradient, float* change) {
  launch_walk<true>("descending over vectors", stream, walk_of(s, begin, h, inverse, gradient, change));
}

}  // namespace fidelio::cuda
