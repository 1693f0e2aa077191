#include "core/hash.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/file.h"

namespace fidelio {

void Sha256::Free::operator()(void* p) const { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(p)); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  check(context_ && EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_.get()), EVP_sha256(), nullptr) == 1,
        "OpenSSL gives no SHA-256");
}

void Sha256::update(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), bytes.size());
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_.get()), digest.data(), &length);
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

std::string sha256_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  Sha256 hash;
  constexpr size_t kBlock = 16 << 20;
  for (std::span<const std::byte> rest = file->bytes(); !rest.empty();) {
    const auto block = rest.first(std::min(kBlock, rest.size()));
    hash.update(block);
    file->drop(block.data(), block.size());
    rest = rest.subspan(block.size());
  }
  return hash.hex();
}

}  // namespace fidelio
