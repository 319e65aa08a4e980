"""Many runs: comparison, tuning, the protocol of the paper, metrics and verdicts."""
