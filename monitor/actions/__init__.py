"""What is done about a decision: evict, oom_score_adj; observe first, enforce when told."""
