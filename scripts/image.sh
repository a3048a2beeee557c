#!/bin/bash
# Build the image of deploy/image/Dockerfile with whichever of docker, podman and buildah works here, and run `outrace doctor` in it.
# BASE=debian:12-slim  image to begin with; BASE=mmdebstrap makes Debian 12 out of packages, where no registry of images can be reached.
# IMAGE=outrace:VERSION its name, where VERSION is the release: as the chart and deploy/kubernetes/base have it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BASE=${BASE:-debian:12-slim}
VERSION=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' monitor/__init__.py)
IMAGE=${IMAGE:-outrace:$VERSION}
FILE=deploy/image/Dockerfile

say() { echo "image: $*" >&2; }
cannot() {
  echo "outrace: image: $*" >&2
  exit 3
}

if docker info >/dev/null 2>&1; then
  BUILD=(docker build) IMPORT=(docker import) RUN=(docker run --rm)
elif command -v podman >/dev/null; then
  BUILD=(podman build) IMPORT=(podman import --quiet) RUN=(podman run --rm)
elif command -v buildah >/dev/null; then
  # Without namespaces of its own: it works inside a container or a sandbox, too.
  export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=${STORAGE_DRIVER:-vfs}
  BUILD=(buildah build) IMPORT=() RUN=()
else
  cannot "no docker engine, podman or buildah here: apt-get install buildah"
fi

import() { # TAR NAME
  if [ "${#IMPORT[@]}" -gt 0 ]; then
    "${IMPORT[@]}" "$1" "$2" >/dev/null
    return
  fi
  local container
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$1" / >/dev/null
  buildah commit --quiet --rm "$container" "$2" >/dev/null
}

if [ "$BASE" = mmdebstrap ]; then
  command -v mmdebstrap >/dev/null || cannot "mmdebstrap is missing: apt-get install mmdebstrap"
  BASE=localhost/outrace-base
  tar=$(mktemp --suffix=.tar)
  trap 'rm -f "$tar"' EXIT
  say "making $BASE out of Debian 12's packages"
  mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$tar"
  import "$tar" "$BASE"
fi

say "wheels of outrace and what it depends on"
rm -rf build/wheels
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
pip wheel --quiet --no-deps --wheel-dir build/wheels .
pip download --quiet --dest build/wheels --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 --abi abi3 \
  --abi none --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_17_$(uname -m)" --platform any build/wheels/outrace-*.whl

say "${BUILD[*]} -t $IMAGE"
"${BUILD[@]}" --build-arg "BASE=$BASE" -t "$IMAGE" -f "$FILE" .

say "outrace --version and its programs, in the image"
if [ "${#RUN[@]}" -gt 0 ]; then
  "${RUN[@]}" "$IMAGE" --version
else
  container=$(buildah from "$IMAGE")
  buildah run "$container" -- outrace --version
  buildah rm "$container" >/dev/null
fi
