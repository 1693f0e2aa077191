// The table of docs/families.md says what each family can do besides what all can. These tests hold it to the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "io/export/export.h"
#include "io/hf_config.h"
#include "models.h"
#include "quant/rotation.h"
#include "train/views.h"

namespace fidelio {
namespace {

// What a row of the table says, by the titles of the columns.
using Row = std::map<std::string, std::string>;

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream text(line.substr(1));
  for (std::string cell; std::getline(text, cell, '|');) {
    const size_t first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
  }
  return cells;
}

// Returns the rows by class.
std::map<std::string, Row> table() {
  std::map<std::string, Row> rows;
  std::vector<std::string> titles;
  std::ifstream page(source_path("docs/families.md"));
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with('|') || line.starts_with("|-")) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (titles.empty()) {
      titles = cells;
      continue;
    }
    for (size_t i = 0; i < cells.size(); ++i) rows[cells.front()][titles.at(i)] = cells[i];
  }
  return rows;
}

// Returns the tiny models of a class. One of Qwen3-Next has no delta net, unlike all that people have, so it stays out.
std::vector<std::string> models_of(std::string_view class_name) {
  std::vector<std::string> models;
  for (const auto* list :
       {&kTinyModels, &kFamilyModels, &kExpertModels, &kDeltaModels, &kRoutedModels, &kSinkModels, &kGemma4Models})
    for (const std::string& name : *list)
      if (name != "qwen3_next_full" && name_of(Checkpoint::open(tiny_model(name)).config().architecture) == class_name)
        models.push_back(name);
  return models;
}

// Writes zeros for every tensor of a model without shared experts, delta nets or predictors.
void write_zeros(const std::string& folder, const ModelConfig& config) {
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.push_back(to_write(name, OwnedTensor::allocate(DType::bf16, shape)));
  };
  for (LinearId id : linears_of(config)) add(file_module_name(config, id) + ".weight", shape_of(config, id));
  for (const auto& [layer, norm] : norms_of(config)) add(norm_name(config, layer, norm), {norm_size(config, layer, norm)});
  for (const auto& [name, shape] : tensors_of_routers(config)) add(name, shape);
  write_sharded_safetensors(folder, tensors, 1'000'000'000, {{"format", "pt"}});
}

// Copies a tiny model with the settings that published models of its class have: tiny models have odder ones, which a
// target may refuse.
void copy_with_usual_settings(const std::string& name, const std::string& folder) {
  copy_model(tiny_model(name), folder);
  std::ofstream(folder + "/tokenizer.json") << R"({"version":"1.0","added_tokens":[],"decoder":{"type":"ByteLevel"},
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
    "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}})";
  auto config = nlohmann::json::parse(read_text_file(folder + "/config.json"));
  config.erase("sliding_window");
  if (name == "qwen3_moe") config.erase("attention_bias");
  if (name == "olmoe") config["num_key_value_heads"] = config["num_attention_heads"];
  std::ofstream(folder + "/config.json") << config.dump();
  if (name != "qwen3_moe" && name != "olmoe") return;
  std::filesystem::remove(folder + "/model.safetensors");
  write_zeros(folder, parse_config(config.dump(), "config.json"));
}

// Tells whether a check passes for one of the models.
template <typename Check>
bool passes(const std::vector<std::string>& models, const Check& check) {
  return std::ranges::any_of(models, [&](const std::string& name) {
    const TestFolder folder;
    copy_with_usual_settings(name, folder / "model");
    try {
      check(Checkpoint::open(folder / "model"));
    } catch (const Error& refusal) {
      std::cout << name << ": " << refusal.what() << "\n";
      return false;
    }
    return true;
  });
}

TEST(FamiliesPage, HasARowForEachFamily) {
  std::vector<std::string> expected, found;
  for (const Family& family : families()) expected.emplace_back(family.class_name);
  for (const auto& [name, row] : table()) found.push_back(name);
  EXPECT_THAT(found, testing::UnorderedElementsAreArray(expected));
}

TEST(FamiliesPage, SaysWhatIsRefused) {
  for (auto& [name, row] : table()) {
    SCOPED_TRACE(name);
    const std::vector<std::string> models = models_of(name);
    ASSERT_FALSE(models.empty());
    const auto tunes = [&](bool gpu) {
      return passes(models, [&](const Checkpoint& c) { train::check_known(c.config(), gpu); });
    };
    EXPECT_EQ(row["tune"], tunes(true) ? "yes" : tunes(false) ? "CPU" : "no");
    const auto yes = [&](auto&& check) { return passes(models, check) ? "yes" : "no"; };
    EXPECT_EQ(row["rotate"], yes([](const Checkpoint& c) { check_can_rotate(c.config()); }));
    EXPECT_EQ(row["GGUF out"], yes([](const Checkpoint& c) { check_exports_to(c, "gguf"); }));
    EXPECT_EQ(row["GPTQ out"], yes([](const Checkpoint& c) { check_exports_to(c, "gptq"); }));
    EXPECT_EQ(row["compressed-tensors out"],
              yes([](const Checkpoint& c) { check_exports_to(c, "compressed-tensors"); }));
  }
}

}  // namespace
}  // namespace fidelio
