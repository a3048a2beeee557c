"""What is told to people and machines: metrics, HTTP, log."""
