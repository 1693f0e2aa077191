// This file runs the trainer on a GPU.
#include "train/cuda/gpu.h"
#include "train/tune/layer_bench.h"
#include "train/tune/trainer.h"

namespace fidelio::train {
namespace {

cuda::Arithmetic arithmetic_of(Products products) {
  return products == Products::f32    ? cuda::Arithmetic::fp32
         : products == Products::tf32 ? cuda::Arithmetic::tf32
                                      : cuda::Arithmetic::bf16;
}

}  // namespace

TuneResult tune_on_gpu(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                       const TuneOptions& options, int gpu, const std::function<void(const TuneProgress&)>& progress,
                       const Ranks& ranks) {
  Gpu device(gpu, arithmetic_of(options.products));
  return Trainer<Gpu>(device, model, source, data, options, progress, ranks).run();
}

LayerTiming time_layer_on_gpu(const ModelConfig& config, const FormatSpec& spec, int64_t windows, int64_t context,
                              int steps, Products products, int gpu) {
  Gpu device(gpu, arithmetic_of(products));
  LayerTiming t;
  LayerBench<Gpu> bench(device, config, spec, windows, context);
  t.seconds = bench.time(steps);
  t.bytes_held = cuda::device_bytes_highest();
  t.operations = layer_operations(config, windows, context);
  t.bytes_foreseen = layer_bytes(config, windows, context) +
                     Gpu::scratch_bytes(config, windows * context, context, arithmetic_of(products));
  t.product_rate = bench.product_rate(8192);
  return t;
}

}  // namespace fidelio::train
