#!/usr/bin/env bash
# Installs the Debian packages that FFCV's build needs, and with the word `browser` those of the
# report's browser test; ends with 3 where they are missing and this user can't install them.
set -eu
packages="libopencv-dev libturbojpeg0-dev pkg-config"
[ "${1:-}" = browser ] && packages="chromium chromium-driver"
missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null; then
  root="none"
elif [ "$(id -u)" = 0 ]; then
  root=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  root="sudo"
else
  root="none"
fi
if [ "$root" = none ]; then
  without="all but reading and writing FFCV's format" after="; then type make clean"
  [ "${1:-}" = browser ] && without="all tests but the report's in a browser" after=""
  echo "these Debian packages are missing:$missing; without them works $without" >&2
  echo "  fix: ask an administrator for: apt-get install$missing$after" >&2
  exit 3
fi
$root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends $missing >/dev/null
