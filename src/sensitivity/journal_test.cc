#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "sensitivity/candidates.h"
#include "sensitivity/journal.h"
#include "sensitivity/sensitivity_fixture.h"

namespace fidelio {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

const std::map<std::string, std::string> kJob = {{"model", "a"}, {"options", "b"}};
const std::vector<FormatSpec> kFormats = {parse_format("int3g32zs8"), parse_format("lut3g32"), parse_format("int6g32z"),
                                          parse_format("int8g32")};

std::string bytes_of(const LinearWeight& w) {
  std::string bytes = to_string(w.spec);
  for (const StoredTensor& t : stored_tensors(w))
    bytes +=
        t.suffix + std::string(reinterpret_cast<const char*>(t.tensor.data), static_cast<size_t>(t.tensor.bytes()));
  return bytes;
}

struct Killed {};

std::map<std::string, std::string> candidates(Tiny& tiny, CandidateStore& store) {
  const CandidateSet set(*tiny.runner, tiny.checkpoint, tiny.dataset(),
                         groups_of(tiny.checkpoint.config(), Grouping::fused, true), kFormats, {}, tiny.pool, store);
  std::map<std::string, std::string> bytes;
  for (LinearId id : linears_of(tiny.checkpoint.config()))
    for (const FormatSpec& f : kFormats) bytes[to_string(id) + to_string(f)] = bytes_of(set.weight(id, f));
  return bytes;
}

class KilledAfter final : public CandidateStore {
 public:
  KilledAfter(Journal& journal, int stops) : journal_(journal), left_(stops) {}
  bool contains(const std::string& stop) const override { return journal_.contains(stop); }
  std::vector<QuantizedLinear> load(const std::string& stop) const override { return journal_.load(stop); }
  std::vector<QuantizedLinear> list(const std::string& stop) const override { return journal_.list(stop); }
  LinearWeight load(const std::string& stop, LinearId id, const FormatSpec& format) const override {
    return journal_.load(stop, id, format);
  }
  void save(const std::string& stop, std::vector<QuantizedLinear> linears) override {
    if (left_-- == 0) throw Killed{};
    journal_.save(stop, std::move(linears));
  }

 private:
  Journal& journal_;
  int left_;
};

TEST(Journal, CandidatesAreTheSameBytesHoweverOftenTheRunDied) {
  Tiny tiny("qwen2");  // this model has biases
  const Folder folder;
  Journal undisturbed(folder / "whole", kJob);
  const auto whole = candidates(tiny, undisturbed);
  const int stops = 4 * tiny.checkpoint.config().L + (tiny.checkpoint.config().tie_embeddings ? 1 : 2);
  for (int round = 0, done = 0; done < stops; ++round) {
    Journal journal(folder / "j", kJob);
    EXPECT_EQ(journal.resumed(), round > 0);
    EXPECT_EQ(journal.finished().first, done);
    const int now = std::min(1 + round, stops - done);
    KilledAfter store(journal, now);
    if (done + now < stops)
      EXPECT_THROW(candidates(tiny, store), Killed);
    else
      EXPECT_EQ(candidates(tiny, store), whole);
    done += now;
  }
  Journal journal(folder / "j", kJob);
  KilledAfter nothing(journal, 0);  // everything is there, so nothing is made
  EXPECT_EQ(candidates(tiny, nothing), whole);

  // Candidates that are read have the errors of those that were made, and errors fall from a narrow format to a wide
  // one.
  const auto groups = groups_of(tiny.checkpoint.config(), Grouping::fused, true);
  Journal empty(folder / "empty", kJob);
  const CandidateSet made(*tiny.runner, tiny.checkpoint, tiny.dataset(), groups, kFormats, {}, tiny.pool, empty);
  const CandidateSet read(*tiny.runner, tiny.checkpoint, tiny.dataset(), groups, kFormats, {}, tiny.pool, journal);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t c = 0; c < kFormats.size(); ++c) {
      EXPECT_EQ(made.groups()[g].candidates[c].output_error, read.groups()[g].candidates[c].output_error);
      EXPECT_EQ(made.groups()[g].candidates[c].relative_error, read.groups()[g].candidates[c].relative_error);
    }
    EXPECT_GT(read.groups()[g].candidates.front().output_error, 10 * read.groups()[g].candidates.back().output_error);
  }
}

TEST(Journal, MeasurementsGoOnWhereTheyStopped) {
  Tiny tiny("llama2");
  const Folder folder;
  Journal store(folder / "candidates", kJob);
  const CandidateSet set(*tiny.runner, tiny.checkpoint, tiny.dataset(),
                         groups_of(tiny.checkpoint.config(), Grouping::fused, true), kFormats, {}, tiny.pool, store);
  const auto measure = [&](Game& game, int64_t killed_after) {
    const Ranks alone;
    Players players(game, alone);
    return estimate(players, set.groups(), {.method = "unified", .permutations = 2, .seed = 4}, {},
                    [&](int64_t done, int64_t) {
                      if (done == killed_after) throw Killed{};
                    });
  };
  FidelityMeter meter(*tiny.runner, tiny.sequences, tiny.pool);
  const Estimation whole = measure(meter, -1);
  for (int64_t killed_after : {int64_t{7}, int64_t{20}, int64_t{-1}}) {
    for (LinearId id : linears_of(tiny.checkpoint.config())) meter.restore(id);
    FidelityMeter fresh(*tiny.runner, tiny.sequences, tiny.pool);
    Journal journal(folder / "j", kJob);
    JournaledGame game(fresh, journal);
    if (killed_after > 0) {
      EXPECT_THROW(measure(game, killed_after), Killed);
      continue;
    }
    const Estimation resumed = measure(game, -1);
    EXPECT_LT(game.played(), resumed.passes);
    for (size_t g = 0; g < whole.table.groups.size(); ++g)
      for (size_t c = 0; c < kFormats.size(); ++c) {
        EXPECT_EQ(whole.table.groups[g].options[c].kl, resumed.table.groups[g].options[c].kl);
        EXPECT_EQ(whole.table.groups[g].options[c].loss_se, resumed.table.groups[g].options[c].loss_se);
      }
  }
}

// Candidates that are read from the store each time give the same measurements as those held in memory.
TEST(Journal, CandidatesNeedNotBeHeld) {
  Tiny tiny("qwen2");
  const Folder folder;
  Journal journal(folder / "j", kJob);
  const auto groups = groups_of(tiny.checkpoint.config(), Grouping::fused, true);
  const auto measured = [&](int64_t held_bytes) {
    const CandidateSet set(*tiny.runner, tiny.checkpoint, tiny.dataset(), groups, kFormats, {}, tiny.pool, journal, {},
                           held_bytes);
    FidelityMeter meter(*tiny.runner, tiny.sequences, tiny.pool);
    const Ranks alone;
    Players players(meter, alone);
    const Estimation e = estimate(players, set.groups(), {.method = "every"}, {}, [](int64_t, int64_t) {});
    // A held weight is packed only once.
    const LinearId id{0, Role::q};
    EXPECT_EQ(set.packed(id, kFormats[0]) == set.packed(id, kFormats[0]), held_bytes > 0);
    std::vector<double> kl;
    for (const Group& g : e.table.groups)
      for (const Option& o : g.options) kl.push_back(o.kl);
    return kl;
  };
  EXPECT_EQ(measured(0), measured(CandidateSet::kHeldBytes));
}

// A file that is flipped, cut, emptied, or that belongs to another job or entry is never taken for the work it was.
// It is reported in one line and made anew.
TEST(Journal, DamagedEntriesAreMadeAnew) {
  Tiny tiny("llama2");
  const Folder folder;
  const std::string whole_folder = folder / "whole", damaged_folder = folder / "j";
  const MeterResult measured{1, 2, {1}, {2}};
  std::map<std::string, std::string> whole;
  {
    Journal journal(whole_folder, kJob);
    whole = candidates(tiny, journal);
    for (const int64_t number : {3, 4}) journal.save(number, measured);
    journal.keep("times", "{\"seconds\": 0.25}");
  }
  Journal other(folder / "other", {{"model", "another"}});
  candidates(tiny, other);
  other.save(3, measured);
  other.save(4, measured);
  other.keep("times", "{\"seconds\": 0.25}");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(whole_folder)) names.push_back(entry.path().filename().string());
  const int stops = 4 * tiny.checkpoint.config().L + (tiny.checkpoint.config().tie_embeddings ? 1 : 2);
  EXPECT_EQ(std::ssize(names), stops + 4);
  for (const std::string& name : names) {
    const std::string path = damaged_folder + "/" + name, bytes = read_text_file(whole_folder + "/" + name);
    std::string flipped = bytes;
    flipped[flipped.size() - 3] = static_cast<char>(flipped[flipped.size() - 3] ^ 1);
    const std::vector<std::string> damages = {flipped,
                                              bytes.substr(0, bytes.size() / 2),
                                              "",
                                              "dear to somebody",
                                              std::string("\x08\0\0\0\0\0\0\0{}      ", 16),
                                              read_text_file(folder / "other" + "/" + name)};
    for (size_t i = 0; i < damages.size(); ++i) {
      // An undamaged one belongs to another job and is refused.
      if (name == "job.json" && i + 1 == damages.size()) continue;
      SCOPED_TRACE(name + " " + std::to_string(i));
      fs::remove_all(damaged_folder);
      fs::copy(whole_folder, damaged_folder);
      write_file_atomically(path, damages[i]);
      std::vector<std::string> notes;
      Journal journal(damaged_folder, kJob, [&](const std::string& note) { notes.push_back(note); });
      EXPECT_EQ(candidates(tiny, journal), whole);
      for (const int64_t number : {3, 4})
        if (!journal.measurement(number)) journal.save(number, measured);
      if (!journal.kept("times")) journal.keep("times", "{\"seconds\": 0.25}");
      ASSERT_EQ(notes.size(), 1u);
      EXPECT_THAT(notes[0], AllOf(HasSubstr(path + " is damaged ("), HasSubstr("made anew")));
      EXPECT_EQ(journal.measurement(3)->loss, measured.loss);
      EXPECT_EQ(journal.kept("times"), "{\"seconds\":0.25}");
      std::vector<std::string> more;
      Journal again(damaged_folder, kJob, [&](const std::string& note) { more.push_back(note); });
      KilledAfter nothing(again, 0);
      EXPECT_EQ(candidates(tiny, nothing), whole);
      EXPECT_EQ(more, std::vector<std::string>());
      EXPECT_TRUE(again.measurement(3) && again.measurement(4));
    }
  }
}

// A file that is damaged between two reads of one run is named, and never taken for the work it was.
TEST(Journal, WhatIsDamagedUnderARunIsNamed) {
  Tiny tiny("llama2");
  const Folder folder;
  Journal journal(folder / "j", kJob);
  candidates(tiny, journal);
  const std::string stop = folder / "j/layers.0.o.safetensors", whole = read_text_file(stop);
  write_file_atomically(stop, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(error_of([&] { journal.load("layers.0.o"); }), AllOf(HasSubstr(stop), HasSubstr("same command again")));
  // The errors of candidates decide which of them are measured.
  const size_t lost = whole.find("relative_error") + 20;
  std::string other = whole;
  other[lost] = other[lost] == '5' ? '6' : '5';
  write_file_atomically(stop, other);
  EXPECT_THAT(error_of([&] { journal.list("layers.0.o"); }), HasSubstr(stop));
}

// The folder of a tuned plan counts as whole while it holds what was sealed, whatever else stands in it.
TEST(Journal, FoldersAreSealedToo) {
  const Folder folder;
  std::vector<std::string> notes;
  Journal journal(folder / "j", kJob, [&](const std::string& note) { notes.push_back(note); });
  const std::string name = "tuned-0123456789abcdef-01234567", path = folder / "j/tuned-0123456789abcdef-01234567";
  fs::create_directories(path);
  write_file_atomically(path + "/config.json", "{}");
  EXPECT_FALSE(journal.has_folder(name));  // the run was killed before the folder was sealed
  journal.seal_folder(name);
  EXPECT_TRUE(journal.has_folder(name));
  write_file_atomically(path + "/mine.txt", "dear to somebody");
  EXPECT_TRUE(journal.has_folder(name));
  EXPECT_EQ(notes.size(), 1u);
  EXPECT_THAT(error_of([&] { journal.remove_folder(name); }), HasSubstr("mine.txt"));
  EXPECT_EQ(read_text_file(path + "/mine.txt"), "dear to somebody");
  EXPECT_FALSE(fs::exists(path + "/config.json"));
  fs::remove(path + "/mine.txt");
  EXPECT_FALSE(journal.has_folder(name));
  journal.remove_folder(name);
  EXPECT_FALSE(fs::exists(path));
}

// A second run of one output is told so before it has done any work, and takes nothing from the first.
TEST(Journal, OneRunAtATimeHasIt) {
  const Folder folder;
  const std::string path = folder / "j";
  std::optional<JournalLock> first(path);
  const Journal journal(path, kJob);
  EXPECT_THAT(error_of([&] { const JournalLock second(path); }), AllOf(HasSubstr(path), HasSubstr("another run")));
  Journal::remove(path);
  const JournalLock anew(path);  // the first run's folder is gone, and the lock with it
  first.reset();
  EXPECT_THAT(error_of([&] { const JournalLock second(path); }), HasSubstr("another run"));
}

// If a run is killed while it removes a journal, the journal is either whole or gone. What is left of it is removed
// by the next run.
TEST(Journal, IsRemovedAtOnce) {
  const Folder folder;
  const std::string path = folder / "j", left = path + ".removed.999999999.fidelio.tmp";
  fs::create_directory(left);
  std::ofstream(left + "/measure-000001.json") << "{}";
  { const JournalLock lock(path); }
  EXPECT_FALSE(fs::exists(left));
  Journal journal(path, kJob);
  journal.begin_stage("int4");
  journal.save(0, MeterResult{1, 2, {1}, {2}});
  // These files are left by a run that was killed while writing, and by a plan that it tuned.
  std::ofstream(path + "/layers.0.qkv.safetensors.999999999.fidelio.tmp") << "half";
  const std::string plan = path + "/tuned-0123456789abcdef-01234567";
  for (const std::string& name : {plan, plan + ".removed.999999999.fidelio.tmp"}) {
    fs::create_directories(name);
    std::ofstream(name + "/model-00001-of-00002.safetensors") << "weights";
  }
  EXPECT_THAT(Journal::remove(path), testing::IsEmpty());
  EXPECT_TRUE(fs::is_empty(folder / "."));
}

// Whatever others have put into the folder of a journal remains when the journal is removed.
TEST(Journal, WhatOthersPutThereStays) {
  const Folder folder;
  const std::string path = folder / "j", plan = path + "/plan-0123456789abcdef-01234567";
  Journal journal(path, kJob);
  journal.save(0, MeterResult{1, 2, {1}, {2}});
  fs::create_directories(path + "/sub");
  fs::create_directories(plan);
  std::ofstream(plan + "/config.json") << "{}";
  const std::vector<std::string> foreign = {"layers.0.qkv.safetensors.bak",
                                            "measure-x.json",
                                            "notes.json",
                                            "notes.txt.123.tmp",
                                            "plan-0123456789abcdef-01234567/mine.safetensors",
                                            "sub",
                                            "sub/job.json"};
  for (const std::string& name : foreign)
    if (name != "sub") std::ofstream(path + "/" + name) << "dear to somebody";
  fs::create_symlink("/nowhere", path + "/link");
  EXPECT_EQ(Journal::remove(path), (std::vector<std::string>{foreign[0], "link", foreign[1], foreign[2], foreign[3],
                                                             foreign[4], foreign[5], foreign[6]}));
  for (const std::string& name : foreign)
    if (name != "sub") {
      EXPECT_EQ(read_text_file(path + "/" + name), "dear to somebody") << name;
    }
  EXPECT_TRUE(fs::is_symlink(path + "/link"));
  for (const std::string name : {"/job.json", "/measure-000000.json", "/plan-0123456789abcdef-01234567/config.json"})
    EXPECT_FALSE(fs::exists(path + name)) << name;
  // Nor is the folder taken for a journal.
  EXPECT_THAT(error_of([&] { JournalLock{path}; }), HasSubstr("no journal does"));
}

// A file under any other name would look like a stranger's. It would stay behind, and no later run would use the
// folder.
TEST(Journal, KeepsUnderNamesOfItsOwnAlone) {
  const Folder folder;
  const std::string path = folder / "j";
  Journal journal(path, kJob);
  for (const std::string name : {"times", "times-0123456789ab", "rate-0123456789ab"}) {
    journal.keep(name, "{\"seconds\": 0.5}");
    EXPECT_EQ(journal.kept(name), "{\"seconds\":0.5}") << name;
  }
  EXPECT_THAT(error_of([&] { journal.keep("notes", "{}"); }), HasSubstr("no name of a journal's"));
  EXPECT_THAT(Journal::remove(path), testing::IsEmpty());
}

// A job.json of another program does not make a folder a journal, and --fresh does not remove it.
TEST(Journal, AnothersJobIsLeftAlone) {
  const Folder folder;
  for (const std::string text : {"{\"job\": \"painter\"}", "{\"model\": \"a\", \"options\": \"b\"}", "x"}) {
    fs::remove_all(folder / "j");
    fs::create_directory(folder / "j");
    std::ofstream(folder / "j/job.json") << text;
    for (const auto& use :
         std::vector<std::function<void()>>{[&] { Journal(folder / "j", kJob); }, [&] { JournalLock{folder / "j"}; },
                                            [&] { Journal::remove(folder / "j"); }})
      EXPECT_THAT(error_of(use), HasSubstr("its job.json is not a journal's"));
    EXPECT_EQ(read_text_file(folder / "j/job.json"), text);
  }
}

// Measurements belong to their stage. Their numbers mean nothing in another stage, and they are found again in their
// own.
TEST(Journal, StagesKeepTheirMeasurementsApart) {
  const Folder folder;
  Journal journal(folder / "j", kJob);
  journal.begin_stage("int4 on this text");
  journal.save(0, MeterResult{1, 2, {1}, {2}});
  journal.begin_stage("int6 on this text");
  EXPECT_FALSE(journal.measurement(0));
  Journal again(folder / "j", kJob);
  again.begin_stage("int4 on this text");
  ASSERT_TRUE(again.measurement(0));
  EXPECT_EQ(again.measurement(0)->kl, 1);
}

TEST(Journal, IsRefusedForAnotherJob) {
  const Folder folder;
  { Journal journal(folder / "j", kJob); }
  const std::string message = error_of([&] { Journal(folder / "j", {{"model", "other"}, {"options", "b"}}); });
  EXPECT_THAT(message, HasSubstr("model was a, is other"));
  EXPECT_THAT(message, HasSubstr("--fresh"));
  EXPECT_THAT(error_of([&] { Journal(folder / "j", {{"model", "a"}}); }), HasSubstr("more settings"));
  Journal::remove(folder / "j");
  EXPECT_FALSE(fs::exists(folder / "j"));
}

TEST(Journal, NeverRemovesWhatIsNoJournal) {
  const Folder folder;
  fs::create_directory(folder / "j");
  std::ofstream(folder / "j/holiday.txt") << "dear to somebody";
  EXPECT_THAT(error_of([&] { Journal(folder / "j", kJob); }), HasSubstr("holiday.txt"));
  EXPECT_THAT(error_of([&] { Journal::remove(folder / "j"); }), HasSubstr("holiday.txt"));
  EXPECT_TRUE(fs::exists(folder / "j/holiday.txt"));
}

}  // namespace
}  // namespace fidelio
