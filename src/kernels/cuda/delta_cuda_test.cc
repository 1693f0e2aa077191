// These tests hold the operations of gated delta nets on the GPU to kernels/ref, and to the laws of backend.h. Without
// a GPU they are skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/delta_fixture.h"
#include "kernels/ref/ref.h"

namespace fidelio {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

const AttentionShape kShape{{{}}, {{Floats(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};
constexpr int kSlots = 8, kLayers = 2, kLayer = 1;  // the layer that is tested

Floats rows_of(const Floats& values, int64_t first, int64_t count, int64_t columns) {
  return {values.begin() + first * columns, values.begin() + (first + count) * columns};
}

// A Net is the shape of a delta net.
struct Net {
  int key_dim, value_dim, key_heads, group, kernel;
  int heads() const { return key_heads * group; }
  int keys() const { return key_heads * key_dim; }
  int channels() const { return 2 * keys() + heads() * value_dim; }
  StateShape shape() const {
    return {.layers = kLayers,
            .heads = heads(),
            .key_dim = key_dim,
            .value_dim = value_dim,
            .rows = kernel - 1,
            .channels = channels()};
  }
};
const Net kNets[] = {{128, 128, 2, 3, 4}, {8, 10, 2, 1, 4},   {40, 72, 1, 3, 2},
                     {256, 16, 1, 2, 4},  {64, 256, 1, 1, 7}, {30, 18, 2, 2, 1}};

// A Part is rows of one sequence in a batch. They are the rows from `first` on of the test's inputs.
struct Part {
  int first, rows, position;
  int32_t state;
  std::vector<std::pair<int, int32_t>> kept;  // a row, counted from the part's first, and a slot
};
// Some states are written where they were read, some to two slots, and one segment keeps nothing.
const std::vector<Part> kOutputs = {{0, 1, 5, 0, {{0, 0}}},
                                    {1, 9, 9, 1, {{0, 1}, {3, 2}, {8, 3}}},
                                    {10, 17, 0, -1, {{16, 4}, {16, 5}}},
                                    {27, 2, 70, 6, {}},
                                    {29, 3, 200, 7, {{2, 7}}}};
// Whole chunks begin at rows 4, 68, 68 again and 64 of the parts; states inside of chunks are kept too.
const std::vector<Part> kPrompts = {{0, 140, 60, 0, {{0, 1}, {30, 2}, {67, 0}, {131, 3}, {139, 4}}},
                                    {140, 5, 3, -1, {{4, 5}}},
                                    {145, 64, 64, -1, {{63, 6}}},
                                    {209, 190, 0, 7, {{127, 7}}}};
constexpr int kRows = 399;

struct Inputs {
  Floats x, b, a, decay, w;
};
// Returns random inputs with decays from nearly 1 to nearly 0.
Inputs inputs_of(const Net& net, Rng& rng) {
  Inputs in{normals(rng, int64_t{kRows} * net.channels()), normals(rng, int64_t{kRows} * net.heads(), 2),
            normals(rng, int64_t{kRows} * net.heads(), 2), normals(rng, 2 * net.heads()),
            normals(rng, int64_t{net.channels()} * net.kernel)};
  for (int head = 0; head < net.heads(); ++head)
    in.decay[static_cast<size_t>(head)] = -std::exp(2 * in.decay[static_cast<size_t>(head)]);
  return in;
}

// Kept is what all slots hold: (slots, layers, .).
struct Kept {
  Floats matrices, inputs;
  bool operator==(const Kept&) const = default;
};
Kept random_states(const Net& net, Rng& rng) {
  const StateShape shape = net.shape();
  return {normals(rng, kSlots * kLayers * shape.matrices(), 0.3), normals(rng, kSlots * kLayers * shape.inputs())};
}

// Result is what a step gives: y of the convolution, y of the delta rule, and the slots afterwards.
struct Result {
  Floats convolved, read;
  Kept kept;
  bool operator==(const Result&) const = default;
};

class CudaDelta : public CudaDeltaFixture {
 protected:
  CudaDelta() : CudaDeltaFixture(512) {}

  // Begins a step of these parts, in this order.
  int begin(const std::vector<Part>& parts, RowKind kind, Activations mode) {
    Batch batch;
    const std::vector<int32_t> ids(kRows, 0), pages = {0};
    for (const Part& part : parts) {
      batch.append(std::span(ids).first(static_cast<size_t>(part.rows)), part.position, pages, 0, kind);
      batch.begin_from(part.state);
      for (const auto& [row, slot] : part.kept) batch.keep_state(row, slot);
    }
    b().begin(batch, mode, kShape);
    return static_cast<int>(batch.rows());
  }

  // A Step has a net's inputs and states on the device.
  struct Step {
    CudaDelta& test;
    const Net& net;
    const Inputs& in;
    Cuda::States states = test.b().allocate_states(net.shape(), kSlots);
    Cuda::Matrix x = test.b().allocate(kRows, net.channels()), beta = test.b().allocate(kRows, net.heads()),
                 a = test.b().allocate(kRows, net.heads()), decay = test.matrix(in.decay, net.heads()),
                 w = test.matrix(in.w, net.kernel), y = test.b().allocate(kRows, net.channels()),
                 read = test.b().allocate(kRows, int64_t{net.heads()} * net.value_dim);

    void put(const Kept& kept) {
      send(kept.matrices, states.matrices);
      send(kept.inputs, states.inputs);
    }
    Kept kept() const { return {fetched(states.matrices), fetched(states.inputs)}; }
    // Runs both operations over the parts, as one step of repeat() if `number` is not 0.
    Result run(const std::vector<Part>& parts, RowKind kind, Activations mode = Activations::a16, uint64_t number = 0) {
      const int n = test.begin(parts, kind, mode);
      gather(parts, in.x, x), gather(parts, in.b, beta), gather(parts, in.a, a);
      test.b().upload(Floats(static_cast<size_t>(kRows * y.columns), NAN), y);
      test.b().upload(Floats(static_cast<size_t>(kRows * read.columns), NAN), read);
      const auto work = [&] {
        test.b().convolve(x, w, y, states, kLayer);
        test.b().delta_rule(x, beta, a, decay, read, states, kLayer);
      };
      if (number > 0)
        test.b().repeat(number, work);
      else
        work();
      return {test.values_of(y, n), test.values_of(read, n), kept()};
    }
    void gather(const std::vector<Part>& parts, const Floats& from, Cuda::Matrix& to) {
      Floats values;
      for (const Part& part : parts) {
        const Floats rows = rows_of(from, part.first, part.rows, to.columns);
        values.insert(values.end(), rows.begin(), rows.end());
      }
      test.b().upload(values, to);
    }
    static void send(const Floats& from, cuda::DeviceBuffer& to) {
      const cuda::Stream stream = cuda::make_stream();
      cuda::to_device(stream, to.data(), from.data(), to.size());
      cuda::wait_for(stream);
      cuda::destroy_stream(stream);
    }
    static Floats fetched(const cuda::DeviceBuffer& from) {
      Floats to(from.size() / sizeof(float));
      const cuda::Stream stream = cuda::make_stream();
      cuda::from_device(stream, to.data(), from.data(), from.size());
      cuda::destroy_stream(stream);
      return to;
    }
  };
};

size_t place(int slot, int64_t of_layer) { return static_cast<size_t>((slot * kLayers + kLayer) * of_layer); }

// Convolutions copy their states. A sum of `kernel` products has as many roundings, each at most u times the
// magnitudes; the steepest slope of SiLU is 1.1, and it has about eight roundings of its own.
void expect_convolved(const Net& net, const Inputs& in, const Kept& before, const std::vector<Part>& parts,
                      const Result& got) {
  const StateShape shape = net.shape();
  Floats kept = before.inputs;
  auto y = got.convolved.begin();
  for (const Part& part : parts) {
    Floats window(static_cast<size_t>(shape.inputs()), 0.0f);
    if (part.state >= 0)
      std::copy_n(before.inputs.begin() + static_cast<std::ptrdiff_t>(place(part.state, shape.inputs())),
                  shape.inputs(), window.begin());
    for (int row = 0; row < part.rows; ++row) {
      const Floats newest = rows_of(in.x, part.first + row, 1, net.channels());
      window.insert(window.end(), newest.begin(), newest.end());
      for (int c = 0; c < net.channels(); ++c) {
        double sum = 0, size = 0;
        for (int i = 0; i < net.kernel; ++i) {
          const double term = double{in.w[static_cast<size_t>(c * net.kernel + i)]} *
                              window[static_cast<size_t>(i * net.channels() + c)];
          sum += term, size += std::abs(term);
        }
        const double want = sum / (1 + std::exp(-sum));
        ASSERT_NEAR(*y++, want, 0x1p-24 * (1.1 * (net.kernel + 1) * size + 8 * std::abs(want)) + 1e-30) << row;
      }
      window.erase(window.begin(), window.begin() + net.channels());
      for (const auto& [of, slot] : part.kept)
        if (of == row)
          std::copy(window.begin(), window.end(),
                    kept.begin() + static_cast<std::ptrdiff_t>(place(slot, shape.inputs())));
    }
  }
  EXPECT_EQ(got.kept.inputs, kept);
}

// A state is multiplied and added to once a row. Its errors, in units of 2^-24 of the largest norm that it has had, are
// added at random, so they grow no faster than the root of the rows; the sums over keys and over a chunk's rows add a
// few. What a unit query reads of a state has the errors of one row of it.
void expect_read(const Net& net, const Inputs& in, const Kept& before, const std::vector<Part>& parts,
                 const Result& got) {
  const StateShape shape = net.shape();
  const auto size_of = [](std::span<const double> values) {
    double sum = 0;
    for (const double v : values) sum += v * v;
    return std::sqrt(sum);
  };
  const int64_t of_head = int64_t{net.key_dim} * net.value_dim;
  Floats untouched = before.matrices;
  int64_t at = 0;  // the row of y
  for (const Part& part : parts) {
    for (int head = 0; head < net.heads(); ++head) {
      Doubles state(static_cast<size_t>(of_head));
      if (part.state >= 0)
        std::copy_n(
            before.matrices.begin() + static_cast<std::ptrdiff_t>(place(part.state, shape.matrices())) + head * of_head,
            of_head, state.begin());
      double largest = size_of(state);
      for (int row = 0; row < part.rows; ++row) {
        const auto of = [&](const Floats& from, int64_t columns, int64_t first, int64_t count) {
          const auto begin = from.begin() + (part.first + row) * columns + first;
          return Doubles(begin, begin + count);
        };
        const int64_t key = int64_t{head} / net.group * net.key_dim;
        const Doubles q = of(in.x, net.channels(), key, net.key_dim),
                      k = of(in.x, net.channels(), net.keys() + key, net.key_dim),
                      v = of(in.x, net.channels(), 2 * net.keys() + int64_t{head} * net.value_dim, net.value_dim);
        const double a = of(in.a, net.heads(), head, 1)[0], beta = of(in.b, net.heads(), head, 1)[0],
                     rate = in.decay[static_cast<size_t>(head)],
                     bias = in.decay[static_cast<size_t>(net.heads() + head)];
        Doubles want(static_cast<size_t>(net.value_dim));
        ref::delta_step({q, k, v, std::exp(rate * std::log1p(std::exp(a + bias))), 1 / (1 + std::exp(-beta))}, state,
                        want);
        largest = std::max(largest, size_of(state));
        const auto y = got.read.begin() + ((at + row) * net.heads() + head) * net.value_dim;
        Doubles error(want.size());
        for (size_t i = 0; i < want.size(); ++i) error[i] = y[static_cast<std::ptrdiff_t>(i)] - want[i];
        ASSERT_LE(size_of(error), 32 * 0x1p-24 * largest / std::sqrt(net.key_dim)) << "head " << head << " row " << row;
        for (const auto& [of_row, slot] : part.kept) {
          if (of_row != row) continue;
          const auto first = static_cast<std::ptrdiff_t>(place(slot, shape.matrices())) + head * of_head;
          Doubles off(state.size());
          for (size_t i = 0; i < off.size(); ++i) off[i] = got.kept.matrices[static_cast<size_t>(first) + i] - state[i];
          EXPECT_LE(size_of(off), (16 + 2 * std::sqrt(row + 1)) * 0x1p-24 * largest) << "slot " << slot;
          std::copy_n(got.kept.matrices.begin() + first, of_head, untouched.begin() + first);
        }
      }
    }
    at += part.rows;
  }
  EXPECT_EQ(got.kept.matrices, untouched);  // other slots and the other layer
}

TEST_F(CudaDelta, AgreesWithTheReference) {
  Rng rng(1);
  for (const Net& net : kNets) {
    SCOPED_TRACE(testing::Message() << net.key_dim << " x " << net.value_dim << ", kernel " << net.kernel);
    const Inputs in = inputs_of(net, rng);
    const Kept before = random_states(net, rng);
    Step step{*this, net, in};
    const auto check_step = [&](const std::vector<Part>& parts, RowKind kind, Activations mode) {
      step.put(before);
      const Result got = step.run(parts, kind, mode);
      expect_convolved(net, in, before, parts, got);
      expect_read(net, in, before, parts, got);
    };
    check_step(kOutputs, RowKind::output, Activations::a16);
    check_step(kPrompts, RowKind::prompt, Activations::a16);
    check_step(kPrompts, RowKind::prompt, Activations::f32);
    check_step(kOutputs, RowKind::prompt, Activations::a16);
  }
}

// Decays of almost 1 keep everything, and those of almost 0 nothing; differences of their sums must not overflow.
TEST_F(CudaDelta, ExtremeDecaysAgreeWithTheReference) {
  Rng rng(2);
  const Net net{64, 64, 1, 2, 4};
  Inputs in = inputs_of(net, rng);
  in.decay[0] = -1e-4f, in.decay[1] = -80;
  const Kept before = random_states(net, rng);
  Step step{*this, net, in};
  for (const RowKind kind : {RowKind::output, RowKind::prompt}) {
    step.put(before);
    expect_read(net, in, before, kPrompts, step.run(kPrompts, kind));
  }
}

TEST_F(CudaDelta, RowsDoNotDependOnTheBatch) {
  Rng rng(3);
  for (const Net& net : {kNets[0], kNets[1], kNets[2]}) {
    const Inputs in = inputs_of(net, rng);
    const Kept before = random_states(net, rng);
    Step step{*this, net, in};
    for (const auto& [parts, kind] : {std::pair(kOutputs, RowKind::output), std::pair(kPrompts, RowKind::prompt),
                                      std::pair(kOutputs, RowKind::prompt)}) {
      step.put(before);
      const Result together = step.run(parts, kind);
      step.put(before);
      Result alone;
      for (const Part& part : parts) {
        const Result one = step.run({part}, kind);
        alone.convolved.insert(alone.convolved.end(), one.convolved.begin(), one.convolved.end());
        alone.read.insert(alone.read.end(), one.read.begin(), one.read.end());
        alone.kept = one.kept;
      }
      EXPECT_EQ(alone, together) << net.key_dim;
    }
  }
}

// Parts that follow each other are cut at these rows; the state between two goes through slot 1.
std::vector<Part> cut(int rows, int position, int32_t state, const std::vector<int>& cuts) {
  std::vector<Part> parts;
  int first = 0;
  for (const int end : cuts) {
    parts.push_back({first, end - first, position + first, first == 0 ? state : 1, {{end - first - 1, 1}}});
    first = end;
  }
  parts.push_back({first, rows - first, position + first, first == 0 ? state : 1, {{rows - first - 1, 1}}});
  return parts;
}

TEST_F(CudaDelta, SequencesMayBeCut) {
  Rng rng(4);
  for (const Net& net : {kNets[0], kNets[1]}) {
    const Inputs in = inputs_of(net, rng);
    const Kept before = random_states(net, rng);
    Step step{*this, net, in};
    // Runs the parts one after the other.
    const auto run = [&](const std::vector<Part>& parts, RowKind kind) {
      step.put(before);
      Result all;
      for (const Part& part : parts) {
        const Result one = step.run({part}, kind);
        all.convolved.insert(all.convolved.end(), one.convolved.begin(), one.convolved.end());
        all.read.insert(all.read.end(), one.read.begin(), one.read.end());
        all.kept = one.kept;
      }
      return all;
    };
    // Whole chunks end at rows 108, 172, 236 and 300. Prompts are cut between them, and in the rows around them.
    const Result prompt = run(cut(310, 20, 0, {}), RowKind::prompt);
    EXPECT_EQ(run(cut(310, 20, 0, {44}), RowKind::prompt), prompt);
    EXPECT_EQ(run(cut(310, 20, 0, {10, 44, 108, 236}), RowKind::prompt), prompt);
    EXPECT_EQ(run(cut(310, 20, 0, {172, 236, 301, 309}), RowKind::prompt), prompt);
    // Rows of output may be cut anywhere.
    const Result output = run(cut(9, 61, -1, {}), RowKind::output);
    EXPECT_EQ(run(cut(9, 61, -1, {1, 2, 3, 4, 5, 6, 7, 8}), RowKind::output), output);
    EXPECT_EQ(run(cut(9, 61, -1, {4}), RowKind::output), output);
  }
}

// Steps of one shape share a recorded graph, whichever rows belong to a sequence and wherever its states are.
TEST_F(CudaDelta, RecordedStepsFollowTheBatch) {
  Rng rng(5);
  const Net net = kNets[0];
  const Inputs in = inputs_of(net, rng);
  const Kept before = random_states(net, rng);
  Step recorded{*this, net, in}, plain{*this, net, in};
  const auto parts_of = [&](const std::vector<int>& counts) {
    std::vector<Part> parts;
    std::vector<int32_t> slots(kSlots);
    for (int32_t i = 0; i < kSlots; ++i) slots[static_cast<size_t>(i)] = i;
    for (size_t i = kSlots; i > 1; --i) std::swap(slots[i - 1], slots[rng.below(i)]);
    for (size_t i = 0; i < counts.size(); ++i) {
      const int rows = counts[i], first = static_cast<int>(rng.below(kRows - 12));
      const int32_t from = rng.below(4) == 0 ? -1 : slots[i];
      parts.push_back({first, rows, static_cast<int>(rng.below(100)), from, {}});
      if (rng.below(4) > 0) parts.back().kept.emplace_back(rows - 1, slots[i]);
    }
    return parts;
  };
  recorded.put(before), plain.put(before);
  for (int round = 0; round < 4; ++round)
    for (const std::vector<int>& counts : {std::vector{1},
                                           {2},
                                           {1, 1},
                                           {1, 2, 3},
                                           {2, 2, 2},
                                           {3, 2, 1, 4, 2},
                                           {1, 1, 1, 1, 1, 7},
                                           {4, 1, 3, 1, 1, 1, 1}}) {
      const std::vector<Part> parts = parts_of(counts);
      EXPECT_EQ(recorded.run(parts, RowKind::output, Activations::a16, 1), plain.run(parts, RowKind::output)) << round;
    }
}

TEST_F(CudaDelta, RefusesShapesThatItsKernelsDoNotTake) {
  const auto allocate = [&](const Net& net) { b().allocate_states(net.shape(), 1); };
  EXPECT_THROW(allocate({257, 8, 1, 1, 4}), Error);
  EXPECT_THROW(allocate({8, 8, 1, 1, 17}), Error);
  EXPECT_NO_THROW(allocate({256, 300, 1, 1, 16}));
}

}  // namespace
}  // namespace fidelio
