#!/bin/sh
# install.sh VENV PYTHON…: Florin with its developers' tools in the virtual environment VENV. An environment that is
# there keeps its Python; a new one is made with the first PYTHON for which everything is to be had.
set -eu
cd "$(dirname "$0")/.."
venv=$1
shift
export PIP_DISABLE_PIP_VERSION_CHECK=1

version() {  # 3.NN; fails where Florin does not run
  "$1" -c 'import sys; print("3.%d" % sys.version_info[1]); sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
    2>/dev/null
}

install() {
  echo "Installing Florin in $venv with $("$venv/bin/python" --version)…"
  "$venv/bin/python" -m pip install --quiet --no-deps --require-hashes -r requirements.lock &&
    "$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation -e .
}

if version "$venv/bin/python" >/dev/null; then
  install
  exit
fi
tried=
for python; do
  found=$(version "$python") || continue
  case " $tried " in *" $found "*) continue ;; esac
  tried="$tried $found"
  rm -rf "$venv"
  if ! "$python" -m venv "$venv" >/dev/null; then
    echo "$python cannot make virtual environments: install its venv module (python$found-venv)." >&2
  elif install; then
    exit 0
  else
    echo "Not everything that Florin needs can be installed for Python $found." >&2
  fi
  rm -rf "$venv"
done
if [ -z "$tried" ]; then
  echo "Florin needs Python 3.11 to 3.14, and none of these is one: $*." >&2
fi
exit 1
