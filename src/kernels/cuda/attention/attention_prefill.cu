// This file computes attention for many rows of a sequence (prefill) with the matrix units, over an FP16 cache.
//
//      thread block      64 rows of the batch, one query head; four warps of 16 rows
//      step              64 positions: keys and values to shared memory, two steps ahead of each other (cp.async)
//        s = q k         mma, q rounded to FP16 once with 1 / sqrt(e) and log2(e) in it
//        p = 2^(s - m)   running maximum m and sum of a row in registers, p rounded to FP16
//        o = o + p v     mma, FP32
//
// Steps begin at multiples of 64 positions, and a step of which a row sees nothing changes no bit of it. So a row's
// result depends on its position and window alone, and not on its place in the batch. If a tile has rows of several
// sequences, the sequences are handled one after the other.
#include <cuda_fp16.h>

#include "kernels/cuda/attention/kv_cache.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kTileRows = 64, kStep = 64, kThreads = 128;

__device__ __forceinline__ uint32_t packed(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}

// A Tile is a step's keys or values in shared memory: rows of e halves, whose 16-byte pieces are permuted so that the
// pieces of eight rows lie in different banks.
template <int e>
struct Tile {
  static constexpr int kPieces = e / 8, kBytes = kStep * e * 2;
  static __device__ __forceinline__ uint32_t at(uint32_t base, int row, int piece) {
    return base + (row * kPieces + (piece ^ (row & 7))) * 16;
  }
  // Asks for positions from `begin` on of a sequence. Both pages exist, though the second may lie past the end.
  static __device__ __forceinline__ void ask(const AttentionArguments& a, const void* from, int sequence, int begin,
                                             int kv_head, uint8_t* to) {
    static_assert(kStep == 2 * kPage);
    const int64_t slot0 = slot_of(a, sequence, begin, kv_head), slot1 = slot_of(a, sequence, begin + kPage, kv_head);
#pragma unroll
    for (int i = 0; i < kStep * kPieces / kThreads; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x), row = at / kPieces, piece = at % kPieces;
      ptx::copy_async(ptx::shared_address(to + (row * kPieces + (piece ^ (row & 7))) * 16),
                      static_cast<const __half*>(from) + ((row < kPage ? slot0 : slot1) + row % kPage) * e + piece * 8);
    }
  }
};

// Rows holds those rows of a warp that belong to one sequence. A lane has two, g and g + 8.
template <int e>
struct Rows {
  static constexpr int kChunks = e / 16;
  uint32_t q[kChunks][4];
  float o[e / 8][4] = {}, peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  int first[2], last[2];  // the positions seen; `last` is -1 for a row that is not of this sequence

  __device__ __forceinline__ void step(uint32_t keys, uint32_t values, int begin) {
    const int lane = threadIdx.x % 32;
    float s[kStep / 8][4] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int n = 0; n < kStep / 16; ++n) {
        uint32_t b[4];
        ptx::load_matrices(b, Tile<e>::at(keys, n * 16 + lane / 16 * 8 + lane % 8, c * 2 + lane / 8 % 2));
        ptx::mma(s[2 * n], q[c], b[0], b[1]);
        ptx::mma(s[2 * n + 1], q[c], b[2], b[3]);
      }
    if (begin + kStep - 1 > min(last[0], last[1]) || begin < max(first[0], first[1])) {
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int position = begin + n * 8 + lane % 4 * 2 + (i & 1);
          if (position > last[i / 2] || position < first[i / 2]) s[n][i] = -INFINITY;
        }
    }
    float correction[2], base[2];
#pragma unroll
    for (int up = 0; up < 2; ++up) {
      float largest = peak[up];
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) largest = fmaxf(largest, fmaxf(s[n][2 * up], s[n][2 * up + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      base[up] = largest == -INFINITY ? 0 : largest;  // nothing has been seen yet
      correction[up] = exp2f(peak[up] - base[up]);
      peak[up] = largest;
      sum[up] *= correction[up];
    }
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = exp2f(s[n][i] - base[i / 2]);
        sum[i / 2] += s[n][i];
      }
#pragma unroll
    for (int n = 0; n < e / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] *= correction[i / 2];
#pragma unroll
    for (int c = 0; c < kStep / 16; ++c) {
      const uint32_t p[4] = {packed(s[2 * c][0], s[2 * c][1]), packed(s[2 * c][2], s[2 * c][3]),
                             packed(s[2 * c + 1][0], s[2 * c + 1][1]), packed(s[2 * c + 1][2], s[2 * c + 1][3])};
#pragma unroll
      for (int n = 0; n < e / 16; ++n) {
        uint32_t b[4];
        ptx::load_transposed(b, Tile<e>::at(values, c * 16 + lane % 16, n * 2 + lane / 16));
        ptx::mma(o[2 * n], p, b[0], b[1]);
        ptx::mma(o[2 * n + 1], p, b[2], b[3]);
      }
    }
  }
};

template <int e>
__global__ void __launch_bounds__(kThreads, 2) attend_rows(AttentionArguments a, const float* q, float* out) {
  extern __shared__ __align__(128) uint8_t shared[];
  begin_kernel();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x, kv_head = head / (a.h / a.hk),
            row0 = (gridDim.y - 1 - blockIdx.y) * kTileRows,  // the longest contexts come first
      end = min(row0 + kTileRows, a.n);
  const uint32_t keys = ptx::shared_address(shared), values = keys + 2 * Tile<e>::kBytes;
  const float scale = rsqrtf(static_cast<float>(e)) * 1.44269504089f;
  for (int row = row0; row < end;) {
    const int sequence = a.sequence[row];
    int next = row + 1;
    while (next < end && a.sequence[next] == sequence) ++next;
    const int last = a.positions[next - 1],
              begin = a.window > 0 ? max(0, a.positions[row] - a.window + 1) / kStep * kStep : 0;
    Rows<e> mine;
#pragma unroll
    for (int up = 0; up < 2; ++up) {
      const int m = row0 + warp * 16 + up * 8 + lane / 4;
      const bool there = m >= row && m < next;
      mine.last[up] = there ? a.positions[m] : -1;
      mine.first[up] = there && a.window > 0 ? max(0, mine.last[up] - a.window + 1) : 0;
      const float* from = q + (int64_t{there ? m : row} * a.h + head) * e + lane % 4 * 2;
#pragma unroll
      for (int c = 0; c < Rows<e>::kChunks; ++c) {
        const float2 low = *reinterpret_cast<const float2*>(from + c * 16),
                     high = *reinterpret_cast<const float2*>(from + c * 16 + 8);
        mine.q[c][up] = packed(low.x * scale, low.y * scale);
        mine.q[c][2 + up] = packed(high.x * scale, high.y * scale);
      }
    }
    const auto ask = [&](int at, int stage) {
      Tile<e>::ask(a, a.keys, sequence, at, kv_head, shared + stage * Tile<e>::kBytes);
      Tile<e>::ask(a, a.values, sequence, at, kv_head, shared + (2 + stage) * Tile<e>::kBytes);
    };
    ask(begin, 0);
    ptx::commit_copies();
    int stage = 0;
    for (int at = begin; at <= last; at += kStep, stage ^= 1) {
      if (at + kStep <= last) ask(at + kStep, stage ^ 1);
      ptx::commit_copies();
      ptx::wait_for_copies<1>();
      __syncthreads();
      mine.step(keys + stage * Tile<e>::kBytes, values + stage * Tile<e>::kBytes, at);
      __syncthreads();
    }
#pragma unroll
    for (int up = 0; up < 2; ++up) {
      float sum = mine.sum[up];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      float factor = 1;
      if (a.sinks) {  // a sink has no value, so it adds a term to the sum alone
        const float sink = a.sinks[head] * 1.44269504089f, largest = fmaxf(mine.peak[up], sink);
        factor = exp2f(mine.peak[up] - largest);
        sum = fmaf(sum, factor, exp2f(sink - largest));
      }
      const float inverse = factor / sum;
      const int m = row0 + warp * 16 + up * 8 + lane / 4;
      if (m < row || m >= next) continue;
      float* to = out + (int64_t{m} * a.h + head) * e + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < e / 8; ++n)
        *reinterpret_cast<float2*>(to + n * 8) = {mine.o[n][2 * up] * inverse, mine.o[n][2 * up + 1] * inverse};
    }
    row = next;
  }
}

template <int e>
void launch_rows(Stream stream, const AttentionArguments& a, const float* q, float* out) {
  constexpr int kShared = 4 * Tile<e>::kBytes;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(attend_rows<e>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  cuda_check(allowed, "allowing attention its shared memory");
  launch("attention of many rows", stream, dim3(a.h, (a.n + kTileRows - 1) / kTileRows), kThreads, kShared,
         attend_rows<e>, a, q, out);
}

}  // namespace

bool attends_rows(const AttentionArguments& a) { return a.kind == KvKind::f16 && (a.e == 64 || a.e == 128); }

void attend_rows(Stream stream, const AttentionArguments& a, const float* q, float* out) {
  if (a.e == 64) return launch_rows<64>(stream, a, q, out);
  launch_rows<128>(stream, a, q, out);
}

}  // namespace fidelio::cuda
