// A thread block has a multiprocessor and a run of units (sixteen rows that have one codebook), of which it takes those
// that have two codebooks at a time (a stage):
//
//     shared memory:  [codebook][codebook][inputs of up to 8 rows of x][the row][sums of spans][corrections]
//                     one codebook if two are too much; the row, where one has corrections, if it fits; so many of the
//                     corrections as fit
//     spans:          warp w has spans w, w + 16, ... of the stage's units, in the order in which they lie in memory
//     corrections:    then four lanes have a row
//     what comes out: then a thread has a row of W and one of x
//
// Codes are asked for a span ahead. Until the first product a thread block takes longer than for some units, and a load
// from memory longer than a row's corrections (docs/lab/gpu.md), so all else that it needs is asked for at once, what no
// kernel writes before the kernel ahead has ended; and it has no division.
#include <algorithm>
#include <cassert>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/vectors/vector_sums.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kBooks = 2;
constexpr int kMostRows = 8;  // of x that share one decoding

struct Product {
  VectorWeight weight[kMaxTogether];
  float* y[kMaxTogether];
  int first_unit[kMaxTogether + 1];
  int count;
  int units_each, one_more;  // of a thread block; the first have one more
  VectorInput input;
  int books;    // in shared memory at a time
  int at_once;  // units whose sums have room
  int fixes;    // corrections that have
  bool keeps;   // the row is in shared memory as well
  bool add;
};

constexpr int row_bytes(int groups) { return groups * kVectorGroup * 8 * 4; }
constexpr int odd(int spans) { return spans | 1; }           // rows' sums so far apart meet no bank twice
constexpr int fix_bytes(int rows) { return 12 + 4 * rows; }  // of a correction
constexpr int unit_bytes(int rows, int spans) { return kVectorUnit * (rows * odd(spans) + 1) * 4; }

// What a thread block does with its units.
template <int kSigns, bool kHigh, int kCount, int kPlanes>
struct Worker {
  using Inputs = VectorInputs<kCount, kPlanes>;
  using Words = SpanWords<kSigns, kHigh>;
  const Product& p;
  std::byte* books;
  Inputs inputs;
  float* kept;  // the row, or null
  float* largest;
  float* sums;  // [row of the units at once][row of x][span]
  // Corrections of those rows: so many as have room, what each adds to a row of x, and where each row's begin.
  uint2* levels;
  uint32_t* tags;
  float* parts;  // [correction][row of x]
  int* begin;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int spans = static_cast<int>(p.weight[0].spans.by);

  __device__ Worker(const Product& product, std::byte* shared)
      : p(product),
        books(shared),
        inputs{shared + product.books * book_bytes(kHigh), static_cast<int>(product.weight[0].groups)} {
    std::byte* const behind = inputs.end();
    kept = kCount == 1 && product.keeps ? reinterpret_cast<float*>(behind) : nullptr;
    largest = reinterpret_cast<float*>(behind + (kept ? row_bytes(inputs.groups) : 0));
    sums = largest + 2 * kVectorWarps;
    levels = reinterpret_cast<uint2*>(sums + p.at_once * kVectorUnit * kCount * odd(spans));
    tags = reinterpret_cast<uint32_t*>(levels + p.fixes);
    parts = reinterpret_cast<float*>(tags + p.fixes);
    begin = reinterpret_cast<int*>(parts + p.fixes * kCount);
  }
  static int shared_bytes(int books, int groups, int spans, int at_once, bool keeps) {
    return books * book_bytes(kHigh) + vector_input_bytes(Inputs::kColumns, kCount, groups) +
           (keeps ? row_bytes(groups) : 0) + 2 * kVectorWarps * 4 + at_once * unit_bytes(kCount, spans) + 4;
  }

  // Of the rows of `here` units, where their corrections begin and how many have room.
  struct Fixes {
    int row = 0, rows = 0, first = 0, end = 0;
  };
  __device__ __forceinline__ Fixes fixes_of(const VectorWeight& w, int unit, int here) const {
    const int row = unit * kVectorUnit, rows = min(here * kVectorUnit, static_cast<int>(w.out) - row);
    if (!w.begin) return {};
    return {row, rows, __ldg(w.begin + row), __ldg(w.begin + row + rows)};
  }
  // Asks for them.
  __device__ __forceinline__ void copy(const VectorWeight& w, const Fixes& fixes) const {
    if (!w.begin) return;
    for (int i = threadIdx.x; i <= fixes.rows; i += kVectorThreads) copy_few<4>(begin + i, w.begin + fixes.row + i);
    for (int i = threadIdx.x; i < min(fixes.end - fixes.first, p.fixes); i += kVectorThreads) {
      copy_few<8>(levels + i, reinterpret_cast<const uint2*>(w.value) + fixes.first + i);
      copy_few<4>(tags + i, w.tag + fixes.first + i);
    }
    ptx::commit_copies();
  }
  // What comes to the sum of (row of W, row of x) i of the units at once.
  struct Out {
    float* y = nullptr;
    float scale = 0, bias = 0, before = 0;
  };
  __device__ __forceinline__ Out out_of(const VectorWeight& w, int which, int unit, int here, int i) const {
    const int row = unit * kVectorUnit + i / kCount, m = i % kCount;
    if (i >= here * kVectorUnit * kCount || row >= w.out || m >= p.input.rows) return {};
    float* y = p.y[which] + m * w.out + row;
    return {y, __ldg(w.row + row), w.bias ? w.bias[row] : 0.0f, p.add ? *y : 0.0f};
  }

  // The units of a stage, from `unit` of weight `which` on, that have the books of `block` and the next one.
  __device__ void stage(int which, int unit, int count, int block, bool first, bool fresh) {
    const VectorWeight& w = p.weight[which];
    const int end = unit + count, second = w.first_unit(block + 1);
    Words words;
    words.load(warp < min(count, p.at_once) * spans, record(w, unit, warp), lane);
    const Fixes fixes = fixes_of(w, unit, min(count, p.at_once));
    Book<kSigns, kHigh> book, other;
    book.load(w, block);
    if (second < end) other.load(w, block + 1);
    const MadeRow made{w, p.input, 0};
    RowColumns columns;  // the thread's first
    const auto column = static_cast<int>(threadIdx.x);
    if (fresh) made.load_fixed(column, columns);
    if (first) ptx::dependency_wait();
    if (fresh) made.load_made(column, columns);
    if (!first) __syncthreads();  // everybody is done with books, inputs and corrections
    copy(w, fixes);
    book.store(w, books);
    if (second < end) other.store(w, books + book_bytes(kHigh));
    if (fresh) make_inputs(made, columns, inputs, kept, sums, largest);
    for (; unit < end; unit += p.at_once) {
      const int here = min(p.at_once, end - unit), after = min(p.at_once, end - unit - here);
      const Out out = out_of(w, which, unit, here, threadIdx.x);
      ptx::wait_for_copies<0>();
      __syncthreads();
      multiply_spans(w, unit, here, after, second, words);
      multiply_fixes(w, unit, here);
      __syncthreads();
      finish(w, out, threadIdx.x);
      for (int i = threadIdx.x + kVectorThreads; i < here * kVectorUnit * kCount; i += kVectorThreads)
        finish(w, out_of(w, which, unit, here, i), i);
      if (after > 0) {
        __syncthreads();  // everybody is done with sums and corrections
        copy(w, fixes_of(w, unit + here, after));
      }
    }
  }
  __device__ static const uint8_t* record(const VectorWeight& w, int unit, int span) {
    constexpr int kRecord = 32 * 16 * (Words::kIndex + Words::kSign);
    return w.codes + static_cast<uint64_t>(unit * w.spans.by + span) * kRecord;
  }

  // Sums of all spans of `here` units; `words`: the warp's first, and then that of the `after` units behind them.
  __device__ __forceinline__ void multiply_spans(const VectorWeight& w, int unit, int here, int after, int second,
                                                 Words& words) {
    const int items = here * spans;
    for (int i = warp; i < items; i += kVectorWarps) {
      const int next = i + kVectorWarps < items ? i + kVectorWarps : items + warp;
      Words coming;
      coming.load(next < items + after * spans, record(w, unit, next), lane);
      const auto of = static_cast<int>(w.spans.quotient(i)), span = i - of * spans;
      const int is_second = unit + of < second ? 0 : 1;
      const uint32_t from = kHigh ? is_second : is_second * book_bytes(kHigh) + lane % 16 * 8;
      SpanSum<kSigns, kHigh, Inputs> sum;
      sum.add(words, books, from, inputs, span);
#pragma unroll
      for (int eight = 0; eight < sum.kEights; ++eight)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int m = 4 * eight + lane % 4, row = of * kVectorUnit + lane / 4 + 8 * h;
          const float total = sum.total(eight, h);
          if (m < kCount) sums[(row * kCount + m) * odd(spans) + span] = inputs.scale(m)[span / 2] * total;
        }
      words = coming;
    }
  }

  // What corrections of these units add to their rows.
  __device__ __forceinline__ void multiply_fixes(const VectorWeight& w, int unit, int here) const {
    if (!w.begin) return;
    const int rows = min(here * kVectorUnit, static_cast<int>(w.out) - unit * kVectorUnit);
    const int count = min(begin[rows] - begin[0], p.fixes);
#pragma unroll 2
    for (int i = threadIdx.x; i < count; i += kVectorThreads)
#pragma unroll
      for (int m = 0; m < kCount; ++m) parts[i * kCount + m] = part_of(w, {levels[i], tags[i]}, m);
  }
  // The corrections of a row, in their order.
  __device__ __forceinline__ float fixed(const VectorWeight& w, int row, int m) const {
    if (!w.begin) return 0;
    const int first = begin[0], end = begin[row + 1] - first;
    float sum = 0;
    int i = begin[row] - first;
#pragma unroll 4
    for (; i < min(end, p.fixes); ++i) sum = __fadd_rn(sum, parts[i * kCount + m]);
    for (; i < end; ++i) {
      const auto* value = reinterpret_cast<const uint2*>(w.value) + first + i;
      sum = __fadd_rn(sum, part_of(w, {__ldg(value), __ldg(w.tag + first + i)}, m));
    }
    return sum;
  }
  __device__ __forceinline__ void finish(const VectorWeight& w, const Out& out, int i) const {
    if (!out.y) return;
    float total = 0;
    for (int span = 0; span < spans; ++span) total += sums[i * odd(spans) + span];
    *out.y = fmaf(out.scale, total, fixed(w, i / kCount, i % kCount)) + out.bias + out.before;
  }
  __device__ float part_of(const VectorWeight& w, const Correction& fix, int m) const {
    if (kept) {
      const auto* four = reinterpret_cast<const float4*>(kept) + 2 * fix.place();
      return product_of(fix, four[0], four[1]);
    }
    const auto in = static_cast<int>(w.in);
    const float* x = p.input.x + min(m, static_cast<int>(p.input.rows) - 1) * in;
    return product_of(fix, load4(x, fix.place() * 8, in), load4(x, fix.place() * 8 + 4, in));
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

// A thread block has a unit's span, whose record it reads as a whole.
__global__ void dequantise_spans(VectorWeight w, float inverse, __half* halves) {
  for (int i = threadIdx.x; i < kVectorUnit * kVectorSpan; i += blockDim.x) {
    const int64_t row = blockIdx.y * kVectorUnit + i / kVectorSpan, v = blockIdx.x * kVectorSpan + i % kVectorSpan;
    if (row >= w.out || v >= w.vectors) continue;
    const VectorAt at = vector_at(w, row, v);
    __half* to = halves + row * w.in + v * 8;
    alignas(16) __half values[8];
    const int count = min(8, static_cast<int>(w.in - v * 8));
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < count) values[j] = __float2half_rn(vector_value(w, row, v * 8 + j, at) * inverse);
    if (w.in % 8 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (j < count) to[j] = values[j];
    }
  }
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

// Shared memory of a product: two codebooks where beside them the sums of all of a thread block's units have room, or of
// four, and most of their corrections; or one. 0 if there is not enough.
template <int kSigns, bool kHigh, int kCount, int kPlanes>
int arrange(Product& p) {
  using Of = Worker<kSigns, kHigh, kCount, kPlanes>;
  const auto groups = static_cast<int>(p.weight[0].groups), spans = static_cast<int>(p.weight[0].spans.by);
  const int units = p.units_each + (p.one_more > 0 ? 1 : 0);
  int64_t densest = 0;  // corrections of a unit
  for (const VectorWeight& w : p.weight)
    if (w.begin) densest = std::max(densest, w.corrections / w.units.by + 1);
  for (p.books = kBooks; p.books > 0; --p.books) {
    const int none = Of::shared_bytes(p.books, groups, spans, 0, p.keeps);
    const int each = Of::shared_bytes(p.books, groups, spans, 1, p.keeps) - none;
    p.at_once = std::min(units, (most_shared() - none) / each);
    if (p.at_once < (p.books == 1 ? 1 : std::min(units, 4))) continue;
    const int bytes = none + p.at_once * each, room = (most_shared() - bytes) / fix_bytes(kCount);
    const auto most = static_cast<int>(densest * p.at_once * 5 / 4);  // units differ
    if (p.books > 1 && room < most) continue;
    p.fixes = std::min(room, most);
    return bytes + p.fixes * fix_bytes(kCount);
  }
  return 0;
}

template <int kSigns, bool kHigh, int kCount, int kPlanes>
bool launch_product(Stream stream, Product p) {
  const auto kernel = multiply<kSigns, kHigh, kCount, kPlanes>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared());
  cuda_check(allowed, "asking for shared memory");
  const int units = p.first_unit[p.count], grid = std::min(multiprocessors(), units);
  p.units_each = units / grid, p.one_more = units % grid;
  p.keeps = kCount == 1 && has_corrections(p);
  int bytes = arrange<kSigns, kHigh, kCount, kPlanes>(p);
  if (bytes == 0 && p.keeps) p.keeps = false, bytes = arrange<kSigns, kHigh, kCount, kPlanes>(p);
  if (bytes == 0) return false;
  launch("a product of vector codes", stream, dim3(static_cast<unsigned>(grid)), kVectorThreads,
         static_cast<size_t>(bytes), kernel, p);
  return true;
}

// False where shared memory has no room for so many rows.
template <int kCount, int kPlanes>
bool launch_format(Stream stream, const Product& p) {
  const VectorWeight& w = p.weight[0];
  if (w.signs == 1) return launch_product<1, true, kCount, kPlanes>(stream, p);
  if (w.signs == 4 && w.high) return launch_product<4, true, kCount, kPlanes>(stream, p);
  if (w.signs == 4) return launch_product<4, false, kCount, kPlanes>(stream, p);
  if (w.high) return launch_product<8, true, kCount, kPlanes>(stream, p);
  return launch_product<8, false, kCount, kPlanes>(stream, p);
}

int spans_of(int groups) { return groups * kVectorGroup / kVectorSpan; }

// With one codebook and the sums of one unit.
int least_shared(bool high, int columns, int rows, int groups, bool keeps) {
  return book_bytes(high) + vector_input_bytes(columns, rows, groups) + (keeps ? row_bytes(groups) : 0) +
         2 * kVectorWarps * 4 + unit_bytes(rows, spans_of(groups)) + 4;
}

}  // namespace

int64_t most_vector_columns() {
  int groups = 0;
  while (least_shared(true, 3, 1, groups + 1, false) <= most_shared()) ++groups;
  return int64_t{groups} * kVectorGroup * 8;
}

bool makes_vector_input(std::span<const VectorOutput> outputs, const VectorInput& input) {
  const VectorWeight& w = *outputs[0].weight;
  bool corrections = false;
  for (const VectorOutput& o : outputs) corrections = corrections || o.weight->begin;
  return input.rows == 1 &&
         (!corrections || least_shared(w.high, 2, 1, static_cast<int>(w.groups), true) <= most_shared());
}

void vector_linear(Stream stream, std::span<const VectorOutput> outputs, const VectorInput& input, bool exact,
                   bool add) {
  Product p = {};
  p.count = static_cast<int>(outputs.size());
  p.add = add;
  p.input = input;
  const VectorWeight& w = *outputs[0].weight;
  for (size_t i = 0; i < outputs.size(); ++i) {
    p.weight[i] = *outputs[i].weight;
    p.first_unit[i + 1] = p.first_unit[i] + static_cast<int>(p.weight[i].units.by);
  }
  int64_t& rows = p.input.rows;
  for (int64_t m = 0; m < input.rows; m += rows) {
    p.input.x = input.x + m * w.in;
    for (size_t i = 0; i < outputs.size(); ++i) p.y[i] = outputs[i].y + m * p.weight[i].out;
    const int64_t left = exact ? 1 : std::min<int64_t>(kMostRows, input.rows - m);
    if (rows = left; rows > 4 && launch_format<8, 2>(stream, p)) continue;
    if (rows = std::min<int64_t>(4, left); rows > 1 && launch_format<4, 2>(stream, p)) continue;
    rows = 1;
    [[maybe_unused]] const bool fits = exact ? launch_format<1, 3>(stream, p) : launch_format<1, 2>(stream, p);
    assert(fits && "most_vector_columns() is what the packer allows");
  }
}

void dequantise_vectors(Stream stream, const VectorWeight& w, float factor, uint16_t* halves) {
  const dim3 grid(w.spans.by, w.units.by);
  dequantise_spans<<<grid, 256, 0, stream>>>(w, 1 / factor, reinterpret_cast<__half*>(halves));
  cuda_check(cudaGetLastError(), "decoding vector codes");
}

}  // namespace fidelio::cuda
