// This file runs a model for callers in the same process: the server with its threads, and no socket.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <shared_mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "app/options/served.h"
#include "io/checkpoint.h"
#include "library/pulled_answer.h"
#include "serve/server.h"

namespace fidelio::library {

// Closed is thrown by what is asked of a model that was closed.
class Closed : public Error {
 public:
  Closed() : Error("the model was closed") {}
};

// Any thread may call any function.
class OpenModel {
 public:
  // Loads the model. Throws Error where it cannot be served.
  explicit OpenModel(const app::ServedOptions& options);
  ~OpenModel() { close(); }
  OpenModel(const OpenModel&) = delete;
  OpenModel& operator=(const OpenModel&) = delete;

  // The functions below throw Closed after close().
  std::shared_ptr<PulledAnswer> ask(std::string method, std::string path, std::string body);
  void drop(const std::shared_ptr<PulledAnswer>& answer);  // It cancels what is not over; it throws nothing.
  // Calls `room` with the number of values, (ids, vocabulary), and fills the memory that it returns. Returns the
  // vocabulary.
  int64_t logits(std::span<const int32_t> ids, const std::function<float*(int64_t values)>& room);

  void close();
  const std::string& about() const { return about_; }  // JSON, as fidelio_about() has it

 private:
  // The parts that run. The loop's thread ends before the server does.
  struct Running {
    Running(const app::ServedOptions& options, nlohmann::ordered_json& about);
    ~Running();
    Runner* runner = nullptr;  // The engine's thread owns it.
    serve::Server server;
    std::thread loop;
  };
  Running& running() const;

  Checkpoint checkpoint_;
  std::string about_;
  std::mutex logits_mutex_;  // Only one sequence's logits are computed at a time.
  // It is held exclusively by close() alone.
  mutable std::shared_mutex life_;
  std::unique_ptr<Running> running_;
  std::mutex answers_mutex_;
  std::vector<std::weak_ptr<PulledAnswer>> answers_;  // They are told of close().
};

}  // namespace fidelio::library
