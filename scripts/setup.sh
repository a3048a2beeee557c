#!/bin/bash
# Everything outrace needs, from nothing, on Debian and Ubuntu: packages by apt, a virtual environment in .venv.
# Does nothing, in a few milliseconds, when all is there. One clear line when it cannot: exit code 3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=/usr/bin/python3 # not whichever comes first in PATH: only this one sees python3-bpfcc
VENV=.venv
STAMP=$VENV/.outrace-setup

say() { echo "setup: $*" >&2; }
cannot() {
  echo "outrace: setup: $*" >&2
  exit 3
}

have_bcc() { [ -e /usr/lib/python3/dist-packages/bcc/libbcc.py ]; }
have_libbpf() { compgen -G '/usr/lib/*/libbpf.so.1' >/dev/null || compgen -G '/lib/*/libbpf.so.1' >/dev/null; }
have_venv() { "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; }

stamp() { # what the environment was made from and for
  { cat pyproject.toml scripts/setup.sh; pwd; readlink -f "$PYTHON"; } | sha256sum
}

if [ -x "$VENV/bin/outrace" ] && have_bcc && have_libbpf &&
  [ "$(cat "$STAMP" 2>/dev/null)" = "$(stamp)" ]; then
  exit 0
fi

# -- packages -----------------------------------------------------------------------------------------------------------

apt() {
  DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -qq "$@" >/dev/null
}

update() {
  local try
  for try in 1 2 3; do
    say "apt-get update"
    if apt update; then return; fi
    sleep $((try * 5)) # a mirror in the middle of its own update answers again seconds later
  done
  cannot "apt-get update failed three times: check the network and /etc/apt/sources.list"
}

install_packages() {
  [ "$(id -u)" -eq 0 ] || cannot "must be root to install packages: run sudo make ${MAKECMDGOALS:-setup}"
  command -v apt-get >/dev/null ||
    cannot "no apt-get here: install BCC's Python bindings, libbpf and python3-venv, then run again"
  update
  local packages=()
  have_bcc || packages+=(python3-bpfcc)
  have_libbpf || packages+=(libbpf1)
  [ -x "$PYTHON" ] || packages+=(python3)
  if ! [ -x "$PYTHON" ] || ! have_venv; then packages+=(python3-venv); fi
  say "apt-get install ${packages[*]}"
  apt install --no-install-recommends "${packages[@]}" || cannot "apt-get install ${packages[*]} failed (see above)"
}

if ! { [ -x "$PYTHON" ] && have_bcc && have_venv && have_libbpf; }; then
  install_packages
fi
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  cannot "$("$PYTHON" --version) is too old: outrace needs 3.11 (Debian 12, Ubuntu 24.04 or newer)"

# -- virtual environment ------------------------------------------------------------------------------------------------

if ! [ -x "$VENV/bin/python" ] || ! grep -qx 'include-system-site-packages = true' "$VENV/pyvenv.cfg" ||
  ! "$VENV/bin/python" -c 'import bcc, pip; bcc.BPF' 2>/dev/null; then
  say "making $VENV"
  "$PYTHON" -m venv --clear --system-site-packages "$VENV"
fi
say "installing outrace and its tools into $VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev,deploy]' ||
  cannot "pip could not install the dependencies of pyproject.toml (see above): check the network"
# Isolated: what $PYTHONPATH names, or a user has in $HOME (sudo may keep both), is not imported as root.
sed -i '1s|/python$|/python -I|' "$VENV/bin/outrace"
# Without its bytecode a start takes 0.8 s instead of 0.2 (measured), and PYTHONDONTWRITEBYTECODE may be set.
"$VENV/bin/python" -m compileall -q monitor
stamp >"$STAMP"
