"""Plans: does it fit, how fast, how many GPUs for a load, what binds first."""
