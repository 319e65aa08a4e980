"""Azure Personalizer's API, for clients that speak it."""
