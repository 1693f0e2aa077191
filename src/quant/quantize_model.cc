#include "quant/quantize_model.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "core/progress.h"
#include "quant/atom/atom.h"
#include "quant/device/workbench.h"
#include "quant/vectors/shared_codebooks.h"
#include "quant/vocabulary.h"
#include "runtime/taps.h"

namespace fidelio {
namespace {

// Calls `quantise` and puts the linear's name in front of the message of any error.
template <typename F>
auto naming(LinearId id, F&& quantise) {
  try {
    return quantise();
  } catch (const Error& e) {
    throw Error("{}: {}", to_string(id), e.what());
  }
}

void quantize_rtn_linear(const Checkpoint& source, LinearId id, const ModelQuantizer& how, ThreadPool& pool,
                         const std::function<void(QuantizedLinear)>& done, Runner* runner) {
  const auto found = how.formats.find(id);
  if (found == how.formats.end()) return;
  const LinearWeight original = source.linear(id);
  const std::vector<float> values = decode(original);
  for (const FormatSpec& format : found->second) {
    LinearWeight weight = naming(id, [&] {
      return quantize_rtn(
          format, values, original.out, original.in,
          {.range_search = how.options.range_search, .importance = {}, .codebooks = how.options.codebooks}, pool);
    });
    weight.bias = original.bias;
    if (runner && how.sequential) runner->set_linear(id, runner->pack(weight));
    done({id, std::move(weight), std::nullopt, std::nullopt});
  }
}

// A Passage carries the calibration texts through the layers. For each batch it keeps the residual stream, with what
// all stops so far have added to it, and in a block that adds twice the stream that the block begins with. It also
// keeps the input of a linear that is about to be quantised if computing it again would take a forward pass (o, down).
class Passage {
 public:
  Passage(Runner& runner, const Dataset& data)
      : runner_(runner), batches_(pack_batches(data.sequences, runner.options().max_rows, runner.cache_pages())) {
    const ModelConfig& c = runner_.config();
    routes_.resize(batches_.size());
    const int64_t widest = widest_input(c);
    for (size_t i = 0; i < batches_.size(); ++i) {
      runner_.begin(batches_[i].batch, Activations::f32);
      runner_.embed();
      streams_.push_back(runner_.allocate(rows(i) * c.d));
      if (adds_twice(runner_.program())) firsts_.push_back(runner_.allocate(rows(i) * c.d));
      inputs_.push_back(runner_.allocate(rows(i) * widest));
      runner_.read_stream(stream(i));
    }
  }

  // Runs every batch up to this input, which has `columns` columns, and adds it to the Hessian of `bench` if there is
  // one. The inputs of o and down stay in memory for advance(). `source` carries the same texts through the source's
  // weights, for feedback. `on_rows` is called with the rows of every batch that has passed.
  void observe(int layer, const Stop& stop, int64_t columns, Workbench* bench, Passage* source,
               const std::function<void(int64_t)>& on_rows) {
    if (!stop.adds && !bench) return;
    for (size_t i = 0; i < batches_.size(); ++i) {
      collect(i, layer, stop, columns);
      if (source) source->collect(i, layer, stop, columns);
      if (bench && source) bench->add(input(i), source->input(i));
      if (bench && !source) bench->add(input(i));
      on_rows(rows(i));
    }
  }

  // Does the same for the experts of a layer, each of which sees rows of its own. It collects the inputs of all
  // experts, either of gates and ups (mlp_in) or of downs, which stay in memory for advance(). `source` collects its
  // inputs for the experts that were chosen here, so that an expert's two inputs belong to the same rows.
  void observe_experts(int layer, const Stop& stop, Passage* source) {
    layer_ = layer;
    if (source) source->layer_ = layer;
    for (size_t i = 0; i < batches_.size(); ++i) {
      if (!stop.adds) {
        collect(i, layer, stop, runner_.config().d);
        routes_[i] = choose_experts(runner_, layer);
        if (source) source->collect(i, layer, stop, runner_.config().d);
      } else {
        collect_experts(i, layer, routes_[i]);
        if (source) source->collect_experts(i, layer, routes_[i]);
      }
    }
  }
  // Adds one expert's rows to its Hessian. Returns their number.
  int64_t add_expert(int expert, const Stop& stop, Workbench& bench, Passage* source) {
    int64_t all = 0;
    for (size_t i = 0; i < batches_.size(); ++i) {
      const auto group = std::ranges::find(routes_[i].groups, expert, &ExpertRows::expert);
      if (group == routes_[i].groups.end()) continue;
      const std::span<const float> own = expert_rows(i, stop, routes_[i], *group);
      if (source)
        bench.add(own, source->expert_rows(i, stop, routes_[i], *group));
      else
        bench.add(own);
      all += group->slots;
    }
    return all;
  }

  // Adds W input to the stream, with the weight as it is now.
  void advance(int layer, const Stop& stop) {
    const Tap& tap = tap_of(runner_.program(), layer, stop.name);
    for (size_t i = 0; i < batches_.size(); ++i) {
      begin_block(i, tap);
      if (stop.routed)
        advance_experts(i, layer);
      else
        add_output(runner_, layer, stop.name, input(i), stream(i));
      const bool is_first = adds_twice(runner_.program(), tap) && block_ != tap.block;
      if (is_first) std::swap(streams_[i], firsts_[i]);
      runner_.read_stream(stream(i));
    }
    if (adds_twice(runner_.program(), tap)) block_ = tap.block;
  }

 private:
  // Begins a step with the stream that this tap's block begins with.
  void begin_block(size_t batch, const Tap& tap) {
    const int layer = tap.layer;
    runner_.begin(batches_[batch].batch, Activations::f32);
    if (lends_keys(runner_.program(), layer) && !lent_.contains({layer, batch})) {
      std::shared_ptr<float[]>& kept = lent_[{layer, batch}] = runner_.allocate(rows(batch) * runner_.config().d);
      runner_.write_stream(stream(batch));
      runner_.read_stream({kept.get(), stream(batch).size()});
    }
    prepare_layers(runner_, layer, layer + 1, [&](int of) -> std::span<const float> {
      return {lent_.at({of, batch}).get(), stream(batch).size()};
    });
    runner_.write_stream(block_ == tap.block ? values_of(batch, firsts_) : stream(batch));
  }
  void collect(size_t batch, int layer, const Stop& stop, int64_t columns) {
    columns_ = columns;
    begin_block(batch, tap_of(runner_.program(), layer, stop.name));
    read_input(runner_, layer, stop.name, input(batch));
  }
  void collect_experts(size_t batch, int layer, const Routes& routes) {
    begin_block(batch, tap_of(runner_.program(), layer, "down"));
    read_expert_input(runner_, layer, routes, slots(batch, routes.count()));
    chosen_here_ = &routes == &routes_[batch];
  }
  // Inputs that were collected for another stream's choice of experts are not the inputs of this stream's experts.
  void advance_experts(size_t batch, int layer) {
    if (chosen_here_) {
      add_experts(runner_, layer, routes_[batch], slots(batch, routes_[batch].count()), stream(batch));
    } else {
      const Routes own = choose_experts(runner_, layer);
      read_expert_input(runner_, layer, own, slots(batch, own.count()));
      add_experts(runner_, layer, own, slots(batch, own.count()), stream(batch));
    }
  }
  std::span<const float> expert_rows(size_t i, const Stop& stop, const Routes& routes, const ExpertRows& group) {
    const int64_t f = runner_.config().f, d = runner_.config().d;
    if (stop.adds) return slots(i, routes.count()).subspan(size(group.first_slot * f), size(group.slots * f));
    if (taken_ == nullptr) taken_ = runner_.allocate(runner_.options().max_rows * d);
    const std::span to(taken_.get(), size(group.slots * d));
    take_rows(runner_, layer_, input(i), std::span(routes.rows).subspan(size(group.first_slot), size(group.slots)), to);
    return to;
  }
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  std::span<float> slots(size_t i, int64_t count) const { return {inputs_[i].get(), size(count * runner_.config().f)}; }
  int64_t rows(size_t i) const { return batches_[i].batch.rows(); }
  std::span<float> values_of(size_t i, const std::vector<std::shared_ptr<float[]>>& streams) const {
    return {streams[i].get(), static_cast<size_t>(rows(i) * runner_.config().d)};
  }
  std::span<float> stream(size_t i) const { return values_of(i, streams_); }
  std::span<float> input(size_t i) const { return {inputs_[i].get(), static_cast<size_t>(rows(i) * columns_)}; }

  Runner& runner_;
  std::vector<PackedBatch> batches_;
  std::vector<std::shared_ptr<float[]>> streams_, inputs_;  // in the runner's memory
  std::vector<std::shared_ptr<float[]>> firsts_;            // the streams that the block `block_` begins with
  int32_t block_ = -1;   // the block, one that adds twice, whose first addition was made last
  int64_t columns_ = 0;  // columns of the inputs
  int layer_ = 0;        // the layer whose experts were observed last
  // The streams that layers whose keys and values later ones read began with, by layer and batch.
  std::map<std::pair<int, size_t>, std::shared_ptr<float[]>> lent_;
  std::vector<Routes> routes_;      // which experts of the layer each row passes
  bool chosen_here_ = false;        // whether the inputs of downs were collected with these routes
  std::shared_ptr<float[]> taken_;  // one expert's rows of a batch
};

void quantize_linear(Runner& runner, const Checkpoint& source, LinearId id, Workbench& bench, const ModelQuantizer& how,
                     const std::function<void(QuantizedLinear)>& done) {
  const auto formats = how.formats.find(id);
  if (formats == how.formats.end()) return;
  const LinearWeight original = source.linear(id);
  naming(id, [&] { bench.load(original); });
  GptqOptions options = how.options;
  if (how.gradients && how.gradients->contains(id)) options.gradient = how.gradients->at(id);
  if (how.output_moments && how.output_moments->contains(id)) options.output_moment = how.output_moments->at(id);
  for (const FormatSpec& spec : formats->second) {
    auto result = naming(id, [&] { return bench.quantize(spec, options); });
    result.weight.bias = original.bias;
    if (how.sequential) runner.set_linear(id, runner.pack(result.weight));
    done({id, std::move(result.weight), result.report, std::nullopt});
  }
  source.drop(id);
}

OwnedTensor order_tensor(const std::vector<int32_t>& order) {
  OwnedTensor tensor = OwnedTensor::allocate(DType::i32, {static_cast<int64_t>(order.size())});
  std::copy(order.begin(), order.end(), tensor.as<int32_t>().begin());
  return tensor;
}

// Quantises a stop with columns kept in 8 bits (Atom). The runner continues with the decoded weights, in the source's
// order of columns.
void quantize_stop_keeping(Runner& runner, const Checkpoint& source, int layer, const Stop& stop, Workbench& bench,
                           const ModelQuantizer& how, ThreadPool& pool,
                           const std::function<void(QuantizedLinear)>& done) {
  const KeptInput input(bench.hessian(), how.kept->count, how.options.damping, pool);
  how.kept->orders[order_name(layer, stop)] = order_tensor(input.order());
  const std::unique_ptr<Workbench> others = make_workbench(runner, pool);
  others->begin(input.others());
  others->factorize(how.options.damping, how.options.act_order);
  for (Role role : stop.roles) {
    const LinearId id{layer, role};
    const LinearWeight original = source.linear(id);
    naming(id, [&] { bench.load(original); });
    const std::vector<float> values = bench.values();
    OwnedTensor part = OwnedTensor::allocate(DType::f32, {original.out, input.others().in()});
    std::ranges::copy(input.others_of(values, original.out), part.as<float>().begin());
    const LinearWeight unkept = make_dense(std::move(part));
    naming(id, [&] { others->load(unkept); });
    const GptqResult result = others->quantize(how.formats.at(id).front(), how.options);
    LinearWeight weight = input.with_kept(result.weight, values);
    weight.bias = original.bias;
    if (how.sequential) runner.set_linear(id, runner.pack(in_own_order(weight, input.order(), how.kept->count)));
    done({id, std::move(weight), result.report, std::nullopt});
    source.drop(id);
  }
}

void quantize_stop(Runner& runner, const Checkpoint& source, int layer, const Stop& stop, Workbench& bench,
                   const ModelQuantizer& how, ThreadPool& pool, const std::function<void(QuantizedLinear)>& done) {
  bench.factorize(how.options.damping, how.options.act_order);
  if (how.kept) return quantize_stop_keeping(runner, source, layer, stop, bench, how, pool, done);
  for (Role role : stop.roles) quantize_linear(runner, source, {layer, role}, bench, how, done);
}

// Quantises one expert after the other, each against the rows that pass it. Experts that no row of the calibration
// text passes are rounded to nearest; their number is returned.
int quantize_experts(Runner& runner, const Checkpoint& source, int layer, const Stop& stop, Workbench& bench,
                     const ModelQuantizer& how, ThreadPool& pool, Passage& passage, Passage* exact,
                     const std::function<void(QuantizedLinear)>& done) {
  int unseen = 0;
  for (int expert = 0; expert < source.config().experts; ++expert) {
    bench.begin(shape_of(source.config(), {layer, stop.roles.front(), expert})[1]);
    const bool seen = passage.add_expert(expert, stop, bench, exact) > 0;
    if (seen) bench.factorize(how.options.damping, how.options.act_order);
    unseen += !seen;
    for (Role role : stop.roles)
      if (seen)
        quantize_linear(runner, source, {layer, role, expert}, bench, how, done);
      else
        quantize_rtn_linear(source, {layer, role, expert}, how, pool, done, &runner);
  }
  return unseen;
}

// Quantises the head, or an embedding that is also the head, against the final hidden states of the source's own
// weights, which the runner must hold.
void quantize_vocabulary(Runner& runner, const Checkpoint& source, Role role, const Dataset& calibration,
                         const ModelQuantizer& how, ThreadPool& pool, const std::function<void(QuantizedLinear)>& done,
                         const std::function<void(int64_t)>& on_rows) {
  const std::unique_ptr<Workbench> bench = make_workbench(runner, pool);
  observe_vocabulary(runner, source, calibration, *bench, on_rows);
  bench->factorize(how.options.damping, how.options.act_order);
  quantize_linear(runner, source, {-1, role}, *bench, how, done);
}

// Work estimates the work that progress counts, in multiply-adds (quantising_work()). A pass runs every token through
// the weights and adds it to the sums over pairs of columns. An embedding is as much work as some layers, and three
// wide inputs are more than thirty narrow ones.
class Work {
 public:
  Work(const ModelConfig& config, const ModelQuantizer& how, int64_t tokens)
      : config_(config), how_(how), all_(tokens), tokens_(tokens * (how.original ? 2 : 1)) {}

  int64_t quantising(LinearId id) const {  // in one format
    const int64_t out = shape_of(config_, id)[0], in = shape_of(config_, id)[1];
    return is_table(id.role) || (id.role == Role::embedding && !config_.tie_embeddings) ? 64 * out * in
                                                                                        : quantising_work(out, in);
  }
  int64_t passing(int layer, const Stop& stop) const {
    int64_t weights = 0;
    for (Role role : stop.roles) weights += shape_of(config_, {layer, role})[0] * shape_of(config_, {layer, role})[1];
    const int64_t columns = shape_of(config_, {layer, stop.roles.front()})[1];
    return tokens_ * (weights + columns * columns) * (stop.routed ? config_.experts_per_row : 1);
  }
  // Before the head or the tied embedding is quantised, tokens pass all layers. The first function gives the work of
  // one such token, the second that of all of them.
  int64_t vocabulary_token() const {
    int64_t work = 0;
    for (const auto& [layer, stop] : stops_of(config_)) work += passing(layer, *stop) / std::max<int64_t>(1, tokens_);
    return work;
  }
  int64_t vocabulary() const {
    const bool met = how_.formats.contains({-1, config_.tie_embeddings ? Role::embedding : Role::head});
    return met ? vocabulary_tokens(config_, all_) * vocabulary_token() : 0;
  }
  int64_t total() const {
    int64_t all = vocabulary();
    for (const auto& [id, formats] : how_.formats) all += quantising(id) * static_cast<int64_t>(formats.size());
    for (const auto& [layer, stop] : stops_of(config_)) all += passing(layer, *stop);
    return all;
  }

 private:
  const ModelConfig& config_;
  const ModelQuantizer& how_;
  int64_t all_, tokens_;  // tokens of the text, and those that pass a layer, which are twice as many with feedback
};

// Returns the options with all codebooks that their formats share. Missing ones are made here and stored in `made`.
ModelQuantizer with_codebooks(const Checkpoint& source, ModelQuantizer how, ThreadPool& pool, SharedCodebooks& made) {
  const SharedCodebooks* given = how.options.codebooks;
  std::vector<FormatSpec> missing;
  for (const auto& [id, formats] : how.formats)
    for (const FormatSpec& format : formats)
      if (format.shared && !(given && given->contains(shared_name(format)))) missing.push_back(format);
  if (missing.empty()) return how;
  made = shared_codebooks(source, missing, pool);
  if (given) made.insert(given->begin(), given->end());
  how.options.codebooks = &made;
  return how;
}

}  // namespace

std::map<LinearId, std::vector<FormatSpec>> one_format_each(const std::map<LinearId, FormatSpec>& formats) {
  std::map<LinearId, std::vector<FormatSpec>> each;
  for (const auto& [id, format] : formats) each[id] = {format};
  return each;
}

void quantize_model_rtn(const Checkpoint& source, const ModelQuantizer& asked, ThreadPool& pool,
                        const std::function<void(QuantizedLinear)>& done) {
  SharedCodebooks made;
  check_columns_once(source);
  const ModelQuantizer how = with_codebooks(source, asked, pool, made);
  int64_t elements = 0;
  for (const auto& [id, formats] : how.formats) elements += shape_of(source.config(), id).elements();
  Progress progress("quantise (rtn)", std::max<int64_t>(1, elements));
  for (LinearId id : linears_of(source.config())) {
    quantize_rtn_linear(source, id, how, pool, done, nullptr);
    if (how.formats.contains(id)) progress.advance(shape_of(source.config(), id).elements());
  }
}

// Passes on the source's own weight, through `done`, for every linear whose format is the source's own, and removes
// it from the formats to make.
ModelQuantizer without_source_formats(const Checkpoint& source, ModelQuantizer how,
                                      const std::function<void(QuantizedLinear)>& done) {
  for (auto it = how.formats.begin(); it != how.formats.end();) {
    std::vector<FormatSpec>& formats = it->second;
    const auto own = std::find(formats.begin(), formats.end(), source.format(it->first));
    if (own != formats.end()) {
      done({it->first, source.linear(it->first), std::nullopt, std::nullopt});
      formats.erase(own);
    }
    it = formats.empty() ? how.formats.erase(it) : std::next(it);
  }
  return how;
}

void quantize_model_gptq(Runner& runner, const Checkpoint& source, const Dataset& calibration,
                         const ModelQuantizer& asked, ThreadPool& pool,
                         const std::function<void(QuantizedLinear)>& done) {
  check_columns_once(source);
  check(asked.parts == 1 || (asked.store && !asked.sequential),
        "parts of a model are quantised into a store, each stop by itself");
  check(!asked.original || asked.sequential,
        "feedback of earlier layers' errors needs the layers quantised one after another");
  SharedCodebooks codebooks;
  ModelQuantizer how = with_codebooks(source, without_source_formats(source, asked, done), pool, codebooks);
  const ModelConfig& config = source.config();
  const Work work(config, how, calibration.tokens);
  Progress progress("quantise (gptq)", std::max<int64_t>(1, work.total() / how.parts));
  std::atomic<int64_t> told = 0;  // work of the current matrix reported so far
  how.options.on_work = [&](int64_t done_now) {
    told += done_now;
    progress.advance(done_now);
  };
  const auto finished = [&](LinearId id) {
    progress.advance(std::max<int64_t>(0, work.quantising(id) - told.exchange(0)));
  };
  const auto kept = [&](const std::string& stop) {
    if (!how.store || !how.store->contains(stop)) return false;
    for (QuantizedLinear& linear : how.store->load(stop)) {
      if (how.sequential) runner.set_linear(linear.id, runner.pack(linear.weight));
      finished(linear.id);
      done(std::move(linear));
    }
    return true;
  };
  // Each linear that a stop makes goes to `done` at once; the whole stop then goes to the store.
  const auto make = [&](const std::string& stop, const auto& quantise) {
    std::vector<QuantizedLinear> made;
    quantise([&](QuantizedLinear linear) {
      if (how.store) made.push_back(linear);
      finished(linear.id);
      done(std::move(linear));
    });
    if (how.store) how.store->save(stop, std::move(made));
  };
  // The layers come first, then embedding and head. Stops that other processes make are not ours even if they are
  // missing.
  const auto ours = [&](int64_t number) { return number % how.parts == how.part; };
  const std::vector<LayerStop> stops = stops_of(config);
  const auto count = static_cast<int64_t>(stops.size());
  const auto to_do = [&](int64_t number) {
    const auto& [layer, stop] = stops[static_cast<size_t>(number)];
    return ours(number) &&
           std::ranges::any_of(linears_of(config, layer, *stop), [&](LinearId id) { return how.formats.contains(id); });
  };
  int64_t missing = 0;
  for (int64_t number = 0; number < count; ++number) {
    const auto& [layer, stop] = stops[static_cast<size_t>(number)];
    missing += to_do(number) && !(how.store && how.store->contains(stop_name(layer, *stop)));
  }

  // The head comes first, because it is quantised against the source's hidden states.
  for (Role role : {Role::head, Role::embedding, Role::per_layer_table}) {
    const std::string name = to_string(LinearId{-1, role});
    if (!how.formats.contains({-1, role}) || kept(name) || !ours(count + (role == Role::head))) continue;
    make(name, [&](const auto& emit) {
      if (is_table(role) || (role == Role::embedding && !config.tie_embeddings))
        quantize_rtn_linear(source, {-1, role}, how, pool, emit, &runner);
      else
        quantize_vocabulary(runner, source, role, calibration, how, pool, emit,
                            [&](int64_t rows) { progress.advance(rows * work.vocabulary_token() / config.L); });
    });
  }
  // Nothing is run for stops that are in the store, except what brings the streams to stops that are not.
  std::optional<Passage> passage, own;
  std::unique_ptr<Workbench> bench;
  if (missing > 0) {
    passage.emplace(runner, calibration);
    if (how.original) own.emplace(*how.original, calibration);
    bench = make_workbench(runner, pool);
  }
  Passage* const exact = own ? &*own : nullptr;
  int unseen = 0;  // experts that no row passed
  for (int64_t number = 0; number < count; ++number) {
    const int layer = stops[static_cast<size_t>(number)].layer;
    const Stop& stop = *stops[static_cast<size_t>(number)].stop;
    const std::string name = stop_name(layer, stop);
    const int64_t columns = shape_of(config, {layer, stop.roles.front()})[1];
    const bool experts = stop.routed, done_already = !to_do(number) || kept(name);
    int64_t passed = 0;  // the part of this stop's work that is done
    const auto on_rows = [&](int64_t rows) {
      const int64_t part = work.passing(layer, stop) / std::max<int64_t>(1, calibration.tokens) * rows;
      if (ours(number)) passed += part, progress.advance(part);
    };
    if (experts && missing > 0) passage->observe_experts(layer, stop, exact);
    if (done_already) {
      if (missing > 0 && !experts) passage->observe(layer, stop, columns, nullptr, exact, on_rows);
    } else if (experts) {
      make(name, [&](const auto& emit) {
        unseen += quantize_experts(runner, source, layer, stop, *bench, how, pool, *passage, exact, emit);
      });
      --missing;
    } else {
      bench->begin(columns);
      passage->observe(layer, stop, columns, bench.get(), exact, on_rows);
      make(name, [&](const auto& emit) { quantize_stop(runner, source, layer, stop, *bench, how, pool, emit); });
      --missing;
    }
    for (Passage* p : {passage ? &*passage : nullptr, exact})
      if (missing > 0 && p && stop.adds) p->advance(layer, stop);
    if (ours(number)) progress.advance(std::max<int64_t>(0, work.passing(layer, stop) - passed));
  }
  if (unseen > 0)
    spdlog::warn("{} of {} experts are passed by no row of the calibration text: rounded to nearest; give more text",
                 (unseen + 1) / 2, std::ssize(routed_layers(config)) * config.experts);
}

std::map<LinearId, FormatSpec> predictor_formats(const Checkpoint& source, const FormatSpec& format) {
  std::map<LinearId, FormatSpec> formats;
  const ModelConfig& c = source.config();
  if (c.rotated || c.kept_columns > 0) return formats;
  for (const LinearId id : predictor_linears_of(c)) {
    if (is_fixed(id.role) || !source.format(id).is_dense()) continue;
    const Shape shape = shape_of(c, id);
    if (stored_bytes(format, shape[0], shape[1]) < stored_bytes(source.format(id), shape[0], shape[1]))
      formats[id] = format;
  }
  return formats;
}

std::map<LinearId, LinearWeight> quantize_predictor(const Checkpoint& source,
                                                    const std::map<LinearId, FormatSpec>& formats, ThreadPool& pool) {
  std::map<LinearId, LinearWeight> made;
  for (const auto& [id, format] : formats) {
    const LinearWeight original = source.linear(id);
    LinearWeight weight = quantize_rtn(format, decode(original), original.out, original.in, {}, pool);
    weight.bias = original.bias;
    made.emplace(id, std::move(weight));
    source.drop(id);
  }
  return made;
}

}  // namespace fidelio
