// These tests run what a new user meets in the first hour: typing errors, defaults, pipes, a chat, the installation.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include "models.h"

namespace fidelio {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

const std::string kModel = "'" + source_path("models/quill-1m") + "'",
                  kTalker = "'" + source_path("models/quill-26m") + "'";

CommandResult run(const TestFolder& folder, const std::string& command) {
  CommandResult result = run_command(folder.path(), command);
  EXPECT_EQ(result.code, 0) << command << "\n" << result.err;
  return result;
}
json report(const TestFolder& folder, const std::string& command) {
  return json::parse(run(folder, command + " --json - 2>/dev/null").out);
}

TEST(FirstHour, TheVersionSaysWhatWasBuilt) {
  const TestFolder folder;
  EXPECT_THAT(run(folder, "fidelio --version").out,
              MatchesRegex("fidelio [0-9.]+, commit [0-9a-f]+\\+?, cpu [a-z0-9]+, with(out)? CUDA\n"));
}

// A user who considers a download has config.json first. Sizes computed from it are those of the files, except for
// their headers.
TEST(FirstHour, ADryRunOfAConfigAloneTellsSizes) {
  const TestFolder folder;
  const std::string source = source_path("models/quill-1m");
  std::filesystem::create_directory(folder.path() + "/config-alone");
  std::filesystem::copy(source + "/config.json", folder.path() + "/config-alone");
  const std::string dry = "fidelio compress config-alone --dry-run --formats int6g64zs8,int8g64zs8 -o out ";
  const json sizes = report(folder, dry + "--ear 0.98");
  ASSERT_EQ(sizes["sizes"].size(), 3);
  const auto near = [&](int64_t row, const std::string& file) {
    const auto real = static_cast<int64_t>(std::filesystem::file_size(file));
    EXPECT_LT(row, real);
    EXPECT_LT(real - row, 64'000) << file;  // The difference is the header.
  };
  near(sizes["sizes"][0]["bytes"], source + "/model.safetensors");
  const auto format = sizes["sizes"][2]["format"].get<std::string>();
  run(folder, "fidelio quantize " + kModel + " --method rtn --format " + format + " --embedding " + format + " -o q");
  near(sizes["sizes"][2]["bytes"], folder.path() + "/q/model.safetensors");
  // The run with weights predicts the same for as many tokens.
  const json whole =
      report(folder, "fidelio compress " + kModel + " --dry-run --formats int6g64zs8,int8g64zs8 -o out --ear 0.98");
  EXPECT_EQ(sizes["disk_bytes"], whole["disk_bytes"]);
  EXPECT_EQ(sizes["memory"]["parts"][1], whole["memory"]["parts"][1]) << "weights of the reference";
  EXPECT_THAT(run(folder, dry + "--ear 0.98").out,
              AllOf(HasSubstr("Not known without the weights"), HasSubstr("A tokenizer is not there")));
  EXPECT_THAT(run(folder, dry + "--bits 2").out, HasSubstr("No plan of these formats fits"));
  // Without --dry-run the missing weights are reported. The sizes of codes are only in their files.
  EXPECT_THAT(run_command(folder.path(), "fidelio compress config-alone --ear 0.98 -o out").err,
              HasSubstr("its weights are missing"));
  json config = json::parse(read_text_file(folder.path() + "/config-alone/config.json"));
  config["quantization_config"] = {{"quant_method", "gptq"}};
  write_file_atomically(folder.path() + "/config-alone/config.json", config.dump());
  EXPECT_THAT(run_command(folder.path(), dry + "--ear 0.98").err, HasSubstr("says that they are quantised"));
}

// "-" is standard output elsewhere; here it once became a folder or file of that name.
TEST(FirstHour, NothingIsCalledDash) {
  const TestFolder folder;
  write_file_atomically(folder.path() + "/ids.json", "[1]");
  for (const std::string& verb :
       {"quantize --method rtn --format int4g32 " + kModel, "compress " + kModel + " --ear 0.9,0.95",
        "tune --calibration ids.json --reference " + kModel + " " + kModel, "export --to gptq " + kModel,
        "export --to gguf " + kModel, std::string("synth tinyllama-1.1b"), "samples " + kModel,
        "logits --ids ids.json " + kModel}) {
    EXPECT_THAT(run_command(folder.path(), "fidelio " + verb + " -o ''").err, HasSubstr("-o: expected the name"))
        << verb;
    const CommandResult result = run_command(folder.path(), "fidelio " + verb + " -o -");
    EXPECT_EQ(result.code, 1) << verb;
    EXPECT_THAT(result.err, HasSubstr("-o -: expected the name")) << verb;
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/-")) << verb;
  }
}

TEST(FirstHour, SlipsOfThePenAreUnderstood) {
  const TestFolder folder;
  const std::map<std::string, std::string> cases = {
      {"fidelio quantise m", "did you mean quantize?"},
      {"fidelio compres m", "did you mean compress?"},
      {"fidelio run m", "did you mean chat?"},
      {"fidelio Inspect m", "did you mean inspect?"},
      {"fidelio perplexity m", "did you mean eval?"},
      {"fidelio frobnicate m", "there are compress, certify"},
      {"fidelio eval " + kModel + " --contxt 12", "eval has no option --contxt; did you mean --context?"},
      {"fidelio bench model " + kModel + " --repetition 1", "did you mean --repetitions?"},
      {"fidelio compress " + kModel + " --ear 99 -o out", "did you mean 0.99?"},
      {"fidelio inspect " + kModel + " more", "inspect takes no further argument: \"more\""},
      {"fidelio draft --kinds 4 " + kModel + " --dry-run", "MODEL is required; --kinds took all 2 words behind it"},
      {"fidelio bench", "bench needs one of model, linear"},
      {"fidelio bench modle", "There is no bench modle; did you mean model?"},
      {"fidelio help compres", "There is no verb \"compres\"; did you mean compress?"},
      {"fidelio help bench modle", "`fidelio help bench` lists what there is"},
      {"fidelio inspect Qwen/Qwen3-0.6B", "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"}};
  for (const auto& [command, words] : cases) {
    const CommandResult result = run_command(folder.path(), command);
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_THAT(result.err, HasSubstr(words)) << command;
  }
}

TEST(FirstHour, FormatsOfOtherProgramsAreExplained) {
  const TestFolder folder;
  const std::map<std::string, std::string> cases = {{"Q4_K_M", "int4g32zs8"},
                                                    {"q8_0", "int8g32zs8"},
                                                    {"IQ3_XXS", "lut3g64"},
                                                    {"int4", "int4g64zs8"},
                                                    {"4bit", "int4g128z"},
                                                    {"W4A16", "int4g128"},
                                                    {"w8a8", "--activations a8"},
                                                    {"nf4", "lut4g64"},
                                                    {"MXFP4", "small letters, mxfp4"},
                                                    {"awq", "int4g128z"},
                                                    {"fp16", "f16"},
                                                    {"int4g100z", "16, 32, 64 or 128"},
                                                    {"int9g128", "2 to 8"},
                                                    {"nonsense", "A format is one of"}};
  for (const auto& [format, words] : cases) {
    const CommandResult result =
        run_command(folder.path(), "fidelio quantize " + kModel + " --method rtn --format " + format + " -o out");
    EXPECT_EQ(result.code, 1) << format;
    EXPECT_THAT(result.err, HasSubstr(words)) << format;
  }
}

// The first try of an unknown model takes seconds, and its last words say how to get the better one.
TEST(FirstHour, QuantizeRoundsUnlessItIsAskedToCalibrate) {
  const TestFolder folder;
  const std::string quantize = "fidelio quantize " + kModel + " --format int4g64zs8 ";
  const auto method = [&](const std::string& model) {
    return report(folder, "fidelio inspect " + model)["provenance"]["method"].get<std::string>();
  };
  const CommandResult rounded = run(folder, quantize + "-o rounded");
  EXPECT_EQ(method("rounded"), "rtn");
  EXPECT_THAT(rounded.out, HasSubstr("Weights are rounded to nearest"));
  EXPECT_THAT(rounded.out, HasSubstr("--method gptq"));
  for (const std::string option : {"--method gptq --calibration-tokens 1024", "--calibration-tokens 1024"}) {
    const CommandResult calibrated = run(folder, quantize + option + " -o calibrated");
    EXPECT_EQ(method("calibrated"), "gptq") << option;
    EXPECT_THAT(calibrated.out, testing::ContainsRegex("Calibrating on [0-9]+ tokens takes about [0-9]+ (s|min) here"));
    EXPECT_THAT(calibrated.out, Not(HasSubstr("rounded to nearest")));
    EXPECT_FALSE(std::filesystem::exists(folder / "calibrated.journal"));
    std::filesystem::remove_all(folder / "calibrated");
  }
}

TEST(FirstHour, QuantizeNeedsNoMoreThanAFormat) {
  const TestFolder folder;
  const CommandResult plain = run(
      folder, "fidelio quantize " + kModel + " --format int4g64zs8 --calibration-tokens 2048 -o all --json all.json");
  EXPECT_THAT(plain.out, HasSubstr("int8g32 (--embedding FORMAT for another, --keep-embedding to leave them)"));
  EXPECT_EQ(json::parse(read_text_file(folder / "all.json"))["embedding"], "int8g32");
  const CommandResult kept =
      run(folder, "fidelio quantize " + kModel + " --format int4g64zs8 --method rtn --keep-embedding -o linears");
  EXPECT_THAT(kept.out, HasSubstr("left as they are"));
  const auto format = [&](const std::string& model) {
    const json inspected = report(folder, "fidelio inspect " + model);
    for (const json& tensor : inspected["tensors"])
      if (tensor["name"] == "embedding") return tensor["format"].get<std::string>();
    return std::string();
  };
  EXPECT_EQ(format("all"), "int8g32");
  EXPECT_EQ(format("linears"), "bf16");
  EXPECT_THAT(run_command(folder.path(),
                          "fidelio quantize " + kModel + " --format int4g64 --keep-embedding --embedding int8g64 -o x")
                  .err,
              HasSubstr("leave out --embedding"));
}

TEST(FirstHour, ProgressIsWhatWasAskedFor) {
  const TestFolder folder;
  const std::string quantize = "fidelio quantize " + kModel + " --format int4g64zs8 --method rtn -o ";
  EXPECT_EQ(run(folder, quantize + "none --progress none").err, "");
  const std::string lines = run(folder, quantize + "lines --progress json").err;
  std::istringstream text(lines);
  int stages = 0;
  double fraction = 0;
  for (std::string line; std::getline(text, line);) {
    const json object = json::parse(line);
    EXPECT_EQ(object["schema"], 1);
    EXPECT_EQ(object["task"], "quantize");
    EXPECT_GE(object["fraction"].get<double>(), fraction);
    fraction = object["fraction"];
    stages = std::max(stages, object["stage_number"].get<int>());
  }
  EXPECT_EQ(fraction, 1);
  EXPECT_EQ(stages, 2);
  EXPECT_EQ(run_command(folder.path(), quantize + "x --progress loud").code, 2);
}

TEST(FirstHour, GenerateTakesAPipeAndStops) {
  const TestFolder folder;
  const std::string ask = "fidelio generate " + kTalker + " --chat -n 40";
  const std::string question = "'What is 3 + 4?'";
  const json given = report(folder, ask + " -p " + question);
  EXPECT_EQ(report(folder, "printf %s " + question + " | " + ask)["ids"], given["ids"]);
  EXPECT_EQ(report(folder, "printf %s " + question + " | " + ask + " -p -")["ids"], given["ids"]);
  // The text printed piece by piece ends before the stop string, wherever tokens cut it.
  const std::string whole = given["text"];
  ASSERT_GT(whole.size(), 8u);
  const std::string stop = whole.substr(whole.size() / 2, 3);
  const std::string cut = whole.substr(0, whole.find(stop));
  EXPECT_EQ(run(folder, ask + " -p " + question + " --stop '" + stop + "'").out, cut + "\n");
  EXPECT_EQ(report(folder, ask + " -p " + question + " --stop '" + stop + "'")["text"], cut);
  EXPECT_LE(report(folder, "fidelio generate " + kModel + " -p The -n 3")["ids"].size(), 3u);
  // An option that may be repeated leaves the word after its value to be the model.
  EXPECT_EQ(
      report(folder, "fidelio generate --chat -n 40 -p " + question + " --stop '" + stop + "' " + kTalker)["text"],
      cut);
  const CommandResult unread = run_command(folder.path(), ask + " < .");
  EXPECT_EQ(unread.code, 1);
  EXPECT_THAT(unread.err, HasSubstr("cannot read the prompt from standard input: Is a directory"));
}

// A chat model often has nothing to add to a bare question, and the user once saw nothing at all.
TEST(FirstHour, AnEmptyAnswerPointsToTheChatTemplate) {
  const TestFolder folder;
  const auto err = [&](const std::string& options) {
    return run(folder, "fidelio generate " + kTalker + " --temperature 0 -n 4 " + options).err;
  };
  EXPECT_THAT(err("-p 'What is 12 + 30?'"), HasSubstr("It has a chat template: --chat asks in it"));
  EXPECT_THAT(err("-p 'What is 12 + 30?'"), Not(HasSubstr("[")));  // It is a plain line, without clock and level.
  EXPECT_EQ(err("-p 'What is 12 + 30?' --chat"), "");
  EXPECT_EQ(err("-p 'The package'"), "");
}

// Returns the answers of a chat that prints into a pipe, a line each.
std::string answers_to(const TestFolder& folder, const std::string& typed, const std::string& options = "") {
  write_file_atomically(folder / "typed", typed);
  return run(folder, "fidelio chat " + kTalker + " -n 12 " + options + " < typed").out;
}

// A text that a person pastes or writes over several lines is one message, which the model answers once.
TEST(FirstHour, AMessageMayHaveSeveralLines) {
  const TestFolder folder;
  const auto lines = [&](const std::string& typed) {
    const std::string out = answers_to(folder, typed, "--temperature 0");
    return std::count(out.begin(), out.end(), '\n');
  };
  const auto one = lines("What is 3 + 4?\n");
  EXPECT_EQ(lines("\"\"\"\nWhat is 3 + 4?\n\"\"\"\n"), one);
  // All ways to write two lines give the same message, which differs from either line.
  const std::string quoted = answers_to(folder, "\"\"\"What is\n3 + 4?\"\"\"\n", "--temperature 0"),
                    continued = answers_to(folder, "What is\\\n3 + 4?\n", "--temperature 0"),
                    apart = answers_to(folder, "What is\n3 + 4?\n", "--temperature 0");
  EXPECT_EQ(quoted, continued);
  EXPECT_NE(quoted, apart);
}

// The recommended sampling holds, as in `serve`, unless options or --no-recommended say otherwise.
TEST(FirstHour, AChatSamplesAsTheModelRecommends) {
  const TestFolder folder;
  const json recommended = json::parse(read_text_file(source_path("models/quill-26m/generation_config.json")));
  const auto shown = [&](const std::string& options) { return answers_to(folder, "/set\n", options); };
  const auto number = [](const json& value) { return fmt::format("{:g}", value.get<double>()); };
  EXPECT_THAT(shown(""), HasSubstr("temperature " + number(recommended["temperature"]) + ","));
  EXPECT_THAT(shown(""), HasSubstr("top-p " + number(recommended["top_p"]) + ","));
  EXPECT_THAT(shown("--temperature 0.125"), HasSubstr("temperature 0.125,"));
  EXPECT_THAT(shown("--temperature 0.125"), HasSubstr("top-p " + number(recommended["top_p"]) + ","));
  EXPECT_THAT(shown("--no-recommended"), HasSubstr("temperature 0,"));
  const std::string set = answers_to(folder, "/set top-k 7\n/set top-p 3\n/set nothing 1\n/set\n");
  EXPECT_THAT(set, HasSubstr("top_p"));  // It is part of the refusal.
  EXPECT_THAT(set, HasSubstr("/set nothing: expected temperature"));
  EXPECT_THAT(set.substr(set.rfind("temperature ")), HasSubstr("top-k 7,"));
}

// Many models, and most that come from GGUF files, name their end token and recommend nothing.
TEST(FirstHour, AChatIsGreedyWhereTheModelRecommendsNothing) {
  const TestFolder folder;
  std::filesystem::copy(source_path("models/quill-26m"), folder.path() + "/silent");
  const auto shown = [&](const std::string& recommends) {
    std::filesystem::remove(folder.path() + "/silent/generation_config.json");
    write_file_atomically(folder.path() + "/silent/generation_config.json", recommends);
    return run(folder, "printf '/set\\n' | fidelio chat silent").out;
  };
  EXPECT_THAT(shown(R"({"eos_token_id": 2})"), HasSubstr("temperature 0,"));
  EXPECT_THAT(shown(R"({"do_sample": true})"), HasSubstr("temperature 1,"));
  EXPECT_THAT(shown(R"({"top_p": 0.9})"), HasSubstr("temperature 1,"));
  EXPECT_THAT(shown(R"({"do_sample": false, "temperature": 0.5})"), HasSubstr("temperature 0,"));
}

TEST(FirstHour, AnAnswerCanBeGivenAgain) {
  const TestFolder folder;
  EXPECT_THAT(answers_to(folder, "/regen\n"), HasSubstr("There is no answer to give again."));
  const std::string greedy = answers_to(folder, "What is 3 + 4?\n/regen\n", "--temperature 0");
  const std::string once = answers_to(folder, "What is 3 + 4?\n", "--temperature 0");
  EXPECT_THAT(greedy, HasSubstr("The answer will be the same"));
  EXPECT_TRUE(greedy.starts_with(once) && greedy.ends_with(once)) << greedy;
}

TEST(FirstHour, AChatHasCommands) {
  const TestFolder folder;
  const CommandResult result = run(
      folder,
      "printf '/help\\n/system Be brief.\\n/nonsense\\nWhat is 3 + 4?\\n/reset\\n/exit\\nnever\\n' | fidelio chat " +
          kTalker + " -n 30");
  for (const char* part : {"/reset", "Ctrl-C stops an answer", "The system message is set", "There is no /nonsense",
                           "A new conversation begins."})
    EXPECT_THAT(result.out, HasSubstr(part));
  EXPECT_THAT(result.out, Not(HasSubstr("\033")));  // There are no colours in a pipe.
}

// Lines may end as on Windows. A message for which a conversation has no room begins a new one, unless it would fill
// that, too.
TEST(FirstHour, AChatGoesOnWhereItsContextIsFull) {
  const TestFolder folder;
  EXPECT_EQ(run(folder, "printf '/exit\\r\\nnever\\r\\n' | fidelio chat " + kTalker).out, "");
  const CommandResult result = run(
      folder, "for words in 300 600 1200 2; do yes one | head -n $words | tr '\\n' ' '; echo; done | fidelio chat " +
                  kTalker + " -n 4");
  const size_t anew = result.out.find("a new one begins with this message."), out = result.out.find("it is left out.");
  ASSERT_NE(anew, std::string::npos) << result.out;
  ASSERT_NE(out, std::string::npos) << result.out;
  EXPECT_THAT(result.out.substr(anew), HasSubstr("The message has"));
  EXPECT_EQ(result.out.find("left out", out + 10), std::string::npos) << result.out;
}

// This runs the program at a pseudo-terminal of its own.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& words) {
    child_ = ::forkpty(&fd_, nullptr, nullptr, nullptr);
    check(child_ >= 0, "no pseudo-terminal");
    if (child_ != 0) return;
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    ::setenv("TERM", "xterm", 1);
    // The program that runs the tests may ignore them.
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
    ::execv(FIDELIO_PROGRAM, arguments.data());
    ::_exit(127);
  }
  ~Terminal() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::close(fd_);
  }
  void type(const std::string& text) {
    check(::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "cannot type");
  }
  void send(int signal) const { ::kill(child_, signal); }
  // Reads until `text` has arrived since the last call. Returns false if it has not within a minute.
  bool wait_for(const std::string& text) {
    const bool found = wait([&] { return seen_.find(text) != std::string::npos; });
    if (found) seen_.erase(0, seen_.find(text) + text.size());
    return found;
  }
  bool wait_for_more(size_t bytes) {
    return wait([&] { return seen_.size() >= bytes; });
  }
  const std::string& seen() const { return seen_; }
  int exit_code() {
    int status = 0;
    for (int i = 0; i < 100 && ::waitpid(child_, &status, WNOHANG) == 0; ++i) ::usleep(100000);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  // Reads until the condition holds, a minute has passed or there is no more to read.
  bool wait(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!holds() && std::chrono::steady_clock::now() < end) {
      pollfd ready = {fd_, POLLIN, 0};
      if (::poll(&ready, 1, 200) <= 0) continue;
      char buffer[4096];
      const ssize_t count = ::read(fd_, buffer, sizeof buffer);
      if (count <= 0) break;
      seen_.append(buffer, static_cast<size_t>(count));
    }
    return holds();
  }

  int fd_ = -1;
  pid_t child_ = -1;
  std::string seen_;
};

// These tests are skipped, and ctest says so, where there is no pseudo-terminal, as in a bare chroot without /dev/pts.
class AtATerminal : public testing::Test {
 protected:
  void SetUp() override {
    int inner = -1, outer = -1;
    if (::openpty(&outer, &inner, nullptr, nullptr, nullptr) != 0) GTEST_SKIP() << "LEFT OUT: no pseudo-terminal here";
    ::close(inner);
    ::close(outer);
  }
};

TEST_F(AtATerminal, ControlCStopsAnAnswerAndTheChatGoesOn) {
  // The base model never stops by itself, and its context takes long to fill.
  Terminal chat({"fidelio", "chat", source_path("models/quill-26m"), "-n", "900", "--temperature", "5", "--seed", "1",
                 "--threads", "1"});
  ASSERT_TRUE(chat.wait_for("/help lists the commands")) << chat.seen();
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("Tell me everything.\n");
  ASSERT_TRUE(chat.wait_for("everything.")) << chat.seen();
  // The line may be echoed twice, by the terminal and by the editor. Further text belongs to the answer; Ctrl-C before
  // it would end the chat.
  ASSERT_TRUE(chat.wait_for_more(200)) << chat.seen();
  chat.type("\003");
  ASSERT_TRUE(chat.wait_for(", stopped]")) << chat.seen();
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("/exit\n");
  EXPECT_EQ(chat.exit_code(), 0);
}

// One Ctrl-C at the prompt, perhaps a moment after an answer has ended, does not lose the conversation.
TEST_F(AtATerminal, ControlCAtThePromptEndsTheChatTheSecondTime) {
  const TestFolder folder;
  ::setenv("XDG_STATE_HOME", folder.path().c_str(), 1);
  Terminal chat({"fidelio", "chat", source_path("models/quill-26m"), "-n", "4"});
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("half a line\003");
  ASSERT_TRUE(chat.wait_for("Ctrl-C once more ends the chat")) << chat.seen();
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("Hello.\n");
  ASSERT_TRUE(chat.wait_for("tokens/s")) << chat.seen();
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("\003");
  ASSERT_TRUE(chat.wait_for("Ctrl-C once more ends the chat")) << chat.seen();
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("\003");
  EXPECT_EQ(chat.exit_code(), 0);
  // The sent line is available in the next chat.
  EXPECT_THAT(read_text_file(folder / "fidelio/chat-history"), HasSubstr("Hello."));
}

// Terminals put marks around pasted text.
TEST_F(AtATerminal, APastedTextIsOneMessage) {
  const TestFolder folder;
  ::setenv("XDG_STATE_HOME", folder.path().c_str(), 1);
  Terminal chat({"fidelio", "chat", source_path("models/quill-26m"), "-n", "4"});
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("\033[200~What is\r3 + 4?\r\033[201~");
  chat.type("\n");
  ASSERT_TRUE(chat.wait_for("tokens/s")) << chat.seen();
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("/exit\n");
  EXPECT_EQ(chat.exit_code(), 0);
  EXPECT_EQ(chat.seen().find("tokens/s"), std::string::npos) << "a second answer";
}

// A long message is read in parts, between which it may be stopped; no token has been generated then.
TEST_F(AtATerminal, ControlCStopsTheReadingOfALongMessage) {
  Terminal chat({"fidelio", "chat", source_path("models/quill-26m"), "--threads", "1", "--isa", "portable"});
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  std::string words;
  for (int i = 0; i < 900; ++i) words += "one ";
  chat.type(words + "end.\n");
  ASSERT_TRUE(chat.wait_for("end.")) << chat.seen();
  ::usleep(300000);  // The first half of it takes longer, about a second on one thread.
  chat.type("\003");
  EXPECT_TRUE(chat.wait_for("[0 tokens")) << chat.seen();
  EXPECT_TRUE(chat.wait_for(", stopped]")) << chat.seen();
  chat.type("/exit\n");
  EXPECT_EQ(chat.exit_code(), 0);
}

TEST_F(AtATerminal, AChatSaysWhatItsTemplateRefusesAndGoesOn) {
  const TestFolder folder;
  copy_model(source_path("models/quill-26m"), folder / "model");
  json config = json::parse(read_text_file(folder / "model/tokenizer_config.json"));
  config["chat_template"] =
      "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}" +
      config["chat_template"].get<std::string>();
  write_file_atomically(folder / "model/tokenizer_config.json", config.dump());
  Terminal chat({"fidelio", "chat", folder / "model", "-n", "4", "--system", "Be brief."});
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("Hello.\n");
  ASSERT_TRUE(chat.wait_for("no system messages")) << chat.seen();
  ASSERT_TRUE(chat.wait_for("> ")) << chat.seen();
  chat.type("/system\n");
  ASSERT_TRUE(chat.wait_for("a new conversation begins")) << chat.seen();
  chat.type("Hello.\n");
  ASSERT_TRUE(chat.wait_for("tokens/s")) << chat.seen();
  chat.type("/exit\n");
  EXPECT_EQ(chat.exit_code(), 0);
  // The exit status reports it where input comes from a pipe.
  EXPECT_EQ(run_command(folder.path(), "echo Hello. | fidelio chat model --system 'Be brief.'").code, 1);
}

// Finished parts are kept for the same command, which ends with the same bytes as an undisturbed run.
TEST_F(AtATerminal, AnInterruptSaysWhatIsKeptAndTheSameCommandGoesOn) {
  const TestFolder folder;
  const std::vector<std::string> words = {"fidelio",  "quantize",   source_path("models/quill-26m"),
                                          "--format", "int4g64zs8", "--calibration-tokens",
                                          "2048",     "-o",         folder / "out"};
  Terminal quantize(words);
  ASSERT_TRUE(quantize.wait_for("[1/2] quantising")) << quantize.seen();  // This is the bar.
  const auto parts = [&] {
    int64_t count = 0;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "out.journal", none))
      count += entry.path().extension() == ".safetensors";
    return count;
  };
  for (int i = 0; i < 600 && parts() < 2; ++i) ::usleep(100000);
  ASSERT_GE(parts(), 2);
  quantize.type("\003");
  EXPECT_TRUE(quantize.wait_for("the same command goes on there")) << quantize.seen();
  EXPECT_EQ(quantize.exit_code(), 128 + SIGINT);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  const std::string command = "fidelio quantize " + kTalker + " --format int4g64zs8 --calibration-tokens 2048 -o ";
  EXPECT_THAT(run_command(folder.path(), command + "out --seed 1").err,
              HasSubstr("belongs to another job: seed was 0"));
  EXPECT_THAT(run(folder, command + "out").out, HasSubstr("finished parts, which are used"));
  run(folder, command + "whole");
  EXPECT_FALSE(std::filesystem::exists(folder / "out.journal"));
  for (const std::string& name : entries(folder / "whole"))
    if (name != "README.md") {  // The card names its folder.
      EXPECT_EQ(read_text_file(folder / "out" + "/" + name), read_text_file(folder / "whole" + "/" + name)) << name;
    }
}

// Any signal may end the program, not only the keyboard's: nothing is left, and the exit status names the signal.
TEST_F(AtATerminal, EverySignalThatCanBeHeardLeavesNothing) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const TestFolder folder;
    Terminal quantize({"fidelio", "quantize", source_path("models/quill-26m"), "--format", "int4g64zs8",
                       "--calibration-tokens", "65536", "-o", folder / "out"});
    ASSERT_TRUE(quantize.wait_for("[1/2] quantising")) << quantize.seen();
    quantize.send(signal);
    EXPECT_EQ(quantize.exit_code(), 128 + signal);
    for (const std::string& name : entries(folder.path())) EXPECT_TRUE(name.starts_with("out.journal")) << name;
  }
}

TEST(FirstHour, AClosedPipeIsNoError) {
  const TestFolder folder;
  // The output is more than a pipe holds, and the reader stops after a line.
  const CommandResult result =
      run_command(folder.path(),
                  "{ fidelio inspect " + kTalker + " --json - 2>err; echo $? >code; } | head -c 10; cat err; cat code");
  EXPECT_THAT(result.out, Not(HasSubstr("pipe")));
  EXPECT_THAT(result.out, Not(HasSubstr("fidelio:")));
  const CommandResult closed = run_command(
      folder.path(), "{ sleep 0.2; for i in 1 2 3; do fidelio gamma " + kModel + " --json -; done; } | true");
  EXPECT_EQ(closed.err, "");
}

TEST(FirstHour, TheCacheOfTheHubIsExplained) {
  const TestFolder folder;
  const std::string version = "hub/models--a--b/snapshots/0123";
  std::filesystem::create_directories(folder / version);
  for (const std::string& name : entries(source_path("models/quill-1m")))
    std::filesystem::create_symlink(source_path("models/quill-1m/" + name), folder / version + "/" + name);
  const CommandResult cache = run_command(folder.path(), "fidelio inspect hub/models--a--b");
  EXPECT_EQ(cache.code, 2);
  EXPECT_THAT(cache.err, HasSubstr("give the folder of a version:\n  " + version));
  run(folder, "fidelio inspect " + version);
  EXPECT_THAT(run_command(folder.path(), "fidelio inspect ''").err, HasSubstr("expected the folder of a model"));
}

// Every verb reports a full disk at standard output, not only --json -.
TEST(FirstHour, WhatCannotBePrintedIsAnError) {
  const TestFolder folder;
  for (const std::string& command : {"fidelio inspect " + kModel, "fidelio tokenize " + kModel + " --text Hello",
                                     "fidelio generate " + kModel + " -p The -n 3", std::string("fidelio --version")}) {
    const CommandResult result = run_command(folder.path(), command + " > /dev/full");
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_THAT(result.err, HasSubstr("cannot write to standard output")) << command;
    const CommandResult unread = run_command(folder.path(), "{ sleep 0.2; " + command + "; echo $? >code; } | true");
    EXPECT_EQ(unread.err, "") << command;
    EXPECT_EQ(read_text_file(folder / "code"), "141\n") << command;
  }
}

// Files and pipes of the program do not get the numbers of streams that a shell closed; otherwise they would get what
// it prints.
TEST(FirstHour, ClosedStreamsAreNobodyElses) {
  const TestFolder folder;
  run(folder, "fidelio quantize " + kModel + " --method rtn --format int4g32 -o open");
  // The printed text is lost, which the exit status reports; the outputs are complete.
  EXPECT_EQ(
      run_command(folder.path(), "fidelio quantize " + kModel + " --method rtn --format int4g32 -o closed <&- >&- 2>&-")
          .code,
      1);
  for (const std::string& name : entries(folder / "open"))
    if (name != "README.md") {  // The card names its folder.
      EXPECT_EQ(read_text_file(folder / "open" + "/" + name), read_text_file(folder / "closed" + "/" + name)) << name;
    }
  // The output is more than the signal pipe would hold, if that had got the number of a closed stream.
  EXPECT_EQ(run_command(folder.path(), "fidelio inspect " + kModel + " <&- >&-").code, 1);
}

TEST(FirstHour, WholeNumbersAreTakenAsTheyAreWritten) {
  const TestFolder folder;
  const std::map<std::string, std::string> cases = {
      {"-n 99999999999999999999", "--max-tokens: 99999999999999999999 does not fit in 64 bits"},
      {"-n 1e3", "--max-tokens: \"1e3\" is not a whole number"},
      {"--seed -1", "--seed: \"-1\" is not a whole number from 0"},
      {"--seed 18446744073709551616", "does not fit in 64 bits"}};
  for (const auto& [option, words] : cases) {
    const CommandResult result = run_command(folder.path(), "fidelio generate " + kModel + " -p Hi " + option);
    EXPECT_EQ(result.code, 2) << option;
    EXPECT_THAT(result.err, HasSubstr(words)) << option;
  }
  // The answer may be as long as the context allows.
  const std::string longest = " -n 9223372036854775807 --threads 1";
  EXPECT_EQ(report(folder, "fidelio generate " + kModel + " -p Hi" + longest)["finish_reason"].is_string(), true);
}

TEST(FirstHour, ACertificateCanBeMeasuredOnOwnText) {
  const TestFolder folder;
  const std::string held = read_text_file(source_path("models/data/docs-heldout.txt"));
  write_file_atomically(folder / "short.txt", held.substr(0, 16000));
  write_file_atomically(folder / "own.txt", held.substr(40000, 12000));
  write_file_atomically(folder / "moved.txt", held.substr(0, 16000));
  write_file_atomically(folder / "tiny.txt", held.substr(0, 300));
  run(folder, "fidelio compress " + kModel +
                  " --calibration-tokens 2048 --search-tokens 512 --context 128 --text short.txt "
                  "--formats int4g64zs8,int6g64zs8,int8g64zs8 --bits 8 -o made");
  const std::string certify = "fidelio certify made --reference " + kModel;
  EXPECT_THAT(run(folder, certify + " --text moved.txt").out, HasSubstr("The certificate holds."));
  const CommandResult own = run(folder, certify + " --text own.txt --json own.json");
  const json report = json::parse(read_text_file(folder / "own.json"));
  const double stored = report["claimed"]["ear"]["value"], found = report["own"]["ear"]["value"];
  EXPECT_NE(stored, found);
  EXPECT_EQ(report["own"]["texts"][0]["name"], "own.txt");
  EXPECT_EQ(report["lower"],
            report["own"]["promised"]["ear"]["ci95"][0] < report["claimed"]["promised"]["ear"]["ci95"][0] ? "own"
                                                                                                          : "claimed");
  EXPECT_THAT(own.out, HasSubstr(found < stored ? "it is lower by" : "it is higher by"));
  const auto width = [](const json& e) { return e["ci95"][1].get<double>() - e["ci95"][0].get<double>(); };
  EXPECT_THAT(own.out,
              HasSubstr(width(report["own"]["ear"]) < width(report["claimed"]["ear"]) ? "its interval is narrower"
                                                                                      : "its interval is wider"));
  EXPECT_THAT(own.out, HasSubstr("your text (own.txt)"));
  EXPECT_THAT(run_command(folder.path(), certify + " --text tiny.txt").err, HasSubstr("too little to certify with"));
}

// A user who types help, or nothing, gets help: a screen of it, or all of it on request.
TEST(FirstHour, HelpIsAScreenAndMoreForTheAsking) {
  const TestFolder folder;
  const CommandResult bare = run_command(folder.path(), "fidelio");
  EXPECT_EQ(bare.code, 2);
  EXPECT_THAT(bare.err, HasSubstr("A verb is required"));
  const std::string all = run(folder, "fidelio --help").out;
  EXPECT_EQ(bare.out, all);
  EXPECT_EQ(run(folder, "fidelio help").out, all);
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  for (const std::string verb : {"compress", "quantize", "tune", "serve", "chat", "eval", "draft"}) {
    const std::string some = run(folder, "fidelio help " + verb).out,
                      whole = run(folder, "fidelio " + verb + " --help-all").out;
    EXPECT_EQ(some, run(folder, "fidelio " + verb + " --help").out);
    EXPECT_LE(lines(some), 60) << some;
    EXPECT_GT(lines(whole), lines(some)) << verb;
    EXPECT_THAT(some, HasSubstr("more options: fidelio " + verb + " --help-all"));
    EXPECT_LT(some.find("What you need first:"), some.find("Machine:")) << some;
  }
  const std::string compress = run(folder, "fidelio compress --help-all").out;
  for (const char* group : {"Target:", "Text:", "Search:", "Tuning:", "Machine:", "Output:"})
    EXPECT_THAT(compress, HasSubstr(std::string("\n") + group + "\n"));
  EXPECT_THAT(run(folder, "fidelio help bench model").out, HasSubstr("--repetitions"));
  EXPECT_THAT(run(folder, "fidelio help compress").out, HasSubstr("The model to compress"));
}

// The description of a model fits on a screen, and every matrix is listed on request.
TEST(FirstHour, InspectIsAScreen) {
  const TestFolder folder;
  run(folder, "fidelio quantize " + kModel + " --format int4g64zs8 -o made");
  const json about = report(folder, "fidelio inspect made");
  const std::string some = run(folder, "fidelio inspect made").out, all = run(folder, "fidelio inspect made --all").out;
  EXPECT_LE(std::count(some.begin(), some.end(), '\n'), 15) << some;
  std::map<std::string, int> matrices;
  for (const json& tensor : about["tensors"]) ++matrices[tensor["format"].get<std::string>()];
  for (const auto& [format, count] : matrices)
    EXPECT_THAT(some, testing::ContainsRegex(fmt::format("{} +{} ", format, count)));
  EXPECT_THAT(some, Not(HasSubstr("layers.0.q")));
  EXPECT_THAT(all, HasSubstr("layers.0.q"));
  // The bits of the file count all of it, the bits in memory only the matrices as they are held.
  int64_t held = 0;
  for (const json& tensor : about["tensors"]) held += tensor["bytes"].get<int64_t>();
  EXPECT_EQ(about["matrix_bytes"], held);
}

// Returns the verbs as --help lists them, under headings and before its examples.
std::vector<std::string> verbs_of_help(const std::string& help) {
  std::istringstream lines(help.substr(0, help.find("Examples:")));
  std::vector<std::string> verbs;
  for (std::string line; std::getline(lines, line);)
    if (line.size() > 2 && line.starts_with("  ") && line[2] >= 'a' && line[2] <= 'z')
      verbs.push_back(line.substr(2, line.find(' ', 2) - 2));
  return verbs;
}

TEST(FirstHour, HelpSaysWhatHoldsWhereNothingIsGiven) {
  const TestFolder folder;
  EXPECT_THAT(run(folder, "fidelio serve --help").out, HasSubstr("0 = a free one (default: 8000)"));
  EXPECT_THAT(run(folder, "fidelio bench model --help").out, HasSubstr("Lengths of prompts; 0 = skip (default: 512)"));
  // An option that is not given has no number, and no default is printed twice.
  EXPECT_THAT(run(folder, "fidelio compress --help").out, HasSubstr("this many bits a parameter of the whole file\n"));
  for (const std::string& verb : verbs_of_help(run(folder, "fidelio --help").out)) {
    std::istringstream lines(run(folder, "fidelio " + verb + " --help-all").out);
    for (std::string line; std::getline(lines, line);) {
      const size_t said = line.find("default");
      if (said != std::string::npos) {
        EXPECT_EQ(line.find("(default: ", said + 1), std::string::npos) << verb << ": " << line;
      }
      EXPECT_EQ(line.find("(default: [])"), std::string::npos) << verb << ": " << line;
    }
  }
}

TEST(FirstHour, BenchTakesLists) {
  const TestFolder folder;
  const json rows = report(folder, "fidelio bench model " + kModel + " " + kModel +
                                       " --pp 8,16 --tg 0,4 --mixed 0,8 --depth 0,32 --batch 1,2 --activations a16,a8 "
                                       "-r 1")["rows"];
  // These are models, modes and depths, times two prompts, and two batches of the one tg and of the one chunk.
  EXPECT_EQ(rows.size(), 2u * 2 * 2 * (2 + 2 + 2));
  const json last = rows.back();
  EXPECT_EQ(last["test"], "mixed8 x2 @ d32");
}

TEST(FirstHour, ReportsAndPagesSayWhereTheyCameFrom) {
  const TestFolder folder;
  write_file_atomically(folder / "text.txt",
                        read_text_file(source_path("models/data/docs-heldout.txt")).substr(0, 6000));
  run(folder, "fidelio noise " + kModel +
                  " --text text.txt --context 128 --levels 0.005,0.01,0.3 --report noise.html --json "
                  "noise.json");
  const std::string page = read_text_file(folder / "noise.html");
  for (const char* part : {"fit: ", "noise²", "stroke-dasharray", "--levels 0.005,0.01,0.3", "commit", " UTC;"})
    EXPECT_THAT(page, HasSubstr(part));
  // The page can be published: it has the command, and not the places of the files.
  EXPECT_THAT(page, HasSubstr("fidelio noise quill-1m --text text.txt"));
  EXPECT_THAT(page, Not(HasSubstr(source_path("models"))));
  const json report = json::parse(read_text_file(folder / "noise.json"));
  EXPECT_EQ(report["schema"], 1);
  EXPECT_TRUE(report.contains("fidelio"));
}

// Installing writes a list of its files into the build folder, which may be another user's. The list goes elsewhere
// here.
TEST(FirstHour, TheInstallationIsComplete) {
  const TestFolder folder;
  const std::string built = FIDELIO_BINARY_DIR, list = built + "/${CMAKE_INSTALL_MANIFEST}";
  std::string script = read_text_file(built + "/cmake_install.cmake");
  const size_t at = script.find(list);
  ASSERT_NE(at, script.npos);
  write_file_atomically(folder / "install.cmake", script.replace(at, list.size(), folder / "list.txt"));
  const CommandResult installed = run(
      folder, fmt::format("DESTDIR='{}' cmake -DCMAKE_INSTALL_PREFIX=/usr -P install.cmake >/dev/null", folder.path()));
  ASSERT_EQ(installed.code, 0) << installed.err;
  const std::string program = folder / "usr/bin/fidelio";
  const std::string help = run(folder, "'" + program + "' --help").out;
  const std::string manual = read_text_file(folder / "usr/share/man/man1/fidelio.1");
  const std::vector<std::string> verbs = verbs_of_help(help);
  for (const std::string& verb : verbs)
    EXPECT_THAT(manual, HasSubstr("\n.B " + verb + "\n")) << "docs/fidelio.1 lacks this verb";
  EXPECT_GE(verbs.size(), 15u);
  // The completion lists what the program lists.
  const std::string completion = folder / "usr/share/bash-completion/completions/fidelio";
  const auto complete = [&](const std::string& words, int at) {
    return run(folder,
               fmt::format("bash -c '. \"{}\"; PATH=\"{}/usr/bin:$PATH\"; COMP_WORDS=({}); COMP_CWORD={}; _fidelio; "
                           "echo \"${{COMPREPLY[@]}}\"'",
                           completion, folder.path(), words, at))
        .out;
  };
  EXPECT_EQ(complete("fidelio comp", 1), "compress compare\n");
  EXPECT_EQ(complete("fidelio bench s", 2), "sampling speculate serve\n");
  EXPECT_THAT(complete("fidelio quantize --keep", 2), HasSubstr("--keep-embedding"));
  EXPECT_THAT(read_text_file(folder / "usr/share/doc/fidelio/texts.md"), HasSubstr("PostgreSQL licence"));
  // The installed program has its texts.
  run(folder, "'" + program + "' quantize " + kModel + " --format int4g64zs8 --calibration-tokens 1024 -o out");
}

}  // namespace
}  // namespace fidelio
