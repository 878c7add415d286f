#!/usr/bin/env bash
# Installs the Debian packages that FFCV's build and the report's browser test need, or names them.
set -eu
packages="libopencv-dev libturbojpeg0-dev pkg-config chromium chromium-driver"
missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ]; then
  root=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  root="sudo"
else
  echo "these Debian packages are missing:$missing" >&2
  echo "  fix: ask an administrator for: apt-get install$missing" >&2
  exit 1
fi
$root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends $missing >/dev/null
