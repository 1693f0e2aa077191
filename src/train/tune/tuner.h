// Tuning: a quantised model is moved towards its source by gradients, layer by layer first (each against the source's
// own outputs), the whole against the source's distributions after. Formats and bytes stay as they are.
//
// Windows are taken in an order that the seed alone gives; the same seed gives the same weights for any number of
// threads and of ranks, and a run that was killed goes on from its state file to the same bytes.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "ranks/ranks.h"
#include "train/tape.h"
#include "train/tune/student.h"

namespace fidelio::train {

// What distributions are compared by (device.h); cakld: reverse weighted by the teacher's mean confidence, forward by the
// rest.
enum class Loss : uint8_t { kl, reverse_kl, cakld, label };

// What a GPU rounds the factors of products to; their sums are FP32.
enum class Products : uint8_t { f32, tf32, bf16 };

struct TuneOptions {
  Loss loss = Loss::kl;
  int64_t layer_steps = 0;      // steps a layer of the first stage; 0: none
  int64_t steps = -1;           // of the whole model; -1, and 0 of the next two: as set_defaults() has it
  int64_t windows = 0;          // a step
  int64_t rows = 0;             // at once on the device; a step of more is cut into slices whose gradients add up
  int64_t evaluate_every = 25;  // steps
  int64_t patience = 8;         // evaluations without a better one before rates are halved
  Rates rates = {0.004, 0.0007, 0.001, 0.05, 0.0003};  // at the top of the schedule
  double warmup = 0.05;                                // share of the steps in which rates rise
  double memory = 0.999;                               // of the second moments (AdamW's beta2)
  float start = 0.45F;  // of its cell, from the middle, a code starts at most where the source's value is
  Products products = Products::tf32;
  double clip = 3;    // a gradient longer than this many times the running mean is shortened to that
  bool outer = true;  // embedding and head too
  bool dense = true;  // norms, biases and what of the matrices is dense, too
  uint64_t seed = 0;
  std::string state;  // file, which the caller removes when it has the result; "": none
  double save_seconds = 60;
};

// --products; nothing given: TF32 on a GPU. Throws Error for anything but FP32 on a CPU.
Products parse_products(const std::string& name, bool gpu);
// What was left to the device, of which a GPU does far more in the same time.
void set_defaults(TuneOptions& options, bool gpu, int64_t context);
int64_t default_samples(bool gpu);  // tokens that the source writes itself

// Windows, and those that nothing is tuned on: they say when to stop.
struct TuneData {
  std::vector<std::vector<int32_t>> windows, held;
  std::string sha256;  // of what they are
};

struct TuneProgress {
  int64_t done = 0, total = 0;  // steps of both stages
  std::string note;             // what was measured, if anything was
};

struct Evaluation {
  int64_t step = 0;
  double kl = 0;  // KL(source || model) on the held windows, nats a token
};

struct TuneReport {
  std::vector<Evaluation> evaluations;            // of the second stage; the first before its first step
  std::vector<double> layer_before, layer_after;  // of the first stage: error over energy on the held windows
  int64_t best_step = 0, steps = 0;
  int64_t skipped = 0, skipped_at = 0;  // steps of the schedule that were left out, the last of them at this one
  double kl_before = 0, kl_after = 0;   // untuned, and of what is given back
  double seconds_a_step = 0;
  double moved = 0;  // share of codes that are not what they were
  bool diverged = false, stopped_early = false, resumed = false;
};

struct TuneResult {
  TunedWeights weights;
  TuneReport report;
};

// All that a run's result follows from.
nlohmann::json job_of(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                      const TuneOptions& options);

// Bytes that tuning holds: weights with their masters, gradients and moments, the source, and a tape of `rows` rows; and
// sums of gradients where a step is more than one slice.
int64_t tune_bytes(const ModelConfig& config, const TuneOptions& options, int64_t context);

// A schedule: the share of the top rate at a step (from 0) of so many; it rises for the first `warmup` of them, then
// falls along a cosine to zero.
double schedule(int64_t step, int64_t steps, double warmup);
// The windows of a step: the endless row of shuffled rounds over `count` windows that the seed gives.
std::vector<int64_t> windows_of_step(int64_t step, int64_t windows, int64_t count, uint64_t seed);

// Windows of so many rows each, cut into slices whose gradients are made one after the other: as few slices as there can
// be, of at most `rows` rows and about as many windows each. [first, last) of every slice.
std::vector<std::pair<size_t, size_t>> slices_of(std::span<const int64_t> windows, int64_t rows);

// Several ranks share every step's slices, and measurements; all must call it, each has the result, the first writes the
// state. The bytes are those of one rank.
TuneResult tune_on_host(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                        const TuneOptions& options, int threads,
                        const std::function<void(const TuneProgress&)>& progress, const Ranks& ranks = Ranks());
// The same on a GPU, one for each rank; throws Error in a build without CUDA or without a usable device.
TuneResult tune_on_gpu(const Checkpoint& model, const Checkpoint& source, const TuneData& data,
                       const TuneOptions& options, int gpu, const std::function<void(const TuneProgress&)>& progress,
                       const Ranks& ranks = Ranks());

// One step of tuning a layer of this shape with random weights, integers of `spec`, on windows of `context` tokens.
struct LayerTiming {
  double seconds = 0;       // of a step
  double operations = 0;    // of its products, forward and backward; attention's below the diagonal alone
  double product_rate = 0;  // operations a second of a product of 8192 by 8192 by 8192, measured beside it
  int64_t bytes_foreseen = 0, bytes_held = 0;  // of device memory; held: 0 on a CPU, where it is not counted
};
LayerTiming time_layer_on_host(const ModelConfig& config, const FormatSpec& spec, int64_t windows, int64_t context,
                               int steps, int threads);
LayerTiming time_layer_on_gpu(const ModelConfig& config, const FormatSpec& spec, int64_t windows, int64_t context,
                              int steps, Products products, int gpu);
double layer_operations(const ModelConfig& config, int64_t windows, int64_t context);
int64_t layer_bytes(const ModelConfig& config, int64_t windows, int64_t context);  // without a device's own scratch

}  // namespace fidelio::train
