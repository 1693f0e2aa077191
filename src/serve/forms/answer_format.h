// This file turns the form that a request asks of its answer into a constraint on tokens. Constraints are kept after
// use, so requests with the same form share masks.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "engine/sequence.h"
#include "grammar/grammar.h"
#include "grammar/token_constraint.h"
#include "serve/http/fields.h"

namespace fidelio::serve {

// This says what an answer may contain before its form begins, and which special tokens are marks of it.
struct BeforeForm {
  Thinking thinking{};
  grammar::Spelled marks{};
};

class AnswerFormats {
 public:
  explicit AnswerFormats(std::shared_ptr<const grammar::TokenTree> tokens);
  // Returns the constraint called `key`. If there is none yet, it is made from the grammar of `make`, preceded by what
  // may stand before it (grammar::after_thought).
  std::shared_ptr<Constraint> get(const std::string& key, const std::function<grammar::Grammar()>& make,
                                  const BeforeForm& before = {}, bool has_header = false);
  // Tells whether a token holds this mark of thinking. <think> is a token in many vocabularies, or a part of one.
  bool spells(std::string_view mark) const { return spelled_.contains(mark); }

 private:
  std::shared_ptr<Constraint> find(const std::string& key);

  // These bound the kept constraints, beside those that requests hold.
  static constexpr size_t kMost = 32, kMostBytes = 256 << 20;
  std::shared_ptr<const grammar::TokenTree> tokens_;
  std::set<std::string_view> spelled_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<grammar::TokenConstraint>>> kept_;  // The newest comes first.
};

// This holds everything that is needed to make forms.
struct Forms {
  AnswerFormats& all;
  BeforeForm before{};
  std::shared_ptr<Constraint> get(const std::string& key, const std::function<grammar::Grammar()>& make,
                                  bool has_header = false) const {
    return all.get(key, make, before, has_header);
  }
};

// Reads response_format (text, json_object, json_schema), regex or structured_outputs. Returns null if there is none.
// Throws RequestError naming the field; a schema is named by the place where the client wrote it.
std::shared_ptr<Constraint> read_format(const Fields& fields, const Forms& formats,
                                        const std::string& place = "response_format.json_schema.schema");
// Reads min_tokens, which allows no stop id before so many tokens. Returns null if there is none. The stops of
// `request` must have been read already.
std::shared_ptr<Constraint> read_min_tokens(const Fields& fields, const GenerationRequest& request, int64_t vocabulary);
// Requires a call of one of the tools, or of the one that tool_choice names. Returns null if tool_choice leaves it to
// the model.
std::shared_ptr<Constraint> read_tool_choice(const Fields& fields, const Forms& formats);

}  // namespace fidelio::serve
