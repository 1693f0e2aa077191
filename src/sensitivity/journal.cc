#include "sensitivity/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/hash.h"
#include "io/safetensors.h"

namespace fidelio {

namespace fs = std::filesystem;

namespace {

// A folder without job.json is a journal only if it was killed before it wrote that.
void check_is_journal(const std::string& folder) {
  if (!fs::exists(folder) || fs::exists(folder + "/job.json")) return;
  check(fs::is_directory(folder), "{} is in the way of the journal: it is a file", folder);
  for (const auto& entry : fs::directory_iterator(folder))
    check(
        entry.path().filename().string().starts_with("job.json."),
        "{} is in the way of the journal: it holds {}, which no journal does; move it or choose another output folder",
        folder, entry.path().filename().string());
}

// Files of a journal are complete or absent, so that one which cannot be read was damaged later.
template <typename F>
auto reading(const std::string& path, F&& read) {
  try {
    return read();
  } catch (const std::exception& e) {
    throw Error("{} is damaged ({}): remove it, and it is made again", path, e.what());
  }
}

// A JSON file with the SHA-256 of what it holds: a digit that was damaged would be a number like any other.
void write_sealed(const std::string& path, const nlohmann::json& value) {
  write_file_atomically(path, nlohmann::json{{"sha256", sha256_hex(value.dump())}, {"value", value}}.dump() + "\n");
}
nlohmann::json read_sealed(const std::string& path) {
  return reading(path, [&] {
    const nlohmann::json file = nlohmann::json::parse(read_text_file(path));
    check(file.at("sha256") == sha256_hex(file.at("value").dump()), "what it holds is not what was written");
    return file.at("value");
  });
}

// SHA-256 of all tensors of a weight.
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

// All but the codes.
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

// One stop's file. Weights are views into it.
class StopFile {
 public:
  explicit StopFile(const std::string& path)
      : file_(Safetensors::open(path)), entries_(nlohmann::json::parse(file_.metadata().at("linears"))) {
    check(file_.metadata().at("linears_sha256") == sha256_hex(entries_.dump()),
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

Journal::Journal(std::string folder, const std::map<std::string, std::string>& job) : folder_(std::move(folder)) {
  const std::string path = folder_ + "/job.json";
  if (!fs::exists(path)) {
    check_is_journal(folder_);
    std::error_code error;
    fs::create_directory(folder_, error);
    check(!error, "cannot make the folder {}: {}", folder_, error.message());
    write_file_atomically(path, nlohmann::json(job).dump(1) + "\n");
    return;
  }
  std::map<std::string, std::string> begun;
  try {
    begun = nlohmann::json::parse(read_text_file(path)).get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception&) {
    throw Error("{} is not a journal's job.json; remove the folder, or give --fresh", path);
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
  resumed_ = true;
}

std::string Journal::stop_path(const std::string& stop) const {
  return fmt::format("{}/{}.safetensors", folder_, stop);
}
std::string Journal::measurement_path(int64_t number) const {
  return fmt::format("{}/measure-{}{:06}.json", folder_, stage_, number);
}

void Journal::begin_stage(const std::string& what) { stage_ = sha256_hex(what).substr(0, 12) + "-"; }

bool Journal::contains(const std::string& stop) const { return fs::exists(stop_path(stop)); }

void Journal::save(const std::string& stop, std::vector<QuantizedLinear> linears) {
  std::vector<TensorToWrite> tensors;
  nlohmann::json list = nlohmann::json::array();
  for (const QuantizedLinear& q : linears) {
    for (const StoredTensor& t : whole_tensors(q.weight))
      tensors.push_back(to_write(std::to_string(list.size()) + t.suffix, {t.tensor, nullptr}));
    list.push_back(described(q));
  }
  const std::string about = list.dump();
  write_safetensors(stop_path(stop), tensors, {{"linears", about}, {"linears_sha256", sha256_hex(about)}});
}

std::vector<QuantizedLinear> Journal::load(const std::string& stop) const {
  return reading(stop_path(stop), [&] {
    const StopFile file(stop_path(stop));
    std::vector<QuantizedLinear> linears;
    for (size_t i = 0; i < file.size(); ++i) {
      linears.push_back(file.described(i));
      linears.back().weight = file.weight(i);
    }
    return linears;
  });
}

std::vector<QuantizedLinear> Journal::list(const std::string& stop) const {
  return reading(stop_path(stop), [&] {
    const StopFile file(stop_path(stop));
    std::vector<QuantizedLinear> linears;
    for (size_t i = 0; i < file.size(); ++i) linears.push_back(file.described(i));
    return linears;
  });
}

LinearWeight Journal::load(const std::string& stop, LinearId id, const FormatSpec& format) const {
  return reading(stop_path(stop), [&] {
    const StopFile file(stop_path(stop));
    for (size_t i = 0; i < file.size(); ++i)
      if (const QuantizedLinear q = file.described(i); q.id == id && q.weight.spec == format) return file.weight(i);
    throw Error("it has no {} in {}", to_string(id), to_string(format));
  });
}

std::optional<MeterResult> Journal::measurement(int64_t number) const {
  if (!fs::exists(measurement_path(number))) return std::nullopt;
  const nlohmann::json value = read_sealed(measurement_path(number));
  return MeterResult{value.at("kl"), value.at("loss"), value.at("sequence_kl"), value.at("sequence_loss")};
}

void Journal::save(int64_t number, const MeterResult& r) {
  // JSON numbers are written with as many digits as bring back the same double.
  write_sealed(measurement_path(number),
               {{"kl", r.kl}, {"loss", r.loss}, {"sequence_kl", r.sequence_kl}, {"sequence_loss", r.sequence_loss}});
}

std::optional<std::string> Journal::kept(const std::string& name) const {
  const std::string path = folder_ + "/" + name + ".json";
  if (!fs::exists(path)) return std::nullopt;
  return read_sealed(path).dump();
}

void Journal::keep(const std::string& name, const std::string& text) {
  write_sealed(folder_ + "/" + name + ".json", nlohmann::json::parse(text));
}

std::pair<int64_t, int64_t> Journal::finished() const {
  std::pair<int64_t, int64_t> n{0, 0};
  for (const auto& entry : fs::directory_iterator(folder_)) {
    n.first += entry.path().extension() == ".safetensors";
    n.second += entry.path().extension() == ".json" && entry.path().filename() != "job.json";
  }
  return n;
}

void Journal::remove(const std::string& folder) {
  check_is_journal(folder);
  remove_at_once(folder);
}

JournalLock::JournalLock(const std::string& folder) {
  check_is_journal(folder);
  // A run that was killed while it removed its journal left that under another name.
  if (!fs::exists(folder)) remove_at_once(folder);
  for (struct stat held{}, named{}; fd_ < 0 || held.st_ino != named.st_ino;) {
    if (fd_ >= 0) ::close(fd_);  // the run before removed it in that moment
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

// What was not played has left no streams behind to start from.
void JournaledGame::commit() {
  if (last_was_played_) game_.commit();
}

}  // namespace fidelio
