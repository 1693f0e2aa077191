#include "text/shingles.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace fidelio {
namespace {

constexpr uint64_t kSeed = 0xcbf29ce484222325, kPrime = 0x100000001b3;  // These are the constants of FNV-1a.
// This odd number is the base of the polynomial over the words of a shingle.
constexpr uint64_t kBase = 0x9e3779b97f4a7c15;

// Spreads every bit over all of them, so any bits of a hash may be used as a number (MurmurHash3's finaliser).
uint64_t mixed(uint64_t h) {
  h ^= h >> 33, h *= 0xff51afd7ed558ccd;
  h ^= h >> 33, h *= 0xc4ceb9fe1a85ec53;
  return h ^ (h >> 33);
}

constexpr uint64_t power(uint64_t base, size_t exponent) {
  uint64_t result = 1;
  for (size_t i = 0; i < exponent; ++i) result *= base;
  return result;
}

// This is the sum over the last thirteen words of word k from the end times kBase^k.
class RollingHash {
 public:
  void add(uint64_t word) {
    constexpr uint64_t kOldest = power(kBase, kShingleWords);
    uint64_t& place = last_[words_ % kShingleWords];
    sum_ = sum_ * kBase + word - (words_ < kShingleWords ? 0 : place * kOldest);
    place = word;
    if (++words_ >= kShingleWords) hashes_.push_back(mixed(sum_));
  }
  std::vector<uint64_t> finish() {
    if (hashes_.empty() && words_ > 0) hashes_.push_back(mixed(sum_));
    std::sort(hashes_.begin(), hashes_.end());
    hashes_.erase(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());
    hashes_.shrink_to_fit();
    return std::move(hashes_);
  }

 private:
  std::array<uint64_t, kShingleWords> last_{};
  uint64_t sum_ = 0;
  size_t words_ = 0;
  std::vector<uint64_t> hashes_;
};

// Returns true for Chinese characters, kana and similar ones, of which several words stand together without a space.
bool is_word_alone(utf8proc_int32_t c) {
  return (c >= 0x2e80 && c <= 0xa4cf) || (c >= 0xf900 && c <= 0xfaff) || (c >= 0x20000 && c <= 0x3ffff);
}

bool is_of_a_word(utf8proc_int32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::vector<uint64_t> shingles_of(std::string_view text) {
  RollingHash shingles;
  uint64_t word = 0;
  bool inside = false;
  const auto put = [&](uint64_t c) { word = ((inside ? word : kSeed) ^ c) * kPrime, inside = true; };
  const auto end = [&] {
    if (inside) shingles.add(mixed(word));
    inside = false;
  };
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      ++i;
      if ((byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9'))
        put(byte);
      else if (byte >= 'A' && byte <= 'Z')
        put(byte + ('a' - 'A'));
      else
        end();
      continue;
    }
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i,
                                                static_cast<utf8proc_ssize_t>(text.size() - i), &c);
    i += n > 0 ? static_cast<size_t>(n) : 1;  // A byte that is not UTF-8 separates words.
    if (n <= 0 || !is_of_a_word(c)) {
      end();
    } else if (is_word_alone(c)) {
      end();
      put(static_cast<uint64_t>(c));
      end();
    } else {
      put(static_cast<uint64_t>(utf8proc_tolower(c)));
    }
  }
  end();
  return shingles.finish();
}

}  // namespace fidelio
