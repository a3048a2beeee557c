"""What the daemon shows: metrics, HTTP, the log."""
