// NCCL: values from GPU to GPU, one rank a GPU. The library is looked for when ranks share a tuning for the first time, so
// that a program on one GPU starts without it.
#pragma once
#include <vector>

#include "kernels/cuda/device/device.h"
#include "ranks/ranks.h"

struct ncclComm;

namespace fidelio::train {

class Nccl {
 public:
  // All ranks must make one, each with a device of its own current.
  Nccl(const Ranks& ranks, cuda::Stream stream);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // As Ranks::exchange, in the order of the stream.
  void exchange(const std::vector<Message>& send, const std::vector<Message>& receive);

 private:
  cuda::Stream stream_;
  ncclComm* communicator_ = nullptr;
};

}  // namespace fidelio::train
