// This file holds what the host sends to the device in the course of a step.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

using Pinned = std::vector<std::byte, PinnedAllocator<std::byte>>;
// Sending keeps buffers in page-locked memory that the device copies, or reads in place: for a few bytes reading
// takes less time than a copy that kernels wait for. A buffer is used again only after a wait for the stream.
class Sending {
 public:
  void send(Stream stream, void* to, const void* from, size_t bytes) {
    if (bytes > 0) to_device(stream, to, hold(stream, from, bytes), bytes);
  }
  const void* hold(Stream stream, const void* from, size_t bytes) {
    if (next_ == buffers_.size()) wait_for(stream), next_ = 0;
    Pinned& buffer = buffers_[next_++];
    // This is rare, as it is slow.
    if (buffer.capacity() < bytes) buffer.reserve(std::max(2 * bytes, size_t{16} << 10));
    const auto* const begin = static_cast<const std::byte*>(from);
    buffer.assign(begin, begin + bytes);
    return buffer.data();
  }
  void arrived() { next_ = 0; }  // This must be called after a wait for the stream, when all buffers are free again.

 private:
  std::array<Pinned, 96> buffers_;
  size_t next_ = 0;
};

}  // namespace fidelio::cuda
