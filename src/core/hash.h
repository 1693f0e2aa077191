// SHA-256 (OpenSSL) for provenance: what a checkpoint was made from.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace fidelio {

class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  std::string hex();  // 64 hex digits; the object is spent afterwards

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> context_;
};

std::string sha256_hex(std::string_view text);
std::string sha256_file(const std::string& path);  // streams the file

}  // namespace fidelio
