#include "formats/finite.h"

#include <algorithm>

#include "core/error.h"

namespace fidelio {
namespace {

// Returns the index of the first value in which all bits of `mask` are set, or -1. The mask covers the exponent.
template <typename Bits>
int64_t first_with(const Tensor& tensor, Bits mask) {
  const auto* values = reinterpret_cast<const Bits*>(tensor.data);
  const int64_t n = tensor.elements();
  constexpr int64_t kBlock = 4096;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    Bits any = 0;
    for (int64_t i = begin; i < end; ++i) any |= static_cast<Bits>((values[i] & mask) == mask);
    if (any == 0) continue;
    return std::find_if(values + begin, values + end, [&](Bits x) { return (x & mask) == mask; }) - values;
  }
  return -1;
}

// A larger scale of mxfp4 than 2^(252 - 127) makes some code's value infinite, and 255 is NaN.
constexpr uint8_t kLargestPower = 252;
int64_t first_power_above(const Tensor& scales, uint8_t largest) {
  const auto* begin = reinterpret_cast<const uint8_t*>(scales.data);
  const auto* end = begin + scales.elements();
  const auto* found = std::find_if(begin, end, [&](uint8_t scale) { return scale > largest; });
  return found == end ? -1 : found - begin;
}

}  // namespace

int64_t first_not_finite(const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::f32:
      return first_with<uint32_t>(tensor, 0x7f800000);
    case DType::f16:
      return first_with<uint16_t>(tensor, 0x7c00);
    case DType::bf16:
      return first_with<uint16_t>(tensor, 0x7f80);
    case DType::f8_e4m3:
      return first_with<uint8_t>(tensor, 0x7f);  // E4M3 has no infinity, so the mask also covers the mantissa.
    default:
      return -1;
  }
}

void check_finite(const LinearWeight& weight, const std::string& name) {
  for (const StoredTensor& stored : stored_tensors(weight)) {
    const bool powers = weight.spec.kind == Kind::mxfp4 && stored.suffix == ".scale";
    const int64_t at = powers ? first_power_above(stored.tensor, kLargestPower) : first_not_finite(stored.tensor);
    if (at < 0) continue;
    const int64_t columns = std::max<int64_t>(1, stored.tensor.elements() / std::max<int64_t>(1, weight.out));
    throw Error("{}: {} is not finite (NaN or infinity) at row {}, column {}: the file is damaged", name,
                stored.suffix == ".weight" ? "the weight" : stored.suffix, at / columns, at % columns);
  }
}

}  // namespace fidelio
