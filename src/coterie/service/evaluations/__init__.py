"""Off-policy evaluations of the service's log, in a process of their own."""
