# This file builds kernels/cuda and the other rooms with device code. Their .cc files see no device code, and their
# .cu files see only plain headers of the rest. The CUDA runtime is linked statically. cuBLAS and cuSOLVER are found
# at run time where the toolkit or PyTorch installed them.
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CUDA_TARGETS "80;90a" CACHE STRING "Compute capabilities to build for; 80-virtual: PTX, which the driver compiles for any newer device")
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
# CMake 3.25 is older than this nvcc and does not know that it supports C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
# nvcc's -O is for the host code in .cu files, which only launches kernels. g++ takes a third less time for it than
# with -O3. Device code is always optimised fully.
set(CMAKE_CUDA_FLAGS_RELEASE "-O1 -DNDEBUG")

set(cuda_flags --expt-relaxed-constexpr)
# A build that is only to show that everything compiles and links takes half the time without most optimisations of
# device code, which then is valid but slow.
option(CUDA_QUICK "Compile device code quickly instead of well, for builds that run nothing" OFF)
if(CUDA_QUICK)
  list(APPEND cuda_flags -Ofc=max)
endif()
foreach(target ${CUDA_TARGETS})
  if(target MATCHES "(.*)-virtual$")
    list(APPEND cuda_flags "SHELL:-gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1}")
  else()
    list(APPEND cuda_flags "SHELL:-gencode arch=compute_${target},code=sm_${target}")
  endif()
endforeach()

# Adds a room with device code, from its .cu files and its .cc files.
function(fidelio_cuda_room name)
  cmake_parse_arguments(ROOM "" "" "FOLDERS;DEPS" ${ARGN})
  list(TRANSFORM ROOM_FOLDERS REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/\\1/*.cu" OUTPUT_VARIABLE patterns)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  list(FILTER sources EXCLUDE REGEX "_bench\\.cu$")
  fidelio_room(${name} ${ARGN} SOURCES ${sources})
  target_compile_options(fidelio_${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>)
endfunction()

fidelio_cuda_room(kernels_cuda FOLDERS kernels/cuda/device kernels/cuda/backend kernels/cuda/linear/layout kernels/cuda/linear/decode kernels/cuda/linear/batch
    kernels/cuda/linear/prefill kernels/cuda/linear/dense kernels/cuda/linear/vectors kernels/cuda/attention kernels/cuda/rows
    kernels/cuda/delta
  DEPS fidelio_step fidelio_kernels_cpu CUDA::cudart_static CUDA::cublasLt CUDA::cublas)
# The choice of tokens must have the host's bits (choice_arithmetic.h), so products and sums are not fused there.
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/kernels/cuda/rows/choose.cu PROPERTIES COMPILE_OPTIONS --fmad=false)
fidelio_cuda_room(quant_cuda FOLDERS quant/cuda DEPS fidelio_kernels_cuda CUDA::cusolver)
# Only NCCL's header is needed. Its library is opened when ranks on several GPUs share a tuning (train/cuda/nccl.h).
find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
fidelio_cuda_room(train_cuda FOLDERS train/cuda DEPS fidelio_kernels_cuda fidelio_ranks ${CMAKE_DL_LIBS})
target_include_directories(fidelio_train_cuda SYSTEM PRIVATE ${NCCL_INCLUDE})
fidelio_cuda_room(eval_cuda FOLDERS eval/cuda DEPS fidelio_kernels_cuda)
file(GLOB_RECURSE cuda_benches CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*_bench.cu)

foreach(source ${cuda_benches})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>)
  target_link_libraries(${name} PRIVATE fidelio_kernels_cuda)
endforeach()

# Adds one test program for everything that needs a GPU, with the label gpu. Without a GPU its tests are skipped. The
# benches for decoding a whole model and for quantising are made here too, because they need other rooms.
function(fidelio_cuda_tests)
  add_executable(decode_cuda_bench EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/src/runtime/decode_cuda_bench.cc)
  target_link_libraries(decode_cuda_bench PRIVATE fidelio_runtime)
  add_executable(quant_cuda_bench EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/src/quant/quant_cuda_bench.cc)
  target_link_libraries(quant_cuda_bench PRIVATE fidelio_quant)
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*cuda_test.cc ${CMAKE_SOURCE_DIR}/src/runtime/*cuda_test.cc
    ${CMAKE_SOURCE_DIR}/src/runtime/execution/*cuda_test.cc
    ${CMAKE_SOURCE_DIR}/src/engine/*cuda_test.cc ${CMAKE_SOURCE_DIR}/src/quant/*cuda_test.cc ${CMAKE_SOURCE_DIR}/src/quant/atom/*cuda_test.cc ${CMAKE_SOURCE_DIR}/src/quant/device/*cuda_test.cc ${CMAKE_SOURCE_DIR}/src/train/*cuda_test.cc)
  if(WITH_TESTS AND tests)
    add_executable(cuda_test ${tests})
    target_link_libraries(cuda_test PRIVATE fidelio_eval fidelio_quant fidelio_train fidelio_kernels_ref GTest::gtest_main GTest::gmock)
    target_compile_definitions(cuda_test PRIVATE FIDELIO_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    add_test(NAME cuda COMMAND cuda_test)
    set_tests_properties(cuda PROPERTIES LABELS gpu SKIP_REGULAR_EXPRESSION "SKIPPED.*no GPU")
  endif()
endfunction()
