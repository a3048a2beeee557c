"""What outrace does to pods and the node: evict, set oom_score_adj, reclaim; and the undoing."""
