#!/bin/sh
# This script writes the program of every test model's step as text to tests/golden/programs/NAME.txt, which
# tests/programs_test.cc compares with what is built. Run it when a change of programs is meant, and read the difference
# before it is committed.
#   tools/make_program_goldens.sh [build/fidelio]
set -eu
cd "$(dirname "$0")/.."
mkdir -p tests/golden/programs
for model in tests/models/*/; do
  "${1:-build/fidelio}" inspect "$model" --program >"tests/golden/programs/$(basename "$model").txt"
done
