# For a Ray cluster on this machine only: `. smallplates/ray/local.sh` in the repository's root.
. smallplates/ray/env.sh

# makes every process use 127.0.0.1, as Ray does by itself on the systems in the variable's name
export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
