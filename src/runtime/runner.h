// This file defines Runner, which is one model on one backend. The backend's type is hidden behind a few virtual
// calls a step, so everything above (eval, quant, sensitivity, serve, app) is compiled without knowing a backend.
//
//   runner->begin(batch, reading)    sets the step's rows
//   runner->embed()                  x = table[ids]
//   runner->layers(0, L)             takes the residual stream x through layers [first, last)
//   runner->logits(first, count)     returns the logits of batch.logit_rows[first, first + count), (count, v),
//                                    which are valid until the next call
//
// step() does all of it. Underneath, a step is a program (step/program.h). run() runs any part of it, and read() and
// write() reach the values in between. Calibration observes a linear's input in this way (runtime/taps.h), and with
// it a change in layer l costs only the layers after it (sensitivity). A weight is exchanged by setting another
// packed one.
//
// The spans of values that functions here read or fill may lie in the host's memory or in memory that allocate()
// gave. The latter is a GPU's own, so values that only wait between two calls are never transferred.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "arch/model_config.h"
#include "io/checkpoint.h"
#include "kernels/backend.h"
#include "step/choice.h"
#include "step/program.h"

namespace fidelio {

struct RunnerOptions {
  int threads = 0;  // CPU: the number of threads; 0 means all
  std::string isa;  // CPU: "portable", "avx2" or "avx512"; "" means the best
  int gpu = 0;      // CUDA: the number of the device
  KvFormat kv = KvFormat::f16;
  int64_t max_rows = 512;        // rows of the largest batch; the caller cuts longer inputs into chunks
  int64_t max_logit_rows = 128;  // rows of logits computed at once
  int64_t cache_tokens = 0;      // tokens that the cache can hold in all; 0 means one sequence of max_positions
  // The positions of the longest sequence. They choose between the short and the long frequencies of LongRoPE, once
  // for all sequences. With 0 they are as many as the cache holds, at most max_positions.
  int64_t context = 0;
  // The model drafts with its predictor (ModelConfig::predictor, make_predictor()), so its steps keep what that needs.
  bool predictor = false;
  // The caches and weights are prepared for these activations. begin() may ask for less precise ones.
  Activations mode = Activations::a16;
  // Readings will ask for this many high bits (Reading). The CPU packs integers and grids of layers so that they can
  // be cut there. This costs whole steps time where planes do not end there by themselves, that is for 3, 5 and 7.
  // With 0 codes can be cut where planes end.
  int high_bits = 0;
};

// A PackedLinear is a weight packed for some backend. It is cheap to copy.
using PackedLinear = std::shared_ptr<const void>;

class Runner {
 public:
  virtual ~Runner() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const RunnerOptions& options() const = 0;
  // Returns the bytes of weights that a step of few rows reads. An embedding that is not the head too does not count,
  // because only single rows of it are read. The ratio of a draft's bytes to its verifier's bounds what the draft can
  // gain.
  virtual int64_t bytes_read(Reading reading) const = 0;
  virtual int64_t cache_bytes() const = 0;
  virtual int64_t cache_pages() const = 0;
  virtual int64_t state_slots() const { return 0; }
  virtual int64_t state_bytes() const { return 0; }  // of all slots
  // Makes room for the states of sequences if there are fewer slots (step/state.h). What the slots held is lost then.
  // It has no effect on a model that keeps no state.
  virtual void reserve_states(int64_t) {}
  // Tells whether prompt rows and output rows leave the same bits in the cache.
  virtual bool kinds_agree() const = 0;
  // Returns the name of the kernel that multiplies by this weight, for reports and certificates.
  virtual std::string kernel_of(LinearId id, Activations mode) const = 0;
  // Returns the number of the GPU that runs the model and holds allocate()'s memory, or nothing if the host does.
  virtual std::optional<int> gpu() const { return std::nullopt; }
  virtual std::shared_ptr<float[]> allocate(int64_t values);

  virtual void begin(const Batch& batch, Reading reading) = 0;
  // Runs operations of the program, in their order.
  virtual void run(OpRange ops) = 0;
  // Runs operations up to a Route and returns the experts that it chose.
  virtual Routes run_route(OpRange ops) = 0;
  // Makes the operations that follow use these experts in place of a choice of their own.
  virtual void follow(const Routes& routes) = 0;
  // These read and write a value of the program, (rows, columns) of the current batch. A prepared value can be read
  // until the next one is computed. It can be written where a tap has a spare value.
  virtual void read(ValueId value, std::span<float> to) = 0;
  virtual void write(ValueId value, std::span<const float> from) = 0;
  virtual const Program& program() const = 0;

  void embed() { run(program().embedding); }
  void layers(int first, int last) {
    for (int i = first; i < last; ++i) run(program().layers[static_cast<size_t>(i)]);
  }
  virtual std::span<const float> logits(int64_t first, int64_t count) = 0;
  virtual void read_logits(int64_t first, int64_t count, std::span<float> to) = 0;  // writes the same logits to `to`

  // These read and write the residual stream (n, d) of the current batch.
  void read_stream(std::span<float> x) { read(program().stream, x); }
  void write_stream(std::span<const float> x) { write(program().stream, x); }

  virtual PackedLinear pack(const LinearWeight& weight) = 0;
  // Returns the weight with noise added (runtime/noise.h), packed.
  virtual PackedLinear pack_noisy(const LinearWeight& weight, double sigma, uint64_t stream, bool uniform);
  virtual void set_linear(LinearId id, PackedLinear weight) = 0;
  virtual PackedLinear linear(LinearId id) const = 0;

  // Sets the head that steps with Reading::short_head read from now on: of `weight`, which is the head (or the
  // embedding where both are one), the rows of these tokens, each once and ascending.
  virtual void set_short_head(const LinearWeight& weight, std::span<const int32_t> tokens) = 0;

  // Makes a runner with another set of weights of the same shapes, which works in this runner's cache and scratch: a
  // draft in a format of its own. The two run one step after the other. Throws Error if the shapes differ.
  virtual std::unique_ptr<Runner> make_draft(const Checkpoint& checkpoint) = 0;
  // Makes the runner of the predictor of a model, which drafts in this runner's cache, states and scratch by weights of
  // its own and the model's embedding and head. RunnerOptions::predictor must have been set. A batch has one row for
  // each sequence, its newest token. Throws Error if the model has no predictor.
  virtual std::unique_ptr<Runner> make_predictor(const Checkpoint& checkpoint) = 0;
  virtual bool shares_cache_with(const Runner& other) const = 0;
  // Makes a runner of the same checkpoint on the same device, with its own cache, scratch and options. The packed
  // weights are shared until either runner is given others. Throws Error for a draft.
  virtual std::unique_ptr<Runner> make_sibling(const Checkpoint& checkpoint, const RunnerOptions& options) const = 0;

  // Runs a whole step: begin, embed, all layers, and all logit rows, of which there may be at most
  // options().max_logit_rows. A backend may record a step, so that another batch of the same shape costs the host
  // very little.
  virtual std::span<const float> step(const Batch& batch, Reading reading);
  // Runs a step and chooses a token from each logit row, by the rule of the same index. The logits stay where they
  // are computed.
  virtual void step_and_choose(const Batch& batch, Reading reading, std::span<const ChoiceRule> rules,
                               std::span<Choice> choices);

  // Runs steps that follow from each other, which a GPU does without waiting for the host. The id of row i is that of
  // chosen[from[i]] where from[i] >= 0, and else the batch's. A choice for each rule is appended to `chosen`; its
  // values may be missing until collect(). A call with an empty `chosen` begins a new run. A row after a choice
  // without a best token (id -1) is fed token 0.
  virtual void enqueue(const Batch& batch, Reading reading, std::span<const int32_t> from,
                       std::span<const ChoiceRule> rules, std::vector<Choice>& chosen);
  virtual void collect(std::vector<Choice>&) {}
};

// Loads every weight of a checkpoint onto the CPU backend. Mapped pages of the file are given back as weights are
// packed.
std::unique_ptr<Runner> make_cpu_runner(const Checkpoint& checkpoint, const RunnerOptions& options);
// Loads it onto a GPU. Throws Error in a build without CUDA, without a usable device, or when its memory is full.
std::unique_ptr<Runner> make_cuda_runner(const Checkpoint& checkpoint, const RunnerOptions& options);
// CudaMemory tells the bytes that are free now on a GPU, and the most that this process's buffers have held at any
// time. cuda_memory() throws Error in a build without CUDA or without a usable device.
struct CudaMemory {
  int64_t free = 0, highest = 0;
};
CudaMemory cuda_memory(int gpu);
// Returns the bytes per second that a copy within a GPU's memory reads and writes, measured now. Throws Error
// likewise.
double cuda_copy_bandwidth(int gpu);

}  // namespace fidelio
