#include "step/program.h"

#include <gtest/gtest.h>

#include <functional>

#include "step/build.h"

namespace fidelio {
namespace {

ModelConfig small() {
  ModelConfig c;
  c.L = 2, c.d = 32, c.f = 64, c.h = 4, c.hk = 2, c.e = 8, c.v = 50;
  c.max_positions = 64;
  return c;
}

// This is the whole text of a small program, so a change to the step of a plain model is seen here.
TEST(Program, APlainModelIsTheseOperations) {
  ModelConfig c = small();
  c.L = 1;
  c.tie_embeddings = true;
  EXPECT_EQ(to_text(build_program(c, 64)),
            R"(value x (stream, 32)
value q (stream, 32)
value k (stream, 16)
value v (stream, 16)
value input (stream, 32), prepared
value heads (stream, 32), prepared
value gate (stream, 64)
value up (stream, 64)
value gated (stream, 64), prepared
value logits (logits, 50)
value final (logits, 32), prepared
value draft_logits (logits, 0)
attention of 4 heads, 2 key and value heads of 8
rotation 0: 4 pairs, from 1 to 0.001
embedding
  embed     x <- embedding
layer 0
  norm      input <- x, layers.0.attn_norm, eps 1e-06
  product   q k v <- input, layers.0.q layers.0.k layers.0.v  # tap layers.0.qkv
  heads     q k v, rotation 0, cache 0
  attend    heads <- q, cache 0
  product   x += heads, layers.0.o  # tap layers.0.o
  norm      input <- x, layers.0.mlp_norm, eps 1e-06
  product   gate up <- input, layers.0.gate layers.0.up  # tap layers.0.gate_up
  gated     gated <- gate up, silu
  product   x += gated, layers.0.down  # tap layers.0.down
head
  norm      final <- x, final_norm, eps 1e-06
  product   logits <- final, head
draft head
  norm      final <- x, final_norm, eps 1e-06
  product   draft_logits <- final, head
  spread    logits <- draft_logits
)");
}

// Layers share the values of a name, so that the memory of a step does not grow with its layers.
TEST(Program, LayersShareValues) {
  ModelConfig one = small(), many = small();
  one.L = 1, many.L = 7;
  EXPECT_EQ(build_program(one, 64).values.size(), build_program(many, 64).values.size());
}

// Tells which prepared values an operation reads and writes.
struct PreparedUse {
  std::function<void(ValueId)> read, write;
  void operator()(const op::Norm& o) const { read(o.from), write(o.to); }
  void operator()(const op::Product& o) const { read(o.from); }
  void operator()(const op::RoutedProduct& o) const { read(o.from); }
  void operator()(const op::Attend& o) const { write(o.to); }
  void operator()(const op::Gated& o) const { write(o.to); }
  void operator()(const op::Turn& o) const { read(o.from), write(o.to); }
  void operator()(const op::Reorder& o) const { read(o.from), write(o.to); }
  void operator()(const op::Take& o) const { write(o.to); }
  void operator()(const auto&) const {}
};

// A prepared value is valid until the next one is written, so every operation that reads one must read the newest.
TEST(Program, OperationsReadTheNewestPreparedValue) {
  ModelConfig plain = small(), after = small(), experts = small(), rotated = small();
  after.blocks.norm_after = true;
  after.blocks.qk_norm = QkNorm::width;
  after.blocks.norm_before = false;
  experts.experts = 4, experts.experts_per_row = 2;
  rotated.rotated = true;
  rotated.kept_columns = 0;
  for (const ModelConfig& c : {plain, after, experts, rotated}) {
    const Program p = build_program(c, 64);
    ValueId newest = -1;
    const auto prepared = [&](ValueId id) { return p.values[static_cast<size_t>(id)].prepared; };
    const auto reads = [&](ValueId id) { EXPECT_TRUE(!prepared(id) || id == newest) << to_text(p); };
    const auto writes = [&](ValueId id) { newest = prepared(id) ? id : newest; };
    for (const Op& operation : p.ops) std::visit(PreparedUse{reads, writes}, operation);
  }
}

// A tap's block must begin at or before the product that reads its input, and must end after it.
TEST(Program, TapsStandAtTheirProducts) {
  ModelConfig experts = small();
  experts.experts = 4, experts.experts_per_row = 2;
  for (const ModelConfig& c : {small(), experts}) {
    const Program p = build_program(c, 64);
    ASSERT_EQ(p.taps.size(), 4u * static_cast<size_t>(c.L));
    for (size_t i = 0; i < p.taps.size(); ++i) {
      const Tap& tap = p.taps[i];
      const OpRange layer = p.layers[static_cast<size_t>(tap.layer)];
      EXPECT_EQ(tap.layer, static_cast<int>(i / 4));
      EXPECT_LE(layer.first, tap.block);
      EXPECT_LT(tap.block, tap.reader);
      EXPECT_LT(tap.reader, tap.end);
      EXPECT_LE(tap.end, layer.last);
      const Op& reader = p.ops[static_cast<size_t>(tap.reader)];
      if (const auto* product = std::get_if<op::Product>(&reader)) {
        EXPECT_EQ(product->from, tap.input);
        EXPECT_EQ(product->outputs.size(), tap.stop->roles.size());
      }
    }
  }
}

}  // namespace
}  // namespace fidelio
