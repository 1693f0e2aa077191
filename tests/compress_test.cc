// These tests run `fidelio compress` as a user does, on quill-1m with few tokens: the effects of its options, and what
// it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <sstream>

#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kShort = "'" + source_path("models/quill-1m") +
                           "' --calibration-tokens 2048 --search-tokens 512 --context 128 --text short.txt ";
const std::string kFew = kShort + "--formats int4g64zs8,int6g64zs8,int8g64zs8 ";

// This folder has a few pages of text to search on and to certify with.
struct Desk : TestFolder {
  Desk() {
    write_file_atomically(*this / "short.txt",
                          read_text_file(source_path("models/data/docs-heldout.txt")).substr(0, 16000));
  }
};

CommandResult run(const TestFolder& folder, const std::string& command) {
  CommandResult result = run_command(folder.path(), command);
  EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
  return result;
}

std::string bytes_of(const std::string& folder) {
  std::string all;
  for (const std::string& name : entries(folder))  // The card names the command, which is another one.
    if (name != "README.md") all += name + "\n" + read_text_file(folder + "/" + name) + "\n";
  return all;
}

// Tables and checkpoints of two and three ranks equal those of one, byte for byte, and each rank did only a part of the
// work.
TEST(Compress, RanksGiveTheSameBytes) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "SKIPPED: no mpirun here, so that several ranks give the bytes of one is NOT tested";
  const Desk folder;
  const std::string two = kShort + "--formats int4g64zs8,int8g64zs8 ";
  for (const auto& [ranks, method] : std::map<int, std::string>{{2, "single"}, {3, "shapley --permutations 4"}}) {
    run(folder, "fidelio compress " + two + "--bits 6.5 -o one --table one.json --method " + method);
    // Leaks inside MPI are not for this test to find.
    const std::string command = fmt::format(
        "ASAN_OPTIONS=detect_leaks=0 mpirun --allow-run-as-root --oversubscribe -np {} '{}' compress {} --bits 6.5 "
        "-o many --table many.json --threads 1 --method {}",
        ranks, FIDELIO_PROGRAM, two, method);
    const CommandResult result = run(folder, command);
    EXPECT_EQ(read_text_file(folder / "one.json"), read_text_file(folder / "many.json")) << command;
    EXPECT_EQ(bytes_of(folder / "one"), bytes_of(folder / "many")) << command;
    // Only the first rank prints.
    EXPECT_EQ(result.out.find("every weight in int4g64zs8"), result.out.rfind("every weight in int4g64zs8"));
    EXPECT_FALSE(std::filesystem::exists(folder / "many.journal"));
    std::filesystem::remove_all(folder / "many");
    std::filesystem::remove_all(folder / "one");
  }
}

// The program that a plan is made for accepts it as it is, whatever the model's columns are (here 352, which no group
// of 64 divides). The certificate holds for the export too, because its codes and scales are the same.
TEST(Compress, PlansForOtherProgramsAreExportedAndCertified) {
  const Desk folder;
  for (const auto& [consumer, options] : std::map<std::string, std::string>{
           {"vllm", "compressed-tensors --profile vllm"}, {"gptq", "gptq"}, {"llama.cpp", "gguf"}}) {
    SCOPED_TRACE(consumer);
    std::filesystem::remove_all(folder / "plan");
    const std::string made = folder / ("export-" + consumer + (consumer == "llama.cpp" ? ".gguf" : ""));
    const CommandResult result =
        run(folder, "fidelio compress " + kShort + "--bits 9.5 --for " + consumer + " -o plan --threads 2");
    EXPECT_THAT(result.out, HasSubstr(consumer + " takes it as it is"));
    run(folder, "fidelio export plan --to " + options + " -o " + made);
    EXPECT_THAT(
        run(folder, "fidelio certify " + made + " --reference " + source_path("models/quill-1m") + " --text short.txt")
            .out,
        HasSubstr("The certificate holds"));
  }
  // A rule for one linear leaves the others the formats that fit, and not only the source's 16 bits.
  run(folder, "fidelio compress " + kShort + "--ear 0.8 --for vllm --ignore 'layers.0.o' -o ruled --json r.json");
  EXPECT_LT(json::parse(read_text_file(folder / "r.json"))["bits_per_parameter"], 12);
  const CommandResult refused =
      run_command(folder.path(), "fidelio compress " + kShort + "--bits 9.5 --for vllm --formats int4g64z -o no");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("the 352 columns of layers.0.down are not whole groups"));
}

// A plan whose export would be refused, whatever its formats, is not begun.
TEST(Compress, APlanThatCannotBeExportedIsNotBegun) {
  const Desk folder;
  copy_model(source_path("models/quill-1m"), folder / "windows");
  json config = json::parse(read_text_file(folder / "windows/config.json"));
  config.update({{"architectures", {"MistralForCausalLM"}}, {"model_type", "mistral"}, {"sliding_window", 64}});
  write_file_atomically(folder / "windows/config.json", config.dump());
  const CommandResult refused =
      run_command(folder.path(), "fidelio compress windows --bits 9.5 --for llama.cpp --text short.txt -o out");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("cannot be exported to gguf: llama.cpp has no sliding window"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.journal"));
}

// Sizes beyond the range of byte counts are valid sizes: too small for any plan, or large enough for all.
TEST(Compress, SizesBelowAByteAndBeyondAllFiles) {
  const Desk folder;
  const CommandResult none = run_command(folder.path(), "fidelio compress " + kFew + "--bits 1e-9 -o none");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("no plan of these formats fits 1 bytes"));
  EXPECT_FALSE(std::filesystem::exists(folder / "none.journal"));
  run(folder, "fidelio compress " + kFew + "--bits 1e300 -o all");
}

// Trials and the certificate use different documents, though the text holds every document several times.
TEST(Compress, ADocumentThatRepeatsIsInOneSet) {
  const Desk folder;
  const std::string text = read_text_file(folder / "short.txt");
  std::string lines, once;
  for (size_t i = 0; i < 15; ++i) once += json{{"text", text.substr(1000 * i, 1000)}}.dump() + "\n";
  for (int i = 0; i < 3; ++i) lines += once;
  write_file_atomically(folder / "lines.jsonl", lines);
  const CommandResult made =
      run(folder, "fidelio compress " + kFew.substr(0, kFew.find("--text")) +
                      "--formats int4g64zs8,int8g64zs8 --text lines.jsonl --bits 6 -o out --json out.json");
  EXPECT_THAT(made.out + made.err, HasSubstr("30 documents of --text repeat others, and are left out"));
  const json certificate = json::parse(read_text_file(folder / "out.json"))["certificate"];
  EXPECT_EQ(certificate["documents"], 10);
  EXPECT_LT(certificate["ear"]["ci95"][0], certificate["ear"]["ci95"][1]);
}

// An error in one rank ends all of them and is reported.
TEST(Compress, AnErrorEndsAllRanks) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "SKIPPED: no mpirun here, so that an error ends all ranks is NOT tested";
  const Desk folder;
  const CommandResult result = run_command(
      folder.path(), fmt::format("ASAN_OPTIONS=detect_leaks=0 timeout 120 mpirun --allow-run-as-root --oversubscribe "
                                 "-np 2 '{}' compress {} --bits 2 -o out",
                                 FIDELIO_PROGRAM, kFew));
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.code, 124) << "the other rank still waits";
  EXPECT_THAT(result.err, HasSubstr("no plan of these formats fits"));
}

// The coarse of two formats falls short, and the fine one loses far less than is allowed. The plan mixes both, instead
// of mixing the coarse one with the source's own weights, so it is no larger than the fine one everywhere.
TEST(Compress, AFormatThatIsMoreThanEnoughIsOffered) {
  const Desk folder;
  run(folder,
      "fidelio compress " + kShort + "--formats int4g64,int8g64 --ear 0.88 -o out --json r.json --table t.json");
  for (const json& group : json::parse(read_text_file(folder / "t.json"))["groups"])
    EXPECT_THAT(group["options"].dump(), HasSubstr("int8g64")) << group["name"];
  const json report = json::parse(read_text_file(folder / "r.json"));
  EXPECT_LE(report["bits_per_parameter"].get<double>(), 8.3);
}

// Evolution after the knapsack starts from its plan and never ends above it. The same job gives the same bytes.
TEST(Compress, EvolutionIsNeverLargerThanItsStart) {
  const Desk folder;
  const auto bytes = [&](const std::string& search) {
    return json::parse(run(folder, "fidelio compress " + kFew + "--ear 0.95 --json - -o out" + search).out);
  };
  const json ilp = bytes("-ilp");
  const json evolved = bytes("-evolve --search ilp+evolve --generations 1");
  EXPECT_LE(evolved["plan"]["bytes"], ilp["plan"]["bytes"]);
  EXPECT_TRUE(evolved["certificate"]["met"]);
  run(folder, "mkdir again; fidelio compress " + kFew + "--ear 0.95 --search ilp+evolve --generations 1 -o again/out");
  EXPECT_EQ(bytes_of(folder / "out-evolve"), bytes_of(folder / "again/out"));
}

// Evolution alone goes from the widest format everywhere to a mixed plan that meets the target, without a table. The
// same job gives the same bytes.
TEST(Compress, EvolutionAloneMeetsTheTarget) {
  const Desk folder;
  const std::string evolve = "fidelio compress " + kFew + "--ear 0.88 --search evolve --generations 6 --max-trials 3 ";
  const CommandResult result = run(folder, evolve + "-o out --report page.html --json made.json");
  EXPECT_THAT(result.out, HasSubstr("plans on evolution's way"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("Pareto")));
  EXPECT_THAT(read_text_file(folder / "page.html"), HasSubstr("none: whole plans were measured"));
  const json made = json::parse(read_text_file(folder / "made.json"));
  EXPECT_TRUE(made["certificate"]["met"]);
  EXPECT_GT(made["plan"]["predicted_kl"], 0);
  std::set<std::string> formats;
  for (const auto& [group, format] : made["plan"]["groups"].items()) formats.insert(format);
  EXPECT_GT(formats.size(), 1U);
  run(folder, "mkdir again; " + evolve + "-o again/out");
  EXPECT_EQ(bytes_of(folder / "out"), bytes_of(folder / "again/out"));
}

// A text that the model writes itself is a file of documents of one domain. It is the same for the same seed, has
// nothing in common with that of another seed, and can be certified on beside other text.
TEST(Compress, SamplesOfTheModelItselfAreADomain) {
  const Desk folder;
  const auto samples = [&](const std::string& out, int seed) {
    run(folder, fmt::format("fidelio samples '{}' --documents 18 --tokens 64 --starts short.txt --seed {} -o {}",
                            source_path("models/quill-1m"), seed, out));
    std::istringstream lines(read_text_file(folder / out));
    std::vector<std::string> texts;
    for (std::string line; std::getline(lines, line);) {
      EXPECT_EQ(json::parse(line)["domain"], "own-samples");
      texts.push_back(json::parse(line)["text"]);
    }
    return texts;
  };
  const std::vector<std::string> first = samples("own.jsonl", 1), other = samples("other.jsonl", 2);
  EXPECT_EQ(first.size(), 18U);
  EXPECT_EQ(first, samples("again.jsonl", 1));
  for (const std::string& text : first) EXPECT_EQ(std::count(other.begin(), other.end(), text), 0);
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), first.size());
  const json made = json::parse(
      run(folder, "fidelio compress " + kFew + "--text own.jsonl --bits 5.5 --json - -o out").out)["certificate"];
  std::set<std::string> domains;
  for (const json& d : made["domains"]) domains.insert(d["domain"]);
  EXPECT_EQ(domains, (std::set<std::string>{"own-samples", "text"}));
  // If it was certified with a draft, the certificate names the draft and how often it is accepted, as often as its own
  // figures say.
  const json served =
      json::parse(run(folder, "fidelio certify out --draft 4 --json - --reference " + source_path("models/quill-1m"))
                      .out)["measured"];
  EXPECT_TRUE(made["draft"].is_null());
  EXPECT_EQ(served["draft"]["draft"], "4");
  EXPECT_EQ(served["ear"], made["ear"]);
  const double judged = served["draft"]["judged"], accepted = served["draft"]["acceptance"];
  EXPECT_GT(judged, 100);
  EXPECT_NEAR(accepted, served["draft"]["expected_acceptance"], 4 * std::sqrt(accepted * (1 - accepted) / judged));
}

// The model's own answers are a domain. They are stored beside the weights, so they are measured again as they were,
// and changes of that text are found. Whole answers are counted, and there are figures for the recommended sampling.
TEST(Compress, OwnAnswersAreCertifiedAndMeasuredAgain) {
  const Desk folder;
  const std::string model = "'" + source_path("models/quill-1m") + "'";
  const json made =
      json::parse(run(folder, "fidelio compress " + kFew + "--text own:12 --answers 4 --bits 5.5 --json - -o out")
                      .out)["certificate"];
  std::map<std::string, json> domains;
  for (const json& d : made["domains"]) domains[d["domain"]] = d;
  EXPECT_EQ(domains.size(), 2u);
  EXPECT_TRUE(domains.contains("own"));
  EXPECT_EQ(made["texts"][1]["name"], "own:12");
  EXPECT_EQ(made["answers"]["prompts"], 4);
  EXPECT_EQ(made["sampled"]["temperature"], 0.6);
  EXPECT_EQ(made["tails"]["positions"], made["tokens"]);
  // The documents are dealt out again from files and answers, in whatever order these are named.
  const CommandResult measured =
      run(folder, "fidelio certify out --reference " + model + " --text own --text short.txt --json again.json");
  EXPECT_THAT(measured.out, HasSubstr("The certificate holds."));
  EXPECT_THAT(measured.out, testing::Not(HasSubstr("Not looked at")));
  run(folder, "fidelio certify out --reference " + model + " --json again.json --card-block block.md");
  const json again = json::parse(read_text_file(folder / "again.json"));
  EXPECT_TRUE(again["holds"]);
  for (const char* figure : {"ear", "tails", "sampled", "answers", "domains"})
    EXPECT_EQ(again["measured"][figure], made[figure]) << figure;
  const std::string block = read_text_file(folder / "block.md");
  EXPECT_THAT(block, HasSubstr("greedy answers of 200 tokens without a difference"));
  EXPECT_THAT(block, HasSubstr("overlap at temperature 0.6, top-p 0.9"));
  // A run that differs from the certified one says so in one line.
  EXPECT_THAT(run(folder, "fidelio inspect out").out, HasSubstr("for activations a16, cache f16 and 128 tokens"));
  EXPECT_EQ(run(folder, "fidelio generate out -p 'The package' -n 4").err, "");
  const std::string other = run(folder, "fidelio generate out -p 'The package' -n 4 --activations a8 --kv i8").err;
  EXPECT_THAT(other, HasSubstr("Warning: out: certified for a16, f16 and 128 tokens; this is a8, i8\n"));
  const std::string longer = run(folder, "fidelio generate out -p 'The package' -n 200").err;
  EXPECT_THAT(longer, HasSubstr("certified for a16, f16 and 128 tokens; this is up to 20"));
  EXPECT_THAT(longer, testing::Not(HasSubstr("Warning")));
  // A changed answer is not the certified one.
  std::string lines = read_text_file(folder / "out/own-text.jsonl");
  lines.replace(lines.find("\"ids\":[") + 7, 1, "[5,");
  write_file_atomically(folder / "out/own-text.jsonl", lines);
  const CommandResult changed = run_command(folder.path(), "fidelio certify out --reference " + model);
  EXPECT_NE(changed.code, 0);
}

// Conversations with calls are of two domains. Words for texts that a model cannot use are refused before any work.
TEST(Compress, ToolsAreTwoDomainsWhereTheTemplateTakesThem) {
  const Desk folder;
  const std::string model = folder / "takes-tools";
  copy_model(source_path("models/quill-1m"), model);
  write_file_atomically(
      model + "/chat_template.jinja",
      "{% for t in tools %}{{ t.function.name }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ "
      "m.content }}{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments | tojson "
      "}}{% endfor %}\n{% endfor %}");
  const std::string few =
      "--calibration-tokens 2048 --search-tokens 512 --context 512 --formats int6g64zs8,int8g64zs8 --bits 7.5 ";
  const json made =
      json::parse(run(folder, "fidelio compress '" + model + "' " + few +
                                  "--text short.txt --text tools --certificate-windows 60 --json - -o out")
                      .out)["certificate"];
  std::map<std::string, int64_t> tokens;
  for (const json& d : made["domains"]) tokens[d["domain"]] = d["tokens"];
  EXPECT_EQ(tokens.size(), 3u);
  EXPECT_GT(tokens["tools/arguments"], 100);
  EXPECT_GT(tokens["tools"], tokens["tools/arguments"]);
  EXPECT_EQ(tokens["text"] + tokens["tools"] + tokens["tools/arguments"], made["tokens"]);
  EXPECT_TRUE(json::parse(run(folder, "fidelio certify out --reference '" + model + "' --json -").out)["holds"]);
  for (const auto& [options, message] :
       std::map<std::string, std::string>{{"--text tools", "has no chat template"},
                                          {"--text own:3", "expected own:N"},
                                          {"--text own:900", "there are prompts for"},
                                          {"--text own:12 --text own:13", "own:13: the model's own answers are asked"},
                                          {"--calibration own", "--calibration-samples N"},
                                          {"--answers 900", "ask for no more"}}) {
    const CommandResult refused = run_command(folder.path(), "fidelio compress " + kFew + "--bits 5 -o no " + options);
    EXPECT_NE(refused.code, 0) << options;
    EXPECT_THAT(refused.err, HasSubstr(message)) << options;
  }
}

// This goes the whole way with 8-bit activations. They lose more than 16-bit ones in every uniform plan, so the plan
// for the same target is larger, and the file says what it was measured with.
TEST(Compress, EightBitActivationsAreInTheTableThePlanAndTheCertificate) {
  const Desk folder;
  const auto compressed = [&](const std::string& name) {
    return json::parse(run(folder, fmt::format("fidelio compress {} --ear 0.95 --json - -o {} --activations {} --table "
                                               "{}.json --report {}.html",
                                               kFew, name, name, name, name))
                           .out);
  };
  const json a8 = compressed("a8"), a16 = compressed("a16");
  EXPECT_EQ(a8["plan"]["activations"], "a8");
  EXPECT_EQ(a16["plan"]["activations"], "f32");
  EXPECT_EQ(a8["certificate"]["activations"], "a8");
  EXPECT_GE(a8["plan"]["bytes"], a16["plan"]["bytes"]);
  const json table = json::parse(read_text_file(folder / "a8.json"));
  // The KL is more than 0 where BF16 weights use BF16 activations, as on CPUs that are faster with them.
  EXPECT_GE(table["base_kl"], 0);
  EXPECT_EQ(json::parse(read_text_file(folder / "a16.json"))["base_kl"], 0);
  run(folder, "fidelio certify a8 --reference '" + source_path("models/quill-1m") + "'");

  const std::string page = read_text_file(folder / "a8.html");
  for (const char* part : {"activations of sensitivities", "Flips of the first choice by entropy", "gamma² predicted",
                           "layers.3.down", "quantising the candidates"})
    EXPECT_THAT(page, HasSubstr(part));
  // The page is self-contained, so nothing is fetched.
  for (const char* part : {"<script", "src=", "http:", "https:", "@import", "url("})
    EXPECT_EQ(page.find(part), std::string::npos);
}

// For sensitivities by noise, the table and the page say for every group how straight its line is.
TEST(Compress, TablesByNoiseSayHowStraightTheirLinesAre) {
  const Desk folder;
  run(folder, "fidelio compress " + kFew + "--bits 6 --method linear --table noise.json --report noise.html -o out");
  const json table = json::parse(read_text_file(folder / "noise.json"));
  const json& fits = table["provenance"]["fits"];
  ASSERT_EQ(fits.size(), table["groups"].size());
  for (const json& fit : fits) {
    const double alpha = fit["alpha"]["value"], low = fit["alpha"]["ci95"][0], high = fit["alpha"]["ci95"][1];
    EXPECT_GT(alpha, 0) << fit;
    EXPECT_NEAR((low + high) / 2, alpha, 1e-9 * alpha);
    // There are four points. A residual of a tenth of a line's length leaves R2 at .99, and Student's t widens by 3.2.
    EXPECT_GT(fit["r2"], 0.9) << fit;
    EXPECT_LE(fit["r2"], 1) << fit;
  }
  EXPECT_THAT(read_text_file(folder / "noise.html"), HasSubstr("a line for each group"));
}

// A certificate is checked against the bytes that it describes, and a certificate that cannot be read is named.
TEST(Compress, DamageToACertifiedCheckpointIsNamed) {
  const Desk folder;
  run(folder, "fidelio compress " + kFew + "--ear 0.95 -o whole");
  const std::string file = read_text_file(folder / "whole/model.safetensors");
  const auto certify = [&](const std::string& bytes) {
    std::filesystem::remove_all(folder / "bad");
    std::filesystem::copy(folder / "whole", folder / "bad");
    write_file_atomically(folder / "bad/model.safetensors", bytes);
    return run_command(folder.path(), "fidelio certify bad --reference '" + source_path("models/quill-1m") + "'");
  };
  EXPECT_EQ(certify(file).code, 0);
  // One bit of one code is too little for EAR to show.
  std::string flipped = file;
  flipped[file.size() / 2] = static_cast<char>(flipped[file.size() / 2] ^ 1);
  EXPECT_THAT(certify(flipped).err, HasSubstr("not those that were certified"));
  EXPECT_EQ(certify(flipped).code, 1);

  // The metadata is JSON in a JSON string. Edits of the same length keep the header as it was.
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {R"(\"draft\":null,\"ear\":{\"ci95)", R"(\"draft\":null,\"eax\":{\"ci95)"},
           {R"(],\"kl\":{\"ci95)", R"(],\"kx\":{\"ci95)"},
           {R"(\"target\":{\"ear\":0.95})", R"(\"target\":[\"ear\",0.95])"},
           {R"(\"texts\":[)", R"(\"textz\":[)"},
           {R"(\"context\":128)", R"(\"context\":0.1)"},
           {R"(\"context\":128)", R"(\"context\":000)"},
           {R"(\"context\":128)", R"(\"context\":  0)"},
           {R"(\"places\":[)", R"(\"placez\":[)"},
           {R"(\"promise\":\"domain)", R"(\"promise\":\"domaim)"},
           {R"(\"ladder\":)", R"(\"luuder\":)"}}) {
    std::string changed = file;
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    const CommandResult result = certify(changed);
    EXPECT_EQ(result.code, 1) << to << result.err;
    EXPECT_THAT(result.err, HasSubstr("damaged")) << to;
  }

  // The figures are better than those of the documents, or there are more documents, though the target is met all the
  // same.
  for (const auto& [of, digit, words] : std::vector<std::tuple<std::string, char, std::string>>{
           {R"(\"draft\":null,\"ear\":{)", '9', "it claims EAR 1.000000 ["},
           {R"(],\"kl\":{)", '0', "it claims KL 0.000000"},
           {R"(\"domain\":\"text\",\"ear\":{)", '9', "of text, measured is 0.9"},
           {R"(\"confidence\":0.955,\"domain\":\"text\",\"ear\":{)", '9', "of the text promised of, measured"},
           {R"(\"next_document\":{\"ear\":{)", '9', "of a new document of text, measured is 0.9"},
           {R"(\"top1\":{)", '9', "it claims top1 1.000000 ["},
           {R"(\"perplexity_ratio\":{)", '9', "it claims a perplexity ratio 1.000000 ["},
           {R"(\"context\":128,\"documents)", '9', "it counts 9"}}) {
    std::string changed = file;
    size_t at = changed.find(of);
    ASSERT_NE(at, std::string::npos) << of;
    for (at += of.size(); changed[at] != '}' && changed.compare(at, 8, R"(\"domain)") != 0; ++at)
      if (std::isdigit(static_cast<unsigned char>(changed[at])) != 0 && changed[at - 1] != 'i' &&
          changed[at - 2] != 'i' && changed[at + 1] != '.')
        changed[at] = digit;
    const CommandResult result = certify(changed);
    EXPECT_EQ(result.code, 1) << of << result.err;
    EXPECT_THAT(result.err, HasSubstr(words)) << of;
    EXPECT_THAT(result.out, HasSubstr("The certificate does not hold.")) << of;
  }
}

// One layer copies its input, as in models that were grown in depth. It loses nothing in any format, and the others are
// searched as usual.
TEST(Compress, LayersThatDoNothingAreNoObstacle) {
  const Desk folder;
  copy_model(source_path("models/quill-1m"), folder / "grown");
  std::string file = read_text_file(folder / "grown/model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const json header = json::parse(file.substr(8, length));
  for (const char* name : {"model.layers.2.self_attn.o_proj.weight", "model.layers.2.mlp.down_proj.weight"}) {
    const auto begin = header[name]["data_offsets"][0].get<size_t>(),
               end = header[name]["data_offsets"][1].get<size_t>();
    std::fill_n(file.begin() + static_cast<int64_t>(8 + length + begin), end - begin, '\0');
  }
  write_file_atomically(folder / "grown/model.safetensors", file);
  run(folder,
      "fidelio compress grown --calibration-tokens 2048 --search-tokens 512 --context 128 --text short.txt "
      "--formats int4g64zs8,int6g64zs8,int8g64zs8 --ear 0.9 -o out");
  run(folder, "fidelio certify out --reference grown");
}

// Floating-point formats are candidates like others, counted by their true bytes.
TEST(Compress, FloatingPointFormatsAndAllocationByEar) {
  const Desk folder;
  const json report = json::parse(run(folder, "fidelio compress " + kShort +
                                                  "--formats fp4g16,fp4g16z,fp8 --bits "
                                                  "7 --allocate-by ear --json - -o fp --table fp.json")
                                      .out);
  const json table = json::parse(read_text_file(folder / "fp.json"));
  for (const json& group : table["groups"]) {
    ASSERT_EQ(group["options"].size(), 4u);  // The source's own format is among them.
    for (const json& option : group["options"]) {
      if (group["name"] != "layers.0.o") continue;
      // A matrix of 128 x 128 has codes, E4M3 scales (and offsets) for blocks of 16, and one FP32 a row.
      const int64_t codes = 128 * 128, blocks = codes / 16, rows = 4 * 128;
      const std::map<std::string, int64_t> bytes = {{"fp4g16", codes / 2 + blocks + rows},
                                                    {"fp4g16z", codes / 2 + 2 * blocks + rows},
                                                    {"fp8", codes + rows},
                                                    {"bf16", 2 * codes}};
      EXPECT_EQ(option["bytes"], bytes.at(option["format"])) << option;
    }
  }
  int64_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "fp"))
    if (entry.path().extension() == ".safetensors") files += static_cast<int64_t>(entry.file_size());
  EXPECT_EQ(report["file_bytes"], files);
  EXPECT_LE(8.0 * static_cast<double>(files) / report["parameters"].get<double>(), 7);
}

// Vector codes are candidates beside grids and integers. A codebook that linears share is in the file and in the plan's
// bytes once. The result is certified again, and exports that cannot hold it refuse it.
TEST(Compress, VectorCodesInAMixedPlan) {
  const Desk folder;
  const json report = json::parse(
      run(folder,
          "fidelio compress " + kShort +
              "--formats lut2g64,lut4g64,vq8k12s4m,vq8k16s8m,vq8k12s4 --bits 3 --json - -o made --table table.json")
          .out);
  std::set<std::string> used;
  for (const auto& [group, format] : report["plan"]["groups"].items()) used.insert(format.get<std::string>());
  EXPECT_TRUE(used.contains("vq8k16s8m")) << report["plan"];
  EXPECT_GT(used.size(), 1u);
  EXPECT_LE(8.0 * report["file_bytes"].get<double>() / report["parameters"].get<double>(), 3);
  const json table = json::parse(read_text_file(folder / "table.json"));
  int64_t bytes = table["fixed_bytes"];
  for (const json& group : table["groups"])
    for (const json& option : group["options"])
      if (option["format"] == report["plan"]["groups"][group["name"].get<std::string>()])
        bytes += option["bytes"].get<int64_t>();
  const json about = json::parse(run(folder, "fidelio inspect made --json -").out);
  for (const char* format : {"vq8k12s4m", "vq8k16s8m"}) {
    const std::string name = std::string("codebooks.") + format;
    EXPECT_EQ(about["codebooks"].contains(name), used.contains(format));
    if (used.contains(format)) bytes += about["codebooks"][name].get<int64_t>();
  }
  EXPECT_EQ(report["plan"]["bytes"], bytes);
  run(folder, "fidelio certify made --reference '" + source_path("models/quill-1m") + "'");
  const CommandResult refused = run_command(folder.path(), "fidelio export made --to gptq -o gptq");
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("cannot be exported to gptq"));
}

// Several targets are one search: candidates and sensitivities are made once, and a looser target is no larger.
TEST(Compress, SeveralTargetsComeFromOneSearch) {
  const Desk folder;
  const json report = json::parse(run(folder, "fidelio compress " + kFew + "--ear 0.95,0.9 --json - -o out").out);
  ASSERT_EQ(report["targets"].size(), 2u);
  for (const json& one : report["targets"]) EXPECT_TRUE(one["certificate"]["met"]);
  EXPECT_EQ(report["targets"][0]["output"], "out-95");
  EXPECT_EQ(report["targets"][1]["output"], "out-90");
  EXPECT_LE(report["targets"][1]["file_bytes"], report["targets"][0]["file_bytes"]);
  run(folder, "fidelio certify out-90 --reference '" + source_path("models/quill-1m") + "'");
}

// An output that an interrupted run of several targets has made already is used by this run only if it promises the
// same.
TEST(Compress, AnOutputOfAnotherPromiseIsNotTaken) {
  const Desk folder;
  const std::string two = "fidelio compress " + kFew + "--ear 0.95,0.9 -o out";
  run(folder, two);
  std::filesystem::remove_all(folder / "out-90");
  std::filesystem::create_directory(folder / "out.journal");
  write_file_atomically(folder / "out.journal/job.json", R"({"fidelio_journal":)");  // It was cut short by a kill.
  const CommandResult refused = run_command(folder.path(), two + " --promise all");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("out-95 is there and was made for something else"));
  run(folder, two);
}

// One window gives no interval, and a certificate that says so is measured again as any other. If its text is not in
// its place, it is searched among the texts that come with the program; otherwise it is named as missing.
TEST(Compress, ACertificateOfOneWindowAndOfATextThatMoved) {
  const Desk folder;
  const std::string model = "'" + source_path("models/quill-1m") + "'";
  run(folder, "fidelio compress " + kFew + "--bits 9 --certificate-windows 1 -o one");
  EXPECT_THAT(run(folder, "fidelio certify one --reference " + model).out, HasSubstr("The certificate holds"));
  // The card was written with the model. certify writes a new one and overwrites nothing.
  EXPECT_THAT(read_text_file(folder / "one/README.md"), HasSubstr("**Not tested**"));
  const std::string card = "fidelio certify one --reference " + model + " --card card.md";
  run(folder, card);
  EXPECT_THAT(read_text_file(folder / "card.md"), HasSubstr("**Not tested**"));
  EXPECT_THAT(run_command(folder.path(), card).err, HasSubstr("--card card.md: there is such a file"));
  std::filesystem::rename(folder / "short.txt", folder / "moved.txt");
  const CommandResult refused = run_command(folder.path(), "fidelio certify one --reference " + model);
  EXPECT_THAT(refused.err, HasSubstr("the text short.txt, which is not there: say by --text where it lies now"));
  run(folder, "fidelio certify one --reference " + model + " --text moved.txt");

  std::string bundled = kFew;
  bundled.replace(bundled.find("short.txt"), 9, "docs-heldout.txt:docs");
  std::filesystem::copy_file(source_path("models/data/docs-heldout.txt"), folder / "docs-heldout.txt");
  run(folder, "fidelio compress " + bundled + "--bits 9 --certificate-windows 4 -o two");
  std::filesystem::remove(folder / "docs-heldout.txt");
  run(folder, "fidelio certify two --reference " + model);
}

// The measurements and the choice of a search are files from which it can start again: the same plan follows from the
// table, and the same weights from the plan.
TEST(Compress, TablesAndPlansAreFiles) {
  const Desk folder;
  run(folder, "fidelio compress " + kFew + "--bits 7 --table t.json --json p.json -o made");
  const json made = json::parse(read_text_file(folder / "p.json"));
  const json again =
      json::parse(run(folder, "fidelio compress " + kFew + "--bits 7 --from-table t.json --json - -o again").out);
  EXPECT_EQ(again["plan"]["groups"], made["plan"]["groups"]);
  const json built = json::parse(run(folder, "fidelio compress " + kShort + "--plan p.json --json - -o built").out);
  EXPECT_EQ(built["plan"]["groups"], made["plan"]["groups"]);
  EXPECT_EQ(built["certificate"]["ear"], made["certificate"]["ear"]);
  const auto weights = [&](const std::string& name) {
    const std::string file = read_text_file(folder / (name + "/model.safetensors"));
    uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    return file.substr(sizeof header + header);
  };
  EXPECT_EQ(weights("again"), weights("made"));
  EXPECT_EQ(weights("built"), weights("made"));
  write_file_atomically(folder / "none.json", "{}");
  const auto damage = [&](const std::string& name, const char* at, const json& value) {
    json table = json::parse(read_text_file(folder / "t.json"));
    table[json::json_pointer(at)] = value;
    write_file_atomically(folder / name, table.dump());
  };
  const json second = json::parse(read_text_file(folder / "t.json"))["groups"][1];
  damage("fixed.json", "/fixed_bytes", INT64_MAX);
  damage("parameters.json", "/groups/0/parameters", 0);
  damage("linears.json", "/groups/0/linears", json::array());
  damage("twice.json", "/groups/0", second);
  for (const auto& [options, message] : std::map<std::string, std::string>{
           {"--plan none.json", "is no plan"},
           {"--plan p.json --grouping single", "names no format for"},
           {"--plan p.json --ear 0.9", "give a target"},
           {"--bits 7 --from-table none.json", "none.json: this is not a sensitivity table"},
           {"--bits 7 --from-table fixed.json", "bytes belong to no group"},
           {"--bits 7 --from-table parameters.json", "parameters, not 0"},
           {"--bits 7 --from-table linears.json", "the table is damaged"},
           {"--bits 7 --from-table twice.json", "twice"},
           {"--bits 7 --from-table t.json --grouping single", "groups"}}) {
    const CommandResult result = run_command(folder.path(), "fidelio compress " + kShort + options + " --fresh -o out");
    EXPECT_EQ(result.code, 1) << options;
    EXPECT_THAT(result.err, HasSubstr(message)) << options;
  }
}

// Without --formats, the formats of a table are offered, which need not be among the default ones, whatever rules there
// are.
TEST(Compress, ATableOffersItsOwnFormats) {
  const Desk folder;
  const std::string ask = "--bits 6.5 --rule embedding=int8g64zs8 ";
  const json made = json::parse(
      run(folder, "fidelio compress " + kShort + ask + "--formats vq8k12s4m,int8g64zs8 --table t.json --json - -o made")
          .out);
  EXPECT_THAT(made["plan"]["groups"].dump(), HasSubstr("vq8k12s4m"));
  const json again =
      json::parse(run(folder, "fidelio compress " + kShort + ask + "--from-table t.json --json - -o again").out);
  EXPECT_EQ(again["plan"]["groups"], made["plan"]["groups"]);
}

TEST(Compress, RulesDecideSingleLinears) {
  const Desk folder;
  const json report = json::parse(run(folder, "fidelio compress " + kFew +
                                                  "--bits 8 --rule 'layers.0.*=int5g64zs8' --rule "
                                                  "layers.0.down=int4g64zs8 --ignore 'layers.[23].o' --json - -o out")
                                      .out);
  const json& groups = report["plan"]["groups"];
  EXPECT_EQ(groups["layers.0.qkv"], "int5g64zs8");
  EXPECT_EQ(groups["layers.0.o"], "int5g64zs8");
  EXPECT_EQ(groups["layers.0.down"], "int4g64zs8");  // The last rule that matches holds.
  EXPECT_EQ(groups["layers.2.o"], "bf16");
  EXPECT_NE(groups["layers.1.qkv"], "int5g64zs8");  // It is not offered where no rule mentions it.
  for (const auto& [options, message] :
       std::map<std::string, std::string>{{"--rule layers.0.q", "expected PATTERN=FORMAT"},
                                          {"--rule layers.9.q=int8g64zs8", "matches no weight matrix"},
                                          {"--ignore layers.0.q", "shares a format with"}}) {
    const CommandResult result =
        run_command(folder.path(), "fidelio compress " + kFew + "--bits 8 " + options + " -o no");
    EXPECT_EQ(result.code, 1) << options;
    EXPECT_THAT(result.err, HasSubstr(message)) << options;
  }
}

// If no offered format is fine enough, groups stay as the source has them, so there is always a plan.
TEST(Compress, TheSourcesOwnFormatIsAlwaysOffered) {
  const Desk folder;
  const CommandResult result =
      run(folder, "fidelio compress " + kShort + "--formats int4g64zs8 --ear 0.98 -o out --table table.json");
  EXPECT_THAT(result.out, HasSubstr("No format everywhere reaches the target: int4g64zs8"));
  EXPECT_THAT(result.out, HasSubstr("of short.txt, which the search has not seen"));
  const json table = json::parse(read_text_file(folder / "table.json"));
  for (const json& group : table["groups"]) {
    EXPECT_EQ(group["options"].back()["format"], "bf16");
    EXPECT_EQ(group["options"].back()["kl"], 0);
  }
}

// A plan for llama.cpp is exported without a line about rounding.
TEST(Compress, APlanForAnotherProgramIsHeldThereAsItIs) {
  const Desk folder;
  run(folder, "fidelio compress " + kShort + "--for llama.cpp --ear 0.95 -o out");
  const json report = json::parse(run(folder, "fidelio export out --to gguf -o out.gguf --json -").out);
  for (const json& note : report["notes"]) EXPECT_EQ(note.get<std::string>().find("round"), std::string::npos) << note;
}

// The right answers of these questions are quill-1m's own, so its accuracy is 1 and every change is a loss.
void write_own_questions(const Desk& folder) {
  const std::string ask =
      "fidelio eval '" + source_path("models/quill-1m") + "' --tasks '" + source_path("models/data/tasks.jsonl") +
      "' --task recall --task word_problem --limit 60 --max-tokens 12 --plain --cache answers.jsonl";
  run(folder, ask);
  std::map<std::string, json> items;
  const auto lines = [](const std::string& path) {
    std::vector<json> all;
    std::istringstream text(read_text_file(path));
    for (std::string line; std::getline(text, line);) all.push_back(json::parse(line));
    return all;
  };
  for (const json& item : lines(source_path("models/data/tasks.jsonl"))) items[item["id"]] = item;
  std::string own;
  for (const json& answer : lines(folder / "answers.jsonl")) {
    if (!answer.contains("id") || answer["text"].get<std::string>().find("<think>") != std::string::npos) continue;
    own += json{{"id", answer["id"]},
                {"task", answer["task"]},
                {"question", items[answer["id"]]["question"]},
                {"answer", answer["text"]}}
               .dump() +
           "\n";
  }
  write_file_atomically(folder / "own.jsonl", own);
}

// This is Algorithm 2 with a line through one point. The allowed loss follows from the calibration's questions with
// their intervals, and other questions show what the plan keeps. Three cases are refused: a drop that the questions are
// too few to show; a calibration plan whose loss cannot be told from chance; and a drop larger than that plan's own,
// which would extrapolate.
TEST(Compress, ATargetOfTasksIsCheckedOnOtherQuestions) {
  const Desk folder;
  write_own_questions(folder);
  const std::string ask = "--tasks own.jsonl --plain --max-tokens 12 --seeds 0 ",
                    tasks = ask + "--calibration-bits 4.6 ";
  const CommandResult few =
      run_command(folder.path(), "fidelio compress " + kFew + tasks + "--accuracy-drop 0.05 -o out");
  EXPECT_NE(few.code, 0);
  EXPECT_THAT(few.err, HasSubstr("questions cannot show that"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));

  const json report = json::parse(
      run(folder, "fidelio compress " + kFew + tasks + "--accuracy-drop 0.6 --report page.html --json - -o out").out);
  const json &certificate = report["certificate"], &found = certificate["tasks"], &point = found["calibration"];
  EXPECT_EQ(certificate["target"], json::object());
  const double loss = 1 - point["recovery"]["value"].get<double>(), kl = point["kl"]["value"];
  EXPECT_NEAR(point["alpha"]["value"].get<double>(), loss / kl, 1e-9 * loss / kl);
  EXPECT_LT(found["kl_allowed"].get<double>(), 0.6 * kl / loss);
  EXPECT_LT(found["kl_allowed"], point["kl"]["value"]);
  EXPECT_LE(found["kl"]["ci95"][1], found["kl_allowed"]);
  EXPECT_GE(found["recovery"]["ci95"][0], 0.4);
  EXPECT_GT(found["questions"]["calibration"], 0);
  EXPECT_GT(found["questions"]["check"], found["questions"]["calibration"]);
  EXPECT_THAT(read_text_file(folder / "page.html"), HasSubstr("Promised of answers"));

  const CommandResult beyond = run_command(
      folder.path(), "fidelio compress " + kFew + ask + "--calibration-bits 6.5 --accuracy-drop 0.9 -o refused");
  EXPECT_NE(beyond.code, 0);
  EXPECT_THAT(beyond.err, HasSubstr("the single-point method does not hold here"));
  const CommandResult nothing_lost =
      run_command(folder.path(), "fidelio compress " + kShort + "--formats int8g32z " + ask +
                                     "--limit 30 --accuracy-drop 0.5 --calibration-bits 9 -o same");
  EXPECT_NE(nothing_lost.code, 0);
  EXPECT_THAT(nothing_lost.err, HasSubstr("does not differ from no loss"));
}

TEST(Compress, RefusesWhatMakesNoSense) {
  const Desk folder;
  const std::map<std::string, std::string> cases = {
      {"--ear 0.9 --bits 4", "give a target"},
      {"--ear 0.9 --accuracy-drop 0.1", "--accuracy-drop requires --tasks"},
      {"--ear 0.9 --search guess", "expected ilp or evolve or ilp+evolve"},
      {"--ear 0.9 --allocate-by bits", "expected kl or ear"},
      {"--ear 0.9 --method guess", "expected single or every or linear or shapley or unified"},
      {"--bits 5 --search ilp+evolve", "nothing to make smaller"},
      {"--ear 0.9 --search evolve --table t.json", "leave out --table"},
      {"--ear 0.9 --activations a8 --method linear", "give single, every, shapley or unified"},
      {"--ear 0.9,0.90", "names a target twice"},
      {"--ear 0.95,0.9 --kl 0.1", "leave out --kl"},
      {"--bytes many", "is not a size"},
      {"--bytes 10kB", "the smallest takes"},
      {"--ear 0.9 --for vllm", "is not held there as it is"},
      {"--ear 0.9 --for ollama", "expected fidelio or vllm or gptq or llama.cpp"},
      {"--tasks nowhere.jsonl", "--accuracy-drop go together"},
      {"--tokens-per-second 100 --ear 0.9 --bits 4", "give a target"},
      {"--tokens-per-second 0", "a number above 0"}};
  for (const auto& [options, message] : cases) {
    const CommandResult result = run_command(folder.path(), "fidelio compress " + kFew + options + " -o out");
    EXPECT_NE(result.code, 0) << options;
    EXPECT_THAT(result.err, HasSubstr(message)) << options;
  }
  EXPECT_EQ(entries(folder.path()), std::vector<std::string>{"short.txt"});
}

// This is the whole promise of the command line, with its defaults but less text (each plan of the ladder is built and
// tested): quill-1m at EAR 0.98, and `certify` finds the claims of the certificate again from the file. It takes half a
// minute on two quiet cores.
TEST(Acceptance, Quill1mAtEar98IsCertifiedAndCertifiedAgain) {
  const TestFolder folder;
  const std::string model = "'" + source_path("models/quill-1m") + "'";
  const json report =
      json::parse(run(folder, "fidelio compress " + model +
                                  " --ear 0.98 --calibration-tokens 8192 --certificate-windows 48 --json - -o out")
                      .out);
  const json certificate = report["certificate"];
  EXPECT_TRUE(certificate["met"]);
  EXPECT_GE(certificate["ear"]["ci95"][0], 0.98);
  const json again = json::parse(run(folder, "fidelio certify out --reference " + model + " --json -").out);
  EXPECT_TRUE(again["holds"]);
  for (const char* figure : {"ear", "kl", "top1", "tokens", "kernels", "promised", "domains", "sha256"})
    // Both figures are from the same kernels on the same weights.
    EXPECT_EQ(again["measured"][figure], certificate[figure]) << figure;

  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "out"))
    if (entry.path().extension() == ".safetensors") bytes += static_cast<int64_t>(entry.file_size());
  EXPECT_EQ(report["file_bytes"], bytes);
  EXPECT_DOUBLE_EQ(report["bits_per_parameter"].get<double>(),
                   8.0 * static_cast<double>(bytes) / report["parameters"].get<double>());
  // The result is smaller than the whole model in the widest format offered.
  run(folder, "fidelio quantize " + model + " --method rtn --format int8g64zs8 --embedding int8g64zs8 -o uniform 2>&1");
  EXPECT_LT(bytes, static_cast<int64_t>(std::filesystem::file_size(folder / "uniform/model.safetensors")));
}

}  // namespace
}  // namespace fidelio
