#include "compress/preflight.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>

#include "alloc/evolve.h"
#include "core/file.h"
#include "core/foreign/units.h"
#include "eval/fidelity/row_distances.h"
#include "quant/device/workbench.h"
#include "runtime/taps.h"
#include "step/build.h"

namespace fidelio {
namespace {

// CandidateBytes are sizes of the candidates: of all as they are stored and packed, and of the stop and of the format
// that take most. Packed candidates are as large as stored ones, except for floating-point codes, which have no kernel
// here and become FP32.
struct CandidateBytes {
  int64_t stored = 0, packed = 0, stop = 0, format = 0;
  int64_t plan = 0;  // the most that the quantised linears of a plan take
  int64_t held() const { return stored <= CandidateSet::kHeldBytes ? packed : format; }
};
CandidateBytes candidate_bytes(const CompressSize& size) {
  CandidateBytes bytes;
  std::map<std::string, int64_t> stops, formats;
  for (const LinearGroup& g : size.groups)
    for (LinearId id : g.linears)
      for (const FormatSpec& f : size.formats) {
        const Shape shape = shape_of(size.source.config(), id);
        const int64_t stored =
            stored_bytes(f, shape[0], shape[1]) + shared_bytes(f);  // The journal has the codebook with each.
        const bool decoded = f.kind == Kind::fp4 || f.kind == Kind::fp8;
        const int64_t packed = decoded ? 4 * shape.elements() : stored;
        bytes.stored += stored;
        bytes.packed += packed;
        bytes.stop = std::max(bytes.stop, stops[stop_of(id)] += stored);
        bytes.format = std::max(bytes.format, formats[to_string(f)] += packed);
      }
  bytes.plan = size.budget > 0 ? std::min(size.budget, bytes.format) : bytes.format;
  return bytes;
}

// Returns the bytes of embedding or head in every format while it is decoded, rounded and compared, and the other one
// is being written.
int64_t vocabulary_bytes(const CompressSize& size) {
  int64_t most = 0, written = 0;
  for (const LinearGroup& g : size.groups)
    for (LinearId id : g.linears) {
      if (id.layer >= 0) continue;
      const Shape shape = shape_of(size.source.config(), id);
      int64_t bytes = 0;
      for (const FormatSpec& f : size.formats) bytes += stored_bytes(f, shape[0], shape[1]);
      most = std::max(most, 4 * 4 * shape.elements() + bytes + written);
      written = bytes;
    }
  return most;
}

std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// A Holding is what the phases of a compression hold: embedding and head are quantised, then the layers, sensitivities
// are measured, and plans are served. `always` is held all the time, the others by some phases.
struct Holding {
  MemoryNeed always, reference, runner, serving_runner, decoded;
  int64_t weights = 0;  // bytes of a model as a runner packs it
};

const std::vector<MemoryNeed>& largest(const std::vector<std::vector<MemoryNeed>>& phases) {
  return *std::max_element(phases.begin(), phases.end(),
                           [](const auto& x, const auto& y) { return total(x) < total(y); });
}

// Returns the columns of the widest input of a linear.
int64_t widest(const ModelConfig& c) {
  int64_t columns = c.d;
  for (const auto& [layer, stop] : stops_of(c))
    columns = std::max(columns, shape_of(c, {layer, stop->roles.front()})[1]);
  return columns;
}
// Returns the values that calibration keeps of a token: its stream, in blocks that add twice also that which the block
// begins with, and the widest input, or those of all its experts.
int64_t kept_of_token(const ModelConfig& c) { return (c.shared_f > 0 ? 2 : 1) * c.d + widest_input(c); }

// Returns the bytes of a runner's own matrices: the values of its program, of which those that only products read share
// one matrix and its scratch, the logits twice, and a state. Its cache has room for two batches.
int64_t workspace_bytes(const CompressSize& size) {
  const Program program = build_program(size.source.config(), 0);
  int64_t values = 0, prepared = 0, slots = 1;
  for (const Value& v : program.values) {
    const int64_t of_row = v.rows == Rows::slots ? program.routing.per_row : 1;
    slots = std::max(slots, of_row);
    if (v.prepared)
      prepared = std::max(prepared, v.columns);
    else
      values += (v.rows == Rows::logits ? 2 * size.logit_rows : size.rows * of_row) * v.columns;
  }
  return 4 * (values + 2 * size.rows * slots * prepared + program.state.floats());
}
int64_t batch_cache_values(const CompressSize& size) {
  const ModelConfig& c = size.source.config();
  return cached_values(c) * 2 * size.rows;
}

std::vector<std::vector<MemoryNeed>> phases_of(const CompressSize& size, const Holding& h) {
  const ModelConfig& c = size.source.config();
  const int64_t d = c.d, wide = widest(c);
  const CandidateBytes candidates = candidate_bytes(size);
  const MemoryNeed held{
      candidates.stored <= CandidateSet::kHeldBytes ? "candidates, as packed" : "candidates of one format, as packed",
      candidates.held()};
  const bool holding = candidates.stored <= CandidateSet::kHeldBytes || size.generations > 0;
  const int64_t plan = (size.on_gpu ? 1 : 2) * candidates.plan;
  std::vector<std::vector<MemoryNeed>> phases = {
      {h.always,
       h.reference,
       h.runner,
       {"candidates of one input, made and being written", size.on_gpu ? 0 : 2 * candidates.stop},
       {"calibration: streams, one Hessian and its factor",
        4 * size.calibration_tokens * kept_of_token(c) + 4 * wide * wide + 3 * 8 * wide * wide},
       h.decoded},
      {h.always,
       h.reference,
       h.runner,
       held,
       {"sensitivities: streams before every layer", 4 * size.search_tokens * d * (2 * (c.L + 1) + 1)},
       {"sensitivities: the reference's logits", kept_logit_bytes(size.search_tokens, c.v)}},
      {h.always,
       h.reference,
       h.runner,
       {held.what, holding ? held.bytes : 0},
       h.serving_runner,
       {"building a plan: two streams, three sums, a factor",
        2 * 4 * size.calibration_tokens * kept_of_token(c) + 3 * 4 * wide * wide + 3 * 8 * wide * wide},
       {size.on_gpu ? "the plan's weights, as packed" : "the plan's weights, as stored and as packed", plan}}};
  for (std::vector<MemoryNeed>& phase : phases)
    std::erase_if(phase, [](const MemoryNeed& need) { return need.bytes == 0; });
  if (size.answering_tokens > 0)
    phases.back().push_back({"the model that answers questions, and its cache",
                             h.weights + size.answering_tokens * 2 * 2 * cached_values(c) +
                                 size.answering_states * 4 * state_shape(c).floats()});
  return phases;
}

}  // namespace

std::vector<MemoryNeed> memory_needs(const CompressSize& size) {
  const ModelConfig& c = size.source.config();
  const int64_t wide = widest(c), cached = batch_cache_values(size), workspace = workspace_bytes(size);
  if (size.on_gpu)  // The GPU holds everything that is packed and everything that passes through the layers.
    return {{"the program, its libraries, the driver's and texts", 700'000'000},
            {"candidates of embedding, head or one input while they are made, or the plan's weights",
             std::max({vocabulary_bytes(size), 2 * candidate_bytes(size).stop + 6 * wide * c.d,
                       candidate_bytes(size).plan + 6 * wide * c.d})}};
  int64_t weights = 0;
  for (LinearId id : linears_of(c)) {
    const Shape shape = shape_of(c, id);
    weights += stored_bytes(size.source.format(id), shape[0], shape[1]);
  }
  // Texts touch one of the two batches that the cache has room for.
  const Holding h{.always = {"the program, its libraries and texts", 24'000'000},
                  .reference = {"weights of the reference", weights},
                  .runner = {"the reference's own matrices and cache", workspace + 4 * cached},
                  .serving_runner = {"its own matrices and cache", workspace + 2 * cached},
                  .decoded = {"one weight decoded while it is quantised", 4 * 4 * wide * c.d},
                  .weights = weights};
  std::vector<std::vector<MemoryNeed>> phases = phases_of(size, h);
  phases.push_back({h.always,
                    h.reference,
                    h.runner,
                    {"candidates of embedding or head, and their weight decoded", vocabulary_bytes(size)}});
  return largest(phases);
}

std::vector<MemoryNeed> gpu_memory_needs(const CompressSize& size) {
  const ModelConfig& c = size.source.config();
  const int64_t d = c.d, wide = widest(c), cached = 2 * batch_cache_values(size);  // All of it is allocated.
  int64_t weights = 0, largest_linear = 0;
  for (LinearId id : linears_of(c)) {
    const Shape shape = shape_of(c, id);
    // Dense weights take sixteen bits, since FP16 holds all values of BF16 but the smallest.
    const bool dense16 = size.source.format(id).kind == Kind::bf16 || size.source.format(id).kind == Kind::f16;
    weights += dense16 ? 2 * shape.elements() : stored_bytes(size.source.format(id), shape[0], shape[1]);
    if (id.layer >= 0) largest_linear = std::max(largest_linear, shape.elements());
  }
  // A GPU has activations in FP32, as blocks, as halves twice and as a product twice, and a weight that is dequantised.
  const int64_t workspace =
      workspace_bytes(size) + size.rows * slots_per_row(c) * wide * (4 + 3 + 4 + 8) + 4 * largest_linear;
  const Holding h{.always = {"the driver's own, libraries'", 600'000'000},
                  .reference = {"weights of the reference", weights},
                  .runner = {"the reference's own matrices and cache", workspace + 4 * cached},
                  .serving_runner = {"its own matrices and cache", workspace + 2 * cached},
                  .decoded = {"one weight decoded while it is quantised", 6 * 4 * wide * d},
                  .weights = weights};
  std::vector<std::vector<MemoryNeed>> phases = phases_of(size, h);
  phases.push_back(
      {h.always, h.reference, h.runner, {"the vocabulary's weight while it is quantised", 6 * 4 * c.v * d}});
  return largest(phases);
}

int64_t disk_need(const CompressSize& size) {
  const CandidateBytes candidates = candidate_bytes(size);
  // Plans that were built are kept there too. They share the layers in which they are alike, so the ten or so plans of
  // a search and its ladder take the room of about six.
  return candidates.stored + 6 * candidates.plan + 64'000'000;
}

void check_disk(const std::string& out, int64_t need, std::string_view why, std::string_view remedy) {
  namespace fs = std::filesystem;
  const fs::path parent = fs::absolute(out).parent_path(), journal = out + ".journal";
  check(fs::is_directory(parent), "{}: there is no folder {}", out, parent.string());
  auto free = static_cast<int64_t>(fs::space(parent).available);
  if (fs::is_directory(journal))
    for (const auto& entry : fs::directory_iterator(journal))
      if (entry.is_regular_file()) free += static_cast<int64_t>(entry.file_size());
  check(need <= free, "this needs {} beside {} while it runs, for {}, and {} are free there. {}", bytes_text(need), out,
        why, bytes_text(free), remedy);
}

namespace {

// Returns `most` tokens for models of up to so many parameters and fewer for larger ones, whose tokens are dearer.
int64_t tokens_for(int64_t parameters, double up_to, int64_t least, int64_t most) {
  const double share = up_to / static_cast<double>(parameters);
  return std::clamp(static_cast<int64_t>(share * static_cast<double>(most)), least, most);
}

}  // namespace

int64_t calibration_tokens_for(int64_t parameters, bool on_gpu) {
  // A plan is built some six times for each target, and each time all tokens pass two models in FP32: 55,000 tokens
  // take 6 of the 17 s in which an H200 builds one of 1.5 billion parameters (docs/results/compress-times.json).
  return tokens_for(parameters, on_gpu ? 7.5e8 : 3e7, 32768, 131072);
}

int64_t search_tokens_for(int64_t parameters, bool on_gpu) {
  return on_gpu ? tokens_for(parameters, 2e9, 4096, 16384) : tokens_for(parameters, 1e8, 2048, 4096);
}

int64_t batch_rows_for(const ModelConfig& config, int64_t context, bool on_gpu) {
  constexpr int64_t kLeast = 2048, kMost = 8192, kValues = int64_t{64} << 20;
  const int64_t rows = on_gpu ? std::clamp(kValues / widest_input(config), kLeast, kMost) : kLeast;
  return std::max(rows, context);
}

int64_t logit_rows_for(int64_t asked, bool on_gpu) { return on_gpu ? std::max<int64_t>(asked, 256) : asked; }

int64_t total(const std::vector<MemoryNeed>& needs) {
  int64_t bytes = 0;
  for (const MemoryNeed& need : needs) bytes += need.bytes;
  return bytes;
}

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  int64_t available = -1;
  for (std::string word; file >> word;)
    if (word == "MemAvailable:" && file >> available) break;
  check(available >= 0, "/proc/meminfo does not say how much memory is available");
  available *= 1024;
  const auto limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit - *used);
  return available;
}

void check_memory(const std::vector<MemoryNeed>& needs, int64_t available, std::string_view whose) {
  const MemoryNeed& most =
      *std::max_element(needs.begin(), needs.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  check(total(needs) <= available,
        "this needs {} of {} and {} are available; the most is {} ({}). Offer fewer --formats, or fewer "
        "--calibration-tokens, --search-tokens",
        bytes_text(total(needs)), whose, bytes_text(available), bytes_text(most.bytes), most.what);
}

}  // namespace fidelio
