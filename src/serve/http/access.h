// serve: who may ask. A server without a key answers whoever reaches it, and a browser reaches what its user reaches. So a
// page of another site must neither pass for our own (DNS rebinding: the site's name is led to our address, and Host gives
// it away) nor post to us unseen (Origin gives it away, and so does a body that does not call itself JSON).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fidelio::serve {

// Reach says from where a server can be reached, and so what it may be called.
enum class Reach : uint8_t {
  here,     // a socket in the file system, or bytes in memory: no browser comes this way
  machine,  // a loopback address
  network,
};

struct Access {
  bool names = true;                   // Host is looked at; where there is a key, which no other site knows, it is not
  std::vector<std::string> hosts{};    // further names of this server; "*" = every name there is
  std::vector<std::string> origins{};  // pages that may ask besides our own (CORS); "*" = every page there is
};

// A request's header says this of who asks.
struct Asked {
  std::string_view method{}, path{}, host{}, origin{};
  std::string_view site{};  // Sec-Fetch-Site: how the page's origin relates to ours, in the browser's word
  std::string_view type{};  // Content-Type
};

struct Refusal {
  int status = 0;  // 0: there is none
  std::string message{}, code{};
};

Refusal refusal_of(const Access& access, Reach reach, const Asked& asked);

// Says whether a header's "name:port" names a server of this reach. No name counts that a stranger could own in the DNS.
bool is_own_name(const Access& access, Reach reach, std::string_view host);

// Returns the lines of an answer's header that let the page that asks read it; "" for one of an origin that is not listed,
// and for no page at all.
std::string cors_of(const std::vector<std::string>& origins, std::string_view origin);

}  // namespace fidelio::serve
