// This file has mixtures of experts. If it can, the device chooses experts and deals slots out, and the host does not
// know the choice (Routing::alone). Output rows are then multiplied slot by slot, each by its own expert, or in tiles
// with other slots of that expert (lowbit_routed.h), and steps are recorded. Slots of prompts are multiplied in
// larger tiles, all in one launch (lowbit_many.h).
//
// In other cases the choice comes to the host, which groups slots by expert: if the host asks for it, if there are
// more than 1,024 slots of output rows, and for weights that those kernels do not take. A prompt's groups are then
// one launch as before, and other groups are products like any others.
#include <algorithm>
#include <array>

#include "kernels/cuda/backend/cuda_state.h"
#include "kernels/cuda/linear/decode/lowbit_routed.h"
#include "kernels/cuda/rows/routes.h"
#include "step/routing.h"

namespace fidelio {

Cuda::Experts Cuda::experts(std::span<const Linear* const> weights) {
  Experts all{{weights.begin(), weights.end()}, false, false, {}, {}};
  std::vector<const cuda::LowbitWeight*> values, views;
  for (const Linear* w : weights) {
    if (!state_->are_integers(*w, Activations::a16) ||
        !State::goes_with(w->values.lowbit.shape, weights[0]->values.lowbit.shape) || w->out != weights[0]->out)
      return all;
    values.push_back(&w->values.lowbit);
    if (w->view.lowbit.blocks) views.push_back(&w->view.lowbit);
  }
  const auto send = [&](std::span<const cuda::LowbitWeight* const> of, DeviceBuffer& table) {
    const std::vector<std::byte> bytes = cuda::routed_table(of);
    table = DeviceBuffer(bytes.size());
    cuda::to_device(state_->stream, table.data(), bytes.data(), bytes.size());
    cuda::wait_for(state_->stream);
  };
  all.alone = views.empty() || views.size() == values.size();
  all.many = all.alone && std::ranges::all_of(weights, [](const Linear* w) {
               return State::way_of(*w, Activations::a16, RowKind::prompt) == State::Way::many;
             });
  send(values, all.table);
  if (!views.empty()) send(views, all.view_table);
  return all;
}

bool Cuda::routes_alone(const RoutingRule& rule, Followers next) const {
  const State& s = *state_;
  if (next.empty() || s.mode != Activations::a16) return false;
  if (s.kind == RowKind::output)
    return s.rows * rule.per_row <= cuda::kMostTiled && std::ranges::all_of(next, &Experts::alone);
  return std::ranges::all_of(next, [&](const Experts* e) { return s.take_many(*e); });
}

void Cuda::route(const Matrix& x, const Linear& router, const Matrix& adjustments, const RoutingRule& rule,
                 Followers next, Matrix& logits) {
  State& s = *state_;
  cuda::Routing& r = s.routing;
  check(rule.experts <= cuda::kMostExperts && rule.per_row <= cuda::kMostPerRow,
        "the CUDA backend chooses {} of {} experts at most, not {} of {}", cuda::kMostPerRow, cuda::kMostExperts,
        rule.per_row, rule.experts);
  check(rule.groups <= cuda::kMostGroups, "the CUDA backend chooses among {} groups of experts at most, not {}",
        cuda::kMostGroups, rule.groups);
  const int64_t slots = s.rows * rule.per_row;
  s.grow(r.chosen, slots * 8);
  int32_t* const experts = r.chosen.as<int32_t>();
  float* const shares = r.chosen.as<float>() + slots;
  if (s.kind == RowKind::output && router.values.single) {
    s.flush();
    cuda::router_logits(s.stream, x.data(), {router.values.single, router.bias.as<float>()}, s.rows, x.columns,
                        rule.experts, logits.data());
  } else {
    s.multiply(input(x), router, logits.data(), false);
  }
  cuda::choose_experts(s.stream, logits.data(), s.rows, rule, adjustments.data(), experts, shares);
  r.per_row = rule.per_row;
  r.alone = routes_alone(rule, next);
  if (r.alone && (s.kind == RowKind::prompt || slots > rule.experts)) return s.deal_out(experts, shares, slots, rule);
  if (r.alone) {  // most experts have one row at most
    r.at = {};
    r.at.shares = shares;
    return;
  }
  const auto count = static_cast<size_t>(slots);
  r.received.resize(count * 8);
  cuda::from_device(s.stream, r.received.data(), experts, r.received.size());
  s.sending.arrived();
  deal({reinterpret_cast<const int32_t*>(r.received.data()), count},
       {reinterpret_cast<const float*>(r.received.data()) + count, count}, rule, r.host);
  s.send_routes();
}

cuda::TiledSlots Cuda::State::room_for(int64_t slots, int64_t tiles) {
  cuda::Routing& r = routing;
  constexpr int64_t kTileWords = sizeof(cuda::RoutedTile) / 4;
  grow(r.slots, (tiles * kTileWords + 1 + slots * 4) * 4);
  auto* at = r.slots.as<int32_t>();
  const auto take = [&](int64_t count) { return std::exchange(at, at + count); };
  r.tile_count = tiles;
  r.at.tiles = reinterpret_cast<cuda::RoutedTile*>(take(tiles * kTileWords));
  r.at.count = take(1);
  r.at.rows = take(slots), r.at.places = take(slots), r.at.of_rows = take(slots);
  r.at.shares = reinterpret_cast<float*>(take(slots));
  return r.at;
}

void Cuda::State::deal_out(const int32_t* experts, const float* shares, int64_t slots, const RoutingRule& rule) {
  const int tile = kind == RowKind::prompt ? cuda::kRoutedRows : cuda::kTiledRows;
  cuda::deal_slots(stream, experts, shares, slots, rule, tile,
                   room_for(slots, cuda::most_tiles(slots, rule.experts, tile)));
}

void Cuda::follow(const Routes& routes) {
  State& s = *state_;
  s.flush();
  s.routing.host = routes;
  s.routing.per_row = routes.per_row;
  s.routing.alone = false;
  s.send_routes();
}
const Routes& Cuda::routes() const { return state_->routing.host; }

namespace {

// Cuts the routes' groups into tiles, and computes the place of each slot in them.
void lay_out(cuda::Routing& r) {
  constexpr int kTile = cuda::kRoutedRows;
  r.places.resize(r.host.rows.size());
  for (const auto& [expert, first, slots] : r.host.groups) {
    const auto padded = static_cast<int64_t>(r.tiles.size()) * kTile;
    for (int64_t slot = 0; slot < slots; ++slot)
      r.places[static_cast<size_t>(first + slot)] = static_cast<int32_t>(padded + slot);
    for (int64_t done = 0; done < slots; done += kTile)
      r.tiles.push_back(
          {expert, static_cast<int32_t>(first + done), static_cast<int32_t>(std::min<int64_t>(kTile, slots - done))});
  }
}

}  // namespace

void Cuda::State::send_routes() {
  cuda::Routing& r = routing;
  r.tiles.clear();
  r.places.clear();
  if (kind == RowKind::prompt) lay_out(r);
  const cuda::TiledSlots at = room_for(r.host.count(), static_cast<int64_t>(r.tiles.size()));
  const auto send = [&](void* to, const auto& values) {
    sending.send(stream, to, values.data(), values.size() * sizeof(values[0]));
  };
  const std::array<int32_t, 1> count{static_cast<int32_t>(r.tiles.size())};
  send(at.tiles, r.tiles);
  send(at.count, count);
  send(at.rows, r.host.rows);
  send(at.places, r.places);
  send(at.of_rows, r.host.slots);
  send(at.shares, r.host.shares);
}

Cuda::Acts Cuda::routed(const Matrix& x) {
  State& s = *state_;
  s.flush();
  if (s.routing.alone) {
    Acts y = s.fresh_acts(s.rows * s.routing.per_row, x.columns);
    y.values = x.data();
    y.slots_per_input = s.routing.per_row;
    return y;
  }
  const Acts y = s.fresh_acts(s.routing.host.count(), x.columns);
  cuda::take_rows(s.stream, x.data(), x.columns, s.routing.at.rows, y.rows, s.acts.as<float>());
  return y;
}

void Cuda::linear_routed(Acts input, std::span<const RoutedProduct<Experts, Matrix>> products) {
  State& s = *state_;
  assert(s.is_alive(input) && products.size() <= 2);
  s.flush();
  if (input.slots_per_input > 0)
    return input.kind == RowKind::prompt ? s.multiply_tiles(input, products) : s.multiply_alone(input, products);
  const auto seen = [&](const auto& product) { return s.rounding_for(product.weights->weights[0]->spec, input); };
  // All read the same rows, which are prepared once.
  const bool many = std::ranges::all_of(products, [&](const auto& product) {
    return s.take_many(*product.weights) && seen(product) == seen(products[0]);
  });
  if (many && input.kind == RowKind::prompt && s.mode != Activations::f32) return s.multiply_tiles(input, products);
  s.write_values();
  for (const auto& [expert, first, slots] : s.routing.host.groups) {
    Acts rows = input;
    rows.values += first * input.columns;
    rows.rows = slots;
    rows.version = ++s.version;
    State::Product own[2];
    for (size_t i = 0; i < products.size(); ++i)
      own[i] = {products[i].weights->weights[static_cast<size_t>(expert)],
                products[i].y->data() + first * products[i].y->columns};
    s.multiply_together(rows, {own, products.size()});
  }
}

template <typename Launch>
void Cuda::State::launch_by_shape(Routed products, const Launch& launch) const {
  cuda::RoutedOutputs outputs;
  for (const auto& [weights, y] : products) {
    const cuda::Linear& first = *weights->weights[0];
    const bool viewed = first.is_viewed(high_bits);
    const cuda::LowbitShape& shape = (viewed ? first.view : first.values).lowbit.shape;
    if (outputs.count > 0 && !(goes_with(shape, outputs.shape) && shape.out == outputs.shape.out)) {
      launch(outputs);
      outputs.count = 0;
    }
    outputs.shape = shape;
    outputs.of[outputs.count++] = {(viewed ? weights->view_table : weights->table).data(), y->data()};
  }
  launch(outputs);
}

void Cuda::State::multiply_alone(const Acts& input, Routed products) {
  cuda::Routing& r = routing;
  const bool tiled = r.at.tiles;
  const int64_t slots = input.rows, columns = input.columns, inputs = slots / input.slots_per_input,
                tiles = tiled ? r.tile_count : inputs;
  grow(r.blocks, tiles * cuda::input_bytes(1, column_blocks(columns)));
  auto* const blocks = r.blocks.as<uint8_t>();
  if (unwritten.x && unwritten.joins() && !unwritten.norm) {
    const Source gate = std::exchange(unwritten, {});
    cuda::gate_tiled(stream, gate.x, gate.with, r.at.places, slots, columns, blocks);
  } else {
    write_values();
    const bool of_rows = input.values != acts.as<float>();  // the slots read rows of the stream
    cuda::prepare_tiled(stream, input.values, of_rows ? r.at.rows : nullptr, r.at.places, tiled ? slots : inputs,
                        columns, blocks);
  }
  cuda::RoutedInput to;
  to.x = blocks;
  to.slots = slots;
  to.slots_per_input = input.slots_per_input;
  to.experts = r.chosen.as<int32_t>();
  if (tiled) to.tiles = r.at.tiles, to.most_tiles = tiles, to.tile_count = r.at.count;
  launch_by_shape(products, [&](const cuda::RoutedOutputs& outputs) { cuda::lowbit_routed(stream, to, outputs); });
}

void Cuda::State::multiply_tiles(const Acts& input, Routed products) {
  cuda::Routing& r = routing;
  const int64_t padded = r.tile_count * cuda::kRoutedRows;
  grow(r.many, padded * column_blocks(input.columns) * cuda::kBlockColumns * 2);
  grow(r.many_factor, padded * 4);
  cuda::ManyRows rows{r.many.as<uint8_t>(),
                      r.many_factor.as<float>(),
                      nullptr,
                      r.at.places,
                      padded,
                      rounding_for(products[0].weights->weights[0]->spec, input)};
  if (unwritten.x && unwritten.joins() && !unwritten.norm) {
    const Source gate = std::exchange(unwritten, {});
    cuda::swiglu_many(stream, gate.x, gate.with, input.rows, input.columns, rows);
  } else {
    write_values();
    if (input.values != acts.as<float>()) rows.of = r.at.rows;  // the slots read rows of the stream
    cuda::prepare_many(stream, input.values, input.rows, input.columns, rows);
  }
  launch_by_shape(products, [&](const cuda::RoutedOutputs& outputs) {
    cuda::lowbit_many_routed(stream, rows, {r.at.tiles, r.at.count, r.tile_count}, outputs);
  });
}

void Cuda::add_routed(const Matrix& y, Matrix& x) {
  State& s = *state_;
  s.flush();
  const cuda::Routing& r = s.routing;
  cuda::add_slots(s.stream, y.data(), s.rows, x.columns, {r.at.of_rows, r.at.shares, r.per_row}, x.data());
}

}  // namespace fidelio
