#include "quant/strip.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "formats/small_float.h"
#include "quant/wide.h"

namespace fidelio {
namespace {

// Adding and subtracting 1.5 2^23 rounds to the nearest integer, with ties to even, for |x| < 2^22. These are plain
// additions, which vectorise everywhere, whereas nearbyint is a library call without SSE4.1.
constexpr float kRound = 12582912.0f;

// Rounds to the nearest value of a small float with `mantissa` bits, smallest normal exponent `low` and largest value
// `high`. It uses the same trick with a constant scaled to the value's own exponent.
[[gnu::always_inline]] inline void round_float(float* y, int mantissa, float low, float high) {
  const float unit = 1.5f * static_cast<float>(1 << (23 - mantissa));
  for (int64_t r = 0; r < kLanes; ++r) {
    const uint32_t bits = std::bit_cast<uint32_t>(y[r]);
    float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
    magnitude = magnitude > high ? high : magnitude;
    const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) & 0x7f800000u);
    const float shift = (power < low ? low : power) * unit;
    float rounded = (magnitude + shift) - shift;
    rounded = rounded > high ? high : rounded;
    y[r] = std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) | (bits & 0x80000000u));
  }
}

}  // namespace

Levels::Levels(const FormatSpec& spec) : spec_(spec) {
  const bool e2m1 = spec.kind == Kind::fp4 || spec.kind == Kind::mxfp4;
  check(spec.kind == Kind::integer || e2m1 || spec.kind == Kind::fp8, "{} has no fixed levels", to_string(spec));
  highest_ = spec.kind == Kind::integer ? static_cast<float>((1 << spec.bits) - 1) : e2m1 ? kE2m1[7] : kE4m3Max;
  lowest_ = spec.kind == Kind::integer ? 0.0f : -highest_;
}

Levels::Levels(const FormatSpec& spec, std::span<const int8_t> codebook) : spec_(spec) {
  for (const int8_t c : codebook) book_.push_back(static_cast<float>(c));
  for (size_t k = 0; k + 1 < book_.size(); ++k) {
    middle_.push_back((book_[k] + book_[k + 1]) / 2);
    step_.push_back(book_[k + 1] - book_[k]);
  }
  lowest_ = book_.front();
  highest_ = book_.back();
}

[[gnu::always_inline]] inline void Levels::round(float* y) const {
  switch (spec_.kind) {
    case Kind::fp4:
    case Kind::mxfp4:
      return round_float(y, 1, 1.0f, highest_);
    case Kind::fp8:
      return round_float(y, 3, 0x1p-6f, highest_);
    case Kind::integer:
      for (int64_t r = 0; r < kLanes; ++r) {
        float x = y[r];
        x = x < 0.0f ? 0.0f : x;
        x = x > highest_ ? highest_ : x;
        y[r] = (x + kRound) - kRound;
      }
      return;
    default:
      break;
  }
  Lanes level;  // the sum of the steps below y, which is exact because they are integers
  level.fill(lowest_);
  for (size_t k = 0; k < middle_.size(); ++k) {
    const float middle = middle_[k], step = step_[k];
    for (int64_t r = 0; r < kLanes; ++r) level[r] += y[r] > middle ? step : 0.0f;
  }
  std::copy(level.begin(), level.end(), y);
}

FIDELIO_WIDE void Levels::quantise(const float* target, const float* scale, const float* offset, float* level,
                                   float* value) const {
  for (int64_t r = 0; r < kLanes; ++r) {
    // The quotient comes first and the choice after it. An operation inside the choice would stay a branch, and the
    // loop would not vectorise.
    const bool flat = scale[r] == 0;
    const float unit = flat ? 1.0f : scale[r], quotient = (target[r] - offset[r]) / unit;
    level[r] = flat ? 0.0f : quotient;
  }
  round(level);
  for (int64_t r = 0; r < kLanes; ++r) value[r] = scale[r] * level[r] + offset[r];
}

uint8_t Levels::code(float level) const {
  switch (spec_.kind) {
    case Kind::integer:
      return static_cast<uint8_t>(level);
    case Kind::fp4:
    case Kind::mxfp4:
      return to_e2m1(level);
    case Kind::fp8:
      return to_e4m3(level);
    default:
      return static_cast<uint8_t>(std::lower_bound(book_.begin(), book_.end(), level) - book_.begin());
  }
}

float Levels::level(uint8_t code) const {
  switch (spec_.kind) {
    case Kind::integer:
      return code;
    case Kind::fp4:
    case Kind::mxfp4:
      return kE2m1[code];
    case Kind::fp8:
      return e4m3_to_float(code);
    default:
      return book_[code];
  }
}

Strip::Strip(const FormatSpec& spec, int64_t out, int64_t in, int64_t strip)
    : first(strip * kLanes),
      rows(std::min(kLanes, out - strip * kLanes)),
      in(in),
      groups(spec.groups(in)),
      group(spec.group_size(in)),
      level(static_cast<size_t>(in * kLanes), 0.0f),
      scale(static_cast<size_t>(groups * kLanes), 0.0f),
      offset(scale.size(), 0.0f) {}

Strip::Strip(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in, int64_t strip)
    : Strip(spec, out, in, strip) {
  weight.assign(level.size(), 0.0f);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < in; ++c) weight[c * kLanes + r] = w[(first + r) * in + c];
}

float stored_scale(const FormatSpec& spec, float wanted, float row_scale) {
  if (spec.kind == Kind::fp8) return wanted;
  if (spec.kind == Kind::mxfp4) {
    if (wanted == 0) return 0.0f;
    return std::exp2(std::clamp(std::nearbyint(std::log2(wanted)), -127.0f, 125.0f));  // 6 times it must be finite
  }
  if (spec.kind == Kind::integer && spec.scale == ScaleKind::f16) {
    if (wanted == 0) return 0.0f;
    return std::clamp(to_float(to_f16(wanted)), 0x1p-24f, 65504.0f);  // neither zero nor infinite
  }
  if (row_scale == 0) return 0.0f;
  const float units = wanted / row_scale;
  if (spec.kind == Kind::fp4) return row_scale * std::max(e4m3_to_float(to_e4m3(units)), wanted > 0 ? 0x1p-9f : 0.0f);
  if (spec.kind == Kind::integer)
    return row_scale * std::clamp(std::nearbyint(units), wanted > 0 ? 1.0f : 0.0f, 255.0f);
  const float rounded =
      std::clamp(std::nearbyint(units), -127.0f, 127.0f);  // grids have signed scales, which rounding never makes zero
  return row_scale * (rounded == 0 && wanted != 0 ? std::copysign(1.0f, wanted) : rounded);
}

float stored_offset(const FormatSpec& spec, float wanted, float row_scale) {
  if (spec.kind != Kind::fp4 || spec.symmetric || row_scale == 0) return 0.0f;
  return row_scale * e4m3_to_float(to_e4m3(wanted / row_scale));
}

namespace {

void emit_group(const Strip& s, int64_t r, int64_t g, IntGroup& m, const FormatSpec& spec) {
  const int64_t row = s.first + r, at = row * s.groups + g;
  const float scale = s.scale[g * kLanes + r];
  if (spec.scale == ScaleKind::f16) {
    m.scale.as<f16>()[at] = to_f16(scale);
  } else {
    m.row_scale.as<float>()[row] = s.row_scale[r];
    m.scale.as<uint8_t>()[at] =
        static_cast<uint8_t>(s.row_scale[r] == 0 ? 0.0f : std::nearbyint(scale / s.row_scale[r]));
  }
  if (!spec.symmetric)
    set_zero(m, row, g, scale == 0 ? 0 : static_cast<int>(std::nearbyint(-s.offset[g * kLanes + r] / scale)));
}

void emit_group(const Strip& s, int64_t r, int64_t g, VectorCode& m, const FormatSpec&) {
  const int64_t row = s.first + r;
  m.row_scale.as<float>()[row] = s.row_scale[r];
  m.scale.as<int8_t>()[row * s.groups + g] =
      static_cast<int8_t>(s.row_scale[r] == 0 ? 0.0f : std::nearbyint(s.scale[g * kLanes + r] / s.row_scale[r]));
}

void emit_group(const Strip& s, int64_t r, int64_t g, FpBlock& m, const FormatSpec& spec) {
  const int64_t row = s.first + r, at = row * s.groups + g;
  if (spec.kind == Kind::mxfp4) {
    const float power = s.scale[g * kLanes + r];  // It is 0 where all codes are.
    m.scale.view.data[at] = std::byte(power == 0 ? 0 : std::ilogb(power) + 127);
    return;
  }
  const float row_scale = spec.kind == Kind::fp8 ? s.scale[r] : s.row_scale[r];
  m.row_scale.as<float>()[row] = row_scale;
  if (spec.kind == Kind::fp8 || row_scale == 0) return;
  m.scale.view.data[at] = std::byte{to_e4m3(s.scale[g * kLanes + r] / row_scale)};
  if (!spec.symmetric) m.offset.view.data[at] = std::byte{to_e4m3(s.offset[g * kLanes + r] / row_scale)};
}

}  // namespace

void emit(const Strip& s, const Levels& levels, LinearWeight& w) {
  const auto write = [&](auto& m) {
    std::vector<uint8_t> codes(static_cast<size_t>(s.in));
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t c = 0; c < s.in; ++c) codes[c] = levels.code(s.level[c * kLanes + r]);
      m.codes.set_row(s.first + r, codes);
      for (int64_t g = 0; g < s.groups; ++g) emit_group(s, r, g, m, w.spec);
    }
  };
  if (auto* integer = std::get_if<IntGroup>(&w.main)) write(*integer);
  if (auto* vector = std::get_if<VectorCode>(&w.main)) write(*vector);
  if (auto* block = std::get_if<FpBlock>(&w.main)) write(*block);
}

}  // namespace fidelio
