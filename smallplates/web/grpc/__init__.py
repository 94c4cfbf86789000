"""Everything around a gRPC call, for the services that speak it."""
