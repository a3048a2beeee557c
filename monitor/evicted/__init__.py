"""Evicted pods that no controller removes: found, chosen, deleted."""
