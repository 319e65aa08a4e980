"""Champion, challenger and holdback: who is in which arm, and how much better one is than another."""
