#include "formats/half_scales.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/dtype.h"

namespace fidelio {
namespace {

constexpr float kLargestHalf = 65504;

double energy_of(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += double{x} * x;
  return sum;
}

void add_integers(const FormatSpec& spec, std::span<const float> row, HalfTally& tally) {
  const auto top = static_cast<float>((1 << spec.bits) - 1);
  const auto size = static_cast<size_t>(spec.group_size(std::ssize(row)));
  for (size_t begin = 0; begin < row.size(); begin += size) {
    const auto group = row.subspan(begin, std::min(size, row.size() - begin));
    float low = 0, high = 0;
    for (const float x : group) low = std::min(low, x), high = std::max(high, x);
    const float wanted = (spec.symmetric ? 2 * std::max(high, -low) : high - low) / top;
    tally.group(wanted, energy_of(group), is_half_scale(wanted));
  }
}

// The quantiser sets a row's scale to 16 times the root mean square of the row, over about 42, the number of steps of
// an entry that stand for one (quant/vectors/vectors.cc); it is at least 2^-20. The scale of a correction is about a
// hundredth of the numbers of the row.
void add_vectors(const FormatSpec& spec, std::span<const float> row, HalfTally& tally) {
  const double energy = energy_of(row), rms = std::sqrt(energy / static_cast<double>(row.size()));
  const double wanted = rms * 16 / 42;
  tally.group(static_cast<float>(wanted), energy, wanted >= (spec.sparse > 0 ? 0x1p-16 : 0x1p-20) && wanted <= 60000);
}

// Counts the rows of a weight stored as FP16 numbers. A row counts as lost where rounding costs a ten-thousandth of its
// energy. The rounding of normal numbers costs less than a millionth.
void add_halves(std::span<const float> row, HalfTally& tally) {
  double error = 0;
  float largest = 0;
  for (const float x : row) {
    const double rounding = double{to_float(to_f16(x))} - x;
    error += rounding * rounding;
    largest = std::max(largest, std::fabs(x));
  }
  const double energy = energy_of(row);
  const bool fits = std::isfinite(to_float(to_f16(largest)));
  tally.group(fits ? static_cast<float>(std::sqrt(energy / static_cast<double>(row.size()))) : largest, energy,
              error <= 1e-4 * energy);
}

}  // namespace

bool has_half_scales(const FormatSpec& spec) {
  return spec.kind == Kind::f16 || spec.kind == Kind::vq ||
         (spec.kind == Kind::integer && spec.scale == ScaleKind::f16);
}

FormatSpec with_wide_scales(const FormatSpec& spec) {
  if (!has_half_scales(spec)) return spec;
  if (spec.kind == Kind::f16) return {.kind = Kind::bf16, .bits = 16};
  if (spec.kind == Kind::vq) return {.kind = Kind::integer, .bits = 2, .group = 64, .scale = ScaleKind::u8};
  FormatSpec wide = spec;
  wide.scale = ScaleKind::u8;
  if (wide.group == 0) wide.group = 128;
  return wide;
}

void HalfLoss::add(const HalfLoss& other) {
  rows += other.rows, lost += other.lost;
  energy += other.energy, lost_energy += other.lost_energy;
  overflows = overflows || other.overflows;
  if (worst == 0 || (other.worst != 0 && std::fabs(std::log2(other.worst)) > std::fabs(std::log2(worst))))
    worst = other.worst;
}

bool is_half_scale(float wanted) { return wanted >= 0x1p-21f && wanted <= kLargestHalf; }

void HalfTally::group(float wanted, double energy, bool held) {
  row_energy_ += energy;
  if (energy == 0 || held) return;
  row_lost_ += energy;
  HalfLoss one;
  one.overflows = wanted > kLargestHalf;
  one.worst = wanted;
  loss_.add(one);
}

void HalfTally::end_row() {
  loss_.rows += row_energy_ > 0;
  loss_.lost += row_lost_ > row_energy_ / 100;
  loss_.energy += row_energy_;
  loss_.lost_energy += row_lost_;
  row_energy_ = row_lost_ = 0;
}

HalfLoss half_loss(const FormatSpec& spec, std::span<const float> row) {
  HalfTally tally;
  if (spec.kind == Kind::vq)
    add_vectors(spec, row, tally);
  else if (spec.kind == Kind::f16)
    add_halves(row, tally);
  else if (has_half_scales(spec))
    add_integers(spec, row, tally);
  tally.end_row();
  return tally.loss();
}

std::string about_half_loss(const std::string& linear, const FormatSpec& format, const HalfLoss& loss) {
  const std::string name = to_string(format), wide = to_string(with_wide_scales(format));
  if (format.kind == Kind::f16)
    return fmt::format("{}: {} of its {} rows have weights as {} as {:.2g}, which FP16 numbers do not hold; {} does",
                       linear, loss.lost, loss.rows, loss.overflows ? "large" : "small", loss.worst, wide);
  return fmt::format(
      "{}: {} of its {} rows want scales as {} as {:.2g}, and those of {} are FP16 numbers, which do not hold them; {} "
      "holds them",
      linear, loss.lost, loss.rows, loss.overflows ? "large" : "small", loss.worst, name, wide);
}

}  // namespace fidelio
