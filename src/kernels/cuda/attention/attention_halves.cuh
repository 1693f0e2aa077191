// What a warp does with its spans where the cache is FP16: both products on the tensor cores, with the
// up to eight query heads of a kv head as rows of A, so that scores leave the first product as the second takes them:
//
//      S (16 x 16 positions) = Q (16 x e) K^T       rows 0 .. 7 of Q: the heads' FP16 values; 8 .. 15: 2^11 times what
//      O (16 x e) += P (16 x 16 positions) V        rounding them left over; P the same. S and O are row h + 2^-11 row
//                                                   h + 8, as exact as FP32 queries and weights to 2^-22 or so.
//
// Lane 4 g + t has head g and, of S, positions 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of the span, of O columns 8 c + 2 t and
// the next. Keys and values come through a ring in shared memory, of each warp its own: a unit is the keys or the
// values of a span, kUnits of them are under way or in use at a time. Its rows begin four banks apart, so that ldmatrix
// meets no bank twice (as it would not with the pieces of rows exchanged, but then each copy has an address of its
// own).
#pragma once
#include "kernels/cuda/attention/attention_spans.cuh"
#include "kernels/cuda/device/ptx.cuh"

namespace fidelio::cuda {

// Shared memory: queries [head][16 columns][t] of {columns 2 t and 2 t + 1, what they left over, 2 t + 8 and 2 t + 9,
// what they left over}, as a product takes them; rows of heads begin 16 banks apart.
template <class Spans, int kWidest, int kUnits>  // e at most
struct HalvesWalk : Spans {                      // where the next unit comes from
  using Spans::a, Spans::part, Spans::is_there;
  static constexpr KvKind kind = KvKind::f16;
  static constexpr int kHeads = 8, kResident = kUnits <= 3 && kWidest <= 128 ? 2 : 1;
  static constexpr int kStride = kWidest + 16;  // words of a head's queries
  static constexpr int kPieces = kWidest / 8, kRow = kWidest * 2 + 16, kUnit = kSpan * kRow;  // bytes of a row, a unit
  static constexpr int kSteps = kWidest / 16;
  static constexpr float kRest = 2048;  // 2^11
  static constexpr int query_floats(int) { return kHeads * kStride; }
  static constexpr int own_floats(int, int) { return kUnits * kUnit / 4; }
  // Where four columns of a head's sums are, among a warp's.
  __device__ static int sum_at(int, int head, int column) {
    return head * kWidest + (column / 8 ^ head) * 8 + column % 8;
  }

  int readable;                        // the last position that is in the cache
  int last_slot;                       // of the row's own position
  int at;                              // of the span at work; past the row's where there is none
  int unit = 0;                        // of the ring, to be used next
  bool started = false;                // a unit has been used
  float peak = -INFINITY, weight = 0;  // of the share so far
  float* own;                          // the warp's ring
  uint32_t ring;
  uint4 queries[kSteps];
  float sums[kPieces][2] = {};

  __device__ HalvesWalk(const AttentionArguments& arguments, const Part& of, bool fresh, float* shared)
      : Spans(arguments, of),
        readable(fresh ? of.last - 1 : of.last),
        last_slot(this->slot_of(of.last, this->page_at(of.last))),
        at(this->begin),
        own(shared),
        ring(ptx::shared_address(shared)) {}
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int g() { return lane() / 4; }
  __device__ static int t() { return lane() % 4; }
  __device__ static int position(int i) { return 2 * t() + i % 2 + i / 2 * 8; }  // the lane's of S
  __device__ static uint32_t piece_at(int row, int piece) { return row * kRow + piece * 16; }
  __device__ uint32_t unit_at(int i) const { return ring + i * kUnit; }
  __device__ int spare() const { return unit == 0 ? kUnits - 1 : unit - 1; }

  // The next unit into the one that was used last. A span of which all is read, as wide as it can be, has one address.
  template <bool of_values>
  __device__ void ask() {
    const int from = this->begin;
    if (is_there(from)) {
      constexpr int kRows = 32 / kPieces;  // at a time
      const int row = lane() / kPieces, piece = lane() % kPieces;
      const uint32_t to = unit_at(spare()) + piece_at(row, piece);
      const auto* base = static_cast<const uint16_t*>(of_values ? a.values : a.keys);
      if (from + kSpan - 1 <= readable && from >= part.first && a.e == kWidest) {
        const uint16_t* at = base + int64_t{this->slot()} * kWidest + lane() * 8;
#pragma unroll
        for (int i = 0; i < kSpan; i += kRows) ptx::copy_async(to + i * kRow, at + i * kWidest);
      } else {
#pragma unroll 1
        for (int i = row; i < kSpan; i += kRows) {
          const bool there = from + i <= readable && from + i >= part.first && piece * 8 < a.e;
          ptx::copy_async_or_zeros(to + (i - row) * kRow,
                                   there ? base + int64_t{this->slot() + i} * a.e + piece * 8 : base, there);
        }
      }
    }
    ptx::commit_copies();
    if constexpr (of_values) {
      this->look_ahead();
      this->go_on();
    }
  }
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      unit = i + 1;
      i % 2 == 0 ? ask<false>() : ask<true>();
    }
    unit = 0;
  }
  // All lanes have read the unit that was used last, keys or values: it may be asked for again.
  template <bool was_values>
  __device__ void refill() {
    __syncwarp();
    ask<kUnits % 2 == 0 ? was_values : !was_values>();
  }
  // The next unit, there.
  __device__ uint32_t take() {
    ptx::wait_for_copies<kUnits - 1>();
    __syncwarp();
    const uint32_t taken = unit_at(unit);
    unit = unit + 1 == kUnits ? 0 : unit + 1;
    return taken;
  }

  // Of a head of this part, a pair of columns; what is past the heads and columns there are stays zero.
  __device__ static void put_query(float* to, int, int head, int column, float2 pair) {
    const __half2 high = __floats2half2_rn(pair.x, pair.y);
    const float2 held = __half22float2(high);
    __half2* words =
        reinterpret_cast<__half2*>(to) + head * kStride + column / 16 * 16 + column % 8 / 2 * 4 + column % 16 / 8 * 2;
    words[0] = high;
    words[1] = __floats2half2_rn((pair.x - held.x) * kRest, (pair.y - held.y) * kRest);
  }
  __device__ void take_queries(const float* from) {
    const uint4* row = reinterpret_cast<const uint4*>(from + g() * kStride) + t();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) queries[i] = row[4 * i];
  }

  // The row's own key or value (FP32, in shared memory) into the cache and into its place in the unit.
  __device__ void append(const float* from, void* cache, uint32_t to) const {
    const int column = lane() * 8;
    if (column < a.e) {
      float eight[8];
      Stored8<KvKind::f16> stored;
      eight_of(from, column, a.e, eight);
      stored.template take<32>(eight, true);
      stored.save(cache, nullptr, last_slot, a.e, column);
      ptx::store_shared(to + piece_at(part.last - at, lane()), stored.raw);
    }
    __syncwarp();
  }

  // The lane's scores of its head.
  __device__ void scores_of(uint32_t keys, float (&scores)[4]) const {
    float products[2][2][4] = {};  // of positions 0 .. 7 and 8 .. 15, of every second step
    const int row = lane() / 16 * 8 + lane() % 8, half = lane() / 8 % 2;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint32_t q[4] = {queries[i].x, queries[i].y, queries[i].z, queries[i].w};
      uint32_t k[4];
      ptx::load_matrices(k, keys + piece_at(row, 2 * i + half));
      ptx::mma(products[0][i % 2], q, k[0], k[1]);
      ptx::mma(products[1][i % 2], q, k[2], k[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& [one, two] = products[i / 2];
      scores[i] = fmaf(one[2 + i % 2] + two[2 + i % 2], 1 / kRest, one[i % 2] + two[i % 2]);
    }
  }
  // sums = sums * factor + P V
  __device__ void add_values(uint32_t values, const float (&shares)[4], float factor) {
    uint32_t p[4];  // positions 2 t, 2 t + 1 and those eight later
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __half2 high = __floats2half2_rn(shares[2 * i], shares[2 * i + 1]);
      const float2 held = __half22float2(high);
      const __half2 rest = __floats2half2_rn((shares[2 * i] - held.x) * kRest, (shares[2 * i + 1] - held.y) * kRest);
      p[2 * i] = *reinterpret_cast<const uint32_t*>(&high);
      p[2 * i + 1] = *reinterpret_cast<const uint32_t*>(&rest);
    }
    const int row = lane() % 16, half = lane() / 16;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t v[4];
      ptx::load_transposed(v, values + piece_at(row, 2 * i + half));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float product[4] = {};
        ptx::mma(product, p, v[2 * j], v[2 * j + 1]);
#pragma unroll
        for (int n = 0; n < 2; ++n)
          sums[2 * i + j][n] = fmaf(sums[2 * i + j][n], factor, fmaf(product[2 + n], 1 / kRest, product[n]));
      }
    }
  }

  __device__ bool is_of(int share) const { return this->is_in(at, share); }
  __device__ void step(bool fresh, float* key) {
    const bool appends = fresh && part.last < at + kSpan;
    if (started) refill<true>();
    started = true;
    const uint32_t keys = take();
    if (appends) append(key, a.keys, keys);
    float scores[4], largest = peak, sum = 0;
    scores_of(keys, scores);
    if (at + kSpan - 1 > part.last || at < part.first)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (const int of = at + position(i); of > part.last || of < part.first) scores[i] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, scores[i]);
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += scores[i] = ptx::exp2(scores[i] - largest);
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const float factor = ptx::exp2(peak - largest);
    peak = largest;
    weight = fmaf(weight, factor, sum);
    refill<false>();
    const uint32_t values = take();
    if (appends) append(key + a.e, a.values, values);
    add_values(values, scores, factor);
    at = this->following(at);
  }
  // The share's (m, l) and, if it had anything for this warp, o where the last unit was; returns where that is.
  __device__ const float* leave(float* peaks) {
    float* const to = own + spare() * (kUnit / 4);
    __syncwarp();
    if (g() < part.heads && t() == 0) reinterpret_cast<float2*>(peaks)[g()] = {peak, weight};
    if (g() < part.heads && peak > -INFINITY) {
#pragma unroll
      for (int c = 0; c < kPieces; ++c)
        *reinterpret_cast<float2*>(to + g() * kWidest + (c ^ g()) * 8 + 2 * t()) = {sums[c][0], sums[c][1]};
    }
    peak = -INFINITY, weight = 0;
#pragma unroll
    for (auto& two : sums) two[0] = two[1] = 0;
    return to;
  }
};

}  // namespace fidelio::cuda
