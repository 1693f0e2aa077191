#include "quant/quantize.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "quant/algebra/products.h"
#include "quant/codebook.h"
#include "quant/descent/curvature.h"
#include "quant/descent/descent.h"
#include "quant/strip.h"
#include "quant/vectors/vectors.h"

namespace fidelio {
namespace {

constexpr int64_t kBlock = 128;  // columns between two updates of the later columns (GPTQ's lazy batches)

void check_matrix(std::span<const float> w, int64_t out, int64_t in) {
  check(out > 0 && in > 0 && static_cast<int64_t>(w.size()) == out * in,
        "a matrix of shape ({}, {}) has {} entries, not {}", out, in, out * in, w.size());
  for (int64_t i = 0; i < out * in; ++i)
    check(std::isfinite(w[i]), "the weight at row {}, column {} is {}; only finite weights can be quantised", i / in,
          i % in, w[i]);
}

LinearWeight to_dense(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in) {
  LinearWeight dense = allocate_weight(spec, out, in);
  convert_from_float(w, std::get<Dense>(dense.main).w.view);
  return dense;
}

Levels make_levels(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                   std::span<const float> importance, LinearWeight& weight, ThreadPool& pool) {
  if (spec.kind != Kind::grid) return Levels(spec);
  const std::vector<int8_t> book = fit_codebook(spec, w, out, in, importance, pool);
  std::copy(book.begin(), book.end(), std::get<VectorCode>(weight.main).codebook.as<int8_t>().begin());
  return Levels(spec, book);
}

void round_to_nearest(const Levels& levels, Strip& s) {
  Lanes value;
  for (int64_t c = 0; c < s.in; ++c)
    levels.quantise(&s.weight[c * kLanes], s.scales(c), s.offsets(c), &s.level[c * kLanes], value.data());
}

// Runs one block of the error feedback. It rounds the columns of steps [begin, end) and takes each one's error out of
// the later columns of the block. `error` keeps the errors for the columns after the block. `w` (in, lanes) is in the
// order of steps.
void feed_back_block(const Levels& levels, const HessianFactor& f, int64_t begin, int64_t end, Strip& s, float* w,
                     float* error) {
  const float* upper = f.upper.as<const float>();
  Lanes value;
  for (int64_t j = begin; j < end; ++j) {
    const int64_t column = f.order[j];
    const float* u = upper + j * f.in;
    float* e = error + (j - begin) * kLanes;
    levels.quantise(w + j * kLanes, s.scales(column), s.offsets(column), &s.level[column * kLanes], value.data());
    for (int64_t r = 0; r < kLanes; ++r) e[r] = (w[j * kLanes + r] - value[r]) / u[j];
    for (int64_t k = j + 1; k < end; ++k)
      for (int64_t r = 0; r < kLanes; ++r) w[k * kLanes + r] -= u[k] * e[r];
  }
}

void error_feedback(const Levels& levels, const HessianFactor& f, Strip& s) {
  std::vector<float> w(s.weight.size()), error(static_cast<size_t>(kBlock * kLanes));
  for (int64_t j = 0; j < s.in; ++j) std::copy_n(&s.weight[f.order[j] * kLanes], kLanes, &w[j * kLanes]);
  for (int64_t begin = 0; begin < s.in; begin += kBlock) {
    const int64_t end = std::min(s.in, begin + kBlock);
    feed_back_block(levels, f, begin, end, s, w.data(), error.data());
    if (end < s.in)
      multiply<float>(s.in - end, kLanes, end - begin, -1, {f.upper.as<const float>() + begin * f.in + end, f.in, true},
                      {error.data(), kLanes}, true, &w[end * kLanes], kLanes);
  }
}

double energy_of(const Hessian& h, const Strip& s) {
  std::vector<float> product(s.weight.size());
  multiply<float>(s.in, kLanes, s.in, 1, {h.matrix().data(), s.in}, {s.weight.data(), kLanes}, false, product.data(),
                  kLanes);
  double total = 0;
  for (size_t i = 0; i < product.size(); ++i)
    total += static_cast<double>(s.weight[i]) * static_cast<double>(product[i]);
  return total;
}

}  // namespace

LinearWeight quantize_rtn(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                          const RtnOptions& options, ThreadPool& pool) {
  check_matrix(w, out, in);
  check(options.importance.empty() || static_cast<int64_t>(options.importance.size()) == in,
        "importance has {} entries for a matrix of {} columns", options.importance.size(), in);
  if (spec.is_dense()) return to_dense(spec, w, out, in);
  const std::vector<float> plain(options.importance.empty() ? static_cast<size_t>(in) : 0, 1.0f);
  const std::span<const float> importance = options.importance.empty() ? std::span(plain) : options.importance;
  if (spec.kind == Kind::vq) return quantize_vectors(spec, w, out, in, importance, options.codebooks, pool);
  LinearWeight weight = allocate_weight(spec, out, in);
  const Levels levels = make_levels(spec, w, out, in, importance, weight, pool);
  pool.run(strips(out), [&](int64_t job, int) {
    Strip strip(spec, w, out, in, job);
    fit_scales(spec, levels, importance, options.range_search, strip);
    round_to_nearest(levels, strip);
    emit(strip, levels, weight);
  });
  return weight;
}

GptqResult quantize_gptq(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                         const Hessian& hessian, const HessianFactor& factor, const GptqOptions& options,
                         ThreadPool& pool) {
  check_matrix(w, out, in);
  check(hessian.in() == in && factor.in == in, "a matrix of {} columns needs a Hessian and factor of {}, not {} and {}",
        in, in, hessian.in(), factor.in);
  const auto start = std::chrono::steady_clock::now();
  std::vector<float> live(w.begin(), w.end());
  for (int64_t c = 0; c < in; ++c)
    if (hessian.matrix()[c * in + c] == 0)
      for (int64_t r = 0; r < out; ++r) live[r * in + c] = 0;

  if (spec.kind == Kind::vq) return quantize_vectors(spec, live, out, in, hessian, options, pool);
  GptqResult result{.weight = allocate_weight(spec, out, in),
                    .report = {.damping = factor.damping, .dead_columns = factor.dead}};
  GptqReport& report = result.report;
  if (spec.is_dense()) {
    result.weight = to_dense(spec, w, out, in);
    report.loss_gptq = report.loss = proxy_loss(w, decode(result.weight), out, in, hessian);
    return result;
  }
  const Levels levels = make_levels(spec, live, out, in, factor.weight, result.weight, pool);
  const bool has_view = spec.kind == Kind::integer && is_view_width(spec.bits, options.view_bits);
  const ViewLoss view{options.view_bits, has_view ? options.view_weight : 0};
  const DescentOptions descent{options.descent_passes, options.descend_codes, options.refit_scales};
  std::vector<DescentLoss> losses(static_cast<size_t>(strips(out)));
  std::vector<double> energies(losses.size());
  std::vector<Strip> kept(options.output_moment.empty() ? 0 : losses.size(), Strip(spec, out, in, 0));
  pool.run(strips(out), [&](int64_t job, int) {
    Strip strip(spec, live, out, in, job);
    energies[job] = energy_of(hessian, strip);
    fit_scales(spec, levels, factor.weight, options.range_search, strip);
    error_feedback(levels, factor, strip);
    losses[job] = descend(spec, levels, hessian, descent, view, strip);
    if (kept.empty())
      emit(strip, levels, result.weight);
    else
      kept[job] = std::move(strip);
    if (options.on_work) options.on_work(quantising_work(std::min(int64_t{kLanes}, out - job * kLanes), in));
  });
  for (size_t i = 0; i < losses.size(); ++i) {
    report.energy += energies[i];
    report.loss_gptq += losses[i].before;
    report.loss += losses[i].after;
  }
  if (!kept.empty()) {
    report.loss =
        descend_curvature(spec, levels, hessian, options.output_moment, out, kCurvaturePasses, kept, pool).outputs;
    pool.run(strips(out), [&](int64_t job, int) { emit(kept[static_cast<size_t>(job)], levels, result.weight); });
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

GptqResult quantize_gptq(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                         const Hessian& hessian, const GptqOptions& options, ThreadPool& pool) {
  return quantize_gptq(spec, w, out, in, hessian, factorize(hessian, options.damping, options.act_order, pool), options,
                       pool);
}

double proxy_loss(std::span<const float> w, std::span<const float> q, int64_t out, int64_t in, const Hessian& hessian) {
  const auto h = hessian.matrix();
  double total = 0;
  std::vector<double> e(static_cast<size_t>(in));
  for (int64_t row = 0; row < out; ++row) {
    for (int64_t c = 0; c < in; ++c) e[c] = static_cast<double>(w[row * in + c]) - static_cast<double>(q[row * in + c]);
    for (int64_t i = 0; i < in; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < in; ++j) sum += static_cast<double>(h[i * in + j]) * e[j];
      total += e[i] * sum;
    }
  }
  return total;
}

}  // namespace fidelio
