// This file takes an answer's text apart as it arrives, into thoughts, text and calls of tools.
//
// A thought comes first, between marks (text/thinking.h). Calls are searched in the rest where the prompt shows tools,
// in the forms of all families (serve/parts/call_forms.h). A call inside a thought is a quotation, unless the answer
// ends with it: some models forget to end the thought before they call, as Qwen3.5 does now and then.
//
// Text that may still become a mark is held back. Text that looks like a call and is none stays text, so nothing is
// lost.
//
// An answer of gpt-oss consists of messages (text/channels.h): thoughts, texts and calls in any order.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/parts/call_forms.h"
#include "text/thinking.h"

namespace fidelio::serve {

// These rules say how an answer is taken apart.
struct PartsRules {
  Thinking thinking{};
  std::shared_ptr<const Tools> tools{};  // If null, calls stay text.
  bool one_call = false;                 // If true, the first call ends the answer.
};

class AnswerParts {
 public:
  explicit AnswerParts(PartsRules rules);
  std::vector<Part> push(const std::string& text);
  std::vector<Part> finish();
  bool thinks() const;
  bool in_header() const { return messages_ && messages_->in_header(); }  // The newest text is a message's header.
  bool over() const { return state_ == State::over; }  // It is true if nothing that follows can be a part.

 private:
  enum class State : uint8_t { start, thought, call_in_thought, after_thought, text, call, unmarked, over };
  bool advance(std::vector<Part>& parts, bool last);
  bool begin(bool last);
  bool think(std::vector<Part>& parts, bool last);
  bool say(std::vector<Part>& parts, bool last);
  bool read_call(std::vector<Part>& parts, bool last);
  bool read_call_in_thought(std::vector<Part>& parts, bool last);
  void tell_calls(std::vector<Part>& parts, std::vector<Part> calls, size_t size);
  bool has_news(bool last);
  void read_messages(std::vector<Part>& parts, bool last);
  void tell_run(std::vector<Part>& parts, ChannelHeader::Kind kind, std::string_view text);
  void tell_message_call(std::vector<Part>& parts);

  PartsRules rules_;
  State state_;
  bool called_ = false;
  size_t form_ = 0;          // It is the form of the call whose mark was found.
  size_t looked_ = 0;        // A call was searched in this much of the held text.
  bool drop_break_ = false;  // If true, a line break that comes next belongs to the mark of a thought.
  std::string held_;
  // The following members belong to an answer in messages.
  std::optional<ChannelReader> messages_;
  std::string called_with_;                        // It is the content so far of a message that is a call.
  bool begun_ = false;                             // The newest message has been told in part.
  bool thought_told_ = false, text_told_ = false;  // There were such messages before.
};

// Appends a part; consecutive texts of one kind are joined.
void append(std::vector<Part>& parts, Part part);

}  // namespace fidelio::serve
