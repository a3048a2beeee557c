"""What is written to the API server: the status of evicted pods, events, conditions of the node."""
