// These kernels run k-means under sign symmetry: seeds, sums of distances and centroids
// (quant/vectors/vector_book.cc). Sums are in double and in a fixed order, so that a codebook is the same in every
// run.
#include <cuda_runtime.h>

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device/cuda_error.cuh"
#include "quant/cuda/vector_search.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kThreads = 256, kEach = kSeedChunk / kThreads;
constexpr unsigned kAll = 0xffffffffu;

int blocks_for(int64_t n) { return static_cast<int>((n + kThreads - 1) / kThreads); }

__global__ void gather(VectorState s, const float* book_scale, const __grid_constant__ VectorSampleSet to) {
  const int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 8;
  const int j = static_cast<int>(threadIdx.x) % 8;
  if (i >= to.n) return;
  const int32_t id = to.id[i];
  const int64_t row = id < 0 ? 0 : id / s.vectors, place = id < 0 ? 0 : id % s.vectors;
  const float scale = s.row[row] * (book_scale ? book_scale[s.block[row]] : 1.0f);
  const float value = s.w[row * s.padded + place * 8 + j];
  const bool zero = id < 0 || !(scale > 0);
  to.x[i * 8 + j] = zero ? 0.0f : __fdiv_rn(value, __fmul_rn(scale, s.column[place * 8 + j]));
  if (j != 0) return;
  to.weight[i] = id < 0 ? 1.0f : scale * scale;
  to.place[i] = static_cast<int32_t>(place);
}

// Sums over a thread block in a fixed order; every thread gets the sum. `shared` has room for kThreads / 32 doubles.
__device__ double block_sum(double value, double* shared) {
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(kAll, value, by);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) sum += shared[i];
  return sum;
}

template <int kSigns>
__device__ double distance_to(const VectorSampleSet& s, int64_t i, const float (&centroid)[8]) {
  const float* metric = s.metrics + int64_t{s.place[i]} * 8;
  const auto* two = reinterpret_cast<const float4*>(s.x + i * 8);
  const float4 low = two[0], high = two[1];
  const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  constexpr int kSpan = 8 / kSigns;
  double sum = 0;
#pragma unroll
  for (int g = 0; g < 8; g += kSpan) {
    double plus = 0, minus = 0;
#pragma unroll
    for (int j = g; j < g + kSpan; ++j) {
      const double m = metric[j], less = double{x[j]} - double{centroid[j]}, more = double{x[j]} + double{centroid[j]};
      plus += m * less * less;
      minus += m * more * more;
    }
    sum += fmin(plus, minus);
  }
  return sum * s.weight[i];
}

struct Prefix {
  double before, total;  // `before` is the sum over the threads before this one, `total` over all
};
// Returns the sums over earlier threads and over all. `shared` has room for kThreads / 32 doubles.
__device__ Prefix block_prefix(double own, double* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  double sum = own;
  for (int by = 1; by < 32; by *= 2) {
    const double other = __shfl_up_sync(kAll, sum, by);
    if (lane >= by) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  Prefix prefix{0, 0};
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) prefix.before += shared[i];
    prefix.total += shared[i];
  }
  prefix.before += sum - own;
  return prefix;
}

struct Found {
  int index;
  double before;  // the sum of all values before it
};
// Finds the first of `count` values at which the running sum, including the value, reaches a mark. The mark may
// depend on the sum of all values. If no value reaches it, the last one is returned. The whole thread block takes
// part, and values must not be negative.
template <typename At, typename Mark>
__device__ Found find_mark(int count, const At& at, const Mark& mark_of, double* shared, Found* found) {
  const int each = (count + kThreads - 1) / kThreads, first = static_cast<int>(threadIdx.x) * each;
  const int last = min(count, first + each);
  double own = 0;
  for (int i = first; i < last; ++i) own += at(i);
  const Prefix prefix = block_prefix(own, shared);
  const double mark = mark_of(prefix.total);
  if (threadIdx.x == 0) found->index = count - 1, found->before = 0;
  __syncthreads();
  Found mine{count, prefix.before};
  for (int i = first; i < last; ++i) {
    const double value = at(i);
    if (!(mine.before + value < mark) || i == count - 1) {
      mine.index = i;
      atomicMin(&found->index, i);
      break;
    }
    mine.before += value;
  }
  __syncthreads();
  if (mine.index == found->index) found->before = mine.before;
  __syncthreads();
  return *found;
}

// Updates a chunk's distances to the centroid chosen last. The thread block that finishes last chooses the next
// centroid of its codebook.
template <int kSigns>
__global__ void __launch_bounds__(kThreads)
    seed(const __grid_constant__ VectorSampleSet s, const __grid_constant__ VectorSeeding p, int entry) {
  __shared__ double shared[kThreads / 32];
  __shared__ Found found;
  __shared__ bool last;
  const int block = static_cast<int>(blockIdx.y), chunk = static_cast<int>(blockIdx.x);
  const int64_t begin = s.begin[block], count = s.begin[block + 1] - begin;
  const int chunks = static_cast<int>((count + kSeedChunk - 1) / kSeedChunk);
  if (chunk >= chunks) return;
  float centroid[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float x = s.x[(begin + p.chosen[block]) * 8 + j];
    centroid[j] = kSigns == 8 ? fabsf(x) : x;
  }
  if (chunk == 0 && threadIdx.x < 8) {
    const float x = s.x[(begin + p.chosen[block]) * 8 + threadIdx.x];
    s.book[(int64_t{block} * s.entries + entry) * 8 + threadIdx.x] = kSigns == 8 ? fabsf(x) : x;
  }
  double sum = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = int64_t{chunk} * kSeedChunk + k * kThreads + threadIdx.x;
    if (i >= count) continue;
    double distance = distance_to<kSigns>(s, begin + i, centroid);
    if (entry > 0) distance = fmin(distance, s.distance[begin + i]);
    s.distance[begin + i] = distance;
    sum += distance;
  }
  double* partial = p.partial + int64_t{block} * p.chunks;
  sum = block_sum(sum, shared);
  __threadfence();
  __syncthreads();  // every distance of the chunk must be visible before the chunk counts as arrived
  if (threadIdx.x == 0) {
    partial[chunk] = sum;
    __threadfence();
    last = atomicAdd(&p.arrived[block], 1) + 1 == static_cast<uint32_t>(chunks);
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  double mark = 0;
  const Found part = find_mark(
      chunks, [&](int c) { return __ldcg(partial + c); }, [&](double total) { return mark = p.uniform[entry] * total; },
      shared, &found);
  const int64_t from = begin + int64_t{part.index} * kSeedChunk;
  const int size = static_cast<int>(min(int64_t{kSeedChunk}, count - int64_t{part.index} * kSeedChunk));
  __syncthreads();  // all threads have read the result
  const Found sample = find_mark(
      size, [&](int i) { return __ldcg(s.distance + from + i); }, [&](double) { return mark - part.before; }, shared,
      &found);
  if (threadIdx.x == 0) {
    p.chosen[block] = part.index * kSeedChunk + sample.index;
    p.arrived[block] = 0;
  }
}

__global__ void __launch_bounds__(kThreads) sum_blocks(const __grid_constant__ VectorSampleSet s, double* sum) {
  __shared__ double shared[kThreads / 32];
  const int block = static_cast<int>(blockIdx.x);
  double own = 0;
  for (int64_t i = s.begin[block] + threadIdx.x; i < s.begin[block + 1]; i += kThreads) own += s.distance[i];
  own = block_sum(own, shared);
  if (threadIdx.x == 0) sum[block] = own;
}

// Returns the index where the members with keys of at least `key` begin.
__device__ int64_t first_of(const VectorMembers& m, uint32_t key) {
  int64_t low = 0, high = m.n;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (m.key[middle] < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// A warp moves one centroid. It takes four of its samples at a time, with one lane for each entry of a sample. A
// centroid that no sample chose stays.
__global__ void __launch_bounds__(kThreads)
    move(const __grid_constant__ VectorSampleSet s, const __grid_constant__ VectorMembers members) {
  const int64_t centroid = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32;
  if (centroid >= int64_t{s.blocks} * s.entries || !s.active[centroid / s.entries]) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, j = lane % 8;
  const int64_t end = first_of(members, static_cast<uint32_t>(centroid + 1));
  double sum = 0, mass = 0;
  for (int64_t m = first_of(members, static_cast<uint32_t>(centroid)) + lane / 8; m < end; m += 4) {
    const int64_t i = members.member[m];
    const double weight = double{s.metrics[int64_t{s.place[i]} * 8 + j]} * s.weight[i], x = s.x[i * 8 + j];
    sum += weight * (is_negative(s.signs, s.code[i], j) ? -x : x);
    mass += weight;
  }
  for (int by = 8; by < 32; by *= 2) {
    sum += __shfl_xor_sync(kAll, sum, by);
    mass += __shfl_xor_sync(kAll, mass, by);
  }
  if (lane < 8 && mass > 0) s.book[centroid * 8 + j] = static_cast<float>(sum / mass);
}

// Rounds a codebook to whole numbers, of which the largest is 127.
__global__ void __launch_bounds__(kThreads) round_block(const __grid_constant__ VectorSampleSet s, float* scale) {
  __shared__ uint32_t largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  float* book = s.book + int64_t{blockIdx.x} * s.entries * 8;
  for (int i = threadIdx.x; i < s.entries * 8; i += kThreads) atomicMax(&largest, __float_as_uint(fabsf(book[i])));
  __syncthreads();
  const float most = __uint_as_float(largest), by = most > 0 ? __fdiv_rn(most, 127.0f) : 1.0f;
  for (int i = threadIdx.x; i < s.entries * 8; i += kThreads) book[i] = rintf(__fdiv_rn(book[i], by));
  if (threadIdx.x == 0) scale[blockIdx.x] = by;
}

__global__ void scatter(const __grid_constant__ VectorSampleSet s, float* cost) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < s.n && s.id[i] >= 0) cost[s.id[i]] = static_cast<float>(s.distance[i]);
}

__global__ void keys_of_codes(const __grid_constant__ VectorState s, uint32_t* key) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= s.out * s.vectors) return;
  key[i] = static_cast<uint32_t>(s.block[i / s.vectors]) * static_cast<uint32_t>(s.entries) + (s.code[i] & 0xffff);
}

__global__ void count(int64_t n, int32_t* member) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < n) member[i] = static_cast<int32_t>(i);
}

}  // namespace

void gather_samples(Stream stream, const VectorState& s, const float* book_scale, const VectorSampleSet& samples) {
  gather<<<blocks_for(samples.n * 8), kThreads, 0, stream>>>(s, book_scale, samples);
  cuda_check(cudaGetLastError(), "gathering vectors");
}

void seed_centroid(Stream stream, const VectorSampleSet& s, const VectorSeeding& p, int entry) {
  const auto kernel = s.signs == 8 ? seed<8> : s.signs == 4 ? seed<4> : seed<1>;
  kernel<<<dim3(static_cast<unsigned>(p.chunks), static_cast<unsigned>(s.blocks)), kThreads, 0, stream>>>(s, p, entry);
  cuda_check(cudaGetLastError(), "seeding centroids");
}

void sum_distances(Stream stream, const VectorSampleSet& s, double* sum) {
  sum_blocks<<<static_cast<unsigned>(s.blocks), kThreads, 0, stream>>>(s, sum);
  cuda_check(cudaGetLastError(), "summing distances");
}

void move_centroids(Stream stream, const VectorSampleSet& s, const VectorMembers& members) {
  move<<<blocks_for(int64_t{s.blocks} * s.entries * 32), kThreads, 0, stream>>>(s, members);
  cuda_check(cudaGetLastError(), "moving centroids");
}

void round_books(Stream stream, const VectorSampleSet& s, float* scale) {
  round_block<<<static_cast<unsigned>(s.blocks), kThreads, 0, stream>>>(s, scale);
  cuda_check(cudaGetLastError(), "rounding codebooks");
}

void scatter_costs(Stream stream, const VectorSampleSet& s, float* cost) {
  scatter<<<blocks_for(s.n), kThreads, 0, stream>>>(s, cost);
  cuda_check(cudaGetLastError(), "putting costs in place");
}

void code_keys(Stream stream, const VectorState& s, uint32_t* key) {
  keys_of_codes<<<blocks_for(s.out * s.vectors), kThreads, 0, stream>>>(s, key);
  cuda_check(cudaGetLastError(), "reading codes");
}

void count_up(Stream stream, int64_t n, int32_t* member) {
  count<<<blocks_for(n), kThreads, 0, stream>>>(n, member);
  cuda_check(cudaGetLastError(), "counting up");
}

void sort_members(Stream stream, int64_t n, uint32_t bound, const uint32_t* key, const int32_t* member,
                  uint32_t* sorted_key, int32_t* sorted_member, void* room, size_t& room_bytes) {
  int bits = 1;
  while (bits < 32 && bound > (1u << bits)) ++bits;
  cuda_check(
      cub::DeviceRadixSort::SortPairs(room, room_bytes, key, sorted_key, member, sorted_member, n, 0, bits, stream),
      "sorting vectors by their centroids");
}

}  // namespace fidelio::cuda
