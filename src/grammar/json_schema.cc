#include "grammar/json_schema.h"

#include <nlohmann/json.hpp>

#include "grammar/regex.h"
#include "grammar/schema/compiler.h"

namespace fidelio::grammar {

Grammar schema_grammar(const nlohmann::ordered_json& schema) { return SchemaCompiler(schema).compile(); }

Grammar json_object_grammar() {
  const Json schema = {{"type", "object"}};
  return SchemaCompiler(schema).compile();
}

Grammar choice_grammar(const std::vector<std::string>& texts) {
  Grammar grammar;
  const RuleId start = grammar.add_rule();
  std::vector<Fragment> all;
  for (const std::string& text : texts) all.push_back(grammar.literal(text));
  grammar.define(start, grammar.choice(all));
  return grammar;
}

Grammar regex_grammar(std::string_view pattern) {
  Grammar grammar;
  const RuleId start = grammar.add_rule();
  grammar.define(start, grammar.sequence(grammar.empty(), add_regex(grammar, pattern, Match::whole, Writing::utf8)));
  return grammar;
}

}  // namespace fidelio::grammar
