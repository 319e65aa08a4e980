"""What the policies share."""
