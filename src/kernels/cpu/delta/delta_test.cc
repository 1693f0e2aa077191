// This file tests the operations of gated delta nets against the reference, on every instruction set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "kernels/cpu/linear/dense.h"
#include "kernels/cpu/test_support.h"
#include "kernels/ref/ref.h"

namespace fidelio::cpu {
namespace {

constexpr int kLayers = 2, kLayer = 1;  // the states of the first layer lie before those of the one that is tested

struct Net {
  int key_heads, heads, key_dim, value_dim, kernel;
  int64_t keys() const { return int64_t{key_heads} * key_dim; }
  int64_t values() const { return int64_t{heads} * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
  StateShape shape() const { return {kLayers, heads, key_dim, value_dim, kernel - 1, channels()}; }
};
std::string name_of(const Net& n) {
  return fmt::format("{}/{} heads of {} x {}, kernel {}", n.key_heads, n.heads, n.key_dim, n.value_dim, n.kernel);
}

// The inputs of a sequence, and the weights.
struct Inputs {
  std::vector<float> x, b, a, weight, decay;
  Inputs(const Net& n, int rows, uint64_t seed)
      : x(normals(rows * n.channels(), seed)),
        b(normals(int64_t{rows} * n.heads, seed + 1)),
        a(normals(int64_t{rows} * n.heads, seed + 2)),
        weight(normals(n.channels() * n.kernel, 91)),
        decay(normals(int64_t{2} * n.heads, 92)) {
    for (int i = 0; i < n.heads; ++i) decay[static_cast<size_t>(i)] = -std::abs(decay[static_cast<size_t>(i)]);
  }
};

// Consecutive rows of a sequence in a step: where they begin, the slot of the state before them, and the rows, counted
// from the first of them, after which it is kept.
struct Piece {
  int sequence, first, rows;
  RowKind kind = RowKind::prompt;
  int from = -1;
  std::vector<KeptState> kept = {};
};

// A Play takes sequences through a delta net in steps. The convolution and the delta rule both read the inputs, so that
// each is judged by itself.
class Play {
 public:
  Play(const Net& net, const std::vector<Inputs>& inputs, Isa isa, int threads = 2, int slots = 4)
      : net_(net), inputs_(inputs), cpu_({.threads = threads, .isa = isa}) {
    cpu_.reserve(kMostRows, net.channels(), 4096);
    states_ = cpu_.allocate_states(net.shape(), slots);
    weight_ = cpu_.pack_convolution(inputs[0].weight, net.channels());
    decay_ = cpu_.allocate(2, net.heads);
    cpu_.upload(inputs[0].decay, decay_);
    for (const Inputs& i : inputs) {
      const size_t rows = i.b.size() / static_cast<size_t>(net.heads);
      convolved.emplace_back(i.x.size());
      read.emplace_back(rows * static_cast<size_t>(net.values()));
    }
  }
  void step(const std::vector<Piece>& pieces) {
    Batch batch;
    Cpu::Matrix x = cpu_.allocate(kMostRows, net_.channels()), y = cpu_.allocate(kMostRows, net_.channels()),
                b = cpu_.allocate(kMostRows, net_.heads), a = cpu_.allocate(kMostRows, net_.heads),
                out = cpu_.allocate(kMostRows, net_.values());
    const auto place = [](const std::vector<float>& from, const Piece& piece, Cpu::Matrix& to, int64_t row) {
      const auto first = from.begin() + piece.first * to.columns;
      std::copy(first, first + piece.rows * to.columns, to.row(row));
    };
    for (const Piece& piece : pieces) {
      const Inputs& own = inputs_[static_cast<size_t>(piece.sequence)];
      place(own.x, piece, x, batch.rows()), place(own.b, piece, b, batch.rows()), place(own.a, piece, a, batch.rows());
      std::vector<int32_t> pages(static_cast<size_t>((piece.first + piece.rows) / kPageTokens + 1));
      batch.append(std::vector<int32_t>(static_cast<size_t>(piece.rows)), piece.first, pages, 0, piece.kind);
      batch.begin_from(piece.from);
      for (const KeptState& kept : piece.kept) batch.keep_state(kept.row, kept.slot);
    }
    ASSERT_LE(batch.rows(), kMostRows);
    cpu_.begin(batch, Activations::f32, tiny_shape());
    cpu_.convolve(x, weight_, y, states_, kLayer);
    cpu_.delta_rule(x, b, a, decay_, out, states_, kLayer);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto take = [&](const Cpu::Matrix& from, std::vector<float>& to) {
        const float* rows = from.row(batch.segments[i].first_row);
        std::copy(rows, rows + pieces[i].rows * from.columns, to.begin() + pieces[i].first * from.columns);
      };
      take(y, convolved[static_cast<size_t>(pieces[i].sequence)]);
      take(out, read[static_cast<size_t>(pieces[i].sequence)]);
    }
  }
  std::vector<float> state(int slot) const {
    const float* first = states_.matrices(slot, kLayer);
    return {first, first + states_.shape.matrices() + states_.shape.inputs()};
  }

  std::vector<std::vector<float>> convolved, read;  // by sequence

 private:
  static constexpr int64_t kMostRows = 2100;
  const Net net_;
  const std::vector<Inputs> inputs_;
  Cpu cpu_;
  Cpu::States states_;
  Cpu::Matrix weight_, decay_;
};

double norm_of(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

// Expects the outputs (rows, values) of the delta rule to be near those in double.
//
// How far may a head's row be off? A step is a contraction: it multiplies an old error by `kept` and, along one
// direction of length at most 1, by 1 - written. By itself it adds c u (|S| + |v|), in the norms of Frobenius and
// Euclid. The dk roundings of the sum k S have either sign, so c has their root, and 12 for k, which was normed, for
// the functions of the gates, for products, and for the sums over the rows of a part. The errors of different rows are
// independent, so their squares add up. The query has length dk^-1/2, and the sum of q S rounds once more.
void expect_near_reference(const Net& n, const Inputs& in, std::span<const float> got, const std::string& what) {
  const auto dk = static_cast<size_t>(n.key_dim), dv = static_cast<size_t>(n.value_dim);
  const std::vector<double> x = widened(in.x);
  const size_t rows = in.b.size() / static_cast<size_t>(n.heads), channels = static_cast<size_t>(n.channels()),
               values = static_cast<size_t>(n.values());
  const double c = (std::sqrt(static_cast<double>(n.key_dim)) + 12) * kUnit;
  double worst = 0;
  for (size_t head = 0; head < static_cast<size_t>(n.heads); ++head) {
    std::vector<double> state(dk * dv), out(dv);
    double square = 0;  // of the bound of the state's error
    for (size_t t = 0; t < rows; ++t) {
      const auto at = t * static_cast<size_t>(n.heads) + head;
      const std::span<const double> row = std::span(x).subspan(t * channels, channels),
                                    v = row.subspan(2 * static_cast<size_t>(n.keys()) + head * dv, dv),
                                    q = row.subspan(head / static_cast<size_t>(n.heads / n.key_heads) * dk),
                                    k = q.subspan(static_cast<size_t>(n.keys()));
      const double step = static_cast<double>(in.a[at]) + in.decay[static_cast<size_t>(n.heads) + head],
                   pace = step > 700 ? step : std::log1p(std::exp(step)), kept = std::exp(in.decay[head] * pace);
      const double added = c * (norm_of(state) + norm_of(v));
      ref::delta_step({q.first(dk), k.first(dk), v, kept, 1 / (1 + std::exp(-static_cast<double>(in.b[at])))}, state,
                      out);
      square = square * kept * kept + added * added;
      const double bound = (std::sqrt(square) + c * norm_of(state)) / std::sqrt(static_cast<double>(n.key_dim));
      std::vector<double> difference(out);
      for (size_t j = 0; j < dv; ++j) difference[j] -= static_cast<double>(got[t * values + head * dv + j]);
      const double off = norm_of(difference);
      ASSERT_TRUE(off <= bound) << what << ": row " << t << " of head " << head << " is off by " << off << " of "
                                << norm_of(out) << ", and may be by " << bound;
      worst = std::max(worst, bound == 0 ? 0 : off / bound);
    }
  }
  EXPECT_GT(worst, 0) << what;  // FP32 rounds; a difference of nothing would mean that nothing was compared
}

class Delta : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(All, Delta, testing::ValuesIn(supported_isas().begin(), supported_isas().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

const Net kNets[] = {{1, 1, 4, 4, 4},   {2, 6, 8, 12, 2},  {1, 2, 3, 5, 1},     {1, 3, 20, 33, 16},
                     {2, 4, 16, 70, 3}, {1, 2, 37, 17, 5}, {2, 2, 128, 128, 4}, {1, 1, 65, 130, 4}};

TEST_P(Delta, RuleAgreesWithTheReference) {
  for (const Net& net : kNets)
    for (const RowKind kind : {RowKind::prompt, RowKind::output})
      for (const int rows : {1, 2, 63, 64, 197}) {
        const std::vector<Inputs> inputs = {{net, rows, 5}};
        Play play(net, inputs, GetParam());
        play.step({{0, 0, rows, kind}});
        expect_near_reference(net, inputs[0], play.read[0], fmt::format("{}, {} rows", name_of(net), rows));
      }
}

// Errors must not grow over a long sequence, whether nearly all of a state is kept at each row or next to nothing.
TEST_P(Delta, RuleAgreesWithTheReferenceOverLongSequences) {
  const Net net{1, 2, 24, 20, 4};
  constexpr int kRows = 2000;
  for (const float step : {-9.f, -4.f, 0.f, 4.f})
    for (const RowKind kind : {RowKind::prompt, RowKind::output}) {
      Inputs in(net, kRows, 7);
      for (float& a : in.a) a = step + a / 4;
      Play play(net, {in}, GetParam());
      play.step({{0, 0, kRows, kind}});
      expect_near_reference(net, in, play.read[0], fmt::format("gates near {}", step));
    }
}

TEST_P(Delta, RuleBearsExtremeInputs) {
  const Net net{2, 4, 24, 20, 4};
  constexpr int kRows = 150;
  const struct {
    std::string name;
    std::function<void(Inputs&)> change;
  } cases[] = {
      {"everything is forgotten now and then",
       [](Inputs& in) {
         for (size_t i = 0; i < in.a.size(); i += 7) in.a[i] = 1e4f;
       }},
      {"infinite decays",
       [](Inputs& in) {
         for (size_t i = 0; i < in.a.size(); i += 5) in.a[i] = 3e38f;
       }},
      {"nothing is ever forgotten",
       [](Inputs& in) {
         for (float& a : in.a) a = -1e4f;
       }},
      {"everything is written",
       [](Inputs& in) {
         for (float& b : in.b) b = 100;
       }},
      {"nothing is written now and then",
       [](Inputs& in) {
         for (size_t i = 0; i < in.b.size(); i += 3) in.b[i] = -1e3f;
       }},
      {"tiny and large rows",
       [](Inputs& in) {
         for (size_t i = 0; i < in.x.size(); ++i) in.x[i] *= i / 128 % 2 == 0 ? 1e-3f : 1e4f;
       }},
      {"zeros",
       [&](Inputs& in) { std::fill(in.x.begin() + 20 * net.channels(), in.x.begin() + 90 * net.channels(), 0.f); }},
      {"the same key in all rows",
       [&](Inputs& in) {
         for (int64_t row = 1; row < kRows; ++row)
           std::copy_n(in.x.begin() + net.keys(), net.keys(), in.x.begin() + row * net.channels() + net.keys());
         for (float& b : in.b) b = 8;
         for (float& a : in.a) a = -12;
       }},
  };
  for (const auto& [name, change] : cases)
    for (const RowKind kind : {RowKind::prompt, RowKind::output}) {
      Inputs in(net, kRows, 9);
      change(in);
      Play play(net, {in}, GetParam());
      play.step({{0, 0, kRows, kind}});
      expect_near_reference(net, in, play.read[0], name);
    }
}

TEST_P(Delta, ConvolutionAgreesWithTheReference) {
  for (const Net& net :
       {Net{1, 1, 1, 1, 1}, Net{1, 1, 1, 1, 16}, Net{1, 1, 5, 6, 2}, Net{2, 4, 50, 31, 4}, Net{1, 2, 40, 100, 9}}) {
    constexpr int kRows = 41;
    const std::vector<Inputs> inputs = {{net, kRows, 3}};
    Play play(net, inputs, GetParam());
    play.step({{0, 0, 7, RowKind::prompt, -1, {{6, 2}}}});
    play.step({{0, 7, kRows - 7, RowKind::prompt, 2}});
    const std::vector<double> x = widened(inputs[0].x), w = widened(inputs[0].weight);
    const int64_t channels = net.channels();
    for (int64_t t = 0; t < kRows; ++t)
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0, size = 0;
        for (int64_t i = std::max<int64_t>(0, net.kernel - 1 - t); i < net.kernel; ++i) {
          const double term = w[static_cast<size_t>(c * net.kernel + i)] *
                              x[static_cast<size_t>((t - net.kernel + 1 + i) * channels + c)];
          sum += term, size += std::abs(term);
        }
        const double want = ref::swiglu(std::vector{sum}, std::vector{1.0})[0];
        // Each product and sum is rounded once, and SiLU, whose slope is below 1.1, by 8 u (ops_test.cc).
        ASSERT_NEAR(play.convolved[0][static_cast<size_t>(t * channels + c)], want,
                    (1.1 * (net.kernel + 1) * size + 8 * std::abs(want)) * kUnit)
            << name_of(net) << ", row " << t << ", channel " << c;
      }
  }
}

// --- laws ----------------------------------------------------------------------------------------------------------
// What a sequence gives and keeps, bit for bit.
struct Outcome {
  std::vector<float> convolved, read, state;
  bool operator==(const Outcome&) const = default;
};

class DeltaLaws : public Delta {
 protected:
  static constexpr int kRows = 150;
  const Net net{2, 4, 24, 37, 4};
  const std::vector<Inputs> inputs = {{net, kRows, 1}, {net, kRows, 2}, {net, kRows, 3}};
  Outcome outcome(const std::vector<std::vector<Piece>>& steps, int slot, int threads = 2) const {
    Play play(net, inputs, GetParam(), threads, 12);
    for (const std::vector<Piece>& step : steps) play.step(step);
    return {play.convolved[0], play.read[0], play.state(slot)};
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeltaLaws, testing::ValuesIn(supported_isas().begin(), supported_isas().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(DeltaLaws, NeitherThreadsNorNeighboursChangeBits) {
  const Piece whole{0, 0, kRows, RowKind::prompt, -1, {{kRows - 1, 1}}};
  const Outcome alone = outcome({{whole}}, 1, 1);
  EXPECT_EQ(outcome({{whole}}, 1, 2), alone);
  EXPECT_EQ(outcome({{{1, 0, 70}, whole, {2, 0, 3, RowKind::output, -1, {{2, 3}}}}}, 1), alone);
}

TEST_P(DeltaLaws, PromptsMayBeCutAtMultiplesOfAChunk) {
  const Outcome whole = outcome({{{0, 0, kRows, RowKind::prompt, -1, {{kRows - 1, 1}}}}}, 1);
  const std::vector<Piece> first = {{0, 0, 64, RowKind::prompt, -1, {{63, 2}}}};
  // The state goes on in its slot, or in another one.
  EXPECT_EQ(outcome({first, {{0, 64, kRows - 64, RowKind::prompt, 2, {{kRows - 65, 1}}}}}, 1), whole);
  EXPECT_EQ(outcome({first, {{0, 64, kRows - 64, RowKind::prompt, 2, {{kRows - 65, 2}}}}}, 2), whole);
  EXPECT_EQ(outcome({first,
                     {{0, 64, 64, RowKind::prompt, 2, {{63, 2}}}},
                     {{0, 128, kRows - 128, RowKind::prompt, 2, {{kRows - 129, 1}}}}},
                    1),
            whole);
  // The tail of a prompt may be cut anywhere, and its rows are those of output.
  EXPECT_EQ(outcome({{{0, 0, 128, RowKind::prompt, -1, {{127, 2}}}},
                     {{0, 128, 5, RowKind::output, 2, {{4, 2}}}},
                     {{0, 133, kRows - 133, RowKind::prompt, 2, {{kRows - 134, 1}}}}},
                    1),
            whole);
  // A state that is kept inside the tail or at the end of a chunk changes nothing.
  EXPECT_EQ(outcome({{{0, 0, kRows, RowKind::prompt, -1, {{63, 4}, {130, 5}, {kRows - 1, 1}}}}}, 1), whole);
  // Row by row, a chunk has other bits: otherwise nothing above would tell the two forms apart.
  EXPECT_NE(outcome({{{0, 0, kRows, RowKind::output, -1, {{kRows - 1, 1}}}}}, 1).read, whole.read);
}

TEST_P(DeltaLaws, AStateKeptInsideAChunkIsThatOfItsRow) {
  const Outcome row_by_row = outcome({{{0, 0, 21, RowKind::output, -1, {{20, 1}}}}}, 1);
  EXPECT_EQ(outcome({{{0, 0, kRows, RowKind::prompt, -1, {{20, 1}, {kRows - 1, 2}}}}}, 1).state, row_by_row.state);
}

// Verification takes several rows and keeps the state after each, so that it can be rolled back to any.
TEST_P(DeltaLaws, RowsOfOutputMayBeCutAnywhereAndKeptAnywhere) {
  const std::vector<Piece> prompt = {{0, 0, 10, RowKind::prompt, -1, {{9, 0}}}};
  std::vector<std::vector<Piece>> one_by_one = {prompt};
  for (int row = 10; row < 16; ++row) one_by_one.push_back({{0, row, 1, RowKind::output, 0, {{0, 0}}}});
  const Outcome plain = outcome(one_by_one, 0);
  // Each is kept in a slot of its own, one of them in that which the rows begin from, and one in two slots.
  std::vector<KeptState> kept;
  for (int row = 0; row < 6; ++row) kept.push_back({row, row + 1});
  EXPECT_EQ(outcome({prompt, {{0, 10, 6, RowKind::output, 0, kept}}}, 6), plain);
  kept[1].slot = 0, kept.push_back({5, 8});
  EXPECT_EQ(outcome({prompt, {{0, 10, 6, RowKind::output, 0, kept}}}, 8), plain);
  const std::vector<KeptState> every_second = {{1, 0}, {3, 7}, {5, 2}};
  EXPECT_EQ(outcome({prompt, {{0, 10, 6, RowKind::output, 0, every_second}}}, 2), plain);
  for (int row = 1; row <= 6; ++row) {
    const std::vector<std::vector<Piece>> shorter(one_by_one.begin(), one_by_one.begin() + 1 + row);
    const std::vector<float> want = outcome(shorter, 0).state;
    EXPECT_EQ(outcome({prompt, {{0, 10, 6, RowKind::output, 0, kept}}}, kept[static_cast<size_t>(row - 1)].slot).state,
              want)
        << row;
  }
}

// --- gates ---------------------------------------------------------------------------------------------------------
// Gates cover what is usual, and the ends of FP32's range.
std::vector<float> gates(int64_t count) {
  std::vector<float> x = normals(count, 8);
  for (size_t i = 0; i < x.size(); i += 3) x[i] *= 30;
  const float extremes[] = {0, -1e30f, 1e30f, -87.5f, 88.5f};
  std::copy_n(extremes, std::min<size_t>(5, x.size()), x.begin());
  return x;
}
// A sigmoid is off by 6 u for its exponential, sum and quotient. Below e^-87 it is 0 or a clamped exponential.
double sigmoid_bound(double value, double factor) { return 8 * kUnit * std::abs(value) + 1.2e-38 * std::abs(factor); }

TEST_P(Delta, GatesOnHeadsAgreeWithTheReference) {
  for (const int e : {2, 6, 16, 50}) {
    const AttentionShape shape = tiny_shape(4, 2, e);
    const int64_t rows = 5, columns = int64_t{4} * e;
    Cpu cpu({.threads = 2, .isa = GetParam()});
    cpu.reserve(rows, 2 * columns, 64);
    cpu.begin(rows_batch(rows), Activations::f32, shape);
    Cpu::Matrix both = cpu.allocate(rows, 2 * columns), q = cpu.allocate(rows, columns),
                gate = cpu.allocate(rows, columns);
    const std::vector<float> values = gates(rows * 2 * columns);
    cpu.upload(values, both);
    cpu.split_gate(both, q, gate);
    std::vector<float> a(static_cast<size_t>(rows * columns)), g(a.size()), y(a.size());
    cpu.download(q, 0, rows, a), cpu.download(gate, 0, rows, g);
    for (int64_t i = 0; i < rows * columns; ++i) {
      const int64_t from = i / e * 2 * e + i % e;
      ASSERT_EQ(a[static_cast<size_t>(i)], values[static_cast<size_t>(from)]);
      ASSERT_EQ(g[static_cast<size_t>(i)], values[static_cast<size_t>(from + e)]);
    }
    const std::vector<float> attended = normals(rows * columns, 4);
    cpu.upload(attended, q);
    cpu.read(cpu.gate_heads(cpu.input(q), gate), y);
    const std::vector<double> want = ref::gated(Gate::sigmoid, widened(g), widened(attended));
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], want[i], sigmoid_bound(want[i], attended[i])) << g[i];
  }
}

TEST_P(Delta, GatedNormAgreesWithTheReference) {
  for (const Gate function : {Gate::silu, Gate::sigmoid})
    for (const int64_t e : {1, 7, 16, 33, 128}) {
      const int64_t rows = 3, heads = 5, columns = heads * e;
      Cpu cpu({.threads = 2, .isa = GetParam()});
      cpu.reserve(rows, columns, 64);
      cpu.begin(rows_batch(rows), Activations::f32, tiny_shape());
      Cpu::Matrix x = cpu.allocate(rows, columns), gate = cpu.allocate(rows, columns), weight = cpu.allocate(1, e);
      const std::vector<float> values = normals(rows * columns, 1), w = normals(e, 2), g = gates(rows * columns);
      cpu.upload(values, x), cpu.upload(w, weight), cpu.upload(g, gate);
      std::vector<float> y(values.size());
      cpu.read(cpu.gated_norm(x, gate, weight, 1e-6f, function), y);
      const std::vector<double> normed = ref::rmsnorm(widened(values), widened(w), static_cast<double>(1e-6f),
                                                      rows * heads, e),
                                want = ref::gated(function, widened(g), normed);
      // The norm's bound is that of ops_test.cc.
      const double of_norm = (static_cast<double>(e) / 32 + 12) * kUnit;
      for (size_t i = 0; i < y.size(); ++i) {
        const double factor = normed[i] * (function == Gate::silu ? static_cast<double>(g[i]) : 1);
        ASSERT_NEAR(y[i], want[i], of_norm * std::abs(want[i]) + sigmoid_bound(want[i], factor)) << g[i];
      }
    }
}

TEST_P(Delta, SharedExpertsAreAddedUnderTheirGates) {
  for (const int64_t d : {1, 16, 45}) {
    const int64_t rows = 7;
    Cpu cpu({.threads = 2, .isa = GetParam()});
    cpu.reserve(rows, d, 64);
    cpu.begin(rows_batch(rows), Activations::f32, tiny_shape());
    Cpu::Matrix x = cpu.allocate(rows, d), y = cpu.allocate(rows, d), gate = cpu.allocate(rows, 1);
    const std::vector<float> before = normals(rows * d, 1), given = normals(rows * d, 2), g = gates(rows);
    cpu.upload(before, x), cpu.upload(given, y), cpu.upload(g, gate);
    cpu.add_shared(y, gate, x);
    std::vector<float> after(before.size());
    cpu.download(x, 0, rows, after);
    for (size_t i = 0; i < after.size(); ++i) {
      const double share = 1 / (1 + std::exp(-static_cast<double>(g[i / static_cast<size_t>(d)]))),
                   term = share * static_cast<double>(given[i]), want = static_cast<double>(before[i]) + term;
      ASSERT_NEAR(after[i], want, sigmoid_bound(term, given[i]) + kUnit * std::abs(want));
    }
  }
}

}  // namespace
}  // namespace fidelio::cpu
