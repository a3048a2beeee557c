"""What is done about a decision: evict, oom_score_adj; observing is the default, enforcing an option."""
