// A Codebook holds the codebooks of a linear in vector codes while they are tuned. It is a matrix's own, or one for
// the whole model, which every matrix of a format reads and adds its gradient to (formats/format_spec.h,
// shared_name).
#pragma once
#include "train/host/rounding.h"
#include "train/parameter.h"
#include "train/tune/vector_latents.h"

namespace fidelio::train {

template <class D>
class Codebook {
 public:
  using Real = typename D::Real;
  using Array = std::shared_ptr<Real[]>;

  // Takes the codebooks of `start`, a weight of vector codes. If not `trained`, they stay as they are and have no
  // gradient.
  Codebook(D& device, std::string name, const LinearWeight& start, bool trained = true)
      : device_(device),
        trained_(trained),
        near_(vector_neighbours(start)),
        parameter_(device, std::move(name), Share::grid, entries_of(start)) {
    // A codebook that all matrices read moves more slowly. In 400 steps quill-26m loses 24% of its KL at a tenth of
    // the rate that suits a matrix's own codebook, and 22% at the full rate.
    if (start.spec.shared) parameter_.pace = 0.1;
    neighbours_ = device.allocate(static_cast<int64_t>(near_.index.size()));
    device.upload(near_.index, neighbours_.get());
    levels_ = device.allocate(parameter_.n);
    decode();
  }

  bool trained() const { return trained_; }
  Parameter<D>& parameter() { return parameter_; }
  Real* gradient() const { return trained_ ? parameter_.gradient.get() : nullptr; }
  const Real* levels() const { return levels_.get(); }  // (books, entries, 8), rounded as stored
  // These are (books, entries, neighbours), as they were at the start.
  const Real* neighbours() const { return neighbours_.get(); }
  const VectorNeighbours& near() const { return near_; }

  // Computes the levels after a step has moved the masters.
  void decode() {
    std::vector<float> levels = downloaded(parameter_.value);
    for (float& x : levels) x = nearest(within(x, -127, 127));
    device_.upload(levels, levels_.get());
  }
  std::vector<float> encode() const { return downloaded(levels_); }

 private:
  static std::vector<float> entries_of(const LinearWeight& w) {
    const auto bytes = std::get<SignedVectors>(w.main).codebook.as<const int8_t>();
    return {bytes.begin(), bytes.end()};
  }
  std::vector<float> downloaded(const Array& from) const {
    std::vector<float> values(static_cast<size_t>(parameter_.n));
    device_.download(from.get(), std::span<float>(values));
    return values;
  }

  D& device_;
  bool trained_;
  VectorNeighbours near_;
  Parameter<D> parameter_;
  Array levels_, neighbours_;
};

}  // namespace fidelio::train
