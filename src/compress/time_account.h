// An account of where the time of a run goes. Every second counts once: a part that begins inside another pauses it.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "compress/seconds.h"

namespace fidelio {

class TimeAccount {
 public:
  explicit TimeAccount(std::string phase) : current_(std::move(phase)) {}

  // Begins a phase, and ends the one before it.
  void phase(const std::string& name) { go_on_with(name); }

  // Counts to a part of the phase, or of another part, until it is destroyed.
  class Part {
   public:
    Part(TimeAccount& account, const std::string& name) : account_(account), before_(account.current_) {
      account_.go_on_with(name);
    }
    ~Part() { account_.go_on_with(before_); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    TimeAccount& account_;
    std::string before_;
  };
  [[nodiscard]] Part part(const std::string& name) { return {*this, name}; }

  // The time of each until now, by the order in which they began; parts of one name are added up.
  std::vector<std::pair<std::string, Seconds>> parts() {
    go_on_with(current_);
    return parts_;
  }

 private:
  void go_on_with(const std::string& name) {
    const Seconds now = Seconds::now();
    row(current_) += now - last_;
    row(name);  // has its place in the order
    current_ = name;
    last_ = now;
  }
  Seconds& row(const std::string& name) {
    for (auto& [known, spent] : parts_)
      if (known == name) return spent;
    return parts_.emplace_back(name, Seconds{}).second;
  }

  std::string current_;
  Seconds last_ = Seconds::now();
  std::vector<std::pair<std::string, Seconds>> parts_;
};

}  // namespace fidelio
