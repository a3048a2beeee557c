"""What the API server is told: the status of evicted pods, events, conditions of the node."""
