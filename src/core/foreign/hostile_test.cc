// These tests feed hostile input to core: JSON, files that are not regular, text that a terminal obeys, and writers
// that die.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/file.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "core/own_files.h"
#include "core/test_support.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  return message_of_hostile(2 * text.size(), [&] { parse_json(text, "x.json"); });
}

TEST(HostileJson, NestingIsRefusedBeforeAnythingIsBuilt) {
  for (size_t depth : {101u, 40'000u, 300'000u, 10'000'000u}) {
    EXPECT_THAT(refusal(repeated("[", depth) + repeated("]", depth)), HasSubstr("x.json: the JSON is nested"));
    EXPECT_THAT(refusal(repeated("{\"a\":", depth) + "1" + repeated("}", depth)), HasSubstr("nested more than 100"));
    EXPECT_THAT(refusal(repeated("[{\"a\":", depth)), HasSubstr("nested more than 100"));
  }
  const std::string deepest = repeated("[", kMaxNesting) + repeated("]", kMaxNesting);
  EXPECT_EQ(refusal(deepest), "");
  EXPECT_EQ(parse_json(deepest, "x").dump(), deepest);
  // Brackets inside a string do not count as nesting.
  EXPECT_EQ(refusal("[\"" + repeated("[", 1000) + "\\\"" + repeated("{", 1000) + "\"]"), "");
}

TEST(HostileJson, ValuesArePaidFor) {
  EXPECT_THAT(refusal("[0" + repeated(",0", 20'000'000) + "]"), HasSubstr("more memory"));
  EXPECT_THAT(refusal("[[]" + repeated(",[]", 8'000'000) + "]"), HasSubstr("more memory"));
  EXPECT_THAT(refusal("[{}" + repeated(",{}", 8'000'000) + "]"), HasSubstr("more memory"));
  EXPECT_THAT(refusal("[\"\"" + repeated(",\"\"", 8'000'000) + "]"), HasSubstr("more memory"));
  EXPECT_THAT(refusal("\"" + std::string(40'000'000, 'a') + "\""), HasSubstr("a string of 40000000 bytes"));
  EXPECT_EQ(refusal("\"" + std::string(30'000'000, 'a') + "\""), "");
  EXPECT_EQ(refusal(std::string(20'000'000, ' ') + "1"), "");
  Meter meter("lines", kMaxWork, 1000);
  parse_json("[1,2,3]", "line 1", meter);
  EXPECT_THAT(message_of_hostile(0,
                                 [&] {
                                   while (true) parse_json("[1,2,3]", "line 2", meter);
                                 }),
              HasSubstr("lines"));
}

TEST(HostileJson, ObjectsInTheirOrderAreSearchedFromEndToEnd) {
  const auto object = [](int members) {
    std::string text = "{\"0\":0";
    for (int i = 1; i < members; ++i) text += fmt::format(",\"{}\":0", i);
    return text + "}";
  };
  const auto message = [](const std::string& text) {
    return message_of_hostile(2 * text.size(), [&] { parse_ordered_json(text, "x.json"); });
  };
  EXPECT_EQ(message(object(10'000)), "");  // Even the largest vocabularies have fewer added tokens.
  EXPECT_THAT(message(object(300'000)), HasSubstr("x.json: reading this takes more work"));
  EXPECT_THAT(message("[" + object(9'000) + "," + object(9'000) + "," + object(9'000) + "]"), HasSubstr("more work"));
  EXPECT_EQ(message("[{\"a\":0}" + repeated(",{\"a\":{\"b\":0}}", 100'000) + "]"), "");
  EXPECT_EQ(refusal(object(300'000)), "");  // Plain objects are looked up by name, so they do not pay for their order.
  for (const char* wrong : {"}:::", "]}:{\"a\":1", ":"}) EXPECT_THAT(message(wrong), HasSubstr("not valid JSON"));
}

// Every object that ends costs the same, however many members its parent already has, as in a safetensors header.
TEST(HostileJson, ManyMembersTakeTimeByTheirNumber) {
  std::string text = "{\"t\":{}";
  for (int i = 0; i < 200'000; ++i) text += fmt::format(",\"t{}\":{{\"shape\":[1],\"at\":{{}}}}", i);
  text += "}";
  EXPECT_EQ(message_of_hostile(2 * text.size(), [&] { parse_unique_json(text, "x"); }), "");
  EXPECT_EQ(message_of_hostile(2 * text.size(), [&] { parse_json(text, "x"); }), "");
  text.insert(text.size() - 1, ",\"t7\":0");
  EXPECT_THAT(message_of_hostile(2 * text.size(), [&] { parse_unique_json(text, "x"); }),
              HasSubstr("\"t7\" stands twice"));
  for (const char* wrong : {"{", "{\"a\"", "{\"a\":}", "{}}", "{\"a\":1e999}", ""})
    EXPECT_THAT(message_of_hostile(0, [&] { parse_unique_json(wrong, "x"); }), HasSubstr("x: not valid JSON")) << wrong;
  EXPECT_THAT(message_of_hostile(0, [] { parse_unique_json("[{}]", "x"); }), HasSubstr("expected a JSON object"));
}

TEST(HostileJson, MessagesShowTheTextAndNothingElse) {
  const std::string shown = refusal("{\"a\": \"\x1b]0;owned\x07" + std::string(100'000, 'x'));
  EXPECT_THAT(shown, HasSubstr("x.json: not valid JSON"));
  EXPECT_LT(shown.size(), 1000u);
  for (char c : shown) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  EXPECT_THAT(refusal("nope"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of_hostile(0, [] { parse_unique_json("{\"a\":1,\"b\":{\"c\":1,\"c\":2}}", "x"); }),
              HasSubstr("\"c\" stands twice"));
}

TEST(ForeignText, NothingATerminalObeysIsLeft) {
  EXPECT_EQ(visible("plain, \xC3\xBC, \xE6\x97\xA5, \xF0\x9F\x98\x80"),
            "plain, \xC3\xBC, \xE6\x97\xA5, \xF0\x9F\x98\x80");
  EXPECT_EQ(visible("\x1b[2J\x1b]0;title\x07"), "\\x1b[2J\\x1b]0;title\\x07");
  EXPECT_EQ(visible("a\nb\tc\rd"), "a\\nb\\tc\\x0dd");
  EXPECT_EQ(visible("a\nb\tc\rd", Lines::kept), "a\nb\tc\\x0dd");
  EXPECT_EQ(visible("\xC2\x9B"
                    "31m\x7f"),
            "\\x9b31m\\x7f");  // This is CSI, as one character of C1.
  // These characters switch the text to right to left.
  EXPECT_EQ(visible("\xE2\x80\xAEtxt.exe\xE2\x81\xA6"), "\\u202etxt.exe\\u2066");
  EXPECT_EQ(visible("\xF3\xA0\x81\x81"), "\\ue0041");  // This is a tag character.
  EXPECT_EQ(visible("\xff\xC3(\xED\xA0\x80\xF5\x80\xC0\xAF\xE6\x97"),
            "\\xff\\xc3(\\xed\\xa0\\x80\\xf5\\x80\\xc0\\xaf\\xe6\\x97");
  for (int c = 0; c < 256; ++c)
    for (int d = 0; d < 256; ++d) {
      const std::string once = visible(std::string{static_cast<char>(c), static_cast<char>(d)});
      EXPECT_EQ(visible(once), once);
      for (char shown : once) EXPECT_TRUE(static_cast<unsigned char>(shown) >= 0x20 && shown != 0x7f);
    }
}

TEST(ForeignText, IsBounded) {
  EXPECT_EQ(foreign(std::string(kForeignBytes, 'a')), std::string(kForeignBytes, 'a'));
  EXPECT_EQ(foreign(std::string(1'000'000, 'a') + "end", Lines::escaped, 8), "aaaaaa[... 1000003 bytes ...]nd");
  // The text is never cut in the middle of a character.
  EXPECT_EQ(foreign(repeated("\xE6\x97\xA5", 100), Lines::escaped, 8),
            "\xE6\x97\xA5\xE6\x97\xA5[... 300 bytes ...]\xE6\x97\xA5");
}

class HostileFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "fidelio-core-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& item : fs::directory_iterator(folder_)) all.push_back(item.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }
  fs::path folder_;
};

TEST_F(HostileFile, PipesAndDevicesAreRefused) {
  const std::string pipe = (folder_ / "config.json").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(message_of_hostile(0, [&] { read_text_file(pipe); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of_hostile(0, [&] { MappedFile::open("/dev/zero"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of_hostile(0, [&] { read_text_file("/dev/tty"); }), testing::Not(""));
}

// Forks a process that dies in the middle of writing. The child reports through the pipe that it has begun.
template <typename Write>
pid_t killed_while(int signal, Write&& write) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    write();
    [[maybe_unused]] const ssize_t said = ::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char c = 0;
  EXPECT_EQ(::read(ready[0], &c, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  ::kill(child, signal);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  return child;
}

TEST_F(HostileFile, LeftoversOfTheDeadGoWithTheNextWriter) {
  const std::string file = (folder_ / "out.json").string(), folder = (folder_ / "out").string();
  killed_while(SIGKILL, [&] {
    auto* f = new AtomicFile(file);
    f->write("half");
    auto* g = new TemporaryFolder(folder);
    write_file_atomically(g->path() + "/inner", "x");
  });
  ASSERT_EQ(names().size(), 2u);
  // Files that only look like leftovers stay: those of another target, of a living process, and without a process id.
  const std::vector<std::string> kept = {"out.json." + std::to_string(::getppid()) + ".fidelio.tmp",
                                         "out.json.x.fidelio.tmp", "out.json2.999999999.fidelio.tmp",
                                         "out.json.999999999.tmp"};
  for (const std::string& name : kept) write_file_atomically((folder_ / name).string(), "");
  write_file_atomically(file, "whole");
  TemporaryFolder(folder).commit();
  std::vector<std::string> expected = kept;
  expected.insert(expected.end(), {"out", "out.json"});
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names(), expected);
}

// The clean-up must work with no spare file descriptor but the one that the folder itself holds. That one alone would
// not be enough for folders nested in each other.
TEST_F(HostileFile, NothingIsLeftWhereDescriptorsAreFew) {
  const std::string target = (folder_ / "out").string();
  for (const int spare : {0, 1, 2, 3}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit few = {64, 64};
      ::setrlimit(RLIMIT_NOFILE, &few);
      bool written = true, refused = false;
      try {
        TemporaryFolder out(target);
        std::filesystem::create_directories(out.path() + "/a/b/c");
        write_file_atomically(out.path() + "/a/b/c/file", "text");
        std::vector<int> taken;
        for (int fd; (fd = ::dup(2)) >= 0;) taken.push_back(fd);
        for (int i = 0; i < spare; ++i) ::close(taken[static_cast<size_t>(i)]);
        write_file_atomically(out.path() + "/more", "text");
      } catch (const Error&) {
        written = false;
      }
      while (::dup(2) >= 0) {
      }
      try {
        TemporaryFolder again(target);
      } catch (const Error&) {
        refused = true;
      }
      ::_exit(written == (spare > 0) && refused ? 0 : 9);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 0) << spare;
    EXPECT_THAT(names(), testing::IsEmpty()) << spare;
  }
}

TEST_F(HostileFile, OnlyWhatIsOursIsRemoved) {
  const OwnNames ours = [](const std::string& name) { return name == "a" || name == "b" || name == "b/c"; };
  const std::string folder = (folder_ / "out").string();
  const auto put = [&](const std::string& name) {
    std::filesystem::create_directories(std::filesystem::path(folder + "/" + name).parent_path());
    write_file_atomically(folder + "/" + name, name);
  };
  EXPECT_THAT(remove_ours(folder, ours), testing::IsEmpty());  // The folder does not exist.
  for (const std::string name : {"a", "b/c", "b/c.999999999.fidelio.tmp"}) put(name);
  EXPECT_THAT(foreign_in(folder, ours), testing::IsEmpty());
  EXPECT_THAT(remove_ours(folder, ours), testing::IsEmpty());
  EXPECT_THAT(names(), testing::IsEmpty());
  for (const std::string name : {"a", "b/c", "b/d", "e/a", "c.999999999.fidelio.tmp"}) put(name);
  const std::vector<std::string> foreign = {"b/d", "c.999999999.fidelio.tmp", "e", "e/a"};
  EXPECT_EQ(remove_ours(folder, ours), foreign);
  EXPECT_EQ(foreign_in(folder, ours), foreign);
  EXPECT_FALSE(std::filesystem::exists(folder + "/a") || std::filesystem::exists(folder + "/b/c"));
  // A path may be a link to a folder. The folder that it names is cleaned, and the link belongs to somebody else.
  const std::string real = (folder_ / "real").string();
  std::filesystem::rename(folder, real);
  write_file_atomically(real + "/a", "a");
  std::filesystem::create_directory_symlink(real, folder);
  EXPECT_EQ(remove_ours(folder, ours), foreign);
  EXPECT_TRUE(std::filesystem::is_symlink(folder));
  EXPECT_FALSE(std::filesystem::exists(real + "/a"));
}

TEST_F(HostileFile, FinishedOutputsAreThoseThatAreThere) {
  const std::string folder = (folder_ / "out").string(), file = (folder_ / "a.json").string();
  write_file_atomically(file, "");
  write_file_atomically((folder_ / "gone").string(), "");
  std::filesystem::remove(folder_ / "gone");
  TemporaryFolder(folder).commit();
  std::vector<std::string> here;
  for (const std::string& name : finished_outputs())
    if (name.starts_with(folder_.string())) here.push_back(name);
  EXPECT_EQ(here, (std::vector<std::string>{folder, file}));
}

TEST_F(HostileFile, NothingIsBegunOrFinishedAfterTheEnd) {
  // The child's main thread writes files as fast as it can while another thread ends the process, as SIGINT would.
  for (int round = 0; round < 50; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::thread([] {
        ::usleep(static_cast<useconds_t>(::getpid() * 7919 % 3000));
        remove_unfinished_files();
        ::_exit(130);
      }).detach();
      for (int i = 0;; ++i) {
        TemporaryFolder out((folder_ / "out").string());
        for (int k = 0; k < 4; ++k) write_file_atomically(out.path() + "/" + std::to_string(k), "text");
      }
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(WEXITSTATUS(status), 130);
    ASSERT_THAT(names(), testing::IsEmpty());
  }
}

}  // namespace
}  // namespace fidelio
