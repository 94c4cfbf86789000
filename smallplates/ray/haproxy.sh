#!/bin/sh
# Serve starts this script as its HAProxy (RAY_SERVE_HAPROXY_BINARY_PATH); HAPROXY is the real one. The script changes
# what Ray 2.60 has no setting for, in the file that Serve has written:
# - the ports for HAProxy's statistics listen on 127.0.0.1 instead of everywhere;
# - HAProxy's own 502 and 503, which Serve turns into 500, become the service's 503 `unavailable` with Retry-After;
# - HAProxy reads the whole request, within 35 s, before it forwards it, because a retry needs all of it;
# - only the service watches for clients that disconnect, instead of Serve as well.
config=$(printf '%s\n' "$@" | grep -A1 -x -e -f | tail -n 1)
sed -i \
    -e 's/^\( *bind \)\*\{0,1\}:\([0-9]*\)$/\1127.0.0.1:\2/' \
    -e "s#^\( *errorfile 50[23] \).*#\1$(dirname "$0")/unavailable.http#" \
    -e 's/^\( *option abortonclose\)$/\1\n    option http-buffer-request\n    timeout http-request 35s/' \
    -e 's/^\( *http-reuse always\)$/\1\n    http-request set-header x-request-disconnect-disabled ?1/' \
    "$config"
exec "$HAPROXY" "$@"
