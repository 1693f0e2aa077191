// This file has the delta rule for rows of prompts: it takes states through whole chunks (delta_chunks.cuh), and
// through the other rows as delta_rows.cuh does.
#include "kernels/cuda/delta/delta_chunks.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace fidelio::cuda {
namespace {

template <int kKeys>
struct WalkScratch {
  alignas(16) float state[kKeys * kDeltaWarps * kAcross];  // S, with a slice of 32 columns
  float fresh[kDeltaChunk * kAcross];                      // N
  float factors[2 * kDeltaChunk + 1];                      // kRead, kWrite and kTotal of the chunk
  float part[kDeltaChunk];                                 // the factors of k in a state inside of the chunk
  union {
    alignas(16) float tile[2][kDeltaChunk * kAcross];
    RowScratch<kKeys> rows;
  };
};

// A Walk takes a slice of a head's state through the chunks of a segment.
//
// Each chunk has `stages` stages, each of which reads two tiles of 64 rows by 32 columns: W and Q for each 32 key
// columns, the two halves of P, and K for each 64 key columns. A stage's tiles are fetched while the one before is
// computed.
template <int kKeys>
struct Walk {
  const DeltaRows& rows;
  const DeltaRule& d;
  WalkScratch<kKeys>& m;
  int head, slice;
  int padded = padded_keys(d.key_dim), blocks = padded / kTileColumns, pairs = (blocks + 1) / 2;
  int warp = static_cast<int>(threadIdx.x) / 32;
  bool aligned = rows_are_aligned(d);
  TileRows ahead[2];
  float factor_ahead = 0;

  __device__ __forceinline__ const float* queries(int row) const {
    return d.x + int64_t{row} * d.channels + head / d.group * d.key_dim;
  }
  __device__ __forceinline__ const float* keys(int row) const { return queries(row) + d.heads / d.group * d.key_dim; }
  __device__ __forceinline__ const float* factors(int chunk) const {
    return d.factors + chunk_of(d, chunk, head) * kFactors;
  }

  __device__ __forceinline__ void fetch_keys(int row, int pair, TileRows (&to)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i].read(keys(row), d.channels, (2 * pair + i) * kTileColumns, d.key_dim, aligned);
  }
  __device__ __forceinline__ void fetch(int chunk, int stage) {
    const int row = rows.chunk_rows[chunk];
    const int64_t at = chunk_of(d, chunk, head) * kDeltaChunk;
    if (stage < blocks) {
      ahead[0].read(d.products + at * padded, padded, stage * kTileColumns, padded, true);
      ahead[1].read(queries(row), d.channels, stage * kTileColumns, d.key_dim, aligned);
      const int i = threadIdx.x;
      if (stage == 0 && i <= 2 * kDeltaChunk) factor_ahead = factors(chunk)[i < 2 * kDeltaChunk ? i : kTotal];
    } else if (stage == blocks) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        ahead[i].read(d.scores + at * kDeltaChunk, kDeltaChunk, i * kTileColumns, kDeltaChunk, true);
    } else {
      fetch_keys(row, stage - blocks - 1, ahead);
    }
  }
  // Puts the tiles that were fetched into shared memory, and fetches those of the next stage.
  __device__ __forceinline__ void enter(int chunk, int stage, int apart, bool is_last) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) ahead[i].store(m.tile[i], apart);
    if (stage == 0 && static_cast<int>(threadIdx.x) <= 2 * kDeltaChunk) m.factors[threadIdx.x] = factor_ahead;
    __syncthreads();
    if (stage < blocks + pairs)
      fetch(chunk, stage + 1);
    else if (!is_last)
      fetch(chunk + 1, 0);
  }

  // Adds what N writes into 64 keys of the state under the factors of its rows. A warp has 16 keys by 16 columns.
  __device__ __forceinline__ void write_keys(int pair, const float* write, float total, ProductTile (&y)[2]) const {
    const int key = warp % 4 * 16, left = warp / 4 * 16;
    const float* k = m.tile[key / kTileColumns] + key % kTileColumns;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        y[n].large[i] = __fmul_rn(
            total, m.state[(pair * 64 + key + ProductTile::row(i)) * kAcross + left + 8 * n + ProductTile::column(i)]);
#pragma unroll
    for (int step = 0; step < kDeltaChunk; step += 8) {
      const RowsFragment a([&](int r, int c) { return k[(step + c) * kAcross + r]; });
#pragma unroll
      for (int n = 0; n < 2; ++n)
        y[n].add(a, ColumnsFragment([&](int r, int c) {
                   return __fmul_rn(write[step + r], m.fresh[(step + r) * kAcross + left + 8 * n + c]);
                 }));
    }
  }

  // Writes the states after rows inside of a chunk to their slots. `row` is the chunk's first.
  __device__ void keep_inside(int chunk, int row) {
    const double* logs = reinterpret_cast<const double*>(factors(chunk) + kLogs);
    for (int r = 0; r + 1 < kDeltaChunk; ++r) {
      const int first = rows.kept[row + r], last = rows.kept[row + r + 1];
      if (first == last) continue;
      __syncthreads();
      if (const int i = threadIdx.x; i < kDeltaChunk)
        m.part[i] = i <= r ? __fmul_rn(factors(chunk)[kUnit + i], expf(static_cast<float>(logs[r] - logs[i]))) : 0;
      const float total = expf(static_cast<float>(logs[r]));
      for (int pair = 0; pair < pairs; ++pair) {
        TileRows k[2];
        fetch_keys(row, pair, k);
        __syncthreads();
        k[0].store(m.tile[0], kAcross), k[1].store(m.tile[1], kAcross);
        __syncthreads();
        ProductTile y[2];
        write_keys(pair, m.part, total, y);
        for (int kept = first; kept < last; ++kept)
          for (int i = 0; i < 8; ++i) {
            const int key = pair * 64 + warp % 4 * 16 + ProductTile::row(i % 4),
                      column = slice * kDeltaColumns + warp / 4 * 16 + i / 4 * 8 + ProductTile::column(i % 4);
            if (key < d.key_dim && column < d.value_dim)
              d.matrices.first[rows.slots[kept] * d.matrices.apart + (int64_t{head} * d.key_dim + key) * d.value_dim +
                               column] = y[i / 4].value(i % 4);
          }
      }
    }
  }

  // Computes the chunk's outputs, and its N.
  __device__ __forceinline__ void read_state(int chunk, int row, bool is_last) {
    const int top = warp % 4 * 16, left = warp / 4 * 16;
    float* const y = d.y + (int64_t{row} * d.heads + head) * d.value_dim + slice * kDeltaColumns;
    const auto place = [&](int n, int i) {
      return y + int64_t{top + ProductTile::row(i)} * d.heads * d.value_dim + left + 8 * n + ProductTile::column(i);
    };
    const auto has = [&](int n, int i) {
      return slice * kDeltaColumns + left + 8 * n + ProductTile::column(i) < d.value_dim;
    };
    float u[2][4];
    ProductTile known[2], out[2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) u[n][i] = has(n, i) ? *place(n, i) : 0;
    for (int block = 0; block < blocks; ++block) {
      enter(chunk, block, kAlong, is_last);
#pragma unroll
      for (int step = 0; step < kTileColumns; step += 8) {
        const RowsFragment w([&](int r, int c) { return m.tile[0][(top + r) * kAlong + step + c]; }),
            q([&](int r, int c) { return m.tile[1][(top + r) * kAlong + step + c]; });
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const ColumnsFragment s(
              [&](int r, int c) { return m.state[(block * kTileColumns + step + r) * kAcross + left + 8 * n + c]; });
          known[n].add(w, s), out[n].add(q, s);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = top + ProductTile::row(i);
        m.fresh[r * kAcross + left + 8 * n + ProductTile::column(i)] = __fsub_rn(u[n][i], known[n].value(i));
        out[n].large[i] = __fmul_rn(out[n].large[i], m.factors[kRead + r]);
        out[n].small[i] = __fmul_rn(out[n].small[i], m.factors[kRead + r]);
      }
    enter(chunk, blocks, kAlong, is_last);
    for (int step = 0; step < top + 16; step += 8) {
      const float* p = m.tile[step / kTileColumns] + step % kTileColumns;
      const RowsFragment a([&](int r, int c) { return p[(top + r) * kAlong + c]; });
#pragma unroll
      for (int n = 0; n < 2; ++n)
        out[n].add(a, ColumnsFragment([&](int r, int c) { return m.fresh[(step + r) * kAcross + left + 8 * n + c]; }));
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (has(n, i)) *place(n, i) = out[n].value(i);
  }

  __device__ __forceinline__ void write_state(int chunk, bool is_last) {
    for (int pair = 0; pair < pairs; ++pair) {
      enter(chunk, blocks + 1 + pair, kAcross, is_last);
      ProductTile y[2];
      write_keys(pair, m.factors + kWrite, m.factors[2 * kDeltaChunk], y);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = pair * 64 + warp % 4 * 16 + ProductTile::row(i % 4),
                  column = warp / 4 * 16 + i / 4 * 8 + ProductTile::column(i % 4);
        m.state[key * kAcross + column] = y[i / 4].value(i % 4);
      }
    }
    __syncthreads();
  }
};

template <int kKeys>
__device__ __forceinline__ float* place_of(const StateColumn<kKeys>& state, WalkScratch<kKeys>& m, int i) {
  return m.state + (state.first_key + i) * kAcross + threadIdx.x % 32;
}

// Thread block (i, j) has a head's slice of segment j.
template <int kKeys>
__global__ void __launch_bounds__(kDeltaThreads, 2)
    walk_chunks(const __grid_constant__ DeltaRows rows, const __grid_constant__ DeltaRule d, int slices) {
  extern __shared__ __align__(16) unsigned char walk_memory[];
  auto& m = *reinterpret_cast<WalkScratch<kKeys>*>(walk_memory);
  begin_kernel();
  const int head = static_cast<int>(blockIdx.x) / slices, slice = static_cast<int>(blockIdx.x) % slices;
  const DeltaSegment segment = rows.segments[blockIdx.y];
  if (segment.rows == 0) return;
  StateColumn<kKeys> state(slice);
  state.read(d, head, segment.state);
  walk_rows(rows, d, head, segment.first_row, segment.before, state, m.rows);
  int row = segment.first_row + segment.before;
  if (segment.chunks > 0) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) *place_of(state, m, i) = state.s[i];
    Walk<kKeys> walk{rows, d, m, head, slice};
    const int end = segment.first_chunk + segment.chunks;
    walk.fetch(segment.first_chunk, 0);
    for (int chunk = segment.first_chunk; chunk < end; ++chunk, row += kDeltaChunk) {
      const bool is_last = chunk + 1 == end;
      walk.read_state(chunk, row, is_last);
      if (rows.kept[row] != rows.kept[row + kDeltaChunk - 1]) walk.keep_inside(chunk, row);
      walk.write_state(chunk, is_last);
      const int first = rows.kept[row + kDeltaChunk - 1], last = rows.kept[row + kDeltaChunk];
      if (!is_last && first == last) continue;
#pragma unroll
      for (int i = 0; i < kKeys; ++i) state.s[i] = *place_of(state, m, i);
      for (int kept = first; kept < last; ++kept) state.write(d, head, rows.slots[kept]);
    }
  }
  walk_rows(rows, d, head, row, segment.first_row + segment.rows - row, state, m.rows);
}

}  // namespace

void delta_chunks(Stream stream, const DeltaRows& rows, const DeltaRule& d) {
  if (rows.chunks > 0) chunk_products(stream, rows, d);
  const int slices = (d.value_dim + kDeltaColumns - 1) / kDeltaColumns;
  const auto with = [&]<int kKeys>(std::integral_constant<int, kKeys>) {
    constexpr size_t kBytes = sizeof(WalkScratch<kKeys>);
    static const cudaError_t allowed =
        cudaFuncSetAttribute(walk_chunks<kKeys>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
    cuda_check(allowed, "allowing a delta rule its shared memory");
    launch("a delta rule of prompts", stream,
           dim3(static_cast<unsigned>(d.heads * slices), static_cast<unsigned>(rows.count)), kDeltaThreads, kBytes,
           walk_chunks<kKeys>, rows, d, slices);
  };
  if (d.key_dim <= 64) return with(std::integral_constant<int, 8>());
  if (d.key_dim <= 128) return with(std::integral_constant<int, 16>());
  with(std::integral_constant<int, 32>());
}

int64_t delta_product_floats(int64_t chunks, int heads, int key_dim) {
  return chunks * heads * kDeltaChunk * padded_keys(key_dim);
}
int64_t delta_score_floats(int64_t chunks, int heads) { return chunks * heads * kDeltaChunk * kDeltaChunk; }
int64_t delta_factor_floats(int64_t chunks, int heads) { return chunks * heads * kFactors; }

}  // namespace fidelio::cuda
