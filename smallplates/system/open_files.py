"""The limit on open files, which also counts sockets and pipes."""

import resource


def allow_open_files(wanted: int) -> int:
    """Raises this process's limit if it is lower than `wanted`; returns how many of these it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < possible:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    return possible
