// Nccl sends values from GPU to GPU with the library NCCL, one rank for each GPU. The library is loaded when ranks
// share a tuning for the first time, so that a program on one GPU starts without it.
#pragma once
#include <vector>

#include "kernels/cuda/device/device.h"
#include "ranks/ranks.h"

struct ncclComm;

namespace fidelio::train {

class Nccl {
 public:
  // All ranks must make one, each with a device of its own as the current one.
  Nccl(const Ranks& ranks, cuda::Stream stream);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // Does what Ranks::exchange does, in the order of the stream.
  void exchange(const std::vector<Message>& send, const std::vector<Message>& receive);

 private:
  cuda::Stream stream_;
  ncclComm* communicator_ = nullptr;
};

}  // namespace fidelio::train
