#include "compress/certificate/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/certificate/certify.h"
#include "compress/certificate/dealt.h"
#include "compress/certificate/words.h"
#include "core/error.h"
#include "core/file.h"

namespace fidelio {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

DomainFidelity domain_with(const std::string& name, double ear) {
  DomainFidelity d;
  d.domain = name;
  d.documents = 20;
  d.windows = 40;
  d.tokens = 20'000;
  d.ear = {ear, {ear - 0.001, ear + 0.001}};
  d.kl = {0.002, {0.0015, 0.0025}};
  d.top1 = {0.975, {0.973, 0.977}};
  d.document_ear = {ear, {ear - 0.01, ear + 0.01}};
  d.document_kl = {0.002, {0.001, 0.004}};
  d.ear_sampled = Estimate{ear - 0.003, {ear - 0.004, ear - 0.002}};
  d.kl_sampled = Estimate{0.003, {0.0025, 0.0035}};
  d.worst_document = name + " 7";
  d.worst_ear = ear - 0.01;
  return d;
}

// Every field has a value of its own, so that two that are mixed up are found.
Certificate full_certificate() {
  Certificate c;
  c.target = {0.98, 0.003, 0.97};
  c.promise = Promise::domain;
  c.promised = {"code", 0.955, {0.9815, {0.9805, 0.9825}}, {0.002, {0.0015, 0.0025}}, {0.975, {0.973, 0.977}}};
  c.met = true;
  c.all = domain_with("all", 0.983);
  c.all.documents = 40;
  c.domains = {domain_with("code", 0.9815), domain_with("docs", 0.9845)};
  c.perplexity_ratio = {1.001, {0.999, 1.003}};
  c.passages = true;
  c.wider = 1.25;
  c.context = 512;
  c.texts = {"a.jsonl", "b:docs"};
  c.places = {"0123456789ab@0+1024", "ba9876543210@512+512p", "ba9876543210@1024+512p"};
  c.places_sha256 = "5e7";
  c.activations = "a16";
  c.kv = "f16";
  c.kernels = {"avx2 int4", "avx2 int6"};
  c.sets = {{3, 1536, "ca1"},
            {2, 1024, "5ea"},
            {5, 10, 5120, "ad1", {{"code", 2}, {"docs", 3}}},
            {40, 80, 40'000, "ce7", {{"code", 20}, {"docs", 20}}},
            {1, "de1", 80, {"00112233aabb"}}};
  c.overlap = TextOverlap{false, {7, 9000}, 1, 3, 2};
  c.floor = {8, 4096, {0.9999, {0.9998, 1}}, {1e-6, {0, 2e-6}}, {0.9995, {0.999, 1}}};
  CertifiedTasks t;
  t.asked = {"f11e", "greedy", 30, 60, 2};
  t.accuracy_drop = 0.02;
  t.calibration_bits = 3.5;
  t.calibration_kl = {0.1, {0.09, 0.11}};
  t.calibration_recovery = {0.9, {0.85, 0.95}};
  t.alpha = {1, {0.5, 1.5}};
  t.rho = 0.8;
  t.kl_allowed = 0.02;
  t.kl = {0.015, {0.014, 0.016}};
  t.predicted_recovery = {0.985, {0.975, 0.995}};
  t.recovery = {0.99, {0.981, 0.999}};
  t.confidence = 0.975;
  t.plans_checked = 2;
  c.tasks = t;
  c.sampling = SamplingOptions{};
  c.sampling->temperature = 0.6;
  c.sampling->top_k = 20;
  c.sampling->top_p = 0.9;
  c.sampling->min_p = 0.01;
  c.tails = {
      40'000, 0.001, 0.004, 0.009, 0.02, 0.03, 0.87, {{0.8, 40'000, 0.002, 0.983}}, {{256, 40'000, 0.0021, 0.982}}};
  c.answers = WholeAnswers{200, 3, 2, 500, 490, {-1, 17, -1}, "a45"};
  c.draft = {"4:a8", 0.3, 0.7, 1000, 900, 0.9, 0.91, {0.92, {0.91, 0.93}}};
  c.ladder = {{6.5, {0.985, {0.984, 0.986}}, {0.001, {0.0008, 0.0012}}, {0.979, {0.977, 0.981}}, true},
              {6.3, {0.9815, {0.9805, 0.9825}}, {0.002, {0.0015, 0.0025}}, {0.975, {0.973, 0.977}}, true},
              {6.25, {0.9806, {0.9796, 0.9816}}, {0.0021, {0.0016, 0.0026}}, {0.974, {0.972, 0.976}}, false}};
  c.reference_sha256 = "4ef";
  return c;
}

std::string message_of(const json& certificate) {
  try {
    certificate_from_json(certificate, "MODEL");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CertificateType, IsReadAsItWasWritten) {
  const json written = to_json(full_certificate());
  EXPECT_EQ(to_json(certificate_from_json(written, "MODEL")), written);
  Certificate bare = full_certificate();
  bare.sets.reset();
  bare.floor.reset();
  bare.overlap.reset();
  bare.tasks.reset();
  bare.draft.reset();
  bare.sampling.reset();
  bare.all.ear_sampled.reset();
  bare.all.kl_sampled.reset();
  bare.answers.reset();
  bare.tails = {};
  bare.target = {};
  bare.wider = std::numeric_limits<double>::infinity();
  bare.all.ear.ci95 = {};
  const json less = json::parse(to_json(bare).dump());  // infinity and NaN become null in a file
  EXPECT_EQ(json::parse(to_json(certificate_from_json(less, "MODEL")).dump()), less);
  EXPECT_TRUE(std::isnan(certificate_from_json(less, "MODEL").all.ear.ci95.low));
}

// The JSON is what other programs read: a field that is renamed or moved changes the schema's number and this file.
TEST(CertificateType, HasTheJsonOfTheGolden) {
  const std::string file = FIDELIO_SOURCE_DIR "/src/compress/testdata/certificate.json";
  EXPECT_EQ(to_json(full_certificate()), json::parse(read_text_file(file)));
}

TEST(CertificateType, SaysWhyItsDocumentsCannotBeDealtOutAgain) {
  Certificate c = full_certificate();
  Corpus corpus;
  corpus.sha256 = "other";
  EXPECT_THAT(check_dealt(c, corpus, "M"), HasSubstr("not given whole"));
  c.sets->dealt.sha256 = "";  // It stands for a text of which more was left out than is named.
  EXPECT_THAT(check_dealt(c, corpus, "M"), HasSubstr("more documents were left out"));
  c.sets->dealt.rule = kDealing + 1;
  EXPECT_THAT(check_dealt(c, corpus, "M"), HasSubstr("deals by rule"));
}

TEST(CertificateType, RefusesWhatIsDamagedOrOfAnotherSchema) {
  const json whole = to_json(full_certificate());
  EXPECT_EQ(message_of(whole), "");
  for (const auto& [key, value] : whole.items()) {
    json without = whole, wrong = whole;
    without.erase(key);
    wrong[key] = json::array({json::object()});
    const bool optional = key == "sets" || key == "tasks" || key == "floor" || key == "draft" || key == "sampled" ||
                          key == "answers" || key == "overlap";
    const bool ignored = key == "bootstrap";  // it says how intervals were made, and is not read
    if (ignored) continue;
    EXPECT_THAT(message_of(wrong), HasSubstr("MODEL")) << key;
    if (!optional) {
      EXPECT_THAT(message_of(without), HasSubstr("MODEL")) << key;
    }
  }
  json other = whole;
  other["schema"] = Certificate::kSchema + 1;
  EXPECT_THAT(message_of(other), HasSubstr("another version of fidelio made it"));
  other.erase("schema");
  EXPECT_THAT(message_of(other), HasSubstr("has schema none"));
  EXPECT_THAT(message_of("none"), HasSubstr("is no object"));
  other = whole;
  other["ladder"][0]["met"] = false;
  EXPECT_THAT(message_of(other), HasSubstr("plan 2 of its ladder was tested at the level 0.0225, expected 0.0025"));
  other = whole;
  other["promised"]["confidence"] = 0.99;
  EXPECT_THAT(message_of(other), HasSubstr("its confidence is 0.99, and that of its test 0.955"));
}

TEST(CertificateType, EveryBetterFigureIsNotBorneOut) {
  const Certificate measured = full_certificate();
  EXPECT_EQ(not_borne_out(measured, measured), "");
  using Change = void (*)(Certificate&);
  const std::vector<std::pair<std::string, Change>> changes = {
      {"EAR", [](Certificate& c) { c.all.ear.value += 0.002; }},
      {"EAR", [](Certificate& c) { c.all.ear.ci95.low += 0.002; }},
      {"KL", [](Certificate& c) { c.all.kl.value -= 0.001; }},
      {"EAR as sampled", [](Certificate& c) { c.all.ear_sampled->value += 0.002; }},
      {"99.9% of positions", [](Certificate& c) { c.tails.kl_p999 = 0.005; }},
      {"top1", [](Certificate& c) { c.all.top1.value += 0.01; }},
      {"perplexity ratio",
       [](Certificate& c) {
         c.perplexity_ratio = {1.01, {1.008, 1.012}};
       }},
      {"of code", [](Certificate& c) { c.domains[0].ear.value += 0.002; }},
      {"a new document of docs", [](Certificate& c) { c.domains[1].document_ear.ci95.low += 0.02; }},
      {"the text promised of", [](Certificate& c) { c.promised.ear.ci95.low += 0.002; }},
      {"of medicine, of which nothing was measured", [](Certificate& c) { c.domains[0].domain = "medicine"; }},
      {"[nan, 0.982500] of code", [](Certificate& c) { c.domains[0].ear.ci95.low = std::nan(""); }},
      {"no passages", [](Certificate& c) { c.passages = false; }},
      {"1.00 times as wide", [](Certificate& c) { c.wider = 1; }},
      {"documents", [](Certificate& c) { ++c.all.documents; }},
      {"windows", [](Certificate& c) { ++c.all.windows; }},
      {"tokens", [](Certificate& c) { ++c.all.tokens; }}};
  for (const auto& [named, change] : changes) {
    Certificate claimed = measured;
    change(claimed);
    EXPECT_THAT(not_borne_out(claimed, measured), HasSubstr(named)) << named;
  }
}

// A hair below the target is what another processor's kernels make of the same weights; more is a miss.
TEST(CertificateType, ATargetIsMetAgainButForKernels) {
  Certificate c = full_certificate();
  c.target = {};
  c.target.ear = 0.98;
  c.promised.ear.ci95.low = 0.98 - 0.02 * 0.0019;
  EXPECT_TRUE(meets_again(c));
  c.promised.ear.ci95.low = 0.98 - 0.02 * 0.0022;
  EXPECT_FALSE(meets_again(c));
  c.target = {};
  c.target.kl = 0.002;
  c.promised.kl.ci95.high = 0.002 * 1.0059;
  EXPECT_TRUE(meets_again(c));
  c.promised.kl.ci95.high = 0.002 * 1.007 + 1e-6;
  EXPECT_FALSE(meets_again(c));
}

std::string all(const std::vector<PlainWords>& words) {
  std::string text;
  for (const PlainWords& w : words) text += w.about + ": " + w.sentence + "\n";
  return text;
}

// The target that was tested is sure, and not another figure of the plan that passed; without a target there is
// nothing that was tested, and the interval's own end is what is known.
TEST(CertificateType, WordsSayWhatIsSure) {
  Certificate c = full_certificate();
  EXPECT_THAT(all(in_plain_words(c, true)),
              HasSubstr("more text of this sort overlaps by no less than 98.00% on average"));
  c.target = {{}, 0.003, {}};
  EXPECT_THAT(all(in_plain_words(c, true)),
              HasSubstr("more text of this sort has a KL of no more than 0.003 nats a token on average"));
  c.target = {{}, {}, 0.97};
  EXPECT_THAT(
      all(in_plain_words(c, true)),
      HasSubstr("more text of this sort gets the same greedy token no less than 97.00% of the time on average"));
  c.target = {};
  c.ladder.clear();
  c.promised.confidence = 0.95;
  const std::string measured = all(in_plain_words(c, true));
  EXPECT_THAT(measured, HasSubstr("with 97.5% certainty, judged"));
  EXPECT_THAT(measured, HasSubstr("overlaps by no less than 98.05% on average"));
  EXPECT_THAT(measured, Not(HasSubstr("tested on this text")));
}

// Larger plans were tested because the expected one failed.
TEST(CertificateType, WordsSayThatALargerPlanWasTestedMoreStrictly) {
  Certificate c = full_certificate();
  c.ladder[0].met = false;
  c.ladder[1].bits = 7.5, c.ladder[1].level = kLargerLevel;
  c.ladder[2].bits = 6.75, c.ladder[2].level = kLargerLevel;
  c.promised.confidence = 0.995;
  EXPECT_EQ(message_of(to_json(c)), "");
  const std::string words = all(in_plain_words(c, true));
  EXPECT_THAT(words, AllOf(HasSubstr("with 97.5% certainty"), HasSubstr("this one passed at a level of 0.25%"),
                           HasSubstr("in 0.25% among larger ones, which are tested where it fails")));
}

TEST(CertificateType, WordsSayWhatIsNotKept) {
  Certificate c = full_certificate();
  const std::string kept = all(in_plain_words(c, true));
  EXPECT_THAT(kept, HasSubstr("overlap by at least 98.00%"));
  // Two of the three places are passages, and both of one file; two checks of answers are less sure than the first
  // alone.
  EXPECT_THAT(kept, HasSubstr("documents other than the 1 from which these passages are"));
  // Twenty documents have none of a sort that is 16.8% of all with a chance of 1 in 40.
  EXPECT_THAT(kept, HasSubstr("a sort of text that makes up less than 16.8% of its kind: the 20 passages of "
                              "code may hold none"));
  EXPECT_THAT(kept, AllOf(HasSubstr("with 97.5% certainty, judged"), HasSubstr("with 96.25% certainty not below")));
  EXPECT_THAT(kept, HasSubstr("% in code and 97.45% in docs, each of these by itself"));
  // The plan passed its own test at a stricter level than the whole procedure has.
  EXPECT_THAT(kept,
              HasSubstr("3 plans were tested on this text, in an order that was fixed before, and this one passed "
                        "at a level of 2.25%"));
  const std::string broken = all(in_plain_words(c, false));
  EXPECT_THAT(broken, HasSubstr("NOT kept"));
  EXPECT_THAT(broken, Not(HasSubstr("Promised: ")));
}

}  // namespace
}  // namespace fidelio
