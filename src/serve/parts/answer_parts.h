// serve: an answer's text as it comes, taken apart into what was thought, what is said and which tools are called.
//
// A thought stands first, between marks (text/thinking.h). Calls are looked for in what follows, where tools are shown,
// in the forms of all families (serve/parts/call_forms.h).
//
// What may yet be a mark is held back. What looks like a call but is none stays text: nothing is lost.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/parts/call_forms.h"
#include "text/thinking.h"

namespace fidelio::serve {

// How an answer is to be taken apart.
struct PartsRules {
  Thinking thinking{};
  std::shared_ptr<const Tools> tools{};  // none: calls are text
  bool one_call = false;                 // the first ends the answer
};

class AnswerParts {
 public:
  explicit AnswerParts(PartsRules rules);
  std::vector<Part> push(const std::string& text);
  std::vector<Part> finish();
  bool thinks() const { return state_ == State::thought; }
  bool over() const { return state_ == State::over; }  // nothing that may follow is a part

 private:
  enum class State : uint8_t { start, thought, after_thought, text, call, unmarked, over };
  bool advance(std::vector<Part>& parts, bool last);
  bool begin(bool last);
  bool think(std::vector<Part>& parts, bool last);
  bool say(std::vector<Part>& parts, bool last);
  bool read_call(std::vector<Part>& parts, bool last);
  bool has_news(bool last);

  PartsRules rules_;
  State state_;
  bool called_ = false;
  size_t form_ = 0;    // the form of the call whose mark has come
  size_t looked_ = 0;  // at so much of what is held a call was looked for
  std::string held_;
};

// Appends a part; texts of one kind that follow each other are one.
void append(std::vector<Part>& parts, Part part);

}  // namespace fidelio::serve
