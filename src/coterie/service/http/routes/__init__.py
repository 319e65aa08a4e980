"""The native API's routes, one module per kind of resource."""
