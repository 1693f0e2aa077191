// This file multiplies by vector codes. A thread block has a multiprocessor and a series of units (sixteen rows that
// share a codebook) of one weight. It takes at a time the units of two codebooks, which is a stage:
//
//     shared memory:  [what comes next][codebook][codebook][inputs of up to 8 rows of x][the row][sums of spans]
//                     [corrections]
//                     There is one codebook if two are too much. The row is there if there are corrections and it fits,
//                     with as many of the corrections as fit
//     spans:          warp w has spans w, w + 16, ... of the stage's units, in the order in which they lie in memory
//     corrections:    then a thread has every 512th
//     outputs:        then a thread has one row of W and one of x
//
// Codes are asked for a span ahead. Between two products, memory would stand idle for as long as some units take, and
// a load from memory takes longer than a row's corrections (NOTES.md). So products of one row that follow each
// other are one launch, a chain. In it thread blocks meet at a barrier before they make the next row; meanwhile the
// data arrive that no product writes:
//
//     codes of the first span, ranges of corrections    when a warp has finished its spans
//     codebooks                                         when all warps have, by one thread
//     column scales, the norm's weight                  when the thread block has arrived at the barrier
//     corrections                                       while the row comes
//
// No thread block has parts of two weights. It would have to round the row twice, with all others waiting for it.
#include <algorithm>
#include <cassert>

#include "kernels/cuda/device/grid_barrier.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/vectors/vector_worker.cuh"

namespace fidelio::cuda {
namespace {

template <int kSigns, bool kHigh, int kCount, int kPlanes, bool kEights>
__global__ void __launch_bounds__(kVectorThreads) multiply(const __grid_constant__ VectorChain chain) {
  extern __shared__ uint4 shared[];
  using Of = VectorWorker<kSigns, kHigh, kCount, kPlanes, kEights>;
  const auto worker = [&](int product) { return Of(chain.product[product], reinterpret_cast<std::byte*>(shared)); };
  auto* const after = reinterpret_cast<VectorStages*>(shared);  // in memory, the next stage takes no registers
  ptx::allow_dependents();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (threadIdx.x == 0) ptx::start_barrier(ptx::shared_address(shared) + kBooksArrived, 1), ptx::publish_barriers();
  __syncthreads();
#endif
  GridBarrier barrier(chain.arrived);
  VectorStages stages;
  typename Of::Start start;
  stages.advance(chain);
  bool has_books = true;  // the codebooks are on their way
  if (stages.product < chain.count) {
    worker(stages.product).ask(stages, start);
    worker(stages.product).ask_books(stages);
  }
  for (int product = 0;;) {
    const auto wait = [&] {
      if (product == 0)
        ptx::dependency_wait();
      else
        barrier.wait();
    };
    if (stages.product < chain.count && !has_books) worker(stages.product).ask_books(stages);
    for (; product < stages.product; ++product) {  // this thread block has no part in these products
      wait();
      if (product + 1 < chain.count) barrier.arrive();
    }
    if (product == chain.count) return;
    const auto begin = [&] {
      if (threadIdx.x == kVectorThreads - 1) {
        *after = stages;
        after->advance(chain);
      }
      if (stages.first) wait();
    };
    const auto ask_next = [&] {
      if (after->product < chain.count) worker(after->product).ask(*after, start);
    };
    const auto ask_next_books = [&] {
      // If this product has one codebook and the next one two, something else lies in the second one's place.
      has_books = after->product < chain.count && chain.product[after->product].books <= chain.product[product].books;
      if (has_books) worker(after->product).ask_books(*after);
    };
    worker(product).run(stages, start, begin, ask_next, ask_next_books);
    stages = *after;
    if (stages.product == product)
      __syncthreads();  // all threads have finished with shared memory
    else if (++product < chain.count)
      barrier.arrive();
  }
}

// Each thread block has one span of a unit, whose record it reads as a whole.
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
    if (w.has_eights()) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (j < count) to[j] = values[j];
    }
  }
}

constexpr int kMostRows = 8;  // rows of x that share one decoding

int most_shared() {
  static const int bytes = [] {
    int device = 0, value = 0;
    cuda_check(cudaGetDevice(&device), "asking for the device");
    cuda_check(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "asking for memory");
    return value;
  }();
  return bytes;
}

bool has_corrections(const VectorArguments& p) {
  return std::any_of(p.weight, p.weight + p.count, [](const VectorWeight& w) { return w.begin != nullptr; });
}

// Returns the bytes of shared memory as VectorWorker lays it out, without the corrections.
int shared_bytes(bool high, int columns, int rows, int groups, int books, int at_once, bool keeps) {
  const int spans = groups * kVectorGroup / kVectorSpan;
  return kStageBytes + books * book_bytes(high) + vector_input_bytes(columns, rows, groups) +
         (keeps ? row_bytes(groups) : 0) + 2 * kVectorWarps * 4 + at_once * unit_bytes(rows, spans) + 4;
}
// Returns the least bytes, with one codebook and the sums of one unit.
int least_shared(bool high, int columns, int rows, int groups, bool keeps) {
  return shared_bytes(high, columns, rows, groups, 1, 1, keeps);
}

// Arranges shared memory for a product of so many rows of x in planes, and returns its bytes, or 0 if there is not
// enough. It takes two codebooks if the sums of all of a thread block's units (or of four), and most of their
// corrections, fit beside them; otherwise one.
int arrange(bool high, int rows, int planes, VectorArguments& p) {
  const auto groups = static_cast<int>(p.weight[0].groups);
  const auto bytes_of = [&](int at_once) {
    return shared_bytes(high, rows * planes, rows, groups, p.books, at_once, p.keeps);
  };
  int units = 0;
  for (int i = 0; i < p.count; ++i) units = std::max(units, p.units_each[i] + (p.one_more[i] > 0 ? 1 : 0));
  int64_t densest = 0;  // corrections of a unit
  for (const VectorWeight& w : p.weight)
    if (w.begin) densest = std::max(densest, w.corrections / w.units.by + 1);
  for (p.books = kBooks; p.books > 0; --p.books) {
    p.at_once = std::min(units, (most_shared() - bytes_of(0)) / (bytes_of(1) - bytes_of(0)));
    if (p.at_once < (p.books == 1 ? 1 : std::min(units, 4))) continue;
    const int bytes = bytes_of(p.at_once), room = (most_shared() - bytes) / fix_bytes(rows);
    const auto most = static_cast<int>(densest * p.at_once * 5 / 4);  // units differ
    if (p.books > 1 && room < most) continue;
    p.fixes = std::min(room, most);
    return bytes + p.fixes * fix_bytes(rows);
  }
  return 0;
}

// Divides the units among at most `blocks` thread blocks, none of which has two weights, so that the largest share is
// as small as possible.
void deal(int blocks, VectorArguments& p) {
  const auto units = [&](int i) { return static_cast<int>(p.weight[i].units.by); };
  int of[kMaxTogether], most = 0, sum = blocks + 1;
  while (sum > blocks) {
    ++most, sum = 0;
    for (int i = 0; i < p.count; ++i) sum += of[i] = (units(i) + most - 1) / most;
  }
  for (int i = 0; i < p.count; ++i) {
    p.first_block[i + 1] = p.first_block[i] + of[i];
    p.units_each[i] = units(i) / of[i], p.one_more[i] = units(i) % of[i];
  }
}

template <int kSigns, bool kHigh, int kCount, int kPlanes, bool kEights>
bool launch_chain(Stream stream, VectorChain chain) {
  const auto kernel = multiply<kSigns, kHigh, kCount, kPlanes, kEights>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared());
  cuda_check(allowed, "asking for shared memory");
  int bytes = 0, grid = 0;
  for (VectorArguments& p : std::span(chain.product, static_cast<size_t>(chain.count))) {
    deal(multiprocessors(), p);
    grid = std::max(grid, p.first_block[p.count]);
    p.keeps = kCount == 1 && has_corrections(p);
    int here = arrange(kHigh, kCount, kPlanes, p);
    if (here == 0 && p.keeps) p.keeps = false, here = arrange(kHigh, kCount, kPlanes, p);
    if (here == 0) return false;
    bytes = std::max(bytes, here);
  }
  launch("products of vector codes", stream, dim3(static_cast<unsigned>(grid)), kVectorThreads,
         static_cast<size_t>(bytes), kernel, chain);
  return true;
}

// Returns false if shared memory has no room for so many rows.
template <int kCount, int kPlanes, bool kEights>
bool launch_format(Stream stream, const VectorChain& chain) {
  const VectorWeight& w = chain.product[0].weight[0];
  if (w.signs == 1) return launch_chain<1, true, kCount, kPlanes, kEights>(stream, chain);
  if (w.signs == 4 && w.high) return launch_chain<4, true, kCount, kPlanes, kEights>(stream, chain);
  if (w.signs == 4) return launch_chain<4, false, kCount, kPlanes, kEights>(stream, chain);
  if (w.high) return launch_chain<8, true, kCount, kPlanes, kEights>(stream, chain);
  return launch_chain<8, false, kCount, kPlanes, kEights>(stream, chain);
}
// Launches products of one row of x.
template <int kPlanes>
bool launch_row(Stream stream, const VectorChain& chain) {
  return chain.product[0].weight[0].has_eights() ? launch_format<1, kPlanes, true>(stream, chain)
                                                 : launch_format<1, kPlanes, false>(stream, chain);
}

VectorArguments arguments_of(const VectorProduct& product) {
  VectorArguments p = {};
  p.count = product.count;
  p.add = product.add;
  p.input = product.input;
  for (int i = 0; i < p.count; ++i) {
    p.weight[i] = *product.outputs[i].weight;
    p.y[i] = product.outputs[i].y;
  }
  return p;
}

}  // namespace

int64_t most_vector_columns() {
  int groups = 0;
  while (least_shared(true, 3, 1, groups + 1, false) <= most_shared()) ++groups;
  return int64_t{groups} * kVectorGroup * 8;
}

bool makes_vector_input(const VectorProduct& product) {
  const VectorWeight& w = *product.outputs[0].weight;
  return product.input.rows == 1 && (!has_corrections(arguments_of(product)) ||
                                     least_shared(w.high, 2, 1, static_cast<int>(w.groups), true) <= most_shared());
}

void vector_linear(Stream stream, const VectorProduct& product, bool exact) {
  VectorChain chain = {{arguments_of(product)}, 1, nullptr};
  VectorArguments& p = chain.product[0];
  int64_t& rows = p.input.rows;
  for (int64_t m = 0; m < product.input.rows; m += rows) {
    p.input.x = product.input.x + m * p.weight[0].in;
    for (int i = 0; i < p.count; ++i) p.y[i] = product.outputs[i].y + m * p.weight[i].out;
    // Rows whose length is not a multiple of eight are too rare for kernels of several rows.
    const bool alone = exact || !p.weight[0].has_eights();
    const int64_t left = alone ? 1 : std::min<int64_t>(kMostRows, product.input.rows - m);
    if (rows = left; rows > 4 && launch_format<8, 2, true>(stream, chain)) continue;
    if (rows = std::min<int64_t>(4, left); rows > 1 && launch_format<4, 2, true>(stream, chain)) continue;
    rows = 1;
    [[maybe_unused]] const bool fits = exact ? launch_row<3>(stream, chain) : launch_row<2>(stream, chain);
    assert(fits && "most_vector_columns() is what the packer allows");
  }
}

void vector_chain(Stream stream, std::span<const VectorProduct> products, uint32_t* arrived) {
  assert(!products.empty() && products.size() <= kMostChained);
  VectorChain chain = {{}, static_cast<int>(products.size()), arrived};
  std::transform(products.begin(), products.end(), chain.product, arguments_of);
  [[maybe_unused]] const bool fits = launch_row<2>(stream, chain);
  assert(fits && "most_vector_columns() is what the packer allows");
}

bool may_chain_vectors() {
  static const bool may = [] {
    int device = 0, shared = 0;
    cuda_check(cudaGetDevice(&device), "asking for the device");
    cuda_check(cudaDeviceGetAttribute(&shared, cudaDevAttrMpsEnabled, device), "asking who shares the device");
    return shared == 0;
  }();
  return may;
}

void dequantise_vectors(Stream stream, const VectorWeight& w, float factor, uint16_t* halves) {
  const dim3 grid(w.spans.by, w.units.by);
  dequantise_spans<<<grid, 256, 0, stream>>>(w, 1 / factor, reinterpret_cast<__half*>(halves));
  cuda_check(cudaGetLastError(), "decoding vector codes");
}

}  // namespace fidelio::cuda
