// What a warp of attention.cu does with its spans where the cache is FP16: both products on the tensor cores, with the
// up to eight query heads of a kv head as rows of A, so that scores leave the first product as the second takes them:
//
//      S (16 x 16 positions) = Q (16 x e) K^T       rows 0 .. 7 of Q: the heads' FP16 values; 8 .. 15: 2^11 times what
//      O (16 x e) += P (16 x 16 positions) V        rounding them left over; P the same. S and O are row h + 2^-11 row
//      h
//                                                   + 8, as exact as FP32 queries and weights to 2^-22 or so.
//
// Lane 4 g + t has head g and, of S, positions 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of the span. It reads 16 bytes at a time:
// of keys g and g + 8 columns 8 t .. 8 t + 7 of every 32, of values 2 t, 2 t + 1, 2 t + 8, 2 t + 9 columns 8 g .. 8 g +
// 7 of every 64. (Which of the columns a product's k means is all the same as long as both sides agree; n = g of
// product j of O is column 8 g + j.)
#pragma once
#include "kernels/cuda/attention_spans.cuh"
#include "kernels/cuda/ptx.cuh"

namespace fidelio::cuda {

// Shared memory: queries [16][e + 32] FP16.
template <class Spans, int kWidest>  // e at most
struct HalvesWalk : Spans {
  using Spans::a, Spans::part, Spans::begin, Spans::next, Spans::is_there;
  static constexpr KvKind kind = KvKind::f16;
  static constexpr int kHeads = 8, kResident = kWidest <= 128 ? 2 : 1;
  static constexpr int kStride = kWidest + 32;  // halves, so that neighbouring rows begin 16 banks apart
  static constexpr int query_floats(int) { return kHeads * kStride; }
  static constexpr int kWarpFloats = 0;
  static constexpr int kKeyParts = kWidest / 32, kValueParts = kWidest / 64;
  static constexpr float kRest = 2048;  // 2^11
  int readable;                         // the last position that is in the cache
  bool summed = false;                  // spans of this share are
  float peak = -INFINITY, weight = 0;   // of the share so far
  uint4 keys[kKeyParts][2], values[kValueParts][4];

  __device__ HalvesWalk(const AttentionArguments& arguments, const Part& of, bool fresh)
      : Spans(arguments, of), readable(fresh ? of.last - 1 : of.last) {}
  __device__ static int g() { return threadIdx.x % 32 / 4; }
  __device__ static int t() { return threadIdx.x % 4; }
  __device__ static int key_column(int i) { return 32 * i + 8 * t(); }
  __device__ static int value_column(int i) { return 64 * i + 8 * g(); }
  // The lane's positions of S, and the rows of values it reads.
  __device__ static int position(int i) { return 2 * t() + i % 2 + i / 2 * 8; }

  __device__ bool there(int position) const { return position <= readable && position >= part.first; }
  __device__ static uint4 loaded(bool there, const uint16_t* from) {
    return there ? __ldcg(reinterpret_cast<const uint4*>(from)) : uint4{0, 0, 0, 0};
  }
  __device__ void load_keys(int from, int slot) {
#pragma unroll
    for (int up = 0; up < 2; ++up) {
      const int row = g() + 8 * up;
      const uint16_t* at = static_cast<const uint16_t*>(a.keys) + int64_t{slot + row} * a.e + 8 * t();
      const bool known = there(from + row);
#pragma unroll
      for (int i = 0; i < kKeyParts; ++i) keys[i][up] = loaded(known && key_column(i) < a.e, at + 32 * i);
    }
  }
  __device__ void load_values(int from, int slot) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint16_t* at = static_cast<const uint16_t*>(a.values) + int64_t{slot + position(j)} * a.e + 8 * g();
      const bool known = there(from + position(j));
#pragma unroll
      for (int i = 0; i < kValueParts; ++i) values[i][j] = loaded(known && value_column(i) < a.e, at + 64 * i);
    }
  }
  __device__ void load() {
    load_keys(begin, this->slot());
    load_values(begin, this->slot());
  }

  // Of a head of this part, a pair of columns; what is past the heads and columns there are stays zero.
  __device__ static void put_query(float* queries, int, int head, int column, float2 pair) {
    __half2* to = reinterpret_cast<__half2*>(reinterpret_cast<__half*>(queries) + head * kStride + column);
    const __half2 high = __floats2half2_rn(pair.x, pair.y);
    const float2 held = __half22float2(high);
    to[0] = high;
    to[8 * kStride / 2] = __floats2half2_rn((pair.x - held.x) * kRest, (pair.y - held.y) * kRest);
  }

  // The row's own key and value (FP32, in shared memory) into the cache and, as they are there, among the span's.
  __device__ void append(float* key) {
    const int column = threadIdx.x % 32 * 8;
    float eight[8];
    Stored8<KvKind::f16> stored[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      eight_of(key + i * a.e, column, a.e, eight);
      stored[i].template take<32>(eight, column < a.e);
    }
    __syncwarp();
    auto* halves = reinterpret_cast<uint16_t*>(key);
    if (column < a.e) {
      const int slot = this->slot() + part.last - begin;
      stored[0].save(a.keys, nullptr, slot, a.e, column);
      stored[1].save(a.values, nullptr, slot, a.e, column);
      *reinterpret_cast<uint4*>(halves + column) = stored[0].raw;
      *reinterpret_cast<uint4*>(halves + a.e + column) = stored[1].raw;
    }
    __syncwarp();
    const int here = part.last - begin;
#pragma unroll
    for (int i = 0; i < kKeyParts; ++i)
#pragma unroll
      for (int up = 0; up < 2; ++up)
        if (g() + 8 * up == here && key_column(i) < a.e)
          keys[i][up] = *reinterpret_cast<const uint4*>(halves + key_column(i));
#pragma unroll
    for (int i = 0; i < kValueParts; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (position(j) == here && value_column(i) < a.e)
          values[i][j] = *reinterpret_cast<const uint4*>(halves + a.e + value_column(i));
  }

  // The lane's scores of its head.
  __device__ void scores_of(const float* queries, float (&scores)[4]) const {
    const __half* row = reinterpret_cast<const __half*>(queries) + g() * kStride + 8 * t();
    float sums[2][2][4] = {};  // of keys g and g + 8, of halves of the parts
#pragma unroll
    for (int i = 0; i < kKeyParts; ++i) {
      const uint4 high = *reinterpret_cast<const uint4*>(row + 32 * i),
                  rest = *reinterpret_cast<const uint4*>(row + 8 * kStride + 32 * i);
      const uint32_t first[4] = {high.x, rest.x, high.y, rest.y}, second[4] = {high.z, rest.z, high.w, rest.w};
#pragma unroll
      for (int up = 0; up < 2; ++up) {
        ptx::mma(sums[up][0], first, keys[i][up].x, keys[i][up].y);
        ptx::mma(sums[up][1], second, keys[i][up].z, keys[i][up].w);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& [one, two] = sums[i / 2];
      scores[i] = fmaf(one[2 + i % 2] + two[2 + i % 2], 1 / kRest, one[i % 2] + two[i % 2]);
    }
  }
  // sums [head][e] = sums * factor + P V; nothing is there before the first.
  __device__ void add_values(const float (&shares)[4], float factor, bool first, float* sums) const {
    uint32_t p[4];  // positions 2 t, 2 t + 1 and those eight later
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __half2 high = __floats2half2_rn(shares[2 * i], shares[2 * i + 1]);
      const float2 held = __half22float2(high);
      const __half2 rest = __floats2half2_rn((shares[2 * i] - held.x) * kRest, (shares[2 * i + 1] - held.y) * kRest);
      p[2 * i] = *reinterpret_cast<const uint32_t*>(&high);
      p[2 * i + 1] = *reinterpret_cast<const uint32_t*>(&rest);
    }
#pragma unroll
    for (int i = 0; i < kValueParts; ++i) {
      float out[2][8];  // columns 8 (2 t + n) + j
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const auto pair = [&](int of) {  // column 8 g + j of two neighbouring positions
          const uint4 &one = values[i][of], &two = values[i][of + 1];
          const uint32_t from[2][4] = {{one.x, one.y, one.z, one.w}, {two.x, two.y, two.z, two.w}};
          return __byte_perm(from[0][j / 2], from[1][j / 2], j % 2 ? 0x7632 : 0x5410);
        };
        float sum[4] = {};
        ptx::mma(sum, p, pair(0), pair(2));
#pragma unroll
        for (int n = 0; n < 2; ++n) out[n][j] = fmaf(sum[2 + n], 1 / kRest, sum[n]);
      }
      if (g() >= part.heads) continue;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int column = 64 * i + 8 * (2 * t() + n);
        if (column >= a.e) continue;
        float* to = sums + g() * a.e + column;
        float before[8] = {};
        if (!first) eight_of(to, 0, 8, before);
#pragma unroll
        for (int j = 0; j < 8; ++j) before[j] = fmaf(before[j], factor, out[n][j]);
        reinterpret_cast<float4*>(to)[0] = {before[0], before[1], before[2], before[3]};
        reinterpret_cast<float4*>(to)[1] = {before[4], before[5], before[6], before[7]};
      }
    }
  }

  // The span whose keys and values have been asked for; those of the next one are then.
  __device__ void step(bool fresh, const float* queries, float* key, float*, float* sums) {
    this->look_ahead();
    if (fresh && part.last < begin + kSpan) append(key);
    float scores[4], largest = peak, sum = 0;
    scores_of(queries, scores);
    if (is_there(next)) load_keys(next, this->next_slot());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = begin + position(i);
      if (at > part.last || at < part.first) scores[i] = -INFINITY;
      largest = fmaxf(largest, scores[i]);
    }
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += scores[i] = exp2f(scores[i] - largest);
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const float factor = exp2f(peak - largest);
    peak = largest;
    weight = fmaf(weight, factor, sum);
    add_values(scores, factor, !summed, sums);
    summed = true;
    if (is_there(next)) load_values(next, this->next_slot());
    this->go_on();
  }
  // The share's (m, l).
  __device__ void leave(float* peaks) {
    if (g() < part.heads && t() == 0) reinterpret_cast<float2*>(peaks)[g()] = {peak, weight};
    peak = -INFINITY, weight = 0;
    summed = false;
  }
};

}  // namespace fidelio::cuda
