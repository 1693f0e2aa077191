#include "kernels/cuda/linear/dense/exact.h"

#include <algorithm>

#include "kernels/cuda/device/cuda_error.cuh"
#include "kernels/cuda/device/split.cuh"

namespace fidelio::cuda {
namespace {

// Rows and outputs handled at a time, so that scratch memory stays below a gigabyte.
constexpr int64_t kRows = 2048, kOutputs = 16384;

__global__ void __launch_bounds__(kSplitThreads)
    split_all(const float* values, int64_t columns, uint16_t* high, uint16_t* low, float* factor) {
  const int64_t row = blockIdx.x;
  const float* from = values + row * columns;
  split_row([&](int64_t c) { return from[c]; }, columns, high + row * columns, low + row * columns, factor + row);
}

__global__ void join_all(Join j, float* y) {
  const int64_t m = blockIdx.y, c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= j.count) return;
  const int64_t at = m * j.count + c;
  float sum = j.product[at] + j.product[j.n * j.count + at];
  if (j.rest) sum += j.rest[at];
  sum *= j.input_factor[m];
  if (j.output_factor) sum *= j.output_factor[c];
  if (j.bias) sum += j.bias[j.first + c];
  float& to = y[m * j.stride + j.first + c];
  to = j.add ? to + sum : sum;
}

}  // namespace

void split_rows(Stream stream, const float* values, int64_t rows, int64_t columns, uint16_t* high, uint16_t* low,
                float* factor) {
  split_all<<<static_cast<unsigned>(rows), kSplitThreads, 0, stream>>>(values, columns, high, low, factor);
  cuda_check(cudaGetLastError(), "splitting activations");
}

void join_products(Stream stream, const Join& join, float* y) {
  const dim3 grid(static_cast<unsigned>((join.count + 255) / 256), static_cast<unsigned>(join.n));
  join_all<<<grid, 256, 0, stream>>>(join, y);
  cuda_check(cudaGetLastError(), "adding products");
}

void ExactProduct::run(Stream stream, Gemm& gemm, const WeightValues& w, const float* bias, const float* x, int64_t n,
                       float* y, bool add) {
  if (!Gemm::takes(w.in)) return linear_f32(stream, w, bias, x, n, y, add);
  const int64_t most = std::min(n, kRows), outputs = std::min(w.out, kOutputs);
  reserve(stream, inputs_, 2 * most * w.in * 2);
  reserve(stream, input_factor_, most * 4);
  reserve(stream, product_, 2 * most * outputs * 4);
  if (!w.half) {
    reserve(stream, high_, outputs * w.in * 2);
    reserve(stream, low_, outputs * w.in * 2);
    reserve(stream, output_factor_, outputs * 4);
    reserve(stream, rest_, most * outputs * 4);
  }
  for (int64_t first_row = 0; first_row < n; first_row += kRows) {
    const int64_t rows = std::min(kRows, n - first_row);
    uint16_t* inputs = inputs_.as<uint16_t>();
    split_rows(stream, x + first_row * w.in, rows, w.in, inputs, inputs + rows * w.in, input_factor_.as<float>());
    for (int64_t first = 0; first < w.out; first += kOutputs) {
      const int64_t count = std::min(kOutputs, w.out - first);
      run_outputs(stream, gemm, w, first, count, rows);
      join_products(stream,
                    {product_.as<float>(), w.half ? nullptr : rest_.as<float>(), input_factor_.as<float>(),
                     w.half ? nullptr : output_factor_.as<float>(), bias, rows, count, first, w.out, add},
                    y + first_row * w.out);
    }
  }
}

// Multiplies both halves of the inputs, one below the other, by the weight's high halves in one product.
void ExactProduct::run_outputs(Stream stream, Gemm& gemm, const WeightValues& w, int64_t first, int64_t count,
                               int64_t n) {
  const uint16_t* inputs = inputs_.as<uint16_t>();
  if (w.half)
    return gemm.run(stream, w.half + first * w.in, inputs, w.factor, 2 * n, count, w.in, product_.as<float>());
  split_weight(stream, w, first, count, high_.as<uint16_t>(), low_.as<uint16_t>(), output_factor_.as<float>());
  gemm.run(stream, high_.as<uint16_t>(), inputs, 1, 2 * n, count, w.in, product_.as<float>());
  gemm.run(stream, low_.as<uint16_t>(), inputs, 1, n, count, w.in, rest_.as<float>());
}

}  // namespace fidelio::cuda
