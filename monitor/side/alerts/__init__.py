"""Alerts: which there are, and how they get to Alertmanagers and webhooks."""
