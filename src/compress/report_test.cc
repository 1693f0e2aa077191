// These tests are about the JSON of reports: a reader finds the keys of docs/json.md, and none that mean nothing.
#include "compress/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compress/inputs/sizes.h"
#include "compress/tune/plan_tuner.h"

namespace fidelio {
namespace {

using nlohmann::json;

MadeCheckpoint made(const std::string& output) {
  MadeCheckpoint m;
  m.output = output;
  m.file_bytes = 1000, m.source_file_bytes = 4000, m.parameters = 2000;
  m.beside = "Nothing else is as small.";
  return m;
}

TEST(CompressReport, IsOneObjectForOneCheckpoint) {
  CompressReport report;
  report.table.groups = {{"embedding", {"embedding"}, 2000, {{.format = parse_format("int4g64zs8"), .bytes = 900}}}};
  report.made = {made("out")};
  const json earlier = to_json(report);  // An earlier run wrote this one.
  EXPECT_EQ(earlier.at("output"), "out");
  EXPECT_EQ(earlier.at("bits_per_parameter"), 4.0);
  for (const char* key : {"plan", "rate", "seconds", "gpu_bytes_highest", "targets"})
    EXPECT_FALSE(earlier.contains(key)) << key;
  MadeCheckpoint& one = report.made.front();
  one.plan = evaluate(report.table, {0});
  one.rate = MeasuredRate{30, {0.02, 127, "a machine"}, {{31, 29}, {33, 30.5}}};
  one.seconds = {{"reading", {1, 2}}, {"tests", {3, 4}}};
  one.gpu_bytes_highest = 5;
  const json whole = to_json(report);
  EXPECT_EQ(whole.at("plan"), to_json(report.table, *one.plan));
  EXPECT_EQ(whole.at("seconds"), json::parse(R"({"reading": {"wall": 1, "cpu": 2}, "tests": {"wall": 3, "cpu": 4}})"));
  EXPECT_EQ(whole.at("gpu_bytes_highest"), 5);
  EXPECT_EQ(whole.at("rate"), json::parse(R"({"asked": 30, "foreseen": 33, "measured": 30.5, "context": 127,
      "machine": "a machine", "tries": [{"foreseen": 31, "measured": 29}, {"foreseen": 33, "measured": 30.5}]})"));
}

TEST(CompressReport, IsAListForSeveralCheckpoints) {
  CompressReport report;
  report.made = {made("out-99"), made("out-98")};
  const json whole = to_json(report);
  ASSERT_EQ(whole.at("targets").size(), 2u);
  EXPECT_EQ(whole["targets"][1].at("output"), "out-98");
  EXPECT_EQ(whole.size(), 1u);
}

TEST(ForeseenReport, NamesAGpuOnlyWhereThereIsOne) {
  Foreseen foreseen;
  foreseen.memory = {{{"weights", 10}, {"the rest", 5}}, 100};
  foreseen.disk_bytes = 7;
  const json host = to_json(foreseen);
  EXPECT_EQ(host.at("memory"), json::parse(R"({"parts": [{"what": "weights", "bytes": 10},
      {"what": "the rest", "bytes": 5}], "bytes": 15, "available_bytes": 100})"));
  EXPECT_EQ(host.at("disk_bytes"), 7);
  EXPECT_FALSE(host.contains("gpu_memory"));
  foreseen.gpu_memory = ForeseenMemory{{{"weights", 10}}, std::nullopt};
  EXPECT_FALSE(to_json(foreseen).at("gpu_memory").contains("available_bytes"));
}

TEST(ForeseenReport, OfSizesSaysThatThereAreNoWeights) {
  ForeseenSizes sizes;
  sizes.sizes = {{"bf16", 2000, 16}};
  const json report = to_json(sizes);
  EXPECT_EQ(report.at("weights"), false);
  EXPECT_EQ(report.at("sizes"), json::parse(R"([{"format": "bf16", "bytes": 2000, "bits_per_parameter": 16.0}])"));
  EXPECT_FALSE(report.contains("asked_bytes"));
}

// A run that was interrupted reads how a plan was tuned from the journal's checkpoint.
TEST(PlanTuning, ComesBackFromJson) {
  const PlanTuning tuning{"ab12", 300, 8, 0.02, 0.015, 0.0625};
  EXPECT_EQ(plan_tuning_from_json(json::parse(to_json(tuning).dump())), tuning);
  EXPECT_EQ(tuning.gain(), 0.75);
  EXPECT_EQ(PlanTuning{}.gain(), 1);
}

}  // namespace
}  // namespace fidelio
