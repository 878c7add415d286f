#!/usr/bin/env bash
# Installs the Debian packages of the libraries that FFCV is compiled with, and with the word
# `browser` those of the report's browser test. What is there already may come from anywhere: another
# distribution, conda. Ends with 3 where something is missing and this user can't install it.
set -eu
if [ "${1:-}" = browser ]; then
  command -v chromium chromium-browser >/dev/null && command -v chromedriver >/dev/null && exit 0
  packages="chromium chromium-driver"
  missing="chromium and chromedriver" without="all tests but the report's in a browser" after=""
else
  pkg-config --exists opencv4 libturbojpeg 2>/dev/null && exit 0
  packages="libopencv-dev libturbojpeg0-dev pkg-config"
  missing="OpenCV and libturbojpeg (as pkg-config finds them)"
  without="all but reading and writing FFCV's format" after="; then type make clean"
fi
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
  echo "not installed: $missing; without them works $without" >&2
  echo "  fix: ask an administrator for them, on Debian: apt-get install $packages$after" >&2
  exit 3
fi
$root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends $packages >/dev/null
