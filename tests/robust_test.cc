// These tests protect a user's files, messages and runs when a machine has little room, its streams are closed, a run
// is killed, or its leftovers are damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/file.h"
#include "models.h"

namespace fidelio {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
namespace fs = std::filesystem;

const std::string kModel = source_path("models/quill-1m");
const std::string kProgram = FIDELIO_PROGRAM;

// Returns a command that uses few windows, so a compression takes a second.
std::string compress(const std::string& more = "") {
  return " compress " + kModel +
         " --bits 9 --formats int4g32,int8g32 --method single --calibration-tokens 1024 --search-tokens 512 --context "
         "128 "
         "--certificate-windows 4 --max-trials 1 --threads 1 -o out " +
         more;
}
// Starts a command of the program, kills it as soon as `until` (a shell test) holds, and reports how it ended.
std::string killed_when(const std::string& command, const std::string& until) {
  return "'" + kProgram + "' " + command + " >log 2>&1 & child=$!; until " + until +
         "; do kill -0 $child || exit 98; sleep 0.01; done; kill -9 $child; wait $child; code=$?; rm -f "
         "out.journal/*.tmp; exit $code";
}

std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const std::string& name : entries(folder))
    if (!fs::is_directory(folder + "/" + name)) all[name] = read_text_file(folder + "/" + name);
  return all;
}

// Returns the journal of a run that was killed while it measured. It is made once for all tests.
const std::string& killed_journal() {
  static const TestFolder* const folder = [] {
    auto* f = new TestFolder;
    const CommandResult killed = run_command(
        f->path(), killed_when(compress(), "[ \"$(ls out.journal/measure-* 2>/dev/null | wc -l)\" -ge 3 ]"));
    EXPECT_EQ(killed.code, 137) << killed.err;
    EXPECT_EQ(entries(f->path())[1], "out.journal");
    return f;
  }();
  return folder->path();
}
const std::map<std::string, std::string>& undisturbed() {
  static const auto* const made = [] {
    const TestFolder folder;
    EXPECT_EQ(run_command(folder.path(), "fidelio" + compress()).code, 0);
    return new std::map<std::string, std::string>(contents(folder / "out"));
  }();
  return *made;
}

TEST(Robust, FilesOfAUserInAJournalStay) {
  const TestFolder folder;
  fs::copy(killed_journal() + "/out.journal", folder / "out.journal", fs::copy_options::recursive);
  fs::create_directories(folder / "out.journal/sub");
  write_file_atomically(folder / "out.journal/sub/mine.txt", "dear to somebody");
  write_file_atomically(folder / "out.journal/notes.txt", "notes");
  const CommandResult resumed = run_command(folder.path(), "fidelio" + compress());
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("out.journal stays: it holds notes.txt and 2 more, which fidelio did not write"));
  EXPECT_EQ(entries(folder / "out.journal"), (std::vector<std::string>{"notes.txt", "sub", "sub/mine.txt"}));
  EXPECT_EQ(read_text_file(folder / "out.journal/sub/mine.txt"), "dear to somebody");
  EXPECT_EQ(contents(folder / "out"), undisturbed());
}

TEST(Robust, ADamagedEntryOfAJournalIsMadeAnew) {
  const std::string whole = killed_journal() + "/out.journal";
  const std::vector<std::string> all = entries(whole);
  const auto last_of = [&](const std::string& beginning) {
    std::string last;
    for (const std::string& name : all)
      if (name.starts_with(beginning)) last = name;
    return last;
  };
  int kind = 0;
  for (const std::string& name :
       {std::string("job.json"), std::string("layers.0.qkv.safetensors"), last_of("layers."), last_of("measure-")}) {
    SCOPED_TRACE(name);
    const TestFolder folder;
    fs::copy(whole, folder / "out.journal", fs::copy_options::recursive);
    const std::string path = folder / "out.journal/" + name, bytes = read_text_file(path);
    std::string flipped = bytes;
    flipped[bytes.size() - 3] = static_cast<char>(flipped[bytes.size() - 3] ^ 1);
    write_file_atomically(
        path, std::vector<std::string>{bytes.substr(0, bytes.size() / 2), flipped, "", "notes"}[kind++ % 4]);
    const CommandResult resumed = run_command(folder.path(), "fidelio" + compress());
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_THAT(resumed.out, HasSubstr("out.journal/" + name + " is damaged ("));
    EXPECT_EQ(contents(folder / "out"), undisturbed());
    EXPECT_FALSE(fs::exists(folder / "out.journal"));
  }
}

// A message that cannot be written is lost, and the exit code tells the rest.
TEST(Robust, MessagesThatCannotBeWrittenEndNothing) {
  const TestFolder folder;
  for (const std::string stream : {" 2>/dev/full", " 2>&-"}) {
    EXPECT_EQ(run_command(folder.path(), "fidelio inspect nothing" + stream).code, 1) << stream;
    EXPECT_EQ(run_command(folder.path(), "fidelio compress" + stream).code, 2) << stream;
    EXPECT_EQ(run_command(folder.path(), "fidelio compres" + stream).code, 2) << stream;
    EXPECT_EQ(run_command(folder.path(), "fidelio quantize " + kModel + " --format int4g32 -o none/out" + stream).code,
              1)
        << stream;
  }
  // Messages about work that succeeds do not end it either.
  EXPECT_EQ(run_command(folder.path(), "fidelio" + compress("--progress json 2>/dev/full")).code, 0);
  const auto without_card = [](auto files) { return files.erase("README.md"), files; };  // The card names the command.
  EXPECT_EQ(without_card(contents(folder / "out")), without_card(undisturbed()));
}

// Results that nobody received are an error: on a full disk, in a closed stream and without a reader. Outputs are
// complete and named.
TEST(Robust, LostResultsAreAnErrorAndOutputsStay) {
  const std::string quantize = "fidelio quantize " + kModel + " --method rtn --format int4g32 -o made";
  for (const std::string stream : {" >/dev/full", " >&-"}) {
    const TestFolder folder;
    const CommandResult lost = run_command(folder.path(), quantize + " --json report.json" + stream);
    EXPECT_EQ(lost.code, 1) << stream;
    EXPECT_THAT(lost.err,
                HasSubstr("fidelio: cannot write to standard output; made all the same, and whole: made and 1 more"))
        << stream;
    EXPECT_EQ(run_command(folder.path(), "fidelio inspect made").code, 0);
    const CommandResult shown = run_command(folder.path(), "fidelio inspect made" + stream);
    EXPECT_EQ(shown.code, 1) << stream;
    EXPECT_THAT(shown.err, HasSubstr("fidelio: cannot write to standard output\n")) << stream;
  }
  const TestFolder folder;
  const CommandResult unread = run_command(folder.path(), "{ sleep 0.3; " + quantize + "; echo $? >code; } | true");
  EXPECT_EQ(read_text_file(folder / "code"), "141\n");
  EXPECT_THAT(unread.err, HasSubstr("whole: made"));
}

// A verb with little address space ends, successfully or with a message. (A linked OpenBLAS once waited for memory for
// ever at the end.)
TEST(Robust, LittleAddressSpaceEndsInAMessage) {
  const TestFolder folder;
  for (const int64_t kilobytes : {60'000, 100'000, 150'000, 200'000, 400'000}) {
    const std::string limit = fmt::format("ulimit -v {}; ", kilobytes);
    const CommandResult said = run_command(
        folder.path(), limit + "timeout -s KILL 60 '" + kProgram + "' generate " + kModel + " -p Hi -n 3 --threads 1");
    // 127 means that the libraries do not fit.
    EXPECT_THAT(said.code, testing::AnyOf(0, 1, 127)) << kilobytes << said.err;
    if (said.code != 0) {
      EXPECT_THAT(said.err, Not(IsEmpty())) << kilobytes;
    }
  }
  EXPECT_EQ(
      run_command(folder.path(), "fidelio quantize " + kModel + " --method rtn --format int3g64 -o quantised").code, 0);
  write_file_atomically(folder / "text.txt",
                        read_text_file(source_path("models/data/docs-calibration.txt")).substr(0, 60'000));
  const std::string tune = "' tune quantised --reference " + kModel +
                           " --calibration text.txt --calibration-samples 0 --held-tokens 1024 --context 64 --steps 2 "
                           "--windows 2 --rows 128 --threads 1 -o tuned";
  const CommandResult refused = run_command(folder.path(), "ulimit -v 160000; timeout -s KILL 60 '" + kProgram + tune);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err,
              testing::AnyOf(HasSubstr("128 MiB of address space for OpenBLAS"), HasSubstr("out of memory")));
  EXPECT_EQ(run_command(folder.path(), "timeout -s KILL 60 '" + kProgram + tune).code, 0);
  EXPECT_EQ(run_command(folder.path(), "ldd '" + kProgram + "' | grep -c openblas").out, "0\n");
}

// An output is complete or leaves nothing, whatever the number of descriptors is.
TEST(Robust, FewDescriptorsLeaveNothingBehind) {
  const TestFolder folder;
  int failed = 0;
  for (int limit = 4; limit <= 24; ++limit) {
    const CommandResult result = run_command(
        folder.path(), fmt::format("ulimit -n {}; '{}' quantize {} --method rtn --format int4g32 --threads 1 -o out",
                                   limit, kProgram, kModel));
    failed += result.code != 0;
    EXPECT_EQ(fs::exists(folder / "out"), result.code == 0) << limit << result.err;
    fs::remove_all(folder / "out");
    EXPECT_THAT(entries(folder.path()), IsEmpty()) << limit << result.err;
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 21);
}

// A file in the place of a draft belongs to the user unless fidelio wrote it.
TEST(Robust, ADraftTakesNothingOfAUsersPlace) {
  const TestFolder folder;
  ASSERT_EQ(run_command(folder.path(), "fidelio quantize " + kModel + " --method rtn --format int8g64 -o model").code,
            0);
  const std::string draft = "fidelio draft model --kinds int4g64 --limit 8 --max-tokens 32 --calibration-tokens 512";
  const auto refused = [&](const std::string& words) {
    const CommandResult result = run_command(folder.path(), draft);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr(words));
  };
  fs::create_directories(folder / "model/draft");
  write_file_atomically(folder / "model/draft/mine.txt", "dear to somebody");
  refused("model/draft is there and is no draft of ours: move it");
  // The copy stands beside a choice of ours that names no copy.
  write_file_atomically(folder / "model/draft.json", R"({"draft": "lookup", "weights_sha256": "0"})");
  refused("model/draft is there and is no draft of ours: move it");
  write_file_atomically(folder / "model/draft.json",
                        R"({"draft": "copy", "weights_sha256": "0", "copy_weights_sha256": "1"})");
  refused("model/draft holds mine.txt, which is no part of a draft: move it");
  EXPECT_EQ(read_text_file(folder / "model/draft/mine.txt"), "dear to somebody");
  fs::remove_all(folder / "model/draft");
  write_file_atomically(folder / "model/draft.json", R"({"of": "a painting"})");
  refused("model/draft.json is there and is no choice of ours: move or remove it");
  EXPECT_EQ(read_text_file(folder / "model/draft.json"), R"({"of": "a painting"})");
}

// A temporary name of another program is not ours, whichever process had its number.
TEST(Robust, TemporaryFilesOfOthersStay) {
  const TestFolder folder;
  write_file_atomically(folder / "out.999999999.tmp", "dear to somebody");
  ASSERT_EQ(run_command(folder.path(), "fidelio quantize " + kModel + " --method rtn --format int8g64 -o out").code, 0);
  EXPECT_EQ(read_text_file(folder / "out.999999999.tmp"), "dear to somebody");
}

}  // namespace
}  // namespace fidelio
