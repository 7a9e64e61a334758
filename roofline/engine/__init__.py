"""The reference engine: paged KV, continuous batching, quantisation, speculation and tensor parallelism, small enough to be read."""
