# For a Ray whose nodes are all on this machine: `. serving_ray/local.sh` from the repository's root.
. serving_ray/env.sh

# the name says where Ray does it by itself: every process uses 127.0.0.1
export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
