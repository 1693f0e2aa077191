// A thread block has a multiprocessor and a run of sixteens of rows, of which it takes those that have two codebooks at
// a time (a stage):
//
//     shared memory:  [codebook][codebook][inputs of up to 4 rows of x][the row][partial sums]
//                     one codebook if two are too much; the row, where one has corrections, if it fits
//     warps:          sets of one or two; a set takes four rows of W at a time. Of two, warp s has groups s, s + 2, ...
//                     of those rows, and of rows 2 s (half the lanes) and 2 s + 1 the corrections and what comes out;
//                     one has all four, eight lanes each
//
// Within a stage sets wait for nobody. What is read next is asked for while what is there is multiplied: words a group
// ahead, corrections four rows ahead; the first words and codebooks before the kernel ahead has ended. Until the first
// product a thread block takes longer than for some rows of W (docs/lab/gpu.md), so all that it needs is asked for at
// once, and it has no division.
#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/vectors/vector_sums.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kFew = 4;  // rows of W that a set takes at a time
constexpr int kBooks = 2;
constexpr int kMostRows = 4;  // rows of x that share one decoding

struct Product {
  VectorWeight weight[kMaxTogether];
  float* y[kMaxTogether];
  int first_unit[kMaxTogether + 1];
  int count;
  int units_each, one_more;  // of a thread block; the first have one more
  int log_warps;             // of a set: the weights'
  VectorInput input;
  int books;   // in shared memory at a time
  bool keeps;  // the row is in shared memory as well
  bool add;
};

constexpr int row_bytes(int groups) { return groups * kVectorGroup * 8 * 4; }
template <int kPlanes>
int shared_bytes(bool high, int books, int groups, int rows, bool keeps = false) {
  return books * book_bytes(high) + rows * (vector_input_bytes<kPlanes>(groups) + 2 * kVectorWarps * kFew * 4) +
         (keeps ? row_bytes(groups) : 0) + 2 * kVectorWarps * 4;
}

// What a thread block does with its rows.
template <int kSigns, bool kHigh, int kCount, int kPlanes>
struct Worker {
  static constexpr int kAtOnce = kCount * kPlanes == 2 ? 4 : 2;  // rows of W whose sums a lane has registers for
  const Product& p;
  std::byte* books;
  VectorInputs<kPlanes> inputs;
  float* kept;     // the row, or null
  float* partial;  // [parity][set][row of its four][split][row of x]
  float* largest;
  const int lane = threadIdx.x % 32, warps = 1 << p.log_warps;  // of a set
  const int split = threadIdx.x / 32 & (warps - 1), set = threadIdx.x / 32 >> p.log_warps;
  const int each = 8 << p.log_warps, share = lane & (each - 1);  // lanes that have a row of the four, its corrections
  const int own = (lane + 32 * split) >> (3 + p.log_warps);      // and what comes out; which row, which of them this is
  const int step = kVectorWarps * kFew >> p.log_warps;           // rows of all sets

  __device__ Worker(const Product& product, std::byte* shared)
      : p(product),
        books(shared),
        inputs{shared + product.books * book_bytes(kHigh), static_cast<int>(product.weight[0].groups)} {
    std::byte* const behind = inputs.row(kCount);
    kept = kCount == 1 && product.keeps ? reinterpret_cast<float*>(behind) : nullptr;
    partial = reinterpret_cast<float*>(behind + (kept ? row_bytes(inputs.groups) : 0));
    largest = partial + 2 * kVectorWarps * kFew * kCount;
  }

  // A warp goes through its rows, kAtOnce at a time, and through its groups of each.
  struct Place {
    int row, group;
  };
  __device__ void advance(Place& at) const {
    at.group += warps;
    if (at.group < inputs.groups) return;
    at.group = split, at.row += kAtOnce;
    if (at.row % kFew == 0) at.row += step - kFew;
  }
  // The words of a place, if there is one before row `end`; and then goes to the next. With signs beside the indices
  // there are no registers to have them early (measured: 2% of a step lost, where one sign gains 8%).
  __device__ void load(const VectorWeight& w, int end, Place& at, VectorWords (&words)[kAtOnce]) const {
    constexpr int kRecord = kVectorLanes * ((kHigh ? 8 : 4) + (kSigns == 8 ? 4 : kSigns == 4 ? 2 : 0));
    const bool there = at.row < end;
    if (kSigns > 1 && !there) return;
    const uint8_t* from =
        w.codes + static_cast<uint64_t>(static_cast<uint32_t>(at.row * inputs.groups + at.group)) * kRecord;
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const uint8_t* record = from + r * inputs.groups * kRecord;
      if constexpr (kSigns == 1)
        words[r] = places_if(there, record, lane);
      else
        words[r] = vector_words<kSigns, kHigh>(record, lane);
    }
    advance(at);
  }

  // Inputs of all rows; `columns` are those of the first.
  __device__ void make(MadeRow row, RowColumns columns) {
    const int end = inputs.groups * kVectorGroup, column = threadIdx.x;
    if (row.from.kind == VectorInput::Kind::norm) row.find_factor(columns, end, partial);
#pragma unroll 1
    for (int m = 0; m < kCount; ++m) {
      if (m > 0) {
        row.row = min(m, static_cast<int>(p.input.rows) - 1);
        columns = {};
        row.load_fixed(column, columns), row.load_made(column, columns);
      }
      make_inputs<kPlanes>(row, columns, inputs, m, kept, largest);
    }
  }

  __device__ float fix_by(const VectorWeight& w, const Correction& fix, int m, float sum) const {
    if (kept) {
      const auto* four = reinterpret_cast<const float4*>(kept) + 2 * fix.place;
      return corrected(fix, sum, four[0], four[1]);
    }
    const auto in = static_cast<int>(w.in);
    const float* x = p.input.x + min(m, static_cast<int>(p.input.rows) - 1) * in;
    return corrected(fix, sum, load4(x, fix.place * 8, in), load4(x, fix.place * 8 + 4, in));
  }

  // The units of a stage, from `unit` of weight `which` on, that have the books of `block` and the next one.
  __device__ void stage(int which, int unit, int count, int block, bool first, bool fresh) {
    const VectorWeight& w = p.weight[which];
    const int end = (unit + count) * kVectorUnit, second = w.first_unit(block + 1) * kVectorUnit;
    int row = unit * kVectorUnit + set * kFew;
    Place place{split < inputs.groups ? row : end, split};  // what is asked for next
    VectorWords words[kAtOnce] = {};
    load(w, end, place, words);
    Fixes fixes = fixes_of(w, row + own, end);
    Book<kSigns, kHigh> book;
    book.load(w, block);
    MadeRow made{w, p.input, 0};
    RowColumns columns;
    const auto column = static_cast<int>(threadIdx.x);
    if (fresh) made.load_fixed(column, columns);
    if (first) ptx::dependency_wait();
    if (fresh) made.load_made(column, columns);
    if (!first) __syncthreads();  // everybody is done with books and inputs
    book.store(w, books);
    if (second < end) book.load(w, block + 1), book.store(w, books + book_bytes(kHigh));
    load(w, fixes);
    if (fresh) make(made, columns);
    __syncthreads();
    const int rows_here = min(end, static_cast<int>(w.out));
    float* y = share < p.input.rows ? p.y[which] + share * w.out : nullptr;
    for (int parity = 0; row < end; row += step, parity ^= 1) {
      Fixes coming = fixes_of(w, row + step + own, end);
      float* const mine = partial + (parity * kVectorWarps + set * warps) * kFew * kCount;
      const uint32_t copy = copy_of(row, second);
      const int out = row + own;
      const bool writes = y && out < rows_here;
      const float before = writes && p.add ? y[out] : 0.0f, bias = writes && w.bias ? w.bias[out] : 0.0f,
                  scale = writes ? __ldg(w.row + out) : 0.0f;
#pragma unroll
      for (int part = 0; part < kFew; part += kAtOnce) {
        float sum[kAtOnce][kCount] = {};
        for (int g = split; g < inputs.groups; g += warps) {
          VectorWords coming[kAtOnce] = {};
          load(w, end, place, coming);
          add_group<kSigns, kHigh, kAtOnce, kCount, kPlanes>(words, books, copy, inputs, g, sum);
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r) words[r] = coming[r];
        }
        join(sum, mine + part * warps * kCount);
      }
      const float fixed = fix(w, fixes);
      fixes = coming;
      load(w, fixes);
      if (warps == 1)
        __syncwarp();
      else
        asm volatile("bar.sync %0, %1;" ::"r"(set + 1), "r"(32 * warps) : "memory");
      if (writes) {
        float total = 0;
        for (int i = 0; i < warps; ++i) total += mine[(own * warps + i) * kCount + share];
        y[out] = fmaf(scale, total, fixed) + bias + before;
      }
    }
  }

  // What centroids' addresses of a row have in common.
  __device__ uint32_t copy_of(int row, int second) const {
    return static_cast<uint32_t>((row < second ? 0 : book_bytes(kHigh)) + (kHigh ? 0 : lane % 16 * 8));
  }

  // Corrections of a lane's row, of which it has one in `each`: two asked for ahead.
  struct Fixes {
    int begin = 0, end = 0;
    Correction two[2];
  };
  __device__ Fixes fixes_of(const VectorWeight& w, int row, int end) const {
    const bool there = w.begin && row < end && row < w.out;
    return {there ? w.begin[row] : 0, there ? w.begin[row + 1] : 0};
  }
  __device__ void load(const VectorWeight& w, Fixes& fixes) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (const int at = fixes.begin + share + i * each; at < fixes.end) fixes.two[i] = correction(w, at);
  }
  // Their sum of x's row `share`.
  __device__ __forceinline__ float fix(const VectorWeight& w, Fixes& fixes) const {
    float fixed[kCount] = {};
    for (int at = fixes.begin + share; at < fixes.end; at += 2 * each) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (at + i * each >= fixes.end) break;
#pragma unroll
        for (int m = 0; m < kCount; ++m) fixed[m] = fix_by(w, fixes.two[i], m, fixed[m]);
      }
      fixes.begin += 2 * each;
      load(w, fixes);
    }
    if (!w.begin) return 0;
    float mine = 0;
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
      for (int apart = each / 2; apart > 0; apart /= 2) fixed[m] += __shfl_xor_sync(~0u, fixed[m], apart);
      if (m == share) mine = fixed[m];
    }
    return mine;
  }

  // The sums of all lanes.
  __device__ __forceinline__ void join(const float (&sum)[kAtOnce][kCount], float* parts) const {
    float all[kAtOnce * kCount];
#pragma unroll
    for (int i = 0; i < kAtOnce * kCount; ++i) all[i] = sum[i / kCount][i % kCount];
    const float total = sum_of_lanes(all, lane);
    constexpr int kLanesEach = 32 / (kAtOnce * kCount);
    const int value = lane / kLanesEach;
    if (lane % kLanesEach == 0) parts[(value / kCount * warps + split) * kCount + value % kCount] = total;
  }
};

template <int kSigns, bool kHigh, int kCount, int kPlanes>
__global__ void __launch_bounds__(kVectorThreads) multiply(const __grid_constant__ Product p) {
  extern __shared__ uint4 shared[];
  ptx::allow_dependents();
  Worker<kSigns, kHigh, kCount, kPlanes> worker(p, reinterpret_cast<std::byte*>(shared));
  const auto block = static_cast<int>(blockIdx.x);
  int unit = block * p.units_each + min(block, p.one_more);
  const int end = unit + p.units_each + (block < p.one_more ? 1 : 0);
  bool first = true;
  for (int which = 0; unit < end; ++which) {
    const VectorWeight& w = p.weight[which];
    bool fresh = true;  // a weight of its own column scales
    while (unit < min(end, p.first_unit[which + 1])) {
      const int from = unit - p.first_unit[which], last = min(end, p.first_unit[which + 1]) - p.first_unit[which];
      const int book = w.block_of(from);
      const int count = min(last, w.first_unit(book + p.books)) - from;
      worker.stage(which, from, count, book, first, fresh);
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

bool has_corrections(const Product& p) {
  return std::any_of(p.weight, p.weight + p.count, [](const VectorWeight& w) { return w.begin != nullptr; });
}

template <int kSigns, bool kHigh, int kCount, int kPlanes>
void launch_product(Stream stream, Product p) {
  const auto kernel = multiply<kSigns, kHigh, kCount, kPlanes>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared());
  cuda_check(allowed, "asking for shared memory");
  const auto groups = static_cast<int>(p.weight[0].groups);
  p.keeps = kCount == 1 && has_corrections(p) && shared_bytes<kPlanes>(kHigh, 1, groups, 1, true) <= most_shared();
  p.books = shared_bytes<kPlanes>(kHigh, kBooks, groups, kCount, p.keeps) <= most_shared() ? kBooks : 1;
  const auto bytes = static_cast<size_t>(shared_bytes<kPlanes>(kHigh, p.books, groups, kCount, p.keeps));
  const int units = p.first_unit[p.count], grid = std::min(multiprocessors(), units);
  p.units_each = units / grid, p.one_more = units % grid;
  launch("a product of vector codes", stream, dim3(static_cast<unsigned>(grid)), kVectorThreads, bytes, kernel, p);
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

int vector_log_warps(const VectorWeight& w) {
  return w.units.by >= 5u * static_cast<uint32_t>(multiprocessors()) ? 0 : 1;
}

int64_t most_vector_columns() {
  const int room = most_shared() - shared_bytes<3>(true, 1, 0, 1);
  return int64_t{room / vector_input_bytes<3>(1)} * kVectorGroup * 8;
}

bool makes_vector_input(std::span<const VectorOutput> outputs, const VectorInput& input) {
  const VectorWeight& w = *outputs[0].weight;
  bool corrections = false;
  for (const VectorOutput& o : outputs) corrections = corrections || o.weight->begin;
  return input.rows == 1 &&
         (!corrections || shared_bytes<2>(w.high, 1, static_cast<int>(w.groups), 1, true) <= most_shared());
}

void vector_linear(Stream stream, std::span<const VectorOutput> outputs, const VectorInput& input, bool exact,
                   bool add) {
  Product p = {};
  p.count = static_cast<int>(outputs.size());
  p.add = add;
  p.log_warps = outputs[0].weight->log_warps;
  p.input = input;
  const VectorWeight& w = *outputs[0].weight;
  for (size_t i = 0; i < outputs.size(); ++i) {
    p.weight[i] = *outputs[i].weight;
    p.first_unit[i + 1] = p.first_unit[i] + static_cast<int>((p.weight[i].out + kVectorUnit - 1) / kVectorUnit);
  }
  for (int64_t m = 0; m < input.rows; m += p.input.rows) {
    int64_t& rows = p.input.rows;
    rows = exact ? 1 : std::min<int64_t>(kMostRows, input.rows - m);
    while (rows > 1 && shared_bytes<2>(w.high, 1, static_cast<int>(w.groups), rows == 3 ? 4 : static_cast<int>(rows)) >
                           most_shared())
      --rows;
    p.input.x = input.x + m * w.in;
    for (size_t i = 0; i < outputs.size(); ++i) p.y[i] = outputs[i].y + m * p.weight[i].out;
    if (exact)
      launch_format<1, 3>(stream, p);
    else if (rows == 1)
      launch_format<1, 2>(stream, p);
    else if (rows == 2)
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
