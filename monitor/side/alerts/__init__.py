"""The alerts that are pushed: which there are, and how they get to Alertmanagers."""
