"""Parameters of requests and outputs in the Open Inference Protocol; both its codecs read them here."""

from typing import Any

from serving.errors import InvalidRequestError

RESERVED = "triton_"
SHARED_MEMORY = "shared memory is not supported: send the data"
MAX_TIMEOUT_US = 2**53
MAX_CLASSES = 2**31 - 1

Parameters = dict[str, Any]  # JSON's scalars, or gRPC's


def check_parameters(parameters: Parameters) -> None:
    """Raises InvalidRequestError for names that Triton reserves, and for shared memory."""
    for name in parameters:
        if name.startswith(RESERVED):
            raise InvalidRequestError(f"parameters that begin with {RESERVED} are reserved: {name[:80]}")
        if name.startswith("shared_memory"):
            raise InvalidRequestError(SHARED_MEMORY)


def whole_number(parameters: Parameters, name: str, largest: int) -> int:
    """Returns a parameter from 0 to `largest`; 0 where it is absent. Raises InvalidRequestError."""
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise InvalidRequestError(f"{name} must be a whole number from 0 to {largest}")
    return value


def flag(parameters: Parameters, name: str) -> bool | None:
    """Returns a boolean parameter, None where it is absent. Raises InvalidRequestError."""
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false")
    return value
