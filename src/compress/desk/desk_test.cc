// These tests are about the parts that a compression works with: the texts in four sets, the budget, and the two
// runners.
#include "compress/desk/desk.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "compress/desk/measurer.h"
#include "compress/desk/runners.h"
#include "core/error.h"
#include "io/checkpoint.h"

namespace fidelio {
namespace {

using testing::HasSubstr;

class OfQuill : public testing::Test {
 protected:
  OfQuill() {
    job_.model = "quill-1m";
    job_.formats = {parse_format("int4g64zs8"), parse_format("int8g64zs8")};
    job_.calibration = {FIDELIO_SOURCE_DIR "/models/data/docs-calibration.txt"};
    job_.texts = {FIDELIO_SOURCE_DIR "/models/data/docs-heldout.txt"};
    job_.tokens = 2048, job_.search_tokens = 512, job_.context = 128;
    job_.certificate_windows = 24;
    job_.ear = {0.9};
    job_.serving.threads = 1;
  }
  World world() {
    return {.source = source_,
            .tokenizer = tokenizer_,
            .make_runner = [&](const RunnerOptions& o) { return make_cpu_runner(source_, o); },
            .make_judge = {},
            .note = [&](const std::string& text) { notes_ += text + "\n"; }};
  }

  const Checkpoint source_ = Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-1m");
  const Tokenizer tokenizer_ = Tokenizer::load(FIDELIO_SOURCE_DIR "/models/quill-1m");
  Job job_;
  Ranks ranks_;
  std::string notes_;
};

using TextsOfAJob = OfQuill;
using BudgetOfAJob = OfQuill;
using TwoRunners = OfQuill;

// The places of documents say which tokens of which file they are, so that no two sets may have one in common.
TEST_F(TextsOfAJob, AreFourSetsWithoutACommonDocument) {
  const World outside = world();
  const ReadTexts read = read_texts(job_, outside, ranks_, OwnAnswers::written);
  const JobTexts& texts = read.texts;
  EXPECT_GT(texts.calibration.tokens, 0);
  EXPECT_LE(texts.calibration.tokens, job_.tokens);
  EXPECT_GT(texts.search.tokens, 0);
  EXPECT_LE(texts.search.tokens, job_.search_tokens);
  EXPECT_LE(texts.certificate.windows, 24);
  std::set<std::string> seen;
  for (const Document& d : texts.calibration_documents) seen.insert(d.sha256);
  for (const std::string& place : place_names(texts.adjustment))
    EXPECT_THAT(place_names(texts.certificate), Not(testing::Contains(place)));
  for (const TextSet* set : {&texts.adjustment, &texts.certificate})
    for (const Document& d : set->documents) EXPECT_FALSE(seen.contains(d.sha256)) << d.name;
  const std::set<std::vector<int32_t>> calibrated(texts.calibration.sequences.begin(),
                                                  texts.calibration.sequences.end());
  for (const std::vector<int32_t>& sequence : texts.search.sequences) EXPECT_FALSE(calibrated.contains(sequence));
  EXPECT_GT(read.uses.record_bytes(), 0);
  EXPECT_THAT(notes_, AllOf(HasSubstr(fmt::format("calibration: {} sequences, {} tokens",
                                                  texts.calibration.sequences.size(), texts.calibration.tokens)),
                            HasSubstr("plans are tried on " + describe(texts.adjustment)),
                            HasSubstr("the certificate is taken on " + describe(texts.certificate))));
}

TEST_F(TextsOfAJob, AreTheSameWhenTheyAreReadAgain) {
  const World outside = world();
  const JobTexts once = read_texts(job_, outside, ranks_, OwnAnswers::written).texts,
                 again = read_texts(job_, outside, ranks_, OwnAnswers::written).texts;
  EXPECT_EQ(sequences_sha256(once.calibration), sequences_sha256(again.calibration));
  EXPECT_EQ(sequences_sha256(once.search), sequences_sha256(again.search));
  EXPECT_EQ(once.adjustment.sha256, again.adjustment.sha256);
  EXPECT_EQ(once.certificate.sha256, again.certificate.sha256);
  EXPECT_EQ(once.dealt, again.dealt);
}

TEST_F(TextsOfAJob, SamplesAreSomeOfTheCalibrationTokens) {
  job_.samples = job_.tokens + 1;
  const World outside = world();
  try {
    read_texts(job_, outside, ranks_, OwnAnswers::written);
    FAIL() << "more samples than tokens were taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--calibration-samples 2049 are some of the --calibration-tokens"));
  }
}

TEST(Targets, OfAJobAreOneForEachEarOrOneForAll) {
  Job job;
  EXPECT_TRUE(targets_of(job).front().empty());  // A size or a speed is asked for.
  job.ear = {0.99, 0.98};
  ASSERT_EQ(targets_of(job).size(), 2u);
  EXPECT_EQ(targets_of(job)[1].ear, 0.98);
  job.ear = {0.99};
  job.kl = 0.01, job.top1 = 0.97;
  ASSERT_EQ(targets_of(job).size(), 1u);
  EXPECT_EQ(targets_of(job).front(), (Target{.ear = 0.99, .kl = 0.01, .top1 = 0.97}));
}

TEST(BytesAsked, ComeFromBytesOrFromBitsAParameter) {
  Job job;
  EXPECT_EQ(bytes_asked(job, 1000), 0);
  job.bits = 4;
  EXPECT_EQ(bytes_asked(job, 1000), 500);
  job.bits = 1e-9;
  EXPECT_EQ(bytes_asked(job, 1000), 1);  // A size below a byte still is a size.
  job.bits = 1e300;
  EXPECT_EQ(bytes_asked(job, 1000), int64_t{1} << 62);
  job.bytes = 77;
  EXPECT_EQ(bytes_asked(job, 1000), 77);
}

// The smallest size that is accepted is the one that the message of a refusal names.
TEST_F(BudgetOfAJob, IsRefusedExactlyBelowTheSmallestPlan) {
  const World outside = world();
  const JobTexts texts = read_texts(job_, outside, ranks_, OwnAnswers::written).texts;
  const std::vector<LinearGroup> groups = groups_of(source_.config(), Grouping::fused, true);
  EXPECT_FALSE(Budget(job_, source_, groups, texts, 100).given());
  EXPECT_TRUE(Budget(job_, source_, groups, texts, 100).fits(int64_t{1} << 60, {}));
  job_.ear.clear();
  job_.bytes = 1;
  int64_t smallest = 0;
  try {
    Budget(job_, source_, groups, texts, 100).check_possible();
    FAIL() << "a plan of one byte was accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    const size_t at = text.find("the smallest takes ");
    ASSERT_NE(at, std::string::npos) << text;
    smallest = std::stoll(text.substr(at + 19));
  }
  job_.bytes = smallest - 1;
  EXPECT_THROW(Budget(job_, source_, groups, texts, 100).check_possible(), Error);
  job_.bytes = smallest;
  const Budget enough(job_, source_, groups, texts, 100);
  EXPECT_NO_THROW(enough.check_possible());
  std::map<LinearId, FormatSpec> formats;
  int64_t weights = fixed_bytes(source_, groups);
  for (LinearId id : linears_of(source_.config())) {
    const Shape shape = shape_of(source_.config(), id);
    formats[id] = job_.formats.front();
    weights += stored_bytes(formats[id], shape[0], shape[1]);
  }
  EXPECT_TRUE(enough.fits(weights, formats));
  EXPECT_FALSE(enough.fits(weights + 1, formats));
}

// A longer record, and samples that tuning will add to it, take room in the header.
TEST_F(BudgetOfAJob, LeavesRoomForTheHeader) {
  const World outside = world();
  const JobTexts texts = read_texts(job_, outside, ranks_, OwnAnswers::written).texts;
  const std::vector<LinearGroup> groups = groups_of(source_.config(), Grouping::fused, true);
  const int64_t header = Budget(job_, source_, groups, texts, 100).header_bytes({});
  EXPECT_EQ(Budget(job_, source_, groups, texts, 150).header_bytes({}), header + 50);
  job_.tune = true;
  const int64_t samples = 64 + job_.tune_tokens / job_.context;
  EXPECT_EQ(Budget(job_, source_, groups, texts, 100).header_bytes({}), header + 100 + 20 * samples);
}

TEST_F(TwoRunners, HaveTheSourcesWeightsButWhereOthersAreInForce) {
  ThreadPool pool(1);
  RunnerOptions options;
  options.threads = 1;
  Runners runners(
      source_, [&](const RunnerOptions& o) { return make_cpu_runner(source_, o); }, options, options, job_.formats,
      pool);
  const LinearId id{0, Role::q};
  const PackedLinear own = runners.reference().linear(id);
  const LinearWeight weight = source_.linear(id);
  const PackedLinear other =
      runners.reference().pack(quantize_rtn(job_.formats.front(), decode(weight), weight.out, weight.in, {}, pool));
  EXPECT_THROW(runners.served(), Error);
  {
    Runners::InForce in_force(runners, Runners::Which::reference);
    in_force.runner().set_linear(id, other);
    EXPECT_EQ(runners.reference().linear(id), other);
    EXPECT_FALSE(runners.reference_is_own());
    EXPECT_THROW(Runners::Serving serving(runners), Error);  // It would serve weights that are not the source's.
  }
  EXPECT_TRUE(runners.reference_is_own());
  EXPECT_EQ(runners.reference().linear(id), own);
  {
    const Runners::Serving serving(runners);
    EXPECT_THROW(Runners::Serving second(runners), Error);
    {
      Runners::InForce in_force(runners, Runners::Which::served);
      in_force.runner().set_linear(id, other);
      EXPECT_EQ(runners.served().linear(id), other);
      EXPECT_TRUE(runners.reference_is_own());
    }
    EXPECT_EQ(runners.served().linear(id), own);
  }
  EXPECT_THROW(runners.served(), Error);
}

// A comparison with a reference that holds other weights would be wrong, and is refused.
TEST_F(TwoRunners, AreComparedOnlyWhereTheReferenceIsTheSource) {
  const World outside = world();
  job_.certificate_windows = 2;
  Desk desk(job_, outside, ranks_);
  Runners runners(source_, outside.make_runner, desk.options(Activations::f32), desk.options(job_.served()),
                  job_.formats, desk.pool);
  const Runners::Serving serving(runners);
  Measurer measurer(desk, runners);
  const FloorFigures floor = measurer.checked_floor();
  EXPECT_GT(floor.ear.value, 0.9);
  const Runners::InForce in_force(runners, Runners::Which::reference);
  EXPECT_THROW(measurer.adjustment(), Error);
}

}  // namespace
}  // namespace fidelio
