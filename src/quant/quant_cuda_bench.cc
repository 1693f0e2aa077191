// This program times the parts of quantising on a GPU, one by one, at the sizes of a llama-3-8b layer, and prints
// seconds and accuracy.
//   quant_cuda_bench
//   quant_cuda_bench vectors FORMAT...    the parts of vector codes, at the sizes of a llama-2-7b layer
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/device/values.h"
#include "kernels/cuda/linear/dense/exact.h"
#include "quant/cuda/gptq.h"
#include "quant/device/vectors_cuda.h"
#include "quant/device/workbench.h"

using namespace fidelio;

namespace {

constexpr int64_t kRows = 2048;

double seconds_of(cuda::Stream stream, int times, const std::function<void()>& work) {
  work();
  cuda::wait_for(stream);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) work();
  cuda::wait_for(stream);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times;
}

// Returns values that are drawn quickly from a table of normal numbers, with columns of a few sizes.
std::vector<float> values(int64_t rows, int64_t columns, float scale, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> table(4096), all(static_cast<size_t>(rows * columns));
  for (float& v : table) v = scale * static_cast<float>(rng.normal());
  for (size_t i = 0; i < all.size(); i += 4) {
    const auto words = rng.block(i);
    for (size_t j = 0; j < 4 && i + j < all.size(); ++j) all[i + j] = table[words[j] % table.size()];
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; c += 37) all[static_cast<size_t>(r * columns + c)] *= 8;
  return all;
}

cuda::DeviceBuffer uploaded(cuda::Stream stream, const std::vector<float>& host) {
  cuda::DeviceBuffer buffer(host.size() * 4);
  cuda::to_device(stream, buffer.data(), host.data(), buffer.size());
  cuda::wait_for(stream);
  return buffer;
}

// Collects the largest and the root-mean-square error of sampled sums, relative to the root of their terms' squares.
struct ErrorOf {
  double largest = 0, squares = 0;
  int n = 0;
  void add(double got, const std::vector<double>& terms) {
    double sum = 0, size = 0;
    for (double t : terms) sum += t, size += t * t;
    const double error = std::fabs(got - sum) / std::sqrt(size);
    largest = std::max(largest, error);
    squares += error * error;
    ++n;
  }
  double mean() const { return std::sqrt(squares / n); }
};

void products(cuda::Stream stream, int64_t out, int64_t in) {
  const std::vector<float> x = values(kRows, in, 1, 1), w = values(out, in, 0.01f, 2);
  OwnedTensor dense = OwnedTensor::allocate(DType::bf16, {out, in});
  convert_from_float(w, dense.view);
  std::vector<float> held(w.size());
  convert_to_float(dense.view, held);
  Cuda backend({});
  const Cuda::Linear half = backend.pack(make_dense(std::move(dense)));
  const cuda::DeviceBuffer inputs = uploaded(stream, x), single = uploaded(stream, held);
  const cuda::DeviceBuffer y(static_cast<size_t>(kRows * out) * 4);
  cuda::WeightValues plain;
  plain.single = single.as<float>();
  plain.out = out, plain.in = in;
  cuda::Gemm gemm;
  cuda::ExactProduct exact;
  cuda::Blas blas(stream);
  const auto report = [&](const char* name, const std::function<void()>& work) {
    const double seconds = seconds_of(stream, 5, work);
    std::vector<float> got(static_cast<size_t>(kRows * out));
    cuda::from_device(stream, got.data(), y.data(), got.size() * 4);
    ErrorOf error;
    std::vector<double> terms(static_cast<size_t>(in));
    for (int64_t i = 0; i < 300; ++i) {
      const int64_t m = i * 997 % kRows, o = i * 7919 % out;
      for (int64_t k = 0; k < in; ++k)
        terms[static_cast<size_t>(k)] =
            double{x[static_cast<size_t>(m * in + k)]} * held[static_cast<size_t>(o * in + k)];
      error.add(got[static_cast<size_t>(m * out + o)], terms);
    }
    std::printf("product %ld x %ld x %ld  %-34s %8.3f ms %7.1f TFLOP/s  error %.1e, at most %.1e\n", kRows, out, in,
                name, seconds * 1e3, 2e-12 * kRows * out * in / seconds, error.mean(), error.largest);
  };
  report("FP16 halves, weight in FP16",
         [&] { exact.run(stream, gemm, half.values, nullptr, inputs.as<float>(), kRows, y.as<float>(), false); });
  report("FP16 halves, weight in FP32",
         [&] { exact.run(stream, gemm, plain, nullptr, inputs.as<float>(), kRows, y.as<float>(), false); });
  report("FP32 multipliers, own kernel",
         [&] { cuda::linear_f32(stream, plain, nullptr, inputs.as<float>(), kRows, y.as<float>(), false); });
  const cuda::DeviceBuffer turned(static_cast<size_t>(in * out) * 4);
  std::vector<float> transposed(held.size());
  for (int64_t o = 0; o < out; ++o)
    for (int64_t k = 0; k < in; ++k)
      transposed[static_cast<size_t>(k * out + o)] = held[static_cast<size_t>(o * in + k)];
  cuda::to_device(stream, turned.data(), transposed.data(), turned.size());
  report("FP32 multipliers, cuBLAS", [&] {
    blas.multiply(kRows, out, in, 1, {inputs.as<float>(), in}, false, {turned.as<float>(), out}, 0,
                  {y.as<float>(), out});
  });
}

void hessian(cuda::Stream stream, int64_t in) {
  const std::vector<float> x = values(kRows, in, 1, 3);
  const cuda::DeviceBuffer rows = uploaded(stream, x);
  cuda::SecondOrder order(stream);
  order.begin(in);
  const auto add = [&] { order.add({rows.as<float>(), x.size()}); };
  const double adding = seconds_of(stream, 10, add);
  order.begin(in);
  add();
  std::vector<float> h(static_cast<size_t>(in * in));
  cuda::from_device(stream, h.data(), order.matrix(), h.size() * 4);
  ErrorOf error;
  std::vector<double> terms(static_cast<size_t>(kRows));
  for (int64_t i = 0; i < 300; ++i) {
    const int64_t r = i * 997 % in, c = i * 7919 % in;
    for (int64_t t = 0; t < kRows; ++t)
      terms[static_cast<size_t>(t)] = double{x[static_cast<size_t>(t * in + r)]} * x[static_cast<size_t>(t * in + c)];
    error.add(h[static_cast<size_t>(r * in + c)], terms);
  }
  const double factor = seconds_of(stream, 1, [&] { order.factorize(0.01, true); });
  std::printf(
      "hessian of %ld columns: %ld tokens in %.2f ms (%.1f TFLOP/s of the whole square), error %.1e, at most "
      "%.1e; factor %.1f ms\n",
      in, kRows, adding * 1e3, 2e-12 * kRows * in * in / adding, error.mean(), error.largest, factor * 1e3);
}

void gptq(cuda::Stream stream, int64_t out, int64_t in, ThreadPool& pool) {
  const auto bench = make_cuda_workbench(0, pool);
  bench->begin(in);
  for (uint64_t i = 0; i < 8; ++i) bench->add(values(kRows, in, 1, 10 + i));
  bench->factorize(0.01, true);
  OwnedTensor dense = OwnedTensor::allocate(DType::bf16, {out, in});
  convert_from_float(values(out, in, 0.01f, 4), dense.view);
  const LinearWeight weight = make_dense(std::move(dense));
  const double load = seconds_of(stream, 2, [&] { bench->load(weight); });
  for (const char* format : {"int4g128z", "int4g64zs8", "lut3g64"})
    for (int passes : {0, 4}) {
      GptqOptions options;
      options.descent_passes = passes;
      GptqReport report;
      const double seconds =
          seconds_of(stream, 1, [&] { report = bench->quantize(parse_format(format), options).report; });
      std::printf("gptq %5ld x %5ld %-10s %d descent passes: %7.1f ms (load %.1f), relative loss %.5f\n", out, in,
                  format, passes, seconds * 1e3, load * 1e3, report.relative_loss());
    }
}

// Times the steps of quant/device/vectors_cuda.cc, with the codebooks fitted once. The last column is the time of the
// whole.
void vectors(cuda::Stream stream, const FormatSpec& spec, int64_t out, int64_t in, ThreadPool& pool) {
  const auto bench = make_cuda_workbench(0, pool);
  cuda::SecondOrder order(stream), ordered(stream);
  order.begin(in);
  bench->begin(in);
  for (uint64_t i = 0; i < 8; ++i) {
    const std::vector<float> x = values(kRows, in, 1, 20 + i);
    order.add(x);
    bench->add(x);
  }
  bench->factorize(0.01, true);
  std::vector<int32_t> columns;
  for (int32_t c = 0; c < in; ++c) columns.push_back(c);
  ordered.take(order, columns);
  const std::vector<float> w = values(out, in, 0.01f, 5);
  const cuda::DeviceBuffer weight = uploaded(stream, w);
  const VectorShape shape = vector_shape(spec, out, in);
  cuda::Vectors device(stream);
  std::vector<float> row;
  cuda::Vectors::Samples samples;
  const auto timed = [&](const std::function<void()>& step) {
    const auto start = std::chrono::steady_clock::now();
    step();
    cuda::wait_for(stream);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e3;
  };
  const double factor = timed([&] { ordered.factorize(0.01, false); });
  const double beginning = timed([&] {
    device.begin(shape, ordered, columns, weight.as<float>());
    row = device.normalise();
  });
  const std::vector<uint8_t> none(static_cast<size_t>(out * shape.vectors));
  const double sampling = timed([&] {
    for (int64_t b = 0; b < shape.blocks; ++b) samples.push_back(sample_vectors(shape, b, row, none));
  });
  const double books = timed([&] { device.fit_books(samples); });
  const double costs = timed([&] { device.costs(samples); });
  const double choosing = timed([&] { device.choose(); });
  const double descent = timed([&] { device.descend(4, true, true); });
  const double collecting = timed([&] { device.collect(); });
  OwnedTensor dense = OwnedTensor::allocate(DType::bf16, {out, in});
  convert_from_float(w, dense.view);
  const LinearWeight original = make_dense(std::move(dense));
  bench->load(original);
  GptqReport report;
  const double all = timed([&] { report = bench->quantize(spec, {}).report; });
  std::printf(
      "%-15s %5ld x %5ld: factor %.0f, begin %.0f, samples %.0f, codebooks %.0f, costs %.0f, codes %.0f, descent %.0f, "
      "collect %.0f; all %.0f ms, relative loss %.5f (%.5f fed back)\n",
      to_string(spec).c_str(), out, in, factor, beginning, sampling, books, costs, choosing, descent, collecting, all,
      report.relative_loss(), report.loss_gptq / report.energy);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    cuda::open_device(0);
    const cuda::Stream stream = cuda::make_stream();
    ThreadPool pool;
    if (argc > 1) {
      for (int i = 2; i < argc; ++i) {
        vectors(stream, parse_format(argv[i]), 4096, 4096, pool);
        vectors(stream, parse_format(argv[i]), 11008, 4096, pool);
        vectors(stream, parse_format(argv[i]), 4096, 11008, pool);
      }
      return 0;
    }
    products(stream, 4096, 4096);
    products(stream, 14336, 4096);
    products(stream, 4096, 14336);
    hessian(stream, 4096);
    hessian(stream, 14336);
    gptq(stream, 4096, 4096, pool);
    gptq(stream, 14336, 4096, pool);
    gptq(stream, 4096, 14336, pool);
    cuda::destroy_stream(stream);
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "quant_cuda_bench: %s\n", e.what());
    return 1;
  }
}
