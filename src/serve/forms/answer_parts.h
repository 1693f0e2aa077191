// serve: an answer's text as it comes, taken apart into what was thought, what is said and which tools are called.
//
//   thinking   <think> ... </think> at the beginning, or from the beginning where the template opened it
//   calls      Hermes and Qwen   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number
//              Llama             {"name": ..., "parameters": {...}}, several after ';', perhaps behind <|python_tag|>
//              Mistral           [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] or [TOOL_CALLS]name[ARGS]{...}
//
// What may yet be a mark is held back. What looks like a call but is none stays text: nothing is lost.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fidelio::serve {

struct Part {
  enum class Kind : uint8_t { thought, text, call } kind = Kind::text;
  std::string text{};        // of a call: the arguments, JSON
  std::string name{}, id{};  // of a call
};

class AnswerParts {
 public:
  // thinking: the prompt ends inside an opened <think>; tools: calls are looked for; one_call: the first ends the answer.
  explicit AnswerParts(bool thinking = false, bool tools = false, bool one_call = false)
      : state_(thinking ? State::thought : State::start), tools_(tools), one_call_(one_call) {}
  std::vector<Part> push(const std::string& text);
  std::vector<Part> finish();
  bool thinks() const { return state_ == State::thought; }
  bool over() const { return state_ == State::over; }  // nothing that may follow is a part

 private:
  enum class State : uint8_t { start, thought, after_thought, text, call, mistral, whole, over };
  bool advance(std::vector<Part>& parts, bool last);
  bool begin(bool last);
  bool think(std::vector<Part>& parts, bool last);
  bool say(std::vector<Part>& parts, bool last);
  bool close_call(std::vector<Part>& parts, bool last);

  State state_;
  bool tools_, one_call_, called_ = false;
  std::string held_;
};

// Calls in a text of Llama's or Mistral's form; none if it is not one from end to end.
std::vector<Part> calls_of(const std::string& text);
// Appends a part; texts of one kind that follow each other are one.
void append(std::vector<Part>& parts, Part part);

}  // namespace fidelio::serve
