#include "library/open_model.h"

#include <future>

#include "app/options/common.h"
#include "compress/certificate/certificate.h"
#include "compress/certificate/words.h"
#include "runtime/execution/logits_of.h"

namespace fidelio::library {
namespace {

// There is no stranger here who could fill the queue, so it has no end.
constexpr int64_t kMostRequests = int64_t{1} << 40;

serve::ServerOptions server_options(const app::ServedOptions& options) {
  serve::ServerOptions o;
  o.max_requests = kMostRequests;
  o.names = {options.run.model, app::folder_name(options.run.model)};
  return o;
}

// A certificate that cannot be read is passed on as it is, without words; `inspect` says what is wrong with it.
void add_certificate(const Checkpoint& checkpoint, nlohmann::ordered_json& about) {
  about["certificate"] = nullptr;
  about["in_words"] = nlohmann::ordered_json::array();
  const auto provenance = nlohmann::ordered_json::parse(checkpoint.provenance());
  if (!provenance.is_object() || !provenance.contains("certificate")) return;
  about["certificate"] = provenance["certificate"];
  try {
    const Certificate certificate = read_certificate(checkpoint);
    for (const PlainWords& words : in_plain_words(certificate, certificate.met))
      about["in_words"].push_back({words.about, words.sentence});
  } catch (const Error& error) {
    about["in_words"].push_back({"It cannot be read", error.what()});
  }
}

nlohmann::ordered_json about_served(const serve::ServedModel& model) {
  return {{"name", model.name},
          {"context", model.context},
          {"vocabulary", model.vocabulary},
          {"family", model.family},
          {"parameters", model.parameters},
          {"bytes", model.bytes},
          {"fingerprint", model.fingerprint},
          {"stop_ids", model.stop_ids},
          {"chat", model.chat.has_value()}};
}

}  // namespace

OpenModel::Running::Running(const app::ServedOptions& options, nlohmann::ordered_json& about)
    : server(server_options(options), [this, options] {
        serve::Loaded loaded = app::load_served(options);
        runner = loaded.runner.get();
        return loaded;
      }) {
  std::promise<void> loaded;
  bool told = false;  // The loop's thread alone uses it.
  server.on_ready([&](const serve::ServedModel& model) {
    about = about_served(model);
    told = true;
    loaded.set_value();
  });
  loop = std::thread([&] {
    std::exception_ptr failure;
    try {
      server.run();
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure && !told) loaded.set_exception(failure);
  });
  try {
    loaded.get_future().get();
  } catch (...) {
    loop.join();
    throw;
  }
}

OpenModel::Running::~Running() {
  server.http().stop();
  loop.join();
}

OpenModel::OpenModel(const app::ServedOptions& options) : checkpoint_(Checkpoint::open(options.run.model)) {
  nlohmann::ordered_json about;
  running_ = std::make_unique<Running>(options, about);
  add_certificate(checkpoint_, about);
  about_ = about.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

OpenModel::Running& OpenModel::running() const {
  if (running_ == nullptr) throw Closed();
  return *running_;
}

std::shared_ptr<PulledAnswer> OpenModel::ask(std::string method, std::string path, std::string body) {
  const std::shared_lock life(life_);
  Running& server = running();
  const auto answer = std::make_shared<PulledAnswer>();
  {
    const std::lock_guard lock(answers_mutex_);
    std::erase_if(answers_, [](const std::weak_ptr<PulledAnswer>& one) { return one.expired(); });
    answers_.push_back(answer);
  }
  serve::HttpRequest request;
  request.method = std::move(method);
  request.path = std::move(path);
  request.body = std::move(body);
  server.server.ask(std::move(request), answer);
  return answer;
}

void OpenModel::drop(const std::shared_ptr<PulledAnswer>& answer) {
  const std::shared_lock life(life_);
  if (running_ != nullptr) running_->server.http().post([answer] { answer->leave(); });
}

int64_t OpenModel::logits(std::span<const int32_t> ids, const std::function<float*(int64_t values)>& room) {
  const std::lock_guard one_at_a_time(logits_mutex_);
  const std::shared_lock life(life_);
  Runner& runner = *running().runner;
  const ModelConfig& config = checkpoint_.config();
  const auto n = static_cast<int64_t>(ids.size());
  check(n > 0 && n <= config.max_positions, "logits: expected 1 to {} token ids, the model's context, got {}",
        config.max_positions, n);
  // The engine's thread uses the runner, so another one works with its weights. Its cache is as long as the sequence,
  // as that of the verb `logits` is.
  RunnerOptions options = runner.options();
  options.cache_tokens = n;
  const std::unique_ptr<Runner> sibling = runner.make_sibling(checkpoint_, options);
  float* to = room(n * config.v);
  for_logits(*sibling, ids, options.mode,
             [&](std::span<const float> rows) { to = std::copy(rows.begin(), rows.end(), to); });
  return config.v;
}

void OpenModel::close() {
  std::unique_ptr<Running> ending;
  {
    const std::unique_lock life(life_);
    ending = std::move(running_);
  }
  ending.reset();
  const std::lock_guard lock(answers_mutex_);
  for (const std::weak_ptr<PulledAnswer>& one : answers_)
    if (const auto answer = one.lock()) answer->close();
  answers_.clear();
}

}  // namespace fidelio::library
