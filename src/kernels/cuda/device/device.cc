#include "kernels/cuda/device/device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/device/cuda_error.cuh"

namespace fidelio::cuda {
namespace {

std::atomic<int64_t> held = 0, highest = 0;

// A Shelf keeps freed memory for the next buffer of the same size, up to a 32nd of the device's memory. The driver
// takes long to map and unmap memory, and measuring or packing matrix after matrix asks for the same sizes thousands of
// times.
class Shelf {
 public:
  // Returns memory of this size on the current device, or null if none is kept.
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find({current_device(), bytes});
    if (found == kept_.end()) return nullptr;
    void* memory = found->second;
    kept_.erase(found);
    bytes_ -= static_cast<int64_t>(bytes);
    return memory;
  }
  // Takes memory that nobody uses any more. It waits for all work of the device, as cudaFree does. Returns false if
  // there is no room, or if the memory is another device's than the current one.
  bool put(void* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    cudaPointerAttributes its{};
    if (cudaPointerGetAttributes(&its, memory) != cudaSuccess || its.device != current_device()) return false;
    if (most_ < 0) {
      size_t free = 0, all = 0;
      if (cudaMemGetInfo(&free, &all) != cudaSuccess) return false;
      most_ = static_cast<int64_t>(all / 32);
    }
    if (bytes_ + static_cast<int64_t>(bytes) > most_ || cudaDeviceSynchronize() != cudaSuccess) return false;
    kept_.insert({{current_device(), bytes}, memory});
    bytes_ += static_cast<int64_t>(bytes);
    return true;
  }
  // Gives everything back to the driver.
  void clear() {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, memory] : kept_) cudaFree(memory);
    kept_.clear();
    bytes_ = 0;
  }
  int64_t bytes() const { return bytes_; }

 private:
  static int current_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device;
  }
  std::mutex mutex_;
  std::multimap<std::pair<int, size_t>, void*> kept_;  // by device and size
  std::atomic<int64_t> bytes_ = 0;
  int64_t most_ = -1;  // not known before the first put()
};
// It is never destroyed, because buffers of static objects may be freed at the very end.
Shelf& shelf() {
  static Shelf& kept = *new Shelf;
  return kept;
}

// Returns the status of an allocation. Memory on the shelf is given up before the device counts as full.
cudaError_t allocate(void** memory, size_t bytes) {
  if ((*memory = shelf().take(bytes)) != nullptr) return cudaSuccess;
  const cudaError_t status = cudaMalloc(memory, bytes);
  if (status != cudaErrorMemoryAllocation) return status;
  cudaGetLastError();
  shelf().clear();
  return cudaMalloc(memory, bytes);
}

}  // namespace

DeviceBuffer::DeviceBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  const cudaError_t status = allocate(&data_, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Error(
        "the GPU's memory is full: {:.2f} GB more were asked for, {:.2f} GB are held; use fewer bits, a shorter "
        "context or fewer rows",
        static_cast<double>(bytes) * 1e-9, static_cast<double>(held.load()) * 1e-9);
  }
  cuda_check(status, "allocating memory");
  cuda_check(cudaMemset(data_, 0, bytes), "clearing memory");
  // This project's streams do not wait for the default one.
  cuda_check(cudaStreamSynchronize(nullptr), "clearing memory");
  const int64_t now = held += static_cast<int64_t>(bytes);
  int64_t most = highest.load();
  while (most < now && !highest.compare_exchange_weak(most, now)) {
  }
}

DeviceBuffer::~DeviceBuffer() {
  if (!data_) return;
  if (!shelf().put(data_, size_)) cudaFree(data_);
  held -= static_cast<int64_t>(size_);
}

int64_t device_bytes_free() {
  size_t free = 0, all = 0;
  cuda_check(cudaMemGetInfo(&free, &all), "asking for free memory");
  return static_cast<int64_t>(free) + shelf().bytes();
}
int64_t device_bytes_highest() { return highest; }

DeviceInfo open_device(int device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  check(status == cudaSuccess, "no GPU can be used: {} ({}); use --device cpu", cudaGetErrorString(status),
        cudaGetErrorName(status));
  check(device >= 0 && device < count,
        "there is no GPU {}: this machine has {}, counted from 0; use one of those, or --device cpu", device, count);
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, device), "reading the device's properties");
  check(properties.major >= 8, "the GPU {} has compute capability {}.{}, at least 8.0 is needed; use --device cpu",
        properties.name, properties.major, properties.minor);
  cuda_check(cudaSetDevice(device), "choosing the device");
  return {properties.name, properties.major, properties.minor, properties.multiProcessorCount};
}

double copy_bandwidth() {
  constexpr size_t kBytes = size_t{1} << 30;
  constexpr int kCopies = 8;
  const DeviceBuffer from(kBytes), to(kBytes);
  const Stream stream = make_stream();
  std::vector<double> rates;
  for (int pass = 0; pass < 6; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCopies; ++i) on_device(stream, to.data(), from.data(), kBytes);
    wait_for(stream);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (pass > 0) rates.push_back(2.0 * kCopies * kBytes / seconds);  // the first pass warms up
  }
  destroy_stream(stream);
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

void to_device(Stream stream, void* to, const void* from, size_t bytes) {
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying to the device");
}
void from_device(Stream stream, void* to, const void* from, size_t bytes) {
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying from the device");
  wait_for(stream);
}
void* allocate_pinned(size_t bytes) {
  void* p = nullptr;
  cuda_check(cudaMallocHost(&p, bytes), "allocating page-locked memory");
  return p;
}
void free_pinned(void* p) { cudaFreeHost(p); }
void on_device(Stream stream, void* to, const void* from, size_t bytes) {
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copying on the device");
}
void zero_device(Stream stream, void* to, size_t bytes) {
  cuda_check(cudaMemsetAsync(to, 0, bytes, stream), "clearing memory");
}
Stream make_stream() {
  Stream stream;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return stream;
}
void destroy_stream(Stream stream) { cudaStreamDestroy(stream); }
void wait_for(Stream stream) { cuda_check(cudaStreamSynchronize(stream), "running on the device"); }

void reserve(Stream stream, DeviceBuffer& buffer, int64_t bytes) {
  if (static_cast<int64_t>(buffer.size()) >= bytes) return;
  wait_for(stream);
  buffer = DeviceBuffer();
  buffer = DeviceBuffer(static_cast<size_t>(bytes));
}

}  // namespace fidelio::cuda
