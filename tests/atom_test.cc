// These tests are about Atom (quant/atom/atom.h), which reorders columns and keeps some of them twice, on a model whose
// widths have room for it.
#include "quant/atom/atom.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/thread_pool.h"
#include "models.h"
#include "quant/quantize_model.h"
#include "train/block.h"

namespace fidelio {
namespace {

// This is quill-1m with 32 of its 128 or 352 columns kept. It is made once.
struct AtomModel : testing::Test {
  static void SetUpTestSuite() {
    folder = new TestFolder;
    const CommandResult made =
        run_command(folder->path(), "fidelio quantize " + source_path("models/quill-1m") +
                                        " --format int4g32 --atom --keep-embedding --calibration-tokens 8192 "
                                        "--threads 2 -o atom");
    ASSERT_EQ(made.code, 0) << made.err;
  }
  static void TearDownTestSuite() {
    delete folder;
    folder = nullptr;
  }
  static CommandResult fidelio(const std::string& words) { return run_command(folder->path(), "fidelio " + words); }
  static std::string path() { return *folder / "atom"; }

  static TestFolder* folder;
};
TestFolder* AtomModel::folder = nullptr;

std::vector<int32_t> some_ids(int64_t n, int32_t v) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7919 + 13) % static_cast<size_t>(v));
  return ids;
}

// The logits of the model with kept columns are those of the same codes in the column order of the source, except for
// the order of FP32 sums (golden_test.cc has the bound and its reasons).
TEST_F(AtomModel, HasTheLogitsOfItsWeightsInTheirOwnOrder) {
  const Checkpoint made = Checkpoint::open(path()), source = Checkpoint::open(source_path("models/quill-1m"));
  EXPECT_EQ(made.config().kept_columns, 32);
  EXPECT_EQ(made.parameters(), source.parameters());
  const auto ordered = make_cpu_runner(made, exact_options()), own = make_cpu_runner(source, exact_options());
  for (int layer = 0; layer < source.config().L; ++layer)
    for (const Stop& stop : stops_of(source.config(), layer))
      for (Role role : stop.roles) {
        const LinearId id{layer, role};
        own->set_linear(id, own->pack(in_own_order(made.linear(id), made.order(layer, stop), 32)));
      }
  const auto v = static_cast<size_t>(source.config().v);
  const std::vector<int32_t> ids = some_ids(40, source.config().v);
  const auto want = run_whole(*own, ids, Activations::f32), got = run_whole(*ordered, ids, Activations::f32);
  for (size_t row = 0; row < ids.size(); ++row)
    ASSERT_LT(relative_distance(std::span(got).subspan(row * v, v), std::span(want).subspan(row * v, v)), 2e-5)
        << "row " << row;
}

TEST_F(AtomModel, RowsDoNotDependOnTheBatch) {
  const Checkpoint made = Checkpoint::open(path());
  const std::vector<int32_t> ids = some_ids(33, made.config().v);
  const auto n = static_cast<int64_t>(ids.size());
  for (const std::string& isa : isa_names())
    for (const Activations mode : {Activations::a16, Activations::a8, Activations::a4}) {
      SCOPED_TRACE(isa + " " + std::string(name_of(mode)));
      std::vector<float> whole;
      for (const int threads : {1, 3}) {
        const auto runner = make_cpu_runner(made, {.threads = threads, .isa = isa, .cache_tokens = 8 * kPageTokens});
        const std::vector<float> together = run_whole(*runner, ids, mode);
        const std::vector<int64_t> steps(ids.size(), 1), ragged = {1, 7, 2, n - 10};
        EXPECT_EQ(run_chunks(*runner, ids, steps, first_pages(n), mode), together);
        EXPECT_EQ(run_chunks(*runner, ids, ragged, first_pages(n), mode), together);
        if (whole.empty()) whole = together;
        EXPECT_EQ(together, whole);
      }
    }
}

// Returns the KL of 4-bit activations against the source, as measured by the program.
double kl_of(const std::string& model) {
  const CommandResult result = AtomModel::fidelio("eval " + model + " --reference " + source_path("models/quill-1m") +
                                                  " --text " + source_path("models/data/docs-heldout.txt") +
                                                  " --context 128 --windows 4 --activations a4 --threads 2 --json -");
  EXPECT_EQ(result.code, 0) << result.err;
  return nlohmann::json::parse(result.out)["kl"]["value"].get<double>();
}

TEST_F(AtomModel, ActivationsOfFourBitsCostLessThanByRounding) {
  const CommandResult made = fidelio("quantize " + source_path("models/quill-1m") +
                                     " --format int4g32 --method rtn --keep-embedding --threads 2 -o rtn");
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_LT(kl_of("atom"), 0.5 * kl_of("rtn"));
}

// A draft by the same codes with 4-bit activations leaves the text as it is.
TEST_F(AtomModel, DraftsForItself) {
  const std::string ask = "generate atom --prompt 'The program' --max-tokens 24 --temperature 0 --threads 2";
  const CommandResult plain = fidelio(ask), drafted = fidelio(ask + " --draft a4 --drafts 3");
  ASSERT_EQ(plain.code, 0) << plain.err;
  ASSERT_EQ(drafted.code, 0) << drafted.err;
  EXPECT_EQ(plain.out, drafted.out);
}

// Puts `value` at the place of an order that the file has under `name`.
void damage(const std::string& model, const std::string& name, int64_t place, int32_t value) {
  const std::string file = model + "/model.safetensors";
  std::string bytes = read_text_file(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto begin =
      nlohmann::json::parse(bytes.substr(8, header))[name]["data_offsets"][0].get<uint64_t>() + 8 + header;
  std::memcpy(bytes.data() + begin + static_cast<size_t>(place) * sizeof value, &value, sizeof value);
  std::ofstream(file, std::ios::binary) << bytes;
}

void expect_refused(const auto& what, const std::string& words) {
  try {
    what();
    ADD_FAILURE() << "nothing said about: " << words;
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr(words));
  }
}

TEST_F(AtomModel, ADamagedOrderIsRefused) {
  const std::vector<int32_t> order =
      Checkpoint::open(path()).order(1, stop_of(Checkpoint::open(path()).config(), 1, "o"));
  const struct {
    int64_t place;
    int32_t value;
    const char* words;
  } cases[] = {{3, 128, "is no order of 128 columns: 128 at 3; the file is damaged"},
               {0, -1, "is no order of 128 columns: -1 at 0; the file is damaged"},
               {5, order[4], "at 5; the file is damaged"},
               {130, order[0], "does not end with its last 32 columns twice; the file is damaged"}};
  for (const auto& c : cases) {
    const TestFolder copy;
    std::filesystem::copy(path(), copy / "model");
    damage(copy / "model", "model.layers.1.o.order", c.place, c.value);
    expect_refused([&] { Checkpoint::open(copy / "model"); }, c.words);
  }
  const TestFolder copy;
  std::filesystem::copy(path(), copy / "model");
  nlohmann::json config = nlohmann::json::parse(read_text_file(copy / "model/config.json"));
  config["quantization_config"]["kept_columns"] = 64;
  std::ofstream(copy / "model/config.json") << config;
  expect_refused([&] { Checkpoint::open(copy / "model"); }, "expected U8 [128, 96]");
}

TEST_F(AtomModel, NothingElseIsMadeOfIt) {
  const Checkpoint made = Checkpoint::open(path());
  ThreadPool pool(1);
  expect_refused([&] { quantize_model_rtn(made, {}, pool, {}); }, "was made by quantize --atom");
  expect_refused([&] { train::check_known(made.config(), false); }, "a model of quantize --atom is not tuned");
  for (const std::string& words : {std::string("quantize atom --format int8g32 --method rtn -o out"),
                                   std::string("compress atom --ear 0.9 -o out"),
                                   "draft atom --prompts " + source_path("models/data/tasks.jsonl")}) {
    const CommandResult result = fidelio(words);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, testing::HasSubstr("give the model that it was made of"));
  }
  for (const char* target : {"gguf", "gptq", "compressed-tensors"}) {
    const CommandResult result = fidelio(std::string("export atom --to ") + target + " -o out");
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, testing::HasSubstr("it was made by quantize --atom"));
  }
  // A model with room for its own inputs has none for larger ones.
  const auto runner = make_cpu_runner(Checkpoint::open(source_path("models/quill-1m")), {.threads = 1, .isa = ""});
  expect_refused([&] { runner->make_draft(made); }, "there is no room for the draft's inputs");
}

TEST_F(AtomModel, WhatItCannotBeMadeOfIsRefused) {
  const struct {
    const char *options, *words;
  } cases[] = {
      {"--format int4g32 --rotate", "excludes"},
      {"--format int4g32 --method rtn", "--atom orders columns by what calibration shows"},
      {"--format int4g32z", "--atom takes int4g128, int4g64 or int4g32"},
      {"--format int4g32s8", "--atom takes"},
      {"--format int4g16", "--atom takes"},
      {"--format int3g32", "--atom takes"},
      {"--format lut4g32", "--atom takes"},
      {"--format int4g128", "the input of qkv has 128 columns, which are not whole groups of 128, two or more"}};
  for (const auto& c : cases) {
    const CommandResult result =
        fidelio("quantize " + source_path("models/quill-1m") + " --atom " + c.options + " -o out");
    EXPECT_NE(result.code, 0) << c.options;
    EXPECT_THAT(result.err, testing::HasSubstr(c.words));
  }
}

}  // namespace
}  // namespace fidelio
