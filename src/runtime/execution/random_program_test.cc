// The executor over the CPU computes what kernels/ref computes: over 500 random programs, and not where a program was
// damaged.
#include "kernels/cpu/cpu.h"
#include "runtime/execution/random_program_fixture.h"

namespace fidelio {
namespace {

// The instruction sets take turns. A long sequence has two threads, which share its attention's chunks.
RandomPrograms<Cpu> on_cpu() {
  RandomPrograms<Cpu> programs;
  programs.make = [](uint64_t seed, bool is_long) {
    const std::span<const cpu::Isa> isas = cpu::supported_isas();
    return Cpu({.threads = is_long ? 2 : 1, .isa = isas[seed % isas.size()]});
  };
  return programs;
}

TEST(RandomProgram, FastEqualsSlow) { expect_fast_equals_slow(on_cpu()); }

// Changes operations of one kind. Returns whether the program has one.
template <typename O, typename F>
bool change(Program& program, const F& how) {
  bool is_changed = false;
  for (Op& operation : program.ops)
    if (O* o = std::get_if<O>(&operation)) is_changed = how(*o) || is_changed;
  return is_changed;
}

// Tells whether a layer attends to more than a row's own position.
bool attends(const Program& program) {
  return std::ranges::any_of(program.attention.layers, [](const LayerAttention& layer) { return layer.window != 1; });
}
bool norms_heads(Program& program) {
  return change<op::Heads>(program, [](const op::Heads& o) { return o.q_norm >= 0; });
}

struct Damage {
  std::string name;
  std::function<bool(Program&)> damage;  // returns whether it applies
};
void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

std::vector<Damage> damages() {
  return {
      {"the epsilon of norms twice as large",
       [](Program& p) { return change<op::Norm>(p, [](op::Norm& o) { return o.eps *= 2, o.eps > 1e-4f; }); }},
      {"the epsilon of added norms twice as large",
       [](Program& p) { return change<op::AddNorm>(p, [](op::AddNorm& o) { return o.eps *= 2, o.eps > 1e-4f; }); }},
      {"the epsilon of normed heads twice as large",
       [](Program& p) {
         p.attention.norm_eps *= 2;
         return p.attention.norm_eps > 1e-4f && attends(p) && norms_heads(p);
       }},
      {"an embedding's factor off by 1 in 10,000",
       [](Program& p) { return change<op::Embed>(p, [](op::Embed& o) { return o.factor *= 1.0001f, true; }); }},
      {"windows longer by one",
       [](Program& p) {
         bool is_changed = false;
         for (LayerAttention& layer : p.attention.layers)
           if (layer.window > 0 && layer.window < 10) ++layer.window, is_changed = true;
         return is_changed;
       }},
      {"scores off by 1 in 1,000",
       [](Program& p) { return p.attention.query_scale *= 1.001f, attends(p) && !norms_heads(p); }},
      {"queries that grow after half as many positions",
       [](Program& p) {
         p.attention.query_growth_positions /= 2;
         return p.attention.query_growth_positions == 8 && p.attention.query_growth > 0.1 && attends(p) &&
                !norms_heads(p);
       }},
      {"rotations slower by 1 in 1,000",
       [](Program& p) {
         for (Rotation& rotation : p.attention.rotations)
           for (float& frequency : rotation.inverse_frequencies) frequency *= 0.999f;
         return attends(p) && std::ranges::any_of(p.attention.rotations,
                                                  [](const Rotation& r) { return !r.inverse_frequencies.empty(); });
       }},
      {"rotations that are left out",
       [](Program& p) {
         bool is_changed = false;
         for (Rotation& rotation : p.attention.rotations)
           is_changed = !std::exchange(rotation.inverse_frequencies, {}).empty() || is_changed;
         return is_changed && attends(p);
       }},
      {"the norms of queries and keys exchanged",
       [](Program& p) {
         return attends(p) &&
                change<op::Heads>(p, [](op::Heads& o) { return std::swap(o.q_norm, o.k_norm), o.q_norm >= 0; });
       }},
      {"attention to the cache of the first layer",
       [](Program& p) {
         return p.attention.is_uniform() &&
                change<op::Attend>(p, [](op::Attend& o) { return std::exchange(o.layer, 0) != 0; });
       }},
      {"the epsilon of norms of values twice as large",
       [](Program& p) {
         return change<op::NormHeads>(p, [](op::NormHeads& o) { return o.eps *= 3, o.eps > 1e-5f && !o.adds; });
       }},
      {"the first layer's part of a token's row in all layers",
       [](Program& p) {
         return change<op::Columns>(p, [](op::Columns& o) { return std::exchange(o.first, 0) != 0; });
       }},
      {"logits capped at 1 in 1,000 more",
       [](Program& p) { return change<op::Softcap>(p, [](op::Softcap& o) { return o.cap *= 1.001f, true; }); }},
      {"layers scaled by each other's numbers",  // a norm hides the last one
       [](Program& p) {
         std::vector<NormId> factors;
         change<op::Scale>(p, [&](op::Scale& o) { return factors.push_back(o.factor), true; });
         return change<op::Scale>(p, [&](op::Scale& o) {
           const NormId last = factors.back();
           return factors.pop_back(), std::exchange(o.factor, last) != last;
         });
       }},
      {"the other function of gates",
       [](Program& p) {
         return change<op::Gated>(p, [](op::Gated& o) {
           o.function = o.function.function == Gate::silu ? Gate::gelu_tanh : Gate::silu;
           return true;
         });
       }},
      {"the gates of heads and the heads exchanged",
       [](Program& p) {
         return change<op::SplitGate>(p, [](op::SplitGate& o) { return std::swap(o.to, o.gate), true; });
       }},
      {"the convolution of the first delta net",
       [](Program& p) {
         return change<op::Convolve>(p, [](op::Convolve& o) { return std::exchange(o.delta, 0) != 0; });
       }},
      {"the decays and the state of the first delta net",
       [](Program& p) {
         return change<op::DeltaRule>(p, [](op::DeltaRule& o) { return std::exchange(o.delta, 0) != 0; });
       }},
      {"the two gates of delta nets exchanged",
       [](Program& p) { return change<op::DeltaRule>(p, [](op::DeltaRule& o) { return std::swap(o.a, o.b), true; }); }},
      {"the other function of gates on delta nets",
       [](Program& p) {
         return change<op::GatedNorm>(p, [](op::GatedNorm& o) {
           o.function = o.function == Gate::silu ? Gate::sigmoid : Gate::silu;
           return true;
         });
       }},
      {"shared experts that give their inputs",
       [](Program& p) {
         ValueId input = -1;
         change<op::Route>(p, [&](const op::Route& o) { return input = o.from, true; });
         return change<op::AddShared>(p, [&](op::AddShared& o) { return o.from = input, true; });
       }},
      {"clamps at twice the limit",
       [](Program& p) {
         return change<op::Gated>(p, [](op::Gated& o) {
           o.function.limit *= 2;
           return o.function.function == Gate::clamped;
         });
       }},
      {"sinks that are left out",
       [](Program& p) { return change<op::Attend>(p, [](op::Attend& o) { return std::exchange(o.sinks, -1) >= 0; }); }},
      {"gate and up exchanged",
       [](Program& p) { return change<op::Gated>(p, [](op::Gated& o) { return std::swap(o.gate, o.up), true; }); }},
      {"the sign of one entry of a Hadamard matrix",
       [](Program& p) {
         bool is_changed = false;
         for (Hadamard& hadamard : p.hadamards)
           if (hadamard.core > 1) hadamard.signs[1] = static_cast<int8_t>(-hadamard.signs[1]), is_changed = true;
         return is_changed;
       }},
      {"shares that are renormalised where they should not, or the reverse",
       [](Program& p) {
         p.routing.renormalised = !p.routing.renormalised;
         return p.routing.experts > p.routing.per_row;
       }},
      {"the other scores of experts",
       [](Program& p) {
         Scoring& scoring = p.routing.scoring;
         scoring = scoring == Scoring::softmax ? Scoring::sigmoid : Scoring::softmax;
         return p.routing.experts > p.routing.per_row;
       }},
      {"experts chosen without their corrections",
       [](Program& p) { return std::exchange(p.routing.corrected, false) && p.routing.experts > p.routing.per_row; }},
      {"shares without the scales of experts", [](Program& p) { return std::exchange(p.routing.scaled, false); }},
      {"shares without their common factor", [](Program& p) { return std::exchange(p.routing.factor, 1) != 1; }},
      {"experts of all groups",
       [](Program& p) { return std::exchange(p.routing.groups_per_row, p.routing.groups) < p.routing.groups; }},
      {"the experts' gate and up exchanged",
       [](Program& p) {
         return change<op::RoutedProduct>(p, [](op::RoutedProduct& o) {
           if (o.outputs.size() == 2) std::swap(o.outputs[0].weights, o.outputs[1].weights);
           return true;
         });
       }},
  };
}

class DamagedProgram : public ::testing::TestWithParam<Damage> {};

// A damage may make no difference to a program: the factor of scores to one that attends to single positions, say. It
// must be seen in half of those that it can change.
TEST_P(DamagedProgram, IsFoundOut) {
  constexpr int kTried = 6;
  const RandomPrograms<Cpu> programs = on_cpu();
  int tried = 0, found = 0;
  for (uint64_t seed = 0; tried < kTried && seed < 300; ++seed) {
    bool applies = false;
    const auto result = programs.run(seed, [&](Program& program) { return applies = GetParam().damage(program); });
    tried += applies ? 1 : 0, found += result.deviating > 0 ? 1 : 0;
  }
  EXPECT_EQ(tried, kTried);
  EXPECT_GE(2 * found, tried);
}
INSTANTIATE_TEST_SUITE_P(All, DamagedProgram, ::testing::ValuesIn(damages()));

}  // namespace
}  // namespace fidelio
