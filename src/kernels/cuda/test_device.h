// This file is for tests that need a GPU. They begin with `if (const auto why = no_gpu()) GTEST_SKIP() << *why;`.
#pragma once
#include <optional>
#include <string>

#include "core/error.h"
#include "kernels/cuda/device/device.h"

namespace fidelio {

inline std::optional<std::string> no_gpu() {
  // Returns why there is no GPU to test on, or nothing if there is one.
  try {
    cuda::open_device(0);
    return std::nullopt;
  } catch (const Error& e) {
    return std::string("no GPU: ") + e.what();
  }
}

}  // namespace fidelio
