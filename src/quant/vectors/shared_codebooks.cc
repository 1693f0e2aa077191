#include "quant/vectors/shared_codebooks.h"

#include <algorithm>

#include "quant/vectors/vector_work.h"

namespace fidelio {
namespace {

constexpr int64_t kVectorsPerEntry = 32;  // vectors for each entry that k-means sees
constexpr size_t kMatrices = 128;         // the most matrices that they are drawn from

// Returns the source's linears, evenly thinned out.
std::vector<LinearId> drawn_from(const Checkpoint& source) {
  const std::vector<LinearId> all = linears_of(source.config());
  std::vector<LinearId> some;
  const size_t count = std::min(all.size(), kMatrices);
  for (size_t i = 0; i < count; ++i) some.push_back(all[i * all.size() / count]);
  return some;
}

OwnedTensor made_of(const Checkpoint& source, const FormatSpec& spec, ThreadPool& pool) {
  const int64_t entries = int64_t{1} << (spec.bits - spec.signs);
  const std::vector<LinearId> linears = drawn_from(source);
  double parameters = 0;
  for (LinearId id : linears) parameters += static_cast<double>(shape_of(source.config(), id).elements());
  VectorSamples samples;
  for (LinearId id : linears) {
    const LinearWeight weight = source.linear(id);
    const double share = static_cast<double>(weight.out) * static_cast<double>(weight.in) / parameters;
    const auto count = static_cast<int64_t>(std::ceil(share * static_cast<double>(kVectorsPerEntry * entries)));
    add_normalised(spec, decode(weight), weight.out, weight.in, count, samples);
    source.drop(id);
  }
  if (samples.size() == 0) samples.x.assign(kVectorDim, 0.0f), samples.weight = {1.0f}, samples.place = {0};
  const std::vector<float> plain(kVectorDim, 1.0f);
  samples.metrics = plain;
  float scale = 1;
  const VectorBook book = fit_vector_book(samples, entries, spec.signs, pool, &scale);
  OwnedTensor codebook = OwnedTensor::allocate(DType::i8, {entries, kVectorDim});
  for (int64_t i = 0; i < entries * kVectorDim; ++i)
    codebook.as<int8_t>()[i] = static_cast<int8_t>(book.at(i / kVectorDim, i % kVectorDim));
  return codebook;
}

}  // namespace

SharedCodebooks shared_codebooks(const Checkpoint& source, const std::vector<FormatSpec>& formats, ThreadPool& pool) {
  SharedCodebooks codebooks;
  for (const FormatSpec& spec : formats) {
    const std::string name = shared_name(spec);
    if (name.empty() || codebooks.contains(name)) continue;
    for (LinearId id : linears_of(source.config()))
      if (!codebooks.contains(name) && shared_name(source.format(id)) == name)
        codebooks.emplace(name, *shared_codebook(source.linear(id)));
    if (!codebooks.contains(name)) codebooks.emplace(name, made_of(source, spec, pool));
  }
  return codebooks;
}

}  // namespace fidelio
