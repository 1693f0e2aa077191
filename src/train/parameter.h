// What AdamW moves: FP32 masters with their gradients and moments.
#pragma once
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "train/device.h"

namespace fidelio::train {

// Kinds of parameters, each with a learning rate of its own, in the unit that it is counted in.
enum class Share : uint8_t {
  codes,   // cells a step
  scales,  // shares of a scale as it was at the start
  zeros,   // whole steps of a zero point
  grid,    // signed bytes of a codebook
  dense,   // shares of the root mean square of a dense matrix, a norm or a bias
};
using Rates = std::array<double, 5>;  // by Share; of codes and scales, where codes have 4 bits

// How much faster codes and scales of so many bits move than those of 4: near the rates of 2 to 6 bits that were best of
// three on quill-26m (docs/results.md), .008, .006, .004, .003, .002 of a cell, and near those that scales had there,
// .002, .001, .0007, .0004, .0003 of themselves, beside which no others were tried.
inline double pace_of(Share share, int bits) {
  const double halvings = share == Share::codes ? 0.5 : share == Share::scales ? 0.75 : 0;
  return std::exp2(halvings * (4 - bits));
}

template <class D>
struct Parameter {
  using Array = std::shared_ptr<typename D::Real[]>;
  std::string name;  // "layers.3.q.codes", also in the file of a tuner's state
  Share share = Share::dense;
  int64_t n = 0;
  Array value, gradient, m, v;
  Array unit;           // (n) or null: of each value ...
  double unit_all = 1;  // ... times this
  double pace = 1;      // times the rate of its share

  Parameter(D& device, std::string named, Share kind, std::span<const float> start)
      : name(std::move(named)), share(kind), n(static_cast<int64_t>(start.size())) {
    value = device.allocate(n), gradient = device.allocate(n), m = device.allocate(n), v = device.allocate(n);
    device.upload(start, value.get());
  }
  // |start| or, where that is less, a hundredth of the largest.
  void count_in_shares(D& device, std::span<const float> start) {
    std::vector<float> units(start.size());
    float largest = 0;
    for (const float x : start) largest = std::max(largest, std::abs(x));
    for (size_t i = 0; i < units.size(); ++i) units[i] = std::max(std::abs(start[i]), 0.01f * largest);
    unit = device.allocate(n);
    device.upload(units, unit.get());
  }
  // The root mean square of all.
  void count_in_rms(std::span<const float> start) {
    double square = 0;
    for (const float x : start) square += double{x} * x;
    unit_all = std::sqrt(square / static_cast<double>(std::max<size_t>(1, start.size())));
    if (unit_all == 0) unit_all = 1e-3;  // a bias that starts at zero
  }

  // The gradient's squares, in units, to what the device adds up.
  void add_gradient_squares(D& device) const { device.add_squares(gradient.get(), unit.get(), n, unit_all * unit_all); }
  void step(D& device, AdamStep how, double clip) {
    how.rate *= unit_all * pace;
    how.clip = clip * unit_all;
    device.adam(gradient.get(), unit.get(), n, how, value.get(), m.get(), v.get());
  }
};

// A dense tensor of a checkpoint as a parameter: what is multiplied are the masters rounded to what the file stores.
template <class D>
class DenseParameter {
 public:
  using Real = typename D::Real;
  DenseParameter(D& device, std::string name, DType stored, Shape shape, std::span<const float> start)
      : parameter_(device, std::move(name), Share::dense, start), stored_(stored), shape_(shape) {
    parameter_.count_in_rms(start);
    rounded_ = device.allocate(parameter_.n);
    decode(device);
  }
  void decode(D& device) {
    const Kind kind = stored_ == DType::f32 ? Kind::f32 : stored_ == DType::f16 ? Kind::f16 : Kind::bf16;
    device.round(parameter_.value.get(), parameter_.n, kind, rounded_.get());
  }
  OwnedTensor encode(D& device) const {
    std::vector<float> values(static_cast<size_t>(parameter_.n));
    device.download(rounded_.get(), values);
    OwnedTensor t = OwnedTensor::allocate(stored_, shape_);
    convert_from_float(values, t.view);
    return t;
  }
  const Real* weight() const { return rounded_.get(); }
  Real* gradient() const { return parameter_.gradient.get(); }
  Parameter<D>& parameter() { return parameter_; }

 private:
  Parameter<D> parameter_;
  DType stored_;
  Shape shape_;
  std::shared_ptr<Real[]> rounded_;
};

}  // namespace fidelio::train
