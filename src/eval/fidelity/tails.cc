#include "eval/fidelity/tails.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace fidelio {
namespace {

// The histogram reaches from 2^-40 nats, which is far below the resolution of the arithmetic, to 2^10, which is far
// above the average loss that finite logits allow. Values beyond these ends fall into the first or the last bin.
constexpr int kLowestOctave = -40, kOctaves = 50;

size_t kl_bin_of(double kl) {
  if (!(kl > 0)) return 0;
  const double place = (std::log2(kl) - kLowestOctave) * kBinsAnOctave;
  return static_cast<size_t>(std::clamp(place, 0.0, double{kOctaves * kBinsAnOctave - 1}));
}

// The first bin also holds smaller values, including zero, and stands for zero.
double middle_of_kl_bin(size_t bin) {
  return bin == 0 ? 0 : std::exp2(kLowestOctave + (static_cast<double>(bin) + 0.5) / kBinsAnOctave);
}

double mean_or_nan(double sum, int64_t count) {
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

nlohmann::json number_or_null(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(nullptr); }

double number_or_nan(const nlohmann::json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

nlohmann::json bands_json(const std::vector<TailBand>& bands) {
  nlohmann::json all = nlohmann::json::array();
  for (const TailBand& b : bands)
    all.push_back(
        {{"from", b.from}, {"positions", b.positions}, {"kl", number_or_null(b.kl)}, {"ear", number_or_null(b.ear)}});
  return all;
}

std::vector<TailBand> read_bands(const nlohmann::json& json) {
  std::vector<TailBand> bands;
  for (const nlohmann::json& b : json)
    bands.push_back({b.at("from").get<double>(), b.at("positions").get<int64_t>(), number_or_nan(b.at("kl")),
                     number_or_nan(b.at("ear"))});
  return bands;
}

}  // namespace

TailCounter::TailCounter() : bins_(size_t{kOctaves} * kBinsAnOctave) {}

void TailCounter::add(double kl, double ear, double confidence, int64_t position) {
  ++positions_;
  kl_largest_ = std::max(kl_largest_, kl);
  ear_lowest_ = std::min(ear_lowest_, ear);
  ++bins_[kl_bin_of(kl)];
  const auto octave = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(position, 1)))) - 1;
  if (octave >= by_position_.size()) by_position_.resize(octave + 1);
  const auto band = static_cast<size_t>(std::clamp(confidence * kBands, 0.0, double{kBands - 1}));
  for (Sum* sum : {&by_confidence_[band], &by_position_[octave]}) {
    ++sum->positions;
    sum->kl += kl;
    sum->ear += ear;
  }
}

// Returns the smallest value that a share of all positions does not exceed.
double TailCounter::quantile(double share) const {
  const auto wanted = static_cast<int64_t>(std::ceil(share * static_cast<double>(positions_) - 1e-9));
  int64_t below = 0;
  for (size_t bin = 0; bin < bins_.size(); ++bin) {
    below += bins_[bin];
    if (below < wanted) continue;
    return below == positions_ && wanted == positions_ ? kl_largest_ : std::min(middle_of_kl_bin(bin), kl_largest_);
  }
  return kl_largest_;
}

Tails TailCounter::finish() const {
  Tails tails;
  tails.positions = positions_;
  if (positions_ == 0) return tails;
  tails.kl_p50 = quantile(0.5);
  tails.kl_p90 = quantile(0.9);
  tails.kl_p99 = quantile(0.99);
  tails.kl_p999 = quantile(0.999);
  tails.kl_largest = kl_largest_;
  tails.ear_lowest = ear_lowest_;
  const auto band = [](double from, const Sum& s) {
    return TailBand{from, s.positions, mean_or_nan(s.kl, s.positions), mean_or_nan(s.ear, s.positions)};
  };
  for (size_t i = 0; i < by_confidence_.size(); ++i)
    tails.by_confidence.push_back(band(static_cast<double>(i) / kBands, by_confidence_[i]));
  for (size_t i = 0; i < by_position_.size(); ++i)
    tails.by_position.push_back(band(static_cast<double>(uint64_t{1} << i), by_position_[i]));
  return tails;
}

nlohmann::json to_json(const Tails& t) {
  if (t.positions == 0) return nullptr;
  return {{"positions", t.positions},
          {"kl",
           {{"p50", t.kl_p50},
            {"p90", t.kl_p90},
            {"p99", t.kl_p99},
            {"p99.9", t.kl_p999},
            {"largest", t.kl_largest},
            {"quantile_error", kTailError}}},
          {"ear", {{"lowest", t.ear_lowest}}},
          {"by_confidence", bands_json(t.by_confidence)},
          {"by_position", bands_json(t.by_position)}};
}

Tails tails_from_json(const nlohmann::json& json) {
  Tails tails;
  if (json.is_null()) return tails;
  const nlohmann::json& kl = json.at("kl");
  tails.positions = json.at("positions").get<int64_t>();
  tails.kl_p50 = kl.at("p50").get<double>();
  tails.kl_p90 = kl.at("p90").get<double>();
  tails.kl_p99 = kl.at("p99").get<double>();
  tails.kl_p999 = kl.at("p99.9").get<double>();
  tails.kl_largest = kl.at("largest").get<double>();
  tails.ear_lowest = json.at("ear").at("lowest").get<double>();
  tails.by_confidence = read_bands(json.at("by_confidence"));
  tails.by_position = read_bands(json.at("by_position"));
  return tails;
}

}  // namespace fidelio
