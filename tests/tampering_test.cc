// These tests do to a certified model what a person might do, by accident or not. Every edit and damage is refused with
// the name of what was changed, and no honest measurement is. One model is compressed for all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "compress/certificate/seal.h"
#include "compress/inputs/sets.h"
#include "io/checkpoint.h"
#include "models.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

// This is a safetensors file taken apart: its header, fidelio's statement in it, and the data.
class Opened {
 public:
  explicit Opened(const std::string& path) : path_(path) {
    const std::string bytes = read_text_file(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    header = json::parse(bytes.substr(sizeof(length), length));
    data = bytes.substr(sizeof(length) + length);
    meta = json::parse(header["__metadata__"]["fidelio"].get<std::string>());
  }
  json& certificate() { return meta["provenance"]["certificate"]; }
  size_t begin_of(const std::string& tensor) const { return header.at(tensor)["data_offsets"][0].get<size_t>(); }
  size_t end_of(const std::string& tensor) const { return header.at(tensor)["data_offsets"][1].get<size_t>(); }
  void write() {
    header["__metadata__"]["fidelio"] = meta.dump();
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    fs::remove(path_);
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file << text << data;
  }
  // Makes the seal fit the present statement, as a person does who knows how fidelio works.
  void seal() { meta["provenance"]["certificate_seal"] = seal_of(certificate()); }

  json header, meta;
  std::string data;

 private:
  std::string path_;
};

class Tampering : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TestFolder;
    const std::string held = read_text_file(source_path("models/data/docs-heldout.txt"));
    write_file_atomically(*folder_ / "docs.txt", held.substr(0, 12000));
    write_file_atomically(*folder_ / "manual.txt", held.substr(60000, 12000));
    const CommandResult made = run_command(
        folder_->path(), "fidelio compress '" + source_path("models/quill-1m") +
                             "' --calibration-tokens 2048 --search-tokens 512 --context 128 --certificate-windows 16 "
                             "--text docs.txt:docs --text manual.txt:manual --formats int6g64zs8,int8g64zs8 "
                             "--ear 0.95 -o whole --threads 2");
    ASSERT_EQ(made.code, 0) << made.err;
  }
  static void TearDownTestSuite() { delete folder_; }

  // Makes a copy of the model that can be changed.
  Tampering() {
    fs::remove_all(*folder_ / "bad");
    fs::copy(*folder_ / "whole", *folder_ / "bad", fs::copy_options::recursive);
  }
  static std::string weights() { return *folder_ / "bad/model.safetensors"; }
  static CommandResult certify(const std::string& options = "--threads 2") {
    return run_command(folder_->path(),
                       "fidelio certify bad --reference '" + source_path("models/quill-1m") + "' " + options);
  }
  static void expect_refused(const std::string& what, const std::vector<std::string>& words) {
    const CommandResult result = certify();
    EXPECT_EQ(result.code, 1) << what << "\n" << result.out << result.err;
    for (const std::string& word : words) EXPECT_THAT(result.err, HasSubstr(word)) << what;
  }
  // Replaces text in a text file.
  static void replace(const std::string& file, const std::string& from, const std::string& to) {
    std::string text = read_text_file(*folder_ / "bad/" + file);
    const size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << file << " holds no " << from;
    fs::remove(*folder_ / "bad/" + file);
    write_file_atomically(*folder_ / "bad/" + file, text.replace(at, from.size(), to));
  }
  static void restore(const std::string& file) {
    fs::copy_file(*folder_ / "whole/" + file, *folder_ / "bad/" + file, fs::copy_options::overwrite_existing);
  }
  static TestFolder* folder_;
};
TestFolder* Tampering::folder_ = nullptr;

TEST_F(Tampering, HonestMeasurementsHold) {
  std::vector<std::string> ways = {"--threads 1"};
  for (const std::string& isa : isa_names()) ways.push_back("--isa " + isa);
  for (const std::string& way : ways) {
    const CommandResult result = certify(way);
    EXPECT_EQ(result.code, 0) << way << result.err;
    EXPECT_THAT(result.out, HasSubstr("The certificate holds.")) << way;
    EXPECT_THAT(result.out, HasSubstr("This model was not made, tried or chosen with any of these passages. It was "
                                      "tried on other passages of the same documents."));
  }
  // The texts have moved, and are recognised by their contents.
  fs::rename(*folder_ / "docs.txt", *folder_ / "moved.txt");
  EXPECT_EQ(certify("--text moved.txt:docs --text manual.txt:manual").code, 0);
  EXPECT_THAT(certify("--text moved.txt --text manual.txt:manual").err,
              HasSubstr("speaks of the domains docs, manual"));
  fs::rename(*folder_ / "moved.txt", *folder_ / "docs.txt");
}

TEST_F(Tampering, AChangedTensorIsNamed) {
  const std::string down = "model.layers.1.mlp.down_proj.";
  const std::string refused = "its weights are not those that were certified (tensor ";
  Opened file(weights());
  const std::string data = file.data;
  const auto flip = [&](size_t begin, size_t) { file.data[begin] ^= 1; };
  const auto reverse = [&](size_t begin, size_t) { std::reverse(&file.data[begin], &file.data[begin + 64]); };
  const auto enlarge = [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += sizeof(float)) {
      float scale = 0;
      std::memcpy(&scale, &file.data[at], sizeof(scale));
      scale *= 1.01F;
      std::memcpy(&file.data[at], &scale, sizeof(scale));
    }
  };
  using Change = std::function<void(size_t, size_t)>;
  for (const auto& [tensor, change] : std::vector<std::pair<std::string, Change>>{{down + "plane0", flip},
                                                                                  {down + "plane0", reverse},
                                                                                  {down + "scale", flip},
                                                                                  {down + "row_scale", enlarge},
                                                                                  {"model.norm.weight", flip}}) {
    file.data = data;
    change(file.begin_of(tensor), file.end_of(tensor));
    ASSERT_NE(file.data, data) << tensor;
    file.write();
    expect_refused(tensor, {refused + tensor + " was changed"});
    // The hash of all weights is made to fit, and the tensor's own does not.
    const std::string before = file.meta["weights_sha256"];
    file.meta["weights_sha256"] = Checkpoint::open(*folder_ / "bad").weights_sha256();
    file.write();
    expect_refused(tensor, {refused + tensor + " was changed"});
    file.meta["weights_sha256"] = before;
  }
  // Now all hashes fit. Only measuring is left, and the figures, their domain and the target are named.
  file.data = data;
  const size_t begin = file.begin_of(down + "plane0"), end = file.end_of(down + "plane0");
  std::reverse(file.data.begin() + static_cast<int64_t>(begin), file.data.begin() + static_cast<int64_t>(end));
  file.write();
  const Hashes tensors = Checkpoint::open(*folder_ / "bad").tensor_hashes();
  file.meta["weights_sha256"] = sha256_of_weights(tensors);
  file.meta["tensors"] = tensor_digits(tensors);
  file.write();
  expect_refused("rows",
                 {"what is certified is not met: measured is EAR 0.", " of ", "its target is EAR of at least 0.95"});
  // Without the hashes nothing is certain.
  for (const char* key : {"weights_sha256", "tensors", "files"}) {
    restore("model.safetensors");
    Opened bad(weights());
    bad.meta.erase(key);
    bad.write();
    expect_refused(key, {"does not say what"});
  }
}

TEST_F(Tampering, AChangedFileIsNamed) {
  const auto refused = [&](const std::string& file, const std::string& how) {
    expect_refused(file, {file + " was " + how + " since it was certified, and what the model answers depends on it"});
    if (how == "added")
      fs::remove(*folder_ / "bad/" + file);
    else
      restore(file);
  };
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {R"("rope_theta": 10000)", R"("rope_theta": 10100)"},
           {R"("rms_norm_eps": 1e-05)", R"("rms_norm_eps": 3e-05)"},
           {R"("max_position_embeddings": )", R"("max_position_embeddings": 1)"}}) {
    replace("config.json", from, to);
    refused("config.json", "changed");
  }
  // Two words of the vocabulary change places, so text becomes other tokens.
  json tokenizer = json::parse(read_text_file(*folder_ / "bad/tokenizer.json"));
  json& vocabulary = tokenizer["model"]["vocab"];
  std::vector<std::string> words;
  for (const auto& [word, id] : vocabulary.items())
    if (word.size() == 5 && std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isalpha(c) != 0; }))
      words.push_back(word);
  ASSERT_GE(words.size(), 2u);
  std::swap(vocabulary[words[0]], vocabulary[words[1]]);
  fs::remove(*folder_ / "bad/tokenizer.json");
  write_file_atomically(*folder_ / "bad/tokenizer.json", tokenizer.dump());
  refused("tokenizer.json", "changed");
  write_file_atomically(*folder_ / "bad/generation_config.json", R"({"temperature": 1.9})");
  refused("generation_config.json", "changed");
  fs::remove(*folder_ / "bad/generation_config.json");
  refused("generation_config.json", "removed");
  write_file_atomically(*folder_ / "bad/tokenizer_config.json", "{}");
  refused("tokenizer_config.json", "changed");
  write_file_atomically(*folder_ / "bad/merges.txt", "a b\n");
  refused("merges.txt", "added");
}

// The seal protects fields that measuring again does not check, and each is named.
TEST_F(Tampering, AnEditedFieldOfTheCertificateIsNamed) {
  const json tasks = {{"file_sha256", "0"},
                      {"questions", {{"calibration", 30}, {"check", 300}}},
                      {"sampling", "greedy"},
                      {"runs", 1},
                      {"accuracy_drop", 0.001}};
  for (const auto& [field, change] : std::vector<std::pair<std::string, std::function<void(json&)>>>{
           {"target", [](json& c) { c["target"]["ear"] = 0.9; }},
           {"ladder", [](json& c) { c["ladder"][0]["ear"]["value"] = 0.999; }},
           {"floor", [](json& c) { c["floor"]["ear"]["value"] = 0.99999; }},
           {"promise", [](json& c) { c["promise"] = "document"; }},
           {"kv", [](json& c) { c["kv"] = c["kv"] == "f16" ? "f32" : "f16"; }},
           {"activations", [](json& c) { c["activations"] = "f32"; }},
           {"context", [](json& c) { c["context"] = 127; }},
           {"kernels", [](json& c) { c["kernels"] = {"exact"}; }},
           {"overlap", [](json& c) { c["overlap"]["shared"] = 0, c["overlap"]["tried_on_parts"] = 0; }},
           {"sets", [](json& c) { c["sets"]["calibration"]["tokens"] = 9; }},
           {"texts", [](json& c) { c["texts"][0]["name"] = "manual.txt:docs"; }},
           {"places", [](json& c) { c["places"].erase(0); }},
           {"reference_sha256", [](json& c) { c["reference_sha256"] = "0"; }}}) {
    Opened file(weights());
    change(file.certificate());
    file.write();
    expect_refused(field, {field == "reference_sha256" ? "is not the model the certificate speaks of"
                                                       : "the certificate was edited since it was written (" + field});
    restore("model.safetensors");
  }
  // A test that claims another level than its place has is no test of this procedure, whatever the seal says.
  Opened leveled(weights());
  leveled.certificate()["ladder"][0]["level"] = 0.05;
  leveled.seal();
  leveled.write();
  expect_refused("level", {"plan 1 of its ladder was tested at the level 0.05, expected 0.0225"});
  restore("model.safetensors");
  // A promise of answers that somebody wrote by hand, for which there never was a measurement.
  Opened file(weights());
  json& t = file.certificate()["tasks"] = tasks;
  const json point = {{"value", 1.0}, {"ci95", {0.9995, 1.0}}};
  t["calibration"] = {{"bits", 4.0}, {"kl", point}, {"recovery", point}, {"alpha", point}, {"rho", 1.0}};
  for (const char* key : {"kl", "predicted_recovery", "recovery"}) t[key] = point;
  t["kl_allowed"] = 1.0, t["confidence"] = 0.95, t["looks"] = 1;
  file.write();
  expect_refused("tasks", {"the certificate was edited since it was written (tasks)"});
  // A new seal does not make it trusted either, and the output says so.
  file.seal();
  file.write();
  EXPECT_THAT(certify().out, HasSubstr("Not measured again: its promise of answers"));
  Opened bare(weights());
  bare.meta["provenance"].erase("certificate_seal");
  bare.write();
  expect_refused("seal", {"its certificate has no seal"});
}

// If the seal was made again, the measurements and the contents of the text contradict the edits.
TEST_F(Tampering, FiguresDomainsAndDocumentsAreMeasuredAgain) {
  const auto better = [](json& estimate) { estimate = {{"value", 0.9999}, {"ci95", {0.9998, 1.0}}}; };
  for (const auto& [words, change] : std::vector<std::pair<std::string, std::function<void(json&)>>>{
           {"it claims EAR 0.999900 [0.999800, 1.000000] of all text, measured is", [&](json& c) { better(c["ear"]); }},
           {"of manual, measured is", [&](json& c) { better(c["domains"][1]["ear"]); }},
           {"of a new document of docs", [&](json& c) { better(c["domains"][0]["next_document"]["ear"]); }},
           {"of the text promised of", [&](json& c) { better(c["promised"]["ear"]); }},
           {"it claims top1 0.999900", [&](json& c) { better(c["top1"]); }},
           {"it claims KL 0.000000", [](json& c) { c["kl"]["value"] = 0; }},
           {"it claims a perplexity ratio",
            [](json& c) { c["perplexity_ratio"] = {{"value", 1.1}, {"ci95", {1.05, 1.2}}}; }},
           {"of docs, measured is", [](json& c) { c["domains"][0]["ear"]["ci95"] = {nullptr, nullptr}; }},
           {"it counts", [](json& c) { c["tokens"] = 99'999; }},
           {"its confidence is 0.999, and that of its test", [](json& c) { c["promised"]["confidence"] = 0.999; }},
           {"speaks of the domains docs, medicine", [](json& c) { c["domains"][1]["domain"] = "medicine"; }},
           {"speaks of the domains docs, and", [](json& c) { c["domains"].erase(1); }},
           {"are not the ", [](json& c) { c["places"].erase(0); }}}) {
    Opened file(weights());
    change(file.certificate());
    file.seal();
    file.write();
    expect_refused(words, {words});
    restore("model.safetensors");
  }
  // A figure that was made worse is confirmed, and still nobody measured it.
  Opened file(weights());
  file.certificate()["ear"]["value"] = file.certificate()["ear"]["value"].get<double>() - 1e-4;
  file.write();
  expect_refused("worse", {"the certificate was edited since it was written (ear)"});
}

// The best passages are kept, and everything about them is made to fit. Choosing from the text again reveals it.
TEST_F(Tampering, ChosenDocumentsAreFound) {
  Opened file(weights());
  json& c = file.certificate();
  c["places"].erase(0);
  const Tokenizer tokenizer = Tokenizer::load(*folder_ / "bad");
  const Corpus corpus =
      read_corpus({*folder_ / "docs.txt:docs", *folder_ / "manual.txt:manual"}, tokenizer, nullptr, 128);
  const TextSet set = set_of_places(corpus, 128, c["places"].get<std::vector<std::string>>());
  c["sha256"] = set.sha256;
  c["sets"]["certificate"] = to_json(set);
  c["documents"] = set.documents.size(), c["windows"] = set.windows;
  file.seal();
  file.write();
  expect_refused("chosen", {"other documents of this text would have been certified on"});
  // Under another name, or with more text beside it, the text cannot be chosen from as it was, and the output says so.
  const CommandResult beside = certify("--text docs.txt:docs --text manual.txt:manual --text '" +
                                       source_path("models/data/docs-calibration.txt") + ":more'");
  EXPECT_THAT(beside.out, HasSubstr("Not looked at: whether the documents are those that the text gives"));
}

}  // namespace
}  // namespace fidelio
