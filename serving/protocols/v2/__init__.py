"""The Open Inference Protocol v2 in HTTP and gRPC, as Triton and KServe speak it."""
