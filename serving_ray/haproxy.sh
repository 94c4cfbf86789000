#!/bin/sh
# Serve starts this as its HAProxy (RAY_SERVE_HAPROXY_BINARY_PATH); HAPROXY is the real one. Ray 2.60 has no setting
# for what this changes in the file that Serve has written:
# - the ports for HAProxy's statistics listen on 127.0.0.1 instead of everywhere;
# - HAProxy's own 502 and 503, which Serve turns into 500, are the service's 503 `unavailable` with Retry-After;
# - a request is read whole before it is sent on, as another try needs it, within 35 s;
# - Serve leaves the watch for a client that leaves to the service, instead of watching, too.
config=$(printf '%s\n' "$@" | grep -A1 -x -e -f | tail -n 1)
sed -i \
    -e 's/^\( *bind \)\*\{0,1\}:\([0-9]*\)$/\1127.0.0.1:\2/' \
    -e "s#^\( *errorfile 50[23] \).*#\1$(dirname "$0")/unavailable.http#" \
    -e 's/^\( *option abortonclose\)$/\1\n    option http-buffer-request\n    timeout http-request 35s/' \
    -e 's/^\( *http-reuse always\)$/\1\n    http-request set-header x-request-disconnect-disabled ?1/' \
    "$config"
exec "$HAPROXY" "$@"
