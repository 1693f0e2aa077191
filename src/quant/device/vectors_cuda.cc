#include "quant/device/vectors_cuda.h"

#include <algorithm>
#include <chrono>

namespace fidelio {
namespace {

// Calls f(block) for each codebook of a shape, in all threads.
template <typename F>
cuda::Vectors::Samples of_blocks(const VectorShape& shape, ThreadPool& pool, const F& f) {
  cuda::Vectors::Samples samples(static_cast<size_t>(shape.blocks));
  pool.run(shape.blocks, [&](int64_t block, int) { samples[static_cast<size_t>(block)] = f(block); });
  return samples;
}

// Copies what the device has chosen into the host's data.
void take(cuda::VectorCodes codes, VectorWork& k, ThreadPool& pool) {
  k.row = std::move(codes.row);
  k.column = std::move(codes.column);
  const int64_t values = k.shape.entries * kVectorDim;
  for (int64_t b = 0; b < k.shape.blocks; ++b) {
    k.books.emplace_back(k.shape.entries, k.shape.signs);
    for (int64_t i = 0; i < values; ++i) k.books[b].at(i / kVectorDim, i % kVectorDim) = codes.book[b * values + i];
  }
  k.code.resize(codes.code.size());
  k.correction.resize(codes.correction_scale.size());
  pool.run_ranges(static_cast<int64_t>(k.code.size()), [&](int64_t first, int64_t last, int) {
    for (int64_t at = first; at < last; ++at) {
      k.code[at] = {.index = static_cast<int>(codes.code[at] & 0xffff),
                    .signs = static_cast<uint8_t>(codes.code[at] >> 16)};
      if (!k.corrected[at]) continue;
      k.correction[at].scale = std::bit_cast<f16>(codes.correction_scale[at]);
      std::copy_n(&codes.correction[at * kVectorDim], kVectorDim, k.correction[at].value);
    }
  });
}

}  // namespace

void CudaVectors::factorize(cuda::SecondOrder& order, double damping) {
  if (factorised_ && damping_ == damping) return;
  std::vector<float> diagonal(static_cast<size_t>(order.in()));
  cuda::from_device(stream_, diagonal.data(), order.diagonal(), diagonal.size() * sizeof(float));
  vector_ = vector_order(diagonal);
  std::vector<int32_t> columns;
  for (const int64_t v : vector_)
    for (int64_t c = v * kVectorDim; c < (v + 1) * kVectorDim; ++c)
      columns.push_back(c < order.in() ? static_cast<int32_t>(c) : -1);
  ordered_.take(order, columns);
  ordered_.factorize(damping, false);
  columns_ = std::move(columns);
  factorised_ = true;
  damping_ = damping;
}

void CudaVectors::fit_books(const VectorWork& k, ThreadPool& pool) {
  if (!k.shared) {
    vectors_.fit_books(
        of_blocks(k.shape, pool, [&](int64_t b) { return sample_vectors(k.shape, b, k.row, k.corrected); }));
    return;
  }
  const std::vector<int32_t> some = thinned(sample_vectors(k.shape, 0, k.row, k.corrected));
  const std::vector<float> metrics = vectors_.metrics();
  VectorSamples samples;
  samples.x = vectors_.values_of(some);
  samples.metrics = metrics;
  for (const int32_t which : some) {
    const float scale = which < 0 ? 1.0f : k.row[which / k.shape.vectors];
    samples.weight.push_back(scale * scale);
    samples.place.push_back(static_cast<int32_t>(std::max(0, which) % k.shape.vectors));
  }
  vectors_.use_book(k.shared->as<const int8_t>(), fit_shared_scale(samples, shared_book(k.shape, *k.shared)));
}

void CudaVectors::choose_corrections(VectorWork& k, ThreadPool& pool) {
  const VectorShape& s = k.shape;
  const cuda::Vectors::Samples all = of_blocks(s, pool, [&](int64_t block) {
    std::vector<int32_t> vectors;
    for (int64_t place = 0; place < s.vectors; ++place)
      for (int64_t r = s.first_row(block); r < s.first_row(block + 1); ++r)
        vectors.push_back(static_cast<int32_t>(r * s.vectors + place));
    return vectors;
  });
  mark_corrections(vectors_.costs(all), s.sparse, k.corrected);
  vectors_.correct(k.corrected);
}

GptqResult CudaVectors::quantize(const FormatSpec& spec, const GptqOptions& options, cuda::SecondOrder& order,
                                 const float* values, int64_t out, ThreadPool& pool) {
  const auto start = std::chrono::steady_clock::now();
  factorize(order, options.damping);
  VectorWork k;
  k.shape = vector_shape(spec, out, order.in());
  k.padded = ordered_.in();
  k.vector = vector_;
  k.corrected.assign(static_cast<size_t>(out * k.shape.vectors), 0);
  if (const auto name = shared_name(spec); options.codebooks && !name.empty() && options.codebooks->contains(name))
    k.shared = &options.codebooks->at(name);
  vectors_.begin(k.shape, ordered_, columns_, values);
  k.row = vectors_.normalise();
  fit_books(k, pool);
  if (k.shape.sparse > 0) {
    choose_corrections(k, pool);
    fit_books(k, pool);  // without the vectors that are corrected
  }
  vectors_.choose();
  const cuda::VectorDescentLosses losses =
      vectors_.descend(options.descent_passes, options.descend_codes, options.refit_scales);
  take(vectors_.collect(), k, pool);
  const cuda::SecondOrder::Factor& factor = ordered_.factor();
  GptqResult result{.weight = to_weight(spec, k),
                    .report = {.damping = factor.damping, .dead_columns = factor.dead - (k.padded - order.in())}};
  result.report.energy = losses.energy;
  result.report.loss_gptq = losses.before;
  result.report.loss = losses.after;
  result.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace fidelio
