#include "quant/cuda/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace fidelio::cuda {
namespace {

// Returns the levels of quant/strip.cc and the ranges of quant/fit.cc as numbers that kernels take.
GptqRules rules_of(const GptqPlan& plan) {
  const FormatSpec& spec = plan.spec;
  GptqRules r;
  r.grid = spec.kind == Kind::grid;
  r.symmetric = spec.symmetric;
  r.search = plan.range_search;
  r.form = r.grid ? ScaleForm::signed_byte : spec.scale == ScaleKind::u8 ? ScaleForm::byte : ScaleForm::half;
  r.highest = static_cast<float>((1 << spec.bits) - 1);
  if (r.grid) {
    r.levels = static_cast<int>(plan.codebook.size());
    check(r.levels > 1 && r.levels <= 64, "a grid on the device has 2 to 64 levels, not {}", r.levels);
    for (int k = 0; k < r.levels; ++k) r.book[k] = static_cast<float>(plan.codebook[static_cast<size_t>(k)]);
    for (int k = 0; k + 1 < r.levels; ++k) r.middle[k] = (r.book[k] + r.book[k + 1]) / 2;
    r.lowest = r.book[0];
    r.highest = r.book[r.levels - 1];
  }
  const float least = std::min(0.8f, 0.2f + 0.1f * static_cast<float>(std::min(spec.bits, 6)));
  for (int step = 0; step < kShrinks; ++step)
    r.shrink[step] = 1.02f - (1.02f - least) * static_cast<float>(step) / (kShrinks - 1);
  return r;
}

}  // namespace

bool Gptq::takes(const FormatSpec& spec) {
  const bool kind = (spec.kind == Kind::integer && spec.below == 0) || (spec.kind == Kind::grid && spec.bits <= 6);
  return kind && spec.group >= 16 && kGptqBlock % spec.group == 0;
}

void Gptq::begin(const GptqPlan& plan, int64_t out, int64_t in) {
  check(takes(plan.spec), "{} is not quantised on the device", to_string(plan.spec));
  shape_ = {out, in, plan.spec.groups(in), plan.spec.group};
  rules_ = rules_of(plan);
  reserve(stream_, codes_, out * in);
  reserve(stream_, scale_, out * shape_.groups * 4);
  reserve(stream_, offset_, out * shape_.groups * 4);
  reserve(stream_, row_scale_, out * 4);
}

void Gptq::fit_scales(const float* weight, const float* values) {
  zero_device(stream_, row_scale_.data(), static_cast<size_t>(shape_.out) * 4);
  fit_groups(stream_, shape_, rules_, weight, values,
             {codes_.as<uint8_t>(), scale_.as<float>(), offset_.as<float>(), row_scale_.as<float>()});
}

const GptqCodes& Gptq::fit(const GptqPlan& plan, const float* weight, const float* values, int64_t out, int64_t in) {
  begin(plan, out, in);
  zero_device(stream_, codes_.data(), static_cast<size_t>(out * in));
  fit_scales(weight, values);
  collect();
  return found_;
}

const GptqCodes& Gptq::quantise(const GptqPlan& plan, SecondOrder& order, float* values, int64_t out) {
  const int64_t in = order.in();
  check(static_cast<int64_t>(order.factor().order.size()) == in, "a Hessian of {} columns is not factorised", in);
  begin(plan, out, in);
  for (DeviceBuffer* buffer : {&work_, &gradient_}) reserve(stream_, *buffer, out * in * 4);
  reserve(stream_, change_, out * kGptqBlock * 4);
  reserve(stream_, sums_, out * 8);
  clear_dead(stream_, shape_, order.diagonal(), values);

  const Window h{const_cast<float*>(order.matrix()), in}, gradient{gradient_.as<float>(), in};
  blas_.multiply(out, in, in, 1, {values, in}, false, h, 0, gradient);
  const double energy = dot(values, gradient.data);
  fit_scales(order.weight(), values);
  error_feedback(order, values);
  refresh(order, values);
  const double before = dot(work_.as<float>(), gradient.data);
  double after = before;
  if (plan.descent_passes > 0) {
    descend(order, values, plan.descent_passes);
    after = dot(work_.as<float>(), gradient.data);
  }
  collect();
  found_.energy = energy;
  found_.before = before;
  found_.after = after;
  return found_;
}

void Gptq::error_feedback(SecondOrder& order, const float* values) {
  const int64_t in = shape_.in;
  float* work = work_.as<float>();
  const GptqState state{codes_.as<uint8_t>(), scale_.as<float>(), offset_.as<float>(), row_scale_.as<float>()};
  order_columns(stream_, shape_, order.order(), values, work);
  for (int64_t begin = 0; begin < in; begin += kGptqBlock) {
    const int64_t end = std::min<int64_t>(in, begin + kGptqBlock);
    feed_back_block(stream_, shape_, rules_, begin, order.upper(), order.order(), work, state, change_.as<float>());
    blas_.multiply(shape_.out, in - end, end - begin, -1, {change_.as<float>(), kGptqBlock}, false,
                   {const_cast<float*>(order.upper()) + begin * in + end, in}, 1, {work + end, in});
  }
}

// Computes work = values - decoded and gradient = work H from scratch, because updates in FP32 drift.
void Gptq::refresh(SecondOrder& order, const float* values) {
  const int64_t in = shape_.in;
  subtract_decoded(stream_, shape_, rules_, values,
                   {codes_.as<uint8_t>(), scale_.as<float>(), offset_.as<float>(), row_scale_.as<float>()},
                   work_.as<float>());
  blas_.multiply(shape_.out, in, in, 1, {work_.as<float>(), in}, false, {const_cast<float*>(order.matrix()), in}, 0,
                 {gradient_.as<float>(), in});
}

void Gptq::descend(SecondOrder& order, const float* values, int passes) {
  const int64_t in = shape_.in;
  float *gradient = gradient_.as<float>(), *change = change_.as<float>();
  const float* h = order.matrix();
  const GptqState state{codes_.as<uint8_t>(), scale_.as<float>(), offset_.as<float>(), row_scale_.as<float>()};
  const auto pass = [&](auto block) {
    for (int64_t begin = 0; begin < in; begin += kGptqBlock) {
      block(stream_, shape_, rules_, begin, h, gradient, state, change);
      blas_.multiply(shape_.out, in, std::min<int64_t>(kGptqBlock, in - begin), -1, {change, kGptqBlock}, false,
                     {const_cast<float*>(h) + begin * in, in}, 1, {gradient, in});
    }
  };
  for (int i = 0; i < passes; ++i) {
    pass(descend_block);
    pass(rescale_block);
  }
  pass(descend_block);
  refresh(order, values);
}

double Gptq::dot(const float* a, const float* b) {
  row_dots(stream_, shape_, a, b, sums_.as<double>());
  std::vector<double> rows(static_cast<size_t>(shape_.out));
  from_device(stream_, rows.data(), sums_.data(), rows.size() * sizeof(double));
  return std::accumulate(rows.begin(), rows.end(), 0.0);
}

void Gptq::collect() {
  const auto copy = [&](auto& to, const DeviceBuffer& from, int64_t n) {
    to.resize(static_cast<size_t>(n));
    from_device(stream_, to.data(), from.data(), to.size() * sizeof(to[0]));
  };
  copy(found_.code, codes_, shape_.out * shape_.in);
  copy(found_.scale, scale_, shape_.out * shape_.groups);
  copy(found_.offset, offset_, shape_.out * shape_.groups);
  copy(found_.row_scale, row_scale_, shape_.out);
}

}  // namespace fidelio::cuda
