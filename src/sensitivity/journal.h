// The journal of a long job keeps what the job has finished in a folder, so that a run that was killed goes on where
// it stopped and ends with the same bytes.
//
//   OUT.journal/job.json                   what the job is: {"model": ..., "text": ..., "options": ...}
//               layers.3.qkv.safetensors   all candidates of one stop (linears that share an input)
//               measure-3f9c21d07a44-000017.json   one measurement, by its stage and its number there
//
// Every file is complete or absent (core/file.h: written under another name, fsynced, renamed). It holds a SHA-256 of
// its contents together with the job and the file's own name. A file that was damaged later, or that belongs to
// another job or entry, is therefore noticed, reported in a line, and made anew.
//
// The job covers everything that quantised candidates depend on. Measurements also depend on a stage (which formats
// are measured how; a search's target is not part of it unless the stage says so), and on the measurements before
// them in the stage. So a run with another target finds the measurements that it shares with the run before. Ranks
// under mpirun share the folder if they share the file system: their numbers all differ, and a rank finds what
// another has finished. Of processes that were not launched together, only one at a time may use the folder
// (JournalLock). Files of others in the folder are left alone.
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
  // Begins a journal in `folder`, or continues the one there. Throws Error, naming the difference, if it belongs to
  // another job. `job` holds whatever determines the result, as (name, value). `note` is called about damaged files.
  Journal(std::string folder, const std::map<std::string, std::string>& job,
          std::function<void(const std::string&)> note = {});

  // Returns true if the stop is there and undamaged; its file is read once to find out. Any thread may call this.
  bool contains(const std::string& stop) const override;
  // These read a stop. They throw Error naming a damaged file, which contains() would have found.
  std::vector<QuantizedLinear> load(const std::string& stop) const override;
  std::vector<QuantizedLinear> list(const std::string& stop) const override;
  LinearWeight load(const std::string& stop, LinearId id, const FormatSpec& format) const override;
  void save(const std::string& stop, std::vector<QuantizedLinear> linears) override;

  // Measurements from here on are numbered within this stage. `what` must name everything that decides what the
  // numbers mean.
  void begin_stage(const std::string& what);
  std::optional<MeterResult> measurement(int64_t number) const;
  void save(int64_t number, const MeterResult& result);
  // These keep a text under a name, in any stage, for results that must be measured only once, such as times. keep()
  // throws Error if a journal does not know this kind of name, because no run would remove such a file.
  std::optional<std::string> kept(const std::string& name) const;
  void keep(const std::string& name, const std::string& text);
  // These do the same for a folder that others write into the journal. It is sealed when it is complete, and counts
  // as whole while its contents are unchanged.
  void seal_folder(const std::string& name);
  bool has_folder(const std::string& name) const;
  void remove_folder(const std::string& name) const;  // throws Error if something foreign is in it
  void note(const std::string& text) const;

  bool resumed() const { return resumed_; }
  // Returns the numbers of stops and of measurements that are there now.
  std::pair<int64_t, int64_t> finished() const;
  // Removes the files that runs write into a journal, if there is one, and the folder, unless something else is in
  // it. Returns the names of such other files. Throws Error if the folder is not a journal.
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
  std::string folder_, stage_, job_;  // job_ is the hash of the job
  bool resumed_ = false;
  std::function<void(const std::string&)> note_;
  std::shared_ptr<Seen> seen_;  // files that were found whole or damaged
};

// A JournalLock is held by the run that makes an output, for as long as it lives. A second run could otherwise remove
// the journal's folder while the first uses it.
class JournalLock {
 public:
  // Creates the folder if it does not exist. Throws Error if another process holds the lock, or if the path is
  // something else.
  explicit JournalLock(const std::string& folder);
  ~JournalLock();
  JournalLock(const JournalLock&) = delete;
  JournalLock& operator=(const JournalLock&) = delete;

 private:
  int fd_ = -1;
};

// A JournaledGame keeps its measurements in a journal. Measurements found there are not made again.
class JournaledGame final : public Game {
 public:
  JournaledGame(Game& game, Journal& journal) : game_(game), journal_(journal) {}
  void assign(LinearId id, PackedLinear weight) override { game_.assign(id, std::move(weight)); }
  void restore(LinearId id) override { game_.restore(id); }
  MeterResult measure() override;
  void commit() override;
  void place(int64_t number) override { next_ = number; }
  bool knows() const override { return journal_.measurement(next_).has_value(); }
  int64_t played() const { return played_; }  // measurements that were not in the journal

 private:
  Game& game_;
  Journal& journal_;
  int64_t next_ = 0, played_ = 0;
  bool last_was_played_ = false;
};

}  // namespace fidelio
