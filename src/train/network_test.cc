// These tests use whole models. They compare the gradients of every tensor of one model of each family with finite
// differences in FP64, those of models with delta nets with torch's too, and this room's forward pass with the serving
// one.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "runtime/page_table.h"
#include "runtime/runner.h"
#include "train/gradient_check.h"
#include "train/network.h"
#include "train/salience.h"
#include "train/tape.h"

namespace fidelio::train {
namespace {

std::string tiny(const std::string& name) { return FIDELIO_SOURCE_DIR "/tests/models/" + name; }

std::vector<int32_t> random_ids(int64_t n, int v, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(v)));
  return ids;
}

class Family : public testing::TestWithParam<std::string> {};

// The loss is the KL from a model whose weights are all 3% off, forward and reverse mixed, on two sequences.
TEST_P(Family, GradientsOfEveryTensor) {
  const Checkpoint checkpoint = Checkpoint::open(tiny(GetParam()));
  const ModelConfig& config = checkpoint.config();
  ASSERT_GE(config.L, 2);
  Host<double> host(2);
  DenseNetwork<Host<double>> student(host, checkpoint, true);
  const DenseNetwork<Host<double>> teacher(host, checkpoint, false);
  uint64_t stream = 0;
  for (const auto& t : student.tensors()) {
    const std::vector<double> noise = normal_values(++stream, t.n);
    const double rms = std::sqrt(host.sum_of_squares(t.value.get(), nullptr, t.n) / static_cast<double>(t.n));
    for (int64_t i = 0; i < t.n; ++i) t.value[i] += 0.03 * rms * noise[static_cast<size_t>(i)];
  }
  Sequences sequences;
  sequences.append(random_ids(33, config.v, 1));
  sequences.append(random_ids(9, config.v, 2));
  const auto rows = host.load(sequences);
  Tape<Host<double>> tape(host, config, rows.rows());
  const LossMix mix{0.8, 0.2, 0};
  const auto loss = [&](double gradient_scale) {
    const double* theirs = tape.forward(teacher.view(), rows, false);
    const double* ours = tape.forward(student.view(), rows, true);
    return tape.losses(student.view(), &teacher.view(), theirs, rows, ours, mix, gradient_scale).mixed(mix);
  };
  student.zero_gradients();
  loss(1);
  tape.backward(student.view(), rows);
  std::vector<Argument> arguments;
  for (const auto& t : student.tensors())
    arguments.push_back(
        {t.name, {t.value.get(), static_cast<size_t>(t.n)}, {t.gradient.get(), static_cast<size_t>(t.n)}});
  expect_gradients([&] { return loss(0); }, arguments, 1e-6, 1e-4);
}

// In FP32 the logits equal those of the serving forward with FP32 activations and cache. Both round every product and
// every sum of K terms in their own order. The error is (K + L) eps relative to the norm of a row at worst, and
// usually the square root of that.
TEST_P(Family, LogitsOfTheServingForward) {
  const Checkpoint checkpoint = Checkpoint::open(tiny(GetParam()));
  const ModelConfig& config = checkpoint.config();
  const std::vector<int32_t> ids = random_ids(70, config.v, 5);
  const auto n = static_cast<int64_t>(ids.size());
  Host<float> host(2);
  const DenseNetwork<Host<float>> network(host, checkpoint, false);
  Tape<Host<float>> tape(host, config, n);
  Sequences sequences;
  sequences.append(ids);
  const auto rows = host.load(sequences);
  const float* stream = tape.forward(network.view(), rows, false);
  std::vector<float> logits(static_cast<size_t>(n * config.v));
  tape.logits_of(network.view(), stream, n, tape.hidden(), tape.logits());
  host.download(tape.logits(), logits);

  RunnerOptions options{.threads = 2, .isa = "", .kv = KvFormat::f32, .mode = Activations::f32};
  const auto runner = make_cpu_runner(checkpoint, options);
  Batch batch;
  std::vector<int32_t> pages(static_cast<size_t>(PageTable::pages_for(n)));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
  batch.append(ids, 0, pages, n, RowKind::prompt);
  const auto served = runner->step(batch, Activations::f32);
  ASSERT_EQ(served.size(), logits.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    difference += (double{logits[i]} - served[i]) * (double{logits[i]} - served[i]);
    norm += double{served[i]} * served[i];
  }
  EXPECT_LT(std::sqrt(difference / norm), 32 * 0x1p-24 * std::sqrt(config.f)) << std::sqrt(difference / norm);
}

// Only the first of two tokens has a next one, so its gradient dy is the only one, and the moment is dy dy^T. In FP32
// an entry is one product. Its square is compared with the product of two, which allows some eps of it.
TEST_P(Family, OutputMomentsOfOneTokenHaveRankOne) {
  const Checkpoint checkpoint = Checkpoint::open(tiny(GetParam()));
  const std::vector<std::vector<int32_t>> sequences = {random_ids(2, checkpoint.config().v, 9)};
  int64_t bytes = 0;
  for (const auto& [id, moment] : output_moments(checkpoint, sequences, {.threads = 2})) {
    const int64_t out = shape_of(checkpoint.config(), id)[0];
    ASSERT_EQ(static_cast<int64_t>(moment.size()), out * out);
    bytes += out * out * 4;
    const auto at = [&](int64_t i, int64_t k) { return double{moment[static_cast<size_t>(i * out + k)]}; };
    double trace = 0;
    for (int64_t i = 0; i < out; ++i) {
      trace += at(i, i);
      for (int64_t k = 0; k < out; ++k)
        ASSERT_NEAR(at(i, k) * at(i, k), at(i, i) * at(k, k), 8 * 0x1p-24 * at(i, i) * at(k, k)) << to_string(id);
    }
    // Whatever the first token's query and key are, it attends only to itself.
    const bool alone = id.role == Role::q || id.role == Role::k;
    EXPECT_TRUE(alone || trace > 0) << to_string(id);
  }
  EXPECT_EQ(bytes, output_moments_bytes(checkpoint.config()));
}

INSTANTIATE_TEST_SUITE_P(All, Family,
                         testing::Values("llama2", "mistral", "qwen2", "qwen3", "qwen3_5", "qwen3_5_linear"),
                         [](const auto& info) { return info.param; });

struct TorchModel {
  std::string name;
  double tolerance;  // in the norm of a gradient
};
class Torch : public testing::TestWithParam<TorchModel> {};

// Compares a gradient with the norm and the 24 values that tools/make_gradient_goldens.py keeps.
void expect_kept(const nlohmann::json& kept, std::span<const double> gradient, double tolerance,
                 const std::string& name) {
  double squares = 0;
  for (const double x : gradient) squares += x * x;
  const double norm = kept.at("norm");
  EXPECT_NEAR(std::sqrt(squares), norm, tolerance * norm) << name;
  const auto values = kept.at("values").get<std::vector<double>>();
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(gradient[i * gradient.size() / values.size()], values[i], tolerance * norm) << name << " " << i;
}

// The text is 150 tokens, two chunks of a delta net and a part of one. Both sides compute in FP64, from weights that
// are equal, except that the sum of 1 and a norm's stored weight is rounded to FP32 here, by 6e-8 of itself at most. In
// the norm of a gradient that is some 1e-7. Where there is attention, frequencies in FP32 may differ by 2 ulp: at
// position 149 an angle is then off by 3.6e-5 at most, and by much less on average.
TEST_P(Torch, GivesTheSameGradients) {
  const auto& [name, tolerance] = GetParam();
  const auto read = [](const std::string& file) {
    return nlohmann::json::parse(read_text_file(FIDELIO_SOURCE_DIR "/tests/golden/" + file + ".json"));
  };
  const nlohmann::json golden = read(name + ".gradients");
  const auto ids = read(name).at("ids").get<std::vector<int32_t>>();
  const Checkpoint checkpoint = Checkpoint::open(tiny(name));
  const ModelConfig& config = checkpoint.config();
  const auto n = static_cast<int64_t>(ids.size()), values = n * config.d;
  Host<double> host(2);
  DenseNetwork<Host<double>> network(host, checkpoint, true);
  Sequences sequences;
  sequences.append(ids);
  const auto rows = host.load(sequences);
  Tape<Host<double>> tape(host, config, n);
  tape.set_labels(rows.labels());
  // The layers are run one by one, so that the gradient of the input of each can be seen.
  std::vector<std::vector<double>> inputs(static_cast<size_t>(config.L) + 1,
                                          std::vector<double>(static_cast<size_t>(values)));
  host.gather(rows, network.view().embedding.weight, config.d, inputs[0].data());
  for (size_t l = 0; l + 1 < inputs.size(); ++l)
    tape.block().forward(network.view().layers[l], rows, inputs[l].data(), inputs[l + 1].data());
  const LossSums sums = tape.losses(network.view(), nullptr, nullptr, rows, inputs.back().data(), {0, 0, 1},
                                    1 / static_cast<double>(n - 1));
  EXPECT_NEAR(sums.loss[2] / static_cast<double>(n - 1), golden.at("loss").get<double>(), tolerance);
  for (size_t l = inputs.size() - 1; l-- > 0;) {
    tape.block().backward(network.view().layers[l], rows, inputs[l].data(), tape.gradient());
    expect_kept(golden.at("inputs").at(l), {tape.gradient(), static_cast<size_t>(values)}, tolerance,
                fmt::format("the input of layer {}", l));
  }
  host.scatter(rows, tape.gradient(), config.d, network.view().embedding.weight_gradient);
  for (const auto& t : network.tensors())
    expect_kept(golden.at("gradients").at(t.name), {t.gradient.get(), static_cast<size_t>(t.n)}, tolerance, t.name);
}
INSTANTIATE_TEST_SUITE_P(All, Torch, testing::Values(TorchModel{"qwen3_5", 1e-5}, TorchModel{"qwen3_5_linear", 1e-6}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fidelio::train
