#!/usr/bin/env bash
# Installs what the build and the tests need on Debian 12: the LLVM 22 packages
# of its security suite, oneDNN, and a Python environment in .venv with pinned
# versions. Does nothing, quickly, where all of it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  build-essential cmake ninja-build ccache git
  llvm-22-dev libmlir-22-dev mlir-22-tools llvm-22-tools
  clang-22 clang-format-22 lld-22 liblld-22-dev libclang-rt-22-dev
  zlib1g-dev libzstd-dev
  libdnnl-dev libgtest-dev
  libopenmpi-dev openmpi-bin
  python3 python3-dev python3-venv
  postgresql
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null |
    grep -qx installed || missing+=("$package")
done
if ((${#missing[@]})); then
  sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "error: these packages are missing and this user cannot install" \
        "them; as root: apt-get install ${missing[*]}" >&2
      exit 1
    }
    sudo=sudo
  fi
  echo "installing: ${missing[*]}"
  # Tests start a PostgreSQL server of their own: none for the machine is set up.
  if [[ " ${missing[*]} " == *" postgresql "* && ! -d /etc/postgresql-common ]]; then
    $sudo mkdir -p /etc/postgresql-common/createcluster.d
    echo "create_main_cluster = false" |
      $sudo tee /etc/postgresql-common/createcluster.d/cleave.conf >/dev/null
  fi
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq \
    --no-install-recommends "${missing[@]}" >/dev/null
fi

python=${PYTHON:-python3}
stamp=.venv/requirements.sha256
wanted=$( (sha256sum requirements.txt requirements-cuda.txt; "$python" --version) | sha256sum)
if [ ! -x .venv/bin/python ] || [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  echo "creating the Python environment .venv"
  rm -rf .venv
  "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    -r requirements.txt
  # 553 MB; without it, attention on a GPU is that of the generated kernels.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --no-deps -r requirements-cuda.txt ||
    echo "cuDNN was not installed; what needs it is left out" >&2
  echo "$wanted" >"$stamp"
fi
