#include "sensitivity/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/file.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "core/hash.h"
#include "core/own_files.h"
#include "io/checkpoint_files.h"
#include "io/safetensors.h"

namespace fidelio {

namespace fs = std::filesystem;

namespace {

// Every job.json of a journal begins like this, and no other file does.
constexpr std::string_view kJobBegins = R"({"fidelio_journal":)";

// A Name is the name of a file that runs write into a journal, read from the left.
class Name {
 public:
  explicit Name(std::string_view text) : rest_(text) {}
  bool ends() const { return rest_.empty(); }
  bool is(std::string_view all) const { return rest_ == all; }
  bool takes(std::string_view part) {
    if (!rest_.starts_with(part)) return false;
    rest_.remove_prefix(part.size());
    return true;
  }
  bool takes_hex(size_t digits) {
    if (rest_.substr(0, digits).find_first_not_of("0123456789abcdef") != rest_.npos || rest_.size() < digits)
      return false;
    rest_.remove_prefix(digits);
    return true;
  }
  bool takes_digits() {
    const size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    rest_.remove_prefix(digits);
    return digits > 0;
  }
  bool takes_word() {
    const size_t letters = std::min(rest_.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), rest_.size());
    rest_.remove_prefix(letters);
    return letters > 0;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

bool is_stop(Name name) {
  if (name.takes("plan-") && !(name.takes_hex(16) && name.takes("."))) return false;
  if (name.takes("layers.")) {
    if (!name.takes_digits() || !name.takes(".") || !name.takes_word()) return false;
  } else if (!name.takes("embedding") && !name.takes("head") && !name.takes("per_layer_table")) {
    return false;
  }
  return name.is(".safetensors");
}
bool is_measurement(Name name) {
  if (!name.takes("measure-")) return false;
  const Name whole = name;
  if (!(name.takes_hex(12) && name.takes("-"))) name = whole;  // it has no stage
  return name.takes_digits() && name.is(".json");
}
bool is_times(Name name) {
  if (!name.takes("times")) return false;
  return name.is(".json") || (name.takes("-") && name.takes_hex(12) && name.is(".json"));
}
// These files hold what a plan took to decode, each under a number of its own (compress/rate/pace.cc).
bool is_rate(Name name) { return name.takes("rate-") && name.takes_hex(12) && name.is(".json"); }
bool is_answers(Name name) {
  return name.takes("answers-") && (name.takes("calibration-") || name.takes("check-")) && name.takes_hex(12) &&
         name.is(".jsonl");
}
// A plan that is tuned has these files: the plan before and after tuning, each with its seal, and the state of the
// tuner.
bool is_tuning(Name name) {
  if (!name.takes("plan-") && !name.takes("tuned-")) return false;
  if (!name.takes_hex(16) || !name.takes("-") || !name.takes_hex(8)) return false;
  return name.ends() || name.is(".json") || name.is(".tuning") ||
         (name.takes("/") && is_checkpoint_file(std::string(name.rest())));
}
bool is_own(const std::string& name) {
  const Name n(name);
  return n.is("job.json") || n.is("samples.safetensors") || is_stop(n) || is_measurement(n) || is_times(n) ||
         is_rate(n) || is_answers(n) || is_tuning(n);
}

// Returns true if job.json is ours, complete or not: it begins as ours do, as far as it goes, or it stands beside
// other work of ours.
bool is_own_job(const std::string& folder) {
  const std::string text = read_text_file(folder + "/job.json");
  const size_t known = std::min(text.size(), kJobBegins.size());
  if (std::string_view(text).substr(0, known) == kJobBegins.substr(0, known)) return true;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != "job.json" && is_own(name)) return true;
  }
  return false;
}

// A folder without job.json is a journal only if everything in it is ours. Then a run was killed before it wrote
// job.json, or while it removed the journal.
void check_is_journal(const std::string& folder) {
  if (!fs::exists(folder)) return;
  check(fs::is_directory(folder), "{} is in the way of the journal: it is a file", folder);
  if (fs::exists(folder + "/job.json")) {
    check(is_own_job(folder),
          "{} is in the way of the journal: its job.json is not a journal's; move it or choose another output folder",
          folder);
    return;
  }
  const std::vector<std::string> foreign = foreign_in(folder, is_own);
  check(foreign.empty(),
        "{} is in the way of the journal: it holds {}, which no journal does; move it or choose another output folder",
        folder, foreign.empty() ? "" : foreign.front());
}

// Files of a journal are complete or absent, so one that cannot be read was damaged later.
template <typename F>
auto reading(const std::string& path, F&& read) {
  try {
    return read();
  } catch (const std::exception& e) {
    throw Error("{} is damaged ({}): the same command again makes it anew", path, e.what());
  }
}

// Returns the SHA-256 of all tensors of a weight.
std::string hash_of(const LinearWeight& weight) {
  Sha256 hash;
  for (const StoredTensor& t : whole_tensors(weight))
    hash.update(std::span<const std::byte>(t.tensor.data, static_cast<size_t>(t.tensor.bytes())));
  return hash.hex();
}

nlohmann::json described(const QuantizedLinear& q) {
  nlohmann::json entry = {{"linear", to_string(q.id)},
                          {"format", to_string(q.weight.spec)},
                          {"out", q.weight.out},
                          {"in", q.weight.in},
                          {"sha256", hash_of(q.weight)}};
  if (q.report)
    entry["report"] = {
        {"energy", q.report->energy},   {"loss_gptq", q.report->loss_gptq},       {"loss", q.report->loss},
        {"damping", q.report->damping}, {"dead_columns", q.report->dead_columns}, {"seconds", q.report->seconds}};
  if (q.relative_error) entry["relative_error"] = *q.relative_error;
  return entry;
}

// Reads back everything but the codes.
QuantizedLinear undescribed(const nlohmann::json& entry) {
  QuantizedLinear q{parse_linear_id(entry.at("linear").get<std::string>()), {}, {}, {}};
  q.weight.spec = parse_format(entry.at("format").get<std::string>());
  q.weight.out = entry.at("out");
  q.weight.in = entry.at("in");
  if (const auto found = entry.find("report"); found != entry.end())
    q.report = {found->at("energy"),  found->at("loss_gptq"),    found->at("loss"),
                found->at("damping"), found->at("dead_columns"), found->at("seconds")};
  if (const auto found = entry.find("relative_error"); found != entry.end()) q.relative_error = found->get<double>();
  return q;
}

// A StopFile is the file of one stop. Its weights are views into the file. `seal` computes the seal of the
// description of its linears.
class StopFile {
 public:
  StopFile(const std::string& path, const std::function<std::string(const std::string&)>& seal)
      : file_(Safetensors::open(path)), entries_(nlohmann::json::parse(file_.metadata().at("linears"))) {
    check(file_.metadata().at("linears_sha256") == seal(entries_.dump()),
          "what it says of its linears is not what was written");
  }
  size_t size() const { return entries_.size(); }
  QuantizedLinear described(size_t i) const { return undescribed(entries_.at(i)); }
  LinearWeight weight(size_t i) const {
    const QuantizedLinear q = described(i);
    const std::string prefix = std::to_string(i);
    LinearWeight weight = load_weight(
        q.weight.spec, q.weight.out, q.weight.in, [&](const std::string& suffix, DType dtype, const Shape& shape) {
          return file_.contains(prefix + suffix) ? file_.get(prefix + suffix, dtype, shape) : OwnedTensor{};
        });
    check(hash_of(weight) == entries_.at(i).at("sha256").get<std::string>(), "what it holds is not what was written");
    return weight;
  }

 private:
  Safetensors file_;
  nlohmann::json entries_;
};

}  // namespace

struct Journal::Seen {
  std::mutex mutex;
  std::set<std::string> whole, damaged;  // paths
};

Journal::Journal(std::string folder, const std::map<std::string, std::string>& job,
                 std::function<void(const std::string&)> note)
    : folder_(std::move(folder)), note_(std::move(note)), seen_(std::make_shared<Seen>()) {
  const nlohmann::json about = job;
  job_ = sha256_hex(about.dump());
  check_is_journal(folder_);
  if (begun(job)) {
    resumed_ = true;
    return;
  }
  std::error_code error;
  fs::create_directory(folder_, error);
  check(!error, "cannot make the folder {}: {}", folder_, error.message());
  // JSON keys are written in alphabetical order, so the file begins with this one.
  const nlohmann::json file = {{"fidelio_journal", about}, {"sha256", sha256_hex(about.dump())}};
  write_file_atomically(path_of("job.json"), file.dump() + "\n");
}

// Returns true if the journal belongs to this job. If job.json is damaged that cannot be told from it, but the
// entries are sealed with their job.
bool Journal::begun(const std::map<std::string, std::string>& job) {
  const std::string path = path_of("job.json");
  if (!fs::exists(path)) return false;
  std::map<std::string, std::string> begun;
  try {
    const nlohmann::json file = parse_json(read_text_file(path), path);
    begun = file.at("fidelio_journal").get<std::map<std::string, std::string>>();
    check(file.at("sha256") == sha256_hex(file.at("fidelio_journal").dump()), "what it holds is not what was written");
  } catch (const std::exception& e) {
    say_damaged(path, e.what());
    return false;
  }
  std::string differences;
  for (const auto& [name, value] : job) {
    const auto found = begun.find(name);
    if (found != begun.end() && found->second == value) continue;
    differences += fmt::format("{}{} was {}, is {}", differences.empty() ? "" : "; ", name,
                               found == begun.end() ? "absent" : found->second, value);
  }
  check(differences.empty() && begun.size() == job.size(),
        "{} belongs to another job: {}. Give --fresh to begin anew, or another output folder", folder_,
        differences.empty() ? "it names more settings" : differences);
  return true;
}

void Journal::note(const std::string& text) const {
  if (note_) note_(text);
}

// Reports damage once for each file, since a file may be asked for again before it is made anew.
void Journal::say_damaged(const std::string& path, const std::string& why) const {
  {
    const std::lock_guard lock(seen_->mutex);
    if (!seen_->damaged.insert(path).second) return;
  }
  note(fmt::format("{} is damaged ({}): it is made anew", path, foreign(why)));
}

std::string Journal::seal(const std::string& name, const std::string& text) const {
  return sha256_hex(fmt::format("{}\n{}\n{}", job_, name, text));
}

std::string Journal::stop_path(const std::string& stop) const { return path_of(stop + ".safetensors"); }
std::string Journal::measurement_name(int64_t number) const { return fmt::format("measure-{}{:06}", stage_, number); }

void Journal::begin_stage(const std::string& what) { stage_ = sha256_hex(what).substr(0, 12) + "-"; }

bool Journal::contains(const std::string& stop) const {
  const std::string path = stop_path(stop);
  {
    const std::lock_guard lock(seen_->mutex);
    if (seen_->whole.contains(path)) return true;
  }
  if (!fs::exists(path)) return false;
  try {
    load(stop);
  } catch (const std::exception& e) {
    say_damaged(path, e.what());
    return false;
  }
  const std::lock_guard lock(seen_->mutex);
  seen_->whole.insert(path);
  return true;
}

void Journal::save(const std::string& stop, std::vector<QuantizedLinear> linears) {
  std::vector<TensorToWrite> tensors;
  nlohmann::json list = nlohmann::json::array();
  for (const QuantizedLinear& q : linears) {
    for (const StoredTensor& t : whole_tensors(q.weight))
      tensors.push_back(to_write(std::to_string(list.size()) + t.suffix, {t.tensor, nullptr}));
    list.push_back(described(q));
  }
  const std::string about = list.dump();
  write_safetensors(stop_path(stop), tensors, {{"linears", about}, {"linears_sha256", seal(stop, about)}});
  const std::lock_guard lock(seen_->mutex);
  seen_->whole.insert(stop_path(stop));
}

template <typename F>
auto Journal::reading_stop(const std::string& stop, F&& read) const {
  const std::string path = stop_path(stop);
  return reading(path,
                 [&] { return read(StopFile(path, [&](const std::string& about) { return seal(stop, about); })); });
}

std::vector<QuantizedLinear> Journal::load(const std::string& stop) const {
  return reading_stop(stop, [&](const StopFile& file) {
    std::vector<QuantizedLinear> linears;
    for (size_t i = 0; i < file.size(); ++i) {
      linears.push_back(file.described(i));
      linears.back().weight = file.weight(i);
    }
    return linears;
  });
}

std::vector<QuantizedLinear> Journal::list(const std::string& stop) const {
  return reading_stop(stop, [&](const StopFile& file) {
    std::vector<QuantizedLinear> linears;
    for (size_t i = 0; i < file.size(); ++i) linears.push_back(file.described(i));
    return linears;
  });
}

LinearWeight Journal::load(const std::string& stop, LinearId id, const FormatSpec& format) const {
  return reading_stop(stop, [&](const StopFile& file) {
    for (size_t i = 0; i < file.size(); ++i)
      if (const QuantizedLinear q = file.described(i); q.id == id && q.weight.spec == format) return file.weight(i);
    throw Error("it has no {} in {}", to_string(id), to_string(format));
  });
}

// Writes a JSON file with the SHA-256 of its contents. Otherwise a damaged digit would be a number like any other.
void Journal::write_sealed(const std::string& name, const nlohmann::json& value) {
  const nlohmann::json file = {{"sha256", seal(name, value.dump())}, {"value", value}};
  write_file_atomically(path_of(name + ".json"), file.dump() + "\n");
}

template <typename Read>
auto Journal::read_sealed(const std::string& name, Read&& read) const
    -> std::optional<decltype(read(std::declval<const nlohmann::json&>()))> {
  const std::string path = path_of(name + ".json");
  if (!fs::exists(path)) return std::nullopt;
  try {
    const nlohmann::json file = parse_json(read_text_file(path), path);
    check(file.at("sha256") == seal(name, file.at("value").dump()), "what it holds is not what was written");
    return read(file.at("value"));
  } catch (const std::exception& e) {
    say_damaged(path, e.what());
    return std::nullopt;
  }
}

std::optional<MeterResult> Journal::measurement(int64_t number) const {
  return read_sealed(measurement_name(number), [](const nlohmann::json& value) {
    return MeterResult{value.at("kl"), value.at("loss"), value.at("sequence_kl"), value.at("sequence_loss")};
  });
}

void Journal::save(int64_t number, const MeterResult& r) {
  // JSON numbers are written with as many digits as restore the same double.
  write_sealed(measurement_name(number),
               {{"kl", r.kl}, {"loss", r.loss}, {"sequence_kl", r.sequence_kl}, {"sequence_loss", r.sequence_loss}});
}

std::optional<std::string> Journal::kept(const std::string& name) const {
  return read_sealed(name, [](const nlohmann::json& value) { return value.dump(); });
}

void Journal::keep(const std::string& name, const std::string& text) {
  check(is_own(name + ".json"), "{} is no name of a journal's: it would be taken for a stranger's file", name);
  write_sealed(name, nlohmann::json::parse(text));
}

namespace {

// Returns the SHA-256 of each file in a folder, by its name there.
nlohmann::json hashes_in(const std::string& folder) {
  nlohmann::json hashes = nlohmann::json::object();
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      hashes[entry.path().lexically_relative(folder).string()] = sha256_file(entry.path().string());
  return hashes;
}

}  // namespace

void Journal::seal_folder(const std::string& name) { write_sealed(name, hashes_in(path_of(name))); }

// Files that others put beside ours do not matter.
bool Journal::has_folder(const std::string& name) const {
  if (!fs::is_directory(path_of(name))) return false;
  const auto hashes =
      read_sealed(name, [](const nlohmann::json& value) { return value.get<std::map<std::string, std::string>>(); });
  try {
    check(hashes.has_value(), "nothing says what was written");
    for (const auto& [file, hash] : *hashes)
      check(sha256_file(path_of(name) + "/" + file) == hash, "{} is not what was written", file);
    return true;
  } catch (const std::exception& e) {
    say_damaged(path_of(name), e.what());
    return false;
  }
}

void Journal::remove_folder(const std::string& name) const {
  const std::vector<std::string> foreign = remove_ours(path_of(name), is_checkpoint_file);
  check(foreign.empty(), "{} holds {}, which is not fidelio's: move it", path_of(name),
        foreign.empty() ? "" : foreign.front());
  std::error_code ignored;
  fs::remove(path_of(name + ".json"), ignored);
}

std::pair<int64_t, int64_t> Journal::finished() const {
  std::pair<int64_t, int64_t> n{0, 0};
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    n.first += is_stop(Name(name));
    n.second += is_measurement(Name(name));
  }
  return n;
}

std::vector<std::string> Journal::remove(const std::string& folder) {
  check_is_journal(folder);
  return remove_ours(folder, is_own);
}

JournalLock::JournalLock(const std::string& folder) {
  check_is_journal(folder);
  // A run that was killed while it removed its journal left it under another name.
  if (!fs::exists(folder)) remove_ours(folder, is_own);
  for (struct stat held{}, named{}; fd_ < 0 || held.st_ino != named.st_ino;) {
    if (fd_ >= 0) ::close(fd_);  // the previous run removed it at this moment
    std::error_code error;
    fs::create_directory(folder, error);
    check(!error, "cannot make the folder {}: {}", folder, error.message());
    fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(fd_ >= 0, "cannot open {}: {}", folder, std::strerror(errno));
    const bool busy = ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (busy) ::close(fd_);
    check(!busy, "{} is in use: another run is making the same output. Wait for it, or choose another output folder",
          folder);
    if (::fstat(fd_, &held) != 0 || ::stat(folder.c_str(), &named) != 0) named.st_ino = held.st_ino + 1;
  }
}
JournalLock::~JournalLock() { ::close(fd_); }

MeterResult JournaledGame::measure() {
  const int64_t number = next_++;
  if (std::optional<MeterResult> kept = journal_.measurement(number)) {
    last_was_played_ = false;
    return *kept;
  }
  const MeterResult result = game_.measure();
  journal_.save(number, result);
  ++played_;
  last_was_played_ = true;
  return result;
}

// A measurement that was not made has left no streams to start from.
void JournaledGame::commit() {
  if (last_was_played_) game_.commit();
}

}  // namespace fidelio
