#include "train/cuda/nccl.h"

#include <dlfcn.h>
#include <nccl.h>

#include "core/error.h"

namespace fidelio::train {
namespace {

// NcclLibrary has the functions of the library that are called.
struct NcclLibrary {
  decltype(&ncclGetErrorString) words = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRank) begin = nullptr;
  decltype(&ncclCommDestroy) end = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;

  NcclLibrary() {
    void* library = ::dlopen("libnccl.so.2", RTLD_NOW);
    check(library != nullptr,
          "ranks on several GPUs need NCCL: {}; install it (libnccl2), or name its folder in LD_LIBRARY_PATH",
          library == nullptr ? ::dlerror() : "");
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      check(function != nullptr, "libnccl.so.2 has no {}", name);
    };
    find("ncclGetErrorString", words), find("ncclGetUniqueId", unique_id), find("ncclCommInitRank", begin);
    find("ncclCommDestroy", end), find("ncclGroupStart", group_start), find("ncclGroupEnd", group_end);
    find("ncclSend", send), find("ncclRecv", receive);
  }
  void check_done(ncclResult_t result, const char* doing) const {
    check(result == ncclSuccess, "NCCL, {}: {}", doing, words(result));
  }
};

const NcclLibrary& nccl() {
  static const NcclLibrary library;
  return library;
}

}  // namespace

Nccl::Nccl(const Ranks& ranks, cuda::Stream stream) : stream_(stream) {
  // The other ranks find the first one by its id.
  ncclUniqueId id{};
  std::vector<double> bytes;
  if (ranks.first()) {
    nccl().check_done(nccl().unique_id(&id), "choosing an id");
    for (const char byte : id.internal) bytes.push_back(byte);
  }
  const std::vector<double> of_first = ranks.gather(bytes).front();
  for (size_t i = 0; i < of_first.size(); ++i) id.internal[i] = static_cast<char>(of_first[i]);
  nccl().check_done(nccl().begin(&communicator_, ranks.size(), id, ranks.rank()), "meeting the other ranks");
}

Nccl::~Nccl() { nccl().end(communicator_); }

void Nccl::exchange(const std::vector<Message>& send, const std::vector<Message>& receive) {
  nccl().check_done(nccl().group_start(), "beginning an exchange");
  for (const Message& m : send)
    nccl().check_done(nccl().send(m.data, static_cast<size_t>(m.bytes), ncclInt8, m.peer, communicator_, stream_),
                      "sending");
  for (const Message& m : receive)
    nccl().check_done(nccl().receive(m.data, static_cast<size_t>(m.bytes), ncclInt8, m.peer, communicator_, stream_),
                      "receiving");
  nccl().check_done(nccl().group_end(), "exchanging");
}

}  // namespace fidelio::train
