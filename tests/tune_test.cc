// These tests run `fidelio tune` as a user does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/hash.h"
#include "core/rng.h"
#include "io/safetensors.h"
#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;

class Tune : public testing::Test {
 protected:
  Tune() { std::filesystem::create_symlink(source_path("models"), folder_ / "models"); }

  CommandResult run(const std::string& command) {
    CommandResult result = run_command(folder_.path(), command);
    EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
    return result;
  }
  void quantize(const std::string& format, const std::string& out) {
    run("fidelio quantize models/quill-1m --format " + format +
        " --embedding int6g64zs8 --calibration "
        "models/data/docs-calibration.txt --calibration-tokens 8192 -o " +
        out);
  }
  static std::string tuning(const std::string& model, const std::string& options, const std::string& out,
                            const std::string& sizes = "--calibration-samples 0 --rows 256 ") {
    return "fidelio tune " + model +
           " --reference models/quill-1m --calibration models/data/docs-calibration.txt "
           "--calibration-tokens 16384 --held-tokens 2048 --context 128 --windows 4 " +
           sizes + options + " -o " + out + " --json - 2>/dev/null";
  }
  json tune(const std::string& model, const std::string& options, const std::string& out) {
    return json::parse(run(tuning(model, options, out)).out);
  }
  double kl(const std::string& out) {
    const CommandResult result = run("fidelio eval " + out +
                                     " --reference models/quill-1m --text models/data/docs-heldout.txt --context 512 "
                                     "--windows 8 --json - 2>/dev/null");
    return json::parse(result.out).at("kl").at("value");
  }
  std::string hash(const std::string& out) { return sha256_hex(read_text_file(folder_ / out + "/model.safetensors")); }

  TestFolder folder_;
};

// Integers and a grid become nearer on text that was not used in tuning, as served, and not a byte larger. Tuning the
// layers alone helps too.
TEST_F(Tune, ComesNearerWithTheSameBytes) {
  for (const std::string format : {"int3g64zs8", "lut2g64", "vq8k16s8+r1.0"}) {
    quantize(format, format);
    const json report = tune(format, "--steps 20 --evaluate-every 10", "tuned-" + format);
    EXPECT_LT(report.at("kl_after").get<double>(), report.at("kl_before").get<double>());
    EXPECT_FALSE(report.at("diverged").get<bool>());
    EXPECT_LT(kl("tuned-" + format), kl(format)) << format;
    EXPECT_EQ(std::filesystem::file_size(folder_ / format + "/model.safetensors") / 4096,
              std::filesystem::file_size(folder_ / ("tuned-" + format) + "/model.safetensors") / 4096);
  }
  const json layers = tune("lut2g64", "--steps 0 --layer-steps 12", "layers");
  const auto before = layers.at("layer_error_before").get<std::vector<double>>(),
             after = layers.at("layer_error_after").get<std::vector<double>>();
  ASSERT_EQ(after.size(), 4u);
  EXPECT_LT(after[0], before[0]);
  for (size_t i = 0; i < after.size(); ++i) EXPECT_LE(after[i], before[i]);
  // The streams between layers predict an improvement of the whole. `eval` confirms it for the checkpoint in FP32, on
  // other text.
  EXPECT_LT(layers.at("kl_after").get<double>(), layers.at("kl_before").get<double>());
  EXPECT_LT(kl("layers"), kl("lut2g64"));
}

// The model's codebook moves with the whole and stays one for all linears of its format. Layer by layer it is left
// alone, as most of the linears that read it are not loaded then.
TEST_F(Tune, ASharedCodebookStaysOne) {
  quantize("vq8k12s4m", "start");
  const auto book = [&](const std::string& out) {
    const Safetensors file = Safetensors::open(folder_ / out + "/model.safetensors");
    std::vector<std::string> named;
    for (const std::string& name : file.names())
      if (name.find("codebook") != std::string::npos) named.push_back(name);
    EXPECT_EQ(named, std::vector<std::string>{"codebooks.vq8k12s4m"});
    const OwnedTensor tensor = file.get("codebooks.vq8k12s4m", DType::i8, {256, 8});
    const auto bytes = tensor.as<const int8_t>();
    return std::vector<int8_t>(bytes.begin(), bytes.end());
  };
  const json report = tune("start", "--layer-steps 2 --steps 40 --evaluate-every 10 --grid-rate 0.5", "tuned");
  EXPECT_LT(report.at("kl_after").get<double>(), report.at("kl_before").get<double>());
  EXPECT_LT(kl("tuned"), kl("start"));
  EXPECT_NE(book("tuned"), book("start"));
  tune("start", "--layer-steps 4 --steps 0", "layers");
  EXPECT_EQ(book("layers"), book("start"));
  EXPECT_NE(hash("layers"), hash("start"));
}

// The same seed gives the same bytes: with one thread and two, and in a run that is killed at ten random moments. Codes
// of vectors and a shared codebook are part of the state from which it continues.
TEST_F(Tune, KilledRunsEndWithTheSameBytes) {
  for (const std::string format : {"int2g64zs8", "vq8k12s4m"}) {
    const std::string start = "start-" + format, whole = "whole-" + format, killed = "killed-" + format;
    quantize(format, start);
    const std::string options =
        "--layer-steps 2 --steps 6 --evaluate-every 1 --patience 1 --save-seconds 0 --code-rate 0.05";
    tune(start, options, whole);
    tune(start, options + " --threads 1", "alone-" + format);
    EXPECT_EQ(hash(whole), hash("alone-" + format));
    // Some runs end before anything is kept, some between two states, and one perhaps while a state is written. The
    // moments are counted in states and not in seconds, whose number depends on other work on the machine.
    // It is not "fidelio", a function of the shell.
    const std::string again = "'" FIDELIO_PROGRAM "'" + tuning(start, options, killed).substr(7);
    Rng rng(1);
    int kills = 0;
    for (int i = 0; i < 10 && !std::filesystem::exists(folder_ / killed); ++i)
      kills +=
          run_command(folder_.path(),
                      fmt::format("({} > /dev/null & pid=$!; seen() {{ stat -c %i.%y {}.tuning 2> /dev/null; }}; "
                                  "for i in $(seq {}); do was=$(seen); while [ \"$(seen)\" = \"$was\" ] && kill -0 "
                                  "$pid 2> /dev/null; do sleep 0.002; done; done; sleep {:.3f}; "
                                  "kill -KILL $pid; wait $pid)",
                                  again, killed, rng.below(3), 0.05 * rng.uniform()))
              .code == 128 + SIGKILL;
    EXPECT_GE(kills, 5);
    if (!std::filesystem::exists(folder_ / killed)) run(tuning(start, options, killed));
    EXPECT_EQ(hash(killed), hash(whole)) << format;
    EXPECT_FALSE(std::filesystem::exists(folder_ / (killed + ".tuning")));
  }
}

// Two ranks share both stages, the measurements and the samples of the source, and give the same bytes as one. So do
// three, where one of them is killed and the run continues.
TEST_F(Tune, RanksGiveTheSameBytes) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "SKIPPED: no mpirun here, so that tuning by several ranks gives the bytes of one is NOT tested";
  quantize("lut2g64", "start");
  const std::string options = "--layer-steps 2 --steps 4 --evaluate-every 2 --save-seconds 0";
  const std::string four = "--calibration-samples 2048 --rows 128 ",
                    two = "--calibration-samples 0 --rows 256 ";  // These are slices.
  const json report = json::parse(run(tuning("start", options, "one", four)).out);
  // Leaks inside MPI are not for this test to find. A rank writes its process id to a file, so it can be killed.
  const auto ranked = [&](int ranks, const std::string& sizes, const std::string& out,
                          const std::string& model = "start") {
    return fmt::format(
        "env ASAN_OPTIONS=detect_leaks=0 mpirun --allow-run-as-root --oversubscribe -np {} "
        "sh -c 'echo $$ > pid.$OMPI_COMM_WORLD_RANK; exec \"{}\"{}'",
        ranks, FIDELIO_PROGRAM, tuning(model, options + " --threads 1", out, sizes).substr(7));
  };
  const json shared = json::parse(run(ranked(2, four, "two")).out);  // There is one report, from the first rank.
  EXPECT_EQ(hash("one"), hash("two"));
  EXPECT_EQ(shared.at("evaluations"), report.at("evaluations"));
  EXPECT_EQ(shared.at("layer_error_after"), report.at("layer_error_after"));
  run_command(folder_.path(), "(" + ranked(3, four, "three") +
                                  " > /dev/null & pid=$!; until [ -e three.tuning ] || ! kill -0 $pid 2> /dev/null; do "
                                  "sleep 0.01; done; kill -9 $(cat pid.1); wait $pid)");
  ASSERT_TRUE(std::filesystem::exists(folder_ / "three.tuning"));
  EXPECT_TRUE(json::parse(run(ranked(3, four, "three")).out).at("resumed").get<bool>());
  EXPECT_EQ(hash("one"), hash("three"));
  // For a shared codebook every rank changes its own copy by the same sums.
  quantize("vq8k12s4m", "vectors");
  run(tuning("vectors", options, "vectors-one", four)), run(ranked(2, four, "vectors-two", "vectors"));
  EXPECT_EQ(hash("vectors-one"), hash("vectors-two"));
  // There are more ranks than slices. All ranks report it, and none waits for another.
  EXPECT_NE(run_command(folder_.path(), "timeout 120 " + ranked(3, two, "none")).code, 124);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
}

// The run is killed when the last layer's state exists and no step of the whole has been made. The second stage begins
// with moments of zero all the same.
TEST_F(Tune, AKillBetweenTheStagesChangesNothing) {
  quantize("int2g64zs8", "start");
  tune("start", "--layer-steps 2 --steps 3 --save-seconds 0", "whole");
  // States are kept at the end of the last layer only. Then the run is ended during the first step or after it.
  const std::string again =
      "'" FIDELIO_PROGRAM "'" + tuning("start", "--layer-steps 2 --steps 3 --save-seconds 10000", "killed").substr(7);
  run_command(folder_.path(),
              "(" + again +
                  " > /dev/null & pid=$!; until [ -e killed.tuning ] || ! kill -0 $pid 2> /dev/null; do "
                  "sleep 0.01; done; kill -9 $pid)");
  ASSERT_TRUE(std::filesystem::exists(folder_ / "killed.tuning"));
  run(tuning("start", "--layer-steps 2 --steps 3 --save-seconds 10000", "killed"));
  EXPECT_EQ(hash("killed"), hash("whole"));
}

// Rounds give the same as runs one after the other with the rates of the rounds. So does a run that was killed between
// two rounds. Rounds of another run are refused.
TEST_F(Tune, RoundsAreRunsOneAfterTheOther) {
  quantize("int3g64zs8", "start");
  const auto tensors = [&](const std::string& out) {
    const Safetensors file = Safetensors::open(folder_ / out + "/model.safetensors");
    std::map<std::string, std::string> hashes;
    for (const std::string& name : file.names()) {
      const OwnedTensor tensor = file.get(name);
      Sha256 hash;
      hash.update({tensor.view.data, static_cast<size_t>(tensor.view.bytes())});
      hashes[name] = hash.hex();
    }
    return hashes;
  };
  const std::string rates = " --code-rate 0.05 --scale-rate 0.001";
  const json one = tune("start", "--layer-steps 1 --steps 4" + rates, "one"),
             two = tune("one", "--steps 4 --code-rate 0.03 --scale-rate 0.001", "two"),
             three = tune("two", "--steps 2 --code-rate 0 --scale-rate 0.0006", "three");
  const std::string rounds = "--layer-steps 1 --steps 4 --rounds 2 --settle-steps 2" + rates;
  const json all = tune("start", rounds, "rounds");
  ASSERT_EQ(all["rounds"].size(), 3u);
  EXPECT_EQ(all["kl_before"], one["kl_before"]);
  EXPECT_EQ(all["kl_after"], three["kl_after"]);
  EXPECT_EQ(all["rounds"][1]["evaluations"], two["evaluations"]);
  EXPECT_EQ(all["codes_moved"], 0);  // This is about the last round.
  EXPECT_EQ(tensors("rounds"), tensors("three"));
  tune("start", "--steps 2 --rounds 2 --keep-embedding --keep-dense", "kept");
  auto kept = tensors("kept");
  EXPECT_NE(kept, tensors("start"));
  for (const auto& [name, hash] : tensors("start")) {
    const bool left = name.find("embed") != std::string::npos || name.find("norm") != std::string::npos;
    EXPECT_TRUE(!left || kept[name] == hash) << name;
  }
  const std::string again = "'" FIDELIO_PROGRAM "'" + tuning("start", rounds, "killed").substr(7);
  run_command(folder_.path(),
              "(" + again +
                  " > /dev/null & pid=$!; until [ -e killed.round-1 ] || ! kill -0 $pid 2> /dev/null; do "
                  "sleep 0.01; done; kill -9 $pid)");
  ASSERT_TRUE(std::filesystem::exists(folder_ / "killed.round-1"));
  EXPECT_NE(run_command(folder_.path(), tuning("start", "--steps 5 --rounds 2", "killed")).code, 0);
  tune("start", rounds, "killed");
  EXPECT_EQ(hash("killed"), hash("rounds"));
  for (const std::string& name : entries(folder_.path())) EXPECT_EQ(name.find("killed."), std::string::npos) << name;
}

// Files beside the output during the run have proper names where the output's name ends with a slash. An output that
// could not be written in the end is reported first.
TEST_F(Tune, NamesBesideTheOutputAreThere) {
  quantize("int3g64zs8", "start");
  tune("start", "--steps 2 --rounds 2 --save-seconds 0", "tuned/");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "tuned/config.json"));
  for (const std::string option : {"--state nowhere/x", "--state models", "--samples-file nowhere/x"}) {
    const CommandResult refused = run_command(folder_.path(),
                                              "fidelio tune start --reference models/quill-1m --calibration "
                                              "models/data/docs-calibration.txt --steps 2 -o more " +
                                                  option);
    EXPECT_EQ(refused.code, 1) << option;
    EXPECT_THAT(refused.err, testing::HasSubstr("cannot write " + option.substr(option.find(' ') + 1)));
    EXPECT_THAT(refused.err, testing::Not(testing::HasSubstr("tuning on")));
  }
}

// Nothing is promised about a state that does not exist yet.
TEST_F(Tune, AnInterruptSaysWhereTheNextRunGoesOn) {
  quantize("int3g64zs8", "start");
  run_command(folder_.path(),
              "'" FIDELIO_PROGRAM
              "' tune start --reference models/quill-1m --calibration models/data/docs-calibration.txt "
              "--calibration-tokens 16384 --held-tokens 2048 --context 128 --calibration-samples 0 --layer-steps 0 "
              "--steps 100000 --save-seconds 100000 -o out > said 2>&1 & pid=$!; "
              "until grep -q untuned said || ! kill -0 $pid; do sleep 0.1; done; kill -TERM $pid; wait $pid");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.tuning"));
  EXPECT_THAT(read_text_file(folder_ / "said"),
              testing::HasSubstr("goes on from out.tuning, where that is: it is written every 100000 seconds"));
}

// The rates are far too high. The run reports it and keeps the weights of the start.
TEST_F(Tune, ADivergingRunKeepsTheBest) {
  quantize("int4g64zs8", "start");
  const json report =
      tune("start", "--steps 40 --evaluate-every 4 --code-rate 2 --scale-rate 5 --dense-rate 5", "wild");
  EXPECT_TRUE(report.at("diverged").get<bool>());
  EXPECT_LT(report.at("steps").get<int>(), 40);
  EXPECT_LE(report.at("kl_after").get<double>(), report.at("kl_before").get<double>());
  EXPECT_LE(kl("wild"), 1.05 * kl("start"));
}

// Nothing moves, so no measurement is better than the first. The rate is a cosine of 38 steps after step 2. At step 2
// the run has the full rate and continues at 21, where half is left. At step 4 it is at 23 and continues at 29, at 6 it
// is at 31 and continues at 34, and at 8 it is at 36, where less than 6% is left, and ends.
TEST_F(Tune, RatesAreHalvedWhereNothingBetterComes) {
  quantize("int4g64zs8", "start");
  const json report = tune("start",
                           "--steps 40 --evaluate-every 1 --patience 2 --code-rate 0 --scale-rate 0 --zero-rate 0 "
                           "--dense-rate 0",
                           "still");
  EXPECT_TRUE(report.at("stopped_early").get<bool>());
  EXPECT_EQ(report.at("steps").get<int>(), 8);
  EXPECT_EQ(report.at("skipped").get<int>(), 19 + 6 + 3);
  EXPECT_EQ(report.at("kl_after").get<double>(), report.at("kl_before").get<double>());
}

// `compress --tune` tunes plans before they are measured. They are certified like others on text that was not
// used in tuning, and are not a byte larger; for a target, the result needs no more bytes.
TEST_F(Tune, CompressTunesItsPlans) {
  const auto compress = [&](const std::string& options, const std::string& out) {
    return json::parse(
        run("fidelio compress models/quill-1m --formats int3g64zs8,int4g64zs8 --calibration "
            "models/data/docs-calibration.txt --calibration-tokens 8192 --search-tokens 1024 --context 128 "
            "--certificate-windows 60 --text models/data/docs-heldout.txt " +
            options + " -o " + out + " --json - 2>/dev/null")
            .out);
  };
  const std::string tuned = " --tune --tune-tokens 16384 --tune-samples 0 ";
  const json plain = compress("--bits 5.2", "plain"),
             by_size = compress("--bits 5.2" + tuned + "--tune-steps 12 --tune-windows 4", "by-size");
  const auto kl = [](const json& report) { return report.at("certificate").at("kl").at("value").get<double>(); };
  EXPECT_LT(kl(by_size), kl(plain));
  EXPECT_LE(by_size.at("bits_per_parameter").get<double>(), 5.2);
  const std::string target =
      fmt::format("--kl {}", 0.9 * kl(plain));  // Several plans are tuned on the way to a target.
  compress(target, "without"), compress(target + tuned + "--tune-steps 6 --tune-windows 2", "with");
  const auto tensor_bytes = [&](const std::string& out) {  // The header, which says how it was tuned, is left out.
    const std::string path = folder_ / out + "/model.safetensors";
    uint64_t header = 0;
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
    return std::filesystem::file_size(path) - header;
  };
  EXPECT_LE(tensor_bytes("with"), tensor_bytes("without"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "with.journal"));
  EXPECT_NE(run_command(folder_.path(),
                        "fidelio compress models/quill-1m --tune --bits 5 --calibration "
                        "models/data/docs-heldout.txt --text models/data/docs-heldout.txt -o same")
                .code,
            0);
}

// Samples that the source wrote are read again instead of being written again, however many tokens there are. Samples
// of another seed, of another file, and with invalid tokens are refused.
TEST_F(Tune, SamplesAreKept) {
  quantize("int3g64zs8", "start");
  const std::string sizes = "--calibration-samples 1024 --rows 256 --samples-file own.safetensors ",
                    path = folder_ / "own.safetensors";
  const auto same = [&](const std::string& out) { return tuning("start", "--steps 2", out, sizes); };
  run(same("first"));
  const std::string written = sha256_hex(read_text_file(path));
  run(same("second"));
  EXPECT_EQ(hash("first"), hash("second"));
  EXPECT_EQ(written, sha256_hex(read_text_file(path)));

  const auto refused = [&](const std::string& command, const std::string& why) {
    const CommandResult result = run_command(folder_.path(), command.substr(0, command.find(" --json")) + " 2>&1");
    EXPECT_NE(result.code, 0);
    EXPECT_THAT(result.out, testing::HasSubstr(why));
  };
  refused(tuning("start", "--steps 2 --seed 9", "other", sizes), "samples of another model, text or seed");
  // One token has become another.
  const std::string whole = read_text_file(path);
  std::string other = whole;
  other[other.size() - 4] = static_cast<char>(other[other.size() - 4] ^ 1);
  write_file_atomically(path, other);
  refused(same("third"), "is damaged (its SHA-256 differs)");
  write_file_atomically(path, whole);
  std::map<std::string, std::string> about = Safetensors::open(path).metadata();
  about.erase("sha256");  // An earlier fidelio wrote them without it.
  const auto rewrite = [&](int64_t tokens, int32_t id, int64_t each) {
    OwnedTensor ids = OwnedTensor::allocate(DType::i32, Shape{tokens}),
                ends = OwnedTensor::allocate(DType::i64, Shape{tokens / 128});
    std::fill_n(ids.as<int32_t>().begin(), tokens, id);
    for (int64_t i = 0; i < tokens / 128; ++i) ends.as<int64_t>()[static_cast<size_t>(i)] = (i + 1) * each;
    write_safetensors(path, {to_write("ends", std::move(ends)), to_write("tokens", std::move(ids))}, about);
  };
  rewrite(1024, 1 << 20, 128);
  refused(same("third"), "token 1048576 of");
  rewrite(1024, 5, 129);
  refused(same("third"), "a sample ends at 1032 of 1024 tokens");
  rewrite(1024, 5, 127);
  refused(same("third"), "samples end at 1016 of 1024 tokens");
  std::filesystem::copy_file(folder_ / "start/model.safetensors", path,
                             std::filesystem::copy_options::overwrite_existing);
  refused(same("third"), "holds no samples");
  rewrite(int64_t{12} << 20, 5, 128);  // It is three times the default of a GPU.
  run(same("many"));
}

// After a bit flip in a state (in a weight, a moment or the best model so far) the run does not continue from it. A
// file that the user named is refused, and one with a name of ours is put aside.
TEST_F(Tune, ADamagedStateIsNotGoneOnFrom) {
  quantize("int3g64zs8", "start");
  const std::string command = tuning("start", "--steps 400 --save-seconds 0 --evaluate-every 2", "out"),
                    // The command names the program and not "fidelio", a function of the shell.
      killed = "'" FIDELIO_PROGRAM "'" + command.substr(7);
  run_command(folder_.path(), "(" + killed +
                                  " > /dev/null & pid=$!; until [ -e out.tuning ] || ! kill -0 $pid 2> /dev/null; do "
                                  "sleep 0.01; done; kill -9 $pid; wait $pid)");
  const std::string path = folder_ / "out.tuning", whole = read_text_file(path);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), sizeof header);
  for (const size_t at : {sizeof header + header + 2, whole.find("mean_norm") + 14, whole.size() - 1}) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    write_file_atomically(path, changed);
    const std::string named = command.substr(0, command.find(" --json")) + " --state out.tuning 2>&1";
    const CommandResult result = run_command(folder_.path(), named);
    EXPECT_EQ(result.code, 1) << at;
    EXPECT_THAT(result.out, testing::HasSubstr("out.tuning is damaged")) << at;
  }
  const std::string damaged = read_text_file(path);
  write_file_atomically(folder_ / "few.tuning", damaged);
  const std::string few = tuning("start", "--steps 2", "few");
  const CommandResult anew = run_command(folder_.path(), few.substr(0, few.find(" --json")) + " 2>&1");
  EXPECT_EQ(anew.code, 0) << anew.out;
  EXPECT_THAT(anew.out,
              testing::HasSubstr("few.tuning is damaged (its SHA-256 differs): it is now few.tuning.damaged"));
  EXPECT_EQ(read_text_file(folder_ / "few.tuning.damaged"), damaged);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "few.tuning"));
  write_file_atomically(folder_ / "few2.tuning", "dear to somebody");
  EXPECT_EQ(run_command(folder_.path(), tuning("start", "--steps 2", "few2")).code, 1);
  EXPECT_EQ(read_text_file(folder_ / "few2.tuning"), "dear to somebody");
  // A round was damaged afterwards.
  run(tuning("start", "--steps 2 --rounds 2", "whole"));
  std::filesystem::copy(folder_ / "few", folder_ / "rounds.round-1");
  // Rounds have no card, and another file would stop it.
  std::filesystem::remove(folder_ / "rounds.round-1/README.md");
  write_file_atomically(folder_ / "rounds.round-1/model.safetensors", damaged);
  run(tuning("start", "--steps 2 --rounds 2", "rounds"));
  EXPECT_EQ(read_text_file(folder_ / "rounds/model.safetensors"), read_text_file(folder_ / "whole/model.safetensors"));
  EXPECT_EQ(read_text_file(folder_ / "rounds.round-1.damaged/model.safetensors"), damaged);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "rounds.round-1"));
}

// A state of another job is refused, with the differences.
TEST_F(Tune, AStateOfAnotherRunIsRefused) {
  quantize("int4g64zs8", "start");
  write_file_atomically(folder_ / "broken", "no safetensors");
  EXPECT_NE(run_command(folder_.path(), tuning("start", "--steps 2 --state broken", "out")).code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  // The shape is another one.
  EXPECT_NE(run_command(folder_.path(), tuning("models/quill-26m", "--steps 2", "out")).code, 0);
}

}  // namespace
}  // namespace fidelio
