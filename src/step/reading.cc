#include "step/reading.h"

#include <algorithm>

namespace fidelio {

std::string_view name_of(Activations mode) {
  constexpr std::string_view kNames[] = {"f32", "a16", "a8", "a6", "a4", "aw"};
  return kNames[static_cast<size_t>(mode)];
}

std::string_view name_of(KvFormat format) {
  constexpr std::string_view kNames[] = {"f32", "f16", "bf16", "i8", "i4x2"};
  return kNames[static_cast<size_t>(format)];
}

int activation_bits(Activations mode, const FormatSpec& spec) {
  switch (mode) {
    case Activations::a6:
      return 6;
    case Activations::a4:
      return 4;
    case Activations::aw:
      return std::min(spec.bits, 8);
    default:
      return 8;
  }
}

int64_t activation_group(const FormatSpec& spec) {
  constexpr int64_t kLeast = 32, kMost = 128;
  return spec.group == 0 ? kMost : std::clamp<int64_t>(spec.group, kLeast, kMost);
}

}  // namespace fidelio
