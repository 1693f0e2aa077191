#include "core/hash.h"

#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/error.h"

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
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  check(file != nullptr, "cannot open {}: {}", path, std::strerror(errno));
  Sha256 hash;
  std::vector<std::byte> block(1 << 20);
  while (const size_t n = std::fread(block.data(), 1, block.size(), file.get())) hash.update({block.data(), n});
  check(std::ferror(file.get()) == 0, "cannot read {}: {}", path, std::strerror(errno));
  return hash.hex();
}

}  // namespace fidelio
