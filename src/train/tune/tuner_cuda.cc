#include "train/cuda/gpu.h"
#include "train/tune/trainer.h"

namespace fidelio::train {

TuneResult tune_on_gpu(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                       const TuneOptions& options, int gpu, const std::function<void(const TuneProgress&)>& progress) {
  Gpu device(gpu);
  return Trainer<Gpu>(device, model, source, data, options, progress).run();
}

}  // namespace fidelio::train
