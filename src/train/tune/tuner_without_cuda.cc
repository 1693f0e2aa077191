// This file replaces tuner_cuda.cc in builds without CUDA: its functions throw Error.
#include "train/tune/tuner.h"

namespace fidelio::train {

TuneResult tune_on_gpu(const Checkpoint&, const Checkpoint&, const TuneData&, const TuneOptions&, int gpu,
                       const std::function<void(const TuneProgress&)>&, const Ranks&) {
  throw Error("--device cuda:{}: this build has no CUDA; configure with the preset cuda, or leave the option out", gpu);
}

LayerTiming time_layer_on_gpu(const ModelConfig&, const FormatSpec&, int64_t, int64_t, int, Products, int gpu) {
  throw Error("--device cuda:{}: this build has no CUDA; configure with the preset cuda, or leave the option out", gpu);
}

}  // namespace fidelio::train
