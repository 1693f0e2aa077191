// serve: the form that a request asks of its answer, as a constraint on tokens. Constraints that were made are kept, so
// that requests of one form share masks.
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

// This says what an answer may begin with before its form does, and which special tokens are marks of it.
struct BeforeForm {
  Thinking thinking{};
  grammar::Spelled marks{};
};

class AnswerFormats {
 public:
  explicit AnswerFormats(std::shared_ptr<const grammar::TokenTree> tokens);
  // The constraint called `key`, made of `make`'s grammar where there is none yet, behind what may stand before it.
  std::shared_ptr<Constraint> get(const std::string& key, const std::function<grammar::Grammar()>& make,
                                  const BeforeForm& before = {});
  // A token holds this mark of thinking: <think> is one in many vocabularies, or a part of one.
  bool spells(std::string_view mark) const { return spelled_.contains(mark); }

 private:
  std::shared_ptr<Constraint> find(const std::string& key);

  static constexpr size_t kMost = 32, kMostBytes = 256 << 20;  // of those that are kept, beside what requests hold
  std::shared_ptr<const grammar::TokenTree> tokens_;
  std::set<std::string_view> spelled_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<grammar::TokenConstraint>>> kept_;  // the newest first
};

// This holds what forms are made with.
struct Forms {
  AnswerFormats& all;
  BeforeForm before{};
  std::shared_ptr<Constraint> get(const std::string& key, const std::function<grammar::Grammar()>& make) const {
    return all.get(key, make, before);
  }
};

// Of response_format (text, json_object, json_schema), regex or structured_outputs; null: none. Throws RequestError naming
// the field, a schema by the place where the client wrote it.
std::shared_ptr<Constraint> read_format(const Fields& fields, const Forms& formats,
                                        const std::string& place = "response_format.json_schema.schema");
// Of min_tokens: no stop id before so many; null: none. What `request` stops at has been read.
std::shared_ptr<Constraint> read_min_tokens(const Fields& fields, const GenerationRequest& request, int64_t vocabulary);
// A call of one of the tools, or of the one that tool_choice names; null: tool_choice leaves it to the model.
std::shared_ptr<Constraint> read_tool_choice(const Fields& fields, const Forms& formats);

}  // namespace fidelio::serve
