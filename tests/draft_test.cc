// These tests are about `fidelio draft`: what it keeps in a model's folder, that --draft auto uses it without changing
// a token, and what it refuses. Speeds are not judged here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <sstream>

#include "models.h"

namespace fidelio {
namespace {

using testing::HasSubstr;

const std::string kModel = source_path("models/quill-1m");
const std::string kChoose =
    "fidelio draft q --kinds 4,lut3g64 --plain --limit 12 --max-tokens 48 --calibration-tokens 1024 "
    "--head-tokens 0";

CommandResult run_well(const TestFolder& folder, const std::string& command) {
  const CommandResult result = run_command(folder.path(), command);
  EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
  return result;
}

nlohmann::json choice_in(const TestFolder& folder) {
  return nlohmann::json::parse(read_text_file(folder / "q/draft.json"));
}

TEST(Draft, MeasuresEveryKindAndKeepsTheFastestForAuto) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int8g64zs8 -o q");
  const auto before = entries(folder / "q");
  // The output is a table without Markdown marks, and a sentence about what to do.
  const std::string told = run_well(folder, kChoose + " --dry-run").out;
  EXPECT_THAT(told, testing::AllOf(HasSubstr("4 high bits"), HasSubstr("copy in lut3g64"), HasSubstr("--draft auto"),
                                   testing::Not(HasSubstr("|"))));
  EXPECT_THAT(told, testing::AnyOf(HasSubstr("The fastest is "), HasSubstr("No draft of these pays here.")));
  EXPECT_EQ(entries(folder / "q"), before);
  const auto report = nlohmann::json::parse(run_well(folder, kChoose + " --json -").out);
  ASSERT_EQ(report["kinds"].size(), 2u);
  for (const auto& kind : report["kinds"]) {
    SCOPED_TRACE(kind.dump());
    for (const char* share : {"bytes_share", "greedy_agreement", "ear", "coupled_agreement"}) {
      EXPECT_GT(kind[share], 0) << share;
      EXPECT_LE(kind[share], 1) << share;
    }
    EXPECT_LE(kind["coupled_agreement"].get<double>(), kind["ear"].get<double>() + 0.1);  // No coupling can exceed it.
    EXPECT_GE(kind["greedy"]["speedup"], 1);
    EXPECT_EQ(kind["verify_seconds"].size(), 9u);
  }
  EXPECT_EQ(report["kinds"][0]["bytes"], 0);  // Reading the high bits takes no memory.
  EXPECT_GT(report["kinds"][1]["bytes"], 10000);
  const nlohmann::json kept = choice_in(folder);
  EXPECT_EQ(kept["draft"], report["draft"]);
  EXPECT_EQ(std::filesystem::exists(folder / "q/draft"), kept["kind"] == "lut3g64");
  // A choice replaces the one before it.
  run_well(folder, kChoose);
  for (const char* temperature : {"0", "0.8"}) {
    const std::string generate =
        "fidelio generate q -p 'What is 12 + 30?' -n 24 --json - --temperature " + std::string(temperature);
    const auto plain = nlohmann::json::parse(run_well(folder, generate).out),
               drafted = nlohmann::json::parse(run_well(folder, generate + " --draft auto").out);
    EXPECT_EQ(plain["ids"], drafted["ids"]);
  }
}

// Towards temperature 0 both distributions become their likeliest token, so a coupling agrees exactly as often as these
// tokens do, however small the temperature is.
TEST(Draft, AgreesAsOftenAsDistributionsOverlapAtTheSmallestTemperatures) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int8g64zs8 -o q");
  const auto report = nlohmann::json::parse(run_well(folder, kChoose + " --temperature 1e-300 --dry-run --json -").out);
  for (const auto& kind : report["kinds"])
    EXPECT_NEAR(kind["coupled_agreement"].get<double>(), kind["ear"].get<double>(), 1e-3) << kind.dump();
  EXPECT_LT(report["kinds"][1]["coupled_agreement"], 1);
}

// A tuned copy of as many bytes is nearer to the model, on windows that were not used in tuning and on answers to other
// questions. If chosen by bytes, it is kept even where no draft is worth its time. The written copy is the measured
// one.
TEST(Draft, ATunedCopyAgreesMoreOften) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int8g64zs8 -o q");
  const std::string choose =
      "fidelio draft q --kinds lut2g64 --plain --limit 16 --max-tokens 48 --calibration-tokens 4096 --head-tokens 0 "
      "--by-bytes --json - ";
  const auto untuned = nlohmann::json::parse(run_well(folder, choose + "--dry-run").out)["kinds"][0];
  EXPECT_TRUE(untuned["tuned"].is_null());
  const auto report = nlohmann::json::parse(
      run_well(folder, choose + "--tune --tune-steps 16 --tune-windows 2 --tune-samples 2048").out);
  const auto tuned = report["kinds"][0];
  EXPECT_EQ(tuned["bytes"], untuned["bytes"]);
  EXPECT_LT(tuned["tuned"]["kl_after"], tuned["tuned"]["kl_before"]);
  const auto agreement = [](const nlohmann::json& kind) {
    return kind["ear"].get<double>() + kind["greedy_agreement"].get<double>() + kind["coupled_agreement"].get<double>();
  };
  EXPECT_GT(agreement(tuned), agreement(untuned));
  ASSERT_EQ(report["draft"], "copy+lookup");
  const std::string generate = "fidelio generate q -p 'What is 12 + 30?' -n 24 --json - --draft ";
  const auto plain = nlohmann::json::parse(run_well(folder, generate + "off").out),
             drafted = nlohmann::json::parse(run_well(folder, generate + "auto").out);
  EXPECT_EQ(plain["ids"], drafted["ids"]);
  const std::vector<std::string> left = entries(folder / "q");
  EXPECT_THAT(left, testing::Not(testing::Contains(HasSubstr("tun"))));  // There is no state and no untuned copy.
}

// This is QSpec's own pair: one rotated set of 4-bit codes drafts with 4-bit activations and verifies with 16-bit ones.
// Questions are answered as without drafts, text by text. The report says by task how many drafts were right.
TEST(Draft, ActivationsOfFourBitsDraftForAnswersThatStayTheSame) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int4g32 --embedding bf16 --rotate -o q");
  const std::string ask = "fidelio eval q --tasks " + source_path("models/data/tasks.jsonl") +
                          " --plain --task recall --task expression --limit 2 --max-tokens 40 --cache ";
  run_well(folder, ask + "plain.jsonl");
  const auto report = nlohmann::json::parse(run_well(folder, ask + "drafted.jsonl --draft a4 --drafts 3 --json -").out);
  const auto texts = [&](const std::string& file) {
    std::map<std::string, std::string> of;
    std::istringstream lines(read_text_file(folder / file));
    for (std::string line; std::getline(lines, line);)
      if (const auto row = nlohmann::json::parse(line); row.contains("id")) of[row["id"]] = row["text"];
    return of;
  };
  EXPECT_EQ(texts("plain.jsonl").size(), 4u);
  EXPECT_EQ(texts("plain.jsonl"), texts("drafted.jsonl"));
  const auto& tasks = report["runs"][0]["tasks"];
  ASSERT_EQ(tasks.size(), 2u);
  for (const auto& task : tasks) {
    const auto& draft = task["draft"];
    EXPECT_GT(draft["accepted"], 0);
    EXPECT_LE(draft["accepted"], draft["judged"]);
    // 4 bits are wrong now and then, and drafts after a wrong one are not judged.
    EXPECT_LT(draft["judged"], draft["drafted"]);
  }
  // There is no draft for --drafts.
  EXPECT_NE(run_command(folder.path(), "fidelio eval q --text x --drafts 3").code, 0);
}

// A draft vocabulary is a head of some tokens. The report shows beside the whole head how much less of it is read and
// how much less often it agrees, and it is kept where it is chosen. quill-1m's head is a large part of the model, so by
// bytes a quarter of it is worth its misses.
TEST(Draft, MayGuessFrequentTokensAlone) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int8g64zs8 -o q");
  const std::string choose =
      "fidelio draft q --kinds 4 --plain --limit 16 --max-tokens 48 --calibration-tokens 16384 --by-bytes --json - ";
  const auto report = nlohmann::json::parse(run_well(folder, choose).out);
  const auto &whole = report["kinds"][0], &cut = report["kinds"][1];
  EXPECT_EQ(whole["head_tokens"], 0);
  EXPECT_EQ(cut["head_tokens"], 512);
  EXPECT_LT(cut["bytes_share"], whole["bytes_share"]);
  EXPECT_LE(cut["ear"], whole["ear"]);
  EXPECT_GT(cut["ear"], 0);
  EXPECT_GT(cut["bytes"], 0);
  const std::string generate = "fidelio generate q -p 'What is 12 + 30?' -n 24 --json - --draft ";
  const auto ids = [&](const std::string& how) {
    return nlohmann::json::parse(run_well(folder, generate + how).out)["ids"];
  };
  nlohmann::json choice = choice_in(folder);
  // The same holds for a chosen draft vocabulary, whatever pays here, and for one that has hardly any token of the
  // answer.
  for (const std::vector<int32_t>& tokens : {std::vector<int32_t>{}, {0}, {3, 2047}}) {
    choice["draft"] = "4";
    choice.erase("head_tokens");
    if (!tokens.empty()) choice["head_tokens"] = tokens;
    write_file_atomically(folder / "q/draft.json", choice.dump());
    for (const char* temperature : {" --temperature 0", " --temperature 0.8"})
      EXPECT_EQ(ids(std::string("auto --drafts 3 --fixed-drafts") + temperature),
                ids(std::string("off") + temperature));
  }
  for (const char* damaged :
       {"[]", "5", "[2048]", "[-1]", "[4,4]", "[7,3]", "[1.5]", "[\"a\"]", "{\"a\":1}", "[18446744073709551615]"}) {
    choice["head_tokens"] = nlohmann::json::parse(damaged);
    write_file_atomically(folder / "q/draft.json", choice.dump());
    const CommandResult refused = run_command(folder.path(), generate + "auto");
    EXPECT_EQ(refused.code, 1) << damaged;
    EXPECT_THAT(refused.err, HasSubstr("\"head_tokens\": expected tokens from 0 to 2047, ascending")) << damaged;
  }
  // A draft vocabulary of all tokens, or more, is the whole head.
  EXPECT_EQ(nlohmann::json::parse(run_well(folder, choose + "--head-tokens 5000").out)["kinds"].size(), 1u);
}

// Those of the usual kinds are tried that the model can have. A kind that was asked for and is impossible is refused
// before any work.
TEST(Draft, AModelWithoutCodesIsOfferedCopies) {
  const TestFolder folder;
  copy_model(source_path("models/quill-1m"), folder / "q");
  const std::string choose =
      "fidelio draft q --plain --limit 12 --max-tokens 32 --calibration-tokens 1024 --head-tokens 0";
  const auto kinds = nlohmann::json::parse(run_well(folder, choose + " --dry-run --json -").out)["kinds"];
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0]["kind"], "lut4g64");
  const CommandResult asked = run_command(folder.path(), choose + " --kinds lut4g64,4");
  EXPECT_EQ(asked.code, 1);
  EXPECT_THAT(asked.err, HasSubstr("--kinds 4: no layer of q has integers that can be cut to 4 bits"));
  EXPECT_THAT(asked.out + asked.err, testing::Not(HasSubstr("writing")));
}

// An error that would end the run after minutes of measuring ends it before.
TEST(Draft, RefusesBeforeTheWork) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int8g64zs8 -o q");
  const auto refused = [&](const std::string& options) {
    const CommandResult result = run_command(folder.path(), kChoose + options);
    EXPECT_EQ(result.code, 1) << options;
    EXPECT_THAT(result.out + result.err, testing::Not(HasSubstr("writing")));
    return result.err;
  };
  const auto prompts = [&](const std::string& name, const std::string& text) {
    write_file_atomically(folder / name, text);
    return refused(" --prompts " + name);
  };
  EXPECT_THAT(refused(" --calibration nothing.txt"), HasSubstr("nothing.txt"));
  EXPECT_THAT(prompts("lines.txt", "\r\n\r\n"), HasSubstr("lines.txt has no prompts"));
  EXPECT_THAT(prompts("lines.txt", "one\r\ntwo\r\n\r\n"), HasSubstr("expected 4 or more, a line each, got 2"));
  EXPECT_THAT(prompts("lines.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 3}\n"), HasSubstr("lines.jsonl:2: expected"));
  EXPECT_THAT(prompts("lines.jsonl", "{\"prompt\": \"a\n"), HasSubstr("lines.jsonl:1: not valid JSON"));
  std::string lines = "one\n\ntwo\n";
  for (int i = 0; i < 600; ++i) lines += "word ";
  EXPECT_THAT(prompts("lines.txt", lines + "\nfour\nfive\n"), HasSubstr("lines.txt: prompt 3 has"));
  std::filesystem::create_directories(folder / "q/draft.json");
  EXPECT_THAT(refused(""), HasSubstr("q/draft.json is there and is no choice of ours"));
  std::filesystem::remove(folder / "q/draft.json");
  std::filesystem::create_directories(folder / "q/draft");
  EXPECT_THAT(refused(""), HasSubstr("is no draft of ours"));
}

// A run that was ended between the copy and the line that names it leaves a copy that the next run replaces. A run that
// cannot write its copy leaves the previous choice.
TEST(Draft, AChoiceIsReplacedWhole) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int8g64zs8 -o q");
  const std::string choose =
      "fidelio draft q --kinds lut2g64 --plain --limit 8 --max-tokens 32 --calibration-tokens 1024 --by-bytes";
  run_well(folder, choose + " --temperature 0.01");
  ASSERT_TRUE(std::filesystem::exists(folder / "q/draft/config.json")) << choice_in(folder);
  const std::string before = read_text_file(folder / "q/draft.json");
  EXPECT_NE(run_command(folder.path(), "ulimit -f 200; " + choose + " --temperature 0.01").code, 0);
  EXPECT_EQ(read_text_file(folder / "q/draft.json"), before);
  run_well(folder, "fidelio generate q -p a -n 4 --draft auto");
  std::filesystem::remove(folder / "q/draft.json");
  run_well(folder, choose + " --temperature 0.01");
  EXPECT_EQ(choice_in(folder)["draft"], nlohmann::json::parse(before)["draft"]);
  EXPECT_THAT(entries(folder / "q"), testing::Not(testing::Contains(HasSubstr("tmp"))));
}

// Either may be a .gguf file, whose tokens are those of the folder that it was made from.
TEST(Draft, AFileMayDraftAndBeDraftedFor) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int8g32 --embedding int8g32 -o q");
  run_well(folder, "fidelio export q --to gguf -o q.gguf");
  const auto ids = [&](const std::string& command) {
    return nlohmann::json::parse(
        run_well(folder, "fidelio generate " + command + " -p 'What is' -n 12 --json -").out)["ids"];
  };
  EXPECT_EQ(ids("q --draft q.gguf"), ids("q"));
  EXPECT_EQ(ids("q.gguf --draft q"), ids("q.gguf"));
}

// Every number of high bits is a reading of its own, nearer to the model with each bit, and a draft of the same answer.
TEST(Draft, AnyNumberOfHighBitsIsAReadingAndADraft) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int8g64zs8 -o q");
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format lut6g64 -o grid");
  for (const auto& [model, most] : {std::pair{"q", 7}, std::pair{"grid", 5}}) {
    const std::string generate = fmt::format("fidelio generate {} -p 'What is 12 + 30?' -n 24 --json -", model);
    const auto plain = nlohmann::json::parse(run_well(folder, generate).out);
    double before = std::numeric_limits<double>::infinity();
    for (int bits = 2; bits <= most; ++bits) {
      SCOPED_TRACE(fmt::format("{} high bits of {}", bits, model));
      const auto report = nlohmann::json::parse(
          run_well(folder, fmt::format("fidelio eval {} --reference {} --text {} --context 128 --windows 4 --view {} "
                                       "--json -",
                                       model, kModel, source_path("models/data/docs-heldout.txt"), bits))
              .out);
      const double kl = report["kl"]["value"];
      EXPECT_LT(kl, before);
      before = kl;
      const auto drafted = nlohmann::json::parse(run_well(folder, fmt::format("{} --draft {}", generate, bits)).out);
      EXPECT_EQ(drafted["ids"], plain["ids"]);
    }
  }
}

TEST(Draft, RefusesWhatDoesNotBelongTogether) {
  const TestFolder folder;
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int8g64zs8 -o q");
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int4g64zs8 -o four");
  const auto refused = [&](const std::string& command) {
    const CommandResult result = run_command(folder.path(), command);
    EXPECT_NE(result.code, 0) << command;
    EXPECT_LT(result.code, 128) << command;
    return result.err;
  };
  const std::string generate = "fidelio generate q -p a -n 4 --draft ";
  EXPECT_THAT(refused(generate + "nothing"), HasSubstr("expected off, auto, lookup"));
  EXPECT_THAT(refused("fidelio generate four -p a -n 4 --draft 5"), HasSubstr("cut to 5 bits"));
  EXPECT_THAT(refused(generate + "4+3"), HasSubstr("give them one by one"));
  EXPECT_THAT(refused("fidelio draft q --kinds 3,4"), HasSubstr("drafts of 3 and of 4 high bits"));
  EXPECT_THAT(refused(generate + "4 --drafts 0"), HasSubstr("--drafts"));
  EXPECT_THAT(refused(generate + "4 --drafts 65"), HasSubstr("--drafts"));
  EXPECT_THAT(refused(generate + tiny_model("llama2")), HasSubstr("tokenizer.json"));
  EXPECT_THAT(refused("fidelio draft q --kinds int99"), HasSubstr("is not a format"));
  EXPECT_THAT(refused("fidelio draft q --tune-steps 5"), HasSubstr("--tune"));
  EXPECT_THAT(refused("fidelio draft four --kinds 7"), HasSubstr("cut to 7 bits"));
  // These are a choice for other weights, a damaged one, and a missing copy.
  const auto write = [&](const std::string& text) { write_file_atomically(folder / "q/draft.json", text); };
  write(R"({"draft": "4", "weights_sha256": "0"})");
  EXPECT_THAT(refused(generate + "auto"), HasSubstr("chosen for other weights"));
  write("{");
  EXPECT_THAT(refused(generate + "auto"), HasSubstr("draft.json"));
  // A folder from another person may not name another folder here.
  for (const char* named : {"four", "auto", "4+off", ""}) {
    write(nlohmann::json({{"draft", named}, {"weights_sha256", "0"}}).dump());
    EXPECT_THAT(refused(generate + "auto"), HasSubstr("expected lookup, copy, mtp or a number of bits")) << named;
  }
  write(R"({"weights_sha256": 1})");
  EXPECT_THAT(refused(generate + "auto"), HasSubstr("damaged"));
  std::filesystem::remove(folder / "q/draft.json");
  run_well(folder, kChoose);
  nlohmann::json choice = choice_in(folder);
  choice["draft"] = "copy";
  choice["copy_weights_sha256"] = "0";
  std::filesystem::remove_all(folder / "q/draft");
  write(choice.dump());
  EXPECT_THAT(refused(generate + "auto"), HasSubstr("names a copy"));
  run_well(folder, "fidelio quantize " + kModel + " --method rtn --format int4g64zs8 -o q/draft");
  EXPECT_THAT(refused(generate + "auto"), HasSubstr("other weights than were measured"));
}

}  // namespace
}  // namespace fidelio
