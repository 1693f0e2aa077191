#include "quant/codebook.h"

#include <algorithm>
#include <cmath>

#include "formats/grid_curve.h"
#include "quant/strip.h"

namespace fidelio {
namespace {

constexpr int64_t kBins = 4096;
constexpr float kReach = 1.5f;     // bins cover +-1.5 times the grid's end; values beyond count in the last bin
constexpr int64_t kMaxStrips = 4;  // 256 rows, spread evenly, describe one distribution well enough
constexpr int kRounds = 3;

struct Histogram {
  std::vector<double> mass = std::vector<double>(kBins, 0.0), sum = std::vector<double>(kBins, 0.0);
  void add(float y, double weight) {
    const auto bin = static_cast<int64_t>((y / kReach + 1) / 2 * kBins);
    const int64_t b = std::clamp<int64_t>(bin, 0, kBins - 1);
    mass[b] += weight;
    sum[b] += weight * y;
  }
};

// Counts values divided by (scale x end), so that the grid's end is +-1.
void collect(const Strip& s, std::span<const float> importance, float end, Histogram& h) {
  for (int64_t c = 0; c < s.in; ++c) {
    const float* scale = s.scales(c);
    for (int64_t r = 0; r < s.rows; ++r)
      if (const float unit = scale[r] * end; unit != 0)
        h.add(s.weight[c * kLanes + r] / unit, static_cast<double>(unit) * unit * importance[c]);
  }
}

std::vector<double> start(const Histogram& h, int count) {
  std::vector<double> cumulative(kBins);
  double total = 0;
  for (int64_t b = 0; b < kBins; ++b) cumulative[b] = total += std::cbrt(h.mass[b]);
  std::vector<double> centroid(count);
  int64_t b = 0;
  for (int k = 0; k < count; ++k) {
    while (b + 1 < kBins && cumulative[b] < total * (k + 0.5) / count) ++b;
    centroid[k] = ((static_cast<double>(b) + 0.5) / kBins * 2 - 1) * kReach;
  }
  return centroid;
}

struct Centroids {
  std::vector<double> at, mass;  // in ascending order
};

Centroids lloyd(const Histogram& h, int count) {
  std::vector<double> centroid = start(h, count), last_mass;
  for (int iteration = 0; iteration < 200; ++iteration) {
    std::vector<double> mass(count, 0.0), sum(count, 0.0);
    int k = 0;
    for (int64_t b = 0; b < kBins; ++b) {
      if (h.mass[b] == 0) continue;
      const double y = h.sum[b] / h.mass[b];
      while (k + 1 < count && y > (centroid[k] + centroid[k + 1]) / 2) ++k;
      mass[k] += h.mass[b];
      sum[k] += h.sum[b];
    }
    double moved = 0;
    for (int i = 0; i < count; ++i)
      if (mass[i] > 0) {
        moved = std::max(moved, std::fabs(sum[i] / mass[i] - centroid[i]));
        centroid[i] = sum[i] / mass[i];
      }
    last_mass = std::move(mass);
    if (moved < 1e-5) break;
  }
  return {std::move(centroid), std::move(last_mass)};
}

// Scales the centroids so that the largest magnitude becomes 127 (the factor goes into the scales). Equal neighbours
// are moved apart by one.
std::vector<int8_t> to_bytes(const std::vector<double>& centroid) {
  const int count = static_cast<int>(centroid.size());
  double peak = 0;
  for (const double c : centroid) peak = std::max(peak, std::fabs(c));
  std::vector<int> byte(count);
  for (int k = 0; k < count; ++k)
    byte[k] = static_cast<int>(std::nearbyint(peak == 0 ? 0.0 : 127 * centroid[k] / peak));
  for (int k = 0; k < count; ++k) byte[k] = std::max(byte[k], k == 0 ? -127 : byte[k - 1] + 1);
  for (int k = count; k-- > 0;) byte[k] = std::min(byte[k], k + 1 == count ? 127 : byte[k + 1] - 1);
  return {byte.begin(), byte.end()};
}

}  // namespace

std::vector<int8_t> fit_codebook(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                                 std::span<const float> importance, ThreadPool& pool) {
  const int count = 1 << spec.bits;
  const int64_t all = strips(out), used = std::min(all, kMaxStrips);
  std::vector<int8_t> book(count);
  for (int k = 0; k < count; ++k) book[k] = static_cast<int8_t>(std::lround(-127 + 254.0 * k / (count - 1)));
  for (int round = 0; round < kRounds; ++round) {
    const Levels levels(spec, book);
    const float end = std::max(levels.highest(), -levels.lowest());
    std::vector<Histogram> parts(static_cast<size_t>(used));
    pool.run(used, [&](int64_t job, int) {
      Strip strip(spec, w, out, in, job * all / used);
      fit_scales(spec, levels, importance, round > 0, strip);
      collect(strip, importance, end, parts[job]);
    });
    for (int64_t i = 1; i < used; ++i)  // adding in the order of strips gives the same sums for any number of threads
      for (int64_t b = 0; b < kBins; ++b) {
        parts[0].mass[b] += parts[i].mass[b];
        parts[0].sum[b] += parts[i].sum[b];
      }
    const Centroids best = lloyd(parts[0], count);
    const auto curve = is_curve_width(spec.bits) ? fit_curve(best.at, best.mass) : std::nullopt;
    book = curve ? *curve : to_bytes(best.at);
  }
  return book;
}

}  // namespace fidelio
