#!/bin/bash
# The programs that tests drive (Prometheus, Alertmanager), from the packages of this distribution: unpacked into
# .venv/tools, not installed, so that no service of theirs is ever started and nothing is left on the machine.
# Does nothing when all are there. What cannot be had is said, and the tests that need it skip with the same remedy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TOOLS=.venv/tools
declare -A PACKAGE=([promtool]=prometheus [prometheus]=prometheus [amtool]=prometheus-alertmanager
  [prometheus-alertmanager]=prometheus-alertmanager [openssl]=openssl)

missing=()
for program in "${!PACKAGE[@]}"; do
  command -v "$program" >/dev/null || [ -x "$TOOLS/usr/bin/$program" ] || missing+=("${PACKAGE[$program]}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
mapfile -t packages < <(printf '%s\n' "${missing[@]}" | sort -u)

say() { echo "setup: $*" >&2; }
if ! command -v apt-get >/dev/null; then
  say "no apt-get here: tests with ${packages[*]} are skipped"
  exit 0
fi
say "unpacking ${packages[*]} into $TOOLS"
debs=$(mktemp -d)
trap 'rm -rf "$debs"' EXIT
mkdir -p "$TOOLS"
chmod 755 "$debs"
[ "$(id -u)" -ne 0 ] || chown _apt "$debs" 2>/dev/null || true # apt downloads as its own user
download() { (cd "$debs" && apt-get -qq -o Acquire::Retries=3 download "${packages[@]}" >/dev/null 2>&1); }
if ! download; then
  apt-get -qq -o Acquire::Retries=3 update >/dev/null || true
  download || {
    say "apt-get could not download ${packages[*]}: the tests with them are skipped"
    exit 0
  }
fi
for deb in "$debs"/*.deb; do
  dpkg-deb -x "$deb" "$TOOLS"
done
