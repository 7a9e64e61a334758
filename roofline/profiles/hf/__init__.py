"""Models from what a checkpoint ships: config.json, quantisation recipes, safetensors headers, GGUF."""
