"""Evicted pods that nobody removes: found, chosen, deleted; by hand or by a controller with leader election."""
