#include "kernels/cuda/device/graph.h"

#include "kernels/cuda/device/cuda_error.cuh"

namespace fidelio::cuda {

Graph::~Graph() {
  if (exec_) cudaGraphExecDestroy(exec_);
}

void Graph::replay(Stream stream, const std::function<void()>& work) {
  if (!exec_) {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a graph");
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    cuda_check(cudaStreamEndCapture(stream, &graph), "ending a graph");
    const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    cuda_check(status, "making a graph");
  }
  cuda_check(cudaGraphLaunch(exec_, stream), "replaying a graph");
}

}  // namespace fidelio::cuda
