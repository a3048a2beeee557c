"""Evicted pods that nobody removes: found, chosen, deleted."""
