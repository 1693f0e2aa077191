#include "serve/page_policy.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "core/error.h"

namespace fidelio::serve {

std::string page_policy(std::string_view page) {
  constexpr std::string_view opens = "<script>", closes = "</script>";
  const size_t begin = page.find(opens), end = page.rfind(closes);
  check(begin < end && end != std::string_view::npos, "the page: expected a script, found none");
  const std::string_view script = page.substr(begin + opens.size(), end - begin - opens.size());
  std::array<unsigned char, 32> hash{};
  check(::EVP_Digest(script.data(), script.size(), hash.data(), nullptr, ::EVP_sha256(), nullptr) == 1,
        "OpenSSL computes no SHA-256");
  std::array<unsigned char, 45> base64{};  // It includes the terminating zero.
  ::EVP_EncodeBlock(base64.data(), hash.data(), static_cast<int>(hash.size()));
  return fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
      "base-uri "
      "'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
      reinterpret_cast<const char*>(base64.data()));
}

}  // namespace fidelio::serve
