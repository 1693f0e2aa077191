// This file has what a warp does with its spans by FP32 multiplications, for any kind of cache. attention_halves.cuh
// is the fast way for FP16.
#pragma once
#include <algorithm>

#include "kernels/cuda/attention/attention_launch.cuh"

namespace fidelio::cuda {

// Few is N neighbouring floats that are read and written together.
template <int N>
struct alignas(N * 4) Few {
  float of[N];
};

// Sums each of N values over lanes that differ in the bits from kFrom down to kTo, as a tree. Afterwards a lane holds
// the sums of some neighbouring values, at the front of `v`; the index of the first of them is returned.
template <int N, int kFrom, int kTo>
__device__ __forceinline__ int reduce_scatter(float (&v)[N]) {
  int held = N, from = 0;
#pragma unroll
  for (int d = kFrom; d >= kTo; d /= 2) {
    if (held == 1) {
      v[0] += __shfl_xor_sync(~0u, v[0], d);
      continue;
    }
    held /= 2;
    const bool upper = threadIdx.x & d;
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      if (i < held) {
        const float give = upper ? v[i] : v[i + held], keep = upper ? v[i + held] : v[i];
        v[i] = keep + __shfl_xor_sync(~0u, give, d);
      }
    if (upper) from += held;
  }
  return from;
}

// Shared memory holds queries [head][e] in FP32, and for each warp scores [position][head], factors [head] and sums
// [head][e].
template <class Spans, KvKind kind_, int kLanes>
struct MultiplyingWalk : Spans {
  using Spans::a, Spans::part, Spans::begin, Spans::next, Spans::is_there;
  static constexpr KvKind kind = kind_;
  static constexpr bool kTogether = false;
  static constexpr int kHeads = 4, kTiles = 1, kResident = 1;
  static constexpr int query_floats(int e) { return kHeads * e; }
  static constexpr int fresh_floats(int, int e) { return 2 * e; }
  static constexpr int own_floats(int heads, int e) { return (kSpan + 1) * kHeads + heads * e; }
  __device__ static int sum_at(int e, int head, int column) { return head * e + column; }
  static constexpr int kAtOnce = 32 / kLanes, kSteps = kSpan / kAtOnce;  // positions of a step
  // This is true if keys and values of the span fit into registers.
  static constexpr bool kHeld = sizeof(Stored8<kind>) * kSteps <= 128;
  static constexpr int kBatch = std::min(kSteps, kLanes >= kHeads ? kLanes / kHeads : 1);
  static constexpr int kPairs = kHeads / 2;
  int readable;         // the last position that is in the cache
  bool summed = false;  // whether spans of this share are summed
  const float* queries;
  float *scores, *factors, *sums;
  Stored8<kind> keys[kHeld ? kSteps : 1], values[kHeld ? kSteps : 1];
  float peak[kPairs], weight[kPairs];  // of the share so far, for the head of the lane's half of the warp

  __device__ MultiplyingWalk(const AttentionArguments& arguments, const Part& of, bool fresh, float* own)
      : Spans(arguments, of),
        readable(fresh ? of.last - 1 : of.last),
        scores(own),
        factors(own + kSpan * kHeads),
        sums(own + (kSpan + 1) * kHeads) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) peak[i] = -INFINITY, weight[i] = 0;
  }
  __device__ int column() const { return threadIdx.x % kLanes * 8; }
  __device__ int in_span(int step) const { return step * kAtOnce + threadIdx.x % 32 / kLanes; }
  __device__ Stored8<kind> loaded(bool key, int step, int from, int slot) const {
    Stored8<kind> s;
    s.clear();
    const int position = from + in_span(step);
    if (position <= readable && position >= part.first && column() < a.e)
      s.load(key ? a.keys : a.values, key ? a.key_scales : a.value_scales, slot + in_span(step), a.e, column());
    return s;
  }
  __device__ void load() {
    load_keys(begin, this->slot());
    load_values(begin, this->slot());
  }
  __device__ void load_keys(int from, int slot) {
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) keys[step] = loaded(true, step, from, slot);
    }
  }
  __device__ void load_values(int from, int slot) {
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) values[step] = loaded(false, step, from, slot);
    }
  }
  // Stores a pair of columns of a head. Places past the last head stay zero.
  __device__ static void put_query(float* queries, int e, int head, int column, float2 pair) {
    *reinterpret_cast<float2*>(queries + head * e + column) = pair;
  }
  __device__ void take_queries(const float* from) { queries = from; }
  // Returns a function that takes a fresh key or value by pairs of columns.
  __device__ static auto put_fresh(const AttentionArguments& a, const Part&, int, int number, bool, float* fresh) {
    return [here = fresh + number * a.e](int column, float2 pair) { *reinterpret_cast<float2*>(here + column) = pair; };
  }
  // Writes the row's own key and value (FP32, in shared memory) into the cache and, as they are stored there, into
  // the span.
  __device__ void append(const float* key) {
    float eight[8];
    Stored8<kind> stored[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      eight_of(key + i * a.e, column(), a.e, eight);
      stored[i].template take<kLanes>(eight, column() < a.e);
      if (column() >= a.e) stored[i].clear();
    }
    const int slot = this->slot() + part.last - begin;
    if (threadIdx.x % 32 < kLanes && column() < a.e) {
      stored[0].save(a.keys, a.key_scales, slot, a.e, column());
      stored[1].save(a.values, a.value_scales, slot, a.e, column());
    }
    readable = part.last;
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        if (begin + in_span(step) == part.last) keys[step] = stored[0], values[step] = stored[1];
    } else {
      __syncwarp();
    }
  }

  __device__ void scores_of() const {
    float query[kHeads][8];
#pragma unroll
    for (int head = 0; head < kHeads; ++head) eight_of(queries + head * a.e, column(), a.e, query[head]);
#pragma unroll
    for (int step0 = 0; step0 < kSteps; step0 += kBatch) {
      float dots[kBatch * kHeads] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float key[8];
        (kHeld ? keys[kHeld ? step0 + i : 0] : loaded(true, step0 + i, begin, this->slot())).values(key);
#pragma unroll
        for (int head = 0; head < kHeads; ++head)
#pragma unroll
          for (int j = 0; j < 8; ++j) dots[i * kHeads + head] = fmaf(query[head][j], key[j], dots[i * kHeads + head]);
      }
      const int from = reduce_scatter<kBatch * kHeads, kLanes / 2, 1>(dots);
      constexpr int kMine = kBatch * kHeads > kLanes ? kBatch * kHeads / kLanes : 1;
#pragma unroll
      for (int i = 0; i < kMine; ++i)
        scores[in_span(step0 + (from + i) / kHeads) * kHeads + (from + i) % kHeads] = dots[i];
    }
  }
  // Turns scores into weights. Each lane has one position, and each half of the warp every second head. Earlier sums
  // shrink by `factors`.
  __device__ void weigh() {
    const int lane = threadIdx.x % 32, position = lane % kSpan;
    const bool seen = begin + position <= part.last && begin + position >= part.first;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int head = 2 * i + lane / kSpan;
      const float score = seen ? scores[position * kHeads + head] : -INFINITY;
      float largest = fmaxf(score, peak[i]);
#pragma unroll
      for (int d = kSpan / 2; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
      const float share = exp2f(score - largest), factor = exp2f(peak[i] - largest);
      float sum = share;
#pragma unroll
      for (int d = kSpan / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      scores[position * kHeads + head] = share;
      if (position == 0) factors[head] = factor;
      peak[i] = largest;
      weight[i] = fmaf(weight[i], factor, sum);
    }
  }
  __device__ void add_values() const {
    using Four = Few<kHeads>;
    float out[kHeads * 8] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float value[8];
      (kHeld ? values[kHeld ? step : 0] : loaded(false, step, begin, this->slot())).values(value);
      const Four shares = *reinterpret_cast<const Four*>(scores + in_span(step) * kHeads);
#pragma unroll
      for (int head = 0; head < kHeads; ++head)
#pragma unroll
        for (int j = 0; j < 8; ++j) out[head * 8 + j] = fmaf(shares.of[head], value[j], out[head * 8 + j]);
    }
    const int from = reduce_scatter<kHeads * 8, 16, kLanes>(out);
    constexpr int kMine = kHeads * 8 * kLanes / 32;
    if (column() >= a.e) return;
#pragma unroll
    for (int i = 0; i < kMine; i += 4) {
      const int head = (from + i) / 8;
      if (head >= part.heads) break;
      auto* to = reinterpret_cast<Few<4>*>(sums + head * a.e + column() + (from + i) % 8);
      const float factor = factors[head];
      Few<4> sum = {};
      if (summed) sum = *to;
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.of[j] = fmaf(sum.of[j], factor, out[i + j]);
      *to = sum;
    }
  }

  __device__ bool is_of(int share) const { return this->is_in(begin, share); }
  // Handles the span whose keys and values have been asked for, and asks for those of the next one.
  __device__ void step(bool fresh, const float* key) {
    this->look_ahead();
    if (fresh && part.last < begin + kSpan) append(key);
    scores_of();
    load_keys(next, this->next_slot());
    __syncwarp();
    weigh();
    __syncwarp();
    add_values();
    summed = true;
    load_values(next, this->next_slot());
    this->go_on();
    __syncwarp();
  }
  // Leaves the share's (m, l) and returns where o is.
  __device__ const float* leave(int, int queries_here, float2* peaks) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int head = 2 * i + lane / kSpan;
      if (lane % kSpan == 0 && head < queries_here) peaks[head] = {peak[i], weight[i]};
      peak[i] = -INFINITY, weight[i] = 0;
    }
    summed = false;
    return sums;
  }
};

template <KvKind kind, int kLanes>
void attend_multiplying(const AttentionCall& call) {
  using One = MultiplyingWalk<SpansOfOne, kind, kLanes>;
  using Some = MultiplyingWalk<SpansOfSome, kind, kLanes>;
  attend_by<Walks<One, One, Some, Some>>(call);
}
template <KvKind kind>
void attend_multiplying(const AttentionCall& call) {
  if (call.a.e <= 64) return attend_multiplying<kind, 8>(call);
  if (call.a.e <= 128) return attend_multiplying<kind, 16>(call);
  attend_multiplying<kind, 32>(call);
}

}  // namespace fidelio::cuda
