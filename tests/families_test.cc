// These tests check what holds for every family besides its logits (golden_test.cc). Calibration goes through the model
// that runs, the model can be quantised, the written model opens again, sensitivity measures it, and exports refuse
// what their readers cannot open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/thread_pool.h"
#include "io/export/export.h"
#include "models.h"
#include "quant/device/workbench.h"
#include "quant/quantize_model.h"
#include "runtime/taps.h"
#include "sensitivity/meter.h"

namespace fidelio {
namespace {

using Ids = std::vector<int32_t>;

struct Families : testing::TestWithParam<std::string> {
  Families() : checkpoint(Checkpoint::open(tiny_model(GetParam()))), ids(golden_json(GetParam())["ids"]) {}
  std::unique_ptr<Runner> runner() const { return make_cpu_runner(checkpoint, exact_options()); }
  std::vector<float> stream(Runner& runner) const {
    std::vector<float> x(ids.size() * static_cast<size_t>(checkpoint.config().d));
    runner.read_stream(x);
    return x;
  }
  Batch batch() const {
    Batch batch;
    const auto n = static_cast<int64_t>(ids.size());
    batch.append(ids, 0, first_pages(n), n, RowKind::prompt);
    return batch;
  }

  double median_distance(std::span<const float> got, std::span<const float> want) const {
    const auto v = static_cast<size_t>(checkpoint.config().v);
    std::vector<double> rows;
    for (size_t first = 0; first < got.size(); first += v)
      rows.push_back(relative_distance(got.subspan(first, v), want.subspan(first, v)));
    std::ranges::nth_element(rows, rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2));
    return rows[rows.size() / 2];
  }

  const Checkpoint checkpoint;
  const Ids ids;
};
INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(kFamilyModels), [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Experts, Families, testing::ValuesIn(kExpertModels),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Delta, Families, testing::ValuesIn(kDeltaModels), [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Routed, Families, testing::ValuesIn(kRoutedModels),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Sinks, Families, testing::ValuesIn(kSinkModels), [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Gemma4, Families, testing::ValuesIn(kGemma4Models),
                         [](const auto& info) { return info.param; });

// Calibration runs a layer stop by stop. The result is that of the layer in one piece, with the same operations and
// hence the same bits.
TEST_P(Families, CalibrationWalksTheModelThatRuns) {
  const ModelConfig& c = checkpoint.config();
  const auto whole = runner(), walked = runner();
  for (Runner* runner : {whole.get(), walked.get()}) {
    runner->begin(batch(), Activations::f32);
    runner->embed();
  }
  std::vector<float> first, x = stream(*walked);  // where the block begins, and now
  int32_t block = -1;
  for (const auto& [layer, stop] : stops_of(c)) {
    const Tap& tap = tap_of(walked->program(), layer, stop->name);
    if (tap.block != block) first = x, block = tap.block;
    if (!stop->adds) continue;
    walked->write_stream(first);
    const auto columns = static_cast<size_t>(shape_of(c, {layer, stop->roles.front()})[1]);
    if (stop->routed) {
      const Routes routes = choose_experts(*walked, layer);
      std::vector<float> input(static_cast<size_t>(routes.count()) * columns);
      read_expert_input(*walked, layer, routes, input);
      add_experts(*walked, layer, routes, input, x);
    } else {
      std::vector<float> input(ids.size() * columns);
      read_input(*walked, layer, stop->name, input);
      add_output(*walked, layer, stop->name, input, x);
    }
    x = stream(*walked);
    if (stop != &stops_of(c, layer).back()) continue;
    whole->layers(layer, layer + 1);
    EXPECT_EQ(x, stream(*whole)) << "layer " << layer;
  }
}

// Every stop is quantised against the rows that its linears read in a plain pass. The earlier stops keep their weights
// here, so the pass is that of the source, and the codes are those of its inputs bit for bit.
TEST_P(Families, CalibrationSeesTheInputsOfAPlainPass) {
  const ModelConfig& c = checkpoint.config();
  ThreadPool pool(1);
  Dataset calibration;
  calibration.sequences = {ids};
  calibration.tokens = std::ssize(ids);
  const auto bench = make_host_workbench(pool);
  const FormatSpec format = parse_format("int4g32");
  const auto plain = runner();
  for (const auto& [layer, stop] : stops_of(c)) {
    const Tap& tap = tap_of(plain->program(), layer, stop->name);
    plain->begin(batch(), Activations::f32);
    Routes routes;
    std::vector<float> input;
    const int64_t columns = shape_of(c, {layer, stop->roles.front()})[1];
    if (stop->routed) {
      const Tap& gates = tap_of(plain->program(), layer, "gate_up");
      plain->run({0, gates.block});
      routes = plain->run_route({gates.block, gates.reader});
      plain->follow(routes);
      const int32_t end = stop->adds ? tap.reader : gates.reader + 1;
      plain->run({gates.reader, end});
      input.resize(static_cast<size_t>(routes.count() * columns));
      const auto& take = std::get<op::Take>(plain->program().ops[static_cast<size_t>(gates.reader)]);
      plain->read(stop->adds ? tap.input : take.to, input);
    } else {
      plain->run({0, tap.reader});
      input.resize(ids.size() * static_cast<size_t>(columns));
      plain->read(tap.input, input);
    }
    ModelQuantizer how;
    for (LinearId id : linears_of(c, layer, *stop)) how.formats[id] = {format};
    const auto quantised = runner();
    quantize_model_gptq(*quantised, checkpoint, calibration, how, pool, [&](const QuantizedLinear& q) {
      std::span<const float> rows = input;
      if (q.id.expert >= 0) {
        const auto group = std::ranges::find(routes.groups, q.id.expert, &ExpertRows::expert);
        if (group == routes.groups.end()) return;  // It is rounded to nearest.
        rows =
            rows.subspan(static_cast<size_t>(group->first_slot * columns), static_cast<size_t>(group->slots * columns));
      }
      bench->begin(columns);
      bench->add(rows);
      bench->factorize(how.options.damping, how.options.act_order);
      const LinearWeight original = checkpoint.linear(q.id);
      bench->load(original);
      EXPECT_EQ(decode(bench->quantize(format, how.options).weight), decode(q.weight)) << to_string(q.id);
    });
  }
}

// GPTQ quantises every linear of the layers, and the model is written and opened again. Steps of 8 bits are 17 times
// smaller than those of 4 (254 / 15), and so is the error of logits while it is small. The bound of a sixth leaves room
// for rounding errors that add up by chance and for 4 bits, whose error saturates. At 8 bits a weight of a group of 32
// normals errs by (2.1 / 127) / sqrt(12) = 0.5% of its size, and 4 L + 1 <= 21 linears in a row err by 2.2% if nothing
// is amplified, so 10% is allowed. If a row's second choice of experts is almost as good as its first, an error of any
// size changes the choice and then the row as a whole, and slightly all rows after it. With experts, therefore, the
// median row must be near.
TEST_P(Families, QuantisedModelsAreNearAndOpenAgain) {
  const auto exact = runner();
  const std::vector<float> want = run_whole(*exact, ids, Activations::f32);
  ThreadPool pool(1);
  const TestFolder folder;
  Dataset calibration;
  calibration.sequences = {ids};
  double errors[2];
  for (const int bits : {8, 4}) {
    ModelQuantizer how;
    std::map<LinearId, FormatSpec> formats;
    for (LinearId id : linears_of(checkpoint.config()))
      if (id.layer >= 0) formats[id] = parse_format(fmt::format("int{}g32", bits));
    how.formats = one_format_each(formats);
    std::map<LinearId, LinearWeight> made;
    const auto quantised = runner();
    quantize_model_gptq(*quantised, checkpoint, calibration, how, pool,
                        [&](QuantizedLinear linear) { made[linear.id] = std::move(linear.weight); });
    EXPECT_EQ(made.size(), formats.size());
    const std::vector<float> got = run_whole(*quantised, ids, Activations::f32);
    const std::string out = folder / fmt::format("int{}", bits);
    write_checkpoint(
        out, checkpoint, formats, [&](LinearId id) { return made.at(id); }, nlohmann::json::object());
    const Checkpoint written = Checkpoint::open(out);
    EXPECT_EQ(written.config().architecture, checkpoint.config().architecture);
    EXPECT_EQ(written.parameters(), checkpoint.parameters());
    const auto again = make_cpu_runner(written, exact_options());
    EXPECT_EQ(run_whole(*again, ids, Activations::f32), got) << "the checkpoint that was written";
    errors[bits == 4] = checkpoint.config().experts > 0 ? median_distance(got, want) : relative_distance(got, want);
  }
  EXPECT_LT(errors[0], 0.1);
  EXPECT_LT(errors[0], errors[1] / 6);
}

// Unchanged linears are written once more. The logits are the same, bit for bit, and the names are the project's own.
TEST_P(Families, ADenseCheckpointIsTheSameModel) {
  const TestFolder folder;
  write_checkpoint(folder / "dense", checkpoint, {}, nullptr, nlohmann::json::object());
  const Checkpoint written = Checkpoint::open(folder / "dense");
  const std::vector<std::string> names = Safetensors::open(folder / "dense").names();
  for (LinearId id : linears_of(checkpoint.config())) {
    const std::string part = checkpoint.format(id).is_dense() ? ".weight" : ".plane0";
    EXPECT_THAT(names, testing::Contains(module_name(id) + part)) << to_string(id);
  }
  for (LinearId id : fixed_linears_of(checkpoint.config()))
    EXPECT_THAT(names, testing::Contains(weight_name(id))) << to_string(id);
  EXPECT_THAT(written.notes(), testing::IsEmpty());
  const auto mine = make_cpu_runner(written, exact_options()), source = runner();
  EXPECT_EQ(run_whole(*mine, ids, Activations::f32), run_whole(*source, ids, Activations::f32));
}

// KL of one linear at 2 bits is measured by the meter, which runs only the layers after it, and from whole logits. Both
// are sums over rows in double over FP32 logits of one runner, and rows of a step have the same bits in any batch.
TEST_P(Families, TheMeterMeasuresWhatLogitsSay) {
  const auto measured = runner(), plain = runner();
  ThreadPool pool(1);
  const LinearId id{1, stops_of(checkpoint.config(), 1)[1].roles.front()};
  LinearWeight changed = quantize_rtn(parse_format("int2g32z"), decode(checkpoint.linear(id)),
                                      checkpoint.linear(id).out, checkpoint.linear(id).in, {}, pool);
  changed.bias = checkpoint.linear(id).bias;
  FidelityMeter meter(*measured, {ids}, pool, Activations::f32);
  EXPECT_EQ(meter.measure().kl, 0);
  meter.assign(id, measured->pack(changed));
  const double kl = meter.measure().kl;

  const std::vector<float> p = run_whole(*plain, ids, Activations::f32);
  plain->set_linear(id, plain->pack(changed));
  const std::vector<float> q = run_whole(*plain, ids, Activations::f32);
  const auto v = static_cast<size_t>(checkpoint.config().v);
  double sum = 0;
  for (size_t row = 0; row + 1 < ids.size(); ++row) {  // The last row predicts no token of the text.
    double totals[2] = {0, 0}, expected = 0;
    for (size_t k = 0; k < v; ++k)
      totals[0] += std::exp(double{p[row * v + k]}), totals[1] += std::exp(double{q[row * v + k]});
    for (size_t k = 0; k < v; ++k)
      expected += std::exp(double{p[row * v + k]}) / totals[0] * (double{p[row * v + k]} - double{q[row * v + k]});
    sum += expected - std::log(totals[0]) + std::log(totals[1]);
  }
  const double want = sum / static_cast<double>(ids.size() - 1);
  EXPECT_GT(kl, 1e-6);
  EXPECT_NEAR(kl, want, 1e-3 * want + 1e-7);  // The meter's exponentials are FP32 (core/fast_exp.h).
}

TEST(FamilyExports, RefuseByNameWhatReadersCannotOpen) {
  const TestFolder folder;
  using testing::AllOf;
  using testing::HasSubstr;
  const auto export_of = [&](const std::string& model, auto&& exporting) {
    try {
      exporting(Checkpoint::open(tiny_model(model)));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("exported");
  };
  const auto gguf = [&](const Checkpoint& c) { export_gguf(c, folder / "x.gguf", false); };
  const auto compressed = [&](const Checkpoint& c) { export_compressed_tensors(c, folder / "x", ServingProfile::any); };
  const auto gptq = [&](const Checkpoint& c) { export_gptq(c, folder / "x", ServingProfile::any); };
  EXPECT_THAT(export_of("gemma3", gguf), AllOf(HasSubstr("not Gemma3ForCausalLM"), HasSubstr("gguf")));
  EXPECT_THAT(export_of("smollm3", gguf), HasSubstr("not SmolLM3ForCausalLM"));
  EXPECT_THAT(export_of("phi3", compressed), AllOf(HasSubstr("Phi3ForCausalLM"), HasSubstr("one matrix")));
  EXPECT_THAT(export_of("phi3", gptq), HasSubstr("one matrix"));
}

}  // namespace
}  // namespace fidelio
