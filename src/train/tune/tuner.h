// Tuning moves a quantised model towards its source by gradients: first layer by layer (each against the source's own
// outputs), then as a whole against the source's distributions. Formats and bytes stay as they are.
//
// Windows are taken in an order that depends on the seed alone. The same seed gives the same weights for any number
// of threads and ranks, and a run that was killed continues from its state file to the same bytes.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "ranks/ranks.h"
#include "train/tape.h"
#include "train/tune/student.h"

namespace fidelio::train {

// A Loss says by what distributions are compared (device.h). cakld weights the reverse KL by the teacher's mean
// confidence and the forward KL by the rest.
enum class Loss : uint8_t { kl, reverse_kl, cakld, label };

// This is what a GPU rounds the factors of products to; their sums are FP32.
enum class Products : uint8_t { f32, tf32, bf16 };

struct TuneOptions {
  Loss loss = Loss::kl;
  int64_t layer_steps = 0;      // steps for each layer in the first stage; 0 skips it
  int64_t steps = -1;           // steps of the whole model; for -1 here, and 0 in the next two, set_defaults() chooses
  int64_t windows = 0;          // windows in a step
  int64_t rows = 0;             // rows on the device at once; a larger step is cut into slices whose gradients add up
  int64_t evaluate_every = 25;  // in steps
  int64_t patience = 8;         // evaluations without a better one before rates are halved
  Rates rates = {0.004, 0.0007, 0.001, 0.05, 0.0003};  // at the top of the schedule
  double warmup = 0.05;                                // share of the steps in which rates rise
  double memory = 0.999;                               // decay of the second moments (AdamW's beta2)
  float start = 0.45F;  // a code starts where the source's value is in its cell, but at most so far from the middle
  Products products = Products::tf32;
  double clip = 3;    // a gradient longer than this many times the running mean is shortened to that
  bool outer = true;  // tunes embedding and head too
  bool dense = true;  // tunes norms, biases and dense matrices too
  uint64_t seed = 0;
  std::string state;  // a file, which the caller removes when it has the result; "" means none
  double save_seconds = 60;
};

// Parses --products. Without a name the result is TF32 on a GPU. Throws Error for anything but FP32 on a CPU.
Products parse_products(const std::string& name, bool gpu);
// Fills in the options that were left to the device. A GPU does far more in the same time.
void set_defaults(TuneOptions& options, bool gpu, int64_t context);
int64_t default_samples(bool gpu);  // tokens that the source writes itself

// TuneData holds windows to tune on, and held-out windows that are only measured and say when to stop.
struct TuneData {
  std::vector<std::vector<int32_t>> windows, held;
  std::string sha256;  // hash of the data
};

struct TuneProgress {
  int64_t done = 0, total = 0;  // steps of both stages
  std::string note;             // what was measured, if anything was
};

struct Evaluation {
  int64_t step = 0;
  double kl = 0;  // KL(source || model) on the held windows, in nats per token
};

struct TuneReport {
  std::vector<Evaluation> evaluations;            // those of the second stage; the first one is before its first step
  std::vector<double> layer_before, layer_after;  // of the first stage: error over energy on the held windows
  int64_t best_step = 0, steps = 0;
  // Steps of the schedule that were left out, and the step at which that last happened.
  int64_t skipped = 0, skipped_at = 0;
  double kl_before = 0, kl_after = 0;  // of the untuned model, and of the result
  double seconds_a_step = 0;
  double moved = 0;  // share of codes that have changed
  bool diverged = false, stopped_early = false, resumed = false;
};

struct TuneResult {
  TunedWeights weights;
  TuneReport report;
};

// Returns everything that a run's result depends on.
nlohmann::json job_of(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                      const TuneOptions& options);

// Returns the bytes that tuning needs: weights with their masters, gradients and moments, the source, and a tape of
// `rows` rows. If a step has more than one slice, sums of gradients are added.
int64_t tune_bytes(const ModelConfig& config, const TuneOptions& options, int64_t context);

// Returns the share of the top rate at a step (from 0) of `steps`. It rises for the first `warmup` share of the
// steps, then falls along a cosine to zero.
double schedule(int64_t step, int64_t steps, double warmup);
// Returns the windows of a step, taken from the endless series of shuffled rounds over `count` windows that the seed
// gives.
std::vector<int64_t> windows_of_step(int64_t step, int64_t windows, int64_t count, uint64_t seed);

// Cuts windows of so many rows each into slices, whose gradients are made one after the other. There are as few
// slices as possible, each with at most `rows` rows and about as many windows. Returns [first, last) for every slice.
std::vector<std::pair<size_t, size_t>> slices_of(std::span<const int64_t> windows, int64_t rows);

// Tunes on the CPU. Several ranks divide the slices of every step, and the measurements. All must call it, each gets
// the result, and the first writes the state. The bytes are those of one rank.
TuneResult tune_on_host(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                        const TuneOptions& options, int threads,
                        const std::function<void(const TuneProgress&)>& progress, const Ranks& ranks = Ranks());
// Does the same on a GPU, one for each rank. Throws Error in a build without CUDA or without a usable device.
TuneResult tune_on_gpu(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                       const TuneOptions& options, int gpu, const std::function<void(const TuneProgress&)>& progress,
                       const Ranks& ranks = Ranks());

// A LayerTiming is the cost of one step of tuning a layer of this shape with random weights, integers of `spec`, on
// windows of `context` tokens.
struct LayerTiming {
  double seconds = 0;       // seconds of a step
  double operations = 0;    // operations of its products, forward and backward; attention's only below the diagonal
  double product_rate = 0;  // operations per second of a product of 8192 by 8192 by 8192, measured at the same time
  // Bytes of device memory, as forecast and as held. The latter is 0 on a CPU, where it is not counted.
  int64_t bytes_foreseen = 0, bytes_held = 0;
};
LayerTiming time_layer_on_host(const ModelConfig& config, const FormatSpec& spec, int64_t windows, int64_t context,
                               int steps, int threads);
LayerTiming time_layer_on_gpu(const ModelConfig& config, const FormatSpec& spec, int64_t windows, int64_t context,
                              int steps, Products products, int gpu);
double layer_operations(const ModelConfig& config, int64_t windows, int64_t context);
// Without a device's own scratch memory.
int64_t layer_bytes(const ModelConfig& config, int64_t windows, int64_t context);

}  // namespace fidelio::train
