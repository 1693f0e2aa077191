// A Parameter is what AdamW moves: FP32 masters with their gradients and moments.
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

// A Share is a kind of parameter. Each has a learning rate of its own, in the unit in which it is counted.
enum class Share : uint8_t {
  codes,   // in cells per step
  scales,  // in shares of a scale as it was at the start
  zeros,   // in whole steps of a zero point
  grid,    // in signed bytes of a codebook
  dense,   // in shares of the root mean square of a dense matrix, a norm or a bias
};
using Rates = std::array<double, 5>;  // one for each Share; for codes and scales, the rates of 4-bit codes

// Returns how much faster codes and scales of so many bits move than those of 4 bits. The codes' rates are close to
// the best of three that were tried on quill-26m for 2 to 6 bits (docs/results.md): .008, .006, .004, .003, .002 of a
// cell. The scales' rates are close to those used there, .002, .001, .0007, .0004, .0003 of themselves; no others
// were tried.
inline double pace_of(Share share, int bits) {
  const double halvings = share == Share::codes ? 0.5 : share == Share::scales ? 0.75 : 0;
  return std::exp2(halvings * (4 - bits));
}

template <class D>
struct Parameter {
  using Array = std::shared_ptr<typename D::Real[]>;
  std::string name;  // for example "layers.3.q.codes"; also used in the file of a tuner's state
  Share share = Share::dense;
  int64_t n = 0;
  Array value, gradient, m, v;
  Array unit;           // (n) or null: the unit of each value
  double unit_all = 1;  // multiplies all units
  double pace = 1;      // multiplies the rate of its share

  Parameter(D& device, std::string named, Share kind, std::span<const float> start)
      : name(std::move(named)), share(kind), n(static_cast<int64_t>(start.size())) {
    value = device.allocate(n), gradient = device.allocate(n), m = device.allocate(n), v = device.allocate(n);
    device.upload(start, value.get());
  }
  // Counts each value in units of |start|, or of a hundredth of the largest if that is more.
  void count_in_shares(D& device, std::span<const float> start) {
    std::vector<float> units(start.size());
    float largest = 0;
    for (const float x : start) largest = std::max(largest, std::abs(x));
    for (size_t i = 0; i < units.size(); ++i) units[i] = std::max(std::abs(start[i]), 0.01f * largest);
    unit = device.allocate(n);
    device.upload(units, unit.get());
  }
  // Counts all values in units of their root mean square, after `added` is added to each.
  void count_in_rms(std::span<const float> start, float added = 0) {
    double square = 0;
    for (const float x : start) square += (double{x} + added) * (double{x} + added);
    unit_all = std::sqrt(square / static_cast<double>(std::max<size_t>(1, start.size())));
    if (unit_all == 0) unit_all = 1e-3;  // for a bias that starts at zero
  }

  // Adds the squares of the gradient, in units, to the device's sum.
  void add_gradient_squares(D& device) const { device.add_squares(gradient.get(), unit.get(), n, unit_all * unit_all); }
  void step(D& device, AdamStep how, double clip) {
    how.rate *= unit_all * pace;
    how.clip = clip * unit_all;
    device.adam(gradient.get(), unit.get(), n, how, value.get(), m.get(), v.get());
  }
};

// A DenseParameter is a dense tensor of a checkpoint as a parameter. Operations use the masters rounded to what the
// file stores, and `added` to that, which is 1 for norms that are stored less one.
template <class D>
class DenseParameter {
 public:
  using Real = typename D::Real;
  DenseParameter(D& device, std::string name, DType stored, Shape shape, std::span<const float> start, float added = 0)
      : parameter_(device, std::move(name), Share::dense, start), stored_(stored), shape_(shape) {
    parameter_.count_in_rms(start, added);
    weight_ = device.allocate(parameter_.n);
    if (added != 0) {
      added_ = device.allocate(parameter_.n), rounded_ = device.allocate(parameter_.n);
      device.upload(std::vector<float>(start.size(), added), added_.get());
    }
    decode(device);
  }
  void decode(D& device) {
    const Kind kind = stored_ == DType::f32 ? Kind::f32 : stored_ == DType::f16 ? Kind::f16 : Kind::bf16;
    device.round(parameter_.value.get(), parameter_.n, kind, added_ ? rounded_.get() : weight_.get());
    if (!added_) return;
    device.copy(rounded_.get(), weight_.get(), parameter_.n);
    device.add(added_.get(), weight_.get(), parameter_.n);
  }
  OwnedTensor encode(D& device) const {
    std::vector<float> values(static_cast<size_t>(parameter_.n));
    device.download(added_ ? rounded_.get() : weight_.get(), values);
    OwnedTensor t = OwnedTensor::allocate(stored_, shape_);
    convert_from_float(values, t.view);
    return t;
  }
  const Real* weight() const { return weight_.get(); }
  Real* gradient() const { return parameter_.gradient.get(); }
  Parameter<D>& parameter() { return parameter_; }

 private:
  Parameter<D> parameter_;
  DType stored_;
  Shape shape_;
  std::shared_ptr<Real[]> weight_, rounded_, added_;  // The last two are null where nothing is added.
};

}  // namespace fidelio::train
