// This file defines what a Cpu holds between calls. Only cpu*.cc includes it.
#pragma once
#include <algorithm>
#include <concepts>
#include <vector>

#include "kernels/cpu/choice/choose.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear/dense.h"

namespace fidelio {

static_assert(kPageTokens == cpu::kTokens && static_cast<int>(KvFormat::i4x2) == static_cast<int>(cpu::KvKind::i4x2));

// Returns the rows handed to a thread at once: enough to pay for handing them out, and one piece if the work is
// small.
inline int64_t rows_per_job(int64_t rows, int64_t columns, int threads) {
  const int64_t enough = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, columns));
  return std::max(enough, (rows + threads * 4 - 1) / (threads * 4));
}

// Calls f(row) or f(row, thread) for all rows on the threads of a pool.
template <typename F>
void for_rows(ThreadPool& pool, int64_t rows, int64_t columns, F&& f) {
  const int64_t step = rows_per_job(rows, columns, pool.threads());
  pool.run((rows + step - 1) / step, [&](int64_t job, int thread) {
    for (int64_t row = job * step; row < std::min((job + 1) * step, rows); ++row)
      if constexpr (std::invocable<F, int64_t, int>)
        f(row, thread);
      else
        f(row);
  });
}

struct Cpu::State {
  // A Tile is consecutive rows of one sequence inside one page, the unit of work of rope_append and attend. No two
  // tiles share a page, so appending needs no lock.
  struct Tile {
    int32_t first_row, rows;
    int64_t first_position;
    int64_t pages;  // the offset of the sequence's list in State::pages
  };

  explicit State(const Options& options);
  void reserve(int64_t rows, int64_t columns, int64_t context);
  void reserve_heads(const AttentionShape& shape);
  void cut_tiles(const Batch& batch);
  void compute_rotations();
  // Turns heads of a row by its position, normed before where there is a weight. turn_query() does so with all heads of
  // q, scaled before.
  void turn(float* head, int64_t row, int layer, const Matrix* norm) const;
  void turn_query(Matrix& q, int64_t row, int layer, const Matrix* norm) const;
  int64_t pairs_before(int rotation) const;  // the pairs of columns that rotations before this one have in a row
  Acts publish(int64_t rows, int64_t columns);
  // An InputForm says how a product reads its rows. The group and the bits are set for integers only.
  struct InputForm {
    cpu::Form form;
    int64_t group;
    int bits;
    bool operator==(const InputForm&) const = default;
  };
  InputForm form_of(const Linear& weight, const Acts& input) const;
  cpu::Prepared prepared(const Acts& input, const InputForm& as);
  const cpu::LinearKernel& kernel(const Linear& weight, const Acts& input) const {
    return weight.kernel(input.for_head ? Reading(reading.activations) : reading);
  }
  float* thread_scratch(int thread) { return attend_scratch.as<float>() + thread * attend_scratch_floats; }
  cpu::AttendArgs attend_args(const Matrix& q, const KvCache& cache, int layer, const Matrix* sinks, const Tile& tile,
                              int64_t head);
  bool attend_split(const Matrix& q, const KvCache& cache, int layer, const Matrix* sinks);

  auto gate_function(Gate gate) const {
    return gate == Gate::silu ? kernels.swiglu : gate == Gate::sigmoid ? kernels.sigmoid_gated : kernels.geglu;
  }
  // The rows of a segment whose states are kept.
  std::span<const KeptState> kept_of(const Segment& segment) const;

  ThreadPool pool;
  Arena weights;
  cpu::Isa isa;
  const cpu::KernelSet& kernels;
  bool bf16_dot;

  int64_t max_rows = 0, max_columns = 0, context = 0;
  Buffer acts;           // (rows, columns) FP32: the output of the last norm, attend or gated
  uint64_t version = 0;  // the number of the newest Acts
  Buffer turn_scratch;   // (threads, columns)
  bool gathers = false;  // an Order was made
  Buffer gathered_acts;  // (rows, columns) the newest Acts after gather()
  Buffer prepare_scratch;
  cpu::Prepared cached{};  // the last preparation of Acts
  uint64_t cached_version = 0;

  Reading reading;
  AttentionShape shape;
  Routes routes;  // the routes of the step's rows
  std::vector<int32_t> ids, positions, logit_rows, pages;
  std::vector<Tile> tiles;
  std::vector<Segment> segments;
  std::vector<KeptState> kept;
  Buffer delta_scratch;  // one part for each thread
  int64_t delta_scratch_floats = 0;
  Buffer cosine, sine;              // (rows, pairs) for each rotation
  std::vector<float> query_factor;  // one for each row
  Buffer attend_scratch;            // one part for each thread
  int64_t attend_scratch_floats = 0, tile_positions = 0;
  int64_t scratch_group = 0, scratch_head = 0;  // the widest group of heads, and head, that there is scratch for
  Buffer partial;                               // the partial results of attend_split
  std::vector<cpu::Chooser> choosers;           // one for each thread
};

}  // namespace fidelio
