"""What the service costs and earns: load test, decisions, many users."""
