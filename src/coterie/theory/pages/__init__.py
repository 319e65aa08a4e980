"""The pages of `coterie advise` and `coterie theory`."""
