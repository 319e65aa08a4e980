"""The service: decisions over HTTP that learn, survive crashes and can be watched."""
