#include "kernels/cpu/cpu.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>

#include "kernels/cpu/cpu_state.h"
#include "kernels/cpu/super/super.h"
#include "kernels/cpu/vectors/vectors.h"

namespace fidelio {
namespace {

cpu::Isa chosen_isa(const std::optional<cpu::Isa>& wanted) {
  const auto supported = cpu::supported_isas();
  if (!wanted) return supported.back();
  check(std::find(supported.begin(), supported.end(), *wanted) != supported.end(),
        "this machine has no {}: the best it has is {}", cpu::name_of(*wanted), cpu::name_of(supported.back()));
  return *wanted;
}

}  // namespace

Cpu::State::State(const Options& options)
    : pool(options.threads),
      isa(chosen_isa(options.isa)),
      kernels(cpu::kernel_set(isa)),
      bf16_dot(cpu::bf16_dot_is_faster(isa)) {}

Cpu::Cpu(const Options& options) : state_(std::make_unique<State>(options)) {}
Cpu::~Cpu() = default;
Cpu::Cpu(Cpu&&) noexcept = default;

ThreadPool& Cpu::pool() { return state_->pool; }
cpu::Isa Cpu::isa() const { return state_->isa; }

void Cpu::choose(const Matrix& logits, std::span<const ChoiceRule> rules, std::span<Choice> choices) {
  State& s = *state_;
  while (static_cast<int>(s.choosers.size()) < s.pool.threads()) s.choosers.emplace_back(s.isa);
  const auto values = static_cast<size_t>(logits.columns) * rules.size();
  cpu::choose_rows(s.pool, s.choosers, {logits.data(), values}, rules, choices);
}

// --- memory --------------------------------------------------------------------------------------------------------
Cpu::Matrix Cpu::allocate(int64_t rows, int64_t columns) {
  return {rows, columns, Buffer(static_cast<size_t>(rows * columns) * sizeof(float))};
}

Cpu::KvCache Cpu::allocate_cache(const AttentionShape& shape, int64_t pages, KvFormat format) {
  std::vector<int64_t> layers;
  int64_t bytes = 0;
  for (int layer = 0; layer < shape.depth(); ++layer) {
    const int e = shape.head_dim_of(layer), hk = shape.kv_heads_of(layer);
    check(shape.heads % hk == 0, "{} heads cannot share {} kv heads evenly", shape.heads, hk);
    check(e % 2 == 0, "the head dim must be even for rotary positions, not {}", e);
    layers.push_back(bytes);
    bytes += pages * hk * cpu::KvRecord{static_cast<cpu::KvKind>(format), e}.bytes();
  }
  state_->reserve_heads(shape);
  // There are 64 bytes more, because the widening of a record's last row reads whole vectors.
  return {format, pages, shape, std::move(layers), Buffer(static_cast<size_t>(bytes) + 64)};
}

void Cpu::reserve(int64_t rows, int64_t columns, int64_t context) { state_->reserve(rows, columns, context); }

void Cpu::State::reserve(int64_t rows, int64_t columns, int64_t positions_below) {
  max_rows = std::max(max_rows, rows);
  max_columns = std::max(max_columns, columns);
  context = std::max(context, positions_below);
  acts = Buffer(static_cast<size_t>(max_rows * max_columns) * sizeof(float));
  turn_scratch = Buffer(static_cast<size_t>(pool.threads() * max_columns) * sizeof(float));
  if (gathers) gathered_acts = Buffer(acts.size());
  ++version;
  size_t bytes = 0;
  for (cpu::Form form : {cpu::Form::bf16, cpu::Form::i8x2, cpu::Form::i8, cpu::Form::i16})
    bytes = std::max(bytes, cpu::prepared_bytes(form, max_rows, max_columns, 32));
  prepare_scratch = Buffer(bytes + 64);
  const auto n = static_cast<size_t>(max_rows);
  ids.reserve(n);
  positions.reserve(n);
  logit_rows.reserve(n);
  tiles.reserve(n);
  segments.reserve(n);
  kept.reserve(n);
  pages.reserve(n + static_cast<size_t>(context / kPageTokens));
  if (shape.heads > 0) reserve_heads(shape);
}

void Cpu::upload(std::span<const float> host, Matrix& matrix) {
  assert(static_cast<int64_t>(host.size()) <= matrix.rows * matrix.columns);
  std::memcpy(matrix.data(), host.data(), host.size_bytes());
}

void Cpu::download(const Matrix& matrix, int64_t first, int64_t count, std::span<float> host) {
  assert(first + count <= matrix.rows && static_cast<int64_t>(host.size()) >= count * matrix.columns);
  if (count == 0) return;  // no logit rows have no memory, and memcpy must not be given a null pointer
  std::memcpy(host.data(), matrix.row(first), static_cast<size_t>(count * matrix.columns) * sizeof(float));
}

void Cpu::copy(const Matrix& from, Matrix& to, int64_t rows) {
  assert(from.columns == to.columns && rows <= from.rows && rows <= to.rows);
  std::memcpy(to.data(), from.data(), static_cast<size_t>(rows * from.columns) * sizeof(float));
}

// --- weights -------------------------------------------------------------------------------------------------------
namespace {

// Returns the last fitting row of the tables for the best instruction set up to `isa`, or null if none fits.
const cpu::LinearKernel* find_kernel(const LinearWeight& weight, Activations mode, cpu::Isa isa, bool bf16_dot,
                                     const int* layout) {
  for (int set = static_cast<int>(isa); set >= 0; --set)
    for (const auto& table :
         {cpu::lowbit_kernels(static_cast<cpu::Isa>(set)), cpu::vector_kernels(static_cast<cpu::Isa>(set)),
          cpu::super_kernels(static_cast<cpu::Isa>(set)), cpu::dense_kernels(static_cast<cpu::Isa>(set))})
      for (size_t i = table.size(); i-- > 0;) {
        const cpu::LinearKernel& row = table[i];
        if (row.kind != weight.spec.kind || row.mode != mode || (row.bits != 0 && row.bits != weight.spec.bits))
          continue;
        if (layout && row.layout != *layout) continue;
        if (row.form == cpu::Form::bf16 && !bf16_dot) continue;
        if (row.accepts(weight.spec, weight.out, weight.in)) return &row;
      }
  return nullptr;
}

// Chooses the kernels of the three modes. All read one packed buffer, so they must agree on its layout. Returns false
// if a mode has no kernel.
bool choose_kernels(const LinearWeight& weight, cpu::Isa isa, bool bf16_dot, cpu::Linear& linear) {
  const cpu::LinearKernel* serving = find_kernel(weight, Activations::a16, isa, bf16_dot, nullptr);
  if (!serving) return false;
  for (Activations mode : {Activations::f32, Activations::a16, Activations::a8}) {
    linear.kernels[static_cast<size_t>(mode)] = find_kernel(weight, mode, isa, bf16_dot, &serving->layout);
    if (!linear.kernels[static_cast<size_t>(mode)]) return false;
  }
  return true;
}

// Adds the views that a packed weight of integers or of a grid offers to readings of high bits.
void add_views(cpu::Isa isa, cpu::Linear& linear) {
  size_t count = 0;
  for (int bits = 2; bits < linear.spec.bits; ++bits) {
    if (!cpu::ends_at(linear, bits)) continue;
    cpu::Linear::View view{bits, cpu::unread_bytes(linear, bits), {}};
    for (const cpu::LinearKernel& row : cpu::view_kernels(isa))
      if (row.bits == bits && row.kind == linear.spec.kind && row.layout == linear.kernels[0]->layout &&
          row.accepts(linear.spec, linear.out, linear.in))
        view.kernels[static_cast<size_t>(row.mode)] = &row;
    if (view.kernels[0] && view.kernels[1] && view.kernels[2]) linear.views[count++] = view;
  }
}

LinearWeight decoded_to_dense(const LinearWeight& weight) {
  OwnedTensor dense = OwnedTensor::allocate(DType::f32, {weight.out, weight.in});
  for (int64_t row = 0; row < weight.out; ++row)
    decode_row(weight, row,
               dense.as<float>().subspan(static_cast<size_t>(row * weight.in), static_cast<size_t>(weight.in)));
  return make_dense(std::move(dense), weight.bias);
}

}  // namespace

Cpu::Linear Cpu::pack(const LinearWeight& weight, int high_bits) {
  Linear linear;
  if (!choose_kernels(weight, state_->isa, state_->bf16_dot, linear)) {
    spdlog::info("no {} kernel for {}: a {} x {} weight is decoded to f32", cpu::name_of(state_->isa),
                 to_string(weight.spec), weight.out, weight.in);
    return pack(decoded_to_dense(weight));
  }
  linear.out = weight.out;
  linear.in = weight.in;
  linear.spec = weight.spec;
  linear.packed = linear.kernels[static_cast<size_t>(Activations::a16)]->pack(weight);
  if (weight.spec.kind == Kind::integer || weight.spec.kind == Kind::grid) {
    cpu::end_at(state_->isa, high_bits, linear);
    add_views(state_->isa, linear);
  }
  linear.packed = state_->weights.keep(std::move(linear.packed));
  if (weight.bias) {
    linear.bias =
        Buffer(static_cast<size_t>((weight.out + 63) / 64 * 64) * sizeof(float));  // blocks may read past the end
    std::memcpy(linear.bias.data(), weight.bias.view.data, static_cast<size_t>(weight.out) * sizeof(float));
  }
  return linear;
}

std::string Cpu::kernel_name(const Linear& weight, Activations mode) const { return weight.kernel(mode).name; }

int64_t Cpu::bytes_read(const Linear& weight, Reading reading) const {
  const cpu::Linear::View* view = weight.view(reading);
  return weight.bytes() - (view ? view->unread : 0);
}

// --- linears -------------------------------------------------------------------------------------------------------
Cpu::State::InputForm Cpu::State::form_of(const Linear& weight, const Acts& input) const {
  const cpu::Form form = kernel(weight, input).form;
  return {form, cpu::is_integer(form) ? activation_group(weight.spec) : input.columns,
          form == cpu::Form::i8 ? activation_bits(reading.activations, weight.spec) : 0};
}

cpu::Prepared Cpu::State::prepared(const Acts& input, const InputForm& as) {
  assert(input.version == version && "an Acts dies at the next call that returns one");
  if (cached_version == version && InputForm{cached.form, cached.group, cached.bits} == as) return cached;
  const cpu::IntegerBits integers = input.fine > 0 ? cpu::IntegerBits(as.bits, input.columns - input.fine) : as.bits;
  std::byte* scratch = prepare_scratch.data();
  const int64_t step = std::max<int64_t>(4, (input.rows + pool.threads() * 4 - 1) / (pool.threads() * 4));
  const auto part = [&](int64_t first) {
    return cpu::prepare(as.form, isa, input.values, input.rows, input.columns, as.group, integers, scratch, first,
                        std::min(first + step, input.rows));
  };
  if (as.form != cpu::Form::f32 && input.rows > step)
    pool.run((input.rows + step - 1) / step, [&](int64_t job, int) { part(job * step); });
  // This returns the description of all rows. For few rows it is also the whole preparation.
  cached = cpu::prepare(as.form, isa, input.values, input.rows, input.columns, as.group, integers, scratch, 0,
                        input.rows > step ? 0 : input.rows);
  cached_version = version;
  return cached;
}

namespace {

// A Share is one weight's part of a parallel run. Outputs are cut into pieces of `blocks` blocks. With few rows a
// piece is about 32 KB of weights, and a thread takes runs of pieces, long ones at first and short ones at the end.
// With many rows a piece is one L2 tile of 64 outputs.
struct Share {
  const cpu::Linear* weight;
  const cpu::LinearKernel* kernel;
  const cpu::Prepared* x;
  float* y;
  int64_t y_stride, total, blocks, first_job, jobs;
  bool add;

  void multiply(int64_t first, int64_t last) const {
    kernel->multiply(*weight, *x, first * blocks, std::min(last * blocks, total), y, y_stride, add);
  }
};

constexpr int64_t kMaxWeights = 16;
constexpr int64_t kMaxRouted = 64;  // the most products of routed rows in one parallel run

Share share_of(const cpu::Linear& weight, const cpu::LinearKernel& kernel, const cpu::Prepared& x, float* y, bool add,
               int64_t first_job) {
  const int64_t total = (weight.out + kernel.block - 1) / kernel.block;
  const int64_t block_bytes = std::max<int64_t>(1, static_cast<int64_t>(weight.packed.size()) / total);
  const int64_t blocks = std::max<int64_t>(1, x.rows > 16 ? 64 / kernel.block : (32 << 10) / block_bytes);
  return {&weight, &kernel, &x, y, weight.out, total, blocks, first_job, (total + blocks - 1) / blocks, add};
}

void run_shares(ThreadPool& pool, std::span<const Share> shares) {
  const int64_t jobs = shares.back().first_job + shares.back().jobs;
  const auto range = [&](int64_t first, int64_t last, int) {
    auto share = std::ranges::upper_bound(shares, first, {}, &Share::first_job) - 1;
    for (; share != shares.end() && share->first_job < last; ++share)
      share->multiply(std::max(first - share->first_job, int64_t{0}), std::min(last - share->first_job, share->jobs));
  };
  const bool many = std::ranges::any_of(shares, [](const Share& share) { return share.x->rows > 16; });
  if (many) return pool.run(jobs, [&](int64_t job, int thread) { range(job, job + 1, thread); });
  pool.run_ranges(jobs, range);
}

}  // namespace

void Cpu::linear(Acts input, std::span<const std::pair<const Linear*, Matrix*>> weights) {
  assert(static_cast<int64_t>(weights.size()) <= kMaxWeights);
  State& s = *state_;
  bool done[kMaxWeights] = {};
  for (size_t i = 0; i < weights.size(); ++i) {
    if (done[i]) continue;
    // All weights that read the input in the form of weight i go into one parallel run.
    const State::InputForm form = s.form_of(*weights[i].first, input);
    const cpu::Prepared x = s.prepared(input, form);
    Share shares[kMaxWeights];
    size_t count = 0;
    int64_t jobs = 0;
    for (size_t j = i; j < weights.size(); ++j) {
      const Linear& w = *weights[j].first;
      if (done[j] || s.form_of(w, input) != form) continue;
      assert(w.in == input.columns && weights[j].second->columns == w.out && weights[j].second->rows >= input.rows);
      done[j] = true;
      shares[count] = share_of(w, s.kernel(w, input), x, weights[j].second->data(), false, jobs);
      jobs += shares[count++].jobs;
    }
    run_shares(s.pool, {shares, count});
  }
}

void Cpu::linear_add(Acts input, const Linear& weight, Matrix& x) {
  State& s = *state_;
  assert(weight.in == input.columns && x.columns == weight.out && x.rows >= input.rows);
  const cpu::Prepared prepared = s.prepared(input, s.form_of(weight, input));
  const Share share = share_of(weight, s.kernel(weight, input), prepared, x.data(), true, 0);
  run_shares(s.pool, {&share, 1});
}

// Takes as many products at a time as there is scratch for, most often all. It prepares their rows and then
// multiplies all of them.
void Cpu::linear_routed(Acts input, std::span<const RoutedProduct<Experts, Matrix>> products) {
  State& s = *state_;
  assert(input.version == s.version && "an Acts dies at the next call that returns one");
  s.cached_version = 0;  // the scratch of the last preparation is used here
  const std::vector<ExpertRows>& groups = s.routes.groups;
  const size_t all = groups.size() * products.size();
  struct Input {  // the form and rows that a product reads; neighbours with the same ones share the preparation
    State::InputForm as;
    int64_t first, rows;
    bool operator==(const Input&) const = default;
  };
  Input inputs[kMaxRouted];
  cpu::Prepared prepared[kMaxRouted];
  Share shares[kMaxRouted];
  size_t offsets[kMaxRouted], seen[kMaxRouted];  // the scratch of each input; the input of each product
  for (size_t next = 0; next < all;) {
    const size_t begin = next;
    size_t count = 0, bytes = 0;
    int64_t jobs = 0;
    for (; next < all && next - begin < kMaxRouted; ++next) {
      const auto& [expert, first, rows] = groups[next / products.size()];
      const Linear& w = *products[next % products.size()].weights->weights[static_cast<size_t>(expert)];
      assert(w.in == input.columns && first + rows <= input.rows);
      const Input wanted{s.form_of(w, input), first, rows};
      if (count == 0 || inputs[count - 1] != wanted) {
        const size_t own = (cpu::prepared_bytes(wanted.as.form, rows, input.columns, wanted.as.group) + 63) / 64 * 64;
        if (count > 0 && bytes + own > s.prepare_scratch.size()) break;
        inputs[count] = wanted;
        offsets[count++] = bytes;
        bytes += own;
      }
      seen[next - begin] = count - 1;
    }
    const auto prepare = [&](int64_t i, int) {
      const auto& [as, first, rows] = inputs[i];
      prepared[i] = cpu::prepare(as.form, s.isa, input.values + first * input.columns, rows, input.columns, as.group,
                                 as.bits, s.prepare_scratch.data() + offsets[i], 0, rows);
    };
    if (input.rows > 16)
      s.pool.run(static_cast<int64_t>(count), prepare);
    else
      for (size_t i = 0; i < count; ++i) prepare(static_cast<int64_t>(i), 0);
    for (size_t i = begin; i < next; ++i) {
      const ExpertRows& group = groups[i / products.size()];
      const auto& [weights, y] = products[i % products.size()];
      const Linear& w = *weights->weights[static_cast<size_t>(group.expert)];
      assert(y->columns == w.out && y->rows >= input.rows);
      Share& share = shares[i - begin] =
          share_of(w, s.kernel(w, input), prepared[seen[i - begin]], y->row(group.first_slot), false, jobs);
      jobs += share.jobs;
    }
    run_shares(s.pool, {shares, next - begin});
  }
}

}  // namespace fidelio
