// serve: an Engine in a thread of its own, spoken to from the event loop.
//
//   event loop ── submit, cancel ──▶ orders ──▶ engine thread: add, cancel, step
//       ▲                                              │
//       └── listeners hear ◀── post(drain) ◀── news ◀──┘   one post for all that a step brought
//
// Listeners stay with the event loop: the engine's thread knows numbers alone, so a client that goes away takes its
// listener with it at once, and what the engine still says about that number falls on no ears.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "serve/forms/answer_format.h"
#include "serve/http/request_error.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio::serve {

// What requests are read with. Immutable once loaded; several threads read it.
struct ServedModel {
  std::string name;
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat{};
  std::vector<int32_t> stop_ids{};
  GenerationDefaults defaults{};
  int64_t context = 0, vocabulary = 0;
  std::shared_ptr<const grammar::TokenTree> tokens{};
  std::shared_ptr<AnswerFormats> formats{};
  bool sanitize_control_tokens = false;  // in messages, whatever a request says (text/control_tokens.h)
  std::string fingerprint{};       // of weights and version: the same one, the same seed and request, the same bytes
  std::string family{}, digest{};  // "llama", and the hash of the weights
  int64_t parameters = 0, bytes = 0;
};

struct Loaded {
  std::shared_ptr<const ServedModel> model;
  std::unique_ptr<Runner> runner;
  std::shared_ptr<void> draft{};  // lives as long as the engine
  std::unique_ptr<Engine> engine;
};

// A token as a listener hears of it.
struct Piece {
  int32_t id = 0;
  float logprob = 0;
  std::string text{};
  std::vector<TokenScore> best{};
  bool drafted = false;
  bool scored = true;    // the first token of a prompt is not
  bool thought = false;  // it is not of what is said
  int64_t offset = 0;    // of its text in the completion's, in characters
};
struct Listener {
  std::function<void(std::vector<ScoredToken>&&)> on_prompt{};  // where its logprobs are asked for
  std::function<void(Piece&&)> on_token{};
  std::function<void(Generation&&)> on_finish{};
  std::function<void(const RequestError&)> on_error{};
};

struct EngineStatus {
  int64_t running = 0, waiting = 0, free_pages = 0, pages = 0;
  EngineCounters counters{};
};

class EngineThread {
 public:
  using Post = std::function<void(std::function<void()>)>;
  // Loads in its own thread; then, on the event loop, `loaded` hears of the model or of why there is none. At most
  // `most` requests are under way or wait.
  EngineThread(Post post, std::function<Loaded()> load, int64_t most,
               std::function<void(std::shared_ptr<const ServedModel>, const std::string& error)> loaded);
  ~EngineThread();  // ends what is under way
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // On the event loop. Throws RequestError (503) if there are too many, or the engine has failed. Listeners are called
  // later, never by these three.
  int64_t submit(GenerationRequest request, Listener listener);
  void cancel(int64_t ticket);
  void end(int64_t ticket);  // as cancel, but its listener hears of the end
  int64_t under_way() const { return static_cast<int64_t>(listeners_.size()); }
  bool failed() const { return failed_; }
  EngineStatus status() const;

 private:
  struct Order {
    int64_t ticket;
    std::optional<GenerationRequest> request;  // none: end it
  };
  using What = std::variant<Piece, Generation, RequestError, std::vector<ScoredToken>>;
  struct News {
    int64_t ticket;
    What what;
  };
  void run(const std::function<Loaded()>& load,
           const std::function<void(std::shared_ptr<const ServedModel>, const std::string&)>& loaded);
  void serve(Loaded& loaded);
  void obey(Engine& engine, Order& order);
  void tell(int64_t ticket, What what);
  void hand_over();
  void drain();
  void fail(const std::string& why);

  Post post_;
  int64_t most_;
  // The event loop's.
  std::map<int64_t, Listener> listeners_;
  int64_t next_ticket_ = 0;
  bool failed_ = false;
  // Shared.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Order> orders_;
  std::vector<News> news_;
  EngineStatus status_;
  bool ending_ = false, posted_ = false;
  // The engine thread's.
  std::map<int64_t, int64_t> numbers_;  // of the engine, by ticket
  std::vector<News> fresh_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace fidelio::serve
