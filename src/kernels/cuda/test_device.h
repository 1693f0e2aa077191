// For tests that want a GPU: `if (const auto why = no_gpu()) GTEST_SKIP() << *why;`.
#pragma once
#include <optional>
#include <string>

#include "core/error.h"
#include "kernels/cuda/device/device.h"

namespace fidelio {

inline std::optional<std::string> no_gpu() {
  try {
    cuda::open_device(0);
    return std::nullopt;
  } catch (const Error& e) {
    return std::string("no GPU: ") + e.what();
  }
}

}  // namespace fidelio
