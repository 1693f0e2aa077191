#!/usr/bin/env bash
# Installs the wheel that `./do wheel` made into a fresh environment, without a network, and uses it there as a new user
# would, away from the source:
#
#     tools/check_wheel.sh [WHEEL [PYTHON ...]]    # build/wheel's and python3 unless said; seconds each
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
wheel=$(realpath "${1:-$(ls build/wheel/*.whl)}")
shift $(($# > 0 ? 1 : 0))
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

size=$(stat -c %s "$wheel")
echo "-- $(basename "$wheel"): $size bytes"
[ "$size" -le $((40 << 20)) ] || { echo "the wheel has more than 40 MiB"; exit 1; }

for python in "${@:-python3}"; do
  echo "-- $("$python" --version)"
  "$python" -m venv --clear "$scratch/venv"
  "$scratch/venv/bin/pip" install -q --no-index "$wheel"
  cd "$scratch"
  env -i PATH="$scratch/venv/bin:/usr/bin:/bin" HOME="$scratch" fidelio --version
  env -i PATH="$scratch/venv/bin:/usr/bin:/bin" HOME="$scratch" python - "$source/models/quill-1m" "$(mktemp -d "$scratch/XXXXXX")/made" <<'END'
import os
import sys
import fidelio
model, made = sys.argv[1:]
assert "site-packages" in fidelio.__file__, fidelio.__file__
fidelio.compress(model, made, ear=0.97, formats=["int6g64zs8", "int8g64zs8"], calibration_tokens=4096, search_tokens=512,
                 certificate_windows=20)
assert fidelio.certify(made, reference=model)["holds"]
with fidelio.Model(made) as small:
    print(small.generate("The package contains", max_tokens=16).text)
    print(small.certificate)
fidelio.quantize(model, made + "-q", "int8g32")
exported = fidelio.export(made + "-q", made + "-ct", "compressed-tensors")
assert os.path.isdir(exported["output"]), exported
END
  cd "$source"
done
echo "the wheel works"
