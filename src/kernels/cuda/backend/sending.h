// What the host sends to the device in the course of a step.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "kernels/cuda/device/device.h"

namespace fidelio::cuda {

using Pinned = std::vector<std::byte, PinnedAllocator<std::byte>>;
// What is on its way to the device: a buffer is written again once the stream has been waited for. The device reads
// them where they are as well, which for a few bytes takes less time than a copy that kernels wait for.
class Sending {
 public:
  void send(Stream stream, void* to, const void* from, size_t bytes) {
    if (bytes > 0) to_device(stream, to, hold(stream, from, bytes), bytes);
  }
  const void* hold(Stream stream, const void* from, size_t bytes) {
    if (next_ == buffers_.size()) wait_for(stream), next_ = 0;
    Pinned& buffer = buffers_[next_++];
    if (buffer.capacity() < bytes) buffer.reserve(std::max(2 * bytes, size_t{16} << 10));  // rarely: it is slow
    const auto* const begin = static_cast<const std::byte*>(from);
    buffer.assign(begin, begin + bytes);
    return buffer.data();
  }
  void arrived() { next_ = 0; }  // the stream was waited for

 private:
  std::array<Pinned, 96> buffers_;
  size_t next_ = 0;
};

}  // namespace fidelio::cuda
