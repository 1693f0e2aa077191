#include "quant/atom/atom.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "arch/stops.h"
#include "io/checkpoint.h"
#include "quant/algebra/products.h"

namespace fidelio {
namespace {

constexpr int64_t kRowsAJob = 64;            // rows of a job
constexpr float kLeast = -136, kMost = 119;  // the range of 16 a + b for a and b from -8 to 7

// Returns the columns of a Hessian by ascending energy, with the kept ones twice.
std::vector<int32_t> energy_order(const Hessian& h, int64_t kept) {
  const int64_t in = h.in();
  std::vector<int32_t> order(static_cast<size_t>(in));
  std::iota(order.begin(), order.end(), 0);
  const auto energy = [&](int32_t column) { return h.matrix()[static_cast<size_t>(column * (in + 1))]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return energy(a) < energy(b); });
  order.resize(static_cast<size_t>(in + kept));
  std::copy_n(order.begin() + (in - kept), kept, order.begin() + in);
  return order;
}

// Returns the given rows and columns of a symmetric matrix.
std::vector<float> part_of(const Hessian& h, std::span<const int32_t> rows, std::span<const int32_t> columns) {
  std::vector<float> part;
  part.reserve(rows.size() * columns.size());
  for (const int32_t row : rows)
    for (const int32_t column : columns) part.push_back(h.matrix()[static_cast<size_t>(row * h.in() + column)]);
  return part;
}

double mean_diagonal(const Hessian& h) {
  double sum = 0;
  for (int64_t i = 0; i < h.in(); ++i) sum += double{h.matrix()[static_cast<size_t>(i * (h.in() + 1))]};
  return sum / static_cast<double>(h.in());
}

// Rounds a row's kept weights to integers 16 a + b. Returns their scale as stored.
float round_kept(std::span<const float> values, std::span<uint8_t> high, std::span<uint8_t> low) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  const float scale = to_float(to_f16(largest / kMost));
  for (size_t c = 0; c < values.size(); ++c) {
    const float wanted = scale > 0 ? std::nearbyint(values[c] / scale) : 0.0f;
    const int q = static_cast<int>(std::clamp(wanted, kLeast, kMost)), a = (q + 136) / 16;
    high[c] = static_cast<uint8_t>(a);
    low[c] = static_cast<uint8_t>(q + 136 - 16 * a);
  }
  return scale;
}

}  // namespace

void check_can_keep(const ModelConfig& c, const FormatSpec& spec) {
  check(spec.kind == Kind::integer && spec.bits == 4 && spec.symmetric && spec.scale == ScaleKind::f16 &&
            spec.group >= 32,
        "--atom takes int4g128, int4g64 or int4g32, whose scales are FP16 and whose codes have no zero points, not {}",
        to_string(spec));
  check(!c.rotated, "--atom: the model is rotated, which leaves no columns of more energy than others");
  check(c.kept_columns == 0, "the model has columns kept in 8 bits already: give the one that it was made of");
  const auto only = [&](bool known, const char* what) {
    check(known, "--atom does not know {}'s {}; leave it out", name_of(c.architecture), what);
  };
  only(c.experts == 0, "mixture of experts");
  only(delta_layers(c).empty(), "gated delta nets");
  only(!c.blocks.attention_gate, "gate on attention's output");
  only(!c.blocks.layer_scalar, "layers, whose heads differ");
  for (const Stop& stop : stops_of(c, 0)) {
    const int64_t in = shape_of(c, {0, stop.roles.front()})[1];
    check(
        in % spec.group == 0 && in >= 2 * spec.group,
        "--atom with {}: the input of {} has {} columns, which are not whole groups of {}, two or more; try a smaller "
        "group (int4g64, int4g32)",
        to_string(spec), stop.name, in, spec.group);
  }
}

KeptInput::KeptInput(const Hessian& h, int64_t kept, double damping, ThreadPool& pool)
    : in_(h.in()), kept_(kept), order_(energy_order(h, kept)), others_(h.in() - kept), pool_(pool) {
  const int64_t n = in_ - kept_;
  const std::span other = std::span(order_).first(static_cast<size_t>(n)),
                  most = std::span(order_).last(static_cast<size_t>(kept_));
  const Hessian of_kept = Hessian::from_matrix(part_of(h, most, most), kept_, h.tokens());
  // The damping is scaled so that the kept columns get as much as all columns together would.
  const double mean = mean_diagonal(of_kept), share = mean > 0 ? mean_diagonal(h) / mean : 1;
  const HessianFactor factor = factorize(of_kept, damping * share, false, pool);
  const auto* upper = factor.upper.as<const float>();
  const std::vector<float> cross = part_of(h, other, most);
  std::vector<float> half(cross.size()), s = part_of(h, other, other);
  gain_.resize(cross.size());
  const int64_t jobs = (n + kRowsAJob - 1) / kRowsAJob;
  pool.run(jobs, [&](int64_t job, int) {  // here (H_kk + damping)^-1 = U^T U
    const int64_t at = job * kRowsAJob * kept_, rows = std::min(kRowsAJob, n - job * kRowsAJob);
    multiply<float>(rows, kept_, kept_, 1, {cross.data() + at, kept_}, {upper, kept_, true}, false, half.data() + at,
                    kept_);
    multiply<float>(rows, kept_, kept_, 1, {half.data() + at, kept_}, {upper, kept_}, false, gain_.data() + at, kept_);
  });
  pool.run(jobs, [&](int64_t job, int) {
    const int64_t first = job * kRowsAJob, rows = std::min(kRowsAJob, n - first);
    multiply<float>(rows, n, kept_, -1, {half.data() + first * kept_, kept_}, {half.data(), kept_, true}, true,
                    s.data() + first * n, n);
  });
  // Rounding can leave a diagonal entry below zero where the kept columns determine another column entirely.
  for (int64_t i = 0; i < n; ++i)
    s[static_cast<size_t>(i * (n + 1))] = std::max(0.0f, s[static_cast<size_t>(i * (n + 1))]);
  others_ = Hessian::from_matrix(s, n, h.tokens());
}

std::vector<float> KeptInput::others_of(std::span<const float> w, int64_t out) const {
  const int64_t n = in_ - kept_;
  std::vector<float> values(static_cast<size_t>(out * n));
  for (int64_t r = 0; r < out; ++r)
    for (int64_t c = 0; c < n; ++c)
      values[static_cast<size_t>(r * n + c)] = w[static_cast<size_t>(r * in_ + order_[static_cast<size_t>(c)])];
  return values;
}

LinearWeight KeptInput::with_kept(const LinearWeight& others, std::span<const float> w) const {
  const int64_t n = in_ - kept_, out = others.out, groups = others.spec.groups(n);
  const std::vector<float> wanted = others_of(w, out);
  LinearWeight weight = allocate_weight(others.spec, out, in_ + kept_);
  IntGroup& to = std::get<IntGroup>(weight.main);
  const IntGroup& from = std::get<IntGroup>(others.main);
  pool_.run((out + kRowsAJob - 1) / kRowsAJob, [&](int64_t job, int) {
    const int64_t first = job * kRowsAJob, rows = std::min(kRowsAJob, out - first);
    std::vector<float> lost(static_cast<size_t>(rows * n)), kept(static_cast<size_t>(rows * kept_));
    for (int64_t r = 0; r < rows; ++r) {
      const std::span row = std::span(lost).subspan(static_cast<size_t>(r * n), static_cast<size_t>(n));
      decode_row(others, first + r, row);
      for (int64_t c = 0; c < n; ++c) row[c] = wanted[static_cast<size_t>((first + r) * n + c)] - row[c];
      for (int64_t c = 0; c < kept_; ++c)
        kept[static_cast<size_t>(r * kept_ + c)] =
            w[static_cast<size_t>((first + r) * in_ + order_[static_cast<size_t>(n + c)])];
    }
    multiply<float>(rows, kept_, n, 1, {lost.data(), n}, {gain_.data(), kept_}, true, kept.data(), kept_);
    std::vector<uint8_t> codes(static_cast<size_t>(in_ + kept_));
    const std::span all(codes), high = all.subspan(static_cast<size_t>(n), static_cast<size_t>(kept_)),
                                low = all.last(static_cast<size_t>(kept_));
    for (int64_t r = 0; r < rows; ++r) {
      from.codes.get_row(first + r, all.first(static_cast<size_t>(n)));
      const float scale =
          round_kept(std::span(kept).subspan(static_cast<size_t>(r * kept_), static_cast<size_t>(kept_)), high, low);
      to.codes.set_row(first + r, codes);
      f16* scales = to.scale.as<f16>().data() + (first + r) * (groups + 2);
      std::copy_n(from.scale.as<const f16>().data() + (first + r) * groups, groups, scales);
      scales[groups] = to_f16(16 * scale);
      scales[groups + 1] = to_f16(scale);
    }
  });
  return weight;
}

LinearWeight in_own_order(const LinearWeight& weight, std::span<const int32_t> order, int64_t kept) {
  const int64_t in = weight.in - kept;
  OwnedTensor values = OwnedTensor::allocate(DType::f32, {weight.out, in});
  std::vector<float> row(static_cast<size_t>(weight.in));
  for (int64_t r = 0; r < weight.out; ++r) {
    decode_row(weight, r, row);
    float* to = values.as<float>().data() + r * in;
    std::fill_n(to, in, 0.0f);
    for (size_t c = 0; c < row.size(); ++c) to[order[c]] += row[c];
  }
  return make_dense(std::move(values), weight.bias);
}

}  // namespace fidelio
