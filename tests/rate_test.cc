// These tests run `compress --tokens-per-second` with an artificial clock: a token takes as long as the bytes that it
// reads say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "compress/compress.h"
#include "core/error.h"
#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;
using testing::HasSubstr;

double by_bytes(Runner& runner, const Batch&, Activations mode) {
  return 1e-3 + 1e-9 * static_cast<double>(runner.bytes_read(mode));
}

class CompressRate : public testing::Test {
 protected:
  CompressRate()
      : source_(Checkpoint::open(source_path("models/quill-1m"))),
        tokenizer_(Tokenizer::from_json(read_text_file(source_path("models/quill-1m/tokenizer.json")))) {
    write_file_atomically(folder_ / "short.txt",
                          read_text_file(source_path("models/data/docs-heldout.txt")).substr(0, 16000));
    for (const char* name : {"int4g64zs8", "int5g64zs8", "int6g64zs8", "int8g64zs8"})
      job_.formats.push_back(parse_format(name));
    job_.offered = job_.formats;
    job_.model = "quill-1m";
    job_.out = folder_ / "out";
    job_.calibration = {source_path("models/data/docs-calibration.txt")};
    job_.texts = {folder_ / "short.txt"};
    job_.tokens = 2048, job_.search_tokens = 512, job_.context = 128;
    job_.serving.threads = 2;
    job_.tokens_per_second = rate_of_bits(6);
  }

  // Returns the bytes of a model of so many bits a parameter; rate_of_bits returns its speed by the clock of bytes.
  double bytes_of(double bits) const { return bits / 8 * static_cast<double>(source_.parameters()); }
  double rate_of_bits(double bits) const { return 1 / (1e-3 + 1e-9 * bytes_of(bits)); }

  // Its output is removed, so the same folder can be used again; an interrupted run's journal stays.
  json run() {
    const World world{.source = source_,
                      .tokenizer = tokenizer_,
                      .make_runner = [&](const RunnerOptions& o) { return make_cpu_runner(source_, o); },
                      .make_judge = {},
                      .note = [&](const std::string& text) { notes_ += text + "\n", on_note_(text); },
                      .step_timer = clock_};
    json report = to_json(compress(job_, world, Ranks()));
    std::filesystem::remove_all(job_.out);
    return report;
  }
  std::string error_of_run() {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TestFolder folder_;
  Checkpoint source_;
  Tokenizer tokenizer_;
  Job job_;
  StepTimer clock_ = by_bytes;
  std::function<void(const std::string&)> on_note_ = [](const std::string&) {};
  std::string notes_;
};

// Alone, the plan is as fast as asked, the predicted rate equals the measured one where times add up, and quality is
// better where less speed is asked. Beside a size or a target, both hold.
TEST_F(CompressRate, IsKeptAloneAndBesideASizeOrATarget) {
  const double asked = job_.tokens_per_second;
  job_.table_file = folder_ / "table.json";
  const json alone = run();
  job_.from_table = std::exchange(job_.table_file, "");
  EXPECT_EQ(alone["rate"]["asked"], asked);
  EXPECT_GE(alone["rate"]["measured"], asked);
  // These are sums of the same times in another order.
  EXPECT_NEAR(alone["rate"]["measured"].get<double>(), alone["rate"]["foreseen"].get<double>(), 1e-9 * asked);
  EXPECT_EQ(alone["rate"]["tries"].size(), 1u);
  EXPECT_THAT(notes_, HasSubstr("asked for"));

  job_.tokens_per_second = rate_of_bits(7);
  const json slower = run();
  EXPECT_GE(slower["rate"]["measured"], job_.tokens_per_second);
  EXPECT_LT(slower["plan"]["predicted_kl"], alone["plan"]["predicted_kl"]);

  job_.tokens_per_second = asked;
  job_.bits = 5;
  const json small = run();
  EXPECT_LE(small["bits_per_parameter"], 5);
  EXPECT_GE(small["rate"]["measured"], asked);
  EXPECT_GT(small["plan"]["predicted_kl"], alone["plan"]["predicted_kl"]);
  // A size that does not bind changes nothing.
  job_.bits = 15;
  EXPECT_EQ(run()["plan"]["groups"], alone["plan"]["groups"]);

  job_.bits = 0;
  job_.ear = {0.9};
  const json target = run();
  EXPECT_TRUE(target["certificate"]["met"]);
  EXPECT_GE(target["rate"]["measured"], asked);
  EXPECT_LE(target["plan"]["bytes"], alone["plan"]["bytes"]);
}

// These are options that contradict each other, and options that do not.
TEST_F(CompressRate, GoesWithATargetOrASizeAndNothingElse) {
  const auto refused = [&](const std::function<void(Job&)>& change, const std::string& why) {
    Job job = job_;
    change(job);
    try {
      check_job(job);
      EXPECT_EQ(why, "");
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(why)) << error.what();
      EXPECT_NE(why, "") << error.what();
    }
  };
  refused([](Job&) {}, "");
  refused([](Job& j) { j.ear = {0.9, 0.8}; }, "");
  refused([](Job& j) { j.kl = 0.1; }, "");
  refused([](Job& j) { j.bytes = 1 << 20; }, "");
  refused([](Job& j) { j.ear = {0.9}, j.bits = 4; }, "give a target");
  refused([](Job& j) { j.tokens_per_second = 0; }, "--tokens-per-second X, alone");
  refused([](Job& j) { j.accuracy_drop = 0.1; }, "not with --accuracy-drop");
  refused([](Job& j) { j.plan_file = "plan.json"; }, "leave out --tokens-per-second");
  refused([](Job& j) { j.ear = {0.9}, j.search = SearchKind::evolve; }, "knows bytes and distance");
}

// An impossible request is refused with both figures: at once where no plan is so fast, and after trials where no fast
// enough plan is faithful enough.
TEST_F(CompressRate, WhatCannotBeIsRefusedWithWhatCould) {
  job_.tokens_per_second = rate_of_bits(1);
  EXPECT_THAT(error_of_run(), HasSubstr("is foreseen to decode at"));
  EXPECT_EQ(notes_.find("uniform"), std::string::npos);  // This came before anything was quantised.
  std::filesystem::remove_all(job_.out + ".journal");
  job_.tokens_per_second = rate_of_bits(5);
  job_.ear = {0.99};
  const std::string error = error_of_run();
  EXPECT_THAT(error, HasSubstr("no plan has EAR 0.99 and decodes at"));
  EXPECT_THAT(error, HasSubstr("the fastest plan of these formats is foreseen at"));
  EXPECT_THAT(error, HasSubstr("predicted to meet the target"));
}

// If times do not add up, the prediction is wrong: the plan is timed, found too slow, and a faster one is built.
TEST_F(CompressRate, APlanThatMissesIsFollowedByAFasterOne) {
  job_.tokens_per_second = 1 / (1e-3 + 1e-9 * std::pow(bytes_of(7.5), 2) / bytes_of(6));
  clock_ = [&](Runner& runner, const Batch&, Activations mode) {
    const auto bytes = static_cast<double>(runner.bytes_read(mode));
    return 1e-3 + 1e-9 * bytes * bytes / bytes_of(6);
  };
  const json report = run();
  const json& tries = report["rate"]["tries"];
  ASSERT_GE(tries.size(), 2u) << notes_;
  EXPECT_LT(tries.front()["measured"], job_.tokens_per_second);
  EXPECT_GE(report["rate"]["measured"], job_.tokens_per_second);
  EXPECT_THAT(notes_, HasSubstr("too slow, and a faster plan is looked for"));
}

// A machine that slows down with every plan is not followed for ever.
TEST_F(CompressRate, TriesAreCounted) {
  double slower = 1;
  clock_ = [&](Runner& runner, const Batch& batch, Activations mode) { return slower * by_bytes(runner, batch, mode); };
  on_note_ = [&](const std::string& text) {
    if (text.find("Pareto") != std::string::npos || text.find("too slow") != std::string::npos) slower *= 1.03;
  };
  EXPECT_THAT(error_of_run(), HasSubstr("4 plans were built"));
}

// A resumed run, and one from a table, use the measured times, so no step is timed again.
TEST_F(CompressRate, TimesAreKeptInTheJournalAndInTheTable) {
  job_.table_file = folder_ / "table.json";
  on_note_ = [](const std::string& text) { check(!text.starts_with("certificate "), "interrupted"); };
  EXPECT_EQ(error_of_run(), "interrupted");
  on_note_ = [](const std::string&) {};
  clock_ = [](Runner&, const Batch&, Activations) -> double { throw Error("timed again"); };
  const json resumed = run();
  EXPECT_GE(resumed["rate"]["measured"], job_.tokens_per_second);

  job_.from_table = std::exchange(job_.table_file, "");
  clock_ = [](Runner& runner, const Batch& batch, Activations mode) { return 0.9 * by_bytes(runner, batch, mode); };
  const json replayed = run();
  EXPECT_EQ(replayed["plan"]["groups"], resumed["plan"]["groups"]);
  EXPECT_EQ(replayed["rate"]["foreseen"], resumed["rate"]["foreseen"]);
  EXPECT_NEAR(replayed["rate"]["measured"].get<double>(), resumed["rate"]["measured"].get<double>() / 0.9, 1e-6);
}

}  // namespace
}  // namespace fidelio
