#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command as root in a Debian of its own, which debootstrap makes once, in build/debian/NAME. There /src is this
# checkout, pip has the settings of this machine, and the command's namespaces for processes and mounts are new ones.
# Exit status 77, with the reason: this can't be done here; 1: debootstrap has failed; else the command's.
#   debian.sh NAME SUITE PACKAGES COMMAND [ARGUMENT...]
#     PACKAGES         beside the minimum, with commas between
#     DEBIAN_FOLDERS   folders of this machine to have there too, read-only
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1 suite=$2 packages=$3
shift 3
root=$PWD/build/debian/$name

# The folders that pip's settings name, such as one of wheels.
pip_folders() {
  { python3 -m pip config list 2>/dev/null || true; } | grep -oE '/[^ ,'\'']+' | while read -r path; do
    [ ! -d "$path" ] || echo "$path"
  done
}

if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
  echo "no Debian $suite: it takes root and debootstrap"
  exit 77
fi
if [ ! -e "$root/.made" ]; then
  key=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -e "$key" ] || { echo "no keys of Debian to check packages by (package debian-archive-keyring)" && exit 77; }
  echo "making a Debian $suite in $root"
  rm -rf --one-file-system "$root"
  mkdir -p "$root"
  # What debootstrap mounts in the folder is not seen outside, and goes with the process, however that ends.
  unshare --mount debootstrap --force-check-gpg --keyring="$key" --variant=minbase \
    --include="ca-certificates,$packages" "$suite" "$root" "$(cmake/mirror.sh)" >"$root.log" 2>&1 ||
    { tail -n 3 "$root.log" && exit 1; }
  cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  touch "$root/.made"
fi
for file in /etc/pip.conf /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e "$file" ] || cp -L "$file" "$root$file"
done
folders="$(pip_folders || true) ${DEBIAN_FOLDERS:-}"
export root folders
# shellcheck disable=SC2016 # the text is for the shell within
exec unshare --mount --pid --fork --kill-child bash -euc '
  mount --make-rprivate /
  mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev"
  mkdir -p "$root/dev/shm" "$root/src" && mount --bind "$PWD" "$root/src"
  for folder in $folders; do mkdir -p "$root$folder" && mount --bind -o ro "$folder" "$root$folder"; done
  settings=$(env | grep -E "^(PIP_|PYTHONS_|SSL_CERT|REQUESTS_CA|CURL_CA|[a-z]+_proxy=|[A-Z]+_PROXY=)" || true)
  mapfile -t settings <<<"$settings"
  exec chroot "$root" /usr/bin/env -i -C /src HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${settings[@]:-_=}" "$@"
' _ "$@"
