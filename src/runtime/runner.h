// Runner: one model on one backend, type-erased once per step. Everything above (eval, quant/calibrate, sensitivity,
// serve, app) sees only this page and compiles without knowing a backend.
//
//   runner->begin(batch, reading)    the step's rows
//   runner->embed()                 x = table[ids]
//   runner->layers(0, L)            the residual stream through layers [first, last)
//   runner->logits(first, count)    logits of batch.logit_rows[first, first + count), (count, v), valid until
//                                   the next call
//
// step() does all of it. Underneath, a step is a program (step/program.h): run() runs any part of it, and read() and
// write() reach the values in between, which is how calibration observes a linear's input (runtime/taps.h) and how a
// change in layer l costs only the layers after it (sensitivity). A weight is switched by handing over a packed one.
//
// Spans of values that functions here read or fill may lie in the host's memory or in memory that allocate() gave. The
// latter is a GPU's own, so that values which only wait between two calls never travel.
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
  int threads = 0;  // CPU: 0 = all
  std::string isa;  // CPU: "" = best, else "portable", "avx2", "avx512"
  int gpu = 0;      // CUDA: which device
  KvFormat kv = KvFormat::f16;
  int64_t max_rows = 512;        // rows of the largest batch; longer inputs are cut into chunks by the caller
  int64_t max_logit_rows = 128;  // rows of logits computed at once
  int64_t cache_tokens = 0;      // tokens the cache can hold in all; 0 = one sequence of max_positions
  // Positions of the longest sequence, which chooses between the short and the long frequencies of LongRoPE once for
  // all sequences; 0 = as many as the cache holds, max_positions at most.
  int64_t context = 0;
  Activations mode =
      Activations::a16;  // what the caches and weights are prepared for; begin() may ask for less precise ones
  // What readings will ask for (Reading): the CPU packs integers and grids of layers so that they can be cut there,
  // which costs whole steps time where planes do not end there by themselves (3, 5 and 7); 0: where they do.
  int high_bits = 0;
};

// A weight packed for some backend; cheap to copy.
using PackedLinear = std::shared_ptr<const void>;

class Runner {
 public:
  virtual ~Runner() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const RunnerOptions& options() const = 0;
  virtual int64_t weight_bytes() const = 0;  // packed, as held in memory
  // Of a step of few rows: what it reads of the weights (an embedding that is no head too gives single rows and does
  // not count). The share that a draft's reading has of the verifier's bounds what it may gain.
  virtual int64_t bytes_read(Reading reading) const = 0;
  virtual int64_t cache_bytes() const = 0;
  virtual int64_t cache_pages() const = 0;
  // Whether rows of either kind leave the same bits in the cache.
  virtual bool kinds_agree() const = 0;
  virtual std::string kernel_of(LinearId id, Activations mode) const = 0;  // name of the kernel row
  // The GPU that runs the model and that allocate()'s memory belongs to; none: the host does.
  virtual std::optional<int> gpu() const { return std::nullopt; }
  virtual std::shared_ptr<float[]> allocate(int64_t values);

  virtual void begin(const Batch& batch, Reading reading) = 0;
  // Operations of the program, in their order.
  virtual void run(OpRange ops) = 0;
  // The same up to a Route, whose choice of experts the host is told.
  virtual Routes run_route(OpRange ops) = 0;
  // The operations that follow take these experts in place of a choice of their own.
  virtual void follow(const Routes& routes) = 0;
  // A value of the program: (rows, columns) of the current batch. A prepared value can be read until the next one is
  // computed; it can be written where a tap has a spare value.
  virtual void read(ValueId value, std::span<float> to) = 0;
  virtual void write(ValueId value, std::span<const float> from) = 0;
  virtual const Program& program() const = 0;

  void embed() { run(program().embedding); }
  void layers(int first, int last) {
    for (int i = first; i < last; ++i) run(program().layers[static_cast<size_t>(i)]);
  }
  virtual std::span<const float> logits(int64_t first, int64_t count) = 0;
  virtual void read_logits(int64_t first, int64_t count, std::span<float> to) = 0;  // the same logits, to there

  // The residual stream (n, d) of the current batch.
  void read_stream(std::span<float> x) { read(program().stream, x); }
  void write_stream(std::span<const float> x) { write(program().stream, x); }

  virtual PackedLinear pack(const LinearWeight& weight) = 0;
  // The weight with noise added (runtime/noise.h), packed.
  virtual PackedLinear pack_noisy(const LinearWeight& weight, double sigma, uint64_t stream, bool uniform);
  virtual void set_linear(LinearId id, PackedLinear weight) = 0;
  virtual PackedLinear linear(LinearId id) const = 0;

  // What Reading::short_head reads from now on: of the head (the embedding, where both are one), `weight`, the rows of
  // these tokens, each once.
  virtual void set_short_head(const LinearWeight& weight, std::span<const int32_t> tokens) = 0;

  // Another set of weights of the same shapes that works in this runner's cache and scratch, one step after the other:
  // a draft in a format of its own. Throws Error if its shapes differ.
  virtual std::unique_ptr<Runner> make_draft(const Checkpoint& checkpoint) = 0;
  virtual bool shares_cache_with(const Runner& other) const = 0;
  // A runner of the same checkpoint on the same device, with a cache, scratch and options of its own; the packed weights
  // are shared until either is given others.
  virtual std::unique_ptr<Runner> make_sibling(const Checkpoint& checkpoint, const RunnerOptions& options) const = 0;

  // begin, embed, all layers, all logit rows (batch.logit_rows.size() <= options().max_logit_rows).
  // A backend may record it: the same shape of batch again costs the host next to nothing.
  virtual std::span<const float> step(const Batch& batch, Reading reading);
  // The same, and a token from each logit row by the rule of that number. Logits stay where they are computed.
  virtual void step_and_choose(const Batch& batch, Reading reading, std::span<const ChoiceRule> rules,
                               std::span<Choice> choices);

  // Steps that follow from each other, which a GPU does without the host in between: the id of row i is that of
  // chosen[from[i]], where from[i] >= 0, and else the batch's. Appends a choice for each rule to `chosen`, which may have
  // no values before collect(); an empty one begins anew. A row after one that had no best token is fed token 0.
  virtual void enqueue(const Batch& batch, Reading reading, std::span<const int32_t> from,
                       std::span<const ChoiceRule> rules, std::vector<Choice>& chosen);
  virtual void collect(std::vector<Choice>&) {}
};

// Loads every weight of a checkpoint onto the CPU backend. Mapped pages are given back as weights are packed.
std::unique_ptr<Runner> make_cpu_runner(const Checkpoint& checkpoint, const RunnerOptions& options);
// The same onto a GPU; throws Error in a build without CUDA, without a usable device, or when its memory is full.
std::unique_ptr<Runner> make_cuda_runner(const Checkpoint& checkpoint, const RunnerOptions& options);
// Of a GPU: bytes free now, and the most that this process's buffers have held at any time. Throws Error likewise.
struct CudaMemory {
  int64_t free = 0, highest = 0;
};
CudaMemory cuda_memory(int gpu);
// Bytes a second that a copy within a GPU's memory reads and writes, measured now; throws Error likewise.
double cuda_copy_bandwidth(int gpu);

}  // namespace fidelio
