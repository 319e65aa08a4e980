"""Policies that find clusters of users, or of users and items, from their payoffs."""
