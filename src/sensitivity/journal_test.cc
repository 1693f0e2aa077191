#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

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
  Tiny tiny("qwen2");  // with biases
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
  KilledAfter nothing(journal, 0);  // all is there: nothing is made
  EXPECT_EQ(candidates(tiny, nothing), whole);

  // What is found has the errors of what was made, and those fall from a narrow format to a wide one.
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

// Read from the store each time, candidates measure what held ones do.
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
    // Held, a weight is packed once.
    const LinearId id{0, Role::q};
    EXPECT_EQ(set.packed(id, kFormats[0]) == set.packed(id, kFormats[0]), held_bytes > 0);
    std::vector<double> kl;
    for (const Group& g : e.table.groups)
      for (const Option& o : g.options) kl.push_back(o.kl);
    return kl;
  };
  EXPECT_EQ(measured(0), measured(CandidateSet::kHeldBytes));
}

// Flipped, cut or emptied: never taken for the work it was.
TEST(Journal, DamagedFilesAreNamed) {
  Tiny tiny("llama2");
  const Folder folder;
  Journal journal(folder / "j", kJob);
  candidates(tiny, journal);
  journal.save(3, MeterResult{1, 2, {1}, {2}});
  const std::string stop = folder / "j/layers.0.o.safetensors", measurement = folder / "j/measure-000003.json";
  const std::string whole = read_text_file(stop), number = read_text_file(measurement);
  std::string flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  for (const std::string& bytes : {flipped, whole.substr(0, whole.size() - 1), std::string()}) {
    write_file_atomically(stop, bytes);
    EXPECT_THAT(error_of([&] { journal.load("layers.0.o"); }), AllOf(HasSubstr(stop), HasSubstr("remove it")));
  }
  // What a candidate has lost decides which of them are measured.
  const size_t lost = whole.find("relative_error") + 20;
  std::string other = whole;
  other[lost] = other[lost] == '5' ? '6' : '5';
  write_file_atomically(stop, other);
  EXPECT_THAT(error_of([&] { journal.list("layers.0.o"); }), AllOf(HasSubstr(stop), HasSubstr("remove it")));
  write_file_atomically(stop, whole);
  EXPECT_FALSE(journal.load("layers.0.o").empty());
  std::string digit = number;
  digit[number.find("\"kl\":") + 5] = '7';
  for (const std::string& bytes : {number.substr(0, 9), std::string("5"), std::string("{\"kl\": \"x\"}"), digit}) {
    write_file_atomically(measurement, bytes);
    EXPECT_THAT(error_of([&] { journal.measurement(3); }), AllOf(HasSubstr(measurement), HasSubstr("remove it")));
  }
  journal.keep("times", "{\"seconds\": 0.25}");
  EXPECT_EQ(journal.kept("times"), "{\"seconds\":0.25}");
  const std::string times = folder / "j/times.json";
  std::string slower = read_text_file(times);
  slower[slower.find("0.25") + 2] = '7';
  write_file_atomically(times, slower);
  EXPECT_THAT(error_of([&] { journal.kept("times"); }), AllOf(HasSubstr(times), HasSubstr("remove it")));
}

// A second run of one output is told so before it has worked for nothing, and takes nothing from the first.
TEST(Journal, OneRunAtATimeHasIt) {
  const Folder folder;
  const std::string path = folder / "j";
  std::optional<JournalLock> first(path);
  const Journal journal(path, kJob);
  EXPECT_THAT(error_of([&] { const JournalLock second(path); }), AllOf(HasSubstr(path), HasSubstr("another run")));
  Journal::remove(path);
  const JournalLock anew(path);  // the first run's folder has gone, and with it what it held
  first.reset();
  EXPECT_THAT(error_of([&] { const JournalLock second(path); }), HasSubstr("another run"));
}

// Killed while it is removed, a journal is whole or gone, and what is left of it goes with the next.
TEST(Journal, IsRemovedAtOnce) {
  const Folder folder;
  const std::string path = folder / "j", left = path + ".removed.999999999.tmp";
  fs::create_directory(left);
  std::ofstream(left + "/measure-000001.json") << "{}";
  { const JournalLock lock(path); }
  EXPECT_FALSE(fs::exists(left));
  const Journal journal(path, kJob);
  fs::create_directory(path + "/sub");
  Journal::remove(path);
  EXPECT_TRUE(fs::is_empty(folder / "."));
}

// Measurements belong to their stage: a number means nothing in another, and is found again in its own.
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
