// These tests read and write files of gpt-oss: folders in MXFP4 and with experts by columns, our own, and GGUF.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/rng.h"
#include "io/checkpoint_write.h"
#include "io/export/export.h"
#include "io/gguf/file.h"
#include "io/hf_config.h"
#include "models.h"

namespace fidelio {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

std::vector<float> logits_of(const Checkpoint& model, const std::vector<int32_t>& ids, const std::string& isa = "") {
  return run_whole(*make_cpu_runner(model, exact_options(isa)), ids, Activations::f32);
}
std::vector<int32_t> ids_of(const std::string& name) { return golden_json(name)["ids"]; }

struct SinkFolders : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, SinkFolders, testing::ValuesIn(kSinkModels), [](const auto& info) { return info.param; });

// Unchanged weights are written once more, each under a name of its own, whatever tensors the source keeps them in.
TEST_P(SinkFolders, WrittenAgainAreTheSameModel) {
  const Checkpoint source = Checkpoint::open(tiny_model(GetParam()));
  const TestFolder folder;
  write_checkpoint(folder / "again", source, {}, nullptr, nlohmann::json::object());
  const Checkpoint written = Checkpoint::open(folder / "again");
  EXPECT_THAT(written.notes(), IsEmpty());
  EXPECT_EQ(written.parameters(), source.parameters());
  const std::vector<std::string> names = Safetensors::open(folder / "again").names();
  for (LinearId id : linears_of(source.config())) {
    EXPECT_EQ(written.format(id), source.format(id));
    EXPECT_EQ(decode(written.linear(id)), decode(source.linear(id))) << to_string(id);
    if (has_bias(source.config(), id.role)) {
      EXPECT_THAT(names, Contains(bias_name(id)));
    }
  }
  EXPECT_EQ(logits_of(written, ids_of(GetParam())), logits_of(source, ids_of(GetParam())));
}

// Some fine-tunes have tensors of each expert, with rows of outputs, and a module more in routers.
TEST(GptOssFolder, MayHaveATensorForEachExpert) {
  const Checkpoint source = Checkpoint::open(tiny_model("gpt_oss"));
  const Safetensors file = Safetensors::open(tiny_model("gpt_oss"));
  const ModelConfig& c = source.config();
  const TestFolder folder;
  copy_model(tiny_model("gpt_oss"), folder / "each");
  std::filesystem::remove(folder / "each/model.safetensors");
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : file.names()) {
    if (name.find(".experts.") != std::string::npos) continue;
    std::string other = name;
    if (const size_t at = name.find(".router."); at != std::string::npos) other.insert(at + 8, "linear.");
    tensors.push_back(to_write(other, file.get(name)));
  }
  for (int layer = 0; layer < c.L; ++layer)
    for (int expert = 0; expert < c.experts; ++expert) {
      const std::string module = fmt::format("model.layers.{}.mlp.experts.", layer);
      OwnedTensor both = OwnedTensor::allocate(DType::bf16, {2 * c.f, c.d}),
                  biases = OwnedTensor::allocate(DType::bf16, {2 * c.f});
      const auto of = [&](Role role) { return LinearId{layer, role, expert}; };
      for (int64_t row = 0; row < 2 * c.f; ++row) {
        const LinearId id = of(row % 2 == 0 ? Role::gate : Role::up);
        const LinearWeight w = source.linear(id);
        std::copy_n(std::get<Dense>(w.main).w.as<const bf16>().begin() + row / 2 * c.d, c.d,
                    both.as<bf16>().begin() + row * c.d);
        biases.as<bf16>()[static_cast<size_t>(row)] =
            source.bias_tensor(id).as<const bf16>()[static_cast<size_t>(row / 2)];
      }
      tensors.push_back(to_write(fmt::format("{}gate_up_projs.{}.weight", module, expert), both));
      tensors.push_back(to_write(fmt::format("{}gate_up_projs.{}.bias", module, expert), biases));
      tensors.push_back(to_write(fmt::format("{}down_projs.{}.weight", module, expert),
                                 std::get<Dense>(source.linear(of(Role::down)).main).w));
      tensors.push_back(
          to_write(fmt::format("{}down_projs.{}.bias", module, expert), source.bias_tensor(of(Role::down))));
    }
  write_sharded_safetensors(folder / "each", tensors, 1'000'000'000, {{"format", "pt"}});
  const Checkpoint each = Checkpoint::open(folder / "each");
  EXPECT_THAT(each.notes(), IsEmpty());
  EXPECT_EQ(logits_of(each, ids_of("gpt_oss")), logits_of(source, ids_of("gpt_oss")));
}

// The file's own bytes, by the definition of MXFP4, are the values of the linears bit for bit.
TEST(Mxfp4Folder, HasTheValuesOfItsBytes) {
  constexpr double kTable[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
  const Checkpoint model = Checkpoint::open(tiny_model("gpt_oss_mxfp4"));
  const Safetensors file = Safetensors::open(tiny_model("gpt_oss_mxfp4"));
  const ModelConfig& c = model.config();
  EXPECT_EQ(model.quantised_by(), "mxfp4");
  for (int layer = 0; layer < c.L; ++layer)
    for (int expert = 0; expert < c.experts; ++expert)
      for (const Role role : {Role::gate, Role::up, Role::down}) {
        const LinearId id{layer, role, expert};
        EXPECT_EQ(to_string(model.format(id)), "mxfp4");
        const LinearWeight w = model.linear(id);
        const std::vector<float> values = decode(w);
        const std::string name =
            fmt::format("model.layers.{}.mlp.experts.{}", layer, role == Role::down ? "down_proj" : "gate_up_proj");
        const OwnedTensor codes = file.get(name + "_blocks"), scales = file.get(name + "_scales"),
                          biases = file.get(name + "_bias");
        const int64_t rows = codes.view.shape[1], blocks = codes.view.shape[2];
        for (int64_t r = 0; r < w.out; ++r) {
          const int64_t row = role == Role::down ? r : 2 * r + (role == Role::up ? 1 : 0), at = expert * rows + row;
          for (int64_t column = 0; column < w.in; ++column) {
            const uint8_t byte = codes.as<const uint8_t>()[static_cast<size_t>(at * 16 * blocks + column / 2)];
            const int code = column % 2 == 0 ? byte & 15 : byte >> 4,
                      scale = scales.as<const uint8_t>()[static_cast<size_t>(at * blocks + column / 32)];
            const auto want = static_cast<float>(kTable[code] * std::pow(2.0, scale - 127));
            ASSERT_EQ(values[static_cast<size_t>(r * w.in + column)], want)
                << to_string(id) << " " << r << " " << column;
          }
          EXPECT_EQ(w.bias.as<const float>()[static_cast<size_t>(r)],
                    to_float(biases.as<const bf16>()[static_cast<size_t>(at)]));
        }
      }
}

// Both models have the same weights, which kernels of another kind multiply: a product of K inputs errs by about
// sqrt(K) 2^-24 of its size with random signs, K being 96 here, and two layers amplify that little.
TEST(Mxfp4Folder, HasTheLogitsOfItsTwinInBf16) {
  const Checkpoint model = Checkpoint::open(tiny_model("gpt_oss_mxfp4"));
  std::map<LinearId, FormatSpec> formats;
  for (LinearId id : linears_of(model.config())) formats[id] = parse_format("bf16");
  const TestFolder folder;
  write_checkpoint(
      folder / "twin", model, formats,
      [&](LinearId id) {
        const LinearWeight w = model.linear(id);
        const OwnedTensor values = OwnedTensor::allocate(DType::bf16, {w.out, w.in});
        convert_from_float(decode(w), values.view);
        EXPECT_EQ(decode(make_dense(values)), decode(w)) << to_string(id);
        return make_dense(values);
      },
      nlohmann::json::object());
  const Checkpoint twin = Checkpoint::open(folder / "twin");
  const std::vector<int32_t> ids = ids_of("gpt_oss_mxfp4");
  const auto v = static_cast<size_t>(model.config().v);
  for (const std::string& isa : isa_names()) {
    const std::vector<float> ours = logits_of(model, ids, isa), theirs = logits_of(twin, ids, isa);
    for (size_t row = 0; row < ids.size(); ++row)
      EXPECT_LE(relative_distance(std::span(ours).subspan(row * v, v), std::span(theirs).subspan(row * v, v)), 1e-6)
          << isa << " row " << row;
  }
}

void put_tokenizer(const std::string& folder) {
  std::ofstream(folder + "/tokenizer.json") << R"({"version":"1.0","added_tokens":[],"decoder":{"type":"ByteLevel"},
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
    "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}})";
}

// The file's blocks are those of MXFP4 as the gguf package decodes them (io/gguf/gguf_test.cc), and the model is the
// same.
TEST(GgufSinks, HoldTheModelAsItIs) {
  const TestFolder folder;
  copy_model(tiny_model("gpt_oss_mxfp4"), folder / "model");
  put_tokenizer(folder / "model");
  const Checkpoint model = Checkpoint::open(folder / "model");
  EXPECT_THAT(export_gguf(model, folder / "out.gguf", true), IsEmpty());
  const auto file = gguf::File::open(folder / "out.gguf");
  const gguf::StoredMatrix& downs = file->tensors().at("blk.1.ffn_down_exps.weight");
  EXPECT_EQ(downs.type->number, 39u);
  std::vector<float> stored(static_cast<size_t>(downs.columns));
  for (int64_t row : {int64_t{0}, downs.rows_each + 3}) {
    decode_row(*downs.type, downs.row(row), stored);
    const LinearWeight w = model.linear({1, Role::down, static_cast<int>(row / downs.rows_each)});
    std::vector<float> values(static_cast<size_t>(w.in));
    decode_row(w, row % downs.rows_each, values);
    EXPECT_EQ(stored, values);
  }
  const Checkpoint again = Checkpoint::open(folder / "out.gguf");
  EXPECT_THAT(again.notes(), IsEmpty());
  EXPECT_EQ(again.config().kinds, model.config().kinds);
  EXPECT_EQ(again.parameters(), model.parameters());
  for (LinearId id : linears_of(model.config())) {
    EXPECT_EQ(again.format(id), model.format(id));
    EXPECT_EQ(decode(again.linear(id)), decode(model.linear(id))) << to_string(id);
  }
  EXPECT_EQ(logits_of(again, ids_of("gpt_oss_mxfp4")), logits_of(model, ids_of("gpt_oss_mxfp4")));
}

TEST(Exports, OfSinksRefuseWhatReadersDoNotHave) {
  const TestFolder folder;
  const auto export_of = [&](const std::string& name) {
    return [&, name] { export_gguf(Checkpoint::open(tiny_model(name)), folder / "out.gguf", false); };
  };
  EXPECT_THAT(export_of("gpt_oss"), ThrowsMessage<Error>(HasSubstr("yarn with other than its usual parameters")));
  EXPECT_THAT(export_of("gpt_oss_keys5"), ThrowsMessage<Error>(HasSubstr("no windows in other than the first, third")));
  for (const char* target : {"compressed-tensors", "gptq"})
    EXPECT_THAT([&] { check_exports_to(Checkpoint::open(tiny_model("gpt_oss_mxfp4")), target); },
                ThrowsMessage<Error>(HasSubstr("expect the experts of a layer in two tensors")));
}

// Writes quill-1m as a gpt-oss: every MLP occurs E times, each copy with noise of its own (0 means none), by columns as
// fine-tunes have them. A bias of -1 on up, alpha 1 and a limit that no value reaches make a clamped gate SwiGLU, and a
// sink far below all scores takes no share.
void write_as_gpt_oss(const std::string& folder, int experts, int per_row, float noise) {
  const Checkpoint quill = Checkpoint::open(source_path("models/quill-1m"));
  std::filesystem::create_directories(folder);
  auto config = nlohmann::json::parse(read_text_file(source_path("models/quill-1m/config.json")));
  config.update({{"architectures", {"GptOssForCausalLM"}},
                 {"model_type", "gpt_oss"},
                 {"num_local_experts", experts},
                 {"num_experts_per_tok", per_row},
                 {"swiglu_alpha", 1.0},
                 {"swiglu_limit", 1e6},
                 {"sliding_window", 512},
                 {"rope_scaling", nullptr},
                 {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", config["rope_theta"]}}}});
  write_file_atomically(folder + "/config.json", config.dump());
  copy_companions(quill.texts(), folder);
  const ModelConfig c = parse_config(config.dump(), "config.json");
  Rng rng(7);
  const auto as_bf16 = [](const std::vector<float>& values, const Shape& shape) {
    const OwnedTensor t = OwnedTensor::allocate(DType::bf16, shape);
    convert_from_float(values, t.view);
    return t;
  };
  std::vector<TensorToWrite> tensors;
  std::map<std::string, std::vector<float>> stacked;  // the experts' matrices by columns, and their biases
  for (LinearId id : linears_of(c)) {
    std::vector<float> values = decode(quill.linear({id.layer, id.role}));
    const Shape shape = shape_of(c, id);
    if (id.expert < 0) {
      tensors.push_back(to_write(weight_name(id), as_bf16(values, shape)));
      continue;
    }
    const FusedName name = fused_name(c, id), bias = fused_bias_name(c, id);
    const int64_t each = name.rows / experts, first = name.runs[0].first_row % each;
    stacked[name.weight].resize(static_cast<size_t>(name.rows * shape[1]));
    for (int64_t r = 0; r < shape[0]; ++r)
      for (int64_t column = 0; column < shape[1]; ++column) {
        const float changed = noise > 0 ? noise * static_cast<float>(rng.normal()) : 0;
        stacked[name.weight]
               [static_cast<size_t>((id.expert * shape[1] + column) * each + first + r * name.runs[0].step)] =
                   values[static_cast<size_t>(r * shape[1] + column)] * (1 + changed);
      }
    stacked[bias.weight].resize(static_cast<size_t>(bias.rows));
    for (int64_t r = 0; id.role == Role::up && r < shape[0]; ++r)
      stacked[bias.weight][static_cast<size_t>(bias.runs[0].first_row + r * bias.runs[0].step)] = -1;
  }
  for (const auto& [name, values] : stacked) {
    const bool bias = name.ends_with("_bias"), down = name.find("down_proj") != std::string::npos;
    const int64_t rows = down ? c.d : 2 * c.f, columns = down ? c.f : c.d;
    tensors.push_back(to_write(name, as_bf16(values, bias ? Shape{experts, rows} : Shape{experts, columns, rows})));
  }
  for (LinearId id : linears_of(c))
    if (id.expert < 0 && has_bias(c, id.role))
      tensors.push_back(to_write(
          bias_name(id), as_bf16(std::vector<float>(static_cast<size_t>(shape_of(c, id)[0])), {shape_of(c, id)[0]})));
  for (const auto& [layer, norm] : norms_of(c)) {
    const std::string name = norm_name(c, layer, norm);
    tensors.push_back(to_write(name, norm == Norm::sinks
                                         ? as_bf16(std::vector<float>(static_cast<size_t>(c.h), -60), {c.h})
                                         : quill.tensor(norm_name(quill.config(), layer, norm))));
  }
  for (const auto& [name, shape] : tensors_of_routers(c)) {
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    for (float& x : values) x = static_cast<float>(rng.normal()) * 0.1f;
    tensors.push_back(to_write(name, as_bf16(values, shape)));
  }
  write_sharded_safetensors(folder, tensors, 1'000'000'000, {{"format", "pt"}});
}

// Equal experts are the MLP that they were copied from, as in experts_test.cc. Besides, up - 1 + 1 rounds up to 2^-24
// of 1, and values of up are a tenth of that and more.
TEST(GptOss, OfEqualExpertsIsTheModelThatTheyAreCopiedFrom) {
  const TestFolder folder;
  write_as_gpt_oss(folder / "m", 3, 2, 0);
  const Checkpoint model = Checkpoint::open(folder / "m");
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 90; ++i) ids.push_back(3 + i * 17 % 2000);
  const std::vector<float> ours = logits_of(model, ids),
                           theirs = logits_of(Checkpoint::open(source_path("models/quill-1m")), ids);
  EXPECT_LT(relative_distance(ours, theirs), 1e-5);
}

TEST(GptOss, IsCompressedCertifiedAndDrafted) {
  const TestFolder folder;
  write_as_gpt_oss(folder / "m", 4, 2, 0.1f);
  const auto run = [&](const std::string& command) {
    const CommandResult result = run_command(folder.path(), command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
    return result;
  };
  run("fidelio compress m --ear 0.97 -o out --threads 2 --calibration-tokens 4096 --search-tokens 1024 "
      "--certificate-windows 20 --json c.json");
  const auto report = nlohmann::json::parse(read_text_file(folder / "c.json"));
  EXPECT_GE(report["certificate"]["domains"][0]["ear"]["value"], 0.97);
  EXPECT_LT(report["bits_per_parameter"], 9);
  EXPECT_THAT(run("fidelio inspect out --all").out, HasSubstr("in 4 experts"));
  const std::string generate = "fidelio generate out -p 'The name of the file' --max-tokens 40 ";
  EXPECT_EQ(run(generate + "--draft lookup").out, run(generate + "--draft off").out);
  const CommandResult tuned = run_command(folder.path(), "fidelio tune out --reference m --calibration " +
                                                             source_path("models/data/docs-heldout.txt") + " -o tuned");
  EXPECT_NE(tuned.code, 0);
  EXPECT_THAT(tuned.err, HasSubstr("a mixture of experts"));
}

}  // namespace
}  // namespace fidelio
