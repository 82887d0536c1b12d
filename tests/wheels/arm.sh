#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries a wheel for 64-bit Arm by qemu-user, with Debian's Python for arm64, unpacked and not installed: the command,
# the extension, and hello.py with its three processes. What qemu-user lacks (io_uring, some advice about memory)
# remains untried.
#   arm.sh DIST VERSION SUITE FOLDER
set -euo pipefail
dist=$1 version=$2 suite=$3 folder=$4
cd "$(dirname "$0")/../.."
command -v qemu-aarch64 >/dev/null || { echo "no qemu-aarch64 (Debian: qemu-user)" && exit 77; }
root=$folder/root
rm -rf "$folder"
mkdir -p "$folder/site"
ssl=libssl3
[ "$suite" = bookworm ] || ssl=libssl3t64
cmake/unpack.sh "$root" arm64 "$suite" "python$version-minimal" "libpython$version-minimal" "libpython$version-stdlib" \
  libc6 libgcc-s1 libstdc++6 libexpat1 libffi8 zlib1g libzstd1 "$ssl"
# Since trixie /lib is a link that a package of its own makes.
[ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
wheel=$(echo "$dist"/ringcast-*-cp"${version/./}"-*_aarch64.whl)
python3 -m zipfile -e "$wheel" "$folder/site"
chmod +x "$folder"/site/ringcast-*.data/scripts/ringcast
numpy="numpy, which has no wheel for it"
if python3 -m pip -q --disable-pip-version-check download --only-binary :all: --no-deps -d "$folder" \
  --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
  --python-version "$version" --implementation cp --abi "cp${version/./}" numpy >"$folder/pip.log" 2>&1; then
  python3 -m zipfile -e "$folder"/numpy-*.whl "$folder/site"
  numpy=
fi

zig=$(echo build/wheels/venv/lib/python3*/site-packages/ziglang/zig)
ZIG_GLOBAL_CACHE_DIR=$PWD/build/wheels/zig "$zig" cc -target aarch64-linux-gnu.2.28 -shared -fPIC -O1 \
  -D__wrap_open=open tests/support/qemu.c -o "$root/preloaded.so"

# A process that Python starts is started by qemu, too.
cat >"$folder/qemu" <<END
#!/bin/sh
exec qemu-aarch64 -L "$root" -E LD_PRELOAD="$root/preloaded.so" "\$@"
END
cat >"$folder/python" <<END
#!/bin/sh
exec "$folder/qemu" "$root/usr/bin/python$version" "\$@"
END
cat >"$folder/site/sitecustomize.py" <<END
import multiprocessing
import os

os.environ.pop("LD_PRELOAD", None)  # not for this machine's shell, which starts qemu
multiprocessing.set_executable("$folder/python")
END
chmod +x "$folder/qemu" "$folder/python"
export PYTHONHOME=$root/usr PYTHONPATH=$folder/site
# qemu keeps a note of each page of spill memory.
export RINGCAST_SPILL_BYTES=$((64 << 20))
ringcast() { "$folder/qemu" "$folder"/site/ringcast-*.data/scripts/ringcast "$@"; }
ringcast --version
ringcast doctor
ringcast doctor --format json | grep '"liburing": *1' >/dev/null
"$folder/python" - <<'END'
import platform, ringcast
with ringcast.Writer(1 << 20) as writer, ringcast.Reader(writer.handle) as reader:
    writer.send({"step": 7}, 30, hash="xxh3")
    assert reader.recv(30) == {"step": 7}
print(platform.machine(), platform.python_version())
END
[ -z "$numpy" ] || { echo "hello.py was not run: $numpy" && exit; }
sed "s/timeout=60/timeout=600/" examples/hello.py >"$folder/hello.py" # qemu is slow to import NumPy
"$folder/python" "$folder/hello.py" | tee "$folder/hello"
[ "$(grep -c received "$folder/hello")" = 6 ]
