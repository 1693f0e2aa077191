#include "app/options/card.h"

#include "app/about.h"

namespace fidelio::app {

CardFacts facts_of_run(const Checkpoint& made, const TextFiles& source) {
  CardFacts facts = card_facts(made, source);
  facts.command = command_text();
  facts.version = version_text();
  return facts;
}

void add_card(const std::string& folder, const TextFiles& source) {
  write_card(folder, facts_of_run(Checkpoint::open(folder), source));
}

}  // namespace fidelio::app
