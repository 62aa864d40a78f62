#!/bin/sh
# Installs the Debian packages that are missing (and those named as arguments). Needs root or sudo; otherwise says what
# to install.
set -eu
packages="g++ cmake ninja-build pkg-config git python3 python3-jinja2
  libhwy-dev nlohmann-json3-dev libsimdjson-dev libcli11-dev libspdlog-dev libfmt-dev prometheus-cpp-dev
  libpcre2-dev libutf8proc-dev libboost-dev libgtest-dev libgmock-dev libbenchmark-dev valgrind"
missing=""
for p in $packages "$@"; do
  case "$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true)" in
    *"install ok installed"*) ;;
    *) missing="$missing $p" ;;
  esac
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ]; then as_root=""; elif command -v sudo >/dev/null 2>&1; then as_root="sudo"; else
  echo "missing Debian packages; as root: apt-get install -y$missing" >&2
  exit 1
fi
echo "installing:$missing" >&2
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
