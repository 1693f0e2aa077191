// This file decides who may send requests. A server without a key answers everyone who can reach it, and a browser can
// reach whatever its user can. A page of another site must therefore neither pass for our own nor post to us unseen. In
// DNS rebinding the site's name is made to point to our address, and the Host header reveals it. A post is revealed by
// its Origin, and by a body that does not declare itself to be JSON.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio::serve {

// Reach says from where a server can be reached, which decides by which names it may be called.
enum class Reach : uint8_t {
  here,     // This is a socket in the file system, or bytes in memory; no browser can reach it.
  machine,  // This is a loopback address.
  network,
};

struct Access {
  // If true, the Host header is checked. It need not be where there is a key, which no other site knows.
  bool names = true;
  std::vector<std::string> hosts{};    // These are further names of this server; "*" allows every name.
  std::vector<std::string> origins{};  // These are pages that may ask besides our own (CORS); "*" allows every page.
};

// These are the headers of a request that tell who asks.
struct Asked {
  std::string_view method{}, path{}, host{}, origin{};
  std::string_view site{};  // Sec-Fetch-Site is how the browser relates the page's origin to ours.
  std::string_view type{};  // This is the Content-Type.
};

struct Refusal {
  int status = 0;  // A status of 0 means that there is no refusal.
  std::string message{}, code{};
};

Refusal refusal_of(const Access& access, Reach reach, const Asked& asked);

// Tells whether the "name:port" of a header names a server of this reach. Names that a stranger could own in the DNS do
// not count.
bool is_own_name(const Access& access, Reach reach, std::string_view host);

// Returns the header lines of an answer that let the asking page read it. They are "" for an origin that is not listed,
// and where no page asks.
std::string cors_of(const std::vector<std::string>& origins, std::string_view origin);

}  // namespace fidelio::serve
