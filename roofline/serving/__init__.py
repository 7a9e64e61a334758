"""What happens under load: workloads and traces, the simulator, latency statistics, replicas, disaggregation, speculation."""
