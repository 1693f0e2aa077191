// A Graph is work on a stream that is captured once and then replayed as a whole.
#pragma once
#include <functional>
#include <utility>

#include "kernels/cuda/device/device.h"

struct CUgraphExec_st;

namespace fidelio::cuda {

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  // Runs what `work` asks for on the stream. `work` is called the first time only, and must not wait for the device.
  void replay(Stream stream, const std::function<void()>& work);

 private:
  CUgraphExec_st* exec_ = nullptr;
};

}  // namespace fidelio::cuda
