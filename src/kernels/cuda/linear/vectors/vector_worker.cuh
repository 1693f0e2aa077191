// This file has what a thread block does of a product of vector codes (vectors.cu).
#pragma once
#include "kernels/cuda/linear/vectors/vector_chain.cuh"
#include "kernels/cuda/linear/vectors/vector_sums.cuh"

namespace fidelio::cuda {

// A VectorWorker does a thread block's units.
template <int kSigns, bool kHigh, int kCount, int kPlanes, bool kEights>
struct VectorWorker {
  using Inputs = VectorInputs<kCount, kPlanes>;
  using Words = SpanWords<kSigns, kHigh>;
  using Books = Book<kSigns, kHigh>;
  const VectorArguments& p;
  std::byte* books;
  Inputs inputs;
  float* kept;  // the row, or null
  float* largest;
  float* sums;  // [row of the units at once][row of x][span]
  // The corrections of those rows, as many as there is room for; what each adds to a row of x; and where those of
  // each row begin.
  uint2* levels;
  uint32_t* tags;
  float* parts;  // [correction][row of x]
  int* begin;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int spans = static_cast<int>(p.weight[0].spans.by);
  const uint32_t arrived;  // the barrier for codebooks

  __device__ VectorWorker(const VectorArguments& product, std::byte* shared)
      : p(product),
        books(shared + kStageBytes),
        inputs{books + product.books * book_bytes(kHigh), static_cast<int>(product.weight[0].groups)},
        arrived(ptx::shared_address(shared) + kBooksArrived) {
    std::byte* const behind = inputs.end();
    kept = kCount == 1 && product.keeps ? reinterpret_cast<float*>(behind) : nullptr;
    largest = reinterpret_cast<float*>(behind + (kept ? row_bytes(inputs.groups) : 0));
    sums = largest + 2 * kVectorWarps;
    levels = reinterpret_cast<uint2*>(sums + p.at_once * kVectorUnit * kCount * odd(spans));
    tags = reinterpret_cast<uint32_t*>(levels + p.fixes);
    parts = reinterpret_cast<float*>(tags + p.fixes);
    begin = reinterpret_cast<int*>(parts + p.fixes * kCount);
  }

  // Fixes is the range of corrections for the rows of some units.
  struct Fixes {
    int first = 0, end = 0;
  };
  __device__ __forceinline__ int rows_of(const VectorWeight& w, int unit, int here) const {
    return min(here * kVectorUnit, static_cast<int>(w.out) - unit * kVectorUnit);
  }
  __device__ __forceinline__ Fixes fixes_of(const VectorWeight& w, int unit, int here) const {
    if (!w.begin) return {};
    const int* from = w.begin + unit * kVectorUnit;
    return {__ldg(from), __ldg(from + rows_of(w, unit, here))};
  }
  // Asks for the corrections, in a group of copies.
  __device__ __forceinline__ void copy(const VectorWeight& w, int unit, int here, const Fixes& fixes) const {
    if (w.begin)
      for (int i = threadIdx.x; i <= rows_of(w, unit, here); i += kVectorThreads)
        copy_few<4>(begin + i, w.begin + unit * kVectorUnit + i);
    for (int i = threadIdx.x; i < min(fixes.end - fixes.first, p.fixes); i += kVectorThreads) {
      copy_few<8>(levels + i, reinterpret_cast<const uint2*>(w.value) + fixes.first + i);
      copy_few<4>(tags + i, w.tag + fixes.first + i);
    }
    ptx::commit_copies();
  }
  // An Out says what happens to sum i of (row of W, row of x), among the units at once.
  struct Out {
    float* y = nullptr;
    float scale = 0, bias = 0, before = 0;
  };
  __device__ __forceinline__ Out out_of(const VectorWeight& w, int which, int unit, int here, int i) const {
    const int row = unit * kVectorUnit + i / kCount, m = i % kCount;
    if (i >= here * kVectorUnit * kCount || row >= w.out || m >= p.input.rows) return {};
    float* y = p.y[which] + m * w.out + row;
    return {y, __ldg(w.row + row), w.bias ? w.bias[row] : 0.0f, p.add ? __ldcg(y) : 0.0f};
  }

  // A Start is what a stage begins with: its first codes and the range of its corrections. It is asked for as soon as
  // a warp has finished the stage before.
  struct Start {
    Words words;
    Fixes fixes;
  };
  using Row = MadeRow<kEights>;
  __device__ __forceinline__ void ask(const VectorStages& s, Start& start) const {
    const VectorWeight& w = p.weight[s.which];
    const int here = min(s.count, p.at_once);
    start = {};  // otherwise old values stay in registers up to here, where not all lanes load
    start.words.load(warp < here * spans, record(w, s.unit, warp), lane);
    start.fixes = fixes_of(w, s.unit, here);
  }
  // Asks for the stage's codebooks. The earlier codebooks must not be read any more.
  __device__ __forceinline__ void ask_books(const VectorStages& s) const {
    const VectorWeight& w = p.weight[s.which];
    const int count = w.first_unit(s.block + 1) < s.unit + s.count ? 2 : 1;
    if constexpr (Books::kFetched) {
      if (threadIdx.x == kVectorThreads - 1) Books::fetch(w, s.block, count, books, arrived);
    } else {
      for (int i = 0; i < count; ++i) Books::copy(w, s.block + i, books + i * book_bytes(kHigh));
      ptx::commit_copies();
    }
  }
  // Runs a stage. All threads must have finished with shared memory, except for the codebooks, which are on their
  // way. When begin() has returned, what others made may be read. ask_next() and ask_next_books() ask for the data of
  // the next stage.
  template <typename Begin, typename AskNext, typename AskNextBooks>
  __device__ __forceinline__ void run(const VectorStages& s, Start& start, const Begin& begin, const AskNext& ask_next,
                                      const AskNextBooks& ask_next_books) {
    const VectorWeight& w = p.weight[s.which];
    int unit = s.unit;
    const int end = unit + s.count, second = w.first_unit(s.block + 1);
    const Row made{w, p.input, 0};
    RowColumns columns;  // the thread's first columns
    if (s.first) made.load_fixed(static_cast<int>(threadIdx.x), columns);
    if constexpr (Books::kFetched)
      Books::wait(arrived, s.parity);
    else
      ptx::wait_for_copies<0>();
#pragma unroll 1
    for (int i = 0; i < (second < end ? 2 : 1); ++i) Books::complete(w, s.block + i, books + i * book_bytes(kHigh));
    begin();
    if (s.first) made.load_made(static_cast<int>(threadIdx.x), columns);
    copy(w, unit, min(s.count, p.at_once), start.fixes);
    if (s.first) make_inputs(made, columns, inputs, kept, sums, largest);
    for (; unit < end; unit += p.at_once) {
      const int here = min(p.at_once, end - unit), after = min(p.at_once, end - unit - here);
      Out out = out_of(w, s.which, unit, here, threadIdx.x);
      ptx::wait_for_copies<0>();
      __syncthreads();
      multiply_spans(w, unit, here, after, second, start.words);
      if (after == 0) ask_next();
      multiply_fixes(w, unit, here);
      __syncthreads();
      if (after == 0) ask_next_books();
#pragma unroll 1
      for (int i = threadIdx.x; i < here * kVectorUnit * kCount; i += kVectorThreads) {
        finish(w, out, i);
        out = out_of(w, s.which, unit, here, i + kVectorThreads);
      }
      if (after > 0) {
        __syncthreads();  // all threads have finished with sums and corrections
        copy(w, unit + here, after, fixes_of(w, unit + here, after));
      }
    }
  }
  __device__ static const uint8_t* record(const VectorWeight& w, int unit, int span) {
    constexpr int kRecord = 32 * 16 * (Words::kIndex + Words::kSign);
    return w.codes + static_cast<uint64_t>(unit * w.spans.by + span) * kRecord;
  }

  // Computes the sums of all spans of `here` units. `words` holds the warp's first words, and afterwards those for
  // the `after` units behind them.
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

  // Computes what the corrections of these units add to their rows.
  __device__ __forceinline__ void multiply_fixes(const VectorWeight& w, int unit, int here) const {
    if (!w.begin) return;
    const int count = min(begin[rows_of(w, unit, here)] - begin[0], p.fixes);
#pragma unroll 2
    for (int i = threadIdx.x; i < count; i += kVectorThreads)
#pragma unroll
      for (int m = 0; m < kCount; ++m) parts[i * kCount + m] = part_of(w, {levels[i], tags[i]}, m);
  }
  // Adds up the corrections of a row, in their order.
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
    if constexpr (kEights) {
      const auto* four = reinterpret_cast<const float4*>(x) + 2 * fix.place();
      return product_of(fix, four[0], four[1]);
    }
    return product_of(fix, load4(x, fix.place() * 8, in), load4(x, fix.place() * 8 + 4, in));
  }
};

}  // namespace fidelio::cuda
