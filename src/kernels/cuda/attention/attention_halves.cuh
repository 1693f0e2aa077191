// This file has what a warp does with its spans if the cache is FP16. Both products run on the tensor cores, with
// eight queries (heads of a kv head, for one row or several) as rows of A. So scores leave the first product in the
// form in which the second one takes them:
//
//      S (16 x 16 positions) = Q (16 x e) K^T     rows 0 .. 7 of Q: the queries' FP16 values; 8 .. 15: 2^11 times what
//      O (16 x e) += P (16 x 16 positions) V      rounding them left over; P the same. S and O are row h + 2^-11 row
//                                                 h + 8, as exact as FP32 queries and weights to 2^-22 or so.
//
// That is a tile; for rows that attend together a warp has several. Lane 4 g + t has query g. Of S it has positions 2
// t, 2 t + 1, 2 t + 8 and 2 t + 9 of the span, and of O columns 8 c + 2 t and the next one. Keys and values come
// through a ring.
#pragma once
#include "kernels/cuda/attention/attention_ring.cuh"
#include "kernels/cuda/device/ptx.cuh"

namespace fidelio::cuda {

// Shared memory holds queries as [query][16 columns][t] of {columns 2 t and 2 t + 1, what rounding them left over, 2
// t + 8 and 2 t + 9, what rounding them left over}, as a product takes them. Queries begin 16 banks apart. Fresh keys
// and values are kept as halves. The template parameter kWidest is the largest e.
template <class Spans, int kWidest, int kUnits, int kTiles_ = 1, bool kTogether_ = false>
struct HalvesWalk : HalvesRing<Spans, kWidest, kUnits> {
  using Ring = HalvesRing<Spans, kWidest, kUnits>;
  using Ring::a, Ring::part, Ring::own, Ring::spare, Ring::lane, Ring::piece_at, Ring::take;
  using Ring::kPieces, Ring::kUnit;
  static constexpr KvKind kind = KvKind::f16;
  static constexpr bool kTogether = kTogether_;  // whether several rows attend together
  static constexpr int kTiles = kTiles_, kHeads = 8;
  static constexpr int kResident = kUnits <= 3 && kTiles == 1 && kWidest <= 128 ? 2 : 1;
  static constexpr bool kHeld = kTiles <= 2;    // whether queries stay in registers
  static constexpr int kStride = kWidest + 16;  // words of a query
  static constexpr int kSteps = kWidest / 16;
  static constexpr float kRest = 2048;  // 2^11
  static constexpr int query_floats(int) { return kTiles * kHeads * kStride; }
  static constexpr int fresh_floats(int rows, int e) { return rows * e; }
  static constexpr int own_floats(int, int) { return kUnits * kUnit / 4; }
  // Returns where four columns of the sums of a tile's query are, among a warp's sums.
  __device__ static int sum_at(int, int query, int column) {
    return query * kWidest + (column / 8 ^ query) * 8 + column % 8;
  }

  // A Tile is what a lane holds for its query of a tile.
  struct Tile {
    uint4 queries[kHeld ? kSteps : 1];
    float sums[kPieces][2] = {};
    float peak = -INFINITY, weight = 0;  // of the share so far
    int last;                            // the last position that its row sees
  };
  int at;                // position of the present span; past the rows' last one if there is none
  bool started = false;  // whether a unit has been used
  const uint4* rows;     // the lane's place in the queries
  Tile tiles[kTiles];

  __device__ HalvesWalk(const AttentionArguments& arguments, const Part& of, bool fresh, float* shared)
      : Ring(arguments, of, fresh ? of.first_fresh() - 1 : of.last, shared), at(this->begin) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      tiles[tile].last = kTogether ? part.last_of((tile * kHeads + g()) / part.heads) : part.last;
  }
  __device__ static int g() { return lane() / 4; }
  __device__ static int t() { return lane() % 4; }
  __device__ static int position(int i) { return 2 * t() + i % 2 + i / 2 * 8; }  // the lane's positions of S

  // Stores a pair of columns of a query. Places past the last query and column stay zero.
  __device__ static void put_query(float* to, int, int query, int column, float2 pair) {
    const __half2 high = __floats2half2_rn(pair.x, pair.y);
    const float2 held = __half22float2(high);
    __half2* words =
        reinterpret_cast<__half2*>(to) + query * kStride + column / 16 * 16 + column % 8 / 2 * 4 + column % 16 / 8 * 2;
    words[0] = high;
    words[1] = __floats2half2_rn((pair.x - held.x) * kRest, (pair.y - held.y) * kRest);
  }
  __device__ void take_queries(const float* from) {
    rows = reinterpret_cast<const uint4*>(from + g() * kStride) + t();
    if constexpr (kHeld)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < kSteps; ++i) tiles[tile].queries[i] = row_at(tile, i);
  }
  __device__ uint4 row_at(int tile, int i) const { return rows[tile * kHeads * kStride / 4 + 4 * i]; }
  __device__ uint4 query(int tile, int i) const {
    if constexpr (kHeld) return tiles[tile].queries[i];
    return row_at(tile, i);
  }

  // Returns a function that takes a fresh key or value by pairs of columns.
  __device__ static auto put_fresh(const AttentionArguments& a, const Part& part, int position, int number, bool is_own,
                                   float* fresh) {
    __half2* const here = reinterpret_cast<__half2*>(fresh) + number * a.e / 2;
    __half2* there = nullptr;
    if (is_own)
      there = reinterpret_cast<__half2*>(static_cast<__half*>(number % 2 ? a.values : a.keys) +
                                         cuda::slot_of(a, part.sequence, position, part.kv_head) * a.e);
    return [=](int column, float2 pair) {
      const __half2 halves = __floats2half2_rn(pair.x, pair.y);
      here[column / 2] = halves;
      if (there) there[column / 2] = halves;
    };
  }
  // Copies fresh keys (value = 0) or values (1) of the present span to their places in the unit.
  __device__ void append(const float* fresh, int value, uint32_t to) const {
    const int first = max(at, part.first_fresh()), end = min(at + kSpan, part.last + 1), piece = lane() % kPieces;
    const __half* from = reinterpret_cast<const __half*>(fresh) + piece * 8;
    if (piece * 8 < a.e)
      for (int p = first + lane() / kPieces; p < end; p += 32 / kPieces)
        ptx::store_shared(to + piece_at(p - at, piece),
                          *reinterpret_cast<const uint4*>(from + (2 * (p - part.first_fresh()) + value) * a.e));
    __syncwarp();
  }

  // Computes the lane's scores of its queries.
  __device__ void scores_of(uint32_t keys, float (&scores)[kTiles][4]) const {
    float products[kTiles][2][2][4] = {};  // for positions 0 .. 7 and 8 .. 15, of every second step
    const int row = lane() / 16 * 8 + lane() % 8, half = lane() / 8 % 2;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t k[4];
      ptx::load_matrices(k, keys + piece_at(row, 2 * i + half));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 four = query(tile, i);
        const uint32_t q[4] = {four.x, four.y, four.z, four.w};
        ptx::mma(products[tile][0][i % 2], q, k[0], k[1]);
        ptx::mma(products[tile][1][i % 2], q, k[2], k[3]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto& [one, two] = products[tile][i / 2];
        scores[tile][i] = fmaf(one[2 + i % 2] + two[2 + i % 2], 1 / kRest, one[i % 2] + two[i % 2]);
      }
  }
  // Gives -infinity as score to positions that a query does not see.
  __device__ void hide(const Tile& tile, float (&scores)[4]) const {
    const int first = !kTogether ? part.first : a.window > 0 ? tile.last - a.window + 1 : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (const int of = at + position(i); of > tile.last || of < first) scores[i] = -INFINITY;
  }
  // Turns scores into weights. Returns the factor by which earlier sums shrink.
  __device__ __forceinline__ static float weigh(Tile& tile, float (&scores)[4]) {
    float largest = tile.peak, sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, scores[i]);
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    const float base = kTogether && largest == -INFINITY ? 0 : largest;  // nothing has been seen yet
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += scores[i] = ptx::exp2(scores[i] - base);
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const float factor = ptx::exp2(tile.peak - base);
    tile.peak = largest;
    tile.weight = fmaf(tile.weight, factor, sum);
    return factor;
  }
  // Splits weights into halves and what rounding left over, for positions 2 t, 2 t + 1 and those eight later.
  __device__ static void split(const float (&weights)[4], uint32_t (&p)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __half2 high = __floats2half2_rn(weights[2 * i], weights[2 * i + 1]);
      const float2 held = __half22float2(high);
      const __half2 rest = __floats2half2_rn((weights[2 * i] - held.x) * kRest, (weights[2 * i + 1] - held.y) * kRest);
      p[2 * i] = *reinterpret_cast<const uint32_t*>(&high);
      p[2 * i + 1] = *reinterpret_cast<const uint32_t*>(&rest);
    }
  }
  // Computes sums = sums * factor + P V.
  __device__ void add_values(uint32_t values, const float (&weights)[kTiles][4], const float (&factors)[kTiles]) {
    uint32_t p[kTiles][4];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) split(weights[tile], p[tile]);
    const int row = lane() % 16, half = lane() / 16;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t v[4];
      ptx::load_transposed(v, values + piece_at(row, 2 * i + half));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float product[4] = {};
          auto& sums = tiles[tile].sums[2 * i + j];
          ptx::mma(product, p[tile], v[2 * j], v[2 * j + 1]);
#pragma unroll
          for (int n = 0; n < 2; ++n)
            sums[n] = fmaf(sums[n], factors[tile], fmaf(product[2 + n], 1 / kRest, product[n]));
        }
    }
  }

  __device__ bool is_of(int share) const { return this->is_in(at, share); }
  __device__ void step(bool fresh, const float* fresh_rows) {
    const bool appends = fresh && part.first_fresh() < at + kSpan;
    if (started) this->template refill<true>();
    started = true;
    const uint32_t keys = take();
    if (appends) append(fresh_rows, 0, keys);
    float scores[kTiles][4], factors[kTiles];
    scores_of(keys, scores);
    if (at + kSpan - 1 > part.last_of(0) || at < part.first + part.rows - 1)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) hide(tiles[tile], scores[tile]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) factors[tile] = weigh(tiles[tile], scores[tile]);
    this->template refill<false>();
    const uint32_t values = take();
    if (appends) append(fresh_rows, 1, values);
    add_values(values, scores, factors);
    at = this->following(at);
  }
  // Leaves the share's (m, l) of a tile. If the tile had anything for this warp, it leaves o where the last unit was,
  // and returns that place.
  __device__ __forceinline__ const float* leave(int of, int queries, float2* peaks) {
    float* const to = own + spare() * (kUnit / 4);
    Tile& tile = tiles[of];
    __syncwarp();
    if (g() < queries && t() == 0) peaks[g()] = {tile.peak, tile.weight};
    if (g() < queries && tile.peak > -INFINITY) {
#pragma unroll
      for (int c = 0; c < kPieces; ++c)
        *reinterpret_cast<float2*>(to + g() * kWidest + (c ^ g()) * 8 + 2 * t()) = {tile.sums[c][0], tile.sums[c][1]};
    }
    tile.peak = -INFINITY, tile.weight = 0;
#pragma unroll
    for (auto& two : tile.sums) two[0] = two[1] = 0;
    return to;
  }
};

}  // namespace fidelio::cuda
