// The journal of a long job: what it has finished, kept in a folder so that a run that was killed goes on where it
// stopped and ends with the same bytes.
//
//   OUT.journal/job.json                   what the job is: {"model": ..., "text": ..., "options": ...}
//               layers.3.qkv.safetensors   all candidates of one stop
//               measure-3f9c21d07a44-000017.json   one measurement, by its stage and its number there
//
// Every file is complete or absent (core/file.h: written beside, fsynced, renamed) and has a SHA-256 of what it holds, with
// the job and the file's own name: what was damaged since, or is another job's or another entry's, is noticed, said in a
// line, and made anew.
// The job is what quantised candidates depend on. What is measured with them depends on a stage besides (which formats
// are measured how; a search's target is none of that, unless the stage says so) and on the measurements before it in
// the stage: another target finds what it shares with the one before. Ranks under mpirun share the folder if they share
// the file system: all numbers differ, and whoever needs what another has finished finds it there. Of processes that
// nobody launched together one at a time has it (JournalLock). Files of anybody else in the folder stay there.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sensitivity/candidate_store.h"
#include "sensitivity/meter.h"

namespace fidelio {

class Journal final : public CandidateStore {
 public:
  // Begins a journal in `folder`, or goes on with the one there. Throws Error naming what differs if that one belongs
  // to another job. `job`: whatever determines the result, as (name, value). `note` is told of damaged files.
  Journal(std::string folder, const std::map<std::string, std::string>& job,
          std::function<void(const std::string&)> note = {});

  // Returns whether the stop is there and whole, for which it is read once. Any thread may ask.
  bool contains(const std::string& stop) const override;
  // Throws Error naming a file that is damaged, which contains() would have found.
  std::vector<QuantizedLinear> load(const std::string& stop) const override;
  std::vector<QuantizedLinear> list(const std::string& stop) const override;
  LinearWeight load(const std::string& stop, LinearId id, const FormatSpec& format) const override;
  void save(const std::string& stop, std::vector<QuantizedLinear> linears) override;

  // Measurements from here on are numbered within this stage: all that decides what their numbers mean.
  void begin_stage(const std::string& what);
  std::optional<MeterResult> measurement(int64_t number) const;
  void save(int64_t number, const MeterResult& result);
  // What was measured once and must not differ where a run goes on, such as times: a text by its name, in any stage.
  // Throws Error where the name is none that a journal is known to hold, as nobody would remove it.
  std::optional<std::string> kept(const std::string& name) const;
  void keep(const std::string& name, const std::string& text);
  // The same of a folder that others write into the journal: sealed once it is complete, whole while it holds the same.
  void seal_folder(const std::string& name);
  bool has_folder(const std::string& name) const;
  void remove_folder(const std::string& name) const;  // Error where something foreign is in it
  void note(const std::string& text) const;

  bool resumed() const { return resumed_; }
  // Stops and measurements there now.
  std::pair<int64_t, int64_t> finished() const;
  // Removes what runs write into a journal, if there is one, and its folder, unless something else is in it: the names of
  // that. Throws Error where the folder is no journal.
  static std::vector<std::string> remove(const std::string& folder);

 private:
  struct Seen;
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  std::string seal(const std::string& name, const std::string& text) const;
  bool begun(const std::map<std::string, std::string>& job);
  void say_damaged(const std::string& path, const std::string& why) const;
  std::string stop_path(const std::string& stop) const;
  std::string measurement_name(int64_t number) const;
  template <typename F>
  auto reading_stop(const std::string& stop, F&& read) const;
  void write_sealed(const std::string& name, const nlohmann::json& value);
  template <typename Read>
  auto read_sealed(const std::string& name, Read&& read) const
      -> std::optional<decltype(read(std::declval<const nlohmann::json&>()))>;
  std::string folder_, stage_, job_;  // job_: its hash
  bool resumed_ = false;
  std::function<void(const std::string&)> note_;
  std::shared_ptr<Seen> seen_;  // what was found whole, or damaged
};

// Held by the run that makes an output, for as long as it lives: a second one would take a journal's folder from under it.
class JournalLock {
 public:
  // Makes the folder if it is not there. Throws Error if another process holds it, or if it is something else.
  explicit JournalLock(const std::string& folder);
  ~JournalLock();
  JournalLock(const JournalLock&) = delete;
  JournalLock& operator=(const JournalLock&) = delete;

 private:
  int fd_ = -1;
};

// A game whose measurements are kept: those in the journal are not played again.
class JournaledGame final : public Game {
 public:
  JournaledGame(Game& game, Journal& journal) : game_(game), journal_(journal) {}
  void assign(LinearId id, PackedLinear weight) override { game_.assign(id, std::move(weight)); }
  void restore(LinearId id) override { game_.restore(id); }
  MeterResult measure() override;
  void commit() override;
  void place(int64_t number) override { next_ = number; }
  bool knows() const override { return journal_.measurement(next_).has_value(); }
  int64_t played() const { return played_; }  // measurements not found in the journal

 private:
  Game& game_;
  Journal& journal_;
  int64_t next_ = 0, played_ = 0;
  bool last_was_played_ = false;
};

}  // namespace fidelio
