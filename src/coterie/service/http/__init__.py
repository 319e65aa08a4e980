"""The service over HTTP: routes, access, limits, metrics and the page."""
