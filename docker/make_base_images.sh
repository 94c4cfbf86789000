#!/usr/bin/env bash
# Provides the images that ours are built on, or run with. Those that can't be pulled are built from Debian's packages,
# under the same tags, for tests only: `docker/make_base_images.sh python haproxy prometheus`
set -euo pipefail
cd "$(dirname "$0")/.."

SUITE=trixie
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
BARE=smallplates/debian-base
NEWER="sed -i s/$SUITE/testing/ /etc/apt/sources.list && apt-get update -qq -o Acquire::Check-Valid-Until=false"
PIP=pip==25.2
# Returns the image that a file names, with its digest if it has one.
named() {
    sed -nE "s/.*$1_IMAGE(=|:-)([^}]*).*/\2/p" "$2"
}
declare -A IMAGES=(
    [python]=$(named PYTHON fastapi_onnx/Dockerfile)
    [haproxy]=$(named HAPROXY docker/docker-compose-scale.yaml)
    [prometheus]=$(named PROMETHEUS docker/docker-compose-monitoring.yaml)
)

present() {
    docker image inspect "$1" > /dev/null 2>&1
}

# A small Debian with its Python, and the certificates that this machine trusts.
make_bare() {
    present $BARE && return
    local folder keys=/usr/share/keyrings/debian-archive-keyring.gpg trusted=/etc/ssl/certs/ca-certificates.crt
    folder=$(mktemp -d)
    mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates,python3 --keyring=$keys \
        --aptopt='Acquire::Languages "none"' --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' \
        --customize-hook="cat $trusted > \"\$1\"$trusted" \
        $SUITE "$folder/root.tar" "$MIRROR"
    docker import "$folder/root.tar" $BARE > /dev/null
    rm -r "$folder"
}

# `build NAME`: reads the rest of a Dockerfile from stdin; the files that it copies are in $context.
build() {
    { echo "FROM $BARE"; cat; } > "$context/Dockerfile"
    docker build --quiet --network host --tag "${IMAGES[$1]%@*}" "$context" > /dev/null
}

# Like the published image, it has pip twice: the second one is for new environments.
make_python() {
    python3 -m pip download --quiet --no-deps --dest "$context" $PIP
    build python <<- 'END'
	COPY *.whl /tmp/
	RUN ln -s python3 /usr/bin/python && set -- /tmp/pip-*.whl /usr/local/lib/python3.13/ensurepip/_bundled \
	    && python3 "$1/pip" install --quiet --no-index --root-user-action=ignore "$1" \
	    && mkdir -p "$2" && mv "$1" "$2"
	ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
	CMD ["python3"]
	END
}

make_haproxy() {
    build haproxy <<- END
	RUN $NEWER && apt-get install -y -qq --no-install-recommends haproxy
	USER haproxy
	CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
	END
}

make_prometheus() {
    build prometheus <<- END
	RUN $NEWER && apt-get install -y -qq --no-install-recommends prometheus \
	    && mkdir -p /prometheus && chown 65534:65534 /prometheus
	USER 65534:65534
	ENTRYPOINT ["/usr/bin/prometheus"]
	END
}

for name in "$@"; do
    image=${IMAGES[$name]}
    present "${image%@*}" && continue
    if timeout 120 docker pull --quiet "$image" 2> /dev/null; then
        docker tag "$image" "${image%@*}"
        continue
    fi
    echo "$image cannot be pulled here: made from Debian's packages" >&2
    make_bare
    context=$(mktemp -d)
    "make_$name"
    rm -r "$context"
done
