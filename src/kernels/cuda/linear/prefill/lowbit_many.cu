// This file prepares activations for products of many rows, and chooses a kernel.
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"
#include "kernels/cuda/linear/prefill/lowbit_many_launch.cuh"

namespace fidelio::cuda {

namespace {

constexpr int kThreads = 512;

// Writes four columns of row m, of which a warp has 128 at a time. A lane exchanges a pair with the lane two further,
// so that both have eight bytes of a piece.
__device__ __forceinline__ void put_many(float4 v, float inverse, int m, int64_t padded, int column, uint8_t* to) {
  const __half2 low = __floats2half2_rn(v.x * inverse, v.y * inverse),
                high = __floats2half2_rn(v.z * inverse, v.w * inverse);
  const uint32_t pair[2] = {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
  const int lane = threadIdx.x % 32, t = lane % 8 / 2, h = lane % 2, odd = t % 2;
  const uint32_t other = __shfl_xor_sync(~0u, pair[1 - odd], 2);
  const uint2 halves = odd ? uint2{other, pair[1]} : uint2{pair[0], other};
  const int piece = lane / 8 % 2 * 4 + h * 2 + odd;
  *reinterpret_cast<uint2*>(to + (column / 64 * padded + m) * 128 + (piece ^ (m % 8)) * 16 + t / 2 * 8) = halves;
}

// Writes the same as integers. A block is one group, and one lane writes its scale.
__device__ __forceinline__ void put_whole_numbers(const WholeNumbers& whole, int m, int64_t padded, int block,
                                                  int column_blocks, uint8_t* to) {
  const int lane = threadIdx.x % 32, piece = lane / 8 * 2 + lane % 2;
  const auto bytes = [](float a, float b, float c, float d) {
    return __byte_perm(__byte_perm(__float2int_rn(a), __float2int_rn(b), 0x0040),
                       __byte_perm(__float2int_rn(c), __float2int_rn(d), 0x0040), 0x5410);
  };
  *reinterpret_cast<uint32_t*>(to + (block * padded + m) * kBlockColumns + (piece ^ (m % 8)) * 16 + lane % 8 / 2 * 4) =
      bytes(whole.v.x, whole.v.z, whole.v.y, whole.v.w);
  float* scales = reinterpret_cast<float*>(to + padded * column_blocks * kBlockColumns);
  if (lane == 0) scales[block * padded + m] = whole.scale;
}

// Rounds row blockIdx.x as the weights see it. values(column) returns four columns. kKept times the thread block's
// 2048 columns are kept in registers; columns beyond that are computed twice.
template <int kKept, typename Values>
__device__ __forceinline__ void round_row(const Values& values, int columns, const ManyRows& to) {
  const int m = to.places ? to.places[blockIdx.x] : static_cast<int>(blockIdx.x), warp = threadIdx.x / 32,
            // Blocks of 128 columns; each is a warp's work.
      column_blocks = (columns + kBlockColumns - 1) / kBlockColumns;
  constexpr int kWarps = kThreads / 32;
  const auto column = [&](int block) { return block * kBlockColumns + static_cast<int>(threadIdx.x) % 32 * 4; };
  const int64_t padded = to.places ? to.padded : many_rows(gridDim.x);
  if (to.integers) {
    for (int block = warp; block < column_blocks; block += kWarps)
      put_whole_numbers(whole_numbers(values(column(block)), column(block), to.rounding), m, padded, block,
                        column_blocks, to.halves);
    if (threadIdx.x == 0) to.factor[m] = 1;
    return;
  }
  const auto seen = [&](int block) { return as_seen(values(column(block)), block, to.rounding); };
  float4 kept[kKept];
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int block = i * kWarps + warp;
    kept[i] = block < column_blocks ? seen(block) : float4{0, 0, 0, 0};
    amax = fmaxf(amax, largest_of(kept[i]));
  }
  for (int block = kKept * kWarps + warp; block < column_blocks; block += kWarps)
    amax = fmaxf(amax, largest_of(seen(block)));
  const float factor = row_factor_of(over_block(amax, Larger())), inverse = 1 / factor;
  if (threadIdx.x == 0) to.factor[m] = factor;
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int block = i * kWarps + warp; block < column_blocks)
      put_many(kept[i], inverse, m, padded, column(block), to.halves);
  for (int block = kKept * kWarps + warp; block < column_blocks; block += kWarps)
    put_many(seen(block), inverse, m, padded, column(block), to.halves);
}

template <int kKept>
__global__ void __launch_bounds__(kThreads) round_many(const float* x, int columns, ManyRows to) {
  begin_kernel();
  const float* row = x + (to.of ? to.of[blockIdx.x] : static_cast<int>(blockIdx.x)) * int64_t{columns};
  round_row<kKept>([&](int column) { return load4(row, column, columns); }, columns, to);
}

template <int kKept>
__global__ void __launch_bounds__(kThreads) swiglu_round(const float* gate, const float* up, int columns, ManyRows to) {
  begin_kernel();
  const int64_t row = blockIdx.x * int64_t{columns};
  round_row<kKept>(
      [&](int column) { return gated(load4(gate + row, column, columns), load4(up + row, column, columns)); }, columns,
      to);
}

template <int kKept>
__global__ void __launch_bounds__(kThreads)
    norm_round(const float* x, const float* weight, float eps, int columns, ManyRows to) {
  begin_kernel();
  const float* row = x + blockIdx.x * int64_t{columns};
  float squares = 0;
  for (int column = threadIdx.x * 4; column < columns; column += kThreads * 4) {
    const float4 v = load4(row, column, columns);
    squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
  }
  squares = over_block(squares, [](float a, float b) { return a + b; });
  const float scale = 1 / sqrtf(squares / static_cast<float>(columns) + eps);
  round_row<kKept>(
      [&](int column) {
        const float4 v = load4(row, column, columns), w = load4(weight, column, columns);
        return float4{v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w};
      },
      columns, to);
}

template <typename Kernel1, typename Kernel2, typename... Arguments>
void launch_rows(const char* doing, Stream stream, int64_t rows, int64_t columns, Kernel1 few, Kernel2 many,
                 Arguments... arguments) {
  const dim3 grid(static_cast<unsigned>(rows));
  if (columns <= 2 * kThreads * 4) return launch(doing, stream, grid, kThreads, 0, few, arguments...);
  launch(doing, stream, grid, kThreads, 0, many, arguments...);
}

struct Launchers {
  ManyLauncher rows;
  RoutedManyLauncher routed;
};
template <CodeKind kind, int bits, bool byte_scale>
struct Launching {
  static constexpr Launchers launchers{launch_many<kind, bits, byte_scale>, launch_many_routed<kind, bits, byte_scale>};
};

}  // namespace

void prepare_many(Stream stream, const float* x, int64_t rows, int64_t columns, const ManyRows& to) {
  launch_rows("rounding activations", stream, rows, columns, round_many<2>, round_many<8>, x, static_cast<int>(columns),
              to);
}
void rms_norm_many(Stream stream, const float* x, const float* weight, float eps, int64_t rows, int64_t columns,
                   const ManyRows& to) {
  launch_rows("normalising", stream, rows, columns, norm_round<2>, norm_round<8>, x, weight, eps,
              static_cast<int>(columns), to);
}
void swiglu_many(Stream stream, const float* gate, const float* up, int64_t rows, int64_t columns, const ManyRows& to) {
  launch_rows("swiglu", stream, rows, columns, swiglu_round<2>, swiglu_round<8>, gate, up, static_cast<int>(columns),
              to);
}

bool takes_integers(const LowbitWeight& w, const Rounding& rounding) {
  return rounding.lanes == kBlockColumns / 4 && w.shape.group == kBlockColumns && w.shape.kind == CodeKind::integer &&
         (w.shape.bits == 4 || (w.shape.bits == 8 && w.symmetric));
}

bool takes_many(const LowbitWeight& w, float factor) {
  if (!is_hopper() || !w.blocks || w.shape.kind == CodeKind::half) return false;
  return w.row_factor || factor <= 1;  // codes times scales of a byte are at most 255^2
}

void lowbit_many(Stream stream, const ManyRows& x, int64_t rows, std::span<const LowbitOutput> outputs, bool add) {
  const LowbitShape& shape = outputs[0].weight->shape;
  ManyArguments p = {};
  for (const LowbitOutput& o : outputs) {
    const LowbitWeight& w = *o.weight;
    p.target[p.targets++] = {w.blocks,     w.row_factor, w.bias, w.grid, o.y, static_cast<int>(w.shape.out),
                             p.row_blocks, w.factor};
    p.row_blocks += static_cast<int>(w.shape.row_blocks());
  }
  p.column_blocks = static_cast<int>(shape.column_blocks());
  p.rows = static_cast<int>(rows);
  p.add = add;
  p.x = x.halves;
  p.row_factor = x.factor;
  if (x.integers) return launch_many_integers(stream, p, shape);
  launchers_of<Launching>(shape).rows(stream, p, shape.group);
}

void lowbit_many_routed(Stream stream, const ManyRows& x, const RoutedTiles& tiles, const RoutedOutputs& outputs) {
  RoutedManyArguments p = {};
  static_cast<RoutedTargets&>(p) = targets_of(outputs);
  p.column_blocks = static_cast<int>(outputs.shape.column_blocks());
  p.row_blocks = p.blocks_each * p.outputs;
  p.x = x.halves;
  p.row_factor = x.factor;
  p.tiles = tiles.tiles;
  p.tile_count = tiles.count;
  p.most_tiles = static_cast<int>(tiles.most);
  launchers_of<Launching>(outputs.shape).routed(stream, p, outputs.shape.group);
}

}  // namespace fidelio::cuda
