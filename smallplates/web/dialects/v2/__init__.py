"""The Open Inference Protocol (v2) over HTTP and gRPC, as Triton and KServe speak it."""
