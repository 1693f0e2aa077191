#include "alloc/shared_books.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace fidelio {
namespace {

constexpr size_t kMost = 6;

// Returns the bytes of each shared codebook in the table, by the codebook's name.
std::map<std::string, int64_t> codebooks_of(const SensitivityTable& table) {
  std::map<std::string, int64_t> codebooks;
  for (const Group& g : table.groups)
    for (const Option& o : g.options)
      if (o.format.shared) codebooks[shared_name(o.format)] = shared_bytes(o.format);
  return codebooks;
}

}  // namespace

std::vector<int> PricedTable::choice_of(const std::vector<int>& choice) const {
  std::vector<int> whole(choice.size());
  for (size_t g = 0; g < choice.size(); ++g) whole[g] = option[g][static_cast<size_t>(choice[g])];
  return whole;
}

std::vector<PricedTable> by_codebooks(const SensitivityTable& table) {
  const std::map<std::string, int64_t> codebooks = codebooks_of(table);
  check(codebooks.size() <= kMost, "plans may choose among at most {} formats with a shared codebook, not {}", kMost,
        codebooks.size());
  std::vector<PricedTable> all;
  for (size_t set = 0; set < size_t{1} << codebooks.size(); ++set) {
    PricedTable priced{table, 0, std::vector<std::vector<int>>(table.groups.size())};
    std::map<std::string, bool> used;
    for (const auto& [name, bytes] : codebooks) {
      const bool has = set >> used.size() & 1;
      used[name] = has;
      if (has) priced.bytes += bytes;
    }
    bool whole = true;
    for (size_t g = 0; g < table.groups.size(); ++g) {
      std::vector<Option>& options = priced.table.groups[g].options;
      options.clear();
      for (size_t o = 0; o < table.groups[g].options.size(); ++o) {
        const Option& option = table.groups[g].options[o];
        if (option.format.shared && !used.at(shared_name(option.format))) continue;
        options.push_back(option);
        priced.option[g].push_back(static_cast<int>(o));
      }
      whole = whole && !options.empty();
    }
    if (whole) all.push_back(std::move(priced));
  }
  return all;
}

}  // namespace fidelio
