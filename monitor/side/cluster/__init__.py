"""What is written to the API server: the status of evicted pods, events, conditions and taints of the node,
pods/eviction.
"""
